"""Fetch results, read by a parser of its own that knows what the first documents say, for logs of all formats."""

import os
import struct
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import pytest

from storage.errors import CorruptBatch, OffsetOutOfRange, RecordTooLarge, SegmentGone, UnknownTopicOrPartition
from storage.files.log_file import LogFile
from storage.format.compression import Codec
from storage.log.fetch import (
    ErrorCode,
    LogChunk,
    MessageSetSend,
    MultiMessageSetSend,
    ResetPolicy,
    error_code,
    fetch,
    offset_or_reset,
    read_chunk,
)
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, commit, many
from tests.support.damaged_bytes import flip, overwrite
from tests.support.readers import open_log

# A message or a whole batch, whose `offset` is that of its last message.
Message = namedtuple("Message", "offset magic data")
# A fetch result taken apart; `partial` is what stands after its last whole message.
Result = namedtuple("Result", "error messages partial")


def parse_messages(data):
    """offset: 8 bytes, length: 4 bytes, then so many bytes, of which the fifth is the magic."""
    found = []
    while len(data) >= 17:
        offset, length, _, magic = struct.unpack_from(">qiib", data)
        if len(data) < 12 + length:
            break
        if magic == 2:
            offset += struct.unpack_from(">i", data, 23)[0]
        found.append(Message(offset, magic, data[: 12 + length]))
        data = data[12 + length :]
    return found, data


def parse(data):
    """A MessageSetSend at the start, and what follows it."""
    length, error = struct.unpack_from(">ih", data)
    assert length >= 2
    assert len(data) >= 4 + length
    return Result(error, *parse_messages(data[6 : 4 + length])), data[4 + length :]


def parse_multi(data):
    length, error = struct.unpack_from(">ih", data)
    assert length == len(data) - 4
    rest, results = data[6:], []
    while rest:
        result, rest = parse(rest)
        results.append(result)
    return error, results


def written(send, path, flags=0):
    """What comes to a file; it must be as much as `size` says."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | flags)
    try:
        send.write_to(fd)
    finally:
        os.close(fd)
    data = path.read_bytes()
    assert len(data) == send.size
    return data


def offsets_of(chunk):
    """Of the last message of each whole batch."""
    return [message.offset for message in parse_messages(chunk.read())[0]]


def snapshot_of(path, *items, **options):
    built = build_log_dir(path / "logs", {"t": [Partition(items, **options)]})["t", 0]
    return open_log(built.path, built.log_start_offset).snapshot()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_consumer_that_reads_chunk_by_chunk(tmp_path, magic, codec):
    batches = [Batch(many(3, 40, keys=5), magic=magic, codec=codec) for _ in range(20)]
    snapshot = snapshot_of(tmp_path, *batches, ROLL, *batches)
    stored = []
    for segment in snapshot.segments:
        messages, rest = parse_messages(segment.log.path.read_bytes())
        assert not rest
        stored += messages
    offset, found, partial = 0, [], 0
    while offset < snapshot.log_end_offset:
        chunk = read_chunk(snapshot, offset, 500)
        result, rest = parse(written(MessageSetSend.of(chunk), tmp_path / "out"))
        assert (result.error, rest) == (0, b"")
        assert all(message.magic == magic for message in result.messages)
        assert result.messages[0].offset >= offset
        assert chunk.size == 500 if result.partial else chunk.size <= 500
        found += result.messages
        partial += bool(result.partial)
        offset = result.messages[-1].offset + 1
    assert found == stored
    assert partial > 3
    assert read_chunk(snapshot, offset, 500).size == 0


def test_it_begins_with_the_batch_that_holds_the_offset(tmp_path):
    snapshot = snapshot_of(tmp_path, Batch(many(5)), Batch(many(5)), Batch(many(2), base_offset=20))
    for offset, batches in ((0, [4, 9, 21]), (4, [4, 9, 21]), (7, [9, 21]), (12, [21]), (21, [21])):
        chunk = read_chunk(snapshot, offset)
        assert offsets_of(chunk) == batches
        assert chunk.at_end
    assert read_chunk(snapshot, 7).position == read_chunk(snapshot, 5).position > 0
    end = read_chunk(snapshot, 22)
    assert (end.size, bytes(end.read())) == (0, b"")
    assert parse(written(MessageSetSend.of(end), tmp_path / "out")) == (Result(0, [], b""), b"")
    for size in (0, -1, 2**31):
        with pytest.raises(ValueError, match="chunk"):
            read_chunk(snapshot, 0, size)
    control = read_chunk(snapshot_of(tmp_path / "control", commit(3), commit(4), Batch(many(1))), 0, 2 * 78)
    assert (offsets_of(control), control.at_end) == ([0, 1], False)


def test_out_of_range(tmp_path):
    snapshot = snapshot_of(tmp_path, Batch(many(9)), start_offset=10, log_start_offset=12)
    for offset in (0, 11, 20):
        with pytest.raises(OffsetOutOfRange):
            read_chunk(snapshot, offset)
        with pytest.raises(OffsetOutOfRange) as caught:
            offset_or_reset(snapshot, offset)
        assert parse(written(MessageSetSend.of(caught.value), tmp_path / "out")) == (Result(1, [], b""), b"")
        assert offset_or_reset(snapshot, offset, ResetPolicy.EARLIEST) == 12 == snapshot.log_start_offset
        assert offset_or_reset(snapshot, offset, ResetPolicy.LATEST) == 19 == snapshot.log_end_offset
    for policy in ResetPolicy:
        assert [offset_or_reset(snapshot, offset, policy) for offset in (12, 15, 19)] == [12, 15, 19]
    assert offsets_of(read_chunk(snapshot, 12)) == [18]


def test_a_large_message_is_read_again_with_twice_the_size(tmp_path):
    snapshot = snapshot_of(tmp_path, Batch(many(1, 10)), Batch(many(1, 5000)), Batch(many(1, 10)))
    assert fetch(snapshot, 0, max_bytes=100).size == 100
    chunk = fetch(snapshot, 1, max_bytes=100)
    assert chunk.size > 5000
    assert offsets_of(chunk) == [1, 2]
    small = fetch(snapshot, 1, max_bytes=1275)
    assert (small.size, offsets_of(small)) == (5100, [1])
    assert fetch(snapshot, 1, max_bytes=100, largest_bytes=5100).size == 5100
    with pytest.raises(RecordTooLarge) as caught:
        fetch(snapshot, 1, max_bytes=100, largest_bytes=5000)
    assert parse(written(MessageSetSend.of(caught.value), tmp_path / "out"))[0].error == 10
    partial = read_chunk(snapshot, 1, 100)
    assert (partial.holds_a_message(), offsets_of(partial)) == (False, [])
    assert fetch(snapshot, 3, max_bytes=1).size == 0


def test_several_partitions(tmp_path):
    log_dir = LogDir.open_read_only(build_log_dir(tmp_path / "logs", {"t": [[Batch(many(3))], [Batch(many(9))]]}).path)
    sends = []
    for partition in range(3):
        try:
            result = read_chunk(log_dir.log(TopicPartition("t", partition)).snapshot(), 5)
        except (OffsetOutOfRange, UnknownTopicOrPartition) as error:
            result = error
        sends.append(MessageSetSend.of(result))
    error, results = parse_multi(written(MultiMessageSetSend(sends), tmp_path / "out"))
    assert (error, [(result.error, len(result.messages)) for result in results]) == (0, [(1, 0), (0, 1), (3, 0)])
    assert parse_multi(written(MultiMessageSetSend(), tmp_path / "out")) == (0, [])
    # More than a length can tell.
    huge = MessageSetSend(ErrorCode.NONE, LogChunk(0, None, 0, 2**30, at_end=True))
    with pytest.raises(RecordTooLarge):
        written(MultiMessageSetSend([huge, huge]), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b""
    assert [error_code(one("x")) for one in (CorruptBatch, OSError, SegmentGone)] == [2, -1, 1]


def test_damage_is_passed_on(tmp_path):
    """Where no message begins, a larger chunk would hold none either."""
    built = build_log_dir(tmp_path / "logs", {"t": [[Batch(many(2)), Batch(many(2)), ROLL, Batch(many(2))]]})["t", 0]
    second = built.batches[1].position

    def sent(offset):
        return fetch(open_log(built.path).snapshot(), offset, max_bytes=100).read()

    flip(built.log(), second + 70)
    assert sent(2) == built.log().read_bytes()[second:]  # its length is right
    overwrite(built.log(), second + 8, b"\0\0\0\1")
    assert sent(2) == built.log().read_bytes()[second : second + 100]
    overwrite(built.log(), second + 8, b"\0\0\0\x60\0\0\0\0\x09")
    assert sent(2) == built.log().read_bytes()[second : second + 100]


def test_a_file_that_shrinks_or_goes(tmp_path):
    chunk = read_chunk(snapshot_of(tmp_path, Batch(many(50))), 0)
    os.truncate(chunk.segment.log.path, 100)
    for attempt in (chunk.read, lambda: written(MessageSetSend.of(chunk), tmp_path / "out")):
        with pytest.raises(SegmentGone):
            attempt()
    chunk.segment.log.path.unlink()
    with pytest.raises(SegmentGone):
        chunk.read()


@pytest.fixture
def chunk(tmp_path):
    """Three megabytes: more than a pipe or a socket takes at once."""
    return read_chunk(snapshot_of(tmp_path, *(Batch(many(100, 1000)) for _ in range(30))), 0, 1 << 30)


@pytest.mark.parametrize("how", ["file", "append", "blocking", "not blocking"])
def test_a_result_is_written_to(how, chunk, tmp_path):
    if how in ("file", "append"):
        result = written(MessageSetSend.of(chunk), tmp_path / "out", os.O_APPEND if how == "append" else 0)
    else:
        result = through_a_pipe(MessageSetSend.of(chunk), blocking=how == "blocking")
    assert result[6:] == chunk.read()


def through_a_pipe(send, *, blocking):
    reading, writing = os.pipe()
    os.set_blocking(writing, blocking)
    with ThreadPoolExecutor(1) as pool, os.fdopen(reading, "rb") as end:
        whole = pool.submit(end.read)
        try:
            send.write_to(writing)
        finally:
            os.close(writing)
        return whole.result(120)


def test_a_segment_that_was_renamed_is_found(chunk, tmp_path):
    """By its identity: retention has given it its last name, and another file has the old one."""
    before = bytes(chunk.read())
    path = chunk.segment.log.path
    path.rename(path.with_name(path.name + ".deleted"))
    path.write_bytes(b"another")
    assert written(MessageSetSend.of(chunk), tmp_path / "out")[6:] == before
    assert LogFile(path).identity != chunk.segment.log.identity
