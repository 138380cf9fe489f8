"""Every errno of kafkafs/CONTRACT.md, "Errors", that a read-only mount can give, as a reader on the mount meets it."""

from __future__ import annotations

import errno
import json
import os
import subprocess

import pytest

from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many
from tests.support.damaged_bytes import flip
from tests.support.mounted_logs import txt
from tests.support.mounts import mounted, requires_fuse, status_when
from tests.support.serving_processes import fails_with, killed_after, watched

pytestmark = requires_fuse


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """`t`: offsets 100 to 399, the log start is 150. `crc`, `magic`: three segments, the first has a damaged batch."""
    three = [Batch(many(20)), Batch(many(20)), Batch(many(20)), ROLL, Batch(many(20)), ROLL, Batch(many(20))]
    built = build_log_dir(
        tmp_path_factory.mktemp("errors") / "logs",
        {
            "t": [Partition([Batch(many(100))] * 3, start_offset=100, log_start_offset=150)],
            "crc": [three],
            "magic": [three],
        },
    )
    flip(built["crc", 0].log(0), built["crc", 0].batches[1].position + 100, 0xFF)
    flip(built["magic", 0].log(0), built["magic", 0].batches[1].position + 16, 2 ^ 9)
    return built


@pytest.fixture(scope="module")
def mount(built):
    with watched(built.path, built.path.with_name("mnt")) as mounted:
        yield mounted


@pytest.fixture
def mnt(mount):
    return mount.path


@pytest.mark.parametrize(
    "name",
    ["offsets/100.txt", "offsets/149.txt", "offsets/100-199.txt", "offsets/0-.txt", "offsets/120+10.txt",
     "offsets/0-99.log", "offsets/0-149.jsonl", "offsets/401.txt", "offsets/401-.txt", "offsets/401-500.txt",
     "offsets/500+1.txt", "offsets/9223372036854775807.txt"],
)  # fmt: skip
def test_out_of_range(mnt, name):
    with fails_with(errno.ERANGE):
        (mnt / "t/0" / name).read_bytes()


@pytest.mark.parametrize(("topic", "number"), [("crc", errno.EIO), ("magic", errno.EPROTO)])
def test_damage(mnt, mount, built, topic, number):
    """The damaged batch fails where it would stand; all before and behind it is read; the log names it."""
    records = built[topic, 0].records
    partition = mnt / topic / "0"
    view = partition / "messages.txt"
    before = txt(records[:20])
    with view.open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), len(before), 0) == before
        with fails_with(number):
            os.pread(file.fileno(), 1, len(before))
    assert (partition / "offsets/40-59.txt").read_bytes() == txt(records[40:60])
    assert (partition / "offsets/60-.txt").read_bytes() == txt(records[60:])
    with fails_with(number):
        (partition / "offsets/25.txt").read_bytes()
    with fails_with(number):
        view.read_bytes()
    messages = mount.path.with_name(mount.path.name + ".messages").read_text()
    lines = [line for line in messages.splitlines() if " ERROR " in line and str(built[topic, 0].log(0)) in line]
    assert lines
    place = built[topic, 0].batches[1]
    assert any(f"position {place.position}" in line for line in lines)
    assert any("found" in line for line in lines)
    assert "Traceback" not in messages
    status = status_when(mnt, lambda status: status["errors"]["count"] > 0, "the errors to be counted")
    assert status["errors"]["bugs"] == 0


def test_a_partition_that_vanishes(tmp_path):
    built = build_log_dir(tmp_path / "logs", {"t": [[b"one"]], "u": [[b"two"]]})
    with watched(built.path, tmp_path / "mnt") as mount, (mount.path / "t/0/messages.txt").open("rb") as file:
        (built.path / "t-0").rename(tmp_path / "gone")
        with fails_with(errno.ENOENT):
            (mount.path / "t/0/messages.txt").stat()
        with fails_with(errno.ENOENT):
            file.read()
        assert (mount.path / "u/0/messages.txt").read_bytes() == b"two\n"


@pytest.mark.parametrize("write", [False, True])
def test_a_log_directory_that_is_gone(tmp_path, write):
    """The disk has failed or was unmounted: what tells that goes on, and nothing else does."""
    built = build_log_dir(tmp_path / "logs", {"t": [[b"one"]]})
    with mounted(built.path, tmp_path / "mnt", write=write) as mount, killed_after(mount.process):
        assert (mount.path / "t/0/messages.txt").read_bytes() == b"one\n"
        shown, disk = os.statvfs(mount.path), os.statvfs(built.path)
        assert (shown.f_frsize, shown.f_blocks, shown.f_files) == (disk.f_frsize, disk.f_blocks, disk.f_files)
        assert 0 < shown.f_bavail <= shown.f_bfree <= shown.f_blocks
        built.path.rename(tmp_path / "gone")
        try:
            listed = subprocess.run(["ls", "-l", mount.path], capture_output=True, text=True, timeout=120, check=False)
            assert (listed.returncode, listed.stderr) == (0, "")
            assert [line.split()[-1] for line in listed.stdout.splitlines()[1:]] == [
                *("@groups", "@help", "@metrics", "@status.json", "t"),
            ]
            status = json.loads((mount.path / "@status.json").read_bytes())
            assert status["errors"]["bugs"] == 0
            assert "cannot be read" in status["problems"][0]
            assert b"kafkafs_partition_online" in (mount.path / "@metrics").read_bytes()
            assert (mount.path / "@help").read_bytes().startswith(b"kafkafs: ")
            shown = os.statvfs(mount.path)
            assert (shown.f_bfree, shown.f_bavail, shown.f_ffree, shown.f_favail) == (0, 0, 0, 0)
            command = ["df", "--output=avail,target", mount.path]
            listed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
            assert listed.stdout.splitlines()[1].split(maxsplit=1) == ["0", str(mount.path)]
            with fails_with(errno.ENOENT):
                (mount.path / "t/0/messages.txt").read_bytes()
        finally:
            (tmp_path / "gone").rename(built.path)
        assert (mount.path / "t/0/messages.txt").read_bytes() == b"one\n"
