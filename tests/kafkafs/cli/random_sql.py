"""Random SQL statements: what `kafkafs sql` writes in each form, read by other programs, is what DuckDB has in memory.

    python -m tests.kafkafs.cli.random_sql --statements 5000 --seed 1

Half of the statements have values of random types, from BOOLEAN to MAPs of lists of UNIONs, for which this module knows
the text and the JSON. The others ask the topics of a log directory; a plain DuckDB has tables of the same messages.
"""

import argparse
import base64
import csv
import json
import math
import random
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import duckdb
import polars
import pyarrow.parquet as pq

from kafkafs.arrow.database import Database
from kafkafs.arrow.opened_log import open_log
from kafkafs.cli.sql import write_result
from kafkafs.file_names import printable
from storage.format.block import Record
from storage.types import NO_TIMESTAMP
from tests.support.builders import Batch, build_log_dir
from tests.support.commands import run

FORMS = ("table", "csv", "jsonl", "parquet")


class Value(NamedTuple):
    """SQL of a value, and what jsonl has of it."""

    sql: str
    json: Any


@dataclass(frozen=True)
class Type:
    """A type's name in SQL, and what makes values of it. `returns`: whether DuckDB makes the same value of its text."""

    name: str
    value: Callable[[random.Random], Value]
    is_key: bool = True
    is_nested: bool = False
    returns: bool = True


def quoted(text, quote="'"):
    return quote + text.replace(quote, 2 * quote) + quote


def named(text):
    return quoted(text, '"')


def cast(text, name):
    return f"CAST({quoted(text)} AS {name})"


# Scalar types.


def integers(name, least, most):
    def value(rng):
        number = rng.choice([least, most, 0, rng.randint(least, most), max(least, min(most, rng.randint(-9, 9)))])
        return Value(cast(str(number), name), number)

    return Type(name, value)


def decimals(width, scale):
    name = f"DECIMAL({width},{scale})"

    def value(rng):
        digits = rng.choice([0, 1, 10**width - 1, rng.randrange(10**width)]) * rng.choice([1, -1])
        number = Decimal(digits).scaleb(-scale, Context(prec=width))
        return Value(cast(f"{number:f}", name), number)

    return Type(name, value)


class Single(float):
    """A FLOAT, and so the number in `float` that is next to it."""


def floats(name, form):
    def value(rng):
        raw = rng.randbytes(struct.calcsize(form))
        number = rng.choice([0.0, -0.0, 0.1, 1e30, 1.5, math.nan, math.inf, -math.inf, struct.unpack(form, raw)[0]])
        number = struct.unpack(form, struct.pack(form, number))[0]
        if math.isfinite(number):
            return Value(cast(repr(number), name), Single(number) if form == "f" else number)
        return Value(
            cast(repr(number), name), "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
        )

    return Type(name, value)


def texts(name, text, **kind):
    """A type whose values are texts, in SQL and in JSON."""
    return Type(name, lambda rng: Value(cast(chosen := text(rng), name), chosen), **kind)


LETTERS = "aZ09 \t\n\r\"'\\,;{}[]:%/é😀\u2028\x01\x1b\x7f\N{REPLACEMENT CHARACTER}"


def word(rng):
    fixed = ["", "NULL", "null", "NaN", "infinity", "a,b", '"', "1", "true", '{"a":1}', "plain"]
    return rng.choice([*fixed, *("".join(rng.choices(LETTERS, k=rng.randrange(9))) for _ in fixed)])


def blob(rng):
    data = rng.choice([b"", b"text", "é".encode(), b"\xff", rng.randbytes(rng.randrange(9))])
    sql = "CAST('" + "".join(f"\\x{byte:02X}" for byte in data) + "' AS BLOB)"
    try:
        return Value(sql, data.decode())
    except UnicodeDecodeError:
        return Value(sql, {"base64": base64.b64encode(data).decode()})


SYMBOLS = ("a", "b c", "NULL", "é'", "")
ENUM = f"ENUM({', '.join(map(quoted, SYMBOLS))})"
JSON = ("1", "null", '{"a":[1,"x"]}', '{"a":NaN}', "[ ]", '"é"', "1e400")


def interval(rng):
    """DuckDB itself makes the text."""
    months, days, micros = rng.randint(-30, 30), rng.randint(-40, 40), rng.randint(-(10**11), 10**11)
    sql = f"(to_months({months}) + to_days({days}) + to_microseconds({micros}))"
    ((text,),) = duckdb.execute(f"SELECT CAST({sql} AS VARCHAR)").fetchall()
    return Value(sql, text)


def fraction(rng, digits):
    return "".join(rng.choices("0123456789", k=rng.choice([0, digits, rng.randint(0, digits)]))).rstrip("0")


def clock(rng, digits):
    """A time of day, and the decimals of its seconds."""
    return f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}", fraction(rng, digits)


def with_fraction(text, part):
    return f"{text}.{part}" if part else text


def times(name, digits, zones=("",)):
    return texts(name, lambda rng: with_fraction(*clock(rng, digits)) + rng.choice(zones))


def day(rng, least, most):
    """A date, and (BC) if it is before the year 1."""
    year = rng.choice([least, most, 0, 1, 1969, 2026, 9999, 10000, rng.randint(least, most)])
    year = min(max(year, least), most)
    month_and_day = f"-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    return (f"{year:04}{month_and_day}", "") if year > 0 else (f"{1 - year:04}{month_and_day}", " (BC)")


def date(rng):
    return rng.choice(["infinity", "-infinity", *["".join(day(rng, -5_000_000, 5_000_000))] * 8])


def timestamps(name, digits, years, zone=False):
    """ISO 8601 with 3, 6 or 9 decimals, as many as it takes; DuckDB's text for infinity and before the year 1."""

    def value(rng):
        text = rng.choice(["infinity", "-infinity", *[""] * 8])
        if text:
            return Value(cast(text, name), text)
        (on, before_christ), (at, part) = day(rng, *years), clock(rng, digits)
        text = with_fraction(f"{on}{before_christ} {at}", part) + ("+00" if zone else "")
        padded = part.ljust(3 if len(part) <= 3 else 6 if len(part) <= 6 else 9, "0")
        return Value(cast(text, name), text if before_christ else f"{on}T{at}.{padded}" + ("Z" if zone else ""))

    return Type(name, value)


WIDE, NARROW = (-290000, 290000), (1700, 2250)
SCALARS = (
    Type("BOOLEAN", lambda rng: rng.choice([Value("true", True), Value("false", False)])),
    *(integers(name, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in (
        ("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64), ("HUGEINT", 128))),
    *(integers(name, 0, 2**bits - 1) for name, bits in (
        ("UTINYINT", 8), ("USMALLINT", 16), ("UINTEGER", 32), ("UBIGINT", 64), ("UHUGEINT", 128))),
    integers("BIGNUM", -(10**60), 10**60),
    decimals(1, 0), decimals(4, 4), decimals(9, 2), decimals(18, 6), decimals(38, 10), decimals(38, 38),
    floats("FLOAT", "f"), floats("DOUBLE", "d"),
    texts("VARCHAR", word), Type("BLOB", blob, is_key=False, returns=False),
    texts("BIT", lambda rng: "".join(rng.choices("01", k=rng.randint(1, 20))), is_key=False),
    texts("UUID", lambda rng: str(UUID(int=rng.getrandbits(128)))),
    texts(ENUM, lambda rng: rng.choice(SYMBOLS)), texts("JSON", lambda rng: rng.choice(JSON)),
    Type("INTERVAL", interval, is_key=False), texts("DATE", date),
    times("TIME", 6), times("TIME_NS", 9), times("TIME WITH TIME ZONE", 6, ("+00", "+02", "-07:30", "+15:59")),
    timestamps("TIMESTAMP", 6, WIDE), timestamps("TIMESTAMP_S", 0, WIDE), timestamps("TIMESTAMP_MS", 3, WIDE),
    timestamps("TIMESTAMP_NS", 9, NARROW), timestamps("TIMESTAMP WITH TIME ZONE", 6, WIDE, zone=True),
    timestamps("TIMESTAMPTZ_NS", 9, NARROW, zone=True),
)  # fmt: skip
# Keys of maps that are texts: their types' texts differ where the values do.
KEYS = tuple(kind for kind in SCALARS if kind.is_key and kind.name not in (
    "TIME_NS", "TIME WITH TIME ZONE", "TIMESTAMPTZ_NS", "FLOAT", "DOUBLE"))  # fmt: skip


# Nested types.


def null_or(kind, rng):
    return Value(f"CAST(NULL AS {kind.name})", None) if rng.random() < 0.15 else kind.value(rng)


def random_type(rng, depth=0):
    if depth > 3 or rng.random() < 0.55:
        return rng.choice(SCALARS)
    return rng.choice([list_of, array_of, struct_of, map_of, map_of_anything, union_of])(rng, depth + 1)


def nested(name, value, *inner):
    return Type(name, value, is_nested=True, returns=all(kind.returns for kind in inner))


def list_of(rng, depth, size=None):
    item = random_type(rng, depth)
    name = f"{item.name}[{size or ''}]"

    def value(rng):
        items = [null_or(item, rng) for _ in range(size or rng.randrange(4))]
        return Value(f"CAST([{', '.join(item.sql for item in items)}] AS {name})", [item.json for item in items])

    return nested(name, value, item)


def array_of(rng, depth):
    return list_of(rng, depth, rng.randint(1, 3))


def struct_of(rng, depth):
    names = rng.sample(["a", "B c", 'd"', "é", "offset", "e'", "%s", "key"], rng.randint(1, 3))
    fields = {name: random_type(rng, depth) for name in names}

    def value(rng):
        values = {name: null_or(kind, rng) for name, kind in fields.items()}
        sql = ", ".join(f"{quoted(name)}: {value.sql}" for name, value in values.items())
        return Value(f"{{{sql}}}", {name: value.json for name, value in values.items()})

    name = ", ".join(f"{named(field)} {kind.name}" for field, kind in fields.items())
    return nested(f"STRUCT({name})", value, *fields.values())


def map_type(key, item, entries, shown, *inner):
    """A MAP of the pairs that `entries` makes, of which jsonl has what `shown` makes."""

    def value(rng):
        pairs = entries(rng)
        keys, values = (", ".join(pair[side].sql for pair in pairs) for side in (0, 1))
        sql = f"MAP(CAST([{keys}] AS {key.name}[]), CAST([{values}] AS {item.name}[]))"
        return Value(sql, shown([(one.json, other.json) for one, other in pairs]))

    return nested(f"MAP({key.name}, {item.name})", value, *inner)


def as_key(shown):
    return shown if isinstance(shown, str) else json.dumps(shown) if not isinstance(shown, Decimal) else f"{shown:f}"


def map_of(rng, depth):
    """An object."""
    key, item = rng.choice(KEYS), random_type(rng, depth)

    def entries(rng):
        keys = {as_key(one.json): one for one in (key.value(rng) for _ in range(rng.randrange(4)))}
        return [(one, null_or(item, rng)) for one in keys.values()]

    return map_type(key, item, entries, lambda pairs: {as_key(one): other for one, other in pairs}, item)


def map_of_anything(rng, depth):
    """A list of keys and values, where the keys are nested."""
    key, item = list_of(rng, depth), random_type(rng, depth)
    shown = lambda pairs: [{"key": one, "value": other} for one, other in pairs]  # noqa: E731
    return map_type(key, item, lambda rng: [(key.value(rng), null_or(item, rng))], shown, key, item)


def union_of(rng, depth):
    """The value alone."""
    members = {name: random_type(rng, depth) for name in rng.sample(["num", "s t", "é"], rng.randint(1, 3))}
    name = f"UNION({', '.join(f'{named(member)} {kind.name}' for member, kind in members.items())})"

    def value(rng):
        member = rng.choice(list(members))
        inner = null_or(members[member], rng)
        return Value(f"CAST(union_value({named(member)} := {inner.sql}) AS {name})", inner.json)

    return Type(name, value, is_key=False, is_nested=True, returns=False)


# A statement with values of random types: its columns, and rows.

NAMES = ("a", "A", "b c", 'say "x"', "é", "100%s", "a_1", "select", "key", "c1", "v0", "x,y", "line\nend", "offset")


class Case(NamedTuple):
    """A statement, the names of its columns as they are written, the types, and the rows that it has."""

    sql: str
    names: list[str]
    types: list[Type]
    rows: list[list[Value]]


def random_case(rng):
    types = [random_type(rng) for _ in range(rng.randint(1, 4))]
    names = [rng.choice(NAMES) for _ in types]
    rows = [[null_or(kind, rng) for kind in types] for _ in range(rng.choice([0, 1, 1, 2, 5]))]
    filler = [Value(f"CAST(NULL AS {kind.name})", None) for kind in types]
    lines = (f"({number}, {', '.join(value.sql for value in row)})" for number, row in enumerate(rows or [filler]))
    aliases = ", ".join(["n", *(f"x{number}" for number in range(len(types)))])
    columns = ", ".join(f"x{number} AS {named(name)}" for number, name in enumerate(names))
    sql = f"SELECT {columns} FROM (VALUES {', '.join(lines)}) AS t({aliases})"
    sql += "" if rows else " WHERE n > 0"
    if rng.random() < 0.5:
        sql, rows = f"{sql} ORDER BY n DESC", rows[::-1]
    else:
        sql += " ORDER BY n"
    if rng.random() < 0.3:
        sql, rows = f"{sql} LIMIT 2 OFFSET 1", rows[1:3]
    return Case(sql, names, types, rows)


def numbered(names):
    """`a`, `a` → `a`, `a_1`."""
    distinct = []
    for name in names:
        candidates = iter([name, *(f"{name}_{number}" for number in range(1, 99))])
        unique = next(candidates)
        while unique in distinct or (unique != name and unique in names):
            unique = next(candidates)
        distinct.append(unique)
    return distinct


class Difference(Exception):
    """A form of a result is not what it should be."""


def same(what, found, expected):
    if found != expected:
        raise Difference(f"{what}: {found!r} instead of {expected!r}")


def strict_json(text):
    def refuse(constant):
        raise Difference(f"{constant} is not JSON")

    def once(pairs):
        same("names of an object", len(dict(pairs)), len(pairs))
        return dict(pairs)

    return json.loads(text, parse_float=Decimal, parse_constant=refuse, object_pairs_hook=once)


def is_equal(found, expected):
    """Whether JSON that was read is what is expected; True is no 1."""
    if isinstance(expected, dict):
        same_names = isinstance(found, dict) and list(found) == list(expected)
        return same_names and all(map(is_equal, found.values(), expected.values()))
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(is_equal, found, expected))
    if isinstance(expected, bool) or expected is None:
        return found is expected
    if isinstance(expected, float):
        form = "f" if isinstance(expected, Single) else "d"
        return isinstance(found, int | Decimal) and struct.pack(form, float(found)) == struct.pack(form, expected)
    kinds = (int, Decimal) if isinstance(expected, int | Decimal) else (str,)
    return type(found) in kinds and found == expected


def is_equal_text(found, expected):
    """Whether a cell of a table or of CSV is what is expected: text as it is, other values as JSON."""
    if expected is None:
        return found == ""
    if isinstance(expected, str):
        return found == expected
    return is_equal(strict_json(found), expected)


# Reading what was written.


def check_jsonl(path, case):
    lines = path.read_bytes().decode().split("\n")
    same("the end of jsonl", lines.pop(), "")
    same("lines of jsonl", len(lines), len(case.rows))
    for line, row in zip(lines, case.rows, strict=True):
        expected = dict(zip(numbered(case.names), (value.json for value in row), strict=True))
        if not is_equal(strict_json(line), expected):
            raise Difference(f"jsonl: {line} instead of {expected}")


def check_csv(path, case):
    with path.open(newline="", encoding="utf-8") as file:
        header, *lines = list(csv.reader(file, strict=True))
    same("header of csv", header, numbered(case.names))
    same("lines of csv", len(lines), len(case.rows))
    for line, row in zip(lines, case.rows, strict=True):
        for cell, value, kind in zip(line, row, case.types, strict=True):
            if not is_equal_text(cell, value.json):
                raise Difference(f"csv: {cell!r} instead of {value.json!r} of {kind.name}")


def check_table(path, case):
    """Each line has its cells, in order."""
    header, *lines, end = path.read_text(encoding="utf-8").split("\n")
    same("end of the table", end, "")
    same("lines of the table", len(lines), len(case.rows))
    for line, row in zip(lines, case.rows, strict=True):
        position = 0
        for value in row:
            if isinstance(value.json, str):
                text = printable(value.json).strip()
                position = line.find(text, position)
                if position < 0:
                    raise Difference(f"table: no {text!r} in {line!r}")
                position += len(text)
    for name in numbered(case.names):
        same(f"{name!r} in the table's header", printable(name).strip() in header, True)


def check_parquet(path, case):
    """Read by pyarrow, polars, and by DuckDB, which makes the original type of it again."""
    same("columns of pyarrow", pq.read_table(path).column_names, numbered(case.names))
    frame = polars.read_parquet(path)
    same("rows and columns of polars", frame.shape, (len(case.rows), len(case.names)))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        table = connection.sql(f"SELECT * FROM read_parquet({quoted(str(path))})")
        for number, kind in enumerate(case.types, 1):
            cells = [row[number - 1].sql for row in case.rows]
            if not cells or (kind.is_nested and not kind.returns):
                continue
            original = f"unnest(CAST([{', '.join(cells)}] AS {kind.name}[]))"
            connection.sql(f"SELECT {original} AS x").create_view("originals", replace=True)
            table.project(f"CAST(#{number} AS {kind.name}) AS x").create_view("read", replace=True)
            query = (
                "SELECT a.x IS NOT DISTINCT FROM b.x, CAST(a.x AS VARCHAR), CAST(b.x AS VARCHAR) "
                "FROM read a POSITIONAL JOIN originals b"
            )
            for equal, found, expected in connection.sql(query).fetchall():
                if not equal:
                    raise Difference(f"parquet: {found} instead of {expected} of {kind.name}")


CHECKS = {"table": check_table, "csv": check_csv, "jsonl": check_jsonl, "parquet": check_parquet}


def write(database, sql, form, path):
    """What the command does, without its start."""
    with path.open("wb") as file:
        for statement in database.statements(sql):
            if statement.has_result:
                write_result(database, statement, form, file)
            else:
                list(database.run(statement.text))


def write_by_command(logdir, sql, form, path):
    done = run("sql", logdir, sql, "--format", form, "-o", path)
    if done.exit_code:
        raise Difference(f"{form}: exit code {done.exit_code}: {done.output}")


# Statements over topics.

START = 1_763_683_200_000


def make_topics(folder, rng):
    """Make a log directory, and a plain DuckDB with tables of the same messages."""
    plain = duckdb.connect()
    plain.execute("SET TimeZone = 'UTC'")
    topics = {}
    values = [b"plain", None, b"", b'{"item":"tea"}', b'{"item":"oil"}', b"[1,2]", b"17", b"\xff", "größe".encode()]
    for topic in ("orders", "my-topic.x", "Kunden"):
        columns = 'key VARCHAR, value VARCHAR, topic VARCHAR, partition INT, "offset" BIGINT, timestamp TIMESTAMPTZ'
        plain.execute(f"CREATE TABLE {named(topic)} ({columns}, value_json JSON)")
        partitions = []
        for partition in range(rng.randint(1, 3)):
            batches = []
            for offset in range(rng.randint(0, 40)):
                key = rng.choice([None, b"k1", b"k2", b"\xfe", rng.randbytes(3).hex().encode()])
                value, odd = rng.choice(values), rng.random()
                ms = START + rng.randint(-(10**9), 10**9)
                ms = NO_TIMESTAMP if odd < 0.05 else ms * 1000 if odd < 0.1 else ms * 10**6 if odd < 0.15 else ms
                batches.append(Batch([Record(key, value, timestamp=ms)]))
                moment = "CAST('infinity' AS TIMESTAMPTZ)" if ms > 9 * 10**15 else f"make_timestamptz({ms * 1000})"
                row = [*(None if data is None else data.decode(errors="replace") for data in (key, value)), topic]
                marks = f"?, ?, ?, {partition}, {offset}, {moment}"
                valid = "CASE WHEN json_valid(?) THEN CAST(? AS JSON) END"
                plain.execute(f"INSERT INTO {named(topic)} VALUES ({marks}, {valid})", [*row, row[1], row[1]])
            partitions.append(batches)
        topics[topic] = partitions
    return build_log_dir(folder / "topics", topics, broker=False).path, plain


def condition(rng, depth=0):
    if depth < 2 and rng.random() < 0.4:
        joined = f"{condition(rng, depth + 1)} {rng.choice(['AND', 'OR'])} {condition(rng, depth + 1)}"
        return rng.choice([f"({joined})", f"NOT ({joined})"])
    sign = rng.choice(["<", "<=", ">", ">=", "=", "<>"])
    moment = datetime.fromtimestamp(START / 1000, UTC) + timedelta(milliseconds=rng.randint(-(10**9), 10**9))
    return rng.choice([
        f'"offset" {sign} {rng.randrange(45)}',
        f"partition {sign} {rng.randrange(3)}",
        f"timestamp {sign} '{rng.choice([moment.isoformat(), '1970-01-01', '20000-01-01', 'infinity', '-infinity'])}'",
        f"key {rng.choice(['=', '<>', '<'])} '{rng.choice(['k1', 'k2', 'zz', chr(0xFFFD)])}'",
        f"key IS {rng.choice(['', 'NOT '])}NULL",
        f"value LIKE '{rng.choice(['%a%', '{%', ''])}'",
        "value_json->>'item' = 'tea'",
        f"value_json IS {rng.choice(['', 'NOT '])}NULL",
        f'"offset" BETWEEN {rng.randrange(20)} AND {rng.randrange(45)}',
        f"key IN ('k1', 'k2') AND \"offset\" {sign} {rng.randrange(40)}",
    ])  # fmt: skip


def topic_statement(rng):
    """What comes before the query, and the query; its rows are in order."""
    first, second = (named(topic) for topic in rng.choices(("orders", "my-topic.x", "Kunden"), k=2))
    where = f"WHERE {condition(rng)}" if rng.random() < 0.8 else ""
    columns = ", ".join(rng.sample(["key", "value", "topic", "partition", '"offset"', "timestamp", "value_json"], 3))
    aggregates = 'count(*), sum("offset"), min(timestamp), max(key), count(DISTINCT value)'
    place = 'partition, "offset"'
    ordered, table = f"ORDER BY {place}", "CREATE OR REPLACE TEMP"
    joined = f'(SELECT key, "offset" FROM {first} {where}) a JOIN {second} b USING (key)'
    limit = f"LIMIT {rng.randrange(9)} OFFSET {rng.randrange(5)}"
    return rng.choice([
        ("", f"SELECT {columns} FROM {first} {where} {ordered}"),
        ("", f"SELECT {columns} FROM {first} {where} {ordered} {limit}"),
        ("", f"SELECT {aggregates} FROM {first} {where}"),
        ("", f"SELECT partition, {aggregates} FROM {first} {where} GROUP BY partition ORDER BY partition"),
        ("", f'SELECT a.key, b.key, a."offset", b."offset", b.partition FROM {joined} ORDER BY ALL'),
        ("", f"SELECT {place}, topic FROM {first} {where} UNION ALL SELECT {place}, topic FROM {second} ORDER BY ALL"),
        ("", f"WITH w AS (SELECT * FROM {first} {where}) SELECT {columns} FROM w {ordered}"),
        (f"{table} VIEW v AS SELECT * FROM {first} {where}; ", f"SELECT {columns} FROM v {ordered}"),
        (f"{table} MACRO m(x) AS TABLE SELECT * FROM {first} WHERE partition = x; ",
         f"SELECT {columns} FROM m(1) {where} {ordered}"),
        (f"PREPARE p AS SELECT {columns} FROM {first} {where} {ordered}; ", "EXECUTE p"),
        (f"{table} TABLE x AS SELECT * FROM {first} {where}; ", f"SELECT {columns} FROM x {ordered}"),
    ])  # fmt: skip


def moment_text(text):
    """DuckDB's text of a time as the forms have it."""
    if text.endswith("infinity"):
        return text
    on, _, at = text.removesuffix("+00").partition(" ")
    seconds, _, part = at.partition(".")
    return f"{on}T{seconds}.{part.ljust(3, '0')}Z"


def plain_value(cell, kind):
    """A cell of the plain DuckDB."""
    if cell is None or kind in ("VARCHAR", "JSON"):
        return Value("", cell)
    return Value("", moment_text(cell) if kind.startswith("TIMESTAMP") else int(cell))


def topic_case(plain, rng):
    """A statement over topics, and what the plain DuckDB answers."""
    before, query = topic_statement(rng)
    if before:
        plain.execute(before)
    relation = plain.sql(query)
    if query.startswith("EXECUTE"):
        plain.execute("DEALLOCATE p")
    kinds = [str(kind) for kind in relation.types]
    columns = ", ".join(f"CAST(#{number} AS VARCHAR)" for number in range(1, len(kinds) + 1))
    rows = [list(map(plain_value, row, kinds)) for row in relation.project(columns).fetchall()]
    types = [texts(kind, word, is_nested=True, returns=False) for kind in kinds]
    return Case(before + query, relation.columns, types, rows)


def check_random(statements, seed):
    """Checks as many statements in every form; yields what is wrong, with the statement."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        logdir, plain = make_topics(folder, random.Random(seed))
        database = stack.enter_context(Database(open_log(logdir)))
        for number in range(statements):
            rng = random.Random(f"{seed} {number}")
            case = random_case(rng) if number % 2 else topic_case(plain, rng)
            for form in FORMS:
                path = folder / f"result.{form}"
                try:
                    if number % 50 < 2:
                        write_by_command(logdir, case.sql, form, path)
                    else:
                        write(database, case.sql, form, path)
                    CHECKS[form](path, case)
                except Exception as error:  # noqa: BLE001 - goes on with the next
                    yield f"statement {number} of seed {seed}, {form}: {type(error).__name__}: {error}\n{case.sql}\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--statements", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    differences = 0
    for difference in check_random(options.statements, options.seed):
        differences += 1
        print(difference, flush=True)  # noqa: T201 - a command for people
    print(f"{options.statements} statements in {len(FORMS)} forms: {differences} wrong")  # noqa: T201
    sys.exit(differences > 0)
