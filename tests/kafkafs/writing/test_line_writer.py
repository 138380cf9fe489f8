"""Bytes written → messages, without a mount: lines, bad lines, errors of the disk, partitions."""

from __future__ import annotations

import base64
import errno
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.writing import line_writer
from kafkafs.writing.destinations import open_target
from kafkafs.writing.line_parsers import keyed_txt, parse_jsonl, parse_line, parse_txt
from kafkafs.writing.line_writer import LineWriter
from storage.errors import InvalidRecord, PartitionOffline, RecordTooLarge
from storage.format.block import Record
from storage.log.reader import read_range
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import NOW_MS, opened
from tests.support.partitions import partition_for_key
from tests.support.written_lines import NINE, Kept, failing, jsonl, values


@pytest.fixture
def kept():
    return Kept()


@pytest.fixture
def writer(kept):
    return LineWriter(kept, parse_txt)


def test_one_write_is_one_append(kept, writer):
    assert writer.write(b"a\n\nccc\nrest") == 11
    assert (kept.values, kept.calls) == ([b"a", b"", b"ccc"], 1)
    assert writer.write(b" of it") == 6
    assert writer.write(memoryview(b"!\nd\n")) == 4
    assert kept.values[3:] == [b"rest of it!", b"d"]
    writer.close()
    assert len(kept.values) == 5
    assert writer.write(b"") == 0


def test_a_durable_write_syncs_the_lines_that_it_completes(kept, writer):
    """O_SYNC does not end a line: a large write(2) arrives in several requests, cut anywhere."""
    assert writer.write(b"one\ntw", durable=True) == 6
    assert (kept.values, kept.synced) == ([b"one"], 1)
    assert writer.write(b"o\n", durable=True) == 2
    assert (kept.values, kept.synced) == ([b"one", b"two"], 2)
    assert writer.write(b"three\n") == 6
    assert kept.synced == 2
    assert writer.write(b"four\nBAD\n", durable=True) == 5
    assert (kept.values, kept.synced) == ([b"one", b"two", b"three", b"four"], 3)


def test_a_line_that_a_durable_write_left_open_is_durable_once_the_file_is_closed(kept, writer):
    writer.write(b"one", durable=True)
    synced = kept.synced
    writer.close()
    assert (kept.values, kept.synced) == ([b"one"], synced + 1)


def test_a_durable_write_fails_where_the_disk_fails(tmp_path):
    """Its lines are in the log, but a write that returned their number would say that they are on disk."""
    opened(tmp_path).close()
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path, disk=disk)
    owned.create_topic("t", 1)
    writer = LineWriter(open_target(owned, "t"), parse_txt)
    assert writer.write(b"one\n", durable=True) == 4
    disk.fail = lambda what, path: errno.EIO if what.startswith("sync") else None
    with pytest.raises(OSError, match=r".") as caught:
        writer.write(b"two\n", durable=True)
    assert caught.value.errno == errno.EIO
    with pytest.raises(PartitionOffline):
        writer.write(b"three\n")
    disk.fail = lambda _what, _path: None
    writer.abandon()
    assert TopicPartition("t", 0) in owned.close().errors


@pytest.mark.parametrize("following", [b"two\nth", b"four\nfi"])
def test_a_durable_write_whose_sync_failed_is_refused_as_a_whole(kept, writer, monkeypatch, following):
    """What its caller writes next does not continue its last line; lines that come again are not there twice."""

    def fail():
        raise OSError(errno.EMFILE, "too many open files")

    writer.write(b"one ", durable=True)
    with monkeypatch.context() as failing_disk:
        failing_disk.setattr(kept, "sync", fail)
        for _ in range(2):
            with pytest.raises(OSError, match="too many"):
                writer.write(b"two\nth", durable=True)
    assert writer.write(following, durable=True) == len(following)
    writer.write(b"!\n", durable=True)
    expected = [b"one two", b"th!"] if following == b"two\nth" else [b"one two", b"fi!"]
    assert kept.values == expected


@pytest.mark.parametrize("fails_again", [False, True])
@pytest.mark.parametrize("cut", [2, 4, 6])
def test_lines_of_a_failed_durable_write_that_come_again_in_smaller_requests_are_not_there_twice(
    kept, writer, monkeypatch, cut, fails_again
):
    """A program may write them again from another address, where the kernel cuts at another place."""

    def fail():
        raise OSError(errno.EMFILE, "too many open files")

    data = b"one\ntwo\nthr"
    with monkeypatch.context() as failing_disk:
        failing_disk.setattr(kept, "sync", fail)
        with pytest.raises(OSError, match="too many"):
            writer.write(data, durable=True)
        if fails_again and cut >= 4:
            with pytest.raises(OSError, match="too many"):
                writer.write(data[:cut], durable=True)
    for part in data[:cut], data[cut:], b"ee\nfour\n":
        assert writer.write(part, durable=True) == len(part)
    assert kept.values == [b"one", b"two", b"three", b"four"]


def test_the_last_line_ends_with_sync_or_close(kept, writer):
    writer.write(b"one")
    writer.sync()
    assert (kept.values, kept.synced) == ([b"one"], 1)
    writer.write(b"two")
    writer.close()
    writer.close()
    assert kept.values == [b"one", b"two"]


def test_a_sync_ends_the_line_within_which_a_refused_write_ended(kept, writer):
    with pytest.raises(InvalidRecord):
        writer.write(b"BAD\nthi")
    writer.sync()  # `thi` is over: what comes next is not its rest
    assert writer.write(b"four") == 4
    assert writer.write(b"th\n") == 3
    assert kept.values == [b"fourth"]


def test_the_end_of_a_full_request_is_not_the_end_of_a_write(kept, writer, monkeypatch):
    """However few of its bytes were refused: the next line is not the rest of the one that it ends within."""
    monkeypatch.setattr(line_writer, "CUT_BYTES", 16)
    assert writer.write(b"good line\nBAD\nx\nthi") == 10
    with pytest.raises(InvalidRecord):
        writer.write(b"another\n")
    assert writer.write(b"another\n") == 8
    assert kept.values == [b"good line", b"another"]


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b" "))), st.data())
def test_however_it_is_cut(lines, data):
    kept = Kept()
    writer = LineWriter(kept, parse_txt)
    text = b"".join(line.replace(b"BAD", b"bad") + b"\n" for line in lines)
    while text:
        size = data.draw(st.integers(1, len(text)))
        assert writer.write(text[:size]) == size
        text = text[size:]
    writer.close()
    assert kept.values == [line.replace(b"BAD", b"bad") for line in lines]


# jsonl


def test_jsonl_lines():
    line = {"topic": "t", "partition": 3, "offset": 5, "timestamp": 7, "timestampType": "CreateTime", "key": "ä"}
    line |= {"value": {"base64": base64.b64encode(b"\xff\0").decode()}, "headers": [["h", "x"], ["n", None]]}
    found = parse_line(json.dumps(line).encode())
    assert found == (Record("ä".encode(), b"\xff\0", [(b"h", b"x"), (b"n", None)], 7), 3)
    assert parse_line(b'{"value":null}') == (Record(None, None, [], -1), None)


BAD_LINES = {
    "empty": b"",
    "no json": b"{",
    "no object": b"[1]",
    "no value": b"{}",
    "number": b'{"value":1}',
    "bad base64": b'{"value":{"base64":"?"}}',
    "other object": b'{"value":{"base46":""}}',
    "surrogate": b'{"value":"\\ud800"}',
    "not utf-8": b'{"value":"\xff"}',
    "fraction": b'{"value":"","timestamp":1.5}',
    "bool": b'{"value":"","partition":true}',
    "before the epoch": b'{"value":"","timestamp":-2}',
    "too late": b'{"value":"","timestamp":9223372036854775808}',
    "endless number": b'{"value":"","timestamp":' + b"1" * 5000 + b"}",
    "deep": b"[" * 100_000,
    "not a number of JSON": b'{"value":"","more":NaN}',
    "a schema for the value": b'{"value":"x","keySchema":null,"valueSchema":1}',
    "a schema for the key": b'{"value":"x","key":"y","keySchema":2,"valueSchema":null}',
    "headers": b'{"value":"","headers":{"a":"b"}}',
    "header": b'{"value":"","headers":[["a"]]}',
    "nameless header": b'{"value":"","headers":[[null,"a"]]}',
}


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
def test_bad_jsonl_lines(line):
    with pytest.raises(InvalidRecord):
        parse_line(line)


@given(st.binary(max_size=60))
def test_any_line_parses_or_is_refused(line):
    try:
        parse_line(line)
    except InvalidRecord:
        return
    assert b'"value"' in line


# Targets


@pytest.fixture
def owned(tmp_path):
    directory = opened(tmp_path / "logs")
    directory.create_topic("t", 3)
    directory.create_topic("compacted", 3, {"cleanup.policy": "compact"})
    directory.create_topic("small", 2, {"max.message.bytes": "300"})
    yield directory
    assert not directory.close().errors
    assert verify_log_dir(tmp_path / "logs") == []


def test_to_a_partition(owned):
    writer = LineWriter(open_target(owned, TopicPartition("t", 1)), parse_jsonl)
    writer.write(jsonl({"value": "a", "partition": 2}, {"value": "b", "key": "k"}))
    writer.sync()
    log = owned.log(TopicPartition("t", 1))
    assert values(owned, "t") == [[], [b"a", b"b"], []]
    assert log.recovery_point == 2
    assert log.snapshot().segments[0].size > 0


def test_keys_choose_as_kafkas_producer_does(owned):
    keys = [b"key-%d" % number for number in range(50)]
    LineWriter(open_target(owned, "t"), keyed_txt(b"\t")).write(b"".join(key + b"\t" + key + b"\n" for key in keys))
    assert values(owned, "t") == [[key for key in keys if partition_for_key(key, 3) == p] for p in range(3)]


def test_partitions_that_lines_ask_for(owned):
    writer = LineWriter(open_target(owned, "t"), parse_jsonl)
    lines = [{"value": f"{number}", "partition": number % 3} for number in range(9)]
    data = jsonl(*lines, {"value": "no such partition", "partition": 3}, {"value": "after", "partition": 0})
    assert writer.write(data) == len(jsonl(*lines))
    with pytest.raises(InvalidRecord, match="no partition t/3"):
        writer.write(data[len(jsonl(*lines)) :])
    assert values(owned, "t") == [[b"%d" % n for n in range(p, 9, 3)] for p in range(3)]


IN_ORDER = [[b"%d" % n for n in range(p, 9, 3)] for p in range(3)]


@pytest.mark.parametrize("failed", [(1,), (2,), (1, 2)], ids=str)
def test_what_comes_again_after_a_full_disk_is_not_there_twice(full, failed):
    """One partition's batch is written, another's is not: the lines before the first that is missing count."""
    owned, disk = full
    writer = LineWriter(open_target(owned, "t"), parse_jsonl)
    data = b"".join(NINE)
    failing(disk, *failed)
    taken = writer.write(data)
    assert taken == len(b"".join(NINE[: failed[0]]))
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            writer.write(data[taken:])
    failing(disk)
    rest = data[taken:] + jsonl({"value": "more", "partition": 0})
    half = len(b"".join(NINE[failed[0] : 5]))
    assert writer.write(rest[:half]) == half
    assert writer.write(rest[half:]) == len(rest) - half
    assert values(owned, "t") == [[*IN_ORDER[0], b"more"], *IN_ORDER[1:]]


def test_other_lines_after_a_full_disk_are_taken_as_they_are(full):
    owned, disk = full
    writer = LineWriter(open_target(owned, "t"), parse_jsonl)
    failing(disk, 1)
    writer.write(b"".join(NINE))
    failing(disk)
    others = b"".join(jsonl({"value": f"other {number}", "partition": 0}) for number in range(9))
    with pytest.raises(OSError, match="No space"):  # a short count told nobody why
        writer.write(others)
    assert writer.write(others) == len(others)
    assert values(owned, "t")[0] == [*IN_ORDER[0], *(b"other %d" % number for number in range(9))]


def test_nothing_behind_a_line_for_an_offline_partition(full):
    owned, disk = full
    LineWriter(open_target(owned, TopicPartition("t", 1)), parse_txt).write(b"first\n")
    disk.fail = lambda what, path: errno.EIO if path.parent.name == "t-1" else None
    with pytest.raises(PartitionOffline, match="Input/output"):
        LineWriter(open_target(owned, TopicPartition("t", 1)), parse_jsonl).write(NINE[0])
    disk.fail = lambda _what, _path: None
    writer = LineWriter(open_target(owned, "t"), parse_jsonl)
    assert writer.write(b"".join(NINE)) == len(NINE[0])
    with pytest.raises(PartitionOffline):
        writer.write(b"".join(NINE[1:]))
    assert values(owned, "t") == [[b"0"], [b"first"], []]
    owned._logs.forget([TopicPartition("t", 1)])


def test_an_overlong_line_is_refused_before_its_end(owned):
    writer = LineWriter(open_target(owned, TopicPartition("small", 0)), parse_txt)
    for _ in range(3):
        assert writer.write(b"x" * 100) == 100
    with pytest.raises(RecordTooLarge):
        writer.write(b"x")
    assert writer.write(b"rest\ngood\n") == 10
    assert values(owned, "small") == [[b"good"], []]


def test_timestamps(owned):
    writer = LineWriter(open_target(owned, TopicPartition("t", 0)), parse_jsonl)
    writer.write(jsonl({"value": "a", "timestamp": 5}, {"value": "b"}))
    [block] = read_range(owned.log(TopicPartition("t", 0)).snapshot(), 0)
    assert block.timestamp.tolist() == [5, NOW_MS]
