"""What `kafkafs.open` returns: the topics of one or several log directories, their partitions, scans and messages."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from kafkafs.arrow import COLUMNS, DECODED
from kafkafs.arrow.log_dirs import InvalidOption, LogDirs
from kafkafs.arrow.scan import TYPED, Part, Place, Progress, Scan, Source, Text, lose, require_pyarrow
from kafkafs.arrow.split_reader import Split
from kafkafs.reading.range_names import (
    MalformedRange,
    OffsetSpec,
    TimeBetween,
    TimeSpec,
    parse_offset_spec,
    parse_time_spec,
)
from kafkafs.reading.selection import DEFAULT_LATEST_BYTES, ChosenOffsets, Question
from storage.errors import InvalidConfig, InvalidRecord, OffsetOutOfRange, UnknownTopicOrPartition
from storage.files.names import KAFKAS_OWN_TOPICS
from storage.files.opening import real_place
from storage.format.batches import BatchTable
from storage.format.block import Record, RecordBlock, RecordColumns
from storage.latest.latest_records import latest_offsets
from storage.log.counting import visible_end
from storage.log.reader import reread
from storage.types import NO_TIMESTAMP, Isolation, OffsetRange, TimeRange, TimestampType, TopicPartition

if TYPE_CHECKING:
    from kafkafs.arrow.block_texts import Side
    from kafkafs.arrow.typed_values import TypedForm
    from storage.log.log_dir import LogDir
    from storage.log.snapshot import LogSnapshot
    from storage.tier.tier import Tier


# What a Python program says about the messages that it wants → a scan: which offsets of which partitions.
#
# Offsets and times as texts mean what they mean after `--offsets` and `--time`.

Moment = str | int | datetime | None
"""A time as `--time` takes it, epoch milliseconds, or a datetime (UTC if it has no zone); None is open."""

Offsets = tuple[int | None, int | None] | str | None
Times = tuple[Moment, Moment] | str | None
OnDamage = Literal["fail", "skip"]
Decode = bool | Literal["json"]


class Arguments(TypedDict, total=False):
    """What `scan` takes: see `make_scan`."""

    partitions: int | Iterable[int] | None
    offsets: Offsets
    time: Times
    key: bytes | str | None
    latest: bool
    columns: str | Sequence[str] | None
    decode: Decode
    text: Text
    on_damage: OnDamage


_LISTED: Final = 20  # partitions, in a message


def make_scan(
    source: Source,
    topic: str,
    *,
    partitions: int | Iterable[int] | None = None,
    offsets: Offsets = None,
    time: Times = None,
    key: bytes | str | None = None,
    latest: bool = False,
    columns: str | Sequence[str] | None = None,
    decode: Decode = False,
    text: Text = False,
    on_damage: OnDamage = "fail",
) -> Scan:
    """What `scan` of a topic or partition returns (kafkafs/CONTRACT.md, "From Python").

    InvalidOption for an argument that cannot be; StorageError, OSError.
    """
    if on_damage not in ("fail", "skip"):
        raise InvalidOption(f"on_damage must be 'fail' or 'skip', not {on_damage!r}")
    if text not in (True, False, "strict", "replace"):
        raise InvalidOption(f"text must be True, False, 'strict' or 'replace', not {text!r}")
    if latest and (offsets is not None or time is not None):
        raise InvalidOption("latest means the whole log as it is now: it cannot be combined with offsets or time")
    if decode not in (True, False, "json"):
        raise InvalidOption(f"decode must be True, False or 'json', not {decode!r}")
    progress, fail = Progress(), on_damage == "fail"
    numbers = _partitions(source.log_dirs, topic, partitions, progress, fail=fail)
    form = _typed_form(source, topic, decode) if decode else None
    known = (*COLUMNS, *((*DECODED, *((TYPED,) if form is not None else ())) if decode else ()))
    wanted = known if columns is None else _columns(columns, known)
    spec, times = _offsets(offsets), _times(time)
    make = _latest if latest else _part
    parts = []
    for number in numbers:
        tp = TopicPartition(topic, number)
        parts.append(make(source, tp, spec, times, progress, fail=fail))
    wanted_key = key.encode() if isinstance(key, str) else key
    return Scan(source, topic, tuple(parts), wanted, wanted_key, form, text, fail, progress)


def _part(
    source: Source,
    tp: TopicPartition,
    spec: OffsetSpec | tuple[int | None, int | None] | None,
    times: TimeSpec | None,
    progress: Progress,
    *,
    fail: bool,
) -> Part:
    log_dir = source.log_dirs.directories[source.log_dirs.place(tp)]
    snapshot = log_dir.log(tp).snapshot()
    begin, visible = snapshot.log_start_offset, visible_end(snapshot, source.isolation)
    question = Question(None if isinstance(spec, tuple) else spec, times, source.isolation)
    selection = question.resolve(snapshot, log_dir.clock.now_ms())
    start, end = selection.start_offset, visible if selection.end_offset is None else min(selection.end_offset, visible)
    if spec is None or isinstance(spec, tuple):
        first, last = spec or (None, None)
        asked = snapshot.whole_start_offset if first is None else first
        until = visible if last is None else min(last, visible)
        if asked < begin and asked < until:
            lose(progress, tp, OffsetRange(asked, min(begin, until)), snapshot.why_not_earlier, fail=fail)
        start, end = max(start, asked), min(end, until)
    return _made(log_dir, snapshot, start, end, selection.time_range)


def _latest(
    source: Source,
    tp: TopicPartition,
    _spec: object,
    _times: object,
    progress: Progress,
    *,
    fail: bool,
) -> Part:
    log_dir = source.log_dirs.directories[source.log_dirs.place(tp)]

    def part(snapshot: LogSnapshot) -> Part:
        remote = snapshot.remote_offsets
        if remote is not None:
            lose(progress, tp, remote, snapshot.why_not_earlier, fail=fail)
        chosen = ChosenOffsets(latest_offsets(snapshot, source.isolation, DEFAULT_LATEST_BYTES))
        end = visible_end(snapshot, source.isolation)
        return replace(_made(log_dir, snapshot, snapshot.log_start_offset, end, None), latest=chosen)

    return reread(log_dir.log(tp), part)


def _made(log_dir: LogDir, snapshot: LogSnapshot, start: int, end: int, times: TimeRange | None) -> Part:
    split = Split(snapshot.tp, start, max(start, end), 0, snapshot.identity)
    return Part(split, log_dir, snapshot, times)


def _partitions(
    log_dirs: LogDirs, topic: str, given: int | Iterable[int] | None, progress: Progress, *, fail: bool
) -> list[int]:
    """The partitions that are read. Without a choice those that the cluster has and no directory are lost ones."""
    here = log_dirs.partitions(topic)
    if given is not None:
        chosen = sorted({given} if isinstance(given, int) else set(given))
        missing = [number for number in chosen if number not in here]
        if missing:
            listed = ", ".join(map(str, missing[:_LISTED]))
            raise InvalidOption(f"{topic} has no partition {listed} in {log_dirs}: it has {', '.join(map(str, here))}")
        return chosen
    absent = [tp for tp in log_dirs.absent() if tp.topic == topic]
    if absent and fail:
        listed = ", ".join(map(str, absent[:_LISTED])) + " and more" * (len(absent) > _LISTED)
        raise OffsetOutOfRange(
            f"{listed} known to the cluster and not in {log_dirs}",
            advice="Open the other log directories as well, or name the partitions: partitions="
            f"{here[:_LISTED]}; on_damage='skip' reads what is here",
        )
    for tp in absent:
        progress.skip(Place(tp, f"{tp} is known to the cluster and not in {log_dirs}"))
    return here


def _columns(given: str | Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    chosen = (given,) if isinstance(given, str) else tuple(given)
    for column in chosen:
        if column not in known:
            need = " (with decode=True)" if column in (*DECODED, TYPED) else ""
            raise InvalidOption(f"columns: {column!r}{need} is not one of {', '.join(known)}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise InvalidOption(f"columns takes at least one name, and each once, not {given!r}")
    return chosen


def _offsets(given: Offsets) -> OffsetSpec | tuple[int | None, int | None] | None:
    if given is None:
        return None
    if isinstance(given, str):
        try:
            return parse_offset_spec(given)
        except MalformedRange as error:
            raise InvalidOption(f"offsets: {error}") from None
    first, last = _pair("offsets", given)
    if any(bound is not None and (not isinstance(bound, int) or bound < 0) for bound in (first, last)):
        raise InvalidOption(f"offsets takes two numbers from 0 on, or None, not {given!r}")
    return first, last


def _times(given: Times) -> TimeSpec | None:
    if given is None:
        return None
    try:
        if isinstance(given, str):
            return parse_time_spec(given)
        start, end = (_moment_ms(moment) for moment in _pair("time", given))
    except MalformedRange as error:
        raise InvalidOption(f"time: {error}") from None
    return None if start is None and end is None else TimeBetween(start, end)


def _moment_ms(moment: Moment) -> int | None:
    """Epoch milliseconds, a fraction rounded up: timestamps at it or later are whole milliseconds."""
    if moment is None or isinstance(moment, int):
        return moment
    if isinstance(moment, datetime):
        since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return -(-microseconds // 1000)
    parsed = parse_time_spec(f"{moment}--")
    assert isinstance(parsed, TimeBetween)
    return parsed.start_ms


def _pair(name: str, given: object) -> tuple[Any, Any]:
    if not isinstance(given, Sequence) or len(given) != 2:
        raise InvalidOption(f"{name} takes a pair, from (included) to (excluded), or a text, not {given!r}")
    return given[0], given[1]


def _typed_form(source: Source, topic: str, decode: Decode) -> TypedForm | None:
    """The typed columns of a topic's values; None where they are JSON. InvalidOption where there are no schemas."""
    require_pyarrow()
    from kafkafs.arrow.block_texts import schemas_for

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
    if given is None:
        return None
    from storage.tier.tier import Tier

    if isinstance(given, Tier):
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

        `partitions`: a number or several; without it all that the cluster has. One that is in no directory is an error.
        `offsets`: a pair, from (included) to (excluded), None for open; or a text as after `--offsets`.
        `time`: such a pair, each a text as after `--time`, epoch milliseconds, a datetime (UTC without a zone) or None;
        or one text as after `--time`. What a pair names and the log does not have yet is not there.
        `key`: only messages with this key.
        `latest`: only the last message of every key of a partition, as in `latest.txt`; without `offsets` and `time`.
        `columns`: names, in this order; all without it.
        `decode`: True for more columns and typed values, "json" for more columns alone.
        `text`: keys and values are strings: True or "strict" makes other bytes an error, "replace" has U+FFFD for them.
        `on_damage`: "fail", or "skip": damage, and messages that are gone, are passed over, and `skipped` lists them.
        With `latest` damage is always an error, because it may hide a last message.

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
        """`Topic.scan` of this partition; without the argument `partitions`."""
        return make_scan(self._source, self.tp.topic, **(arguments | {"partitions": self.tp.partition}))

    def messages(self, **arguments: Unpack[Arguments]) -> Iterator[Message]:
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
    _source: Source = field(repr=False, compare=False)

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
        return _decoded(self, "value")

    @property
    def decoded_key(self) -> Any:
        """The key, as `decoded`."""
        return _decoded(self, "key")


def _decoded(message: Message, side: Side) -> Any:
    from kafkafs.arrow.block_texts import Decoding, schemas_of_topic

    source = message._source
    decoding = Decoding(schemas_of_topic(message.topic, source.paths, source.schemas), (side,))
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
                source,
            )
