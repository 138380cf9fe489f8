"""Parsing lines: what is written to `@append` files becomes records."""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kafkafs.decoding.avro_schema import BadSchema
from kafkafs.decoding.encoding import encode_json
from kafkafs.decoding.framing import GUID_HEADER_SIZE, BadIndexes, DoesNotFit, guid_in, is_guid_header, read_indexes
from kafkafs.schemas.registry import PROTOBUF, Schema, SchemaLookup
from storage.errors import InvalidRecord
from storage.format.block import Record, RecordColumns
from storage.types import NO_TIMESTAMP

# Parses lines of `jsonl` into records (kafkafs/CONTRACT.md, "Appending"): lines of `messages.jsonl` can be
# appended.

_MAX_TIMESTAMP = 2**63 - 1
_MAX_PARTITION = 2**31 - 1
_MAX_SCHEMA_ID = 2**32 - 1
# Arrays and objects within each other in a key or value: `decoded.jsonl` shows as many (decoding/columns.py).
_MAX_DEPTH: Final = 500
# No type has integers of more digits. Python may be told to convert no longer ones.
_MOST_DIGITS: Final = 640
# The brace or comma before a member of an object, its name and the colon.
_MEMBER: Final = re.compile(r'[ \t\n\r]*[{,][ \t\n\r]*("(?:[^"\\]|\\.)*")[ \t\n\r]*:[ \t\n\r]*')


class ParsedLine(NamedTuple):
    """A record, and the partition that its line asks for, if any."""

    record: Record
    partition: int | None


Encode = Callable[[str, int, object, Callable[[], str], bytes | None], bytes]
"""Encodes a JSON value (of the `key` or the `value`) by the schema with an id, in the wire format; in the newer one for
a record that has a header with the schema's GUID, which is given. The function gives the value as the line has it:
numbers as they are written, names that stand twice. InvalidRecord where it does not fit."""


def parse_line(line: bytes, encode: Encode | None = None) -> ParsedLine:
    """The record of one line, which is given without its newline. `value` is required; unknown fields are ignored.

    `encode`: for a key with `keySchema` and a value with `valueSchema`. InvalidRecord for anything else.
    """
    try:
        text = line.decode()
        found = _decoded(text)
        if line.count(b"[") + line.count(b"{") > _MAX_DEPTH and _is_deeper(found, _MAX_DEPTH + 1):
            raise RecursionError
    except RecursionError:
        raise InvalidRecord(
            "line is nested too deeply",
            expected=f"at most {_MAX_DEPTH} arrays and objects within each other in a key or value",
        ) from None
    except ValueError as error:
        raise InvalidRecord(f"line is not valid JSON: {error}", found=_shown(line)) from None
    if not isinstance(found, dict):
        raise InvalidRecord("line is not a JSON object", found=_shown(line))
    if "value" not in found:
        raise InvalidRecord("line has no value (null is a value)", found=_shown(line))
    headers = _headers(found.get("headers"))
    key, value = _side(text, found, "key", encode, headers), _side(text, found, "value", encode, headers)
    timestamp = _number(found.get("timestamp"), "timestamp", NO_TIMESTAMP, _MAX_TIMESTAMP)
    partition = _number(found.get("partition"), "partition", 0, _MAX_PARTITION)
    record = Record(key, value, headers, NO_TIMESTAMP if timestamp is None else timestamp)
    return ParsedLine(record, partition)


def _constant(name: str) -> float:
    raise ValueError(f'{name} is no JSON; such a number is a string, "{name}"')


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)  # infinity, which nothing takes


_JSON: Final = json.JSONDecoder(parse_constant=_constant)
_ANY_JSON: Final = json.JSONDecoder(parse_int=_integer, parse_constant=_constant)


def _decoded(text: str) -> Any:
    try:
        return _JSON.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python refuses to convert very long integers
        return _ANY_JSON.decode(text)


def _is_deeper(found: Any, most: int) -> bool:
    """Whether in an object, array or text more than `most` arrays and objects are within each other, itself counted."""
    level = [found]
    for _ in range(most):
        inner = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
        level = [one for one in inner if isinstance(one, (dict, list))]
        if not level:
            return False
    return True


def _written(line: str, name: str) -> str:
    """A member's value as it stands in the line, which is a valid object; of several the last one, which counts."""
    found, at = "null", 0
    while member := _MEMBER.match(line, at):
        start = member.end()
        _, at = _ANY_JSON.raw_decode(line, start)
        if (json.loads(member[1]) if "\\" in member[1] else member[1][1:-1]) == name:
            found = line[start:at]
    return found


def _side(
    text: str, line: dict[str, Any], side: str, encode: Encode | None, headers: list[tuple[bytes, bytes | None]]
) -> bytes | None:
    """The key or the value of a line, encoded if the line names a schema for it."""
    found = line.get(side)
    schema_id = _number(line.get(f"{side}Schema"), f"{side}Schema", 0, _MAX_SCHEMA_ID)
    if schema_id is None:
        return _bytes(found, side)
    named = [value for name, value in headers if name == b"__%s_schema_id" % side.encode()]
    guid = named[-1] if named else None
    # What could not be decoded is shown as it is, and the error names the side.
    if f"{side}: " in str(line.get("error")) and (shown := _shown_bytes(found, schema_id, guid)) is not None:
        return shown
    if encode is None:
        raise InvalidRecord(f"{side}Schema names a schema, and none are known here", found=schema_id)
    try:
        return encode(side, schema_id, found, lambda: _written(text, side), guid)
    except InvalidRecord as error:
        error.what = f"{side}: {error.what}"
        raise


def _shown_bytes(found: Any, schema_id: int, guid: bytes | None) -> bytes | None:
    """The bytes of a key or value that is shown as it is. Without a header for it they begin with the schema's id."""
    try:
        data = _bytes(found, "")
    except InvalidRecord:
        return None
    is_framed = data is not None and data.startswith(b"\0" + schema_id.to_bytes(4, "big"))
    return data if is_framed or guid is not None else None


def _headers(found: Any) -> list[tuple[bytes, bytes | None]]:
    if found is None:
        return []
    if not isinstance(found, list):
        raise InvalidRecord("headers must be a list of pairs", found=_shown(found))
    headers = []
    for pair in found:
        if not isinstance(pair, list) or len(pair) != 2:
            raise InvalidRecord("a header must be a pair of name and value", found=_shown(pair))
        name = _bytes(pair[0], "a header's name")
        if name is None:
            raise InvalidRecord("a header must have a name, which is not null")
        headers.append((name, _bytes(pair[1], "a header's value")))
    return headers


def _bytes(found: Any, what: str) -> bytes | None:
    """A string's UTF-8, `{"base64":"…"}`'s bytes, or null's None."""
    if found is None:
        return None
    try:
        if isinstance(found, str):
            return found.encode()
        if isinstance(found, dict) and list(found) == ["base64"] and isinstance(found["base64"], str):
            return b64decode(found["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise InvalidRecord(f"{what}: {error}", found=_shown(found)) from None
    is_field = what in ("key", "value")
    raise InvalidRecord(
        f'{f"`{what}`" if is_field else what} must be a string, {{"base64":"…"}} or null',
        found=_shown(found),
        advice=f"Its JSON text is one: jq -c '.{what} |= tojson'" if is_field else None,
    )


def _number(found: Any, what: str, least: int, most: int) -> int | None:
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise InvalidRecord(f"{what} must be a whole number", expected=f"{least} to {most}", found=_shown(found))
    return found


def _shown(found: Any) -> str:
    """The beginning of a value, for an error message."""
    text = repr(found)
    return text if len(text) <= 100 else f"{text[:97]}..."


# JSON values of `decoded.jsonl`, encoded again by the schemas that their lines name.

_FRAME_BYTES: Final = 5  # a zero byte and the id


def jsonl_with(schemas: SchemaLookup, topic: str) -> JsonLines:
    """Lines of jsonl for a topic; those of `decoded.jsonl` are encoded by these schemas."""

    def encode(side: str, schema_id: int, value: object, written: Callable[[], str], header: bytes | None) -> bytes:
        schema = schemas.by_id(schema_id, f"{topic}-{side}")
        if schema is None:
            raise InvalidRecord(
                f"no schema has the id {schema_id} here",
                advice="Schemas are in the topic _schemas, or where the option schemas=PATH says",
            )
        try:
            data = encode_json(schema, schemas, value, written)
        except DoesNotFit as error:
            raise InvalidRecord(f"does not fit the schema {schema_id}: {error}") from None
        except BadSchema as error:
            raise InvalidRecord(f"the schema {schema_id} cannot be used: {error}") from None
        if header is None or not is_guid_header(header):
            return data
        return _without_frame(data, schema, schemas, header)

    return JsonLines(encode)


def _without_frame(data: bytes, schema: Schema, schemas: SchemaLookup, header: bytes) -> bytes:
    """The data alone, for a record whose header names the schema by its GUID and, for Protobuf, the message type."""
    if schemas.by_guid(guid_in(header)) != schema:
        raise InvalidRecord(f"the record's header names another schema than {schema.schema_id}; leave out one of them")
    if schema.schema_type != PROTOBUF:
        return data[_FRAME_BYTES:]
    try:
        wanted, _ = read_indexes(header[GUID_HEADER_SIZE:] or b"\0")
    except BadIndexes as error:
        raise InvalidRecord(f"the record's header names no message type: {error}") from None
    found, at = read_indexes(data[_FRAME_BYTES:])
    if found != wanted:
        raise InvalidRecord(
            f"the value is the message {list(found)} of the schema, and the record's header names {list(wanted)}"
        )
    return data[_FRAME_BYTES + at :]


Int64s = npt.NDArray[np.int64]
Buffer = bytes | memoryview

_NOW: Final = np.full(1, NO_TIMESTAMP, np.int64)


class Parsed(NamedTuple):
    """Lines as records, up to the first bad one. `partition`: which one each asks for (-1: any); None: none asks."""

    columns: RecordColumns
    partition: Int64s | None = None
    error: InvalidRecord | None = None


Parse = Callable[[Buffer, Int64s, Int64s], Parsed]
"""Parses the lines of a buffer, given their starts and lengths."""


def parse_txt(buffer: Buffer, starts: Int64s, lengths: Int64s) -> Parsed:
    """Each line is a value; nothing is copied."""
    return Parsed(RecordColumns(buffer, starts, lengths, _NOW))


class JsonLines:
    """Each line is a JSON object: see jsonl_parse. `encode`: for lines that name schemas; without it they are refused.

    It holds no state: threads can share it.
    """

    def __init__(self, encode: Encode | None = None) -> None:
        self._encode = encode

    def __call__(self, buffer: Buffer, starts: Int64s, lengths: Int64s) -> Parsed:
        records: list[Record] = []
        partitions: list[int] = []
        error = None
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            try:
                record, partition = parse_line(bytes(buffer[start : start + length]), self._encode)
            except InvalidRecord as failure:
                error = failure
                break
            records.append(record)
            partitions.append(-1 if partition is None else partition)
        return Parsed(RecordColumns.from_records(records), np.array(partitions, np.int64), error)


def keyed_txt(separator: bytes) -> Parse:
    """Each line is a key, `separator` and a value; a line without it is a value with a null key."""

    def parse(buffer: Buffer, starts: Int64s, lengths: Int64s) -> Parsed:
        records = []
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            key, found, value = bytes(buffer[start : start + length]).partition(separator)
            records.append(Record(key, value) if found else Record(None, key))
        return Parsed(RecordColumns.from_records(records))

    return parse
