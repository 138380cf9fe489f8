"""The classes behind `kafkafs.open`: the topics of log directories, their partitions, scans and messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, SupportsIndex, TypeVar

from kafkafs.arrow import COLUMNS, DECODED
from kafkafs.arrow.arguments import (
    chosen,
    column_names,
    directory,
    key_bytes,
    key_files,
    offset_range,
    partition_numbers,
    path_texts,
    schema_places,
    shown,
    time_range,
)
from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.arrow.keywords import checked_keywords, nearest
from kafkafs.arrow.log_dirs import LogDirs
from kafkafs.arrow.scan import TYPED, Part, Scan, ScanProgress, Skipped, Source, lose, require_pyarrow
from kafkafs.reading.selection import DEFAULT_LATEST_BYTES, ChosenOffsets, Question, RecordFilter
from kafkafs.reading.split_reader import Split
from storage.errors import InvalidConfig, InvalidRecord, OffsetOutOfRange, TierUnavailable, UnknownTopicOrPartition
from storage.files.names import KAFKAS_OWN_TOPICS
from storage.files.opening import real_place
from storage.format.batches import BatchTable
from storage.format.block import Record, RecordBlock, RecordColumns
from storage.latest.latest_records import latest_offsets
from storage.log.counting import visible_end
from storage.types import NO_TIMESTAMP, Isolation, OffsetRange, TimeRange, TimestampType, TopicPartition

if TYPE_CHECKING:
    from kafkafs.arrow.arguments import AnyPath, Columns, Decode, Key, Offsets, OnDamage, Partitions, Paths, Times
    from kafkafs.arrow.block_texts import Side
    from kafkafs.arrow.scan import Text
    from kafkafs.arrow.typed_values import TypedForm
    from kafkafs.reading.range_names import OffsetSpec, TimeSpec
    from kafkafs.schemas.places import SchemaPlaces
    from storage.log.log_dir import LogDir
    from storage.log.snapshot import LogSnapshot
    from storage.tier.tier import Tier


_LISTED: Final = 20  # partitions, in a message
_Read = TypeVar("_Read")


class NotHere(UnknownTopicOrPartition, KeyError, InvalidOption):
    """The log directories have no such topic or partition: for a subscript or an argument, or because it was
    removed."""


def make_scan(
    source: Source,
    topic: str,
    *,
    partitions: Partitions = None,
    offsets: Offsets = None,
    time: Times = None,
    key: Key = None,
    latest: bool = False,
    columns: Columns = None,
    decode: Decode = False,
    text: Text = False,
    on_damage: OnDamage = "fail",
) -> Scan:
    """Return the result of `scan` of a topic or partition (kafkafs/CONTRACT.md, "From Python").

    InvalidOption for an invalid argument; StorageError, OSError.
    """
    fail = chosen("on_damage", on_damage, "fail", "skip") == "fail"
    text = chosen("text", text, True, False, "strict", "replace")
    decode = chosen("decode", decode, True, False, "json")
    wanted_key = key_bytes(key)
    spec, times = offset_range(offsets), time_range(time, _today(source))
    if chosen("latest", latest, True, False) and (offsets is not None or time is not None):
        raise InvalidOption("latest means the whole log as it is now: it cannot be combined with offsets or time")
    progress = ScanProgress()
    given = None if partitions is None else partition_numbers(partitions)
    numbers = _partitions(source.log_dirs, topic, given, progress, fail=fail)
    form = _typed_form(source, topic, decode) if decode else None
    known = (*COLUMNS, *((*DECODED, *((TYPED,) if form is not None else ())) if decode else ()))
    chosen_columns = column_names(columns, known, () if decode else (*DECODED, TYPED))
    make = _latest if latest else _part
    while True:
        tps = [TopicPartition(topic, number) for number in numbers]
        try:
            parts = (make(source, tp, spec, times, progress, fail=fail) for tp in tps)
            keyed = tuple(replace(part, record_filter=part.record_filter._replace(key=wanted_key)) for part in parts)
            return Scan(source, topic, keyed, chosen_columns, form, text, fail, progress)
        except UnknownTopicOrPartition:  # a partition was removed after it was listed
            chosen_numbers = None if given is None else numbers
            numbers = _partitions(source.log_dirs, topic, chosen_numbers, progress, fail=fail)


def _part(
    source: Source,
    tp: TopicPartition,
    spec: OffsetSpec | tuple[int | None, int | None] | None,
    times: TimeSpec | None,
    progress: ScanProgress,
    *,
    fail: bool,
) -> Part:
    def part(log_dir: LogDir, snapshot: LogSnapshot) -> Part:
        begin, visible = snapshot.log_start_offset, visible_end(snapshot, source.isolation)
        question = Question(None if isinstance(spec, tuple) else spec, times, source.isolation)
        selection = question.resolve(snapshot, log_dir.clock.now_ms())
        start, end = selection.start_offset, selection.end_offset
        end = visible if end is None else min(end, visible)
        if spec is None or isinstance(spec, tuple):
            first, last = spec or (None, None)
            asked = snapshot.whole_start_offset if first is None else first
            until = visible if last is None else min(last, visible)
            if asked < begin and asked < until:
                lose(progress, tp, OffsetRange(asked, min(begin, until)), snapshot.why_not_earlier, fail=fail)
            start, end = max(start, asked), min(end, until)
        return _made(log_dir, snapshot, start, end, selection.time_range)

    return source.log_dirs.read(tp, part)


def _latest(
    source: Source,
    tp: TopicPartition,
    _spec: object,
    _times: object,
    progress: ScanProgress,
    *,
    fail: bool,
) -> Part:
    def part(log_dir: LogDir, snapshot: LogSnapshot) -> Part:
        remote = snapshot.remote_offsets
        if remote is not None:
            lose(progress, tp, remote, snapshot.why_not_earlier, fail=fail)
        offsets = ChosenOffsets(latest_offsets(snapshot, source.isolation, DEFAULT_LATEST_BYTES))
        end = visible_end(snapshot, source.isolation)
        return replace(_made(log_dir, snapshot, snapshot.log_start_offset, end, None), latest=offsets)

    return source.log_dirs.read(tp, part)


def _made(log_dir: LogDir, snapshot: LogSnapshot, start: int, end: int, times: TimeRange | None) -> Part:
    split = Split(snapshot.tp, start, max(start, end), 0, snapshot.identity)
    return Part(split, log_dir, RecordFilter(times=times))


def _today(source: Source) -> date:
    return datetime.fromtimestamp(source.log_dirs.directories[0].clock.now_ms() / 1000, UTC).date()


def _partitions(
    log_dirs: LogDirs, topic: str, given: Iterable[int] | None, progress: ScanProgress, *, fail: bool
) -> list[int]:
    """The partitions to read. Without a choice, partitions that the cluster has and no directory contains are reported
    as lost. NotHere if the topic was removed."""
    stored = log_dirs.partitions(topic)
    if not stored:
        raise NotHere(f"no topic {topic!r} in {log_dirs}")
    if given is not None:
        numbers: set[int] = set()
        missing: dict[int, None] = {}
        for number in given:
            if number in stored:
                numbers.add(number)
            else:
                missing[number] = None
            if len(missing) == _LISTED:
                break
        if missing:
            listed = ", ".join(map(str, missing))
            raise NotHere(f"{topic} has no partition {listed} in {log_dirs}: it has {', '.join(map(str, stored))}")
        return sorted(numbers)
    absent = [tp for tp in log_dirs.absent() if tp.topic == topic]
    if absent and fail:
        listed = ", ".join(map(str, absent[:_LISTED])) + " and more" * (len(absent) > _LISTED)
        raise OffsetOutOfRange(
            f"{listed} known to the cluster and not in {log_dirs}",
            advice="Open the other log directories as well, or name the partitions: partitions="
            f"{stored[:_LISTED]}; on_damage='skip' reads the others",
        )
    for tp in absent:
        progress.skip(Skipped(tp, f"{tp} is known to the cluster and not in {log_dirs}"))
    return stored


def _typed_form(source: Source, topic: str, decode: Decode) -> TypedForm | None:
    """The typed columns of a topic's values; None for values as JSON. InvalidOption if there are no schemas."""
    require_pyarrow()
    from kafkafs.arrow.topic_schemas import schemas_for

    if topic in KAFKAS_OWN_TOPICS:
        return None
    schemas_for(source.paths, source.schemas)
    if decode == "json":
        return None
    from kafkafs.arrow.typed_values import typed_form

    try:
        return typed_form(source.paths, source.schemas, [TopicPartition(topic, 0)], None)
    except InvalidConfig:
        return None


def open_log(
    paths: Paths,
    isolation: str = Isolation.READ_UNCOMMITTED.value,
    schemas: Paths | SchemaPlaces | None = None,
    tier: Paths | Tier | None = None,
    tier_keys: Mapping[str, AnyPath] | None = None,
) -> Log:
    """Open log directories, for `kafkafs.open`."""
    names = path_texts("path", paths)
    named = isolation.value if isinstance(isolation, Isolation) else isolation
    level = Isolation(chosen("isolation", named, *(each.value for each in Isolation)))
    places_of_schemas, remote = schema_places("schemas", schemas), _tier(tier, tier_keys)
    places = tuple(dict.fromkeys(_place(name) for name in names))
    return Log(Source(LogDirs(places, remote), places, level, places_of_schemas))


def _place(name: str) -> Path:
    if "://" not in name:
        return real_place(Path(name).absolute())
    from storage.log.stored_dir import open_stored

    return open_stored(name)


def _tier(given: Paths | Tier | None, keys: Mapping[str, AnyPath] | None) -> Tier | None:
    files = key_files("tier_keys", keys)
    if given is None:
        if files:
            raise InvalidOption("tier_keys decrypt objects in a tier: name the tier too, as tier=")
        return None
    from storage.tier.tier import Tier

    if isinstance(given, Tier):
        return given
    places = [place if "://" in place else str(directory("tier", place)) for place in path_texts("tier", given)]
    try:
        return Tier(places, files)
    except TierUnavailable as error:  # a URL of an unknown kind, or of a kind that needs another package
        raise InvalidOption(f"tier: {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """Log directories, read as one: topics by name. Nothing is locked, changed or kept open; threads may share it.

    Unpickling opens the directories again.
    """

    _source: Source = field(repr=False)

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The present topics, by name. OSError."""
        self._source.log_dirs.refresh()
        return {name: Topic(self._source, name) for name in self._source.log_dirs.topics()}

    @property
    def has_schemas(self) -> bool:
        """Whether there are schemas to decode keys and values. StorageError, OSError."""
        from kafkafs.arrow.topic_schemas import schemas_for

        try:
            schemas_for(self._source.paths, self._source.schemas)
        except InvalidOption:
            return False
        return True

    def __getitem__(self, topic: str) -> Topic:
        """Return the topic of this name. NotHere, which is a KeyError; OSError."""
        topics = self.topics
        if not isinstance(topic, str) or topic not in topics:
            raise NotHere(f"no topic {shown(topic)} in {self._source.log_dirs}{nearest(topic, topics)}")
        return topics[topic]

    def __contains__(self, topic: object) -> bool:
        """Whether there is a topic of this name at present. OSError."""
        return isinstance(topic, str) and topic in self.topics

    def __iter__(self) -> Iterator[str]:
        """The names of the present topics, ascending. OSError."""
        return iter(self.topics)

    def __repr__(self) -> str:
        return f"<kafkafs log {self._source.log_dirs}>"


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """A topic: its partitions by number, its configuration, and its messages. Threads may share it."""

    _source: Source = field(repr=False)
    name: str

    @property
    def partitions(self) -> Mapping[int, Partition]:
        """The partitions in the log directories, by number."""
        numbers = self._source.log_dirs.partitions(self.name)
        return {number: Partition(self._source, TopicPartition(self.name, number)) for number in numbers}

    @property
    def offsets(self) -> dict[int, tuple[int, int]]:
        """The log start offset and the end of each partition; with `read_committed` the end is the last stable
        offset."""
        offsets = {}
        for number, partition in self.partitions.items():
            with suppress(NotHere):  # removed after it was listed
                offsets[number] = partition.offsets
        return offsets

    @property
    def config(self) -> dict[str, str]:
        """The topic's own configuration, as texts. NotHere if the topic was removed."""
        for partition in self:
            with suppress(NotHere):  # removed after it was listed
                return partition._read(lambda log_dir, _: dict(log_dir.topic_info(self.name).overrides))
        raise NotHere(f"no topic {self.name!r} in {self._source.log_dirs}")

    def __getitem__(self, partition: int) -> Partition:
        """Return the partition with this number. NotHere, which is a KeyError."""
        partitions = self.partitions
        if not _is_in(partition, partitions):
            numbers = ", ".join(map(str, partitions)) or "none"
            existing = f"{self._source.log_dirs}: it has {numbers}"
            raise NotHere(f"no partition {shown(partition)} of {self.name} in {existing}")
        return partitions[partition]

    def __contains__(self, partition: object) -> bool:
        """Whether the topic has a partition with this number."""
        return _is_in(partition, self.partitions)

    def __iter__(self) -> Iterator[Partition]:
        """The partitions, by number."""
        return iter(self.partitions.values())

    @checked_keywords()
    def scan(
        self,
        *,
        partitions: Partitions = None,
        offsets: Offsets = None,
        time: Times = None,
        key: Key = None,
        latest: bool = False,
        columns: Columns = None,
        decode: Decode = False,
        text: Text = False,
        on_damage: OnDamage = "fail",
    ) -> Scan:
        """Return the messages that the arguments choose, as record batches (kafkafs/CONTRACT.md, "From Python").

        `partitions`: a number or several; without it all that the cluster has. A partition that no directory contains
        is an error. `offsets`: a pair, from (included) to (excluded), None for no limit; or a text as after
        `--offsets`: "100-199", "last-10", "earliest". `time`: such a pair, each a text as after `--time`, epoch
        milliseconds, a datetime or date (UTC without a zone) or None; or a text as after `--time`: "today", "last-15m",
        "2026-11-20T10--". Offsets and times of a pair that the log does not have yet choose nothing. `key`: only
        messages with this key: bytes, or a text for its UTF-8. `latest`: only the last message of every key of a
        partition, as in `latest.txt`; without `offsets` and `time`. `columns`: names, in this order; without it all.
        `decode`: True for more columns and typed values, "json" for more columns alone. `text`: keys and values are
        strings: True or "strict" makes other bytes an error, "replace" has U+FFFD for them. `on_damage`: "fail", or
        "skip": skip damage, and messages that are gone, and list them in `skipped`. With `latest` damage is always an
        error, because it may hide a last message.

        ValueError for an invalid argument; StorageError, OSError.
        """
        return make_scan(
            self._source,
            self.name,
            partitions=partitions,
            offsets=offsets,
            time=time,
            key=key,
            latest=latest,
            columns=columns,
            decode=decode,
            text=text,
            on_damage=on_damage,
        )

    @checked_keywords()
    def messages(
        self,
        *,
        partitions: Partitions = None,
        offsets: Offsets = None,
        time: Times = None,
        key: Key = None,
        latest: bool = False,
        on_damage: OnDamage = "fail",
    ) -> Iterator[Message]:
        """Return the messages that the arguments choose, one by one, by partition and offset. They need no pyarrow.

        `partitions`, `offsets`, `time`, `key`, `latest`, `on_damage`: see `scan`. Keys and values are bytes, and
        `Message.decoded` is the value by its schema. The call checks the arguments and fixes the end; errors of reading
        are raised during iteration.

        ValueError for an invalid argument; StorageError, OSError.
        """
        scan = make_scan(
            self._source,
            self.name,
            partitions=partitions,
            offsets=offsets,
            time=time,
            key=key,
            latest=latest,
            on_damage=on_damage,
        )
        return _messages(self._source, scan)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A partition and its messages. Threads may share it."""

    _source: Source = field(repr=False)
    tp: TopicPartition

    @property
    def offsets(self) -> tuple[int, int]:
        """The log start offset and the end; with `read_committed` the end is the last stable offset. NotHere if the
        partition was removed."""
        isolation = self._source.isolation
        return self._read(lambda _, snapshot: (snapshot.log_start_offset, visible_end(snapshot, isolation)))

    @checked_keywords()
    def scan(
        self,
        *,
        offsets: Offsets = None,
        time: Times = None,
        key: Key = None,
        latest: bool = False,
        columns: Columns = None,
        decode: Decode = False,
        text: Text = False,
        on_damage: OnDamage = "fail",
    ) -> Scan:
        """Return the messages of this partition that the arguments choose, as record batches.

        `offsets`: a pair, from (included) to (excluded), None for no limit; or a text as after `--offsets`.
        `time`: such a pair of texts, epoch milliseconds, datetimes, dates or None; or a text as after `--time`.
        `key`, `latest`, `columns`, `decode`, `text`, `on_damage`: see `Topic.scan`.

        ValueError for an invalid argument; StorageError, OSError.
        """
        return make_scan(
            self._source,
            self.tp.topic,
            partitions=self.tp.partition,
            offsets=offsets,
            time=time,
            key=key,
            latest=latest,
            columns=columns,
            decode=decode,
            text=text,
            on_damage=on_damage,
        )

    @checked_keywords()
    def messages(
        self,
        *,
        offsets: Offsets = None,
        time: Times = None,
        key: Key = None,
        latest: bool = False,
        on_damage: OnDamage = "fail",
    ) -> Iterator[Message]:
        """Return the messages of this partition that the arguments choose, one by one, by offset. They need no pyarrow.

        `offsets`: a pair, from (included) to (excluded), None for no limit; or a text as after `--offsets`.
        `time`: such a pair of texts, epoch milliseconds, datetimes, dates or None; or a text as after `--time`.
        `key`, `latest`, `on_damage`: see `Topic.messages`.

        ValueError for an invalid argument; StorageError, OSError.
        """
        scan = make_scan(
            self._source,
            self.tp.topic,
            partitions=self.tp.partition,
            offsets=offsets,
            time=time,
            key=key,
            latest=latest,
            on_damage=on_damage,
        )
        return _messages(self._source, scan)

    def _read(self, read: Callable[[LogDir, LogSnapshot], _Read]) -> _Read:
        try:
            return self._source.log_dirs.read(self.tp, read)
        except UnknownTopicOrPartition as error:
            raise NotHere(error.what, path=error.path) from None


def _is_in(partition: object, partitions: Mapping[int, Partition]) -> bool:
    """Whether the object is the number of a partition. True and 1.0 are not, though they equal 1."""
    return not isinstance(partition, bool | float) and isinstance(partition, SupportsIndex) and partition in partitions


@dataclass(frozen=True)
class Message:
    """A message, as a plain value. `timestamp`: epoch milliseconds, -1 for none; `headers`: names as text, with U+FFFD
    for bytes that are not UTF-8."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    timestamp_type: TimestampType
    headers: tuple[tuple[str, bytes | None], ...]
    # The log directories and the place of schemas, set on each message that was read. Not a field, so that `asdict`,
    # comparison and a DataFrame have only the contents of the log.
    _decoded_by: ClassVar[tuple[tuple[Path, ...], SchemaPlaces] | None] = None

    @property
    def time(self) -> datetime | None:
        """The timestamp in UTC; None if there is none. OverflowError outside the years 1 to 9999."""
        if self.timestamp == NO_TIMESTAMP:
            return None
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.timestamp)

    @property
    def decoded(self) -> Any:
        """The value that `decoded.jsonl` shows, as a Python object; None for null.

        ValueError if there are no schemas, InvalidRecord for a value that cannot be decoded.
        """
        return _decoded(self, "value")

    @property
    def decoded_key(self) -> Any:
        """The key that `decoded.jsonl` shows, as a Python object; None for null. The errors are those of `decoded`."""
        return _decoded(self, "key")


def _decoded(message: Message, side: Side) -> Any:
    from kafkafs.arrow.block_texts import Decoding
    from kafkafs.arrow.topic_schemas import schemas_of_topic

    if message._decoded_by is None:
        raise InvalidOption(f"a message that was not read from a log has no schemas: {message}")
    decoding = Decoding(schemas_of_topic(message.topic, *message._decoded_by), (side,))
    headers = [(name.encode(), value) for name, value in message.headers]
    record = RecordColumns.from_records([Record(message.key, message.value, headers, message.timestamp)])
    block = RecordBlock(memoryview(bytes(record.buffer)), BatchTable.empty(0), record.columns, 1)
    decoding.take(TopicPartition(message.topic, message.partition), block)
    texts = decoding.texts(side)
    if 0 in texts.errors:
        what = f"{side} of {message.topic}/{message.partition} cannot be decoded: {texts.errors[0]}"
        raise InvalidRecord(what, offset=message.offset)
    return json.loads(bytes(texts.data)) if texts.valid[0] else None


def _messages(source: Source, scan: Scan) -> Iterator[Message]:
    decoded_by = source.paths, source.schemas
    for tp, block in scan.blocks():
        types = block.table.timestamp_type[block.batch].tolist()
        rows = zip(block.offset.tolist(), block.timestamp.tolist(), types, block.headers_count.tolist(), strict=True)
        for row, (offset, timestamp, timestamp_type, headers) in enumerate(rows):
            message = Message(
                tp.topic,
                tp.partition,
                offset,
                block.key(row),
                block.value(row),
                timestamp,
                TimestampType(timestamp_type),
                tuple((name.decode(errors="replace"), value) for name, value in block.headers(row)) if headers else (),
            )
            object.__setattr__(message, "_decoded_by", decoded_by)  # Message is frozen
            yield message
