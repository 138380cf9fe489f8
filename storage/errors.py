"""The tree of errors. Each says what, where, what was expected, what was found, and what to do next.

`kafkafs.mounting.errnos` maps these classes to errno values; nothing in `storage` knows about errno.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any


class StorageError(Exception):
    """Base of all errors that `storage` raises on purpose.

    `position` is a byte position in the file `path`; `offset` is a record offset. What is unknown is None.
    """

    def __init__(
        self,
        what: str,
        *,
        path: Path | str | None = None,
        position: int | None = None,
        offset: int | None = None,
        expected: object = None,
        found: object = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.path = None if path is None else Path(path)
        self._url = path if isinstance(path, str) and "://" in path else None  # a Path loses a slash of it
        self.position = position
        self.offset = offset
        self.expected = expected
        self.found = found
        self.advice = advice

    def __str__(self) -> str:
        where = [
            f"{name} {value}"
            for name, value in (("position", self.position), ("offset", self.offset))
            if value is not None
        ]
        place = self.path if self._url is None or self.path != Path(self._url) else self._url
        text = f"{place}: {self.what}" if self.path is not None else self.what
        if where:
            text += f" at {', '.join(where)}"
        if self.expected is not None:
            text += f"; expected {self.expected}"
        if self.found is not None:
            text += f"{';' if self.expected is None else ','} found {error_text(self.found)}"
        if self.advice:
            text += f". {self.advice}"
        return text


def error_text(error: object) -> str:
    """An error for people: of an OSError the file and what happened, without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


class CorruptData(StorageError):
    """Bytes on disk are not what they should be."""


class CorruptBatch(CorruptData):
    """A record batch fails a check: length, CRC, record structure (Kafka's CorruptRecordException)."""


class DecompressionFailed(CorruptBatch):
    """A batch's compressed records do not decompress, or decompress to more than the limit."""


class IndexFault(Enum):
    """The fault of an index file."""

    UNREADABLE = "unreadable"
    SIZE = "ends within an entry"
    ORDER = "entries do not ascend"
    BEYOND_LOG = "entry points beyond the end of the log"
    ENTRY = "entry is impossible"


class CorruptIndex(CorruptData):
    """An .index, .timeindex or .txnindex fails its checks (Kafka's CorruptIndexException)."""

    def __init__(self, what: str, fault: IndexFault = IndexFault.ENTRY, **where: Any) -> None:
        super().__init__(what, **where)
        self.fault = fault


class CorruptCheckpoint(CorruptData):
    """A checkpoint, snapshot or properties file does not parse."""


class UnsupportedFormat(StorageError):
    """A magic value, codec or file version that nobody has defined."""


class OffsetOutOfRange(StorageError):
    """An offset below the log start offset or above the log end offset (Kafka's OffsetOutOfRangeException)."""


class SegmentGone(OffsetOutOfRange):
    """The file that held these messages was removed by retention, compaction or truncation."""


class LogTruncated(StorageError):
    """The log that was read has lost messages at its end, or is gone; others may have their offsets by now (Kafka's
    LogTruncationException)."""


class RecordTooLarge(StorageError):
    """A batch above max.message.bytes or segment.bytes (Kafka's RecordTooLargeException)."""


class LineTooLong(StorageError):
    """A message whose text in a format has more bytes than readers are shown."""


class InvalidRecord(StorageError):
    """A record that the topic does not accept (Kafka's InvalidRecordException), or an input line that does not
    parse."""


class InvalidConfig(StorageError):
    """An unknown configuration key, or a value that is not valid for its key (Kafka's ConfigException)."""


class InvalidTopic(StorageError):
    """A topic name that Kafka does not allow (Kafka's InvalidTopicException)."""


class UnknownTopicOrPartition(StorageError):
    """No such topic or partition in this log directory."""


class NotPermitted(StorageError):
    """Only the broker that owns the directory may do this.

    See storage/DESIGN.md, "Sharing a directory with a broker".
    """


class BadDestination(NotPermitted):
    """A destination that lies in a log directory, or around one that is only read."""


class TierUnavailable(StorageError):
    """A tier of remote segments, or an object in it, cannot be read now: it is missing, it cannot be reached, or a key
    or package that it needs is missing."""


class NotALogDir(StorageError):
    """A path given as a log directory that is not one."""


class TooManyKeys(StorageError):
    """More different keys than fit into the memory allowed for them."""


class LogLocked(StorageError):
    """Another process, a broker or another kafkafs, holds the log directory."""


class ReadOnlyLogDir(StorageError):
    """A change was requested in a log directory that was opened read-only."""


class PartitionOffline(StorageError):
    """The partition failed earlier (its disk or its data) and was taken offline; other partitions keep working."""


class LogClosed(PartitionOffline):
    """The log was closed meanwhile: its topic is being removed, or its directory closed. Nothing has failed."""


class PartitionUnavailable(PartitionOffline):
    """The partition could not be opened because something is missing that may become available again: disk space,
    memory, descriptors. `reason` is the system's error. The next use tries again."""

    def __init__(self, what: str, *, reason: OSError | None = None, **where: Any) -> None:
        super().__init__(what, found=reason, **where)
        self.reason = reason
