"""A writable mount of a stopped broker's directory, and what a mount that may not write shows and says."""

from __future__ import annotations

import errno
import os
import re
import subprocess

import pytest

from storage.files import names
from storage.verify.verify import verify_log_dir
from tests.kafkafs.mounting.test_writing import messages
from tests.support.builders import build_log_dir
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.serving_processes import fails_with, killed_after

pytestmark = requires_fuse


@pytest.fixture
def log_dir(tmp_path):
    return build_log_dir(tmp_path / "logs", {"t": [[b"one", b"two"]], "__consumer_offsets": [[b"x"]]}).path


def test_a_stopped_brokers_directory(log_dir, tmp_path):
    before = (log_dir / names.CLEAN_SHUTDOWN).read_bytes()
    with mounted(log_dir, tmp_path / "mnt", write=True) as mount:
        assert not (log_dir / names.CLEAN_SHUTDOWN).exists()
        with fails_with(errno.EPERM):
            (mount.path / "new").mkdir()
        with fails_with(errno.EPERM):
            (mount.path / "t").rmdir()
        with fails_with(errno.EINVAL):  # how many partitions it has is not known here
            os.open(mount.path / "t" / "@append", os.O_WRONLY)
        with fails_with(errno.EPERM):
            os.open(mount.path / "__consumer_offsets" / "0" / "@append", os.O_WRONLY)
        (mount.path / "t" / "0" / "@append").write_bytes(b"three\n")
        assert (mount.path / "t" / "0" / "messages.txt").read_bytes() == b"one\ntwo\nthree\n"
    assert (log_dir / names.CLEAN_SHUTDOWN).read_bytes() == before
    assert verify_log_dir(log_dir) == []


def test_what_cannot_be_mounted_to_write(log_dir, tmp_path):
    (tmp_path / "mnt").mkdir()
    result = run_kafkafs("mount", "--write", tmp_path / "nix", tmp_path / "mnt", check=False)
    assert (result.returncode, b"no such log directory" in result.stderr) == (4, True)
    for flag in ("--write", "--create"):
        result = run_kafkafs("mount", log_dir, tmp_path / "mnt", flag, "--read-only", check=False)
        assert (result.returncode, b"contradict each other" in result.stderr) == (2, True)
    (log_dir / ".lock").mkdir()
    result = run_kafkafs("mount", "--write", log_dir, tmp_path / "mnt", check=False)
    assert (result.returncode, b"without --write" in result.stderr) == (4, True)


# write(2)s of many FUSE requests that are refused in part, through a real mount and with real tools


REQUEST = 128 << 10
MIB = 1 << 20
# More than a message may have: max.message.bytes is 1,048,588 unless set.
OVERLONG = b"x" * 2 * MIB


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    path = tmp_path_factory.mktemp("refused")
    with mounted(path / "logs", path / "mnt", "--create", write=True) as mount, killed_after(mount.process):
        yield mount


@pytest.fixture
def topic(mount, request):
    path = mount.path / re.sub(r"[^a-z0-9]+", "-", request.node.name)
    path.mkdir()
    return path


def jsonl_line(size):
    return b'{"value":"%s"}' % (b"v" * (size - 12))


# A file of lines, and how many of them precede the one that is refused.
CASES = {
    "2 MiB": ("@append", b"g1\n" + OVERLONG + b"\ng2\n", 1),
    "just too long": ("@append", b"g1\n" + b"x" * (MIB + 3) + b"\ng2\n", 1),
    "first": ("@append", OVERLONG + b"\ng2\n", 0),
    "last": ("@append", b"g1\n" * 100_000 + OVERLONG + b"\n", 100_000),
    "without a newline": ("@append", b"g1\n" + OVERLONG, 1),
}
for _at in (0, 1, 11, REQUEST - 1, REQUEST, REQUEST + 1):
    # A bad line of 12 bytes that begins before, at, and behind the border of two requests.
    _before = 3 * REQUEST - _at
    CASES[f"jsonl {_at} before a border"] = (
        "@append.jsonl",
        (jsonl_line(1023) + b"\n") * (_before // 1024 - 1)
        + jsonl_line(1023 + _before % 1024) + b"\n" + b'{"value":1}\n' + b'{"value":"g"}\n' * 20_000,
        _before // 1024,
    )  # fmt: skip

TOOLS = {
    "dd in one write": 'dd if="$1" of="$2" bs=64M status=none conv=notrunc',
    "dd in many": 'dd if="$1" of="$2" bs=1000 status=none conv=notrunc',
    "cat": 'cat "$1" >> "$2"',
    "cp": 'cp "$1" "$2"',
    "tee": 'tee "$2" < "$1" > /dev/null',
    "python": """python3 -c 'import pathlib, sys
pathlib.Path(sys.argv[2]).write_bytes(open(sys.argv[1], "rb").read())' "$1" "$2" """,
}
TOLD = {"@append": "Message too long", "@append.jsonl": "Invalid argument"}


@pytest.mark.parametrize(
    ("case", "tool"), [*((case, "cat") for case in CASES), *(("2 MiB", tool) for tool in TOOLS if tool != "cat")]
)
def test_tools_fail_at_the_line_that_is_refused(topic, tmp_path, case, tool):
    name, data, good = CASES[case]
    (tmp_path / "lines").write_bytes(data)
    result = subprocess.run(
        ["bash", "-c", TOOLS[tool], "bash", tmp_path / "lines", topic / name],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert (result.returncode, TOLD[name] in result.stderr) == (1, True), result
    assert len(messages(topic)) == good


@pytest.mark.parametrize("sync", [False, True], ids=["write", "fsync"])
def test_an_error_that_the_kernel_dropped_comes_with_the_next_call(topic, sync):
    fd = os.open(topic / "@append", os.O_WRONLY)
    try:
        assert 0 < os.write(fd, b"g1\n" + OVERLONG + b"\ng2\n") < 2 * MIB  # the caller does not write the rest
        with fails_with(errno.EMSGSIZE):
            os.fsync(fd) if sync else os.write(fd, b"g3\n")
        assert os.write(fd, b"g4\n") == 3
        os.fsync(fd)
    finally:
        os.close(fd)
    assert messages(topic) == [b"g1", b"g4"]
