"""Bytes written → messages, without a mount: lines, bad lines, errors of the disk, partitions."""

import base64
import errno
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.writing.destinations import open_target
from kafkafs.writing.line_parsers import keyed_txt, parse_jsonl, parse_line, parse_txt
from kafkafs.writing.line_writer import LineWriter
from storage.errors import InvalidRecord, PartitionOffline, RecordTooLarge
from storage.format.block import Record
from storage.log.reader import read_range
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.kafkafs.writing.written_lines import NINE, Kept, failing, jsonl, values
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import NOW_MS, opened
from tests.support.partitions import partition_for_key

TP = TopicPartition("t", 1)


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
    assert writer.write(b"") == 0
    writer.write(b"ended by sync")
    writer.sync()
    assert (kept.values[5:], kept.synced) == ([b"ended by sync"], 1)
    writer.write(b"ended by close")
    writer.close()
    writer.close()
    assert kept.values[6:] == [b"ended by close"]


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b" ").replace(b"BAD", b"bad"))), st.data())
def test_however_it_is_cut(lines, data):
    kept = Kept()
    writer = LineWriter(kept, parse_txt)
    text = b"".join(line + b"\n" for line in lines)
    while text:
        size = data.draw(st.integers(1, len(text)))
        assert writer.write(text[:size]) == size
        text = text[size:]
    writer.close()
    assert kept.values == lines


# Durable writes


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
    with pytest.raises(OSError, match="Input/output"):
        writer.write(b"two\n", durable=True)
    disk.fail = lambda _what, _path: None
    with pytest.raises(OSError, match="Input/output"):
        writer.write(b"three\n")
    assert TopicPartition("t", 0) in owned.close().errors


def test_a_durable_write_whose_sync_failed_is_the_last_one(kept, writer):
    """Its lines may be on disk or not, so none of them counts, and nothing follows them."""
    writer.write(b"one\ntw", durable=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "sync", raising(OSError(errno.EMFILE, "too many open files")))
        with pytest.raises(OSError, match="too many"):
            writer.write(b"o\nth", durable=True)
    for data in b"ree\n", b"o\nth":
        with pytest.raises(OSError, match="too many"):
            writer.write(data, durable=True)
    writer.close()
    assert kept.values == [b"one", b"two"]


def raising(error):
    def fail():
        raise error

    return fail


# jsonl


def test_jsonl_lines():
    line = {"topic": "t", "partition": 3, "offset": 5, "timestamp": 7, "timestampType": "CreateTime", "key": "ä"}
    line |= {"value": {"base64": base64.b64encode(b"\xff\0").decode()}, "headers": [["h", "x"], ["n", None]]}
    parsed = parse_line(json.dumps(line).encode())
    assert parsed == (Record("ä".encode(), b"\xff\0", [(b"h", b"x"), (b"n", None)], 7), 3)
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
    assert any(name in line for name in (b'"value"', b'"payload"', b'"offset"'))


# Destinations


@pytest.fixture
def owned(tmp_path):
    directory = opened(tmp_path / "logs")
    directory.create_topic("t", 3)
    directory.create_topic("small", 2, {"max.message.bytes": "300"})
    yield directory
    assert not directory.close().errors
    assert verify_log_dir(tmp_path / "logs") == []


def test_to_a_partition(owned):
    writer = LineWriter(open_target(owned, TP), parse_jsonl)
    writer.write(jsonl({"value": "a", "partition": 2, "timestamp": 5}, {"value": "b", "key": "k"}))
    writer.sync()
    log = owned.log(TP)
    assert values(owned, "t") == [[], [b"a", b"b"], []]
    assert log.recovery_point == 2
    [block] = read_range(log.snapshot(), 0)
    assert block.timestamp.tolist() == [5, NOW_MS]


def test_keys_choose_as_kafkas_producer_does(owned):
    keys = [b"key-%d" % number for number in range(50)]
    LineWriter(open_target(owned, "t"), keyed_txt(b"\t")).write(b"".join(key + b"\t" + key + b"\n" for key in keys))
    assert values(owned, "t") == [[key for key in keys if partition_for_key(key, 3) == p] for p in range(3)]


IN_ORDER = [[b"%d" % number for number in range(partition, 9, 3)] for partition in range(3)]


def test_partitions_that_lines_ask_for(owned):
    writer = LineWriter(open_target(owned, "t"), parse_jsonl)
    good = b"".join(NINE)
    bad = jsonl({"value": "no such partition", "partition": 3}, {"value": "after", "partition": 0})
    assert writer.write(good + bad) == len(good)
    with pytest.raises(InvalidRecord, match="no partition t/3"):
        writer.write(good)
    assert values(owned, "t") == IN_ORDER


def test_an_overlong_line_is_refused_before_its_end(owned):
    writer = LineWriter(open_target(owned, TopicPartition("small", 0)), parse_txt)
    for _ in range(3):
        assert writer.write(b"x" * 100) == 100
    for data in b"x", b"rest\ngood\n":
        with pytest.raises(RecordTooLarge):
            writer.write(data)
    writer.close()
    assert values(owned, "small") == [[], []]


# Disks that are full or fail


@pytest.fixture
def on_disk(tmp_path):
    """A topic of three partitions, and the disk that a test makes full."""
    path = tmp_path / "full"
    directory = opened(path)
    directory.create_topic("t", 3)
    assert directory.close().clean
    disk = FaultyDisk(path)
    return opened(path, disk=disk), disk


@pytest.fixture
def full(on_disk):
    """The same; at the end every partition must be sound."""
    owned, disk = on_disk
    yield on_disk
    disk.fail = lambda _what, _path: None
    assert not owned.close().errors
    assert verify_log_dir(owned.path) == []


@pytest.mark.parametrize(("failed", "elsewhere"), [((1,), 2), ((2,), 4), ((1, 2), 2)], ids=str)
def test_after_a_full_disk_the_open_file_is_refused_and_another_goes_on(full, failed, elsewhere):
    """One partition's batch is written, another's is not: the lines before the first that is missing count, and it is
    said how many of the others are there."""
    owned, disk = full
    refused = []
    writer = LineWriter(open_target(owned, "t"), parse_jsonl, lambda *told: refused.append(told))
    data = b"".join(NINE)
    failing(disk, *failed)
    assert writer.write(data) == len(b"".join(NINE[: failed[0]]))
    failing(disk)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            writer.write(NINE[0])
    with pytest.raises(OSError, match="No space"):
        writer.sync()
    writer.close()
    assert [(line, error.errno, later) for line, error, later in refused] == [(failed[0] + 1, errno.ENOSPC, elsewhere)]
    LineWriter(open_target(owned, "t"), parse_jsonl).write(jsonl({"value": "more", "partition": 0}))
    appended = [IN_ORDER[number] if number < failed[0] else [] for number in range(3)]
    assert values(owned, "t") == [[*appended[0], b"more"], *appended[1:]]


def test_nothing_behind_a_line_for_an_offline_partition(on_disk):
    owned, disk = on_disk
    LineWriter(open_target(owned, TP), parse_txt).write(b"first\n")
    disk.fail = lambda what, path: errno.EIO if path.parent.name == "t-1" else None
    with pytest.raises(PartitionOffline, match="Input/output"):
        LineWriter(open_target(owned, TP), parse_jsonl).write(NINE[0])
    disk.fail = lambda _what, _path: None
    writer = LineWriter(open_target(owned, "t"), parse_jsonl)
    assert writer.write(b"".join(NINE)) == len(NINE[0])
    with pytest.raises(PartitionOffline):
        writer.write(b"".join(NINE[1:]))
    assert values(owned, "t") == [[b"0"], [b"first"], []]
    assert list(owned.close().errors) == [TP]
