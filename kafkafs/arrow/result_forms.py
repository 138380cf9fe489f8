"""SQL that converts a column of any of DuckDB's types for a result in text, JSON or Parquet.

DuckDB itself makes the texts. `kafkafs/CONTRACT.md`, section "SQL", has the table of the forms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol


class Type(Protocol):
    """A type of DuckDB, as duckdb describes it."""

    @property
    def id(self) -> str: ...

    @property
    def children(self) -> list[tuple[str, Any]]: ...


Form = Callable[[str, Type], str]
"""A function that takes the SQL of a value, and its type, and returns the SQL of the same value in another form."""

_INTEGERS: Final = frozenset(
    f"{sign}{size}" for sign in ("", "u") for size in ("tinyint", "smallint", "integer", "bigint", "hugeint")
)
_FLOATS: Final = frozenset({"float", "double"})
_NUMBERS: Final = _INTEGERS | {"boolean", "bignum", "decimal"}
_LISTS: Final = frozenset({"list", "array"})
_STRUCTS: Final = frozenset({"struct", "tuple"})
# Types with the digits of TIMESTAMP (microseconds) or TIMESTAMP_NS, without a zone; and whether they are in UTC.
_TIMESTAMPS: Final = {
    "timestamp": ("{0}", False),
    "timestamp_s": ("CAST({0} AS TIMESTAMP)", False),
    "timestamp_ms": ("CAST({0} AS TIMESTAMP)", False),
    "timestamp_ns": ("{0}", False),
    "timestamp with time zone": ("({0} AT TIME ZONE 'UTC')", True),
    "timestamptz_ns": ("make_timestamp_ns(epoch_ns({0}))", True),
}
# Types that Parquet has too; `_in_parquet` replaces others.
_IN_PARQUET: Final = (_NUMBERS | _FLOATS | {"varchar", "blob", "date", "time", "time_ns", *_TIMESTAMPS}) - {
    "bignum", "uhugeint", "timestamp_s", "timestamp_ms",
}  # fmt: skip
# Types of a map's keys for which different keys have different texts.
_KEYS: Final = _NUMBERS | _FLOATS | {"null", "varchar", "uuid", "enum", "date", "time", *_TIMESTAMPS}


def text(value: str, kind: Type) -> str:
    """SQL of a value's text, for a cell of a table and of CSV. Lists, structs and maps are JSON."""
    name = kind.id
    if name in _FLOATS:
        return _float(value, "")
    if name in _TIMESTAMPS:
        return _timestamp(value, name)
    if name == "blob":
        return f"coalesce(TRY(decode({value})), {_base64(value)})"
    if name == "union":
        return _union(value, kind, text)
    if name == "decimal":  # DuckDB writes .1234 for DECIMAL(4,4)
        return f"regexp_replace(CAST({value} AS VARCHAR), '^(-?)[.]', '\\10.')"
    if name in _LISTS | _STRUCTS | {"map"}:
        return json(value, kind)
    return f"CAST({value} AS VARCHAR)"


def json(value: str, kind: Type) -> str:
    """SQL of a value's JSON text; NULL for NULL."""
    return _json(value, kind, 0)


def parquet(value: str, kind: Type) -> str:
    """SQL of a value in a type that Parquet has; if none fits, its text."""
    if kind.id == "union":
        return text(value, kind)
    parquet_type = _in_parquet(kind)
    return value if parquet_type == str(kind) else f"CAST({value} AS {parquet_type})"


def _json(value: str, kind: Type, depth: int) -> str:
    name, item = kind.id, f"v{depth}"
    if name in _NUMBERS:
        return text(value, kind)
    if name in _FLOATS:
        return _float(value, '"')
    if name == "blob":
        return f"coalesce(CAST(to_json(TRY(decode({value}))) AS VARCHAR), {_base64(value)})"
    if name == "union":
        return _union(value, kind, lambda value, kind: _json(value, kind, depth))
    if name in _LISTS:
        items = f"[{_or_null(_json(item, kind.children[0][1], depth + 1))} FOR {item} IN {value}]"
        return _where(value, f"'[' || array_to_string({items}, ',') || ']'")
    if name == "map":
        return _where(value, _map(value, kind, depth))
    if name in _STRUCTS:
        return _where(value, _struct(value, kind, depth))
    return f"CAST(to_json({text(value, kind)}) AS VARCHAR)"


def _map(value: str, kind: Type, depth: int) -> str:
    """An object; a list of objects with key and value if two keys might have the same text."""
    entry = f"v{depth}"
    (_, keys), (_, values) = kind.children
    key, content = f"{entry}.key", _or_null(_json(f"{entry}.value", values, depth + 1))
    if keys.id in _KEYS:
        pair, opening, closing = f"CAST(to_json({text(key, keys)}) AS VARCHAR) || ':' || {content}", "{", "}"
    else:
        of_key = _or_null(_json(key, keys, depth + 1))
        pair, opening, closing = f"""'{{"key":' || {of_key} || ',"value":' || {content} || '}}'""", "[", "]"
    return f"'{opening}' || array_to_string([{pair} FOR {entry} IN map_entries({value})], ',') || '{closing}'"


def _struct(value: str, kind: Type, depth: int) -> str:
    """An object; a list if the fields have no names."""
    parts = []
    for number, (name, field) in enumerate(kind.children, 1):
        part = _or_null(_json(f"struct_extract({value}, {literal(name) if name else number})", field, depth))
        parts.append(f"CAST(to_json({literal(name)}) AS VARCHAR) || ':' || {part}" if name else part)
    opening, closing = "{}" if kind.children[0][0] else "[]"
    fields = " || ',' || ".join(parts)
    return f"'{opening}' || {fields} || '{closing}'"


def _union(value: str, kind: Type, form: Form) -> str:
    """The form of a union's member."""
    cases = (
        f"WHEN {literal(name)} THEN {form(f'union_extract({value}, {literal(name)})', member)}"
        for name, member in kind.children[1:]  # the first is the tag
    )
    return f"CASE CAST(union_tag({value}) AS VARCHAR) {' '.join(cases)} END"


def _float(value: str, quote: str) -> str:
    """The shortest decimal text that reads back as the same float."""
    cases = (
        (f"isfinite({value})", f"CAST({value} AS VARCHAR)"),
        (f"isnan({value})", f"'{quote}NaN{quote}'"),
        (f"{value} > 0", f"'{quote}Infinity{quote}'"),
        (f"{value} < 0", f"'{quote}-Infinity{quote}'"),
    )
    return f"CASE {' '.join(f'WHEN {condition} THEN {form}' for condition, form in cases)} END"


def _timestamp(value: str, name: str) -> str:
    """ISO 8601 with 3, 6 or 9 decimals, as few as possible; DuckDB's text for infinity and before the year 1."""
    conversion, zoned = _TIMESTAMPS[name]
    moment, zone = conversion.format(value), "Z" if zoned else ""
    form, zeros = ("%n", "(000){1,2}$") if name.endswith("_ns") else ("%f", "000$")
    iso = f"regexp_replace(strftime({moment}, '%Y-%m-%dT%H:%M:%S.{form}'), '{zeros}', '') || '{zone}'"
    plain = f"CAST({value} AS VARCHAR)"
    return f"CASE WHEN {plain} NOT LIKE '%infinity' AND {plain} NOT LIKE '%(BC)%' THEN {iso} ELSE {plain} END"


def _base64(value: str) -> str:
    return f"""'{{"base64":"' || base64({value}) || '"}}'"""


def _where(value: str, form: str) -> str:
    return f"CASE WHEN {value} IS NOT NULL THEN {form} END"


def _or_null(form: str) -> str:
    return f"coalesce({form}, 'null')"


def _in_parquet(kind: Type) -> str:
    """The name of the type in which Parquet gets a value."""
    name = kind.id
    if name in _LISTS:
        size = f"[{kind.children[1][1]}]" if name == "array" else "[]"
        return _in_parquet(kind.children[0][1]) + size
    if name == "map":
        return f"MAP({', '.join(_in_parquet(child) for _, child in kind.children)})"
    if name in _STRUCTS:
        fields = (
            f"{quoted(field or f'element{number}')} {_in_parquet(child)}"
            for number, (field, child) in enumerate(kind.children, 1)
        )
        return f"STRUCT({', '.join(fields)})"
    if name in ("timestamp_s", "timestamp_ms"):
        return "TIMESTAMP"
    return str(kind) if name in _IN_PARQUET else "VARCHAR"


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"
