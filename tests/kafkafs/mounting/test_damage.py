"""Damage as the standard tools meet it on a mount: each of them must fail, whatever lies between it and us."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from storage.format.block import Record
from tests.support.builders import ROLL, START_MS, Batch, build_log_dir
from tests.support.damaged_bytes import flip, overwrite
from tests.support.mounted_logs import jsonl, txt
from tests.support.mounts import mounted, requires_fuse
from tests.support.serving_processes import fails_with, watched

pytestmark = requires_fuse

PER_BATCH = 60
BATCHES = 80
SEALED = PER_BATCH * BATCHES
BAD = 41  # the batch that is damaged; some 100 KiB and more of messages stand before it and behind it
HOUR_MS = 3_600_000
PAGE = os.sysconf("SC_PAGE_SIZE")


def _batch(number):
    """A batch an hour."""
    start = START_MS + number * HOUR_MS
    return Batch([Record(b"k", b"%d %d " % (number, row) + b"v" * 50, (), start + row) for row in range(PER_BATCH)])


def _build(path):
    items = [*(_batch(number) for number in range(BATCHES)), ROLL, _batch(BATCHES)]
    return build_log_dir(path, {"t": [items]})


def _flip(built, batch):
    flip(built["t", 0].log(0), batch.position + 200)


def _zero(built, batch):
    """As a lost block of a disk: no batch begins there, the next index entry tells where it goes on."""
    overwrite(built["t", 0].log(0), batch.position, bytes(batch.size))


@pytest.fixture(params=["known", "met"])
def damaged(request, tmp_path):
    """A mounted partition with a damaged batch: `known` when a file is opened first, or only `met` when it is read."""
    built = _build(tmp_path / "logs")
    if request.param == "known":
        _flip(built, built["t", 0].batches[BAD])
    with watched(built.path, tmp_path / "mnt") as mount:
        partition = mount.path / "t/0"
        if request.param == "met":
            for name in NAMES:
                (partition / name).open("rb").close()
            _flip(built, built["t", 0].batches[BAD])
        yield partition, built


NAMES = {
    f"offsets/0-{SEALED - 1}.txt": txt,
    f"offsets/0-{SEALED - 1}.jsonl": jsonl,
    f"time/{START_MS}--{START_MS + BATCHES * HOUR_MS}.txt": txt,
}

# What each prints of the file is the beginning of what is in it, or nothing that could be taken for it.
_PYTHON = {
    "read": "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())",
    "lines": "import sys\nfor line in open(sys.argv[1], 'rb'): sys.stdout.buffer.write(line)",
    "mmap": "import mmap, sys; sys.stdout.buffer.write("
    "mmap.mmap(open(sys.argv[1], 'rb').fileno(), 0, prot=mmap.PROT_READ)[:])",
    "private mmap": "import mmap, sys; sys.stdout.buffer.write("
    "mmap.mmap(open(sys.argv[1], 'rb').fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)[:])",
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
    **{f"python {name}": [sys.executable, "-c", code] for name, code in _PYTHON.items()},
}
_COPIES = ("cat", "dd", "dd bs=1M", "grep", "head", "python read", "python lines")


def _run(tool, path, to):
    """Exit code of a tool, and what it made of the file."""
    command = [*TOOLS[tool], f"if={path}" if tool.startswith("dd") else str(path)]
    if tool == "cp":
        to.unlink(missing_ok=True)
        command.append(str(to))
    run = subprocess.run(command, capture_output=True, check=False, timeout=120, env={**os.environ, "LC_ALL": "C"})
    return run.returncode, to.read_bytes() if tool == "cp" and to.exists() else run.stdout


@pytest.mark.parametrize("name", NAMES)
def test_every_tool_fails(damaged, tmp_path, name):
    """A range of sealed segments goes through the page cache, where less than was asked for means the end of the file:
    every tool would print half of it and say that all is well."""
    partition, built = damaged
    records = built["t", 0].records
    content = NAMES[name](records[:SEALED])
    before = NAMES[name](records[: BAD * PER_BATCH])
    for _ in range(2):  # the second time the kernel has what was right in its cache
        for tool in TOOLS:
            code, output = _run(tool, partition / name, tmp_path / "copy")
            assert code != 0, tool
            if tool in _COPIES or tool == "cp":
                assert before.startswith(output), tool
    # Nothing that was cached on the way is wrong: not the size, and no byte on either side.
    assert (partition / name).stat().st_size == len(content)
    behind = len(NAMES[name](records[: (BAD + 1) * PER_BATCH]))
    with (partition / name).open("rb", buffering=0) as file:
        for start, stop in ((0, len(before) - PAGE), (behind + PAGE, len(content))):
            for position in range(start, stop, 7 * PAGE):
                size = min(7 * PAGE, stop - position)
                assert os.pread(file.fileno(), size, position) == content[position : position + size]
        with fails_with(errno.EIO):
            os.pread(file.fileno(), 10, len(before) + 5)
        assert os.fstat(file.fileno()).st_size == len(content)


def test_known_damage_costs_no_byte_beside_it(tmp_path):
    """Without the page cache reads end just before the damage, and begin just behind it."""
    built = _build(tmp_path / "logs")
    _flip(built, built["t", 0].batches[BAD])
    records = built["t", 0].records
    with watched(built.path, tmp_path / "mnt") as mount:
        path = mount.path / f"t/0/offsets/0-{SEALED - 1}.txt"
        code, output = _run("cat", path, tmp_path / "copy")
        assert (code, output) == (1, txt(records[: BAD * PER_BATCH]))
        with path.open("rb") as file:
            file.seek(len(txt(records[: (BAD + 1) * PER_BATCH])))
            assert file.read() == txt(records[(BAD + 1) * PER_BATCH : SEALED])


def test_a_log_that_was_cut_short(tmp_path):
    """`.log` ranges and the real files are bytes, served through the page cache: a file that another process cuts must
    not seem to end there with all of it read."""
    built = _build(tmp_path / "logs")
    log = built["t", 0].log(0)
    size = log.stat().st_size
    with watched(built.path, tmp_path / "mnt") as mount:
        path = mount.path / f"t/0/offsets/0-{SEALED - 1}.log"
        with path.open("rb", buffering=0) as file:
            os.truncate(log, size // 2)
            with fails_with(errno.ERANGE):
                list(iter(lambda: file.read(1 << 20), b""))


@pytest.mark.parametrize("name", ["messages.txt", f"offsets/0-{SEALED - 1}.txt", f"time/{START_MS}--.txt"])
@pytest.mark.parametrize("harm", [_zero, _flip])
def test_what_was_repaired_is_read_although_another_handle_is_open(tmp_path, name, harm):
    """A forgotten reader; or the handle of a reader whose close(2) has returned, which the kernel tells us of later."""
    assert callable(harm)
    built = _build(tmp_path / "logs")
    log = built["t", 0].log(0)
    intact, status = log.read_bytes(), log.stat()
    harm(built, built["t", 0].batches[BAD])
    os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
    records = built["t", 0].records
    expected = txt(records[:SEALED] if name.startswith("offsets") else records)
    with watched(built.path, tmp_path / "mnt") as mount:
        path = mount.path / "t/0" / name
        with path.open("rb", buffering=0) as held:
            before = held.read(100)
            with fails_with(errno.EIO):
                path.read_bytes()
            overwrite(built["t", 0].log(0), 0, intact)
            os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
            for _ in range(2):
                assert path.read_bytes() == expected
            assert before == expected[:100]
            assert held.read(100) == expected[100:200]


def test_a_repaired_log_view_is_not_what_the_page_cache_has(tmp_path):
    built = _build(tmp_path / "logs")
    log = built["t", 0].log(0)
    intact, status = log.read_bytes(), log.stat()
    _flip(built, built["t", 0].batches[BAD])
    harmed = log.read_bytes()
    os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
    with watched(built.path, tmp_path / "mnt") as mount:
        paths = [mount.path / f"t/0/offsets/0-{SEALED - 1}.log", mount.path / "t/0/segments" / log.name]
        for path in paths:
            assert [path.read_bytes() == harmed for _ in range(2)] == [True, True]
        overwrite(built["t", 0].log(0), 0, intact)
        os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
        for path in paths:
            assert path.read_bytes() == intact


@pytest.mark.parametrize(
    ("name", "needing"),
    [
        ("00000000000000000000.log", "t/0/messages.txt"),
        ("leader-epoch-checkpoint", "t/0/messages.txt"),
        ("topic.properties", "t/@config"),
        ("partition.metadata", "t/@config"),
    ],
)
def test_a_fifo_stops_nothing_else(tmp_path, name, needing):
    """Who opens one waits for a writer. The file that needs it fails with EINVAL."""
    built = build_log_dir(tmp_path / "log", {"t": [[b"one"]], "u": [[b"two"]]})
    place = built["t", 0].path / name
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    with mounted(built.path, tmp_path / "mnt") as mount:
        walked = subprocess.run(["ls", "-lR", mount.path], capture_output=True, text=True, timeout=60, check=False)
        assert f"{mount.path}/u/0:" in walked.stdout
        refused = subprocess.run(["cat", mount.path / needing], capture_output=True, text=True, timeout=60, check=False)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.endswith(": Invalid argument\n")
        assert subprocess.check_output(["cat", mount.path / "u/0/messages.txt"], timeout=60) == b"two\n"
