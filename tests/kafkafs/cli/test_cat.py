"""`kafkafs cat`: whole batches, following, pipes, signals, large values. See also transcripts/cat.txt."""

import base64
import fcntl
import json
import os
import signal
import sys
import termios
import threading
from datetime import UTC, datetime, timedelta

import pytest

from kafkafs.reading import stretches
from kafkafs.reading.range_names import LastMessages, dated, parse_offset_spec
from kafkafs.reading.selection import Question
from kafkafs.reading.unmounted import PartitionReader
from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.decoder import Decoder
from storage.format.record_batch import encode_batch
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, process, run
from tests.support.live_log import LiveLog
from tests.support.reference_views import content, tree_of
from tests.support.waiting import wait_for


def test_what_log_prints_is_a_segment(tmp_path):
    batches = [Batch(many(5, keys=3), producer_id=3) for _ in range(6)]
    build_log_dir(tmp_path / "a", {"t": [Partition([*batches[:3], ROLL, *batches[3:]])]})
    (tmp_path / "b" / "t-0").mkdir(parents=True)
    for offsets, first in (("7-", 5), ("12-22", 10), ("0+17", 0), ("last-11", 15)):
        data = output_of("cat", tmp_path / "a", "t", "--format", "log", "--offsets", offsets)
        segment = tmp_path / "b" / "t-0" / f"{first:020d}.log"
        segment.write_bytes(data)
        messages = output_of("cat", tmp_path / "a", "t", "--offsets", offsets, "--format", "jsonl")
        assert messages in output_of("cat", tmp_path / "b", "t", "--format", "jsonl")
        segment.unlink()


def test_log_by_time_is_the_batches_that_hold_it(tmp_path):
    stamps = [5, 100, 7, 3, 90, 2]
    records = [Record(None, b"%d" % stamp, (), stamp) for stamp in stamps]
    batches = [Batch(records[0:2]), Batch(records[2:4]), Batch(records[4:6])]
    built = build_log_dir(tmp_path, {"t": [Partition(batches)]})["t", 0]
    whole = [batch.stored.data for batch in built.batches]
    printed = output_of("cat", tmp_path, "t", "--format", "log", "--time", "0000000000080--")
    assert printed == whole[0] + whole[2]


class Follower:
    """`cat --follow` as a process, read line by line."""

    def __init__(self, *args):
        self.process = process("cat", *args, "--follow")
        self.patience = threading.Timer(120, self.process.kill)  # a line that does not come
        self.patience.start()

    def line(self):
        return self.process.stdout.readline()

    def rest(self):
        """Waits for its end; returns what else it prints, stderr and the exit code."""
        rest, errors = self.process.communicate(timeout=120)
        return rest, errors, self.process.returncode

    def end(self, number):
        """Sends a signal; returns stderr and the exit code."""
        self.process.send_signal(number)
        return self.rest()[1:]

    def stop(self):
        self.patience.cancel()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def growing(tmp_path):
    """A log directory with t/0 of `one`, `two`, and what begins to follow it."""
    build_log_dir(tmp_path, {"t": [[b"one", b"two"]]})
    followers = []

    def follow(*args, log_dir=tmp_path):
        followers.append(Follower(log_dir, "t", *args))
        return followers[-1]

    yield tmp_path, follow
    for follower in followers:
        follower.stop()


def append(logdir, value, offset, segment=0):
    with (logdir / "t-0" / f"{segment:020d}.log").open("ab") as log:
        log.write(encode_batch([Record(None, value, (), 1000 + offset)], base_offset=offset))


def test_follow(growing):
    """Appends, a new segment, and retention of what was printed; ^C ends it as it ends cat."""
    logdir, follow = growing
    follower = follow("--offsets", "last-1")
    assert follower.line() == b"two\n"
    append(logdir, b"three", 2)
    assert follower.line() == b"three\n"
    append(logdir, b"four", 3, segment=3)
    assert follower.line() == b"four\n"
    (logdir / "t-0" / f"{0:020d}.log").unlink()
    append(logdir, b"five", 4, segment=3)
    assert follower.line() == b"five\n"
    assert follower.end(signal.SIGINT) == (b"", -signal.SIGINT)


@pytest.mark.parametrize(
    ("options", "begun", "printed"),
    [
        (["--offsets", "1-2"], [b"two\n"], b"three\n"),
        (["--offsets", "0+3"], [b"one\n", b"two\n"], b"three\n"),
        (["--offsets", "4-5"], [], b"five\nsix\n"),
        (["--offsets", "4"], [], b"five\n"),
        (["--offsets", "4+2"], [], b"five\nsix\n"),
        (["--offsets", "4+2", "--time", "0000000000000--0000000001005"], [], b"five\n"),
        (["--offsets", "2-5", "--time", "0000000001005--"], [], b"six\n"),
    ],
)
def test_follow_waits_for_its_range_and_ends_with_it(growing, options, begun, printed):
    """It may begin above the log end, which is out of range without --follow."""
    logdir, follow = growing
    if not begun:
        assert run("cat", logdir, "t", *options).exit_code == (4 if options[1].startswith("4") else 0)
        log = LogDir.open_read_only(logdir).log(TopicPartition("t", 0))
        reader = PartitionReader(log, Question(parse_offset_spec(options[1])), 0, Decoder(), follow=True)
        assert [list(reader.blocks()), list(reader.raw()), reader.done] == [[], [], False]  # before any output
    follower = follow(*options)
    assert [follower.line() for _ in begun] == begun
    for offset, value in ((2, b"three"), (3, b"four"), (4, b"five"), (5, b"six"), (6, b"seven")):
        append(logdir, value, offset)
    assert follower.rest() == (printed, b"", 0)


def test_follow_from_the_end_does_not_end(tmp_path):
    build_log_dir(tmp_path, {"t": [[b"one", b"two"]]})
    snapshot = LogDir.open_read_only(tmp_path).log(TopicPartition("t", 0)).snapshot()
    followed = Question(LastMessages(0)).resolve(snapshot, 0, follow=True, find_nth=False)
    assert (followed.start_offset, followed.end_offset) == (2, None)


def test_follow_tells_of_a_truncation(growing):
    logdir, follow = growing
    follower = follow()
    assert [follower.line(), follower.line()] == [b"one\n", b"two\n"]
    log = logdir / "t-0" / f"{0:020d}.log"
    os.truncate(log, log.stat().st_size // 2)
    assert follower.process.stderr.readline() == b"kafkafs: t/0 was truncated to 1: going on at 1\n"
    append(logdir, b"another two", 1)
    assert follower.line() == b"another two\n"
    assert follower.end(signal.SIGTERM) == (b"", -signal.SIGTERM)


@pytest.mark.parametrize("options", [(), ("--key", "k"), ("--offsets", "last-1")], ids=["all", "key", "last"])
def test_follow_goes_on_with_partitions_that_are_added(growing, options):
    logdir, follow = growing
    key_of = lambda _offset: b"k"  # noqa: E731
    LiveLog(logdir / "more", key_of=key_of).append(b"first")
    follower = follow(*options, log_dir=logdir / "more")
    assert follower.line() == b"first\n"
    LiveLog(logdir / "more", key_of=key_of, partition=1).append(b"second", b"third")
    assert [follower.line(), follower.line()] == [b"second\n", b"third\n"]
    assert follower.end(signal.SIGTERM) == (b"", -signal.SIGTERM)


@pytest.fixture
def large(tmp_path):
    """Forty thousand values of a hundred bytes, in two batches."""
    return build_log_dir(tmp_path, {"t": [[Batch(many(20_000, 100)), Batch(many(20_000, 100))]]}).path


def test_a_closed_pipe_ends_it_as_it_ends_cat(large):
    with process("cat", large, "t") as cat:
        assert len(cat.stdout.readline()) == 101
        cat.stdout.close()
        assert cat.wait(timeout=120) == -signal.SIGPIPE
        assert cat.stderr.read() == b""


def test_a_pipe_that_does_not_block(large):
    """Another process that shares our stdout may have set O_NONBLOCK on it."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    cat = process("cat", large, "t", stdout=writing)
    os.close(writing)
    capacity = fcntl.fcntl(reading, fcntl.F_GETPIPE_SZ)
    in_pipe = lambda: int.from_bytes(fcntl.ioctl(reading, termios.FIONREAD, bytes(4)), sys.byteorder)  # noqa: E731
    wait_for("a full pipe", lambda: in_pipe() >= capacity)
    with os.fdopen(reading, "rb") as pipe:
        assert len(pipe.read()) == 40_000 * 101
    assert cat.wait(timeout=120) == 0
    cat.communicate()


# Values that are far larger than their batch, or than a buffer of the output.

MIB = 1 << 20


@pytest.fixture
def live(tmp_path):
    return LiveLog(tmp_path / "log", Codec.ZSTD)


def test_a_line_that_is_too_long_is_told_and_the_others_are_printed(live):
    live.append(b"before", b"\1" * (11 * MIB), b"after")
    live.append(b"last")
    printed = run("cat", live.path.parent, "t", "--format", "jsonl")
    assert [json.loads(line)["value"] for line in printed.stdout_bytes.splitlines()] == ["before", "after", "last"]
    assert printed.exit_code == 4
    assert printed.stderr.startswith("kafkafs: t/0: message is too long for this format at offset 1; expected")
    assert output_of("cat", live.path.parent, "t", "--offsets", "1", "--format", "log") in live.log(0).read_bytes()
    lines = [json.loads(line) for line in output_of("dump", live.log(0)).splitlines()]
    assert [line["value"] for line in lines if line["kind"] == "record"][1] == "\1" * (11 * MIB)


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


# `kafkafs cat --key`: the bytes of `keys/<key>.EXT`, with the same index.


def key_of(offset):
    return b"k%d" % (offset * 7919 % 500)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kafkafs" / "views"


@pytest.fixture
def keyed(tmp_path, cache):
    log = LiveLog(tmp_path / "log", key_of=key_of)
    for _ in range(2):
        log.write(1500, size=1000, batch=50)
        log.roll()
    log.write(100)
    return log


def test_the_index_is_made_kept_and_used(keyed, cache, monkeypatch):
    log_dir, tree = keyed.path.parent, tree_of(keyed.path.parent)
    for key in ("k1", "k499"):
        assert output_of("cat", log_dir, "t", "--key", key) == content(tree, f"/t/0/keys/{key}.txt")
    assert len(list(cache.glob("*.npz"))) == 2
    sizes = []
    real = stretches.read_blocks

    def counted(*arguments, **options):
        sizes.append(arguments[3] - arguments[2])
        return real(*arguments, **options)

    monkeypatch.setattr(stretches, "read_blocks", counted)
    # A filter lets one of a hundred other keys pass, and its block is a third of a segment: not so for three of them.
    sums = []
    for key in ("nobody", "no-one", "none"):
        sizes.clear()
        assert run("cat", log_dir, "t/0", "--key", key).exit_code == 4
        sums.append(sum(sizes))
    assert min(sums) < keyed.log(0).stat().st_size / 3
    mounted = tree_of(log_dir, index_dir=cache, index_bytes=1 << 20)
    assert content(mounted, "/t/0/keys/k1.txt") == content(tree, "/t/0/keys/k1.txt")
    assert mounted.status()["key_index"]["scanned_bytes"] < keyed.log(keyed.segments[-1]).stat().st_size + 1


@pytest.mark.parametrize("limits", [
    ("--offsets", "100-2400"), ("--offsets", "last-500"), ("--offsets", "700+900"), ("--offsets", "2990-"),
    ("--time", "2023-11-14T22:20--2023-11-14T22:40"),
], ids=" ".join)  # fmt: skip
def test_keys_within_ranges(keyed, limits):
    command = ("cat", keyed.path.parent, "t", *limits, "--format", "jsonl")
    whole = output_of(*command).splitlines()
    for key in ("k1", "k20"):
        matching = [line for line in whole if json.loads(line)["key"] == key]
        assert output_of(*command, "--key", key).splitlines() == matching


def test_following_continues_after_the_index(keyed):
    log = LogDir.open_read_only(keyed.path.parent).log(TopicPartition("t", 0))
    offsets = []
    reader = PartitionReader(log, Question(key=b"k1"), 0, Decoder(), follow=True)
    offsets += [int(offset) for block in reader.blocks() for offset in block.offset]
    keyed.write(600)
    offsets += [int(offset) for block in reader.blocks() for offset in block.offset]
    assert offsets == [offset for offset, _, _ in keyed.messages if key_of(offset) == b"k1"]


# Words for days

DAY_MS = 86_400_000


def test_days(tmp_path):
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    midnight = int(today.timestamp()) * 1000
    times = {"old": -8 * DAY_MS, "week": -6 * DAY_MS, "yesterday": -1, "today": 0}
    records = [Record(None, name.encode(), (), midnight + delta) for name, delta in times.items()]
    logs = build_log_dir(tmp_path / "logs", {"t": [records]}, broker=False).path

    def at(text):
        return output_of("cat", logs, "t", "--time", text).decode().split()

    assert at("today") == ["today"]
    assert at("yesterday") == at("yesterday--today") == at(f"{midnight - 1}--{midnight}") == ["yesterday"]
    assert at("yesterday--") == at("yesterdayT00--") == ["yesterday", "today"]
    assert at("until-today") == at("--today") == ["old", "week", "yesterday"]
    assert at("last-1w") == ["week", "yesterday", "today"]
    reset = json.loads(output_of("groups", logs, "g", "--reset-to", "today", "--topic", "t", "--json"))
    assert [row["offset"] for row in reset["offsets"]] == [3]
    for until, end_offset in (("2000-01-01", 0), ("today", len(times))):
        copy = json.loads(output_of("mirror", logs, tmp_path / "copy", "t", "--until", until, "--json"))
        assert [partition["log_end_offset"] for partition in copy["partitions"]] == [end_offset]
    assert dated("2026-todays", today.date()) == "2026-todays"
    assert dated("today", today.date()) == today.date().isoformat()
    assert dated("yesterday--today", today.date()).startswith((today.date() - timedelta(days=1)).isoformat())
