"""The sources of a revival: replicas of partitions in log directories, or in single partitions' directories.

A single partition's directory may also be one that a broker has set aside (`-stray`, `-delete`, `-future`). If it is a
live partition of a log directory, that directory's checkpoints and metadata count for it too. Nothing is changed, not
even access times.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

from storage.errors import CorruptCheckpoint, StorageError
from storage.files import (
    checkpoints,
    cluster_metadata,
    dir_lock,
    leader_epochs,
    meta_properties,
    names,
    partition_metadata,
    topic_properties,
)
from storage.files.cluster_metadata import ClusterMetadataReader
from storage.files.leader_epochs import LeaderEpochs
from storage.files.listing import paths_in
from storage.files.meta_properties import MetaProperties
from storage.files.metadata_replay import ClusterMetadata
from storage.files.names import DirKind, FileKind
from storage.files.opening import exists
from storage.log.batch_choice import LogCopy, choose_batches
from storage.log.log_dir import LogDir
from storage.log.places import is_marked, is_stored
from storage.log.read_only_log import ReadOnlyLog
from storage.log.reader import last_batch
from storage.log.remote_metadata import KnownSegment, RemoteMetadata
from storage.log.scanning import scan_batches
from storage.log.segment import parts_of
from storage.log.segments import live_offsets
from storage.log.snapshot import LogSnapshot, ReadableLog
from storage.log.stored_dir import stored_log
from storage.log.tiered_log import RemotePart, TieredLog
from storage.log.tiering import is_tiered, remote_offsets
from storage.tier.tier import Tier
from storage.types import OffsetRange, TopicPartition

_T = TypeVar("_T")
_REPLICA_DIRS = (DirKind.PARTITION, DirKind.DELETED, DirKind.STRAY, DirKind.FUTURE)


@dataclass(frozen=True, slots=True)
class SourceDirectory:
    """A log directory. `clean`: it was shut down cleanly. `metadata`: None if it has no readable metadata log;
    `cluster`: metadata of its cluster besides topics, from that log or from `bootstrap.checkpoint`. `problems`: errors
    of unreadable files."""

    path: Path
    meta: MetaProperties | None
    metadata: ClusterMetadata | None
    cluster: ClusterMetadata
    clean: bool
    problems: tuple[StorageError, ...] = ()


@dataclass(frozen=True, slots=True)
class Replica:
    """A partition's directory. `recovery_point`: 0 if no checkpoint has it; `reached`: the greatest offset in its
    checkpoints. `epochs`: None if the file is missing or does not parse. `last_epoch`: of the last leader that wrote to
    it, -1 if unknown. `overrides`: from its topic.properties, None if it has none."""

    tp: TopicPartition
    path: Path
    source: SourceDirectory
    snapshot: LogSnapshot
    log_start_offset: int
    recovery_point: int
    topic_id: str | None
    epochs: LeaderEpochs | None
    last_epoch: int
    overrides: Mapping[str, str] | None
    reached: int = 0
    problems: tuple[StorageError, ...] = ()

    @property
    def copy(self) -> LogCopy:
        """The replica's log, as one of several copies."""
        return LogCopy(self.snapshot, self.reached)

    @property
    def log_end_offset(self) -> int:
        return max(self.snapshot.log_end_offset, self.log_start_offset)


class _Opened(NamedTuple):
    """A source, and offsets of partitions in its checkpoints: log start offsets (None if that checkpoint is lost),
    recovery points, and the offsets that logs have reached."""

    source: SourceDirectory
    starts: Mapping[TopicPartition, int] | None
    points: Mapping[TopicPartition, int]
    reached: Mapping[TopicPartition, int]


_NOTHING = SourceDirectory(Path(), None, None, ClusterMetadata(), clean=False)
_UNKNOWN = _Opened(_NOTHING, None, {}, {})  # for a partition's directory alone


@dataclass(slots=True)
class FoundReplicas:
    """All sources and replicas, in the order in which they were named. `strays`: directories that a broker has set
    aside in the sources, and that were not named: nobody knows whether they are still wanted."""

    sources: list[SourceDirectory] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    strays: list[tuple[TopicPartition, Path]] = field(default_factory=list)


def find(paths: Sequence[Path], tier: Tier | None = None) -> FoundReplicas:
    """Return the replicas in these directories, with their remote segments in `tier`.

    LogLocked if a process holds one of them; NotALogDir for a directory that is neither a log directory nor a
    partition's; OSError.
    """
    opened: dict[Path, _Opened] = {}
    strays: dict[Path, TopicPartition] = {}
    places: dict[Path, tuple[TopicPartition, Path]] = {}  # the log directory of each replica, or its own
    for given in paths:
        path = given.resolve()
        parsed = names.parse_dir(path.name)
        if parsed.kind in _REPLICA_DIRS and parsed.partition is not None and _logs_in(path):
            _refuse_if_held(path.parent)
            is_live = parsed.kind is DirKind.PARTITION and is_marked(path.parent)
            log_dir = path.parent if is_live else path
            if log_dir not in opened:
                opened[log_dir] = _open(log_dir) if is_live else _UNKNOWN._replace(source=replace(_NOTHING, path=path))
            places.setdefault(path, (parsed.partition, log_dir))
            continue
        listed = LogDir.open_read_only(path)
        partitions = [tp for tp in listed.all_partitions() if tp.topic != names.CLUSTER_METADATA_TOPIC]
        if path not in opened:
            opened[path] = _open(path)
        strays.update((place, tp) for tp, place in _logs_of_kind(path, DirKind.STRAY))
        # Replicas that were being moved to this directory: if there is no other, a broker uses them for the partition
        # (LogManager.recoverAbandonedFutureLogs).
        for tp, place in {
            **dict(_logs_of_kind(path, DirKind.FUTURE)),
            **{tp: path / tp.dir_name for tp in partitions},
        }.items():
            places.setdefault(place, (tp, path))
    opened = _with_metadata_together(opened)
    remote_logs = [] if tier is None else _metadata_logs([path.resolve() for path in paths])
    metadata = RemoteMetadata(lambda: remote_logs)
    replicas = [_replica(tp, path, opened[log_dir], tier, metadata) for path, (tp, log_dir) in places.items()]
    unnamed = [(tp, path) for path, tp in strays.items() if path not in places]
    return FoundReplicas([source.source for source in opened.values()], replicas, unnamed)


def _with_metadata_together(opened: dict[Path, _Opened]) -> dict[Path, _Opened]:
    """The sources; if metadata logs of a cluster are damaged, each gets the metadata that all of them have together."""
    known = {
        path: source
        for path, (source, *_) in opened.items()
        if source.metadata is not None and source.meta is not None and source.meta.cluster_id
    }
    for path, source in known.items():
        problem = None if source.metadata is None else source.metadata.problem
        cluster_id = None if source.meta is None else source.meta.cluster_id
        same = [other for other in known.values() if other.meta is not None and other.meta.cluster_id == cluster_id]
        together = _read_together([other.path for other in same]) if problem is not None and len(same) > 1 else None
        if together is not None and source.metadata is not None and together.end_offset > source.metadata.end_offset:
            problems = tuple(known_problem for known_problem in source.problems if known_problem is not problem)
            cluster = together if together.features else source.cluster
            changed = replace(source, metadata=together, cluster=cluster, problems=problems)
            opened[path] = opened[path]._replace(source=changed)
    return opened


def _read_together(log_dirs: Sequence[Path]) -> ClusterMetadata | None:
    """The metadata in the metadata logs of these directories together: as a directory with the batches and snapshots of
    all of them would have it."""
    tp = TopicPartition(names.CLUSTER_METADATA_TOPIC, 0)
    copies = [LogCopy(LogDir.open_read_only(path).log(tp).snapshot()) for path in log_dirs]
    with TemporaryDirectory(prefix="kafkafs-metadata-") as room:
        place = Path(room) / tp.dir_name
        place.mkdir()
        for path in chain.from_iterable(paths_in(path / tp.dir_name) for path in log_dirs):
            if names.parse_metadata_snapshot(path.name) is not None and not exists(place / path.name):
                with suppress(OSError):
                    shutil.copyfile(path, place / path.name)
        file, end = None, -1
        for part, run in choose_batches(copies, compacted=False).runs():
            data, _ = part.read(run)
            if int(part.base[run.first]) != end or file is None:  # a gap: end here, so that nothing is skipped
                file = place / names.segment_file(int(part.base[run.first]), FileKind.LOG)
            with file.open("ab") as output:
                output.writelines(parts_of(data))
            end = int(part.last[run.last - 1]) + 1
        return ClusterMetadataReader(Path(room)).refresh()


def _logs_of_kind(path: Path, kind: DirKind) -> Iterator[tuple[TopicPartition, Path]]:
    """The replicas in a log directory whose names end in `-stray` or `-future`."""
    for place in paths_in(path):
        name = names.parse_dir(place.name)
        if name.kind is kind and name.partition is not None and _logs_in(place):
            yield name.partition, place


def _metadata_logs(paths: Sequence[Path]) -> list[ReadableLog]:
    """The logs in these places with the events of remote segments, from all replicas: an event that was read before
    changes nothing."""
    logs: list[ReadableLog] = []
    for path in dict.fromkeys(place if is_marked(place) else place.parent for place in paths):
        with suppress(StorageError, OSError):
            logs += LogDir.open_read_only(path).remote_metadata_logs()
    return logs


def _logs_in(path: Path) -> list[int]:
    try:
        return live_offsets(path, FileKind.LOG)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _refuse_if_held(path: Path) -> None:
    holder = dir_lock.holder(path)
    if holder is not None:
        error = dir_lock.locked_error(path / dir_lock.NAME, holder)
        error.advice = "Stop that process first: what it writes meanwhile would be torn"
        raise error


def _open(path: Path) -> _Opened:
    _refuse_if_held(path)
    problems: list[StorageError] = []
    meta = _readable(meta_properties.read, path / names.META_PROPERTIES, problems)
    metadata = ClusterMetadataReader(path).refresh()
    if metadata is not None:
        if metadata.problem is not None:
            problems.append(metadata.problem)
        if not metadata.topics and not metadata.end_offset:
            metadata = None  # a directory without readable metadata
    cluster = metadata
    if cluster is None or not cluster.features:
        cluster = cluster_metadata.read_bootstrap(path) or ClusterMetadata()
    starts_path = path / names.LOG_START_CHECKPOINT
    starts = _readable(checkpoints.read, starts_path, problems) if exists(starts_path) else None
    points = _readable(checkpoints.read, path / names.RECOVERY_POINT_CHECKPOINT, problems) or {}
    reached = dict(_readable(checkpoints.read, path / names.REPLICATION_CHECKPOINT, problems) or {})
    for tp, point in points.items():
        reached[tp] = max(point, reached.get(tp, 0))
    clean = exists(path / names.CLEAN_SHUTDOWN)
    return _Opened(SourceDirectory(path, meta, metadata, cluster, clean, tuple(problems)), starts, points, reached)


def _readable(read: Callable[[Path], _T], path: Path, problems: list[StorageError]) -> _T | None:
    """The content of a small file; None, with the error added to `problems`, if it is corrupt."""
    try:
        return read(path)
    except CorruptCheckpoint as error:
        problems.append(error)
        return None


def _replica(
    tp: TopicPartition, path: Path, directory: _Opened, tier: Tier | None, metadata: RemoteMetadata
) -> Replica:
    source, starts, points, reached = directory
    problems: list[StorageError] = []
    topic_id = _readable(partition_metadata.read, path / names.PARTITION_METADATA, problems)
    overrides = _readable(topic_properties.read, path / names.TOPIC_PROPERTIES, problems)
    epochs_path = path / names.LEADER_EPOCH_CHECKPOINT
    epochs = _readable(leader_epochs.read, epochs_path, problems) if exists(epochs_path) else None
    point = points.get(tp, 0)
    start = None if starts is None else starts.get(tp)
    described = None if source.metadata is None else source.metadata.topics.get(tp.topic)
    if described is not None and described.topic_id != topic_id:
        described = None
    configs = {**({} if described is None else described.configs), **(overrides or {})}
    tiered = is_tiered(configs) or (None if described is None else False)

    def remote(first_offset: int) -> OffsetRange | None:
        return remote_offsets(first_offset, None if starts is None else start, epochs or LeaderEpochs(), lambda: tiered)

    log: ReadableLog = ReadOnlyLog(tp, path, lambda: start, lambda: point, remote)
    if is_stored(source.path):
        log = stored_log(tp, source.path)
    elif tier is not None and tp.topic not in names.KAFKAS_OWN_TOPICS:

        def events() -> Mapping[str, KnownSegment] | None:
            return None if topic_id is None else metadata.segments(topic_id, tp.partition)

        part = RemotePart(lambda _anew: tier.segments(tp.topic, tp.partition, topic_id), events, lambda: start)
        log = TieredLog(log, part)
    snapshot = log.snapshot()
    if starts is None and overrides is None:  # our own directories have no checkpoint unless something was removed
        start = _start_by_epochs(snapshot, epochs)
        snapshot = log.snapshot()
    batch = last_batch(snapshot)
    last = -1 if batch is None else int(batch.leader_epoch[0])
    if epochs is not None:
        known = epochs.truncate_from_end(snapshot.log_end_offset)
        last = max(last, -1 if known.latest_epoch is None else known.latest_epoch)
    return Replica(
        tp, path, source, snapshot, snapshot.log_start_offset, point, topic_id, epochs, last, overrides,
        reached.get(tp, 0), tuple(problems),
    )  # fmt: skip


def _start_by_epochs(snapshot: LogSnapshot, epochs: LeaderEpochs | None) -> int:
    """The log start offset if its checkpoint is lost: a broker moves the first leader epoch to it, so it is the first
    epoch's offset, unless the log begins with batches that are older than leader epochs."""
    if epochs is None or not epochs.entries or not snapshot.segments:
        return 0
    first = snapshot.segments[0]
    for window in scan_batches(snapshot, first, 0, 1):
        if window.table.rows and int(window.table.leader_epoch[0]) >= 0:
            return min(epochs.entries[0].start_offset, snapshot.log_end_offset)
    return 0
