"""Parsing the arguments of `kafkafs.open`, `scan` and `messages`.

An invalid argument is an InvalidOption that says what was expected and what was found. Numbers of numpy, and times of
numpy and pandas, count like Python's own. A text is parsed like the value of `--offsets` or `--time`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import islice
from operator import index
from pathlib import Path
from typing import Any, Final, Literal, SupportsIndex

import numpy as np

from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.arrow.keywords import nearest
from kafkafs.reading.range_names import (
    MalformedRange,
    OffsetSpec,
    TimeBetween,
    TimeSpec,
    parse_moment,
    parse_offsets,
    parse_times,
)
from kafkafs.schemas import places
from storage.types import MAX_OFFSET

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A file or directory, or (for a tier) a URL."""

Paths = AnyPath | Iterable[AnyPath]
Partitions = SupportsIndex | Iterable[SupportsIndex] | None
Offsets = tuple[SupportsIndex | None, SupportsIndex | None] | str | None
Moment = str | SupportsIndex | date | np.datetime64 | None
"""A time as `--time` takes it, epoch milliseconds, a datetime or a date (UTC without a zone); None: no limit."""

Times = tuple[Moment, Moment] | str | None
Key = bytes | str | None
Columns = str | Iterable[str] | None
Decode = bool | Literal["json"]
OnDamage = Literal["fail", "skip"]

_SHOWN: Final = 200  # characters of an argument, in a message
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PER_MS: Final = {"ns": 10**6, "ps": 10**9, "fs": 10**12, "as": 10**15}  # units that a datetime cannot express


def chosen(name: str, given: object, *choices: object) -> Any:
    """The choice that equals the argument. 1 is not True, but numpy's booleans are booleans."""
    value = bool(given) if isinstance(given, np.bool_) else given
    for choice in choices:
        if isinstance(value, type(choice)) and value == choice:
            return choice
    *others, last = map(repr, choices)
    more = nearest(given, [choice for choice in choices if isinstance(choice, str)])
    raise InvalidOption(f"{name} must be {', '.join(others)} or {last}, not {shown(given)}{more}")


def partition_numbers(given: SupportsIndex | Iterable[SupportsIndex]) -> Iterator[int]:
    """Yield the numbers in the argument. Errors are raised lazily, so that an endless generator fails at its first
    error."""
    expected = "partitions takes a whole number from 0 on, or several"
    # An array of numpy without dimensions is iterable, but counts as a number. Texts are iterable, but are no numbers.
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray) and _index(given) is None:
        for number in given:
            yield _whole(number, expected)
    else:
        yield _whole(given, expected)


def column_names(given: Columns, known: Sequence[str], only_decoded: Sequence[str]) -> tuple[str, ...]:
    """The columns in the order given; None: all of `known`. `only_decoded`: columns that only a decoding scan has."""
    if given is None:
        return tuple(known)
    expected = "columns takes at least one name, and each once"
    if isinstance(given, bytes | set | frozenset) or not isinstance(given, Iterable):
        order = ", in an order" if isinstance(given, set | frozenset) else ""
        raise InvalidOption(f"{expected}{order}, not {shown(given)}")
    columns = (given,) if isinstance(given, str) else tuple(islice(given, len(known) + 1))
    for column in columns:
        if not isinstance(column, str) or column not in known:
            need = " (with decode=True)" if column in only_decoded else nearest(column, known)
            raise InvalidOption(f"columns: {shown(column)} is not one of {', '.join(known)}{need}")
    if not columns or len(set(columns)) < len(columns):
        raise InvalidOption(f"{expected}, not {shown(given)}")
    return tuple(map(str, columns))


def offset_range(given: Offsets) -> OffsetSpec | tuple[int | None, int | None] | None:
    """A parsed range name, or a pair of numbers; None: all messages."""
    if given is None:
        return None
    if isinstance(given, str):
        try:
            return parse_offsets(given)
        except MalformedRange as error:
            raise InvalidOption(f"offsets: {error}") from None
    expected = "offsets takes a pair of whole numbers from 0 on or None, from (included) to (excluded), or a text"
    first, end = (None if bound is None else _whole(bound, expected) for bound in _pair(given, expected))
    if first is not None and end is not None and end < first:
        raise InvalidOption(f"offsets: {shown(given)} ends before it begins")
    return first, end


def time_range(given: Times, today: date) -> TimeSpec | None:
    """A parsed range name, or a pair in epoch milliseconds; None: any time."""
    if given is None:
        return None
    expected = "time takes a pair of times or None, from (included) to (excluded), or a text"
    try:
        if isinstance(given, str):
            return parse_times(given, today)
        start, end = (_moment_ms(moment, today) for moment in _pair(given, expected))
    except MalformedRange as error:
        raise InvalidOption(f"time: {error}") from None
    if start is not None and end is not None and end < start:
        raise InvalidOption(f"time: {shown(given)} ends before it begins")
    return None if start is None and end is None else TimeBetween(start, end)


def key_bytes(given: object) -> bytes | None:
    """The key as bytes; None: any key."""
    if given is None:
        return None
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    try:
        if isinstance(given, str):
            return given.encode()
    except UnicodeEncodeError as error:
        raise InvalidOption(f"key: {shown(given)} cannot be written in UTF-8: {error.reason}; pass bytes") from None
    raise InvalidOption(f"key takes bytes, or a text for its bytes in UTF-8, not {shown(given)}")


def whole_number(name: str, given: object, least: int = 0) -> int:
    """A number of Python or numpy, at least `least`."""
    return _whole(given, f"{name} takes a whole number from {least} on", least)


def path_text(name: str, given: object) -> str:
    """A file, a directory or a URL, as text."""
    if isinstance(given, str | bytes | os.PathLike):
        path = os.fsdecode(given)
        if path and "\0" not in path:
            return path
    raise InvalidOption(f"{name} takes the path of a file or directory, not {shown(given)}")


def path_texts(name: str, given: object) -> list[str]:
    """The paths as texts; at least one."""
    if isinstance(given, str | bytes | os.PathLike):
        return [path_text(name, given)]
    if not isinstance(given, Iterable):
        raise InvalidOption(f"{name} takes a path, or several, not {shown(given)}")
    paths = [path_text(name, each) for each in given]
    if not paths:
        raise InvalidOption(f"{name} takes at least one path, not {shown(given)}")
    return paths


def directory(name: str, given: object) -> Path | None:
    """An existing directory; None if the argument is None."""
    if given is None:
        return None
    path = Path(path_text(name, given)).absolute()
    if not path.is_dir():
        raise InvalidOption(f"{name}: {path} is not a directory")
    return path


def schema_places(name: str, given: object) -> places.SchemaPlaces:
    """The places of schemas that a directory, a text in the form of --schemas, or several of them name."""
    if given is None or isinstance(given, places.SchemaPlaces):
        return given or places.OWN_SCHEMAS
    try:
        return places.schema_places(path_texts(name, given)).absolute()
    except ValueError as error:
        raise InvalidOption(f"{name}: {error}") from None


def key_files(name: str, given: object) -> dict[str, Path]:
    """Existing files by the ids of the keys in them."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise InvalidOption(f"{name} takes a mapping of ids to the paths of PEM files, not {shown(given)}")
    files = {key: Path(path_text(f"{name}: {key!r}", file)).absolute() for key, file in given.items()}
    for key, file in files.items():
        if not file.is_file():
            raise InvalidOption(f"{name}: {file}, the key {key!r}, is not a file")
    return files


def shown(given: object) -> str:
    """An argument as text, for messages."""
    text = " ".join(repr(given).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _index(given: object) -> int | None:
    """A number of Python or numpy; None for anything else, also for True and 1.0."""
    try:
        return None if isinstance(given, bool | np.bool_) else index(given)  # type: ignore[arg-type]
    except TypeError:
        return None


def _whole(given: object, expected: str, least: int = 0) -> int:
    number = _index(given)
    if number is None or not least <= number <= MAX_OFFSET:
        limit = " (up to 2^63-1)" if number is not None and number > MAX_OFFSET else ""
        raise InvalidOption(f"{expected}{limit}, not {shown(given)}")
    return number


def _pair(given: object, expected: str) -> tuple[object, object]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InvalidOption(f"{expected}, not {shown(given)}")
    return given[0], given[1]


def _moment_ms(moment: object, today: date) -> int | None:
    """A time in epoch milliseconds. A fraction is rounded up, because the first timestamp at or after it is whole."""
    if moment is None:
        return None
    if isinstance(moment, str):
        return parse_moment(moment, today)
    expected = "time takes texts, whole numbers of epoch milliseconds, datetimes and dates"
    if isinstance(moment, datetime) and hasattr(moment, "to_datetime64"):  # pandas: NaT, or a time with nanoseconds
        moment = moment.to_datetime64()
    if isinstance(moment, np.datetime64):
        unit, step = np.datetime_data(moment.dtype)
        if np.isnat(moment):
            raise InvalidOption(f"{expected}, not NaT")
        if unit in _PER_MS:
            return -(-int(moment.astype(np.int64)) * step // _PER_MS[unit])
        if isinstance(moment.item(), date):
            moment = moment.item()
    if isinstance(moment, datetime):
        since = (moment if moment.utcoffset() is not None else moment.replace(tzinfo=UTC)) - _EPOCH
        microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return -(-microseconds // 1000)
    if isinstance(moment, date):
        return (moment.toordinal() - _EPOCH.toordinal()) * 86_400_000
    return _whole(moment, expected, -MAX_OFFSET)
