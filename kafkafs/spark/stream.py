"""Reading with a streaming query. Its offsets are those of Spark's Kafka source, {"topic":{"partition":offset}}: what
is read next of each partition.

The first batch's end carries, under "@initial", where the query began. A new query that was stopped before that batch
was done asks for its beginning again, and "latest" would be another one by then: what had come until the stop would be
passed over in silence. Spark's own source keeps a file for this beside the checkpoint, which a Python source does not
get to know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from kafkafs.spark.log_dirs import open_log_dirs
from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.options import INITIAL, SourceOptions, decoded_offsets
from kafkafs.spark.planning import LogRange
from kafkafs.spark.ranges import chosen_partitions, report_loss, starting_offsets, within
from kafkafs.spark.source import checked, read_task, tasks_for
from kafkafs.spark.worker_start import WorkerStart
from storage.client.counting import visible_end
from storage.clock import Clock, SystemClock
from storage.errors import UnknownTopicOrPartition
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
            "nothing tells a stream from a batch"
        )
    return StreamReader(parsed, cores, SystemClock() if clock is None else clock)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a Python process beside the driver as long as the query runs; a copy of it reads in the workers."""

    def __init__(self, options: SourceOptions, cores: int, clock: Clock) -> None:
        # Constant after construction.
        self._options = options
        self._cores = cores
        self._clock = clock
        self._start = WorkerStart()
        # Changes with the calls.
        self._first: dict[str, Any] | None = None  # where this process was told to begin, if it was
        self._target: dict[TopicPartition, int] | None = None  # of Trigger.AvailableNow
        self._latest: dict[TopicPartition, int] = {}
        self._last_batch_ms: int | None = None  # when the last one was planned, if any

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        self._first = _encoded(starting_offsets(open_log_dirs(self._options.paths), self._options))
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return _encoded(self._latest) if self._latest else None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the batch that begins at `start` ends; `start` itself when there is nothing for one."""
        begins = decoded_offsets(start)
        ends = self._latest = self._ends() if self._target is None else self._target
        if self._target is None and self._must_wait(begins, ends):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = self._limited(begins, ends, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            raise NotImplementedError(f"read limit {limit}")
        if ends == begins:
            return start
        encoded = _encoded(ends)
        if start == self._first:
            encoded[INITIAL] = start
        return encoded

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begins, ends = decoded_offsets(end.get(INITIAL, start)), decoded_offsets(end)
        report = report_loss(self._options.fail_on_data_loss)
        log_dirs = open_log_dirs(self._options.paths)
        if gone := sorted(begins.keys() - ends.keys()):
            report(f"{', '.join(map(str, gone))} gone, with what was not read of it")
        ranges: list[LogRange] = []
        for tp, last in sorted(ends.items()):
            try:
                snapshot = log_dirs.log(tp).snapshot()
            except UnknownTopicOrPartition:
                if begins.get(tp, 0) < last:
                    report(f"{tp} is gone, with messages {begins.get(tp, 0)} to {last - 1}")
                continue
            # A partition that came later is read from its first message on, which is 0 if nothing was lost.
            first = begins.get(tp, 0)
            if first > last:
                report(f"{tp} was read up to {first} and ends at {last}: it was truncated, or is another one now")
                continue
            ranges.append(within(snapshot, first, last, self._options))
        return tasks_for(ranges, log_dirs, self._options, self._cores)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._options)

    def _ends(self) -> dict[TopicPartition, int]:
        log_dirs = open_log_dirs(self._options.paths)
        found = chosen_partitions(log_dirs, self._options)
        return {tp: visible_end(log_dirs.log(tp).snapshot(), self._options.isolation) for tp in found}

    def _must_wait(self, begins: _Offsets, ends: _Offsets) -> bool:
        """Whether there is too little for a batch, and there was one not long ago (delayBatch of Spark's source). Not
        asked with Trigger.AvailableNow: what is too little then stays so."""
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
        """The limit shared out by what each partition has, at least one offset each (rateLimit of Spark's source)."""
        waiting = self._waiting(begins, ends)
        total = sum(waiting.values())
        if total <= most:
            return dict(ends)
        return {
            tp: min(end, end - waiting[tp] + max(most * waiting[tp] // total, 1)) if tp in waiting else end
            for tp, end in ends.items()
        }

    def _waiting(self, begins: _Offsets, ends: _Offsets) -> dict[TopicPartition, int]:
        """How many offsets of each partition are not read yet, where there are any; of one that came since, all."""
        log_dirs = open_log_dirs(self._options.paths)
        starts = dict(begins)
        for tp in ends.keys() - begins.keys():
            starts[tp] = log_dirs.log(tp).snapshot().log_start_offset
        return {tp: end - starts[tp] for tp, end in ends.items() if end > starts[tp]}


def _encoded(offsets: _Offsets) -> dict[str, Any]:
    """Sorted: Spark compares offsets by their text."""
    topics: dict[str, Any] = {}
    for tp, offset in sorted(offsets.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return topics
