"""Fetch results, read by a parser of its own that knows what the first documents say, for logs of all formats."""

from __future__ import annotations

import os
import struct
import threading
from typing import NamedTuple

import pytest

from storage.errors import (
    CorruptBatch,
    OffsetOutOfRange,
    RecordTooLarge,
    SegmentGone,
    UnknownTopicOrPartition,
    UnsupportedFormat,
)
from storage.files import log_file
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
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.readers import open_log


class Message(NamedTuple):
    """A message or a whole batch as it lies in a fetch result."""

    offset: int  # the last one's, in a batch
    magic: int
    data: bytes


class Result(NamedTuple):
    """A fetch result taken apart; `partial` is what stands after its last whole message."""

    error: int
    messages: list[Message]
    partial: bytes


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


def log_of(tmp_path, magic, codec=Codec.NONE):
    """Two segments of twenty batches of three messages."""
    batches = [Batch(many(3, 40, keys=5), magic=magic, codec=codec) for _ in range(20)]
    return build_log_dir(tmp_path / "logs", {"t": [Partition([*batches, ROLL, *batches])]})["t", 0]


def stored(built):
    """The log's batches, v0 and v1 messages without a codec one by one."""
    parts = []
    for segment in range(len(built.segments)):
        messages, rest = parse_messages(built.log(segment).read_bytes())
        assert not rest
        parts += [message.data for message in messages]
    return parts


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_consumer_that_reads_chunk_by_chunk(tmp_path, magic, codec):
    built = log_of(tmp_path, magic, codec)
    snapshot = open_log(built.path).snapshot()
    offset, found, partial = 0, [], 0
    while offset < snapshot.log_end_offset:
        chunk = read_chunk(snapshot, offset, 500)
        (result, rest) = parse(written(MessageSetSend.of(chunk), tmp_path / "out"))
        assert (result.error, rest) == (0, b"")
        assert chunk.size <= 500
        assert result.messages
        assert all(message.magic == magic for message in result.messages)
        assert result.messages[0].offset >= offset
        found += [message.data for message in result.messages]
        partial += bool(result.partial)
        if result.partial:
            assert chunk.size == 500
        offset = result.messages[-1].offset + 1
        assert chunk.next_offset() == offset
        assert [int(o) for block in chunk.blocks() for o in block.offset] == list(range(chunk.offset, offset))
    assert found == stored(built)
    assert partial > 3
    assert read_chunk(snapshot, offset, 500).size == 0


@requires_fixtures
@pytest.mark.parametrize("fixture", ["v0", "v1", "codecs"])
def test_the_fixtures_bytes(tmp_path, fixture):
    log_dir = LogDir.open_read_only(FIXTURES / fixture / "log")
    topics = [topic for topic in log_dir.topics() if not topic.startswith("_")]
    assert topics
    for tp in [TopicPartition(topic, number) for topic in topics for number in log_dir.partitions(topic)]:
        snapshot = log_dir.log(tp).snapshot()
        offset, found = snapshot.log_start_offset, b""
        while offset < snapshot.log_end_offset:
            result, _ = parse(written(MessageSetSend.of(fetch(snapshot, offset, max_bytes=5000)), tmp_path / "out"))
            found += b"".join(message.data for message in result.messages)
            offset = result.messages[-1].offset + 1
        whole = b"".join(bytes(s.log.read(0, snapshot.end_position(s))) for s in snapshot.segments)
        assert found == whole, str(tp)


def snapshot_of(tmp_path, spec):
    built = build_log_dir(tmp_path / "logs", {"t": [spec]})["t", 0]
    return open_log(built.path, built.log_start_offset).snapshot()


def test_it_begins_with_the_batch_that_holds_the_offset(tmp_path):
    snapshot = snapshot_of(tmp_path, Partition([Batch(many(5)), Batch(many(5)), Batch(many(2), base_offset=20)]))
    for offset, first, last in ((0, 0, 21), (4, 4, 21), (7, 7, 21), (12, 20, 21), (21, 21, 21)):
        chunk = read_chunk(snapshot, offset)
        offsets = [int(o) for block in chunk.blocks() for o in block.offset]
        assert (offsets[0], offsets[-1]) == (first, last)
        assert chunk.at_end
    assert read_chunk(snapshot, 7).position == read_chunk(snapshot, 5).position > 0
    end = read_chunk(snapshot, 22)
    assert (end.size, end.next_offset(), list(end.blocks()), bytes(end.read())) == (0, 22, [], b"")
    assert parse(written(MessageSetSend.of(end), tmp_path / "out")) == (Result(0, [], b""), b"")


def test_a_chunk_of_control_records_has_a_next_offset(tmp_path):
    snapshot = snapshot_of(tmp_path, Partition([commit(3), commit(4), Batch(many(1))]))
    chunk = read_chunk(snapshot, 0, 2 * 78)
    assert list(chunk.blocks()) == []
    assert chunk.next_offset() == 2
    assert not chunk.at_end


def test_out_of_range(tmp_path):
    snapshot = snapshot_of(tmp_path, Partition([Batch(many(9))], start_offset=10, log_start_offset=12))
    for offset in (0, 11, 20):
        with pytest.raises(OffsetOutOfRange):
            read_chunk(snapshot, offset)
        with pytest.raises(OffsetOutOfRange) as caught:
            offset_or_reset(snapshot, offset)
        assert parse(written(MessageSetSend.of(caught.value), tmp_path / "out")) == (Result(1, [], b""), b"")
        assert offset_or_reset(snapshot, offset, ResetPolicy.EARLIEST) == 12 == snapshot.log_start_offset
        assert offset_or_reset(snapshot, offset, ResetPolicy.LATEST) == 19 == snapshot.log_end_offset
    for policy in ResetPolicy:
        for offset in (12, 15, 19):
            assert offset_or_reset(snapshot, offset, policy) == offset
    assert [int(block.offset[0]) for block in read_chunk(snapshot, 12).blocks()] == [12]


def test_a_large_message_is_read_again_with_twice_the_size(tmp_path):
    snapshot = snapshot_of(tmp_path, Partition([Batch(many(1, 10)), Batch(many(1, 5000)), Batch(many(1, 10))]))
    assert fetch(snapshot, 0, max_bytes=100).size == 100
    chunk = fetch(snapshot, 1, max_bytes=100)
    assert chunk.size > 5000
    assert [int(o) for block in chunk.blocks() for o in block.offset] == [1, 2]
    small = fetch(snapshot, 1, max_bytes=1275)
    assert small.size == 5100
    assert [int(o) for block in small.blocks() for o in block.offset] == [1]
    assert fetch(snapshot, 1, max_bytes=100, largest_bytes=5100).size == 5100
    with pytest.raises(RecordTooLarge) as caught:
        fetch(snapshot, 1, max_bytes=100, largest_bytes=5000)
    assert parse(written(MessageSetSend.of(caught.value), tmp_path / "out"))[0].error == 10
    partial = read_chunk(snapshot, 1, 100)
    assert not partial.holds_a_message()
    assert list(partial.blocks()) == []
    assert partial.next_offset() == 1
    assert fetch(snapshot, 3, max_bytes=1).size == 0


@pytest.mark.parametrize("size", [0, -1, 2**31])
def test_impossible_sizes(tmp_path, size):
    with pytest.raises(ValueError, match="chunk"):
        read_chunk(snapshot_of(tmp_path, Partition([Batch(many(1))])), 0, size)


def test_several_partitions(tmp_path):
    logs = build_log_dir(tmp_path / "logs", {"t": [[Batch(many(3))], [Batch(many(9))], []]}).path
    log_dir = LogDir.open_read_only(logs)
    sends = []
    for partition in range(3):
        try:
            chunk = read_chunk(log_dir.log(TopicPartition("t", partition)).snapshot(), 5)
            sends.append(MessageSetSend.of(chunk))
        except OffsetOutOfRange as error:
            sends.append(MessageSetSend.of(error))
    error, results = parse_multi(written(MultiMessageSetSend(sends), tmp_path / "out"))
    assert error == 0
    assert [result.error for result in results] == [1, 0, 1]
    assert [len(result.messages) for result in results] == [0, 1, 0]
    assert parse_multi(written(MultiMessageSetSend(), tmp_path / "out")) == (0, [])


def test_more_than_a_length_can_tell(tmp_path):
    huge = MessageSetSend(ErrorCode.NONE, LogChunk(0, None, 0, 2**30, at_end=True))
    with pytest.raises(RecordTooLarge):
        written(MultiMessageSetSend([huge, huge]), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b""


def test_error_codes():
    assert error_code(CorruptBatch("x")) == 2
    assert error_code(UnknownTopicOrPartition("x")) == 3
    assert error_code(OSError("x")) == -1
    assert error_code(SegmentGone("x")) == 1


def test_damage(tmp_path):
    built = build_log_dir(tmp_path / "logs", {"t": [[Batch(many(2)), Batch(many(2)), ROLL, Batch(many(2))]]})["t", 0]
    data = bytearray(built.log().read_bytes())
    data[built.batches[1].position + 70] ^= 1
    built.log().write_bytes(data)
    chunk = read_chunk(open_log(built.path).snapshot(), 0)
    found = []
    with pytest.raises(CorruptBatch, match="checksum"):
        found.extend(int(o) for block in chunk.blocks() for o in block.offset)
    data[built.batches[1].position + 8 : built.batches[1].position + 12] = b"\0\0\0\1"
    built.log().write_bytes(data)
    chunk = read_chunk(open_log(built.path).snapshot(), 0)
    with pytest.raises(CorruptBatch, match="begins here"):
        chunk.next_offset()
    data[built.batches[1].position + 8 : built.batches[1].position + 12] = b"\0\0\0\x60"
    data[built.batches[1].position + 16] = 9
    built.log().write_bytes(data)
    with pytest.raises(UnsupportedFormat):
        read_chunk(open_log(built.path).snapshot(), 0).next_offset()


def test_a_file_that_shrinks_or_goes(tmp_path):
    built = build_log_dir(tmp_path / "logs", {"t": [[Batch(many(50))]]})["t", 0]
    chunk = read_chunk(open_log(built.path).snapshot(), 0)
    os.truncate(built.log(), 100)
    for attempt in (chunk.read, lambda: written(MessageSetSend.of(chunk), tmp_path / "out")):
        with pytest.raises(SegmentGone):
            attempt()
    built.log().unlink()
    with pytest.raises(SegmentGone):
        chunk.read()


# Where the bytes go


@pytest.fixture
def chunk(tmp_path):
    """Three megabytes: more than a pipe or a socket takes at once."""
    built = build_log_dir(tmp_path / "logs", {"t": [[Batch(many(100, 1000)) for _ in range(30)]]})["t", 0]
    return read_chunk(open_log(built.path).snapshot(), 0, 1 << 30)


@pytest.fixture
def sent(monkeypatch):
    """How many bytes each sendfile(2) took."""
    counts = []
    sendfile = os.sendfile

    def counting(*args):
        counts.append(0)
        counts[-1] = sendfile(*args)
        return counts[-1]

    monkeypatch.setattr(os, "sendfile", counting)
    return counts


def drained(receive, work):
    """What comes out at one end while `work` fills the other."""
    parts = []

    def drain():
        while part := receive():
            parts.append(part)

    reader = threading.Thread(target=drain)
    reader.start()
    work()
    reader.join(timeout=120)
    assert not reader.is_alive()
    return b"".join(parts)


def test_sendfile_to_a_file(chunk, sent, tmp_path):
    result = written(MessageSetSend.of(chunk), tmp_path / "out")
    assert result[6:] == chunk.read()
    assert sum(sent) == chunk.size


def test_a_file_opened_to_append_gets_copies(chunk, sent, tmp_path):
    """sendfile(2) does not write to it."""
    result = written(MessageSetSend.of(chunk), tmp_path / "out", os.O_APPEND)
    assert result[6:] == chunk.read()
    assert sent == [0]


@pytest.mark.parametrize("blocking", [True, False])
def test_sendfile_to_a_pipe(chunk, sent, blocking):
    reading, writing = os.pipe()
    os.set_blocking(writing, blocking)

    def work():
        MessageSetSend.of(chunk).write_to(writing)
        os.close(writing)

    try:
        assert drained(lambda: os.read(reading, 1 << 16), work)[6:] == chunk.read()
    finally:
        os.close(reading)
    assert sum(sent) == chunk.size


def test_a_segment_that_was_renamed_is_found(chunk, sent, tmp_path):
    """By its identity: retention has given it its last name, and another file has the old one."""
    assert chunk.segment is not None
    before = bytes(chunk.read())
    path = chunk.segment.log.path
    path.rename(path.with_name(path.name + ".deleted"))
    path.write_bytes(b"another")
    assert written(MessageSetSend.of(chunk), tmp_path / "out")[6:] == before
    assert log_file.LogFile(path).identity != chunk.segment.log.identity
