"""Lines that `kcat -J` and `rpk topic consume` print, under the names of our own `jsonl`."""

from __future__ import annotations

from typing import Any, Final

from storage.errors import InvalidRecord

_KCAT: Final = {"payload": "value", "ts": "timestamp"}
# Fields of lines that cannot be appended → what to do instead.
_REFUSED: Final = {
    **dict.fromkeys(
        ("key_schema_id", "value_schema_id", "key_error", "payload_error"),
        "kcat has decoded the message: run `kcat -J` without -s",
    ),
    "value_size": "The value is missing: run `rpk topic consume` without --meta-only",
}
_RPK: Final = frozenset({"topic", "partition", "offset", "timestamp"})  # in each of its lines


def is_kcat(fields: dict[str, Any]) -> bool:
    """Whether `kcat -J` printed the line. kcat copies bytes that are not UTF-8 unchanged."""
    return "payload" in fields and "value" not in fields


def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a line under our names. A line with a `value` is our own, or names its fields as we do.

    rpk leaves out a null value, and a key that is null or empty. InvalidRecord for decoded and missing values.
    """
    if "value" in fields:
        return fields
    kcat = is_kcat(fields)
    if not kcat and not (fields.keys() >= _RPK and "timestampType" not in fields):
        return fields
    for name in _REFUSED.keys() & fields.keys():
        raise InvalidRecord(f"line has the field {name}", advice=_REFUSED[name])
    if not kcat:
        return {**fields, "value": None}
    return {**{ours: fields[theirs] for theirs, ours in _KCAT.items() if theirs in fields}, **fields}


def header_pairs(headers: list[Any]) -> list[Any]:
    """Headers as a list of pairs, also those of kcat (a flat list of names and values) and rpk (objects)."""
    if all(isinstance(header, dict) and header.keys() == {"key", "value"} for header in headers):
        return [[header["key"], header["value"]] for header in headers]
    if len(headers) % 2 == 0 and all(header is None or isinstance(header, str) for header in headers):
        return [[name, value] for name, value in zip(headers[::2], headers[1::2], strict=True)]
    return headers
