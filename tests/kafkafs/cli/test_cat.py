"""`kafkafs cat`: partitions, edges, damage, following, pipes and signals."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from kafkafs.reading.range_names import parse_offset_spec
from kafkafs.reading.selection import Question
from kafkafs.reading.unmounted import PartitionReader
from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.decoder import Decoder
from storage.format.record_batch import encode_batch
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, START_MS, STEP_MS, Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, process, run
from tests.support.damaged_bytes import flip
from tests.support.live_log import LiveLog
from tests.support.waiting import wait_for

TEN = [b"line %d" % i for i in range(10)]


@pytest.fixture
def logdir(tmp_path):
    """orders with partitions 0, 1 and 10 (renamed from 2), and payments/0."""
    build_log_dir(
        tmp_path / "logs",
        {
            "orders": [[b"a0", b"a1", b"a2"], [b"b0"], [b"c0", b"c1"]],
            "payments": [Partition(TEN, log_start_offset=2)],
        },
    )
    (tmp_path / "logs" / "orders-2").rename(tmp_path / "logs" / "orders-10")
    return tmp_path / "logs"


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        ("orders", "a0 a1 a2 b0 c0 c1"),
        ("orders/1", "b0"),
        ("orders/1*", "b0 c0 c1"),
        ("ord*", "a0 a1 a2 b0 c0 c1"),
        ("*/0", "a0 a1 a2 line 2 line 3 line 4 line 5 line 6 line 7 line 8 line 9"),
        ("order[s]/?", "a0 a1 a2 b0"),
    ],
)
def test_partitions(logdir, pattern, values):
    assert output_of("cat", logdir, pattern).decode().split() == values.split()


def test_the_range_applies_to_each(logdir):
    assert output_of("cat", logdir, "orders", "--offsets", "last-1") == b"a2\nb0\nc1\n"
    assert output_of("cat", logdir, "orders", "--offsets", "0+1", "--format", r"%t/%p\n") == (
        b"orders/0\norders/1\norders/10\n"
    )


def test_a_range_outside_one_partition_leaves_the_others(logdir):
    result = run("cat", logdir, "orders", "--offsets", "2-")
    assert result.exit_code == 4
    assert result.stdout == "a2\n"
    assert result.stderr == ("kafkafs: offset is out of the range of orders/1 at offset 2; expected 0 to 1\n")


@pytest.mark.parametrize(
    "options",
    [
        ["--offsets", "5-4"],
        ["--offsets", "0+0"],
        ["--time", "2026-02-30"],
        ["--time", "someday"],
        ["--format", "%x"],
        ["--format", "json"],
        ["--header", "name"],
        ["--isolation", "serializable"],
        ["--format", "log", "--key", "k"],
        ["--format", "log", "--header", "n=v"],
        ["--wrong"],
    ],
)
def test_usage(logdir, options):
    result = run("cat", logdir, "payments", *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_log_takes_one_partition(logdir):
    result = run("cat", logdir, "orders", "--format", "log")
    assert result.exit_code == 2
    assert "one partition" in result.stderr


def test_both_ranges_are_both(logdir):
    low, high = START_MS + 3 * STEP_MS, START_MS + 8 * STEP_MS
    times = f"{low}--{high}"
    assert (
        output_of("cat", logdir, "payments", "--time", times).split() == b"line 3 line 4 line 5 line 6 line 7".split()
    )
    assert output_of("cat", logdir, "payments", "--time", times, "--offsets", "last-4") == b"line 6\nline 7\n"
    assert output_of("cat", logdir, "payments", "--time", times, "--offsets", "2+3") == b"line 3\nline 4\n"


def test_damage_after_what_precedes(tmp_path):
    built = build_log_dir(tmp_path, {"t": [[b"a", b"b", ROLL, b"c"], [b"d"]]})
    log = built["t", 0].log(0)
    flip(log, -2)  # in b, which is not the torn tail of the active segment
    result = run("cat", tmp_path, "t")
    assert result.exit_code == 4
    assert result.stdout == "a\nd\n"
    assert str(log) in result.stderr
    assert result.stderr.count("\n") == 1


def test_what_log_prints_is_a_segment(tmp_path):
    batches = [Batch(many(5, keys=3), producer_id=3) for _ in range(6)]
    build_log_dir(tmp_path / "a", {"t": [Partition([*batches[:3], ROLL, *batches[3:]])]})
    (tmp_path / "b" / "t-0").mkdir(parents=True)
    for offsets, first in (("7-", 5), ("12-22", 10), ("0+17", 0), ("last-11", 15)):
        data = output_of("cat", tmp_path / "a", "t", "--format", "log", "--offsets", offsets)
        segment = tmp_path / "b" / "t-0" / f"{first:020d}.log"
        segment.write_bytes(data)
        wanted = output_of("cat", tmp_path / "a", "t", "--offsets", offsets, "--format", "jsonl")
        assert wanted in output_of("cat", tmp_path / "b", "t", "--format", "jsonl")
        segment.unlink()


def test_log_by_time_is_the_batches_that_hold_it(tmp_path):
    stamps = [5, 100, 7, 3, 90, 2]
    records = [Record(None, b"%d" % stamp, (), stamp) for stamp in stamps]
    batches = [Batch(records[0:2]), Batch(records[2:4]), Batch(records[4:6])]
    built = build_log_dir(tmp_path, {"t": [Partition(batches)]})["t", 0]
    whole = [batch.stored.data for batch in built.batches]
    found = output_of("cat", tmp_path, "t", "--format", "log", "--time", "0000000000080--")
    assert found == whole[0] + whole[2]


class Follower:
    """`cat --follow` as a process, read line by line."""

    def __init__(self, *args):
        self.process = process("cat", *args, "--follow")
        self.patience = threading.Timer(120, self.process.kill)  # a line that does not come
        self.patience.start()

    def line(self):
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, number):
        """Sends a signal; returns the exit code and stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors


@pytest.fixture
def growing(tmp_path):
    """A log directory with t/0 of `one`, `two`, and a list of followers to be ended."""
    build_log_dir(tmp_path, {"t": [[b"one", b"two"]]})
    followers = []
    yield tmp_path, followers
    for follower in followers:
        follower.patience.cancel()
        if follower.process.poll() is None:
            follower.process.kill()
        follower.process.communicate()


def append(logdir, value, offset, segment=0):
    with (logdir / "t-0" / f"{segment:020d}.log").open("ab") as log:
        log.write(encode_batch([Record(None, value, (), 1000 + offset)], base_offset=offset))


def test_follow(growing):
    """Appends, a new segment, and retention of what was printed; ^C ends it as it ends cat."""
    logdir, followers = growing
    follower = Follower(logdir, "t", "--offsets", "last-1")
    followers.append(follower)
    assert follower.line() == b"two\n"
    append(logdir, b"three", 2)
    assert follower.line() == b"three\n"
    append(logdir, b"four", 3, segment=3)
    assert follower.line() == b"four\n"
    (logdir / "t-0" / f"{0:020d}.log").unlink()
    append(logdir, b"five", 4, segment=3)
    assert follower.line() == b"five\n"
    assert follower.end(signal.SIGINT) == (-signal.SIGINT, b"")


def test_follow_ends_with_its_range(growing):
    logdir, followers = growing
    for offsets, lines in (("1-2", [b"two\n", b"three\n"]), ("0+3", [b"one\n", b"two\n", b"three\n"])):
        followers.append(Follower(logdir, "t", "--offsets", offsets))
        assert followers[-1].line() == lines[0]
    append(logdir, b"three", 2)
    append(logdir, b"four", 3)
    for follower in followers:
        rest, errors = follower.process.communicate(timeout=120)
        assert rest.endswith(b"three\n")
        assert errors == b""
        assert follower.process.returncode == 0


@pytest.mark.parametrize(
    ("wanted", "printed"),
    [
        (["--offsets", "4-5"], b"four\nfive\n"),
        (["--offsets", "4"], b"four\n"),
        (["--offsets", "4+2"], b"four\nfive\n"),
        (["--offsets", "4+2", "--time", "0000000000000--0000000001005"], b"four\n"),
        (["--offsets", "2-5", "--time", "0000000001005--"], b"five\n"),
    ],
)
def test_follow_waits_for_its_range(growing, wanted, printed):
    """It begins above the log end, which is out of range without --follow."""
    logdir, followers = growing
    if wanted[1].startswith("4"):
        assert run("cat", logdir, "t", *wanted).exit_code == 4
    log = LogDir.open_read_only(logdir).log(TopicPartition("t", 0))
    reader = PartitionReader(log, Question(parse_offset_spec(wanted[1])), 0, Decoder(), follow=True)
    assert [list(reader.blocks()), list(reader.raw()), reader.done] == [[], [], False]  # before any output
    follower = Follower(logdir, "t", *wanted)
    followers.append(follower)
    for offset, value in ((2, b"two and a half"), (3, b"three"), (4, b"four"), (5, b"five"), (6, b"six")):
        append(logdir, value, offset)
    rest, errors = follower.process.communicate(timeout=120)
    assert (rest, errors, follower.process.returncode) == (printed, b"", 0)


def test_follow_tells_of_a_truncation(growing):
    logdir, followers = growing
    follower = Follower(logdir, "t")
    followers.append(follower)
    assert [follower.line(), follower.line()] == [b"one\n", b"two\n"]
    log = logdir / "t-0" / f"{0:020d}.log"
    first = log.read_bytes()
    os.truncate(log, len(first) // 2)
    assert follower.process.stderr is not None
    assert follower.process.stderr.readline() == b"kafkafs: t/0 was truncated to 1\n"
    append(logdir, b"another two", 1)
    assert follower.line() == b"another two\n"
    assert follower.end(signal.SIGTERM) == (-signal.SIGTERM, b"")


def test_a_closed_pipe_ends_it_as_it_ends_cat(tmp_path):
    build_log_dir(tmp_path, {"t": [[Batch(many(20_000, 100)), Batch(many(20_000, 100))]]})
    cat = process("cat", tmp_path, "t")
    assert cat.stdout is not None
    assert len(cat.stdout.readline()) == 101
    cat.stdout.close()
    assert cat.wait(timeout=120) == -signal.SIGPIPE
    assert cat.stderr is not None
    assert cat.stderr.read() == b""
    cat.stderr.close()


def test_a_pipe_that_does_not_block(tmp_path):
    """Another process that shares our stdout may have set O_NONBLOCK on it."""
    build_log_dir(tmp_path, {"t": [[Batch(many(20_000, 100)), Batch(many(20_000, 100))]]})
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    cat = process("cat", tmp_path, "t", stdout=writing)
    os.close(writing)
    capacity = fcntl.fcntl(reading, fcntl.F_GETPIPE_SZ)
    in_pipe = lambda: int.from_bytes(fcntl.ioctl(reading, termios.FIONREAD, bytes(4)), sys.byteorder)  # noqa: E731
    wait_for("a full pipe", lambda: in_pipe() >= capacity)
    with os.fdopen(reading, "rb") as pipe:
        assert len(pipe.read()) == 40_000 * 101
    assert cat.wait(timeout=120) == 0
    cat.communicate()


@pytest.mark.parametrize("options", [(), ("--key", "k"), ("--offsets", "last-1")], ids=["all", "key", "last"])
def test_follow_goes_on_with_partitions_that_are_added(growing, options):
    logdir, followers = growing
    key_of = lambda _offset: b"k"  # noqa: E731
    LiveLog(logdir / "more", key_of=key_of).append(b"first")
    follower = Follower(logdir / "more", "t", *options)
    followers.append(follower)
    assert follower.line() == b"first\n"
    LiveLog(logdir / "more", key_of=key_of, partition=1).append(b"second", b"third")
    assert [follower.line(), follower.line()] == [b"second\n", b"third\n"]
    assert follower.end(signal.SIGTERM) == (-signal.SIGTERM, b"")


# `kafkafs cat` of values that are far larger than their batch, or than a buffer of the output


MIB = 1 << 20


@pytest.fixture
def live(tmp_path):
    return LiveLog(tmp_path / "log", Codec.ZSTD)


def test_the_head_takes_the_memory_of_the_value_once(live):
    live.append(b"\1" * (96 * MIB))
    command = [sys.executable, "-m", "kafkafs", "cat", str(live.path.parent), "t", "--format", "jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        head = child.stdout.read(200)
        # It waits for its reader. (A child's ru_maxrss counts its parent's memory too.)
        status = Path(f"/proc/{child.pid}/status").read_text()
        child.stdout.close()
    assert head.startswith(b'{"topic":"t"')
    assert b"\\u0001\\u0001" in head
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert resident < 260 * 1024  # the process itself takes 70 MiB; rendered, the value takes 576


def test_values_are_exact(live):
    large = b'\1 "plain" ' * (5 * MIB // 10)
    live.append(b"before", large, b"between", large, b"\xff" + large, b"after")
    expected = [b"before", large, b"between", large, b"\xff" + large, b"after"]
    assert output_of("cat", live.path.parent, "t") == b"".join(value + b"\n" for value in expected)
    lines = output_of("cat", live.path.parent, "t", "--format", "jsonl").splitlines()
    values = [json.loads(line)["value"] for line in lines]
    assert values[:4] == [value.decode() for value in expected[:4]]
    assert base64.b64decode(values[4]["base64"]) == expected[4]
    assert values[5] == "after"
