"""Reading in a batch query: planning decides which offsets are read; tasks read them as Arrow batches.

Spark plans a DataFrame, or a temporary view USING kafkafs, at its first action, and keeps the plan: both are snapshots
from then on. A view on a catalog table `WITH (path …)` is stored as text, so each query plans it anew. There is no
pushFilters here: Spark keeps a filter that was pushed to a Python source for the next query on the same DataFrame,
which then silently lacks rows (pyspark 4.2 and 4.3).
"""

from __future__ import annotations

import gc
import logging
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

from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.arrow.log_dirs import LogDirs, open_log_dirs
from kafkafs.reading.split_reader import Split, read_split
from kafkafs.spark.data_loss import report_loss
from kafkafs.spark.kernels_check import require_compiled
from kafkafs.spark.options import OnCorruptBatch, SourceOptions, columns_of, parse
from kafkafs.spark.ranges import batch_ranges
from kafkafs.spark.tasks import LogRange, plan
from kafkafs.spark.worker_start import WorkerStart
from storage.errors import TierUnavailable
from storage.format.decoder import Decoder

if TYPE_CHECKING:
    import pyarrow as pa

    from storage.format.block import BatchDamage, RecordBlock
    from storage.types import OffsetRange, TopicPartition

_log = logging.getLogger("kafkafs.spark")

# KafkaRecordToRowConverter.kafkaSchema
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "key_json": StringType(),
    "value_json": StringType(),
    "key_schema_id": LongType(),
    "value_schema_id": LongType(),
    "decode_error": StringType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}

_PLANNED_ONCE = (
    ". Spark plans a DataFrame or a temporary view once: if that was long ago, load the DataFrame or create the view "
    "anew"
)


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """The splits that one task reads, in order, and for each split the number of its log directory in the query."""

    splits: tuple[Split, ...]
    places: tuple[int, ...]


def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns of a query or table with these options, with the types of Spark's Kafka source. InvalidOption."""
    return _schema(columns_of(options))


def _schema(columns: Sequence[str]) -> StructType:
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def batch_reader(options: Mapping[str, str], schema: StructType, cores: int) -> DataSourceReader:
    """The reader of `spark.read.format("kafkafs")`. InvalidOption, UncompiledKernels."""
    return BatchReader(checked(options, schema), cores)


def checked(options: Mapping[str, str], schema: StructType) -> SourceOptions:
    """Return the parsed options, whose columns are those of the query. InvalidOption, UncompiledKernels."""
    parsed = parse(options)
    if schema != _schema(parsed.columns):
        raise InvalidOption(
            f"the schema is given by the source and cannot be set: expected columns {', '.join(parsed.columns)}, found "
            f"{', '.join(schema.fieldNames())}; option columns chooses columns"
        )
    require_compiled(parsed.allow_uncompiled)
    if parsed.needs_schemas:
        from kafkafs.arrow.topic_schemas import schemas_for

        schemas_for(parsed.paths, parsed.schemas)
    return parsed


class BatchReader(DataSourceReader):
    """Plans in a Python process next to the driver; a copy of it reads in each worker."""

    def __init__(self, options: SourceOptions, cores: int) -> None:
        self._options = options
        self._cores = cores
        self._start = WorkerStart()

    def partitions(self) -> Sequence[InputPartition]:
        # Planning a hundred thousand segments makes many objects but no garbage: collecting would take half as long
        # again.
        collecting = gc.isenabled()
        gc.disable()
        try:
            log_dirs = open_log_dirs(self._options.paths, self._options.tier)
            return tasks_for(batch_ranges(log_dirs, self._options), log_dirs, self._options, self._cores)
        finally:
            if collecting:
                gc.enable()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._options, _PLANNED_ONCE)


def tasks_for(
    ranges: Sequence[LogRange], log_dirs: LogDirs, options: SourceOptions, cores: int
) -> list[InputPartition]:
    """The tasks that read the ranges. If there are enough cores, no task reads several partitions, as with Spark's
    Kafka source."""
    tasks = plan(
        ranges,
        cores,
        least_tasks=options.min_partitions,
        most_records=options.max_records_per_partition,
        separate=True,
    )
    places = {log_range.snapshot.tp: log_dirs.place(log_range.snapshot.tp) for log_range in ranges}
    return [ReadTask(splits, tuple(places[split.tp] for split in splits)) for splits in tasks]


def read_task(task: InputPartition, options: SourceOptions, advice: str = "") -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task; nothing for the task that Spark makes up for an empty plan. `advice`: added to the
    message about lost messages."""
    from kafkafs.arrow.rows import arrow_batches

    require_compiled(options.allow_uncompiled)
    decoding = None
    if options.decodes:
        from kafkafs.arrow.block_texts import Decoding
        from kafkafs.arrow.topic_schemas import schemas_for
        from kafkafs.schemas.registry import Registry

        schemas = schemas_for(options.paths, options.schemas) if options.needs_schemas else Registry()
        decoding = Decoding(schemas)
    blocks = _blocks(task if isinstance(task, ReadTask) else ReadTask((), ()), options, advice)
    return arrow_batches(blocks, options.columns, decoding)


def _blocks(task: ReadTask, options: SourceOptions, advice: str) -> Iterator[tuple[TopicPartition, RecordBlock]]:
    report = report_loss(options.fail_on_data_loss)
    decoder = Decoder()

    def on_loss(tp: TopicPartition, lost: OffsetRange, why: str) -> None:
        report(f"messages {lost.start} to {lost.end - 1} of {tp} are missing: {why}{advice}")

    def on_damage(tp: TopicPartition, damage: BatchDamage) -> None:
        if options.on_corrupt_batch is OnCorruptBatch.FAIL or isinstance(damage.error, TierUnavailable):
            raise damage.error
        _log.warning("skipped damage in %s (onCorruptBatch is skip): %s", tp, damage.error)

    log_dirs = open_log_dirs(options.paths, options.tier)
    for split, place in zip(task.splits, task.places, strict=True):
        log_dir = log_dirs.directories[place]
        for block in read_split(
            log_dir, split, decoder, on_loss=on_loss, on_damage=on_damage, isolation=options.isolation
        ):
            yield split.tp, block
