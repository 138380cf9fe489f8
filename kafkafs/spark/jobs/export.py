"""Export of logs to Parquet, partitioned by topic and day: written by the workers, committed by the driver.

Each run continues in each partition where the last committed set ended, up to the end that the log had when the run
began (under read_committed: the last stable offset). A run consists of sets with a bounded number of tasks, each
committed separately (`commits`): whatever is killed, the next run repeats at most one set, and no message is exported
twice. `export_layout` has the names of the files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkafs.reading.split_reader import Split, read_split
from kafkafs.schemas.places import OWN_SCHEMAS, SchemaPlaces
from kafkafs.spark.jobs.commits import CommitList, ExportedRange, ExportFile, ExportForm, ExportSet, Position
from kafkafs.spark.jobs.export_layout import QUARANTINE
from kafkafs.spark.jobs.parquet_files import COMPRESSIONS, DayFiles
from kafkafs.spark.jobs.quarantine import BadBytes, merged, stage
from kafkafs.spark.jobs.tasks import run_tasks
from kafkafs.spark.tasks import LogRange, plan_by_size
from storage.errors import NotPermitted, OffsetOutOfRange, StorageError, UnknownTopicOrPartition
from storage.files.disk import RealDisk
from storage.files.opening import real_place
from storage.format.decoder import Decoder
from storage.log.counting import visible_end
from storage.log.log_dir import LogDir
from storage.log.places import check_destination
from storage.types import Isolation, OffsetRange, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkafs.arrow.typed_values import TypedForm
    from storage.files.disk_protocol import Disk
    from storage.format.block import BatchDamage, RecordBlock
    from storage.tier.tier import Tier

# The most bytes of a log's files for one task. If a worker dies its task is repeated; a task writes about one file.
_TASK_BYTES: Final = 256 << 20
_TASKS_PER_CORE_AND_SET: Final = 8


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How to export.

    `keep_damage`: batches that fail their checks go to the quarantine table and do not fail the export. `allow_loss`:
    the export also goes on without messages that retention removed before (the set records them), and without
    partitions that the cluster has and the directory lacks. `headers`: adds this column, as includeHeaders does in
    Spark's Kafka source. `decode`: values are typed columns (`typed_values`), by the schemas at `schemas` or in the log
    directory. `tier`: has remote segments. All files of a directory have the same columns and isolation level.
    """

    isolation: Isolation = Isolation.READ_UNCOMMITTED
    keep_damage: bool = False
    allow_loss: bool = False
    headers: bool = False
    decode: bool = False
    schemas: SchemaPlaces = OWN_SCHEMAS
    compression: str = "snappy"
    allow_uncompiled: bool = False
    tier: Tier | None = None
    task_bytes: int = _TASK_BYTES

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise ValueError(f"unknown compression {self.compression!r}; expected one of {', '.join(COMPRESSIONS)}")

    def form(self, value_schema: int | None) -> ExportForm:
        """The properties that all exports to a directory share."""
        return ExportForm(self.headers, self.isolation.value, value_schema)

    @property
    def columns(self) -> tuple[str, ...]:
        """The files' columns, in order: those of Spark's Kafka source, except the topic, which is a directory."""
        columns = ("key", "value", "partition", "offset", "timestamp", "timestampType")
        return (*columns, "headers") if self.headers else columns

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns to read for the files: headers may name the schemas of values."""
        return (*self.columns, "headers") if self.decode and not self.headers else self.columns


class LostMessages(NamedTuple):
    """Messages that were removed before they were exported."""

    tp: TopicPartition
    offsets: OffsetRange


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of a run, for all its sets together. `absent`: partitions that the cluster has and the directory
    lacks. `undated`: the number of messages whose timestamp microseconds cannot express, so that the column has null.
    `undecoded`: with `decode`, the number of values that are null because of an error. `seconds`: of the whole run."""

    sets: int
    files: int
    messages: int
    size_bytes: int
    quarantined: tuple[BadBytes, ...]
    lost: tuple[LostMessages, ...]
    absent: tuple[TopicPartition, ...]
    undated: Mapping[TopicPartition, int]
    undecoded: Mapping[TopicPartition, int]
    positions: dict[TopicPartition, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class ExportTask:
    """A worker's splits, and where it writes their files."""

    log_dir: Path
    staging: Path
    splits: tuple[Split, ...]
    options: ExportOptions
    disk: Disk
    typed: TypedForm | None = None


class Outcome(NamedTuple):
    """The files that a worker wrote, and its problems."""

    files: list[ExportFile]
    damage: list[BadBytes]
    lost: list[LostMessages]
    undated: Counter[TopicPartition]
    undecoded: Counter[TopicPartition]


class _Fresh(NamedTuple):
    """The part of a partition that is not exported yet. `lost`: messages before it that were removed."""

    log_range: LogRange
    topic_id: str | None
    lost: list[LostMessages]


def export(
    spark: SparkSession,
    log_dir: Path | str,
    directory: Path | str,
    partitions: Iterable[TopicPartition] | None = None,
    options: ExportOptions | None = None,
    *,
    absent: Iterable[TopicPartition] | None = None,
    disk: Disk | None = None,
) -> Exported:
    """Exports new messages of the partitions (None: all except those of internal topics) to Parquet below `directory`.
    `absent`: partitions that should be among them but are not here; None: LogDir.absent if all are exported.

    The driver and the workers must see both directories under the same paths; both use `disk`. StorageError: damage
    and lost messages that `options` do not allow, a topic that was created again since the last run, LogLocked while
    another export writes there; OSError, also of a worker.
    """
    began = time.monotonic()
    options = ExportOptions() if options is None else options
    source, target = real_place(Path(log_dir).absolute()), real_place(Path(directory).absolute())
    logs = LogDir.open_read_only(source, tier=options.tier)
    check_destination(target, source)
    chosen = list(_all_partitions(logs) if partitions is None else partitions)
    missing = _all_absent(logs) if absent is None and partitions is None else tuple(absent or ())
    if missing and not options.allow_loss:
        raise _absent(missing, source)
    disk = RealDisk() if disk is None else disk
    commits = CommitList(target, disk)
    try:
        typed = _typed(source, target, chosen, commits.form, options) if options.decode else None
        form = options.form(None if typed is None else typed.schema_id)
        if commits.form not in (None, form):
            raise _other_form(commits.form, form, target)
        fresh = _fresh(logs, chosen, commits.positions, options)
        sets: list[ExportSet] = []
        wrote: list[Outcome] = []
        cores = int(spark.sparkContext.defaultParallelism)
        tasks = plan_by_size((part.log_range for part in fresh.values()), cores, options.task_bytes)
        for first in range(0, len(tasks), cores * _TASKS_PER_CORE_AND_SET):
            staging = commits.begin()
            some = tasks[first : first + cores * _TASKS_PER_CORE_AND_SET]
            outcomes = run_tasks(
                spark,
                export_splits,
                [ExportTask(source, staging, splits, options, disk, typed) for splits in some],
                f"export {source.name} to {target.name}",
                allow_uncompiled=options.allow_uncompiled,
            )
            sets.append(_commit(commits, staging, some, outcomes, fresh, options, form))
            wrote += outcomes
        return _exported(sets, wrote, commits.positions, missing, time.monotonic() - began)
    finally:
        commits.close()


def export_splits(task: ExportTask) -> Outcome:
    """Writes the files of some splits to the staging directory, in a worker. StorageError; OSError."""
    outcome = Outcome([], [], [], Counter(), Counter())
    logs = LogDir.open_read_only(task.log_dir, tier=task.options.tier)
    decoder = Decoder()
    options = task.options
    transform = None
    if task.typed is not None:
        from kafkafs.arrow.typed_values import TypedValues

        transform = TypedValues(task.typed, keep_headers=options.headers)
    for split in task.splits:
        undecoded_before = 0 if transform is None else transform.undecoded
        noted = _SplitProblems(split, options)
        files = DayFiles(
            task.disk, task.staging, split.tp, options.read_columns, options.compression, transform=transform
        )
        blocks = read_split(
            logs, split, decoder, on_loss=noted.loss, on_damage=noted.damage, isolation=options.isolation
        )
        try:
            for block in blocks:
                noted.passed(block)
                files.add(block)
            outcome.files.extend(files.close())
        except BaseException:
            files.abandon()
            raise
        outcome.damage.extend(noted.bad)
        outcome.lost.extend(noted.lost)
        outcome.undated[split.tp] += files.beyond
        if transform is not None:
            outcome.undecoded[split.tp] += transform.undecoded - undecoded_before
    return outcome


def _typed(
    source: Path, target: Path, chosen: Sequence[TopicPartition], before: ExportForm | None, options: ExportOptions
) -> TypedForm:
    """The schema for reading values: that of the existing files, otherwise the newest."""
    from kafkafs.arrow.typed_values import typed_form

    if before is not None and before.value_schema is None:
        raise _other_form(before, "values decoded", target)
    return typed_form((source,), options.schemas, chosen, None if before is None else before.value_schema)


class _SplitProblems:
    """The damage and lost messages in a split, if the options allow them."""

    def __init__(self, split: Split, options: ExportOptions) -> None:
        self._split = split
        self._options = options
        self._next_offset = split.start_offset
        self._open = 0  # index in `bad`: the next message limits the last offset of these
        self.bad: list[BadBytes] = []
        self.lost: list[LostMessages] = []

    def passed(self, block: RecordBlock) -> None:
        """Called after a block's records were read."""
        last = int(block.offset[0]) - 1
        self.bad[self._open :] = [replace(bad, last_offset=last) for bad in self.bad[self._open :]]
        self._open = len(self.bad)
        self._next_offset = int(block.offset[-1]) + 1

    def loss(self, tp: TopicPartition, offsets: OffsetRange, why: str) -> None:
        if not self._options.allow_loss:
            raise _lost(tp, offsets, why)
        self.lost.append(LostMessages(tp, offsets))

    def damage(self, tp: TopicPartition, damage: BatchDamage) -> None:
        if not self._options.keep_damage:
            raise damage.error
        last = self._split.end_offset - 1
        path, what = str(damage.error.path), str(damage.error)
        self.bad.append(BadBytes(tp, path, damage.position, damage.end, self._next_offset, last, what))


def _fresh(
    logs: LogDir, chosen: Iterable[TopicPartition], positions: dict[TopicPartition, Position], options: ExportOptions
) -> dict[TopicPartition, _Fresh]:
    """The part of each partition that is not exported yet; partitions without new messages are left out."""
    found: dict[TopicPartition, _Fresh] = {}
    for tp in sorted(chosen):
        snapshot = logs.log(tp).snapshot()
        topic_id = logs.topic_info(tp.topic).topic_id
        before = positions.get(tp)
        start = snapshot.whole_start_offset if before is None else before.next_offset
        end = visible_end(snapshot, options.isolation)
        lost: list[LostMessages] = []
        if before is not None and before.topic_id != topic_id and None not in (before.topic_id, topic_id):
            raise StorageError(
                f"topic {tp.topic} was deleted and created again after it was exported",
                path=logs.path / tp.dir_name,
                expected=f"topic id {before.topic_id}",
                found=topic_id,
                advice="Export it to another directory",
            )
        if start > snapshot.log_end_offset:
            raise OffsetOutOfRange(
                f"the log of {tp} ends before the last exported message",
                path=logs.path / tp.dir_name,
                offset=start,
                expected=f"at most {snapshot.log_end_offset}",
                advice="It was truncated or replaced: export it to another directory",
            )
        if start < snapshot.log_start_offset:
            gone = OffsetRange(start, snapshot.log_start_offset)
            if not options.allow_loss:
                raise _lost(tp, gone, snapshot.why_not_earlier)
            lost.append(LostMessages(tp, gone))
            start = gone.end
        if start < end:
            found[tp] = _Fresh(LogRange(snapshot, start, end), topic_id, lost)
    return found


def _commit(
    commits: CommitList,
    staging: Path,
    tasks: Sequence[tuple[Split, ...]],
    outcomes: Sequence[Outcome],
    fresh: dict[TopicPartition, _Fresh],
    options: ExportOptions,
    form: ExportForm,
) -> ExportSet:
    """Commits a set: the files of its tasks, and the quarantine table of their damage."""
    files = [file for outcome in outcomes for file in outcome.files]
    damage = [bad for outcome in outcomes for bad in outcome.damage]
    lost = [lost for outcome in outcomes for lost in outcome.lost]
    files += stage(commits.disk, staging, damage, options.compression)
    covered: dict[TopicPartition, OffsetRange] = {}
    for split in (split for splits in tasks for split in splits):
        before = covered.get(split.tp)
        covered[split.tp] = OffsetRange(before.start if before else split.start_offset, split.end_offset)
    ranges = []
    for tp, offsets in covered.items():
        part = fresh[tp]
        if part.lost and offsets.start == part.log_range.start_offset:
            lost += part.lost
        gone = tuple(loss.offsets for loss in lost if loss.tp == tp)
        ranges.append(ExportedRange(tp, offsets.start, offsets.end, part.topic_id, gone))
    return commits.commit(files, ranges, form)


def _exported(
    sets: Sequence[ExportSet],
    outcomes: Sequence[Outcome],
    positions: Mapping[TopicPartition, Position],
    absent: tuple[TopicPartition, ...],
    seconds: float,
) -> Exported:
    """The sums over all sets of a run."""
    data = [file for done in sets for file in done.files if not file.path.startswith(QUARANTINE)]
    return Exported(
        sets=len(sets),
        files=len(data),
        messages=sum(file.rows for file in data),
        size_bytes=sum(file.size_bytes for file in data),
        quarantined=tuple(merged(bad for outcome in outcomes for bad in outcome.damage)),
        lost=tuple(LostMessages(part.tp, gone) for done in sets for part in done.ranges for gone in part.lost),
        absent=absent,
        undated=dict(sum((outcome.undated for outcome in outcomes), Counter())),
        undecoded=dict(sum((outcome.undecoded for outcome in outcomes), Counter())),
        positions={tp: position.next_offset for tp, position in positions.items()},
        seconds=seconds,
    )


def _lost(tp: TopicPartition, offsets: OffsetRange, why: str) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"messages of {tp} were removed before they were exported",
        offset=offsets.start,
        found=f"offsets {offsets.start} to {offsets.end - 1} missing: {why}",
        advice="Allow data loss to export the rest",
    )


def _other_form(expected_form: ExportForm | None, requested_form: ExportForm | str, path: Path) -> NotPermitted:
    """The error for a mixture of forms: readers take a table's columns from any of its files, so they would read
    headers only by chance."""
    return NotPermitted(
        "the earlier exports to this directory have another form",
        path=path,
        expected=expected_form,
        found=requested_form,
        advice="Export in the same form, or to another directory",
    )


def _absent(missing: Sequence[TopicPartition], path: Path) -> UnknownTopicOrPartition:
    are = "is" if len(missing) == 1 else "are"
    return UnknownTopicOrPartition(
        f"{', '.join(map(str, missing))} {are} known to the cluster and not in this directory",
        path=path,
        advice="Each log directory can be exported to the same place; allow data loss to go on without them",
    )


def _all_absent(logs: LogDir) -> tuple[TopicPartition, ...]:
    return tuple(tp for tp in logs.absent() if not tp.topic.startswith("__"))


def _all_partitions(logs: LogDir) -> Iterator[TopicPartition]:
    """All partitions except those of internal topics."""
    for topic in logs.topics():
        if not topic.startswith("__"):
            yield from (TopicPartition(topic, partition) for partition in logs.partitions(topic))
