"""File and directory names of a log directory, built and parsed in one place. See storage/FORMAT.md, "File names".

Sources: Kafka's LogFileUtils, LocalLog (directory names), Topic (topic names), Snapshots (metadata snapshots).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from storage.errors import InvalidTopic
from storage.types import MAX_OFFSET, TopicPartition

# In a log directory.
META_PROPERTIES = "meta.properties"
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
REPLICATION_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
COMMITS = "kafkafs-commits"  # ours: brokers ignore it
MIRROR_PROPERTIES = "mirror.properties"  # ours: brokers ignore it
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"  # KRaft records with which a new cluster begins
QUORUM_STATE = "quorum-state"  # in __cluster_metadata-0
REMOTE_INDEX_CACHE = "remote-log-index-cache"

# In a partition's directory.
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
TOPIC_PROPERTIES = "topic.properties"  # ours: brokers ignore it

TEMPORARY_SUFFIX = ".tmp"  # of a checkpoint being written
STAGED_SUFFIX = ".staged"  # ours, in a partition's directory: batches to be added to the log; brokers ignore it

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"
INTERNAL_TOPICS = frozenset(
    {CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC, REMOTE_LOG_METADATA_TOPIC}
)
# Their records are Kafka's own structures: nothing that a client serialised.
KAFKAS_OWN_TOPICS = INTERNAL_TOPICS | {CLUSTER_METADATA_TOPIC}

MAX_TOPIC_LENGTH = 249  # leaves room for "-" and a partition number within 255 bytes
_MAX_NAME_LENGTH = 255
_MAX_PARTITION = 2**31 - 1
# More than any topic has. The name of an empty directory may claim a higher number, and a topic's missing partitions
# are counted up to it.
MAX_PARTITIONS: Final = 100_000
_OFFSET_DIGITS = 20


class FileKind(Enum):
    """The kind of a file that is named by an offset; the value is its suffix."""

    LOG = ".log"
    OFFSET_INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TRANSACTION_INDEX = ".txnindex"
    PRODUCER_SNAPSHOT = ".snapshot"


class FileState(Enum):
    """The stage in a file's life; the value is appended to its name."""

    LIVE = ""
    CLEANED = ".cleaned"  # being built by the cleaner
    SWAP = ".swap"  # complete, about to replace live files
    DELETED = ".deleted"  # awaiting removal


class SegmentFileName(NamedTuple):
    """`<20 digits><kind><state>`: a file that belongs to the segment at `offset`.

    For a producer snapshot, `offset` is the end (excluded) of what it covers.
    """

    offset: int
    kind: FileKind
    state: FileState = FileState.LIVE


_SEGMENT_FILE = re.compile(
    rf"([0-9]{{{_OFFSET_DIGITS}}})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(|\.cleaned|\.swap|\.deleted)"
)
_KINDS = {kind.value: kind for kind in FileKind}
_STATES = {state.value: state for state in FileState}
_KNOWN_ENDS = (*_KINDS, *(kind + state for kind in _KINDS for state in _STATES))


def segment_file(offset: int, kind: FileKind, state: FileState = FileState.LIVE) -> str:
    """The file name for an offset: `segment_file(5, FileKind.LOG)` is `00000000000000000005.log`."""
    # Not `value`, which is a function call: a listing names a hundred thousand files.
    return f"{offset:020d}{kind._value_}{state._value_}"


def parse_segment_file(name: str) -> SegmentFileName | None:
    """The parts of a segment file's name; None for any other name (see also `is_misnamed`)."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    offset = int(match[1])
    if offset > MAX_OFFSET:
        return None
    return SegmentFileName(offset, _KINDS[match[2]], _STATES[match[3]])


def is_misnamed(name: str) -> bool:
    """True for a name with a segment file's suffix but no offset before it, on which a broker refuses to start."""
    return name.endswith(_KNOWN_ENDS) and parse_segment_file(name) is None


_METADATA_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


class MetadataSnapshotName(NamedTuple):
    """`<20 digits>-<10 digits>.checkpoint` in `__cluster_metadata-0`: the state before `end_offset`, as of `epoch`.

    Ordered as Kafka orders them (OffsetAndEpoch; sorting by epoch first would be the same, since a log's epochs never
    decrease).
    """

    end_offset: int
    epoch: int


def metadata_snapshot_file(end_offset: int, epoch: int) -> str:
    """The name of a KRaft snapshot (Snapshots.filenameFromSnapshotId)."""
    return f"{end_offset:020d}-{epoch:010d}.checkpoint"


def parse_metadata_snapshot(name: str) -> MetadataSnapshotName | None:
    """The parts of a KRaft snapshot's name; None for any other name (unfinished ones end in `.part`)."""
    match = _METADATA_SNAPSHOT.fullmatch(name)
    return None if match is None else MetadataSnapshotName(int(match[1]), int(match[2]))


_ATTEMPT_DIGITS = 12
_STAGED = re.compile(rf"([0-9A-Za-z-]{{1,64}})\.([0-9]{{1,19}})\.([0-9a-f]{{32}}){re.escape(STAGED_SUFFIX)}")


class StagedName(NamedTuple):
    """`<write>.<batch>.<32 hex>.staged`: batches that one task of a write put next to a partition's segments, to be
    appended.

    `write`: the id of a streaming query, with `batch` as its micro-batch, or of a single write (batch 0). `unique`
    begins with the `attempt_mark` of the attempt at the write, which is the same for all its tasks.
    """

    write: str
    batch: int
    unique: str

    def __str__(self) -> str:
        return f"{self.write}.{self.batch}.{self.unique}{STAGED_SUFFIX}"

    @staticmethod
    def new(write: str, batch: int, attempt: str = "") -> StagedName:
        """A name that no other task has. ValueError for an id that cannot be part of a file name."""
        mark = attempt_mark(attempt)
        name = StagedName(write, batch, mark + uuid.uuid4().hex[len(mark) :])
        if parse_staged(str(name)) != name:
            raise ValueError(f"{write!r}, {batch} cannot name a staged file")
        return name


def attempt_mark(attempt: str) -> str:
    """Distinguishes the staged files of one attempt at a write (a run of a query, a driver) from those of others."""
    import hashlib

    return hashlib.sha256(attempt.encode()).hexdigest()[:_ATTEMPT_DIGITS]


def parse_staged(name: str) -> StagedName | None:
    """The parts of a staged file's name; None for any other name."""
    match = _STAGED.fullmatch(name)
    return None if match is None else StagedName(match[1], int(match[2]), match[3])


_STAGED_SEGMENT = re.compile(
    rf"[0-9]{{{_OFFSET_DIGITS}}}(?:\.log|\.index|\.timeindex|\.txnindex)\.[0-9a-f]{{32}}{re.escape(STAGED_SUFFIX)}"
)


def is_staged_segment(name: str) -> bool:
    """True for `<segment file>.<32 hex>.staged`: a killed compaction of an earlier release on Spark left such files."""
    return _STAGED_SEGMENT.fullmatch(name) is not None


class DirKind(Enum):
    """The kind of a directory within a log directory."""

    PARTITION = "partition"
    DELETED = "deleted"  # <topic>-<p>.<32 hex>-delete
    STRAY = "stray"  # <topic>-<p>.<32 hex>-stray: not in the broker's metadata
    FUTURE = "future"  # <topic>-<p>.<32 hex>-future: being moved here from another log directory
    CLUSTER_METADATA = "cluster metadata"  # the KRaft log, which brokers do not load as a partition
    REMOTE_INDEX_CACHE = "remote index cache"
    UNPARSABLE = "unparsable"  # a broker refuses to start on it


class DirName(NamedTuple):
    """The parts of a directory's name. `partition` is None if the name has none; `reason` says what is wrong.

    The topic in a `-delete` or `-stray` name may be cut short.
    """

    name: str
    kind: DirKind
    partition: TopicPartition | None = None
    reason: str = ""


_MARKED_DIR = re.compile(r"(\S+)-(\S+)\.(\S+)(-delete|-stray|-future)")
_MARKS = {"-delete": DirKind.DELETED, "-stray": DirKind.STRAY, "-future": DirKind.FUTURE}
_PARTITION_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_NO_PARTITION_NAME = "is not in the form topic-partition; a broker refuses to start beside it"


def partition_number(text: str) -> int | None:
    """A partition's number, written as Kafka writes it (no leading zeros); None when the text is not one."""
    if not _PARTITION_NUMBER.fullmatch(text) or int(text) > _MAX_PARTITION:
        return None
    return int(text)


def parse_dir(name: str) -> DirName:
    """The kind of the directory `name` in a log directory (LocalLog.parseTopicPartitionName, LogManager.loadLogs)."""
    if name == REMOTE_INDEX_CACHE:
        return DirName(name, DirKind.REMOTE_INDEX_CACHE)
    kind = DirKind.PARTITION
    bare = name
    if name.endswith(tuple(_MARKS)):
        match = _MARKED_DIR.fullmatch(name)
        if match is None:
            return DirName(name, DirKind.UNPARSABLE, None, _NO_PARTITION_NAME)
        kind = _MARKS[match[4]]
        bare = name[: name.rindex(".")]
    topic, _, text = bare.rpartition("-")
    number = partition_number(text)
    if not topic or number is None:
        return DirName(name, DirKind.UNPARSABLE, None, _NO_PARTITION_NAME)
    problem = topic_name_problem(topic)
    if problem is not None:
        return DirName(name, DirKind.UNPARSABLE, None, f"holds no valid topic name: {problem}")
    if topic == CLUSTER_METADATA_TOPIC and kind is DirKind.PARTITION:
        kind = DirKind.CLUSTER_METADATA
    return DirName(name, kind, TopicPartition(topic, number))


def deleted_dir(partition: TopicPartition, unique: str | None = None) -> str:
    """A name to which a partition's directory is renamed before it is removed; `unique`: 32 hex digits, by default
    random.

    A long topic name is shortened so that the name fits 255 bytes (LocalLog.logDeleteDirName).
    """
    suffix = f"-{partition.partition}.{uuid.uuid4().hex if unique is None else unique}-delete"
    return partition.topic[: _MAX_NAME_LENGTH - len(suffix)] + suffix


_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(topic: str) -> str | None:
    """Why Kafka refuses this topic name (Topic.detectInvalidTopic); None for a valid name."""
    if not topic:
        return "it is empty"
    if topic in (".", ".."):
        return f"'{topic}' is not allowed"
    if len(topic) > MAX_TOPIC_LENGTH:
        return f"it has {len(topic)} characters, at most {MAX_TOPIC_LENGTH} are allowed"
    if not _LEGAL_TOPIC.fullmatch(topic):
        return "only ASCII letters, digits, '.', '_' and '-' are allowed"
    return None


def check_topic_name(topic: str) -> None:
    """Raises InvalidTopic when Kafka would refuse the name."""
    problem = topic_name_problem(topic)
    if problem is not None:
        shown = topic if len(topic) <= MAX_TOPIC_LENGTH else topic[:32] + "…"
        raise InvalidTopic(f"topic name {shown!r} is invalid: {problem}")


def check_topic_is_new(topic: str, existing: Iterable[str]) -> None:
    """Raises InvalidTopic when the name is invalid, exists, or collides with an existing one (`.` against `_`).

    Kafka's metric names replace `.` by `_`, so `a.b` and `a_b` cannot live in one cluster (Topic.hasCollision).
    """
    check_topic_name(topic)
    unified = topic.replace(".", "_")
    for other in existing:
        if other == topic:
            raise InvalidTopic(f"topic {topic!r} exists already")
        if other.replace(".", "_") == unified:
            raise InvalidTopic(f"topic {topic!r} collides with topic {other!r}: Kafka's metrics mix up '.' and '_'")
