"""Reading as in Kafka's first documents: takes an offset and a chunk size, returns a chunk of the log's bytes.

    chunk = read_chunk(log.snapshot(), offset, 1 << 20)   # at most this many bytes; may end within a message
    messages = fetch(log.snapshot(), offset, max_bytes=4096, largest_bytes=1 << 20)  # doubled until a message fits
    MessageSetSend.of(chunk).write_to(sys.stdout.fileno())   # the fetch result, as it was sent to consumers

A chunk is part of one segment and begins with the batch that holds the offset; an uncompressed v0 or v1 message is a
batch by itself. Sources: LocalLog.read, FileRecords.slice; MessageSetSend and MultiMessageSetSend of Kafka 0.7; the
documents' sections on reads and on the results sent to consumers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

from storage.errors import CorruptData, OffsetOutOfRange, RecordTooLarge, StorageError, UnknownTopicOrPartition
from storage.files.descriptors import wait_for_room
from storage.format.batches import BATCH_HEADER_SIZE
from storage.log.reader import find_batch
from storage.log.segment import WINDOW_BYTES, Segment
from storage.log.snapshot import LogSnapshot

DEFAULT_MAX_BYTES: Final = 1 << 20
DEFAULT_LARGEST_BYTES: Final = 64 << 20
_HEADER: Final = struct.Struct(">ih")  # number of bytes after the first four, error code
_AFTER_LENGTH: Final = 2  # the part of the header that the length covers
_MAX_LENGTH: Final = 2**31 - 1
MAX_CHUNK_BYTES: Final = _MAX_LENGTH - _AFTER_LENGTH


class ErrorCode(IntEnum):
    """The error codes of a fetch result (Kafka's Errors; 1 to 4 existed from the beginning)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10


_CODES: Final[tuple[tuple[type[StorageError], ErrorCode], ...]] = (
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (CorruptData, ErrorCode.CORRUPT_MESSAGE),
    (UnknownTopicOrPartition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (RecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
)


class ResetPolicy(Enum):
    """Where a consumer continues when an offset is out of range (its auto.offset.reset)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


def error_code(error: Exception) -> ErrorCode:
    """The error code of an error in a fetch result."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.UNKNOWN_SERVER_ERROR)


def offset_or_reset(snapshot: LogSnapshot, offset: int, policy: ResetPolicy = ResetPolicy.NONE) -> int:
    """The offset if a fetch of it would succeed; otherwise the policy's offset. NONE: OffsetOutOfRange."""
    if policy is ResetPolicy.NONE:
        snapshot.check_offset(offset)
    elif not snapshot.log_start_offset <= offset <= snapshot.log_end_offset:
        return snapshot.log_start_offset if policy is ResetPolicy.EARLIEST else snapshot.log_end_offset
    return offset


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Bytes of a log: `size` of them at the byte position `position` of a segment; `offset` is the requested offset.

    `segment` is None at the log's end, where there is nothing. `at_end`: the segment's messages end here, so a larger
    chunk would hold no more.
    """

    offset: int
    segment: Segment | None
    position: int
    size: int
    at_end: bool

    def read(self) -> memoryview:
        """The bytes. SegmentGone if they were removed meanwhile."""
        if self.segment is None or self.size == 0:
            return memoryview(b"")
        return self.segment.read(self.position, self.size)

    def write_to(self, fd: int) -> None:
        """Write the bytes to a descriptor. SegmentGone if they were removed meanwhile; OSError."""
        if self.segment is not None:
            end = self.position + self.size
            for position in range(self.position, end, WINDOW_BYTES):
                _write(fd, self.segment.read(position, min(WINDOW_BYTES, end - position)))

    def holds_a_message(self) -> bool:
        """Whether the first batch is complete. True for damage: a larger chunk would not help."""
        if self.segment is None:
            return False
        needed = self.segment.batch_size(self.segment.log.read(self.position, BATCH_HEADER_SIZE))
        return needed is None or needed <= self.size


def read_chunk(snapshot: LogSnapshot, offset: int, max_bytes: int = DEFAULT_MAX_BYTES) -> LogChunk:
    """Read at most `max_bytes` bytes of the log, from the batch that holds or follows `offset`.

    OffsetOutOfRange below the log start and above the log end; at the log end the chunk is empty. ValueError for an
    impossible size.
    """
    if not 0 < max_bytes <= MAX_CHUNK_BYTES:
        raise ValueError(f"a chunk of {max_bytes} bytes")
    snapshot.check_offset(offset)
    place = find_batch(snapshot, offset)
    if place is None:
        return LogChunk(offset, None, 0, 0, at_end=True)
    available = snapshot.end_position(place.segment) - place.position
    return LogChunk(offset, place.segment, place.position, min(available, max_bytes), at_end=available <= max_bytes)


def fetch(
    snapshot: LogSnapshot,
    offset: int,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    largest_bytes: int = DEFAULT_LARGEST_BYTES,
) -> LogChunk:
    """Read a chunk that holds at least one whole message, unless the log ends here: doubles the size until a message
    fits. RecordTooLarge if that exceeds `largest_bytes`; otherwise the errors of `read_chunk`."""
    size = min(max_bytes, largest_bytes)
    while True:
        chunk = read_chunk(snapshot, offset, size)
        if chunk.at_end or chunk.holds_a_message():
            return chunk
        if size >= largest_bytes:
            raise RecordTooLarge(
                "message", offset=offset, expected=f"at most {largest_bytes} bytes", advice="Allow a larger buffer"
            )
        size = min(2 * size, largest_bytes)


@dataclass(frozen=True, slots=True)
class MessageSetSend:
    """The result of one fetch: 4 bytes length of the rest, 2 bytes error code, messages."""

    error: ErrorCode
    chunk: LogChunk | None = None

    @staticmethod
    def of(result: LogChunk | Exception) -> MessageSetSend:
        """The result for a chunk, or for an error in place of a chunk."""
        if isinstance(result, LogChunk):
            return MessageSetSend(ErrorCode.NONE, result)
        return MessageSetSend(error_code(result))

    @property
    def size(self) -> int:
        """All bytes, including the four of the length."""
        return _HEADER.size + (0 if self.chunk is None else self.chunk.size)

    def write_to(self, fd: int) -> None:
        """Write the whole result. SegmentGone if the messages are removed meanwhile: then the output is incomplete.
        OSError."""
        _write(fd, _HEADER.pack(self.size - _HEADER.size + _AFTER_LENGTH, self.error))
        if self.chunk is not None:
            self.chunk.write_to(fd)


@dataclass(frozen=True, slots=True)
class MultiMessageSetSend:
    """The results of several fetches: 4 bytes length of the rest, 2 bytes error code (0), then each as a
    MessageSetSend."""

    sends: Sequence[MessageSetSend] = field(default_factory=tuple)

    @property
    def size(self) -> int:
        """All bytes, including the four of the length."""
        return _HEADER.size + sum(send.size for send in self.sends)

    def write_to(self, fd: int) -> None:
        """Write all results. RecordTooLarge, before anything is written, if the length needs more than four bytes."""
        length = self.size - _HEADER.size + _AFTER_LENGTH
        if length > _MAX_LENGTH:
            raise RecordTooLarge("results of all partitions", expected=f"at most {_MAX_LENGTH} bytes", found=length)
        _write(fd, _HEADER.pack(length, ErrorCode.NONE))
        for send in self.sends:
            send.write_to(fd)


def _write(fd: int, data: bytes | memoryview) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            wait_for_room(fd)
