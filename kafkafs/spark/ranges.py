"""Which offsets of which logs a query reads: its options applied to the logs as they are now.

Source: KafkaOffsetReaderAdmin. Times are looked up as ListOffsets does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from kafkafs.arrow.log_dirs import InvalidOption, LogDirs
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
    pass
from kafkafs.spark.tasks import LogRange

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
