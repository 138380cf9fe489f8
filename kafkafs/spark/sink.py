"""`df.write` and `df.writeStream` in the format `kafkafs`: they append messages to a log directory, by the rules of
Spark's Kafka sink.

Each task stages its messages, already encoded, next to the partitions' segments (staged_task.py). Then one process
assigns their offsets (storage.staged_writes.commit). The id of its query and its number identify a micro-batch, so that
none is written twice. Only tasks can find out the query's id; the commit runs in another process with another writer,
and reads the id in the tasks' commit messages.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.spark.kernels_check import require_compiled
from kafkafs.spark.option_values import REFUSED_BY_SINK, SINK, by_lower_name, directories, flag, one_of
from kafkafs.spark.staged_task import stage
from kafkafs.spark.worker_start import WorkerStart
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import CorruptCheckpoint
from storage.files import commit_ledger, dir_lock
from storage.files.commit_ledger import ContentSum, StagedBatchFile, WriteId
from storage.files.disk import RealDisk
from storage.staged_writes import commit

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"  # new each time a query is started (StreamExecution)
_BATCH_ID: Final = "streaming.sql.batchId"
_COMPRESSION: Final = "kafka.compression.type"
# Producers' names of codecs, and a topic's names for the same codecs.
_CODECS: Final[dict[str, str | None]] = {
    "none": None, "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd",
}  # fmt: skip
_FITS_A_NAME: Final = re.compile("[0-9A-Za-z-]{1,64}")  # what may be part of a staged file's name

logger = logging.getLogger("kafkafs.spark")

_T = TypeVar("_T")

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
# The columns that the sink writes, and their types (KafkaWriter); it ignores others.
_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (ArrayType(_HEADER),),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(),),  # an addition to Spark's columns: a copied topic keeps its timestamps
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where a query writes, and how. `topic`: the topic of all messages; if None, a column names it. `force`: see
    guest_rules.check_append. `lock_timeout_ms`: how long a commit waits for another one. `drop_changed_replay`: drop a
    repeated write with other rows instead of raising an error. `transaction`: identifies a single write, so that a
    repetition is recognized. `compression`: for topics that leave the codec to producers."""

    path: Path
    topic: str | None = None
    force: bool = False
    lock_timeout_ms: int = 10_000
    drop_changed_replay: bool = False
    transaction: WriteId | None = None
    compression: str | None = None
    allow_uncompiled: bool = False


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """The files that a task staged, and the digest of their rows."""

    write: WriteId
    files: tuple[StagedBatchFile, ...]
    content: ContentSum


class BatchWriter(DataSourceArrowWriter):
    """The writer of one `df.write`: pickled by the process that plans, used by the tasks and by the commit."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._start = WorkerStart()
        # Without a transaction, every attempt is a new write.
        unique = str(uuid.uuid4())
        self._write, self._attempt = WriteId(unique, None), ""
        if options.transaction is not None:
            self._write, self._attempt = options.transaction, unique

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        return _staged(self._options, self._columns, self._write, self._attempt, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, self._write, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        commit.abort(RealDisk(), self._options.path, self._write, _files(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query: Spark creates one for each micro-batch, and another for the batch's commit."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._start = WorkerStart()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        write, run = _micro_batch()
        return _staged(self._options, self._columns, write, run, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        write = _write_of(messages, batchId)
        if write is not None:
            _commit(self._options, write, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        write = _write_of(messages, batchId)
        if write is not None:
            commit.abort(RealDisk(), self._options.path, write, _files(messages))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of `df.write.format("kafkafs")`. InvalidOption, LogLocked."""
    return BatchWriter(*_checked(options, schema, overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of `df.writeStream.format("kafkafs")`. InvalidOption, LogLocked."""
    parsed, columns = _checked(options, schema, overwrite)
    if parsed.transaction is not None:
        raise InvalidOption("txnAppId and txnVersion are for df.write: a streaming query has an id of its own")
    return StreamWriter(parsed, columns)


def parse(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options as Spark passes them, with names in any case. InvalidOption."""
    given = by_lower_name(options, SINK, REFUSED_BY_SINK)
    path, *more = directories(given, "save(path) or start(path)")
    if more:
        raise InvalidOption(f"a query writes to one log directory, and {1 + len(more)} are given")
    timeout = given.get("locktimeoutms", "10000").strip()
    if not timeout.isdecimal():
        raise InvalidOption(f"option lockTimeoutMs takes a number of milliseconds, not {timeout!r}")
    return SinkOptions(
        path=path,
        topic=given.get("topic", "").strip() or None,
        force=flag(given, "force", default=False),
        lock_timeout_ms=int(timeout),
        drop_changed_replay=one_of(given, "onChangedReplay", {"fail": False, "drop": True}),
        transaction=_transaction(given),
        compression=one_of(given, _COMPRESSION, _CODECS),
        allow_uncompiled=flag(given, "allowUncompiled", default=False),
    )


def _transaction(given: Mapping[str, str]) -> WriteId | None:
    """The write that txnAppId and txnVersion identify: as in Delta, an application's versions ascend, and each is
    written once."""
    application, version = given.get("txnappid", "").strip(), given.get("txnversion")
    if version is None and "txnappid" not in given:
        return None
    if not application or version is None:
        raise InvalidOption("options txnAppId and txnVersion go together: an application's name, and a number")
    if not re.fullmatch("[0-9]{1,18}", version.strip()):
        raise InvalidOption(f"option txnVersion takes a number, not {version!r}")
    if not _FITS_A_NAME.fullmatch(application):
        application = str(uuid.uuid5(uuid.NAMESPACE_URL, application))
    return WriteId(application, int(version))


def check_columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """The columns of a query that are written. InvalidOption, with the messages of Spark's Kafka sink (KafkaWriter)."""
    fields = {field.name: field.dataType for field in schema.fields if field.name in _TYPES}
    if "timestamp" in fields and not isinstance(fields["timestamp"], TimestampType):
        del fields["timestamp"]  # ignored, as Spark's Kafka sink ignores any column of this name
    if topic is None and "topic" not in fields:
        raise InvalidOption(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in fields:
        raise InvalidOption("Required attribute 'value' not found.")
    for name, data_type in fields.items():
        types = _TYPES[name]
        # Types as text, which leaves out whether their parts may be null.
        choices, given = [choice.simpleString() for choice in types], data_type.simpleString()
        if given not in choices:
            raise InvalidOption(
                f"{name} attribute unsupported type {given}. {name} must be a(n) {' or '.join(choices)}"
            )
    return tuple(fields)


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> tuple[SinkOptions, tuple[str, ...]]:
    if overwrite:
        raise InvalidOption("a log can only be appended to: use mode append")
    parsed = parse(options)
    require_compiled(parsed.allow_uncompiled)
    columns = check_columns(schema, parsed.topic)
    if not parsed.path.is_dir():
        raise FileNotFoundError(f"there is no log directory {parsed.path}: `kafkafs topics create` creates one")
    # Checked before tasks work in vain; the commit checks again.
    dir_lock.when_free(lambda: _refuse_held(parsed.path), parsed.lock_timeout_ms / 1000)
    _warn_of_pending(parsed.path)
    return parsed, columns


def _warn_of_pending(path: Path) -> None:
    """Warn of single writes whose commit a killed job had begun: this commit completes them."""
    with suppress(CorruptCheckpoint):  # the commit will raise it
        for pending in commit_ledger.read(path).pending:
            if pending.write.batch is None:
                shares = ", ".join(f"{sum(file.records for file in part.files)} to {part.tp}" for part in pending.parts)
                logger.warning(
                    "%s: a job was killed while its write was being committed, with messages %s: the write is "
                    "completed now. If this is the same job, run again, its messages will be written twice: with the "
                    "options txnAppId and txnVersion a repeated write is recognized",
                    path,
                    shares,
                )


def _micro_batch() -> tuple[WriteId, str]:
    """This task's micro-batch, and the id of its query's run."""
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
    if context is None or query is None or batch is None:
        raise RuntimeError("Spark did not give this task its query and micro-batch: a replay could not be recognized")
    return WriteId(query, int(batch)), context.getLocalProperty(_RUN_ID) or ""


def _staged(
    options: SinkOptions, columns: Sequence[str], write: WriteId, attempt: str, batches: Iterator[pa.RecordBatch]
) -> StagedMessage:
    require_compiled(options.allow_uncompiled)
    files, content = stage(
        options.path,
        write,
        batches,
        columns,
        options.topic,
        attempt=attempt,
        compression=options.compression,
        force=options.force,
    )
    return StagedMessage(write, files, content)


def _commit(options: SinkOptions, write: WriteId, messages: Sequence[WriterCommitMessage | None]) -> None:
    files = _files(messages)
    opening = Opening(gentle=True)
    owned = dir_lock.when_free(lambda: OwnedDir.open(options.path, opening), options.lock_timeout_ms / 1000)
    content = None if write.batch is None else _content(messages)
    try:
        commit.commit(owned, write, files, content=content, force=options.force)
    except commit.ReplayDiffers as error:
        if not options.drop_changed_replay:
            error.advice = f"{error.advice}: option onChangedReplay=drop ignores what it writes the second time"
            raise
        logger.warning("%s. It is dropped (onChangedReplay is drop)", error)
        commit.discard(owned, files)
    finally:
        owned.close()


def _write_of(messages: Sequence[WriterCommitMessage | None], batch: int) -> WriteId | None:
    """The write that the tasks staged; None if no task succeeded. ValueError."""
    queries = {message.write.id for message in messages if isinstance(message, StagedMessage)}
    if len(queries) > 1:
        raise ValueError(f"tasks of several queries in one micro-batch: {sorted(queries)}")
    return WriteId(queries.pop(), batch) if queries else None


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedBatchFile]:
    """The staged files in the order of the tasks, which is the order of the query's partitions."""
    return [file for message in messages if isinstance(message, StagedMessage) for file in message.files]


def _content(messages: Sequence[WriterCommitMessage | None]) -> ContentSum:
    return reduce(
        ContentSum.plus, (message.content for message in messages if isinstance(message, StagedMessage)), ContentSum()
    )


def _refuse_held(path: Path) -> None:
    pid = dir_lock.holder(path)
    if pid is not None:
        raise dir_lock.locked_error(path.resolve() / dir_lock.NAME, pid)
