"""Which offsets of which logs a query reads: its options applied to the logs as they are now.

Source: KafkaOffsetReaderAdmin. Times are looked up as ListOffsets does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkafs.arrow.log_dirs import InvalidOption, LogDirs
from kafkafs.arrow.split_reader import Split
from kafkafs.spark.options import (
    EARLIEST,
    LATEST,
    Bound,
    Partitions,
    SourceOptions,
    TopicPattern,
)
from storage.files import names
from storage.log.counting import visible_end
from storage.log.offset_lookup import offset_for_timestamp
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.log.segment import Segment


# Dividing logs into tasks: which offsets each task reads. Reads no files except offset indexes.
#
# Tasks have equal sizes in file bytes, and each is a list of splits in log order. A log is divided after a batch that
# its offset index names. A wrong index makes tasks unequal, never wrong: a log may be divided at any offset.

# A task costs Spark about 27 ms, most of the time of a task of a few MiB; several per core even out slower ones.
TASKS_PER_CORE: Final = 4
LEAST_TASK_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class LogRange:
    """Offsets of a log from `start_offset` (included) to `end_offset` (excluded), both within the snapshot."""

    snapshot: LogSnapshot
    start_offset: int
    end_offset: int


class _Piece(NamedTuple):
    """The part of a range in one segment, with file positions as precise as the index."""

    segment: Segment
    log_end: int  # position
    start_offset: int
    end_offset: int
    start_position: int
    end_position: int


def plan(
    ranges: Iterable[LogRange],
    cores: int,
    *,
    least_tasks: int | None = None,
    most_records: int | None = None,
    separate: bool = False,
) -> list[tuple[Split, ...]]:
    """Tasks that together read the ranges, each a list of splits that are not empty; in the order of `ranges`.

    About four tasks for each of the `cores`, fewer if there is little to read. `least_tasks`: at least this many, if
    there are as many offsets; `most_records`: no task has more offsets. `separate`: no task reads several
    logs, unless there are more logs than cores.
    """
    logs = [
        (log_range, list(_pieces(log_range))) for log_range in ranges if log_range.start_offset < log_range.end_offset
    ]
    total_bytes = sum(piece.end_position - piece.start_position for _, pieces in logs for piece in pieces)
    tasks = max(min(cores * TASKS_PER_CORE, -(-total_bytes // LEAST_TASK_BYTES)), least_tasks or 1)
    limits = [] if most_records is None else [most_records]
    if least_tasks is not None:
        offsets = sum(log_range.end_offset - log_range.start_offset for log_range, _ in logs)
        limits.append(max(offsets // least_tasks, 1))
    packer = _Packer(max(-(-total_bytes // tasks), 1), min(limits, default=None))
    for log_range, pieces in logs:
        packer.add(log_range.snapshot, pieces)
        if separate and len(logs) <= cores:
            packer.close()
    return packer.done()


def plan_by_size(ranges: Iterable[LogRange], cores: int, task_bytes: int) -> list[tuple[Split, ...]]:
    """`plan` with enough tasks that one reads about `task_bytes` of the log's files, or less."""
    ranges = list(ranges)
    tasks = plan(ranges, cores)
    least = -(-sum(split.size_bytes for splits in tasks for split in splits) // task_bytes)
    return tasks if least <= len(tasks) else plan(ranges, cores, least_tasks=least)


class _Packer:
    """Fills one task after another up to `target_bytes` and `most_records`."""

    def __init__(self, target_bytes: int, most_records: int | None) -> None:
        self._target_bytes = target_bytes
        self._most_records = most_records
        self._tasks: list[tuple[Split, ...]] = []
        self._task: list[Split] = []
        self._bytes = 0
        self._records = 0

    def add(self, snapshot: LogSnapshot, pieces: list[_Piece]) -> None:
        """Adds one log's pieces, ascending."""
        tp, identity = snapshot.tp, snapshot.identity
        start = pieces[0].start_offset
        size_bytes = 0
        for piece in pieces:
            position = piece.start_position
            at = piece.start_offset
            while at < piece.end_offset:
                cut, cut_position = self._fitting(piece, at, position, size_bytes, at - start)
                size_bytes += cut_position - position
                at, position = cut, cut_position
                if at < piece.end_offset or self._is_full(size_bytes, at - start):
                    self._put(Split(tp, start, at, size_bytes, identity))
                    self.close()
                    start, size_bytes = at, 0
        end = pieces[-1].end_offset
        if start < end:
            self._put(Split(tp, start, end, size_bytes, identity))

    def done(self) -> list[tuple[Split, ...]]:
        self.close()
        return self._tasks

    def _fitting(self, piece: _Piece, start: int, position: int, more_bytes: int, more_records: int) -> tuple[int, int]:
        """Where (offset, position) the part of the piece ends that fits into the task, in addition to the records and
        bytes of the same log that were not added yet."""
        end, end_position = piece.end_offset, piece.end_position
        room = self._target_bytes - self._bytes - more_bytes
        if end_position - position > room:
            entry = piece.segment.offset_index(piece.log_end).first_from_position(position + max(room, 1))
            if entry is not None and start < entry.offset + 1 < end and entry.position < end_position:
                end, end_position = entry.offset + 1, max(entry.position, position)
        if self._most_records is not None:
            most = start + self._most_records - self._records - more_records
            if most < end:
                # Interpolated: the position only affects the sizes of tasks.
                end_position = position + (end_position - position) * (most - start) // (end - start)
                end = most
        return end, end_position

    def _is_full(self, more_bytes: int, more_records: int) -> bool:
        if self._bytes + more_bytes >= self._target_bytes:
            return True
        return self._most_records is not None and self._records + more_records >= self._most_records

    def _put(self, split: Split) -> None:
        self._task.append(split)
        self._bytes += split.size_bytes
        self._records += split.end_offset - split.start_offset

    def close(self) -> None:
        """Ends the task that is being filled, if it has anything."""
        if self._task:
            self._tasks.append(tuple(self._task))
        self._task = []
        self._bytes = self._records = 0


def _pieces(log_range: LogRange) -> Iterator[_Piece]:
    """The range, segment by segment. Offsets in a gap belong to the segment before it, and offsets below the first
    segment to that one."""
    snapshot, start, end = log_range.snapshot, log_range.start_offset, log_range.end_offset
    segments = snapshot.segments
    index = max(snapshot.segment_index(start), 0)
    while start < end:
        segment = segments[index]
        index += 1
        following = segments[index].base_offset if index < len(segments) else snapshot.log_end_offset
        log_end = snapshot.end_position(segment)
        first = segment.offset_index(log_end).floor(start).position if start > segment.base_offset else 0
        last = log_end if end >= following else max(segment.offset_index(log_end).floor(end).position, first)
        yield _Piece(segment, log_end, start, min(end, following), first, last)
        start = following


_LISTED: Final = 20  # partitions, in a message

logger = logging.getLogger("kafkafs.spark")


class DataLoss(RuntimeError):
    """Messages that the query should have read are no longer in the log."""


def report_loss(fail: bool) -> Callable[[str], None]:
    """A function that reports lost messages: it raises DataLoss, or logs a warning."""

    def report(text: str) -> None:
        if fail:
            raise DataLoss(f"{text}. Option failOnDataLoss=false reads what is left")
        logger.warning("%s. Going on with what is left (failOnDataLoss is false)", text)

    return report


@lru_cache(maxsize=64)
def _warn_once(text: str) -> None:
    """Once, because a streaming query finds the same problem in each micro-batch."""
    logger.warning("%s", text)


def report_absent(absent: Sequence[TopicPartition], log_dirs: LogDirs, *, fail: bool) -> None:
    """Reports partitions that the query reads and no directory has: DataLoss if `fail`, otherwise a warning."""
    if not absent:
        return
    listed = ", ".join(map(str, absent[:_LISTED])) + (f" and {len(absent) - _LISTED} more" * (len(absent) > _LISTED))
    text = (
        f"{listed} {_are(absent)} known to the cluster and not in {log_dirs}: load the other log directories as well, "
        "of this broker and of others, as load([DIR1, DIR2])"
    )
    if fail:
        raise DataLoss(f"{text}. Option failOnDataLoss=false reads what is here")
    _warn_once(f"{text}. Going on with what is here (failOnDataLoss is false)")


def chosen_partitions(log_dirs: LogDirs, options: SourceOptions) -> list[TopicPartition]:
    """The partitions of the query that are here, ascending. InvalidOption where the query names a topic that is not
    here or, with failOnDataLoss, a partition; DataLoss, with failOnDataLoss, for others that the cluster has."""
    chosen = options.chosen
    here = log_dirs.topics()
    if isinstance(chosen, Partitions):
        return _assigned(chosen, here, log_dirs, fail=options.fail_on_data_loss)
    absent = log_dirs.absent()
    if isinstance(chosen, TopicPattern):

        def is_meant(topic: str) -> bool:
            return topic not in names.KAFKAS_OWN_TOPICS and chosen.pattern.search(topic) is not None

        topics = [topic for topic in here if is_meant(topic)]
        absent = [tp for tp in absent if is_meant(tp.topic)]
    else:
        topics = [topic for topic in chosen.names if topic in here]
        absent = [tp for tp in absent if tp.topic in chosen.names]
        elsewhere = {tp.topic for tp in absent}
        missing = [topic for topic in chosen.names if topic not in here and topic not in elsewhere]
        if missing:
            raise InvalidOption(f"option subscribe: {', '.join(missing)} {_are(missing)} not in {log_dirs}")
    report_absent(absent, log_dirs, fail=options.fail_on_data_loss)
    return [TopicPartition(topic, partition) for topic in topics for partition in log_dirs.partitions(topic)]


def _assigned(chosen: Partitions, here: Sequence[str], log_dirs: LogDirs, *, fail: bool) -> list[TopicPartition]:
    """With failOnDataLoss=false a partition that is missing from a topic that is here is left out, as Spark's Kafka
    source leaves it out in any case, without a warning."""
    found = [tp for tp in chosen.partitions if tp.topic in here and tp.partition in log_dirs.partitions(tp.topic)]
    missing = sorted(set(chosen.partitions) - set(found))
    if not missing:
        return found
    text = f"option assign: {_list(missing)} {_are(missing)} not in {log_dirs}"
    known = {*here, *(tp.topic for tp in log_dirs.absent())}
    if any(tp.topic not in known for tp in missing):
        raise InvalidOption(text)
    if fail:
        raise InvalidOption(f"{text}. Option failOnDataLoss=false reads the others")
    _warn_once(f"{text}. Going on with the others (failOnDataLoss is false)")
    return found


def batch_ranges(log_dirs: LogDirs, options: SourceOptions) -> list[LogRange]:
    """The ranges that a batch query reads. InvalidOption; DataLoss for offsets that are missing."""
    if options.starting is not None and options.starting.has(LATEST):
        raise InvalidOption("startingOffsets of a batch query cannot be latest")
    if options.ending is not None and options.ending.has(EARLIEST):
        raise InvalidOption("endingOffsets of a batch query cannot be earliest")
    if options.max_offsets_per_trigger is not None:
        logger.warning("option maxOffsetsPerTrigger has no effect in a batch query")
    snapshots = [log_dirs.log(tp).snapshot() for tp in chosen_partitions(log_dirs, options)]
    starts = _offsets(snapshots, options.starting or Bound(EARLIEST), options, "starting")
    ends = _offsets(snapshots, options.ending or Bound(LATEST), options, "ending")
    for tp, start in starts.items():
        if start > ends[tp]:
            raise InvalidOption(f"the range of {tp} begins at {start} and ends at {ends[tp]}, before that")
    found = []
    for snapshot in snapshots:
        start, end = starts[snapshot.tp], ends[snapshot.tp]
        found.append(within(snapshot, start, end, options))
    return found


def within(snapshot: LogSnapshot, start: int, end: int, options: SourceOptions) -> LogRange:
    """The part of these offsets that the log still has and the isolation level shows; the rest is reported as lost."""
    report = report_loss(options.fail_on_data_loss)
    first, visible = snapshot.log_start_offset, visible_end(snapshot, options.isolation)
    if start < first and start < end:
        report(f"messages {start} to {min(first, end) - 1} of {snapshot.tp} are missing: {snapshot.why_not_earlier}")
    if end > visible:
        stable = "its last stable offset is" if visible < snapshot.log_end_offset else "the log ends at"
        report(f"{snapshot.tp} has no messages {max(start, visible)} to {end - 1}: {stable} {visible}")
    begins = min(max(start, first), max(visible, first))
    return LogRange(snapshot, begins, max(min(end, visible), begins))


def starting_offsets(log_dirs: LogDirs, options: SourceOptions) -> dict[TopicPartition, int]:
    """The offsets at which a new streaming query begins: the log ends, unless the options say otherwise."""
    snapshots = [log_dirs.log(tp).snapshot() for tp in chosen_partitions(log_dirs, options)]
    return _offsets(snapshots, options.starting or Bound(LATEST), options, "starting")


def _offsets(
    snapshots: Iterable[LogSnapshot], bound: Bound, options: SourceOptions, which: str
) -> dict[TopicPartition, int]:
    by_tp = {snapshot.tp: snapshot for snapshot in snapshots}
    if not isinstance(bound.at, int):
        _check_partitions(bound.at, by_tp, f"{which}Offsets{'ByTimestamp' * bound.is_time}")
    return {tp: _offset(snapshot, bound, options, which) for tp, snapshot in by_tp.items()}


def _offset(snapshot: LogSnapshot, bound: Bound, options: SourceOptions, which: str) -> int:
    offset = bound.of(snapshot.tp)
    if bound.is_time:
        found = offset_for_timestamp(snapshot, offset, options.isolation)
        if found is not None:
            return found.offset
        if which == "starting" and not options.latest_if_none_later:
            raise InvalidOption(
                f"no message of {snapshot.tp} has a timestamp of {offset} or later "
                "(with startingOffsetsByTimestampStrategy=latest the query begins at the log's end)"
            )
        offset = LATEST
    if offset == EARLIEST:
        return snapshot.whole_start_offset
    return visible_end(snapshot, options.isolation) if offset == LATEST else offset


def _check_partitions(given: Mapping[TopicPartition, int], here: Mapping[TopicPartition, object], name: str) -> None:
    missing = sorted(here.keys() - given.keys())
    extra = sorted(given.keys() - here.keys())
    if missing:
        absent = f"{_list(missing)} {_are(missing)} missing"
        raise InvalidOption(f"option {name} must name every partition that is read: {absent}")
    if extra:
        raise InvalidOption(f"option {name} names {_list(extra)}, which the query does not read")


def _list(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))


def _are(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"
