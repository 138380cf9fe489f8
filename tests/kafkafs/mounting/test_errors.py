"""Errors as a reader on a mount meets them: the errno of each, and standard tools that must fail at damage."""

import errno
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from kafkafs.formats.format import MOST_LINE_BYTES
from storage.format.block import Record
from storage.format.compression import Codec
from tests.support.builders import ROLL, START_MS, Batch, Partition, build_log_dir, many
from tests.support.damaged_bytes import flip, overwrite
from tests.support.mounts import mounted, requires_fuse, status_when
from tests.support.reference_views import jsonl, txt
from tests.support.serving_processes import fails_with, killed_after, watched

pytestmark = requires_fuse


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """`t`: offsets 100 to 399, the log start is 150. `crc`, `magic`: three segments, the first has a damaged batch."""
    three = [Batch(many(20)), Batch(many(20)), Batch(many(20)), ROLL, Batch(many(20)), ROLL, Batch(many(20))]
    short = Partition([Batch(many(100))] * 3, start_offset=100, log_start_offset=150)
    path = tmp_path_factory.mktemp("errors") / "logs"
    built = build_log_dir(path, {"t": [short], "crc": [three], "magic": [three]})
    flip(built["crc", 0].log(0), built["crc", 0].batches[1].position + 100, 0xFF)
    flip(built["magic", 0].log(0), built["magic", 0].batches[1].position + 16, 2 ^ 9)
    return built


@pytest.fixture(scope="module")
def mount(built):
    with watched(built.path, built.path.with_name("mnt")) as mounted:
        yield mounted


def test_out_of_range(mount):
    for name in ("100.txt", "149.txt", "100-199.txt", "0-.txt", "120+10.txt", "0-99.log", "0-149.jsonl", "401.txt",
                 "401-.txt", "401-500.txt", "500+1.txt", "9223372036854775807.txt"):  # fmt: skip
        with fails_with(errno.ERANGE):
            (mount.path / "t/0/offsets" / name).read_bytes()


def test_options_reach_the_tree(built, tmp_path):
    with watched(built.path, tmp_path / "mnt", "-o", "out_of_range=clamp,keys=off,isolation=read_committed") as mount:
        shown = [record for record in built["t", 0].records if 150 <= record.offset < 160]
        assert (mount.path / "t/0/offsets/100-159.txt").read_bytes() == txt(shown)
        status = json.loads((mount.path / "@status.json").read_bytes())
    assert (status["isolation"], status["out_of_range"], status["key_index"]) == ("read_committed", "clamp", None)


@pytest.mark.parametrize(("topic", "number"), [("crc", errno.EIO), ("magic", errno.EPROTO)])
def test_damage(mount, built, topic, number):
    """The damaged batch fails where it would stand; all before and behind it is read; the log names it."""
    records = built[topic, 0].records
    partition = mount.path / topic / "0"
    before = txt(records[:20])
    with (partition / "messages.txt").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), len(before), 0) == before
        with fails_with(number):
            os.pread(file.fileno(), 1, len(before))
    assert (partition / "offsets/40-59.txt").read_bytes() == txt(records[40:60])
    assert (partition / "offsets/60-.txt").read_bytes() == txt(records[60:])
    for name in ("offsets/25.txt", "messages.txt"):
        with fails_with(number):
            (partition / name).read_bytes()
    messages = mount.path.with_name("mnt.messages").read_text()
    lines = [line for line in messages.splitlines() if " ERROR " in line and str(built[topic, 0].log(0)) in line]
    place = f"position {built[topic, 0].batches[1].position}"
    assert [line for line in lines if place in line and "found" in line]
    assert "Traceback" not in messages
    status = status_when(mount.path, lambda status: status["errors"]["count"] > 0, "the errors to be counted")
    assert status["errors"]["bugs"] == 0


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
            names = [line.split()[-1] for line in listed.stdout.splitlines()[1:]]
            assert names == ["@groups", "@help", "@metrics", "@status.json", "t"]
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


def test_a_fifo_stops_nothing_else(tmp_path):
    """Who opens one waits for a writer. The file that needs it fails with EINVAL."""
    needing = {
        "a": ("00000000000000000000.log", "0/messages.txt"),
        "b": ("leader-epoch-checkpoint", "0/messages.txt"),
        "c": ("topic.properties", "@config"),
        "d": ("partition.metadata", "@config"),
    }
    built = build_log_dir(tmp_path / "log", {topic: [[b"one"]] for topic in [*needing, "u"]})
    for topic, (name, _) in needing.items():
        (built[topic, 0].path / name).unlink(missing_ok=True)
        os.mkfifo(built[topic, 0].path / name)
    with mounted(built.path, tmp_path / "mnt") as mount:
        walked = subprocess.run(["ls", "-lR", mount.path], capture_output=True, text=True, timeout=60, check=False)
        assert f"{mount.path}/u/0:" in walked.stdout
        for topic, (_, name) in needing.items():
            command = ["cat", mount.path / topic / name]
            refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (refused.returncode, refused.stdout) == (1, ""), name
            assert refused.stderr.endswith(": Invalid argument\n")
        assert subprocess.check_output(["cat", mount.path / "u/0/messages.txt"], timeout=60) == b"one\n"


# Damage in the middle of a range of sealed segments, which goes through the page cache


PER_BATCH = 60
BATCHES = 80
SEALED = PER_BATCH * BATCHES
BAD = 41  # the batch that is damaged; some 100 KiB and more of messages stand before it and behind it
HOUR_MS = 3_600_000
PAGE = os.sysconf("SC_PAGE_SIZE")
RANGE = f"offsets/0-{SEALED - 1}"
NAMES = {f"{RANGE}.txt": txt, f"time/{START_MS}--{START_MS + BATCHES * HOUR_MS}.jsonl": jsonl}


def batch_of(number):
    """A batch an hour."""
    start = START_MS + number * HOUR_MS
    return Batch([Record(b"k", b"%d %d " % (number, row) + b"v" * 50, (), start + row) for row in range(PER_BATCH)])


@pytest.fixture
def partition(tmp_path):
    items = [*(batch_of(number) for number in range(BATCHES)), ROLL, batch_of(BATCHES)]
    return build_log_dir(tmp_path / "logs", {"t": [items]})["t", 0]


def flipped(partition):
    flip(partition.log(0), partition.batches[BAD].position + 200)


def zeroed(partition):
    """As a lost block of a disk: no batch begins there, the next index entry tells where it goes on."""
    overwrite(partition.log(0), partition.batches[BAD].position, bytes(partition.batches[BAD].size))


MMAP = "import mmap, sys; sys.stdout.buffer.write(mmap.mmap(open(sys.argv[1], 'rb').fileno(), 0, %s)[:])"
PYTHON = {
    "read": "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())",
    "mmap": MMAP % "prot=mmap.PROT_READ",
    "private mmap": MMAP % "mmap.MAP_PRIVATE, mmap.PROT_READ",
}
TOOLS = {
    "cat": ["cat"],
    "dd": ["dd", "bs=100", "status=none"],
    "dd bs=1M": ["dd", "bs=1M", "status=none"],
    "grep": ["grep", "-a", ""],
    "head": ["head", "-c", "1G"],
    "cp": ["cp"],
    "sort": ["sort"],
    "sha1sum": ["sha1sum"],
    "wc -l": ["wc", "-l"],
    "tac": ["tac"],
    **{f"python {name}": [sys.executable, "-c", code] for name, code in PYTHON.items()},
}
COPYING = ("cat", "dd", "dd bs=1M", "grep", "head", "cp", "python read")


def run_tool(tool, path, copy):
    """Exit code of a tool, and its output."""
    copy.unlink(missing_ok=True)
    command = [*TOOLS[tool], f"if={path}" if tool.startswith("dd") else path, *([copy] if tool == "cp" else [])]
    run = subprocess.run(command, capture_output=True, check=False, timeout=120, env={**os.environ, "LC_ALL": "C"})
    return run.returncode, copy.read_bytes() if copy.exists() else run.stdout


@pytest.mark.parametrize("known", [True, False])
def test_every_tool_fails(partition, tmp_path, known):
    """`known` when a file is opened first, or only met when it is read. In the page cache less than was asked for means
    the end of the file: every tool would print half of it and say that all is well."""
    if known:
        flipped(partition)
    with watched(partition.path.parent, tmp_path / "mnt") as mount:
        directory = mount.path / "t/0"
        if not known:
            for name in NAMES:
                (directory / name).open("rb").close()
            flipped(partition)
        for name, render in NAMES.items():
            path, content = directory / name, render(partition.records[:SEALED])
            before = render(partition.records[: BAD * PER_BATCH])
            for _ in range(2):  # the second time the kernel has what was right in its cache
                for tool in TOOLS:
                    code, output = run_tool(tool, path, tmp_path / "copy")
                    assert code != 0, tool
                    assert tool not in COPYING or before.startswith(output), tool
                    assert output == before or tool != "cat" or not known
            # Nothing that was cached on the way is wrong: not the size, and no byte on either side.
            behind = len(render(partition.records[: (BAD + 1) * PER_BATCH]))
            pages = 0 if known else PAGE
            with path.open("rb", buffering=0) as file:
                for start, stop in ((0, len(before) - pages), (behind + pages, len(content))):
                    for position in range(start, stop, 7 * PAGE):
                        size = min(7 * PAGE, stop - position)
                        assert os.pread(file.fileno(), size, position) == content[position : position + size]
                with fails_with(errno.EIO):
                    os.pread(file.fileno(), 10, len(before) + 5)
                assert path.stat().st_size == os.fstat(file.fileno()).st_size == len(content)


def test_a_log_that_was_cut_short(partition, tmp_path):
    """`.log` ranges and the real files are bytes, served through the page cache: a file that another process cuts must
    not seem to end there with all of it read."""
    log, view = partition.log(0), tmp_path / "mnt/t/0" / f"{RANGE}.log"
    with watched(partition.path.parent, tmp_path / "mnt"), view.open("rb", buffering=0) as file:
        os.truncate(log, log.stat().st_size // 2)
        with fails_with(errno.ERANGE):
            list(iter(lambda: file.read(1 << 20), b""))


@pytest.mark.parametrize("harm", [zeroed, flipped])
def test_what_was_repaired_is_read_although_another_handle_is_open(partition, tmp_path, harm):
    """A forgotten reader; or the handle of a reader whose close(2) has returned, which the kernel tells us of later.
    Views of raw bytes show what the file holds, and not what the page cache has of it."""
    log, records = partition.log(0), partition.records
    intact, status = log.read_bytes(), log.stat()
    harm(partition)
    harmed = log.read_bytes()
    os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
    with watched(partition.path.parent, tmp_path / "mnt") as mount, ExitStack() as stack:
        directory = mount.path / "t/0"
        expected = {
            stack.enter_context((directory / name).open("rb", buffering=0)): txt(shown)
            for name, shown in (
                ("messages.txt", records), (f"{RANGE}.txt", records[:SEALED]), (f"time/{START_MS}--.txt", records),
            )
        }  # fmt: skip
        raw = [directory / f"{RANGE}.log", directory / "segments" / log.name]
        assert [path.read_bytes() == harmed for path in raw * 2] == [True] * 4
        for held, content in expected.items():
            assert held.read(100) == content[:100]
            with fails_with(errno.EIO):
                Path(held.name).read_bytes()
        overwrite(log, 0, intact)
        os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
        for held, content in expected.items():
            assert [Path(held.name).read_bytes() == content for _ in range(2)] == [True, True]
            assert held.read(100) == content[100:200]
        assert [path.read_bytes() == intact for path in raw] == [True, True]


def test_a_message_that_is_too_long(tmp_path):
    """EFBIG in its place, named in the log; what precedes it and what follows it is read."""
    records = [Record(None, value, (), START_MS) for value in (b"before", b"x" * MOST_LINE_BYTES, b"after")]
    built = build_log_dir(tmp_path / "logs", {"t": [[Batch(records, codec=Codec.ZSTD), ROLL, b"last"]]})
    with watched(built.path, tmp_path / "mnt") as mount:
        for name in ("messages.txt", "offsets/0-2.txt"):
            shown = subprocess.run(["dd", f"if={mount.path}/t/0/{name}", "bs=1M"], capture_output=True, check=False)
            assert shown.stdout == b"before\n"
            assert b"File too large" in shown.stderr
            with (mount.path / "t/0" / name).open("rb", buffering=0) as file:
                assert os.pread(file.fileno(), 100, len(b"before\n") + 1).startswith(b"after\n")
        assert (mount.path / "t/0/offsets/2-.txt").read_bytes() == b"after\nlast\n"
        with fails_with(errno.EFBIG):
            (mount.path / "t/0/offsets/1.txt").read_bytes()
    assert "too long for this format at offset 1;" in (tmp_path / "mnt.messages").read_text()
