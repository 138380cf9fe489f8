"""Builds a log directory from which an unmodified Kafka broker of one node can start, out of the remains of others.

The steps, and the state that a crash after each leaves:

1. plan: read the sources, choose replicas, find the cuts           → nothing
2. take `<DEST>.reviving` next to DEST, and empty it                → an empty directory with a lock file, not locked
3. build the partitions in it, one after the other (building.py)    → some partitions; no broker accepts the directory
4. write the directory's own files, `meta.properties` last          → a complete directory under another name
5. rename it to DEST, and sync the directory above                  → DEST, complete

DEST does not exist, or is empty, until step 5. A later run empties `<DEST>.reviving` in step 2, and begins anew.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from storage.clock import Clock, SystemClock
from storage.coordinators.transactions import TransactionalIds, recorded_ids
from storage.errors import CorruptBatch, CorruptData, StorageError, UnknownTopicOrPartition
from storage.files import dir_lock, names, partition_metadata
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from storage.files.disk_protocol import Disk
from storage.files.listing import paths_in
from storage.files.metadata_replay import ClusterMetadata
from storage.files.opening import real_place
from storage.files.producer_state import ProducerEntry
from storage.format.control_records import ControlType
from storage.log.batch_choice import (
    BatchChoice,
    check_tail,
    choose_batches,
    contradict,
    has_what_is_missing,
    is_one_log,
)
from storage.log.log_dir import LogDir
from storage.log.places import check_destination
from storage.progress import NoProgress, Progress, working
from storage.revival import new_cluster, sources, topics
from storage.revival.building import Building, BuildPlan, Built, check, damaged
from storage.revival.carried_metadata import carried, carried_notes, shortened_list
from storage.revival.coordinators_topics import COORDINATORS_TOPICS, Coordinated, read_coordinators
from storage.revival.features import METADATA_VERSION, features
from storage.revival.log_cut import LogCut, cut_at_offset, cut_at_time
from storage.revival.new_cluster import NewCluster, Node
from storage.revival.replica_choice import Choice, choose
from storage.revival.sources import FoundReplicas, Replica, SourceDirectory
from storage.revival.topics import ConfigRequest, TopicPlan
from storage.tier.tier import Tier
from storage.types import MAX_OFFSET, TopicPartition

UNFINISHED_SUFFIX = ".reviving"
_SHOWN = 20  # ranges of offsets of a partition, in notes


@dataclass(frozen=True, slots=True)
class Request:
    """The sources of a revival, and its options. `until_ms`: each partition ends with the last batch that holds a
    message at or before this time; `offsets`: these partitions end with the batch that holds the offset before.
    `partition_counts`: of topics whose number of partitions cannot be determined. `release`: see features. `tier`:
    where remote segments are. `host`, `port`: where the broker will listen."""

    sources: Sequence[Path]
    target: Path
    wanted: Callable[[TopicPartition], bool] = lambda _tp: True
    until_ms: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    config: ConfigRequest = field(default_factory=ConfigRequest)
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    without_transactions: bool = False
    without_security: bool = False
    release: str | None = None
    link: bool = False
    salvage: bool = False
    tier: Tier | None = None
    host: str = "localhost"
    port: int = 9092


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A partition: its replica, the others, and where it is cut. `chosen`: the batches of all replicas, if the replica
    is not taken unchanged."""

    tp: TopicPartition
    choice: Choice
    cut: LogCut
    topic: TopicPlan
    chosen: BatchChoice | None = None

    @property
    def replica(self) -> Replica:
        return self.choice.replica

    @property
    def is_cut(self) -> bool:
        return self.cut.end_offset < self.replica.log_end_offset

    @property
    def end_offset(self) -> int:
        """The offset where the new log ends, before markers are appended to it."""
        return self.cut.end_offset if self.chosen is None else self.chosen.log_end_offset


@dataclass(slots=True)
class Revival:
    """The result, or for a plan the expected result. `cluster`: what the new cluster gets besides topics; it may get
    more features once the data have been read. `known_features`: the old cluster's, empty if unknown.
    `old_transactions`: the sources' coordinators' state, if the new cluster does not get it. `built` is empty for a
    plan alone. `notes`: for people, one sentence or two each. `began_anew`: an earlier run had not finished.
    """

    node: Node
    cluster: ClusterMetadata
    topics: list[TopicPlan]
    partitions: list[PlannedPartition]
    known_features: Mapping[str, int] = field(default_factory=dict)
    old_transactions: TransactionalIds = field(default_factory=lambda: TransactionalIds({}, complete=False))
    built: dict[TopicPartition, Built] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    began_anew: bool = False


def plan(request: Request) -> Revival:
    """Plan a revival (step 1). BadDestination, NotALogDir, LogLocked, InvalidTopic, InvalidConfig,
    UnknownTopicOrPartition; StorageError at damage; OSError."""
    known = sources.find(request.sources, request.tier)
    check_destination(request.target, *request.sources)
    _check_target(request.target)
    chosen = [replica for replica in known.replicas if _is_wanted(request, replica.tp)]
    if not chosen:
        advice = "Check the names of the topics and directories"
        if about_strays := _about_strays(known, request):
            advice += f". {about_strays}"
        raise UnknownTopicOrPartition("no partition of the sources is wanted", advice=advice)
    planned = topics.plan_topics(known, chosen, request.config, request.partition_counts)
    node, cluster = _node(known, request), _cluster(known)
    kept = carried(cluster, node.node_id, without_security=request.without_security)
    kept = replace(kept, features=features(cluster.features, (), request.release))
    revival = Revival(node, kept, planned, [], cluster.features)
    if request.without_transactions:
        states = choose([replica for replica in known.replicas if replica.tp.topic == names.TRANSACTION_STATE_TOPIC])
        revival.old_transactions = recorded_ids(choice.replica.snapshot for choice in states.values())
    for topic in planned:
        for number, choice in sorted(topic.choices.items()):
            tp = TopicPartition(topic.name, number)
            choice, cut = _first_cut(request, tp, choice)
            revival.partitions.append(PlannedPartition(tp, choice, cut, topic))
    for tp in request.offsets:
        if tp not in {partition.tp for partition in revival.partitions}:
            raise UnknownTopicOrPartition(f"an offset is given for {tp}, which is not among the partitions to revive")
    revival.notes += _notes_of_sources(known, revival, request)
    revival.notes += carried_notes(cluster, kept)
    return revival


def rehearse(request: Request) -> Revival:
    """Plan a revival, and check the logs: raises the errors that `run` would raise. Nothing is changed."""
    revival = plan(request)
    errors: list[StorageError] = []
    for number, partition in enumerate(revival.partitions):
        try:
            revival.partitions[number] = _tried(partition, request, request.target, _look)
        except StorageError as error:
            errors.append(error)
    _raise_together(errors)
    revival.notes += _notes_of_partitions(revival)
    return revival


def _look(plan: BuildPlan) -> None:
    if plan.chosen is None:
        check(plan)


def run(
    request: Request, *, disk: Disk | None = None, clock: Clock | None = None, progress: Progress | None = None
) -> Revival:
    """Run all steps. The errors of `plan`; CorruptBatch, which names all damaged replicas, if some are (unless
    `salvage`); LogLocked if another process revives to the same place. After an error nothing is left."""
    disk = RealDisk() if disk is None else disk
    clock = SystemClock() if clock is None else clock
    progress = NoProgress() if progress is None else progress
    revival = plan(request)
    target = real_place(request.target.absolute())
    place = target.with_name(target.name + UNFINISHED_SUFFIX)
    with _taken(disk, place) as lock:
        revival.began_anew = _emptied(disk, place)
        _check_space(revival, request, place)
        building = Building(disk, clock, progress)
        _build_all(revival, request, building, place)
        revival.notes += _notes_of_partitions(revival)
        known = read_coordinators(LogDir.open_read_only(place))
        needed = features(revival.known_features, known.features, request.release)
        revival.cluster = replace(revival.cluster, features=needed)
        revival.notes += _notes_of_result(revival, known, request)
        cluster = NewCluster(
            revival.node,
            revival.cluster,
            revival.topics,
            revival.built,
            _leader_epochs(revival, known),
            _greatest_producer_id(revival, known),
        )
        new_cluster.write(disk, place, cluster, target, clock.now_ms())
        disk.sync_dir(place)
        disk.rename(place, target)
        disk.sync_dir(target.parent)
        disk.unlink(target / dir_lock.NAME)
        lock.release()
    return revival


# Step 1


def _check_target(target: Path) -> None:
    """FileExistsError unless the new directory is missing or empty; OSError if no directory can be renamed to it."""
    if not target.parent.exists():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(target.parent))
    if target.is_mount():
        raise OSError(errno.EBUSY, "is a mount point: name a directory in it", str(target))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(errno.EEXIST, "exists and is not empty", str(target))


def _is_wanted(request: Request, tp: TopicPartition) -> bool:
    if tp.topic == names.TRANSACTION_STATE_TOPIC and request.without_transactions:
        return False
    return request.wanted(tp)


def _node(found: FoundReplicas, request: Request) -> Node:
    metas = [source.meta for source in found.sources if source.meta is not None]
    cluster_id = next((meta.cluster_id for meta in metas if meta.cluster_id), None) or partition_metadata.random_id()
    node_id = next((meta.node_id for meta in metas if meta.node_id is not None and meta.node_id >= 0), 1)
    return Node(cluster_id, node_id, partition_metadata.random_id(), request.host, request.port)


def _cluster(known: FoundReplicas) -> ClusterMetadata:
    """The cluster's metadata from the source that knows most."""

    def rank(source: SourceDirectory) -> tuple[int, int]:
        return source.cluster.end_offset, source.cluster.features.get(METADATA_VERSION, -1)

    return max(known.sources, key=rank).cluster


def _cut(request: Request, tp: TopicPartition, replica: Replica) -> LogCut:
    snapshot = replica.snapshot
    cut = LogCut(replica.log_end_offset)
    try:
        if request.until_ms is not None:
            cut = cut_at_time(snapshot, request.until_ms)
        if tp in request.offsets:
            at_offset = cut_at_offset(snapshot, request.offsets[tp])
            cut = min(cut, at_offset, key=lambda each: each.end_offset)
    except CorruptData as error:
        error.advice = "Where to cut is not certain in a damaged log: `kafkafs salvage` it first, and revive the copy"
        raise
    return cut


def _first_cut(request: Request, tp: TopicPartition, choice: Choice) -> tuple[Choice, LogCut]:
    """The first replica that is not damaged at its cut, and the cut."""
    for replica in choice.others:
        try:
            return choice, _cut(request, tp, choice.replica)
        except CorruptData:
            choice = choice.taking(replica)
    return choice, _cut(request, tp, choice.replica)


def _notes_of_sources(known: FoundReplicas, revival: Revival, request: Request) -> Iterator[str]:
    clusters = {source.meta.cluster_id for source in known.sources if source.meta is not None}
    if len(clusters) > 1:
        yield f"the sources belong to {len(clusters)} clusters; the new one has the id {revival.node.cluster_id}"
    for source in known.sources:
        for problem in source.problems:
            yield f"not used: {problem}"
    if about_strays := _about_strays(known, request):
        yield about_strays
    for topic in revival.topics:
        yield from _notes_of_topic(topic)
    if request.link:
        yield "linked segments share their bytes with the sources and were not read: `kafkafs verify` checks them"
    revived = {topic.name for topic in revival.topics}
    absent = {
        name for origin in known.sources if origin.metadata is not None for name in origin.metadata.topics
    } - revived
    absent = {name for name in absent if _is_wanted(request, TopicPartition(name, 0))}
    if absent:
        listed = shortened_list(sorted(absent))
        yield f"{len(absent)} topics of the cluster have no partition in the sources, and are left out: {listed}"


def _about_strays(known: FoundReplicas, request: Request) -> str | None:
    """A sentence that names the wanted partitions' directories that are left out because a broker has set them aside;
    None if there are none."""
    paths = [path for tp, path in known.strays if _is_wanted(request, tp)]
    if not paths:
        return None
    return (
        f"{len(paths)} directories that a broker has set aside are left out, such as {paths[0]}: "
        f"to take them, name them too ({paths[0].parent}/*-stray)"
    )


def _notes_of_partitions(revival: Revival) -> Iterator[str]:
    """Notes about the replicas that were chosen."""
    for partition in revival.partitions:
        replica = partition.replica
        if partition.choice.passed_over is not None:
            passed = partition.choice.passed_over.path
            yield f"{partition.tp}: {passed} is damaged; {replica.path} can be read further, and is taken"
        if partition.chosen is not None:
            yield from _notes_of_chosen(partition.tp, partition.chosen)
            if partition.topic.may_be_compacted and any(loss.may_be_compacted for loss in partition.chosen.lost):
                yield (
                    f"{partition.tp}: its cleanup.policy is not known; if the topic was compacted, offsets that no "
                    f"batch holds are not lost: --config {partition.tp.topic}:cleanup.policy=compact says so"
                )
        if replica.snapshot.remote_note is not None:
            yield f"{replica.snapshot.remote_note}: the new one does not have them"
        remote = [segment for segment in replica.snapshot.segments if segment.is_remote]
        if remote:
            size = sum(segment.size for segment in remote)
            yield f"{partition.tp}: {len(remote)} segments with {size} bytes are from {remote[0].remote_kind}"
        for problem in replica.problems:
            yield f"not used: {problem}"
        torn = replica.snapshot.active_size - replica.snapshot.active_end
        if torn:
            yield f"{partition.tp}: {torn} bytes at the end of the log are no whole batches, and are left out"
        for beyond in partition.choice.beyond[:_SHOWN]:
            first, last = beyond.offsets.start, beyond.offsets.end - 1
            yield f"{partition.tp}: offsets {first} to {last} of {beyond.path} are left out: {beyond.reason}"
        if len(partition.choice.beyond) > _SHOWN:
            yield f"{partition.tp}: {len(partition.choice.beyond) - _SHOWN} more ranges of offsets are left out"
        if partition.is_cut:
            more = "; its last batch also holds later messages" if partition.cut.straddles else ""
            yield f"{partition.tp}: cut at offset {partition.cut.end_offset} of {replica.log_end_offset}{more}"
            if partition.topic.config.compact and partition.tp.topic not in COORDINATORS_TOPICS:
                yield f"{partition.tp}: messages that compaction has removed since then are not in it"


def _notes_of_chosen(tp: TopicPartition, chosen: BatchChoice) -> Iterator[str]:
    lost = [loss for loss in chosen.lost if loss.first_offset is not None]
    if chosen.damage is not None:
        yield f"{tp}: was damaged, and what is intact was copied; {len(lost)} ranges of offsets are lost"
    for loss in lost[:_SHOWN]:
        to = "on" if loss.last_offset is None else f"to {loss.last_offset}"
        yield f"{tp}: offsets {loss.first_offset} {to} are lost: {loss.reason}"
    for filled in chosen.filled[:_SHOWN]:
        first, last = filled.offsets.start, filled.offsets.end - 1
        yield f"{tp}: offsets {first} to {last} are from {filled.directory}"


def _notes_of_topic(topic: TopicPlan) -> Iterator[str]:
    if "retention.ms" in topic.assumed:
        yield f"{topic.name}: its retention is not known; it keeps everything (retention.ms=-1)"
    if topic.left_out:
        yield f"{topic.name}: left out of its configuration: {', '.join(topic.left_out)}"
    if topic.missing:
        yield (
            f"{topic.name}: {len(topic.missing)} of its {topic.partition_count} partitions are not in the sources, and "
            f"will be empty: {shortened_list(topic.missing)}"
        )
    for replica in topic.ignored:
        why = replica.topic_id or "no topic id; it holds other messages at the same offsets"
        yield f"{topic.name}: {replica.path} belongs to another topic of that name ({why}), and is ignored"


# Steps 2 and 3


@contextmanager
def _taken(disk: Disk, place: Path) -> Iterator[DirLock]:
    if not place.exists():
        disk.mkdir(place)
    lock = DirLock(disk, place)
    try:
        yield lock
    except (StorageError, OSError):
        with suppress(OSError):
            _emptied(disk, place)
            lock.release()
            disk.rmdir(place)
        raise
    finally:
        lock.release()


def _emptied(disk: Disk, place: Path) -> bool:
    """Remove everything in the unfinished directory but its lock; return whether there was anything."""
    left = [path for path in paths_in(place) if path.name != dir_lock.NAME]
    # meta.properties first, so that the directory looks unfinished from here on.
    for path in sorted(left, key=lambda path: path.name != names.META_PROPERTIES):
        if path.is_dir():
            for inner in paths_in(path):
                disk.unlink(inner)
            disk.rmdir(path)
        else:
            disk.unlink(path)
    return bool(left)


def _check_space(revival: Revival, request: Request, place: Path) -> None:
    """OSError (ENOSPC) if the copies cannot fit."""
    needed = 0
    for partition in revival.partitions:
        segments = partition.replica.snapshot.segments
        copied = segments[-1:] if request.link else segments
        needed += sum(segment.size for segment in copied if segment.base_offset < partition.cut.end_offset)
    free = os.statvfs(place)
    if needed > free.f_bavail * free.f_frsize:
        what = f"not enough space: {needed} bytes are copied, {free.f_bavail * free.f_frsize} are free"
        raise OSError(errno.ENOSPC, what, str(place))


def _build_all(revival: Revival, request: Request, building: Building, place: Path) -> None:
    """Build all partitions. All damaged replicas are collected before the first error is raised."""
    errors: list[StorageError] = []

    def ending(tp: TopicPartition, producer: ProducerEntry) -> ControlType | None:
        if not request.without_transactions:
            return None
        return ControlType.COMMIT if revival.old_transactions.has_committed(tp, producer) else ControlType.ABORT

    def build(plan: BuildPlan) -> None:
        revival.built[plan.replica.tp] = building.build(plan, ending)

    total = sum(partition.replica.snapshot.size_bytes for partition in revival.partitions)
    with working(building.progress, "revive", total):
        for number, partition in enumerate(revival.partitions):
            try:
                revival.partitions[number] = _tried(partition, request, place, build)
            except StorageError as error:
                errors.append(error)
    _raise_together(errors)


def _tried(
    partition: PlannedPartition, request: Request, place: Path, attempt: Callable[[BuildPlan], None]
) -> PlannedPartition:
    """Attempt to build a partition from its replica unchanged, or else from the batches of all replicas. Return it as
    it was built. StorageError if the chosen replica is damaged, and is not to be salvaged."""
    to, topic = place / partition.tp.dir_name, partition.topic
    error: StorageError | None = None
    if _is_one_log(partition):
        try:
            if request.link and partition.choice.others:
                check(_build_plan(partition, to))  # linked segments would not be read
            attempt(_build_plan(partition, to, link=request.link))
            return partition
        except StorageError as refused:
            error = refused
    replicas = partition.choice.all
    chosen = choose_batches(
        [replica.copy for replica in replicas],
        compacted=topic.config.compact,
        end_offset=partition.cut.end_offset if partition.is_cut else MAX_OFFSET,
    )
    choice = partition.choice.taking(replicas[chosen.first], chosen.beyond)
    again = replace(partition, choice=choice, cut=_cut(request, partition.tp, choice.replica))
    if chosen.is_first_alone and (error is None or choice.replica is not partition.replica):
        with suppress(StorageError):
            attempt(_build_plan(again, to, link=request.link))
            return again
    damage = chosen.damage
    if damage is not None and not request.salvage:
        raise error or damaged(choice.replica, damage.path, damage.position, partition.cut.end_offset, damage.reason)
    again = replace(again, chosen=chosen)
    attempt(_build_plan(again, to))
    return again


def _is_one_log(partition: PlannedPartition) -> bool:
    """Whether the ends of the segments of all replicas agree, so that nothing has to be decided."""
    snapshot = partition.replica.snapshot
    try:
        for replica in partition.choice.all:
            check_tail(replica.snapshot)
    except CorruptBatch:
        return False
    if not all(is_one_log(replica.copy, compacted=partition.topic.config.compact) for replica in partition.choice.all):
        return False
    others = [other.snapshot for other in partition.choice.others]
    return not any(contradict(snapshot, other) or has_what_is_missing(snapshot, other) for other in others)


def _build_plan(partition: PlannedPartition, to: Path, *, link: bool = False) -> BuildPlan:
    return BuildPlan(
        partition.replica, to, partition.topic.config, partition.topic.topic_id, partition.cut, link, partition.chosen
    )


def _raise_together(errors: list[StorageError]) -> None:
    if errors:
        first = errors[0]
        if len(errors) > 1:
            others = ", ".join(str(error.path) for error in errors[1:])
            first.what += f" ({len(errors) - 1} more are damaged: {others})"
        raise first


# Step 4


def _leader_epochs(revival: Revival, known: Coordinated) -> dict[TopicPartition, int]:
    """The highest leader epoch of each partition that a log, the metadata or a consumer knows."""
    epochs = {tp: built.last_epoch for tp, built in revival.built.items()}
    for topic in revival.topics:
        for number, epoch in topic.leader_epochs.items():
            tp = TopicPartition(topic.name, number)
            epochs[tp] = max(epochs.get(tp, -1), epoch)
    for commit in known.commits:
        epochs[commit.tp] = max(epochs.get(commit.tp, -1), commit.committed.leader_epoch)
    return epochs


def _greatest_producer_id(revival: Revival, known: Coordinated) -> int:
    ids = [known.greatest_producer_id]
    for partition in revival.partitions:
        ids.append(revival.built[partition.tp].greatest_producer_id)
        ids.append(partition.replica.source.cluster.next_producer_id - 1)
    return max(ids)


def _notes_of_result(revival: Revival, known: Coordinated, request: Request) -> Iterator[str]:
    for problem in known.problems:
        yield f"not used: {problem}"
    if not revival.known_features and request.release is None:
        levels = ", ".join(f"{name} {level}" for name, level in revival.cluster.features.items())
        yield (
            f"no source tells the cluster's features, ACLs, credentials, quotas and broker configurations: {levels}, "
            "as the data need; --release takes those of a release, and so does kafka-features.sh upgrade later"
        )
    for built in revival.built.values():
        if built.aborted:
            yield f"{built.tp}: {len(built.aborted)} open transactions were aborted"
        if built.committed:
            yield f"{built.tp}: {len(built.committed)} open transactions were committed, as their producers were told"
        left = [
            producer
            for producer in built.open_transactions
            if producer not in (*built.aborted, *built.committed)
            and not known.transactions.will_end(built.tp, producer)
        ]
        if left:
            first = min(producer.current_txn_first_offset for producer in left)
            yield (
                f"{built.tp}: {len(left)} open transactions that no coordinator will end keep consumers of committed "
                f"messages at offset {first}: --without-transactions aborts them"
            )
    epochs: dict[int, int] = {}
    for producer in chain.from_iterable(built.producers for built in revival.built.values()):
        epochs[producer.producer_id] = max(producer.epoch, epochs.get(producer.producer_id, -1))
    behind = [
        name
        for name, state in sorted(known.transactions.by_id.items())
        if epochs.get(state.producer_id, -1) > state.producer_epoch
    ]
    if behind:
        yield (
            f"{len(behind)} transactional ids are in {names.TRANSACTION_STATE_TOPIC} as they were before their latest "
            "messages, so that their producers may wait for ever when they begin again; --without-transactions leaves "
            f"that topic out: {shortened_list(behind)}"
        )
    if request.link:
        sealed = sum(
            segment.size for planned in revival.partitions for segment in planned.replica.snapshot.segments[:-1]
        )
        if sealed and not any(built.linked_bytes for built in revival.built.values()):
            yield "nothing could be linked (another file system, or another user's files): everything was copied"
    beyond = [
        f"{commit.group} at {commit.committed.offset} in {commit.tp} "
        f"(ends at {revival.built[commit.tp].log_end_offset})"
        for commit in known.commits
        if commit.tp in revival.built and commit.committed.offset > revival.built[commit.tp].log_end_offset
    ]
    if beyond:
        yield (
            f"{len(beyond)} offsets that groups committed lie beyond the end of a partition, where auto.offset.reset "
            f"decides; `kafkafs groups --reset-to` sets others: {shortened_list(beyond)}"
        )
