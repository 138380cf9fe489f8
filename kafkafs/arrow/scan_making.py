"""What a Python program says about the messages that it wants → a scan: which offsets of which partitions.

Offsets and times as texts mean what they mean after `--offsets` and `--time`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from kafkafs.arrow import COLUMNS, DECODED
from kafkafs.arrow.log_dirs import InvalidOption, LogDirs
from kafkafs.arrow.scan import TYPED, Part, Place, Progress, Scan, Source, Text, lose, require_pyarrow
from kafkafs.arrow.split_reader import Split
from kafkafs.selection.latest_messages import DEFAULT_LATEST_BYTES, ChosenOffsets
from kafkafs.selection.range_names import (
    MalformedRange,
    OffsetSpec,
    TimeBetween,
    TimeSpec,
    parse_offset_spec,
    parse_time_spec,
)
from kafkafs.selection.select import resolve
from storage.client.counting import visible_end
from storage.errors import InvalidConfig, OffsetOutOfRange, SegmentGone
from storage.files.names import KAFKAS_OWN_TOPICS
from storage.latest.latest_records import latest_offsets
from storage.log.rereading import Rereads
from storage.types import OffsetRange, TimeRange, TopicPartition

if TYPE_CHECKING:
    from kafkafs.arrow.typed_values import TypedForm
    from storage.log.log_dir import LogDir
    from storage.log.snapshot import LogSnapshot

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
    now_ms = log_dir.clock.now_ms()
    if spec is None or isinstance(spec, tuple):
        first, last = spec or (None, None)
        start, end = snapshot.whole_start_offset if first is None else first, visible if last is None else last
        end = min(end, visible)
        if start < begin and start < end:
            lose(progress, tp, OffsetRange(start, min(begin, end)), snapshot.why_not_earlier, fail=fail)
        start = max(start, begin)
    else:
        selection = resolve(snapshot, spec, source.isolation, now_ms)
        start, end = selection.start_offset, visible if selection.end_offset is None else selection.end_offset
        end = min(end, visible)
    if times is None:
        return _made(log_dir, snapshot, start, end, None)
    selection = resolve(snapshot, times, source.isolation, now_ms)
    end = end if selection.end_offset is None else min(end, selection.end_offset)
    return _made(log_dir, snapshot, max(start, selection.start_offset), end, selection.time_range)


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
    log, rereads = log_dir.log(tp), Rereads()
    while True:
        snapshot = log.snapshot()
        remote = snapshot.remote_offsets
        if remote is not None:
            lose(progress, tp, remote, snapshot.why_not_earlier, fail=fail)
        try:
            chosen = ChosenOffsets(latest_offsets(snapshot, source.isolation, DEFAULT_LATEST_BYTES))
        except SegmentGone:
            if rereads.are_exhausted(snapshot.log_start_offset):
                raise
            continue
        end = visible_end(snapshot, source.isolation)
        return replace(_made(log_dir, snapshot, snapshot.log_start_offset, end, None), latest=chosen)


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
    """As what typed columns the values of a topic are read; None: as JSON. InvalidOption where there are no schemas."""
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
