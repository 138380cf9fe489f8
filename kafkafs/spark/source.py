"""Reading with a batch query: what it reads is settled when it is planned, and read by tasks as Arrow batches.

Spark plans once for a DataFrame and what is made from it, at the first action: from then on it is a snapshot. There is
no pushFilters here: Spark keeps a filter that was pushed to a Python source for the next query on the same DataFrame,
which then silently lacks rows (pyspark 4.2 and 4.3).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafkafs.spark.kernels import require_compiled
from kafkafs.spark.log_dirs import LogDirs, open_log_dirs
from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.options import OnCorruptBatch, SourceOptions, parse
from kafkafs.spark.planning import LogRange, Split, plan
from kafkafs.spark.ranges import batch_ranges, logger, report_loss
from kafkafs.spark.split_reader import read_split
from kafkafs.spark.worker_start import WorkerStart
from storage.format.decoder import Decoder

if TYPE_CHECKING:
    import pyarrow as pa

    from storage.format.block import BatchDamage, RecordBlock
    from storage.types import OffsetRange, TopicPartition

# KafkaRecordToRowConverter.kafkaSchema
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


@dataclass(frozen=True)
class Task(InputPartition):
    """What one task reads, in this order, and of which of the query's directories each."""

    splits: tuple[Split, ...]
    places: tuple[int, ...]


def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns of a query with these options, types as in Spark's Kafka source. InvalidOption."""
    return _schema(parse(options))


def _schema(options: SourceOptions) -> StructType:
    return StructType([StructField(name, _TYPES[name]) for name in options.columns])


def batch_reader(options: Mapping[str, str], schema: StructType, cores: int) -> DataSourceReader:
    """The reader of `spark.read.format("kafkafs")`. InvalidOption, UncompiledKernels."""
    return BatchReader(checked(options, schema), cores)


def checked(options: Mapping[str, str], schema: StructType) -> SourceOptions:
    """The parsed options, if their columns are those that the query expects and the kernels are fit for a job."""
    parsed = parse(options)
    if schema != _schema(parsed):
        raise InvalidOption("the schema is given by the source and cannot be set; option columns chooses columns")
    require_compiled(parsed.allow_uncompiled)
    return parsed


class BatchReader(DataSourceReader):
    """Plans in the driver's Python, travels to the workers and reads there."""

    def __init__(self, options: SourceOptions, cores: int) -> None:
        self._options = options
        self._cores = cores
        self._start = WorkerStart()

    def partitions(self) -> Sequence[InputPartition]:
        # A hundred thousand segments are as many objects and no garbage: looking for some costs half as much again.
        collecting = gc.isenabled()
        gc.disable()
        try:
            log_dirs = open_log_dirs(self._options.paths)
            return tasks_for(batch_ranges(log_dirs, self._options), log_dirs, self._options, self._cores)
        finally:
            if collecting:
                gc.enable()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._options)


def tasks_for(
    ranges: Sequence[LogRange], log_dirs: LogDirs, options: SourceOptions, cores: int
) -> list[InputPartition]:
    """The tasks that read the ranges."""
    tasks = plan(ranges, cores, least_tasks=options.min_partitions, most_records=options.max_records_per_partition)
    places = {log_range.snapshot.tp: log_dirs.place(log_range.snapshot.tp) for log_range in ranges}
    return [Task(splits, tuple(places[split.tp] for split in splits)) for splits in tasks]


def read_task(task: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """What a task reads; nothing if it is not one of ours, as the one that Spark makes up for an empty plan."""
    from kafkafs.spark.rows import arrow_batches

    require_compiled(options.allow_uncompiled)
    return arrow_batches(_blocks(task if isinstance(task, Task) else Task((), ()), options), options.columns)


def _blocks(task: Task, options: SourceOptions) -> Iterator[tuple[TopicPartition, RecordBlock]]:
    report = report_loss(options.fail_on_data_loss)
    decoder = Decoder()

    def on_loss(tp: TopicPartition, lost: OffsetRange, why: str) -> None:
        report(f"messages {lost.start} to {lost.end - 1} of {tp} are gone: {why}")

    def on_damage(tp: TopicPartition, damage: BatchDamage) -> None:
        if options.on_corrupt_batch is OnCorruptBatch.FAIL:
            raise damage.error
        logger.warning("skipped what does not read of %s (onCorruptBatch is skip): %s", tp, damage.error)

    log_dirs = open_log_dirs(options.paths)
    for split, place in zip(task.splits, task.places, strict=True):
        log_dir = log_dirs.directories[place]
        for block in read_split(
            log_dir, split, decoder, on_loss=on_loss, on_damage=on_damage, isolation=options.isolation
        ):
            yield split.tp, block
