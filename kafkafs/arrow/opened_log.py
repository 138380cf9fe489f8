"""What `kafkafs.open` returns: the topics of one or several log directories, their partitions, scans and messages."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from kafkafs.arrow.log_dirs import InvalidOption, LogDirs
from kafkafs.arrow.scan import Scan, Source
from kafkafs.arrow.scan_making import Arguments, make_scan
from storage.client.counting import visible_end
from storage.errors import InvalidRecord, UnknownTopicOrPartition
from storage.files.names import KAFKAS_OWN_TOPICS
from storage.files.opening import real_place
from storage.format.batches import BatchTable
from storage.format.block import RecordBlock
from storage.format.record_columns import Record, RecordColumns
from storage.tier.tier import Tier
from storage.types import NO_TIMESTAMP, Isolation, TimestampType, TopicPartition

if TYPE_CHECKING:
    from kafkafs.arrow.block_texts import Decoding, Side
    from storage.log.snapshot import LogSnapshot

Paths = str | os.PathLike[str] | list[str | os.PathLike[str]] | tuple[str | os.PathLike[str], ...]


class NotHere(UnknownTopicOrPartition, KeyError):
    """No such topic or partition in the log directories."""


def open_log(
    paths: Paths,
    isolation: str = Isolation.READ_UNCOMMITTED.value,
    schemas: str | os.PathLike[str] | None = None,
    tier: Paths | Tier | None = None,
    tier_keys: Mapping[str, str | os.PathLike[str]] | None = None,
) -> Log:
    """See `kafkafs.open`."""
    several = paths if isinstance(paths, list | tuple) else [paths]
    if not several:
        raise InvalidOption("no log directory is named")
    try:
        level = Isolation(isolation)
    except ValueError:
        levels = " or ".join(repr(level.value) for level in Isolation)
        raise InvalidOption(f"isolation must be {levels}, not {isolation!r}") from None
    places = tuple(dict.fromkeys(real_place(Path(path).absolute()) for path in several))
    return Log(
        Source(LogDirs(places, _tier(tier, tier_keys)), places, level, None if schemas is None else Path(schemas))
    )


def _tier(given: Paths | Tier | None, keys: Mapping[str, str | os.PathLike[str]] | None) -> Tier | None:
    if given is None or isinstance(given, Tier):
        return given
    places = [os.fspath(place) for place in (given if isinstance(given, list | tuple) else [given])]
    absolute = [place if "://" in place else str(Path(place).absolute()) for place in places]
    return Tier(absolute, {name: Path(file).absolute() for name, file in (keys or {}).items()})


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """Log directories, read as one. Nothing is locked, changed or kept open; threads may share it."""

    _source: Source = field(repr=False)

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The topics as they are now, by name. OSError."""
        self._source.log_dirs.refresh()
        return {name: Topic(self._source, name) for name in self._source.log_dirs.topics()}

    def __getitem__(self, topic: str) -> Topic:
        topics = self.topics
        if topic not in topics:
            raise NotHere(f"no topic {topic!r} in {self._source.log_dirs}")
        return topics[topic]

    def __contains__(self, topic: object) -> bool:
        return topic in self.topics

    def __iter__(self) -> Iterator[str]:
        return iter(self.topics)

    def __repr__(self) -> str:
        return f"<kafkafs log {self._source.log_dirs}>"


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """A topic: its partitions by number, its configuration, and what can be read of it."""

    _source: Source = field(repr=False)
    name: str

    @property
    def partitions(self) -> Mapping[int, Partition]:
        """The partitions that are in the log directories, by number."""
        numbers = self._source.log_dirs.partitions(self.name)
        return {number: Partition(self._source, TopicPartition(self.name, number)) for number in numbers}

    @property
    def offsets(self) -> dict[int, tuple[int, int]]:
        """Of each partition the log start offset, and the end: the last stable offset with `read_committed`."""
        return {number: partition.offsets for number, partition in self.partitions.items()}

    @property
    def config(self) -> dict[str, str]:
        """What is configured for this topic, as texts."""
        log_dirs, number = self._source.log_dirs, next(iter(self.partitions))
        directory = log_dirs.directories[log_dirs.place(TopicPartition(self.name, number))]
        return dict(directory.topic_info(self.name).overrides)

    def __getitem__(self, partition: int) -> Partition:
        partitions = self.partitions
        if partition not in partitions:
            raise NotHere(f"no partition {self.name}/{partition} in {self._source.log_dirs}")
        return partitions[partition]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions.values())

    def scan(self, **arguments: Unpack[Arguments]) -> Scan:
        """The messages that the arguments choose, as record batches (kafkafs/CONTRACT.md, "From Python").

        InvalidOption, StorageError, OSError.
        """
        return make_scan(self._source, self.name, **arguments)

    def messages(self, **arguments: Unpack[Arguments]) -> Iterator[Message]:
        """The messages that the arguments of `scan` choose, one by one. Errors as of a scan and its iteration."""
        return _messages(self._source, make_scan(self._source, self.name, **arguments))


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A partition, and what can be read of it."""

    _source: Source = field(repr=False)
    tp: TopicPartition

    @property
    def offsets(self) -> tuple[int, int]:
        """The log start offset, and the end: the last stable offset with `read_committed`."""
        snapshot = self._snapshot()
        return snapshot.log_start_offset, visible_end(snapshot, self._source.isolation)

    def scan(self, **arguments: Unpack[Arguments]) -> Scan:
        """See `Topic.scan`; without `partitions`."""
        return make_scan(self._source, self.tp.topic, **(arguments | {"partitions": self.tp.partition}))

    def messages(self, **arguments: Unpack[Arguments]) -> Iterator[Message]:
        """See `Topic.messages`."""
        return _messages(self._source, self.scan(**arguments))

    def _snapshot(self) -> LogSnapshot:
        return self._source.log_dirs.log(self.tp).snapshot()


@dataclass(frozen=True, slots=True)
class Message:
    """A message. `timestamp`: epoch milliseconds, -1 for none; `headers`: names as text, with U+FFFD for bytes that are
    not UTF-8."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    timestamp_type: TimestampType
    headers: tuple[tuple[str, bytes | None], ...]
    _decoder: _Decoder = field(repr=False, compare=False)

    @property
    def time(self) -> datetime | None:
        """The timestamp in UTC; None for none. OverflowError outside the years 1 to 9999."""
        if self.timestamp == NO_TIMESTAMP:
            return None
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.timestamp)

    @property
    def decoded(self) -> Any:
        """The value as Python has what `decoded.jsonl` shows of it; None for null.

        InvalidOption where there are no schemas, InvalidRecord for a value that cannot be decoded.
        """
        return self._decoder.decoded(self, "value")

    @property
    def decoded_key(self) -> Any:
        """The key, as `decoded`."""
        return self._decoder.decoded(self, "key")


class _Decoder:
    """Decodes messages one by one; threads may share it."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def decoded(self, message: Message, side: Side) -> Any:
        from kafkafs.arrow.block_texts import Decoding, schemas_for
        from kafkafs.schemas.registry import Registry

        own = message.topic in KAFKAS_OWN_TOPICS
        schemas = Registry() if own else schemas_for(self._source.paths, self._source.schemas)
        decoding = Decoding(schemas, (side,))
        headers = [(name.encode(), value) for name, value in message.headers]
        record = RecordColumns.from_records([Record(message.key, message.value, headers, message.timestamp)])
        block = RecordBlock(memoryview(bytes(record.buffer)), BatchTable.empty(0), record.columns, 1)
        decoding.take(TopicPartition(message.topic, message.partition), block)
        return self._of(decoding, side, message)

    @staticmethod
    def _of(decoding: Decoding, side: Side, message: Message) -> Any:
        texts = decoding.texts(side)
        if 0 in texts.errors:
            what = f"{side} of {message.topic}/{message.partition} cannot be decoded: {texts.errors[0]}"
            raise InvalidRecord(what, offset=message.offset)
        return json.loads(bytes(texts.data)) if texts.valid[0] else None


def _messages(source: Source, scan: Scan) -> Iterator[Message]:
    decoder = _Decoder(source)
    for tp, block in scan.blocks():
        types = block.table.timestamp_type[block.batch].tolist()
        rows = zip(block.offset.tolist(), block.timestamp.tolist(), types, block.headers_count.tolist(), strict=True)
        for row, (offset, timestamp, timestamp_type, headers) in enumerate(rows):
            yield Message(
                tp.topic,
                tp.partition,
                offset,
                block.key(row),
                block.value(row),
                timestamp,
                TimestampType(timestamp_type),
                tuple((name.decode(errors="replace"), value) for name, value in block.headers(row)) if headers else (),
                decoder,
            )
