"""Reading in a streaming query. Its offsets have the form of Spark's Kafka source, {"topic":{"partition":offset}}, and
name the message to read next.

The end offset of the first batch also holds, under "@initial", where the query began. If a new query stops before it
finishes that batch, Spark asks for the initial offset again. "latest" would then be a later offset, and the query would
silently skip messages. Spark's Kafka source writes a file in the checkpoint for this; a Python source does not learn
where the checkpoint is.

Each end offset also identifies the messages before it (`read_marks`): after a truncation, or in a topic that was
created again, other messages have the same offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.arrow.log_dirs import open_log_dirs
from kafkafs.spark.data_loss import report_loss
from kafkafs.spark.options import INITIAL, READ, SourceOptions, decoded_offsets
from kafkafs.spark.ranges import chosen_partitions, starting_offsets, within
from kafkafs.spark.read_marks import end_of_what_was_read, read_marks
from kafkafs.spark.source import checked, read_task, tasks_for
from kafkafs.spark.tasks import LogRange
from kafkafs.spark.worker_start import WorkerStart
from storage.clock import Clock, SystemClock
from storage.errors import UnknownTopicOrPartition
from storage.log.counting import visible_end
from storage.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_Offsets = Mapping[TopicPartition, int]


def stream_reader(
    options: Mapping[str, str], schema: StructType, cores: int, clock: Clock | None = None
) -> DataSourceStreamReader:
    """The reader of `spark.readStream.format("kafkafs")`. InvalidOption, UncompiledKernels."""
    parsed = checked(options, schema)
    if parsed.ending is not None:
        raise InvalidOption(
            "a streaming query has no end: endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batch "
            "queries. This is found when the query starts, because Spark asks for a stream's reader only then: at load "
            "a stream and a batch look the same"
        )
    return StreamReader(parsed, cores, SystemClock() if clock is None else clock)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in a Python process next to the driver while the query runs; a copy of it reads in each worker."""

    def __init__(self, options: SourceOptions, cores: int, clock: Clock) -> None:
        # Constant after construction.
        self._options = options
        self._cores = cores
        self._clock = clock
        self._start = WorkerStart()
        # Changes with the calls.
        self._first: dict[str, Any] | None = None  # the initial offset, if Spark asked this process for it
        self._target: dict[TopicPartition, int] | None = None  # where Trigger.AvailableNow ends
        self._latest: dict[TopicPartition, int] = {}
        self._last_batch_ms: int | None = None  # when a batch was last planned

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        self._first = _encoded(starting_offsets(open_log_dirs(self._options.paths, self._options.tier), self._options))
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return _encoded(self._latest) if self._latest else None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the batch that begins at `start`; `start` itself if there is nothing to read."""
        begins = decoded_offsets(start)
        ends = self._latest = self._ends() if self._target is None else self._target
        if self._target is None and self._must_wait(begins, ends):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = self._limited(begins, ends, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            raise NotImplementedError(f"read limit {limit}")
        encoded = _encoded(ends)
        marks = read_marks(open_log_dirs(self._options.paths, self._options.tier), ends)
        if ends == begins and start.get(READ, marks) == marks:
            return start
        encoded[READ] = marks
        if start == self._first:
            encoded[INITIAL] = start
        return encoded

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        start = end.get(INITIAL, start)
        begins, ends, marks = decoded_offsets(start), decoded_offsets(end), start.get(READ, {})
        report = report_loss(self._options.fail_on_data_loss)
        log_dirs = open_log_dirs(self._options.paths, self._options.tier)
        if gone := sorted(begins.keys() - ends.keys()):
            report(f"missing since the last batch, with unread messages: {', '.join(map(str, gone))}")
        ranges: list[LogRange] = []
        for tp, last in sorted(ends.items()):
            try:
                snapshot = log_dirs.log(tp).snapshot()
            except UnknownTopicOrPartition:
                if begins.get(tp, 0) < last:
                    report(f"{tp} no longer exists, with messages {begins.get(tp, 0)} to {last - 1}")
                continue
            # A new partition is read from offset 0: if its log starts later, messages were lost.
            first = begins.get(tp, 0)
            kept = end_of_what_was_read(log_dirs, snapshot, first, marks)
            if kept < first:
                report(
                    f"{tp} was read up to {first}, and its messages from {kept} on have changed since: it was "
                    "truncated or created again"
                )
                first = kept
            if first > last:
                report(f"{tp} was read up to {first} but ends at {last}: it was truncated or created again")
                continue
            ranges.append(within(snapshot, first, last, self._options))
        return tasks_for(ranges, log_dirs, self._options, self._cores)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._options)

    def _ends(self) -> dict[TopicPartition, int]:
        log_dirs = open_log_dirs(self._options.paths, self._options.tier)
        partitions = chosen_partitions(log_dirs, self._options)
        return {tp: visible_end(log_dirs.log(tp).snapshot(), self._options.isolation) for tp in partitions}

    def _must_wait(self, begins: _Offsets, ends: _Offsets) -> bool:
        """Whether to wait: there are too few offsets for a batch, and the previous batch was recent (delayBatch of
        Spark's source). Not called with Trigger.AvailableNow, where no more offsets will arrive."""
        least, now_ms = self._options.min_offsets_per_trigger, self._clock.now_ms()
        if least is None:
            return False
        waited_ms = None if self._last_batch_ms is None else now_ms - self._last_batch_ms
        is_soon = waited_ms is not None and waited_ms < self._options.max_trigger_delay_ms
        if is_soon and sum(self._waiting(begins, ends).values()) < least:
            return True
        self._last_batch_ms = now_ms
        return False

    def _limited(self, begins: _Offsets, ends: _Offsets, most: int) -> dict[TopicPartition, int]:
        """Divide the limit in proportion to each partition's unread offsets, at least one offset each, and return the
        ends (rateLimit of Spark's source)."""
        waiting = self._waiting(begins, ends)
        total = sum(waiting.values())
        if total <= most:
            return dict(ends)
        return {
            tp: min(end, end - waiting[tp] + max(most * waiting[tp] // total, 1)) if tp in waiting else end
            for tp, end in ends.items()
        }

    def _waiting(self, begins: _Offsets, ends: _Offsets) -> dict[TopicPartition, int]:
        """The number of unread offsets in each partition that has any; in a new partition, all offsets are unread."""
        log_dirs = open_log_dirs(self._options.paths, self._options.tier)
        starts = dict(begins)
        for tp in ends.keys() - begins.keys():
            starts[tp] = log_dirs.log(tp).snapshot().log_start_offset
        return {tp: end - starts[tp] for tp, end in ends.items() if end > starts[tp]}


def _encoded(offsets: _Offsets) -> dict[str, Any]:
    """Offsets as JSON; sorted, because Spark compares the text."""
    topics: dict[str, Any] = {}
    for tp, offset in sorted(offsets.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return topics
