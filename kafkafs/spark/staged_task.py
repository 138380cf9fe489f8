"""One task of a write: Arrow batches encoded into staged files, one for each partition that gets messages."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.append.partitioner import Partitioner
from storage.clock import SystemClock
from storage.directory import guest_rules
from storage.errors import InvalidRecord, StorageError, UnknownTopicOrPartition
from storage.files.commit_ledger import ContentSum, StagedBatchFile, WriteId
from storage.files.disk import RealDisk
from storage.format.block import RecordColumns
from storage.format.hashing import siphash_columns
from storage.log.log_dir import LogDir
from storage.staged_writes import commit
from storage.staged_writes.staging import StagedFileWriter
from storage.types import NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    UInt64s = NDArray[np.uint64]


# Arrow batches → RecordColumns, for the sink, without a Python object for each record.
#
# Arrow has keys, values and headers in separate buffers; they are concatenated once and not copied again. Values alone
# are not copied at all.

_MOST_VARINT_BYTES = 5


class _Bytes:
    """A column of strings or bytes: the start and length of each row in `data`; length -1 is null."""

    def __init__(self, array: pa.Array) -> None:
        wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
        _, offsets, data = array.buffers()
        bounds = np.zeros(len(array) + 1, np.int64)
        if offsets is not None and len(array):
            bounds[:] = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset :][: len(array) + 1]
        self.starts = bounds[:-1] - bounds[0]
        self.lengths = np.diff(bounds)
        if array.null_count:
            self.lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
        self.data = memoryview(b"" if data is None else data).cast("B")[int(bounds[0]) : int(bounds[-1])]


def record_columns(
    key: pa.Array | None, value: pa.Array, headers: pa.Array | None, timestamp: pa.Array | None = None
) -> RecordColumns:
    """The records of one Arrow batch. `headers`: lists of structs of a key and a value; `timestamp`: microseconds, cut
    to milliseconds, null for none.

    InvalidRecord for a header without a key.
    """
    values = _Bytes(value)
    parts, position = [values.data], len(values.data)
    columns = {"value_start": values.starts, "value_length": values.lengths}
    if key is not None:
        keys = _Bytes(key)
        columns |= {"key_start": keys.starts + position, "key_length": keys.lengths}
        parts.append(keys.data)
        position += len(keys.data)
    if headers is not None and len(headers.flatten()):
        counts = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        encoded, ends = _encoded_headers(*headers.flatten().flatten())
        bounds = np.concatenate([[0], ends])[np.concatenate([[0], counts.cumsum()])]
        columns |= {
            "headers_start": bounds[:-1] + position,
            "headers_length": np.diff(bounds),
            "headers_count": counts,
        }
        parts.append(encoded.data)
    buffer = values.data if len(parts) == 1 else b"".join(parts)
    return RecordColumns(buffer, timestamp=_milliseconds(timestamp), **columns)


def _milliseconds(timestamp: pa.Array | None) -> Int64s:
    if timestamp is None:
        return np.full(1, NO_TIMESTAMP, np.int64)
    microseconds = timestamp.cast(pa.timestamp("us", timestamp.type.tz)).cast(pa.int64())
    milliseconds: Int64s = microseconds.fill_null(0).to_numpy(zero_copy_only=False) // 1000
    if timestamp.null_count:
        milliseconds[timestamp.is_null().to_numpy(zero_copy_only=False)] = NO_TIMESTAMP
    return milliseconds


def _encoded_headers(key: pa.Array, value: pa.Array) -> tuple[NDArray[np.uint8], Int64s]:
    """Headers as format v2 stores them, back to back (name and value, each after its length), and where each ends."""
    if key.null_count:
        raise InvalidRecord("a header has no key")
    names, values = _Bytes(key), _Bytes(value)
    name_length, value_length = names.lengths * 2, np.where(values.lengths < 0, 1, values.lengths * 2)  # zigzag
    name_at = _varint_bytes(name_length)
    value_varint = _varint_bytes(value_length)
    sizes = name_at + names.lengths + value_varint + np.maximum(values.lengths, 0)
    ends = sizes.cumsum()
    starts = ends - sizes
    out = np.zeros(int(ends[-1]), np.uint8)
    _put_varints(out, starts, name_length, name_at)
    _put_bytes(out, starts + name_at, names)
    value_at = starts + name_at + names.lengths
    _put_varints(out, value_at, value_length, value_varint)
    _put_bytes(out, value_at + value_varint, values)
    return out, ends


def _varint_bytes(numbers: Int64s) -> Int64s:
    limits = [1 << 7 * size for size in range(1, _MOST_VARINT_BYTES)]
    return np.searchsorted(limits, numbers, side="right").astype(np.int64) + 1


def _put_varints(out: NDArray[np.uint8], at: Int64s, numbers: Int64s, sizes: Int64s) -> None:
    for byte in range(int(sizes.max())):
        rows = sizes > byte
        more = np.where(sizes[rows] > byte + 1, 0x80, 0)
        out[at[rows] + byte] = (numbers[rows] >> 7 * byte) & 0x7F | more


def _put_bytes(out: NDArray[np.uint8], at: Int64s, column: _Bytes) -> None:
    lengths = np.maximum(column.lengths, 0)
    source = np.frombuffer(column.data, np.uint8)
    # A null may have bytes in the buffer; they are not copied.
    within = np.arange(int(lengths.sum())) - np.repeat(lengths.cumsum() - lengths, lengths)
    out[np.repeat(at, lengths) + within] = source[np.repeat(column.starts, lengths) + within]


# A digest of the rows of a write: it distinguishes a replayed micro-batch from a different one with the same number.
#
# It is a sum over the rows, of topic, key, value and headers only: a replay divides the rows among tasks differently,
# chooses other partitions for null keys, and has other timestamps.

# Sums of these are stored on disk, so these numbers never change. They are arbitrary odd numbers.
_OF_VALUES: Final = np.uint64(0x9E3779B97F4A7C15)
_OF_KEYS: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_OF_HEADERS: Final = np.uint64(0x165667B19E3779F9)
_MIXED: Final = np.uint64(0xD6E8FEB86659FD93)


def content_of(records: RecordColumns, topic: str) -> ContentSum:
    """The digest of records for one topic."""
    rows = len(records)
    total = np.full(rows, zlib.crc32(topic.encode()), np.uint64)
    hashes = np.empty((rows, 1), np.uint64)
    for starts, lengths, factor in (
        (records.value_start, records.value_length, _OF_VALUES),
        (records.key_start, records.key_length, _OF_KEYS),
        (records.headers_start, records.headers_length, _OF_HEADERS),
    ):
        is_header = factor is _OF_HEADERS
        if is_header and not lengths.any():
            continue
        # A null value or key has hash 0, and so has a record without headers.
        present = np.where(lengths > 0, lengths, -1) if is_header else lengths
        siphash_columns(records.buffer, starts, present, 0, 0, hashes)
        total += hashes[:, 0] * factor
    total ^= total >> np.uint64(32)
    total *= _MIXED
    total ^= total >> np.uint64(29)
    return ContentSum(rows, int(total.sum(dtype=np.uint64)))


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
    """Stages all batches; returns the files and, if the write may be repeated, a digest of the rows.

    `columns`: those that are written; `topic` overrides the column of that name. `attempt`: identifies this attempt at
    the write; files of earlier attempts are removed first. `compression`: for topics that leave it to producers, none
    by default. UnknownTopicOrPartition, InvalidRecord, RecordTooLarge, NotPermitted, OSError: no file is left.
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


# What this process has cleared: later batches of an attempt need no clearing. A worker runs one task at a time.
_cleared: set[tuple[Path, str, str]] = set()


def _clear_earlier(path: Path, write: WriteId, attempt: str) -> None:
    """Removes the files of earlier attempts, once for each attempt. Files that cannot be removed now do no harm."""
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
        wanted = column("partition")
        self.partitions: Int64s | None = None
        if wanted is not None and wanted.null_count < len(wanted):
            if pc.min(wanted).as_py() < 0:
                raise InvalidRecord("a message requests a partition below 0", found=pc.min(wanted).as_py())
            self.partitions = wanted.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)

    def by_topic(self) -> Iterator[tuple[str, Int64s]]:
        """Each topic with its rows. InvalidRecord for a row without one."""
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

    def add(self, records: RecordColumns, wanted: Int64s | None) -> None:
        chosen = self._partitions(records, wanted)
        if (chosen == chosen[0]).all():
            self._writer(int(chosen[0])).append(records)
            return
        order = np.argsort(chosen, kind="stable")
        numbers, starts = np.unique(chosen[order], return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            self._writer(number).append(records.take(rows))

    def _partitions(self, records: RecordColumns, wanted: Int64s | None) -> Int64s:
        if wanted is not None and (wanted >= 0).all():
            return wanted
        if self._partitioner is None:
            raise UnknownTopicOrPartition(
                f"the number of partitions of {self._info.topic} is not known here",
                path=self._path,
                advice="Name each message's partition in a column 'partition'",
            )
        chosen = self._partitioner.choose(records)
        return chosen if wanted is None else np.where(wanted < 0, chosen, wanted)

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
