"""The task of a write: it encodes Arrow batches into staged files, one for each partition that gets messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkafs.spark.arrow_columns import record_columns
from kafkafs.spark.content import content_of
from storage.append.partitioner import Partitioner
from storage.clock import SystemClock
from storage.directory import guest_rules
from storage.errors import InvalidRecord, StorageError, UnknownTopicOrPartition
from storage.files.commit_ledger import ContentSum, StagedBatchFile, WriteId
from storage.files.disk import RealDisk
from storage.format.block import RecordColumns
from storage.log.log_dir import LogDir
from storage.staged_writes import commit
from storage.staged_writes.staging import StagedFileWriter
from storage.types import TopicPartition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    UInt64s = NDArray[np.uint64]


def stage(
    path: Path,
    write: WriteId,
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str],
    topic: str | None,
    *,
    attempt: str = "",
    compression: str | None = None,
    force: bool = False,
) -> tuple[tuple[StagedBatchFile, ...], ContentSum]:
    """Stage all batches; return the files and, if the write may be repeated, a digest of the rows.

    `columns`: those to write; `topic` overrides the column of that name. `attempt`: identifies this attempt at the
    write; files of earlier attempts are removed first. `compression`: for topics that leave the codec to producers;
    None compresses nothing. UnknownTopicOrPartition, InvalidRecord, RecordTooLarge, NotPermitted, OSError: no file is
    left.
    """
    if attempt:
        _clear_earlier(path, write, attempt)
    task = _TaskWriter(path, write, attempt, compression, force=force)
    try:
        for batch in batches:
            if batch.num_rows:
                task.add(_Rows(batch, columns, topic))
        return task.finish(), task.content
    except BaseException:
        task.discard()
        raise


# The attempts for which this process has removed earlier files. A worker runs one task at a time.
_cleared: set[tuple[Path, str, str]] = set()


def _clear_earlier(path: Path, write: WriteId, attempt: str) -> None:
    """Remove the files of earlier attempts, once for each attempt. Files that cannot be removed now do no harm."""
    what = (path, write.id, attempt)
    if what not in _cleared:
        with contextlib.suppress(StorageError, OSError):
            if commit.clear_earlier_attempts(RealDisk(), path, write, attempt):
                _cleared.add(what)


class _Rows:
    """The rows of an Arrow batch: their records, topics and requested partitions (-1: none)."""

    def __init__(self, batch: pa.RecordBatch, columns: Sequence[str], topic: str | None) -> None:
        def column(name: str) -> pa.Array | None:
            return batch.column(name) if name in columns else None

        value = column("value")
        assert value is not None
        self.records = record_columns(column("key"), value, column("headers"), column("timestamp"))
        self._topic = topic
        self._topics = None if topic is not None else column("topic")
        requested = column("partition")
        self.partitions: Int64s | None = None
        if requested is not None and requested.null_count < len(requested):
            if pc.min(requested).as_py() < 0:
                raise InvalidRecord("a message requests a partition below 0", found=pc.min(requested).as_py())
            self.partitions = requested.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)

    def by_topic(self) -> Iterator[tuple[str, Int64s]]:
        """Each topic with the numbers of its rows. InvalidRecord for a row without a topic."""
        if self._topics is None:
            assert self._topic is not None
            yield self._topic, np.arange(len(self.records))
            return
        if self._topics.null_count:
            raise InvalidRecord("null topic present in the data. Use the topic option for setting a topic.")
        encoded = self._topics.dictionary_encode()
        numbers = encoded.indices.to_numpy(zero_copy_only=False)
        for number, name in enumerate(encoded.dictionary.to_pylist()):
            yield name, np.flatnonzero(numbers == number)


class _TaskWriter:
    """The staged files of one task."""

    def __init__(self, path: Path, write: WriteId, attempt: str, compression: str | None, *, force: bool) -> None:
        self.write = write
        self.attempt = attempt
        self.compression = compression
        self.force = force
        self.log_dir = LogDir.open_read_only(path)
        self._topics: dict[str, _TopicWriter] = {}
        self.content = ContentSum()

    def add(self, rows: _Rows) -> None:
        for name, chosen in rows.by_topic():
            topic = self._topics.get(name)
            if topic is None:
                topic = self._topics[name] = _TopicWriter(self, name)
            records = rows.records if len(chosen) == len(rows.records) else rows.records.take(chosen)
            if self.write.batch is not None:
                self.content = self.content.plus(content_of(records, name))
            topic.add(records, None if rows.partitions is None else rows.partitions[chosen])

    def finish(self) -> tuple[StagedBatchFile, ...]:
        return tuple(file for _, topic in sorted(self._topics.items()) for file in topic.finish())

    def discard(self) -> None:
        for topic in self._topics.values():
            topic.discard()


class _TopicWriter:
    """A task's messages for one topic."""

    def __init__(self, task: _TaskWriter, name: str) -> None:
        log_dir = task.log_dir
        try:
            self._info = log_dir.topic_info(name)
        except UnknownTopicOrPartition as error:
            error.advice = f"`kafkafs topics create {log_dir.path} {name}` creates it"
            raise
        guest_rules.check_append(self._info, force=task.force)
        self._config = self._info.config
        if task.compression is not None and self._config.compression_type == "producer":
            self._config = replace(self._config, compression_type=task.compression)
        self._task = task
        self._path = log_dir.path
        self._here = frozenset(log_dir.partitions(name))
        count = self._info.partition_count
        self._partitioner = None if count is None else Partitioner(count)
        self._writers: dict[int, StagedFileWriter] = {}

    def add(self, records: RecordColumns, requested: Int64s | None) -> None:
        chosen = self._partitions(records, requested)
        if (chosen == chosen[0]).all():
            self._writer(int(chosen[0])).append(records)
            return
        order = np.argsort(chosen, kind="stable")
        numbers, starts = np.unique(chosen[order], return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            self._writer(number).append(records.take(rows))

    def _partitions(self, records: RecordColumns, requested: Int64s | None) -> Int64s:
        if requested is not None and (requested >= 0).all():
            return requested
        if self._partitioner is None:
            raise UnknownTopicOrPartition(
                f"the number of partitions of {self._info.topic} is not known here",
                path=self._path,
                advice="Name each message's partition in a column 'partition'",
            )
        chosen = self._partitioner.choose(records)
        return chosen if requested is None else np.where(requested < 0, chosen, requested)

    def _writer(self, number: int) -> StagedFileWriter:
        writer = self._writers.get(number)
        if writer is None:
            tp = TopicPartition(self._info.topic, number)
            if number not in self._here:
                raise UnknownTopicOrPartition(f"there is no partition {tp} here", path=self._path)
            writer = self._writers[number] = StagedFileWriter(
                RealDisk(),
                self._path,
                tp,
                self._task.write,
                config=self._config,
                clock=SystemClock(),
                attempt=self._task.attempt,
            )
        return writer

    def finish(self) -> Iterator[StagedBatchFile]:
        for _, writer in sorted(self._writers.items()):
            staged = writer.finish()
            if staged is not None:
                yield staged

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()
