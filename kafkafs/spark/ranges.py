"""The offsets that a query reads: its options applied to the logs in their present state.

Source: KafkaOffsetReaderAdmin. Times are looked up as ListOffsets does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.arrow.log_dirs import LogDirs
from kafkafs.spark.data_loss import DataLoss, report_loss
from kafkafs.spark.options import (
    EARLIEST,
    LATEST,
    Bound,
    Partitions,
    SourceOptions,
    TopicPattern,
)
from kafkafs.spark.tasks import LogRange
from storage.files import names
from storage.log.counting import visible_end
from storage.log.offset_lookup import offset_for_timestamp
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition

_LISTED: Final = 20  # partitions, in a message

_log = logging.getLogger("kafkafs.spark")


@lru_cache(maxsize=64)
def _warn_once(text: str) -> None:
    """Log a warning once: a streaming query meets the same problem in each micro-batch."""
    _log.warning("%s", text)


def _report_absent(absent: Sequence[TopicPartition], log_dirs: LogDirs, *, fail: bool) -> None:
    """Report partitions of the query that no directory has: DataLoss if `fail`, otherwise a warning."""
    if not absent:
        return
    listed = ", ".join(map(str, absent[:_LISTED])) + (f" and {len(absent) - _LISTED} more" * (len(absent) > _LISTED))
    text = (
        f"{listed} {_are(absent)} known to the cluster and not in {log_dirs}: load the other log directories as well, "
        "of this broker and of others, as load([DIR1, DIR2])"
    )
    if fail:
        raise DataLoss(f"{text}. Option failOnDataLoss=false reads the rest")
    _warn_once(f"{text}. Going on with the rest (failOnDataLoss is false)")


def chosen_partitions(log_dirs: LogDirs, options: SourceOptions) -> list[TopicPartition]:
    """The partitions of the query that the log directories have, ascending.

    InvalidOption if the query names a missing topic or, with failOnDataLoss, a missing partition; DataLoss, with
    failOnDataLoss, for partitions that only other brokers of the cluster have.
    """
    chosen = options.chosen
    stored_topics = log_dirs.topics()
    if isinstance(chosen, Partitions):
        return _assigned(chosen, stored_topics, log_dirs, fail=options.fail_on_data_loss)
    absent = log_dirs.absent()
    if isinstance(chosen, TopicPattern):

        def is_meant(topic: str) -> bool:
            return topic not in names.KAFKAS_OWN_TOPICS and chosen.pattern.search(topic) is not None

        topics = [topic for topic in stored_topics if is_meant(topic)]
        absent = [tp for tp in absent if is_meant(tp.topic)]
    else:
        topics = [topic for topic in chosen.names if topic in stored_topics]
        absent = [tp for tp in absent if tp.topic in chosen.names]
        elsewhere = {tp.topic for tp in absent}
        missing = [topic for topic in chosen.names if topic not in stored_topics and topic not in elsewhere]
        if missing:
            raise InvalidOption(f"option subscribe: {', '.join(missing)} {_are(missing)} not in {log_dirs}")
    _report_absent(absent, log_dirs, fail=options.fail_on_data_loss)
    return [TopicPartition(topic, partition) for topic in topics for partition in log_dirs.partitions(topic)]


def _assigned(
    chosen: Partitions, stored_topics: Sequence[str], log_dirs: LogDirs, *, fail: bool
) -> list[TopicPartition]:
    """The assigned partitions that exist. With failOnDataLoss=false, missing partitions of an existing topic are left
    out; Spark's Kafka source always leaves them out, without a warning."""
    present = [
        tp for tp in chosen.partitions if tp.topic in stored_topics and tp.partition in log_dirs.partitions(tp.topic)
    ]
    missing = sorted(set(chosen.partitions) - set(present))
    if not missing:
        return present
    text = f"option assign: {_list(missing)} {_are(missing)} not in {log_dirs}"
    known = {*stored_topics, *(tp.topic for tp in log_dirs.absent())}
    if any(tp.topic not in known for tp in missing):
        raise InvalidOption(text)
    if fail:
        raise InvalidOption(f"{text}. Option failOnDataLoss=false reads the others")
    _warn_once(f"{text}. Going on with the others (failOnDataLoss is false)")
    return present


def batch_ranges(log_dirs: LogDirs, options: SourceOptions) -> list[LogRange]:
    """The ranges that a batch query reads. InvalidOption; DataLoss for offsets that are missing."""
    if options.starting is not None and options.starting.has(LATEST):
        raise InvalidOption("startingOffsets of a batch query cannot be latest")
    if options.ending is not None and options.ending.has(EARLIEST):
        raise InvalidOption("endingOffsets of a batch query cannot be earliest")
    if options.max_offsets_per_trigger is not None:
        _log.warning("option maxOffsetsPerTrigger has no effect in a batch query")
    snapshots = [log_dirs.log(tp).snapshot() for tp in chosen_partitions(log_dirs, options)]
    starts = _offsets(snapshots, options.starting or Bound(EARLIEST), options, "starting")
    ends = _offsets(snapshots, options.ending or Bound(LATEST), options, "ending")
    for tp, start in starts.items():
        if start > ends[tp]:
            raise InvalidOption(f"the range of {tp} begins at {start}, after its end {ends[tp]}")
    ranges = []
    for snapshot in snapshots:
        start, end = starts[snapshot.tp], ends[snapshot.tp]
        ranges.append(within(snapshot, start, end, options))
    return ranges


def within(snapshot: LogSnapshot, start: int, end: int, options: SourceOptions) -> LogRange:
    """The part of these offsets that the log still has and the isolation level shows; lost messages are reported."""
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
    """The offsets at which a new streaming query begins: the logs' ends, unless the options say otherwise."""
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
        message = offset_for_timestamp(snapshot, offset, options.isolation)
        if message is not None:
            return message.offset
        if which == "starting" and not options.latest_if_none_later:
            raise InvalidOption(
                f"no message of {snapshot.tp} has a timestamp of {offset} or later "
                "(with startingOffsetsByTimestampStrategy=latest the query begins at the log's end)"
            )
        offset = LATEST
    if offset == EARLIEST:
        return snapshot.whole_start_offset
    return visible_end(snapshot, options.isolation) if offset == LATEST else offset


def _check_partitions(
    given: Mapping[TopicPartition, int], existing: Mapping[TopicPartition, object], name: str
) -> None:
    missing = sorted(existing.keys() - given.keys())
    extra = sorted(given.keys() - existing.keys())
    if missing:
        absent = f"{_list(missing)} {_are(missing)} missing"
        raise InvalidOption(f"option {name} must name every partition that is read: {absent}")
    if extra:
        raise InvalidOption(f"option {name} names {_list(extra)}, which the query does not read")


def _list(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))


def _are(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"
