"""Parsing lines of `@append` files into records."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kafkafs.writing.foreign_lines import header_pairs, is_kcat, renamed
from storage.errors import InvalidRecord
from storage.format.block import Record, RecordColumns
from storage.types import NO_TIMESTAMP

# Parses lines of `jsonl` into records (kafkafs/CONTRACT.md, "Appending"): lines of `messages.jsonl` can be
# appended.

_MAX_TIMESTAMP = 2**63 - 1
_MAX_PARTITION = 2**31 - 1


class ParsedLine(NamedTuple):
    """A record, and the partition that its line asks for, if any."""

    record: Record
    partition: int | None


def parse_line(line: bytes) -> ParsedLine:
    """The record of one line, which is given without its newline. `value` is required; unknown fields are ignored.
    Lines of `kcat -J` and `rpk topic consume` are valid too (see foreign_lines).

    InvalidRecord for anything else, also for a line of `decoded.jsonl` that names a schema.
    """
    try:
        fields = _JSON.decode(line.decode(errors="surrogateescape"))
        if not isinstance(fields, dict):
            raise InvalidRecord("line is not a JSON object", found=_shown(line))
        raw = is_kcat(fields)
        if not raw:
            line.decode()
        return _parsed(renamed(fields), line, raw=raw)
    except RecursionError:
        raise InvalidRecord("line is nested too deeply") from None
    except ValueError as error:
        advice = "Print each object on one line: jq -c ., or rpk topic consume --pretty-print=false"
        raise InvalidRecord(
            f"line is not valid JSON: {error}", found=_shown(line), advice=advice if line.strip() == b"{" else None
        ) from None


def _parsed(fields: dict[str, Any], line: bytes, *, raw: bool) -> ParsedLine:
    if "value" not in fields:
        raise InvalidRecord("line has no value (null is a value)", found=_shown(line))
    for name in ("keySchema", "valueSchema"):
        if fields.get(name) is not None:
            raise InvalidRecord(
                f"{name} names a schema: the line is of messages.decoded.jsonl",
                advice="Append lines of messages.jsonl (kafkafs cat --format jsonl)",
            )
    encode = partial(_bytes, raw=raw)
    key, value = encode(fields.get("key"), "key"), encode(fields["value"], "value")
    timestamp = _number(fields.get("timestamp"), "timestamp", NO_TIMESTAMP, _MAX_TIMESTAMP)
    partition = _number(fields.get("partition"), "partition", 0, _MAX_PARTITION)
    headers = _headers(fields.get("headers"), encode)
    record = Record(key, value, headers, NO_TIMESTAMP if timestamp is None else timestamp)
    return ParsedLine(record, partition)


def _constant(name: str) -> float:
    raise ValueError(f'{name} is not JSON; write it as the string "{name}"')


_JSON: Final = json.JSONDecoder(parse_constant=_constant)


def _headers(value: Any, encode: Callable[[Any, str], bytes | None]) -> list[tuple[bytes, bytes | None]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRecord("headers must be a list of pairs", found=_shown(value))
    headers = []
    for pair in header_pairs(value):
        if not isinstance(pair, list) or len(pair) != 2:
            raise InvalidRecord("a header must be a pair of name and value", found=_shown(pair))
        name = encode(pair[0], "a header's name")
        if name is None:
            raise InvalidRecord("a header must have a name, which is not null")
        headers.append((name, encode(pair[1], "a header's value")))
    return headers


def _bytes(value: Any, what: str, *, raw: bool) -> bytes | None:
    """The bytes that a JSON value stands for: a string's UTF-8, the bytes of `{"base64":"…"}`, None for null. `raw`:
    the string may hold bytes that are not UTF-8, as surrogates."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode(errors="surrogateescape" if raw else "strict")
        if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
            return b64decode(value["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise InvalidRecord(f"{what}: {error}", found=_shown(value)) from None
    is_field = what in ("key", "value")
    raise InvalidRecord(
        f'{f"`{what}`" if is_field else what} must be a string, {{"base64":"…"}} or null',
        found=_shown(value),
        advice=f"Append its JSON text: jq -c '.{what} |= tojson'" if is_field else None,
    )


def _number(value: Any, what: str, least: int, most: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidRecord(f"{what} must be a whole number", expected=f"{least} to {most}", found=_shown(value))
    return value


def _shown(value: Any) -> str:
    """The beginning of a value, for an error message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


Int64s = npt.NDArray[np.int64]
Buffer = bytes | memoryview

_NOW: Final = np.full(1, NO_TIMESTAMP, np.int64)


class ParsedLines(NamedTuple):
    """Lines as records, up to the first bad one. `partition`: which one each asks for (-1: any); None: none asks."""

    columns: RecordColumns
    partition: Int64s | None = None
    error: InvalidRecord | None = None


Parse = Callable[[Buffer, Int64s, Int64s], ParsedLines]
"""Parses the lines of a buffer, given their starts and lengths."""


def parse_txt(buffer: Buffer, starts: Int64s, lengths: Int64s) -> ParsedLines:
    """Each line is a value; nothing is copied."""
    return ParsedLines(RecordColumns(buffer, starts, lengths, _NOW))


def parse_jsonl(buffer: Buffer, starts: Int64s, lengths: Int64s) -> ParsedLines:
    """Each line is a JSON object, as `parse_line` takes it."""
    records: list[Record] = []
    partitions: list[int] = []
    error = None
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        try:
            record, partition = parse_line(bytes(buffer[start : start + length]))
        except InvalidRecord as failure:
            error = failure
            break
        records.append(record)
        partitions.append(-1 if partition is None else partition)
    return ParsedLines(RecordColumns.from_records(records), np.array(partitions, np.int64), error)


def keyed_txt(separator: bytes) -> Parse:
    """Each line is a key, `separator` and a value; a line without it is a value with a null key."""

    def parse(buffer: Buffer, starts: Int64s, lengths: Int64s) -> ParsedLines:
        records = []
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            key, has_separator, value = bytes(buffer[start : start + length]).partition(separator)
            records.append(Record(key, value) if has_separator else Record(None, key))
        return ParsedLines(RecordColumns.from_records(records))

    return parse
