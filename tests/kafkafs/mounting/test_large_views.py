"""Large views: what is not measured is open at once; every tool that reads to the end gets every byte, and `tail` in
all its forms the last lines. Readers of a log that changes meanwhile: tests/kafkafs/reading/test_ends.py."""

import os
import random
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from storage.format.compression import Codec
from tests.support.live_log import START_MS, LiveLog
from tests.support.mounts import requires_fuse, run_kafkafs
from tests.support.serving_processes import watched
from tests.support.waiting import wait_for

pytestmark = requires_fuse

LARGE = ("-o", "exact_below=1k")  # nothing is small


def run(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, timeout=300, check=False)
    assert (result.returncode, result.stderr) == (0, b""), command
    return result.stdout


def text(messages):
    return b"".join(value + b"\n" for _, _, value in messages)


def written(log_dir, seed=1, rounds=20):
    """A log whose messages compress more or less well, so that no estimate of a size is right."""
    log, dice = LiveLog(log_dir, Codec.ZSTD), random.Random(seed)
    for number in range(rounds):
        log.write(dice.choice((100, 1500)), size=dice.choice((5, 300, 1000)), batch=dice.choice((10, 100)))
        if number % 4 == 3:
            log.roll()
    log.write(700, size=300, batch=20)
    return log


@pytest.fixture
def log(tmp_path):
    return written(tmp_path / "logs")


@pytest.fixture
def partition(log, tmp_path):
    with watched(tmp_path / "logs", tmp_path / "mnt", *LARGE) as mount:
        yield mount.path / "t/0"


def test_tools_that_read_from_one_end(log, partition):
    file, content = partition / "messages.txt", text(log.messages)
    lines = content.splitlines(keepends=True)
    assert run("head", "-n", "3", file) == b"".join(lines[:3])
    assert run("tail", "-n", "10", file) == b"".join(lines[-10:])
    assert run("tail", "-c", "100000", file) == content[-100_000:]
    assert run("sh", "-c", 'tac "$1" | head -n 500', "sh", file) == b"".join(lines[::-1][:500])
    assert run("grep", "-m1", "-n", "", file) == b"1:" + lines[0]
    assert int(run("wc", "-c", file).split()[0]) == file.stat().st_size != len(content)


@pytest.mark.parametrize("command", [("cat",), ("grep", "-a", ""), ("sed", ""), ("dd", "status=none", "bs=7777")])
def test_tools_that_read_to_the_end_get_everything(log, partition, command):
    content, middle = text(log.messages), log.next_offset // 3
    names = {
        "messages.txt": content,
        f"offsets/{middle}-.txt": text(one for one in log.messages if one[0] >= middle),
        f"offsets/{middle}-{2 * middle}.txt": text(one for one in log.messages if middle <= one[0] <= 2 * middle),
    }
    for name, expected in names.items():
        file = partition / name
        assert run(*command, f"if={file}" if command[0] == "dd" else file) == expected, name
        assert file.stat().st_size == len(expected), name


def test_the_ends_of_a_range_that_is_over(log, tmp_path):
    first, last = log.next_offset // 3, log.next_offset // 3 + 40
    lines = text(log.messages[first:last]).splitlines(keepends=True)
    name = f"t/0/time/{START_MS + first * 1000}--{START_MS + last * 1000}.txt"
    for count in (3, 1000):
        with watched(tmp_path / "logs", tmp_path / "mnt", "-o", "exact_below=64k") as mount:
            assert run("tail", "-n", count, mount.path / name) == b"".join(lines[-count:])
            assert run("tac", mount.path / name) == b"".join(lines[::-1])
            assert run("cat", mount.path / name) == b"".join(lines)


def test_positions_count_from_the_beginning_unless_they_lie_at_the_end(log, partition):
    content, dice = text(log.messages), random.Random(2)
    with (partition / "messages.txt").open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        assert os.lseek(file.fileno(), 0, os.SEEK_END) == size != len(content)
        assert os.pread(file.fileno(), 500, size - 500) == content[-500:]
    with (partition / "messages.txt").open("rb", buffering=0) as file:
        for _ in range(20):
            at = dice.randrange(min(size, len(content)) // 2)
            assert os.pread(file.fileno(), 5000, at) == content[at : at + 5000]


def test_what_was_read_from_both_ends_does_not_silently_meet(log, partition):
    lines = text(log.messages).splitlines(keepends=True)
    result = subprocess.run(["tac", str(partition / "messages.txt")], capture_output=True, check=False)
    assert result.returncode == 1
    assert b"".join(lines[::-1]).startswith(result.stdout)
    run("cat", partition / "messages.txt")  # now everything has been measured
    assert run("tac", partition / "messages.txt") == b"".join(lines[::-1])


def test_a_follower_prints_each_line_once(log, partition, tmp_path):
    out = tmp_path / "out"
    for words in (("-n", "5"), ("-n", "+1")):
        shown = 5 if words[1] == "5" else len(log.messages)
        with out.open("wb") as stdout:
            follower = subprocess.Popen(["tail", *words, "-f", str(partition / "messages.txt")], stdout=stdout)
        try:
            expected = text(log.messages[-shown:])
            wait_for("the lines", lambda: out.stat().st_size >= len(expected))  # noqa: B023
            for _ in range(3):
                before = len(log.messages)
                log.write(50, size=100, batch=10)
                log.roll()
                log.write(1, size=10)
                expected += text(log.messages[before:])
                wait_for("new lines", lambda: out.stat().st_size >= len(expected))  # noqa: B023
            assert out.read_bytes() == expected
        finally:
            follower.kill()
            follower.wait()


def test_a_stat_of_a_small_view_is_exact(log, tmp_path):
    with watched(tmp_path / "logs", tmp_path / "mnt") as mount:
        name = tmp_path / "archive.tar"
        with tarfile.open(name, "w") as archive:  # takes the size before it opens the file
            archive.add(mount.path / "t/0/messages.txt", "messages.txt")
        with tarfile.open(name) as archive:
            assert archive.extractfile("messages.txt").read() == text(log.messages)


def test_sizes_are_exact_if_the_mount_says_so(log, tmp_path):
    with watched(tmp_path / "logs", tmp_path / "mnt", *LARGE, "-o", "sizes=exact") as mount:
        assert int(run("wc", "-c", mount.path / "t/0/messages.txt").split()[0]) == len(text(log.messages))


def test_a_terabyte_is_open_at_once(tmp_path):
    """Real segments at both ends, and holes between them."""
    log = LiveLog(tmp_path / "logs")
    log.write(5000, size=300, batch=50)
    first = list(log.messages)
    os.truncate(log.log(0), 1 << 30)
    for number in range(1, 1000):
        log.next_offset = number * 1_000_000
        log.roll()
        os.truncate(log.log(log.next_offset), 1 << 30 if number < 999 else 0)
    log.write(5000, size=300, batch=50)
    over = f"time/{START_MS + 100_000}--{START_MS + 200_000}.txt"
    commands = {
        ("head -n 1", "messages.txt"): first[:1],
        ("grep -m1 x", "messages.txt"): first[:1],
        ("tail -n 10", "messages.txt"): log.messages[-10:],
        ("tac", "messages.txt"): log.messages[-1:],
        ("head -n 1", over): first[100:101],
        ("tail -n 1", over): first[199:200],
        ("head -n 1", f"time/{START_MS}--.txt"): first[:1],
        ("tail -n 1", f"time/{START_MS}--.txt"): log.messages[-1:],
    }
    for (command, name), shown in commands.items():
        with watched(tmp_path / "logs", tmp_path / "mnt") as mount:
            before = _bytes_read(mount.pid)
            script = f'{command} "$1" | head -n {len(shown)}'
            assert run("sh", "-c", script, "sh", mount.path / "t/0" / name) == text(shown), (command, name)
            assert _bytes_read(mount.pid) - before < 10 << 20, (command, name)
    assert b"exact_below" in run_kafkafs("mount", "--help").stdout


def _bytes_read(pid):
    return int(re.search(r"rchar: (\d+)", Path(f"/proc/{pid}/io").read_text(encoding="ascii"))[1])
