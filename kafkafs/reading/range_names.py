"""The grammar of range names: offsets and times as people write them, in names of files, options and Python programs.

Pure: text in, frozen values out. `kafkafs.reading.selection` decides what a range means for a given log. Numbers may
have leading zeros, so that a segment's 20-digit base offset can be used in a name. Commands and Python also accept
words that name no file: the ends of a log, `today` and `yesterday`.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import ClassVar, Final

from storage.types import MAX_OFFSET


class MalformedRange(ValueError):
    """The text is not a valid range name; the message says why."""


@dataclass(frozen=True, slots=True)
class SingleOffset:
    """`A`: the one message at `first`."""

    first: int

    @property
    def last(self) -> int:
        """The last offset, included."""
        return self.first

    @property
    def most(self) -> int:
        """The greatest number of messages that the range can hold."""
        return 1


@dataclass(frozen=True, slots=True)
class OffsetsBetween:
    """`A-B`: from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def most(self) -> int:
        """The greatest number of messages that the range can hold."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class OffsetsFrom:
    """`A-`: from `first` on."""

    first: int
    last: ClassVar[None] = None
    most: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class OffsetsCount:
    """`A+N`: the first `most` messages at or after `first`."""

    first: int
    most: int
    last: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class LastMessages:
    """`last-N`: the last `most` messages."""

    most: int


@dataclass(frozen=True, slots=True)
class TimeBetween:
    """Timestamps from `start_ms` (included) to `end_ms` (excluded), epoch milliseconds. At most one of them is None,
    for no limit."""

    start_ms: int | None
    end_ms: int | None


@dataclass(frozen=True, slots=True)
class LastDuration:
    """`last-2h`: the last `duration_ms` milliseconds up to now."""

    duration_ms: int


# The ends of a log, named as in Kafka's tools and kcat.
ENDS: Final = {"earliest": "earliest", "beginning": "earliest", "latest": "latest", "end": "latest"}

OffsetSpec = SingleOffset | OffsetsBetween | OffsetsFrom | OffsetsCount | LastMessages
TimeSpec = TimeBetween | LastDuration

# Compiled (and cached by `re`) when first used: a command without a range need not wait for them.
_OFFSETS = r"(?P<first>[0-9]+)(?:(?P<to>-)(?P<last>[0-9]*)|\+(?P<count>[0-9]+))?"
_LAST_MESSAGES = r"(?:last)?-([0-9]+)"
_LAST_DURATION = r"last-([0-9]+)([smhdw])"
_EPOCH_MS = r"[0-9]{13}"
_MOMENT = (
    r"(?P<year>[0-9]{4})"
    r"(?:-(?P<month>[0-9]{2})(?:-(?P<day>[0-9]{2}))?|(?P<month_>[0-9]{2})(?P<day_>[0-9]{2}))?"
    r"(?:T(?P<hour>[0-9]{2})"
    r"(?::(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}))?|(?P<minute_>[0-9]{2})(?P<second_>[0-9]{2})?)?"
    r"(?:[.,](?P<fraction>[0-9]{1,9}))?"
    r"(?P<zone>Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)

_SECOND_MS = 1_000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_UNIT_MS = {"s": _SECOND_MS, "m": _MINUTE_MS, "h": _HOUR_MS, "d": _DAY_MS, "w": 7 * _DAY_MS}
_NANOS = 1_000_000  # in a millisecond
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def parse_offset_spec(text: str) -> OffsetSpec:
    """`A-B`, `A-`, `A+N`, `last-N`, `-N` or `A` (no extension). Raises MalformedRange."""
    if last := re.fullmatch(_LAST_MESSAGES, text):
        return LastMessages(_count(last[1], text))
    match = re.fullmatch(_OFFSETS, text)
    if match is None:
        raise MalformedRange(f"{text!r} is not an offset range; write 100-199, 100-, 100+50, last-10 or 100")
    first = _number(match["first"], text)
    if match["count"] is not None:
        return OffsetsCount(first, _count(match["count"], text))
    if match["to"] is None:
        return SingleOffset(first)
    if not match["last"]:
        return OffsetsFrom(first)
    last_offset = _number(match["last"], text)
    if last_offset < first:
        raise MalformedRange(f"{text!r} ends before it begins")
    return OffsetsBetween(first, last_offset)


def parse_time_spec(text: str) -> TimeSpec:
    """`P`, `F--T`, `F--`, `until-T`, `--T` or `last-15m` (no extension). Raises MalformedRange."""
    if last := re.fullmatch(_LAST_DURATION, text):
        duration_ms = _count(last[1], text) * _UNIT_MS[last[2]]
        if duration_ms > MAX_OFFSET:
            raise MalformedRange(f"{text!r} is longer than 2^63-1 ms")
        return LastDuration(duration_ms)
    if text.startswith("until-"):
        return TimeBetween(None, _ceil_ms(_instant_ns(text.removeprefix("until-"), text)))
    start, dashes, end = text.partition("--")
    if not dashes:
        return _period(text)
    if not start and not end:
        raise MalformedRange(f"{text!r} is open at both ends")
    start_ns = _instant_ns(start, text) if start else None
    end_ns = _instant_ns(end, text) if end else None
    if start_ns is not None and end_ns is not None and start_ns >= end_ns:
        raise MalformedRange(f"{text!r} does not end after it begins")
    return TimeBetween(
        None if start_ns is None else _ceil_ms(start_ns),
        None if end_ns is None else _ceil_ms(end_ns),
    )


def parse_offsets(text: str) -> OffsetSpec | None:
    """The range of `--offsets` and of Python programs: see parse_offset_spec; or an end of the log: None for all
    messages, LastMessages(0) for future messages. Raises MalformedRange."""
    end = ENDS.get(text)
    if end is None:
        return parse_offset_spec(text)
    return LastMessages(0) if end == "latest" else None


def parse_times(text: str, today: date) -> TimeSpec:
    """The range of `--time` and of Python programs: see parse_time_spec and dated. Raises MalformedRange."""
    return parse_time_spec(dated(text, today))


def parse_moment(text: str, today: date) -> int:
    """A time in the form of range names, in epoch milliseconds; for a period its beginning. Raises MalformedRange."""
    try:
        spec = parse_times(f"{text}--", today)
    except MalformedRange:
        spec = None
    if not isinstance(spec, TimeBetween) or spec.start_ms is None or spec.end_ms is not None:
        raise MalformedRange(f"{text!r} is not a time (2026-11-20T10:15)")
    return spec.start_ms


def dated(text: str, today: date) -> str:
    """The text with dates in place of `today` and `yesterday`, which are not names of files."""
    days = {"today": today, "yesterday": today - timedelta(days=1)}
    return re.sub(r"\b(today|yesterday)(?![a-z])", lambda word: days[word[1]].isoformat(), text)


def offsets_name(first: int, last: int | None = None, digits: int = 0) -> str:
    """The name of the range from `first` to `last`, both included; without `last` it grows with the log. Each number
    has leading zeros up to `digits`, so that the names of one log are in order."""
    return f"{first:0{digits}d}-" if last is None else f"{first:0{digits}d}-{last:0{digits}d}"


def plain_offsets_name(name: str) -> str:
    """The name of an offset range, or of its file, without leading zeros."""
    return re.sub(r"(?<![0-9])0+(?=[0-9])", "", name)


def day_name(timestamp_ms: int) -> str:
    """The name of the UTC day that holds `timestamp_ms`. Raises MalformedRange outside the years 1 to 9999."""
    day = timestamp_ms // _DAY_MS + _EPOCH_DAY
    if not 1 <= day <= date.max.toordinal():
        raise MalformedRange(f"timestamp {timestamp_ms} is not in a year of four digits")
    return date.fromordinal(day).isoformat()


def timestamp_text(timestamp_ms: int) -> str:
    """`timestamp_ms` as `2026-11-20T10:15:30.123Z` for people; a number outside the years 1 to 9999."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def _number(digits: str, text: str) -> int:
    # The length is checked first: int() refuses thousands of digits with another error.
    significant = digits.lstrip("0")
    if len(significant) > 19 or int(significant or "0") > MAX_OFFSET:
        raise MalformedRange(f"{text!r} holds a number above 2^63-1")
    return int(significant or "0")


def _count(digits: str, text: str) -> int:
    count = _number(digits, text)
    if count == 0:
        raise MalformedRange(f"{text!r} asks for zero messages or no time; the number must be at least 1")
    return count


def is_epoch_ms(text: str) -> bool:
    """Whether digits are a time in epoch milliseconds, because they are 13."""
    return re.fullmatch(_EPOCH_MS, text) is not None


def _instant_ns(moment: str, text: str) -> int:
    """A period's start, an instant with a fraction, or 13 digits of epoch ms; in ns, for exact comparison."""
    if is_epoch_ms(moment):
        return int(moment) * _NANOS
    match = _match_moment(moment, text)
    fraction = match["fraction"]
    start_ms, _ = _bounds(match, text)
    return start_ms * _NANOS + (int(fraction.ljust(9, "0")) if fraction else 0)


def _ceil_ms(ns: int) -> int:
    # Timestamps are whole milliseconds, so for both `>= F` and `< T` a fraction is rounded up.
    return -(-ns // _NANOS)


def _period(text: str) -> TimeBetween:
    match = None if is_epoch_ms(text) else _match_moment(text, text)
    if match is None or match["fraction"] is not None:
        raise MalformedRange(f"{text!r} is an instant, not a period; write {text}-- or until-{text}")
    return TimeBetween(*_bounds(match, text))


def _match_moment(moment: str, text: str) -> re.Match[str]:
    match = re.fullmatch(_MOMENT, moment)
    if match is None:
        raise MalformedRange(
            f"{text!r} is not a time range; write 2026-11-20, 2026-11-20T10:15, 2026-11-20T10--2026-11-21, "
            "2026-11-20--, until-2026-11-20 or last-15m"
        )
    if match["hour"] is not None and not (match["day"] or match["day_"]):
        raise MalformedRange(f"{text!r} has an hour but not a whole date")
    if match["fraction"] is not None and not (match["second"] or match["second_"]):
        raise MalformedRange(f"{text!r} has a fraction without seconds")
    return match


def _bounds(match: re.Match[str], text: str) -> tuple[int, int]:
    """First millisecond of the period and the first one after it."""
    year = int(match["year"])
    month = match["month"] or match["month_"]
    day = match["day"] or match["day_"]
    try:
        first = date(year, int(month or 1), int(day or 1))
    except ValueError as error:
        raise MalformedRange(f"{text!r} names a day that does not exist: {error}") from None
    start_ms = (first.toordinal() - _EPOCH_DAY) * _DAY_MS
    if match["hour"] is None:
        return start_ms, start_ms + _days(year, month, day) * _DAY_MS
    minute = match["minute"] or match["minute_"]
    second = match["second"] or match["second_"]
    if int(match["hour"]) > 23 or int(minute or 0) > 59 or int(second or 0) > 59:
        raise MalformedRange(f"{text!r} names a time of day that does not exist")
    start_ms += int(match["hour"]) * _HOUR_MS + int(minute or 0) * _MINUTE_MS + int(second or 0) * _SECOND_MS
    start_ms -= _zone_ms(match["zone"], text)
    length_ms = _SECOND_MS if second else _MINUTE_MS if minute else _HOUR_MS
    return start_ms, start_ms + length_ms


def _days(year: int, month: str | None, day: str | None) -> int:
    if day:
        return 1
    if month:
        return monthrange(year, int(month))[1]
    return date(year, 12, 31).timetuple().tm_yday


def _zone_ms(zone: str | None, text: str) -> int:
    """The offset of a time zone from UTC; positive east of Greenwich."""
    if zone is None or zone == "Z":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[3:].removeprefix(":") or 0)
    if hours > 23 or minutes > 59:
        raise MalformedRange(f"{text!r} has a zone outside -23:59 to +23:59")
    length_ms = hours * _HOUR_MS + minutes * _MINUTE_MS
    return -length_ms if zone[0] == "-" else length_ms
