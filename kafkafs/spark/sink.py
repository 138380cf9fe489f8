"""`df.write` and `df.writeStream` in the format `kafkafs`: messages appended to a log directory, by the rules
of Spark's Kafka sink.

Each task stages its messages beside the partitions' segments, already encoded (staged_task.py); one process then gives
them their offsets (storage.log.commits). A micro-batch is known by its query's id and its number, so that none is
written twice. Its id is only to be had where tasks run: the commit, another process with another writer, gets it with
their messages.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from kafkafs.spark.kernels import require_compiled
from kafkafs.spark.option_values import REFUSED_BY_SINK, SINK, InvalidOption, by_lower_name, directories, flag
from kafkafs.spark.staged_task import stage
from kafkafs.spark.worker_start import WorkerStart
from storage.errors import LogLocked
from storage.files import dir_lock
from storage.files.commit_ledger import StagedFile, WriteId
from storage.files.disk import RealDisk
from storage.log import commits
from storage.log.owned_dir import Opening, OwnedDir

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_LOCK_POLL_S: Final = 0.02

_T = TypeVar("_T")

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
# KafkaWriter: the attributes that it takes, and of which types; others are ignored.
_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (ArrayType(_HEADER),),
    "partition": (IntegerType(),),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where a query writes, and how. `topic`: for all its messages, else the column names it. `force`: see
    guest_rules.check_append. `lock_timeout_ms`: so long a commit waits for another one to end."""

    path: Path
    topic: str | None = None
    force: bool = False
    lock_timeout_ms: int = 10_000
    allow_uncompiled: bool = False


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What a task staged."""

    write: WriteId
    files: tuple[StagedFile, ...]


class BatchWriter(DataSourceArrowWriter):
    """One `df.write`: pickled by the process that plans, used by tasks and by the one that commits."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._start = WorkerStart()
        self._write = WriteId(str(uuid.uuid4()), None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        return _staged(self._options, self._columns, self._write, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, self._write, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        commits.abort(RealDisk(), self._options.path, self._write, _files(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query: made anew for each micro-batch, and again for its commit."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._start = WorkerStart()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        return _staged(self._options, self._columns, _micro_batch(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        write = _told(messages, batchId)
        if write is not None:
            _commit(self._options, write, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        write = _told(messages, batchId)
        if write is not None:
            commits.abort(RealDisk(), self._options.path, write, _files(messages))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of `df.write.format("kafkafs")`. InvalidOption, LogLocked."""
    return BatchWriter(*_checked(options, schema, overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of `df.writeStream.format("kafkafs")`. InvalidOption, LogLocked."""
    return StreamWriter(*_checked(options, schema, overwrite))


def parse(options: Mapping[str, str]) -> SinkOptions:
    """The options as Spark hands them over, whatever the case of their names. InvalidOption."""
    given = by_lower_name(options, SINK, REFUSED_BY_SINK)
    path, *more = directories(given, "save(path) or start(path)")
    if more:
        raise InvalidOption("a query writes to one log directory")
    timeout = given.get("locktimeoutms", "10000").strip()
    if not timeout.isdecimal():
        raise InvalidOption(f"option lockTimeoutMs takes a number of milliseconds, not {timeout!r}")
    return SinkOptions(
        path=path,
        topic=given.get("topic", "").strip() or None,
        force=flag(given, "force", default=False),
        lock_timeout_ms=int(timeout),
        allow_uncompiled=flag(given, "allowUncompiled", default=False),
    )


def check_columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """The columns of a query that are written. InvalidOption, in the words of Spark's Kafka sink (KafkaWriter)."""
    fields = {field.name: field.dataType for field in schema.fields if field.name in _TYPES}
    if topic is None and "topic" not in fields:
        raise InvalidOption(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in fields:
        raise InvalidOption("Required attribute 'value' not found.")
    for name, found in fields.items():
        wanted = _TYPES[name]
        if not any(_same_type(found, choice) for choice in wanted):
            choices = " or ".join(choice.simpleString() for choice in wanted)
            raise InvalidOption(
                f"{name} attribute unsupported type {found.simpleString()}. {name} must be a(n) {choices}"
            )
    return tuple(fields)


def _same_type(found: DataType, wanted: DataType) -> bool:
    """Whether they are the same, whatever they say of nulls."""
    return found.simpleString() == wanted.simpleString()


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> tuple[SinkOptions, tuple[str, ...]]:
    if overwrite:
        raise InvalidOption("a log is only ever appended to: use mode append")
    parsed = parse(options)
    require_compiled(parsed.allow_uncompiled)
    columns = check_columns(schema, parsed.topic)
    if not parsed.path.is_dir():
        raise FileNotFoundError(f"no log directory {parsed.path}: `kafkafs topics create` makes one")
    # Before any work is done for nothing; the commit looks again.
    _when_free(parsed, lambda: _refuse_held(parsed.path))
    return parsed, columns


def _micro_batch() -> WriteId:
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
    if query is None or batch is None:
        raise RuntimeError("Spark does not tell this task its query and micro-batch: a replay could not be known")
    return WriteId(query, int(batch))


def _staged(
    options: SinkOptions, columns: Sequence[str], write: WriteId, batches: Iterator[pa.RecordBatch]
) -> StagedMessage:
    require_compiled(options.allow_uncompiled)
    return StagedMessage(write, stage(options.path, write, batches, columns, options.topic, force=options.force))


def _commit(options: SinkOptions, write: WriteId, messages: Sequence[WriterCommitMessage | None]) -> None:
    files = _files(messages)
    owned = _when_free(options, lambda: OwnedDir.open(options.path, Opening(gentle=True)))
    try:
        commits.commit(owned, write, files, force=options.force)
    finally:
        owned.close()


def _told(messages: Sequence[WriterCommitMessage | None], batch: int) -> WriteId | None:
    """Which write it is: None when no task ended well. ValueError."""
    queries = {message.write.id for message in messages if isinstance(message, StagedMessage)}
    if len(queries) > 1:
        raise ValueError(f"tasks of several queries in one micro-batch: {sorted(queries)}")
    return WriteId(queries.pop(), batch) if queries else None


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    """In the order of the tasks, which is that of the query's partitions."""
    return [file for message in messages if isinstance(message, StagedMessage) for file in message.files]


def _refuse_held(path: Path) -> None:
    pid = dir_lock.holder(path)
    if pid is not None:
        raise dir_lock.locked_error(path.resolve() / dir_lock.NAME, pid)


def _when_free(options: SinkOptions, act: Callable[[], _T]) -> _T:
    """Does something that wants the lock free: commits of other queries hold it for moments, a mount for good."""
    deadline = time.monotonic() + options.lock_timeout_ms / 1000
    while True:
        try:
            return act()
        except LogLocked:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOCK_POLL_S)
