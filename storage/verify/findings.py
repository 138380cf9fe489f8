"""The findings of a check of a log directory: one value for each fault, with its place and what repairs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from storage.errors import StorageError
from storage.files.opening import who_may_read

REINDEX = "kafkafs reindex"
RECOVER = "kafkafs recover"
SALVAGE = "kafkafs salvage"
DROP_LOST_WRITES = "--drop-lost-writes"
OPENING = "the next opening for writing"

# How many of one kind in one file are listed; the rest is counted.
LISTED = 20


class Severity(Enum):
    """Whether a fault is damage."""

    FINDING = "finding"  # messages are lost, or answers may be wrong
    NOTE = "note"  # work under way or stopped half-way, or something that may be in order


class FaultKind(Enum):
    """All faults: a stable name, and a text for people."""

    name_in_reports: str
    text: str

    def __init__(self, name_in_reports: str, text: str) -> None:
        self.name_in_reports = name_in_reports
        self.text = text

    # The directory
    DIR_UNPARSABLE = "dir-unparsable", "directory that is not a partition"
    DIR_AWAITS_REMOVAL = "dir-awaits-removal", "partition awaits removal"
    META_PROPERTIES = "meta-properties", "meta.properties is refused by a broker"
    CHECKPOINT_CORRUPT = "checkpoint-corrupt", "checkpoint does not parse"
    CHECKPOINT_BEYOND_LOG = "checkpoint-beyond-log", "checkpoint is beyond its log"
    CHECKPOINT_UNFINISHED = "checkpoint-unfinished", "a checkpoint that was being replaced"
    UNREADABLE = "unreadable", "cannot be read"
    NOT_PERMITTED = "not-permitted", "cannot be read by this user, and was not checked"
    # Topics
    TOPIC_ID_CORRUPT = "topic-id-corrupt", "partition.metadata does not parse"
    TOPIC_ID_MISSING = "topic-id-missing", "partition.metadata is missing"
    TOPIC_ID_DIFFERS = "topic-id-differs", "topic id differs from that in another partition"
    TOPIC_ID_SHARED = "topic-id-shared", "another topic has the same topic id"
    TOPIC_CONFIG_CORRUPT = "topic-config-corrupt", "topic.properties does not parse"
    TOPIC_CONFIG_DIFFERS = "topic-config-differs", "configuration differs from that in another partition"
    PARTITION_ABSENT = "partition-absent", "the cluster has a replica on this broker that is not in this directory"
    # Staged writes
    WRITES_CORRUPT = "writes-corrupt", "kafkafs-commits does not parse: nothing is committed"
    WRITE_PENDING = "write-pending", "write has begun and is not finished"
    WRITE_STUCK = "write-stuck", "write cannot be finished: its staged files are missing or damaged"
    STAGED_ORPHAN = "staged-orphan", "staged file of a write that was not committed"
    # A partition's files
    FILE_MISNAMED = "file-misnamed", "segment file's name has no offset: a broker refuses to start"
    FILE_LEFT_OVER = "file-left-over", "file of an operation that was interrupted"
    INDEX_WITHOUT_LOG = "index-without-log", "index has no .log"
    PARTITION_EMPTY = "partition-empty", "partition has no segment"
    SEGMENT_OVERLAP = "segment-overlap", "segment begins before the previous segment ends"
    SEGMENT_GAP = (
        "segment-gap",
        "offsets before this segment are in no segment: a file was lost, unless it was compacted",
    )
    REMOTE_SEGMENTS = "remote-segments", "messages before this segment are in tiered storage, and were not checked"
    REMOTE_SEGMENT = "remote-segment", "remote segment cannot be read"
    REMOTE_PARTS = "remote-parts", "objects of a remote segment are missing"
    REMOTE_ORPHANS = "remote-orphans", "objects in the tier that no metadata names: nothing will remove them"
    SEGMENT_TOO_LARGE = "segment-too-large", "segment is larger than the positions that an index can hold"
    SEGMENT_SPAN = "segment-span", "segment's offsets are further above its base than its indexes can hold"
    # Batches
    LOG_CUT_OFF = "log-cut-off", "log ends in bytes that are not a sound batch"
    BATCH_CRC = "batch-crc", "no sound batch begins here: it fails its CRC"
    BATCH_CUT_OFF = "batch-cut-off", "no sound batch begins here: it is cut off"
    BATCH_LENGTH = "batch-length", "no sound batch begins here: its length is impossible"
    LOG_ZEROS = "log-zeros", "no sound batch begins here: zeros"
    LOG_GARBAGE = "log-garbage", "no sound batch begins here: bytes that are not a batch"
    BATCH_ORDER = "batch-order", "offsets do not ascend: the offset of this batch or of the previous batch is wrong"
    BATCH_TWICE = "batch-twice", "batch is in the segment twice: readers skip the second one"
    BATCH_RANGE = "batch-range", "no sound batch begins here: its offset does not fit the segment"
    BATCH_MAGIC = "batch-magic", "batch has an unknown magic"
    BATCH_OVERLAP = "batch-overlap", "batch begins before the previous batch ends"
    BATCH_COUNT = "batch-count", "batch counts more records than it has offsets"
    BATCH_MAX_TIMESTAMP = "batch-max-timestamp", "batch header has a wrong max timestamp"
    BATCH_PRODUCER = "batch-producer", "transactional batch has no producer"
    BATCH_EPOCH = "batch-epoch", "leader epoch decreases"
    # Records
    COMPRESSION = "compression", "batch does not decompress"
    CODEC = "codec", "batch has an unknown codec"
    RECORDS = "records", "records do not parse"
    RECORD_OFFSET = "record-offset", "record's offset does not fit its batch"
    MARKER = "marker", "control batch does not parse"
    # Indexes
    INDEX_MISSING = "index-missing", "index is missing"
    INDEX_SIZE = "index-size", "index file ends within an entry"
    INDEX_ORDER = "index-order", "index entries are not strictly ascending"
    INDEX_BEYOND_LOG = "index-beyond-log", "index entry points beyond the end of the log"
    INDEX_NOT_TRIMMED = "index-not-trimmed", "index is not trimmed to its entries"
    INDEX_POSITION = "index-position", "index entry points into the middle of a batch"
    INDEX_FLOOR = "index-floor", "index entry points after its offset"
    INDEX_OFFSET = "index-offset", "index entry has an offset that is not the last of a batch"
    TIME_INDEX_SIZE = "time-index-size", "time index file ends within an entry"
    TIME_INDEX_ORDER = "time-index-order", "time index entries are not ascending"
    TIME_INDEX_BEYOND_LOG = "time-index-beyond-log", "time index entry points beyond the end of the segment"
    TIME_INDEX_NOT_TRIMMED = "time-index-not-trimmed", "time index is not trimmed to its entries"
    TIME_INDEX_UNTRUE = "time-index-untrue", "time index entry is wrong"
    TIME_INDEX_INCOMPLETE = "time-index-incomplete", "time index lacks the segment's greatest timestamp"
    TXN_INDEX_CORRUPT = "txn-index-corrupt", "transaction index entry is impossible"
    TXN_INDEX_INVENTED = "txn-index-invented", "transaction index entry has no abort marker in the log"
    TXN_INDEX_INCOMPLETE = "txn-index-incomplete", "aborted transaction is not in the transaction index"
    # Snapshots and epochs
    SNAPSHOT_CORRUPT = "snapshot-corrupt", "snapshot does not parse"
    SNAPSHOT_BEYOND_LOG = "snapshot-beyond-log", "producer snapshot is beyond the log end"
    SNAPSHOT_UNTRUE = "snapshot-untrue", "producer snapshot contradicts the log"
    EPOCHS_CORRUPT = "epochs-corrupt", "leader-epoch-checkpoint does not parse"
    EPOCHS_BEYOND_LOG = "epochs-beyond-log", "leader epoch begins beyond the log end"
    EPOCHS_UNTRUE = "epochs-untrue", "leader-epoch-checkpoint contradicts the log"
    # A manifest
    MANIFEST_MISSING = "manifest-missing", "batches that the manifest lists are not here"
    MANIFEST_DIFFERS = "manifest-differs", "batches differ from those in the manifest"


class Repair(NamedTuple):
    """The repair of a fault.

    `recovery`: what recovery after a crash would do about it. `command`: the command, or what else, that repairs it.
    `note`: it is not damage, but work under way, or stopped half-way.
    """

    recovery: str | None = None
    command: str | None = None
    note: bool = False


UNREPAIRED = Repair()
LEFT = Repair("leaves it")
RECOVERED = Repair("leaves it", RECOVER)
MOVE_AWAY = Repair("leaves it", "move it elsewhere")
UNFINISHED = Repair("leaves it", OPENING, note=True)


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault. `position`: a byte position in `path`; `offset`: a record offset; None if it does not apply.

    `what`: the fault in words, by default those of its kind. `more`: how many others of this kind in this file, after
    this one, are not listed.
    """

    kind: FaultKind
    path: Path
    how: Repair = UNREPAIRED
    what: str = ""
    position: int | None = None
    offset: int | None = None
    expected: object = None
    found: object = None
    more: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "what", self.what or self.kind.text)

    @staticmethod
    def of_error(kind: FaultKind, error: StorageError | OSError, path: Path, how: Repair = UNREPAIRED) -> Finding:
        """The finding for an error while reading a file, `path` unless the error names another. An OSError is
        UNREADABLE, or NOT_PERMITTED: what this user may not read need not be damaged."""
        if isinstance(error, OSError):
            what = f"cannot be read: {error.strerror or error}"
            file = Path(error.filename) if isinstance(error.filename, str | Path) else path
            if isinstance(error, PermissionError):
                return Finding(FaultKind.NOT_PERMITTED, file, Repair(command=who_may_read(file)), what)
            return Finding(FaultKind.UNREADABLE, file, how._replace(recovery=None), what)
        return Finding(
            kind, error.path or path, how, error.what, error.position, error.offset, error.expected, error.found
        )

    @property
    def severity(self) -> Severity:
        """NOTE for what is not damage."""
        return Severity.NOTE if self.how.note else Severity.FINDING

    @property
    def recovery(self) -> str | None:
        return self.how.recovery

    @property
    def repair(self) -> str | None:
        """The command, or what else, that repairs it."""
        return self.how.command

    @property
    def name(self) -> str:
        """The kind's stable name."""
        return self.kind.name_in_reports

    def __str__(self) -> str:
        advice = "" if self.recovery is None else f"Recovery {self.recovery}. "
        advice += "" if self.repair is None else f"Mended by: {self.repair}"
        error = StorageError(
            self.what,
            path=self.path,
            position=self.position,
            offset=self.offset,
            expected=self.expected,
            found=self.found,
            advice=advice.strip() or None,
        )
        more = f" ({self.more} more of this kind in this file)" if self.more else ""
        return f"{self.severity.value} {self.name}: {error}{more}"


class Findings:
    """A growing list of findings. Not thread-safe: each thread has one, and `extend` puts them together."""

    __slots__ = ("_counts", "_last", "_list")

    def __init__(self) -> None:
        self._list: list[Finding] = []
        self._counts: Counter[tuple[FaultKind, Path]] = Counter()
        self._last: dict[tuple[FaultKind, Path], int] = {}

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._list)

    def __len__(self) -> int:
        return len(self._list)

    def extend(self, findings: Iterable[Finding]) -> None:
        """Adds these findings, one after the other (`add`)."""
        for finding in findings:
            self.add(finding)

    def add(self, finding: Finding) -> None:
        """Adds a finding, or only counts it if enough of its kind and file are listed."""
        key = finding.kind, finding.path
        self._counts[key] += 1
        if self._counts[key] <= LISTED:
            self._last[key] = len(self._list)
            self._list.append(finding)
        else:
            last = self._last[key]
            self._list[last] = replace(self._list[last], more=self._list[last].more + 1 + finding.more)

    def list(self) -> list[Finding]:
        """All of them, by path and position."""
        return sorted(
            self._list,
            key=lambda finding: (str(finding.path), -1 if finding.position is None else finding.position, finding.what),
        )
