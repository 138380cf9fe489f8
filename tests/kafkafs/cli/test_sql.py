"""`kafkafs sql` and `cat --where`: topics as tables, formats, errors, and that nothing else can be reached."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import signal
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

pytest.importorskip("duckdb", reason="no duckdb: install the extra `sql`")
pytest.importorskip("pyarrow", reason="no pyarrow: install the extra `sql`")

import pyarrow.parquet as pq

from kafkafs.arrow.database import BadQuery, Database, Where
from kafkafs.arrow.interruptible import Caller
from kafkafs.arrow.opened_log import open_log
from kafkafs.cli.process import DATA_ERROR, INTERRUPTED
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import Batch, build_log_dir
from tests.support.commands import output_of, process, run
from tests.support.damaged_bytes import flip
from tests.support.mounts import KAFKAFS
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "examples" / "sample-log"
AVRO = ROOT / "examples" / "avro-log"


def text_of(*args):
    return output_of(*args).decode()


def made(place, *values, topic="t"):
    build_log_dir(place, {topic: [[Batch([Record(None, value)]) for value in values]]}, broker=False)


def rows(logdir, query, *options):
    return [json.loads(line) for line in text_of("sql", logdir, query, "--format", "jsonl", *options).splitlines()]


def test_a_topic_is_a_table():
    printed = [json.loads(line) for line in text_of("cat", SAMPLE, "orders", "--format", "jsonl").splitlines()]
    found = rows(SAMPLE, 'SELECT * FROM orders ORDER BY partition, "offset"')
    assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in found] == [
        (row["partition"], row["offset"], row["key"], row["value"]) for row in printed
    ]
    assert [row["value_json"] for row in found] == [row["value"] for row in printed]
    assert list(found[0]) == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
                              "value_json"]  # fmt: skip


def test_the_topics_are_listed(tmp_path):
    topics = sorted(path.name.removesuffix("-0") for path in SAMPLE.glob("*-0"))
    assert [row["name"] for row in rows(SAMPLE, "show tables")] == topics
    assert text_of("sql", SAMPLE, "CREATE TABLE zebra (a INT); SHOW TABLES", "--format", "csv").split()[-1] == "zebra"
    assert text_of("sql", SAMPLE, ".tables").split() == topics
    assert text_of("sql", SAMPLE, ".tables", "-o", tmp_path / "x") == ""
    assert (tmp_path / "x").read_text().split() == topics
    assert "offset         BIGINT" in text_of("sql", SAMPLE, ".schema orders")


def test_filters_are_pushed_down(tmp_path):
    made(tmp_path, *[b"x" * 1000] * 3000)
    with Database(open_log(tmp_path)) as database:
        assert next(database.run('SELECT count(value) FROM t WHERE "offset" BETWEEN 2000 AND 2010'))[0][0].as_py() == 11
        some = database.bytes_read
        assert next(database.run("SELECT count(value) FROM t"))[0][0].as_py() == 3000
        assert 0 < some < database.bytes_read / 10


def test_offset_is_a_column_and_a_word():
    query = "SELECT offset, 'offset' AS x FROM clicks WHERE offset >= 3 ORDER BY offset LIMIT 2 OFFSET 1"
    assert rows(SAMPLE, query) == [{"offset": 4, "x": "offset"}, {"offset": 5, "x": "offset"}]
    assert text_of("cat", SAMPLE, "clicks", "--where", "offset = 7", "--format", "%o\\n") == "7\n"


def test_formats(tmp_path):
    query = 'SELECT key, value, "offset", headers, timestamp FROM clicks WHERE "offset" < 5'
    text = text_of("sql", SAMPLE, query, "--format", "csv")
    found = list(csv.DictReader(io.StringIO(text)))
    assert [row["offset"] for row in found] == ["0", "1", "2", "3", "4"]
    assert found[0]["timestamp"] == "2026-11-20T00:00:00.000Z"
    assert json.loads(found[0]["headers"])[0] == {"key": "agent", "value": "chrome"}
    text_of("sql", SAMPLE, query, "--format", "parquet", "-o", tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    assert table["offset"].to_pylist() == [0, 1, 2, 3, 4]
    text_of("sql", SAMPLE, query, "-o", tmp_path / "x.txt")
    assert len((tmp_path / "x.txt").read_text().splitlines()) == 6
    long = "SELECT repeat('x', 200000) AS x"
    assert text_of("sql", SAMPLE, long, "--format", "table").splitlines()[1].strip() == "x" * 100_000 + "…"
    assert text_of("sql", SAMPLE, long, "--format", "csv").splitlines()[1] == "x" * 200_000


def test_statements_from_a_pipe():
    with process("sql", SAMPLE, "--format", "csv", stdin=subprocess.PIPE) as child:
        said, _ = child.communicate(b"CREATE TABLE n AS SELECT 1 AS x; SELECT x + 1 AS y\nFROM n", timeout=120)
    assert child.returncode == 0
    assert said.splitlines()[-2:] == [b"y", b"2"]


def test_binary_values(tmp_path):
    made(tmp_path, b"\xff\x00", "größe".encode(), None)
    assert [row["value"] for row in rows(tmp_path, "SELECT value FROM t")] == ["\ufffd\0", "größe", None]
    assert [row["value"] for row in rows(tmp_path, "SELECT value FROM t", "--binary")] == [
        {"base64": "/wA="}, "größe", None,
    ]  # fmt: skip
    (found,) = rows(tmp_path, "SELECT count(*) AS n FROM t WHERE value LIKE 'gr%'")
    assert found["n"] == 1
    table = text_of("sql", tmp_path, "SELECT value FROM t")
    assert "\0" not in table


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM query('SELECT * FROM read_csv(''/etc/passwd'')')",
        "COPY (SELECT 1) TO '{there}/out.csv'",
        "EXPORT DATABASE '{there}/out'",
        "ATTACH '{there}/other.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "PRAGMA profile_output = '{there}/profile'",
        "SET temp_directory = '{there}'",
        "CREATE PERSISTENT SECRET s (TYPE s3)",
    ],
)
def test_nothing_else_can_be_reached(statement, tmp_path):
    done = run("sql", SAMPLE, statement.replace("{there}", str(tmp_path)))
    assert done.exit_code == 2, done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM nope", "The topics here: "),
        ("SELECT 'x'::INT", "Conversion"),
        ('SELECT * FROM "\udcff"', "surrogates not allowed"),
    ],
)
def test_what_is_wrong_is_told(query, said):
    done = run("sql", SAMPLE, query)
    assert done.exit_code == 2
    assert said in done.output


def test_damage_is_told_with_its_place(tmp_path):
    made(tmp_path, b"one", b"two")
    path = tmp_path / "t-0" / "00000000000000000000.log"
    flip(path, path.stat().st_size // 2 + 70)
    done = run("sql", tmp_path, "SELECT count(value) FROM t")
    assert done.exit_code == DATA_ERROR
    assert "00000000000000000000.log" in done.output


def test_topics_whose_names_differ_in_case(tmp_path):
    topics = {name: [[Batch([Record(None, value)])]] for name, value in (("orders", b"small"), ("Orders", b"large"))}
    build_log_dir(tmp_path, topics, broker=False)
    assert [row["value"] for row in rows(tmp_path, "SELECT value FROM Orders")] == ["large"]
    assert run("sql", tmp_path, "SELECT * FROM Orders, orders").exit_code == 2
    assert run("sql", tmp_path, "SELECT * FROM ORDERS").exit_code == 2


def test_the_prompt(tmp_path):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}
    with subprocess.Popen(
        [*KAFKAFS, "sql", str(SAMPLE)], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as child:
        os.close(theirs)
        os.write(ours, b".tables\n.schema clicks\nSELECT count(*)\nAS n FROM clicks;\nSELECT nope;\n.quit\n")
        said, _ = child.communicate(timeout=120)
    os.close(ours)
    text = said.decode()
    assert child.returncode == 0
    assert "payments" in text
    assert "TIMESTAMP WITH TIME ZONE" in text
    assert "600" in text
    assert "Binder Error" in text
    assert (tmp_path / "kafkafs" / "sql_history").stat().st_mode & 0o777 == 0o600


def test_where(tmp_path):
    expression = "value_json->>'item' = 'sugar' AND partition = 0"
    lines = text_of("cat", SAMPLE, "orders", "--where", expression).splitlines()
    everything = text_of("cat", SAMPLE, "orders/0").splitlines()
    assert lines == [line for line in everything if json.loads(line)["item"] == "sugar"]
    assert (
        text_of("cat", SAMPLE, "orders/0", "--offsets", "0-99", "--where", "true").splitlines()
        == text_of("cat", SAMPLE, "orders/0", "--offsets", "0-99").splitlines()
    )
    decoded = text_of("cat", AVRO, "shipments", "--format", "decoded", "--where", "value_json->>'carrier' = 'DHL'")
    assert {json.loads(line)["value"]["carrier"] for line in decoded.splitlines()} == {"DHL"}
    assert text_of("cat", SAMPLE, "orders", "--where", "false") == ""


@pytest.mark.parametrize("expression", ["nope = 1", "1 = (", "CAST(value AS INT) = 1"])
def test_where_that_is_no_expression(expression):
    done = run("cat", SAMPLE, "orders", "--where", expression)
    assert done.exit_code == 2
    assert "--where: " in done.output
    assert run("cat", SAMPLE, "orders/0", "--format", "log", "--where", "true").exit_code == 2


def test_a_filter_of_records():
    where = Where("key = 'c-11'", None)
    log = open_log(SAMPLE)
    for tp, block in log["accounts"].scan().blocks():
        assert {where(tp, block).key(row) for row in range(len(where(tp, block)))} <= {b"c-11"}
        assert tp == TopicPartition("accounts", 0)
    with pytest.raises(BadQuery):
        Where("read_text('/etc/passwd') IS NULL", None)


def test_a_table_has_at_most_a_thousand_rows(tmp_path):
    made(tmp_path, b"x")
    for count, shown in ((999, 999), (1001, 1000)):
        result = run("sql", tmp_path, f"SELECT range AS number FROM range({count})")
        assert result.exit_code == 0
        assert result.stdout.split() == ["number", *map(str, range(shown))]
        assert ("a table has at most 1000 rows" in result.stderr) == (count > shown)


@pytest.mark.parametrize("form", ["table", "csv", "jsonl", "parquet"])
@pytest.mark.parametrize("query", ["SELECT nope FROM clicks", "SELEC", "SELECT value::INT FROM clicks"])
def test_a_failed_query_leaves_the_file(query, form, tmp_path):
    file = tmp_path / "report"
    file.write_text("yesterday's")
    file.chmod(0o640)
    assert run("sql", SAMPLE, query, "-o", file, "--format", form).exit_code == 2
    assert file.read_text() == "yesterday's"
    assert run("sql", SAMPLE, "SELECT 1 AS a", "-o", file, "--format", "csv").exit_code == 0
    assert file.read_text() == "a\n1\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_damage_leaves_the_file(tmp_path):
    logs, file = tmp_path / "logs", tmp_path / "report.csv"
    made(logs, *[b"x" * 1000] * 3000)
    path = logs / "t-0" / "00000000000000000000.log"
    flip(path, path.stat().st_size - 70)
    file.write_text("yesterday's")
    assert run("sql", logs, "SELECT * FROM t", "-o", file).exit_code == DATA_ERROR
    assert file.read_text() == "yesterday's"
    assert sorted(tmp_path.iterdir()) == [logs, file]


def test_files_that_are_not_regular(tmp_path):
    link, target, fifo = tmp_path / "link", tmp_path / "target", tmp_path / "fifo"
    target.write_text("precious")
    link.symlink_to(target)
    for query in ("SELECT 1", "SELECT nope"):
        done = run("sql", SAMPLE, query, "-o", link)
        assert done.exit_code == 2, done.output
    assert link.is_symlink()
    assert target.read_text() == "precious"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run("sql", SAMPLE, "SELECT nope", "-o", fifo).exit_code == 2
        assert run("sql", SAMPLE, "SELECT 1 AS a", "-o", fifo, "--format", "csv").exit_code == 0
        assert os.read(reader, 100) == b"a\n1\n"
    finally:
        os.close(reader)
    assert fifo.is_fifo()
    assert run("sql", SAMPLE, "SELECT 1", "-o", os.devnull).exit_code == 0
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1; SELECT 2",
        "CREATE TABLE x AS SELECT 1",
        "SELECT 1; FROM clicks",
        "CREATE TABLE x (a INT); INSERT INTO x VALUES (1) RETURNING a; EXPLAIN SELECT 1",
        "SET x = 1",
        "",
    ],
)
def test_a_file_takes_one_result(text, tmp_path):
    for file in (tmp_path / "x.parquet", tmp_path / "x.csv", tmp_path / "x"):
        done = run("sql", SAMPLE, text, "-o", file)
        assert done.exit_code == 2
        assert "the result of one statement" in done.output
    assert run("sql", SAMPLE, text, "--format", "parquet").exit_code == 2
    assert not list(tmp_path.iterdir())


def test_statements_before_the_result(tmp_path):
    text = "CREATE TABLE x AS SELECT * FROM clicks; INSERT INTO x SELECT * FROM clicks; SELECT count(*) AS n FROM x"
    text_of("sql", SAMPLE, text, "-o", tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == [{"n": 1200}]
    assert text_of("sql", SAMPLE, text, "--format", "csv") == "n\n1200\n"
    text_of("sql", SAMPLE, "CREATE TABLE x (a INT); INSERT INTO x VALUES (7) RETURNING a", "-o", tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == "a\n7\n"
    text_of("sql", SAMPLE, "PIVOT (SELECT 1 AS a, 'x' AS b) ON b USING sum(a)", "-o", tmp_path / "x.jsonl")
    assert (tmp_path / "x.jsonl").read_text() == '{"x":1}\n'


def test_the_name_of_the_file_chooses_the_form(tmp_path):
    query = "SELECT 1 AS a"
    for name, text in (("x.csv", "a\n1\n"), ("x.jsonl", '{"a":1}\n'), ("x.txt", "a\n1\n"), ("x.json", "a\n1\n")):
        text_of("sql", SAMPLE, query, "-o", tmp_path / name)
        assert (tmp_path / name).read_text() == text
    text_of("sql", SAMPLE, query, "-o", tmp_path / "x.csv", "--format", "parquet")
    assert pq.read_table(tmp_path / "x.csv").to_pylist() == [{"a": 1}]


def test_results_without_rows(tmp_path):
    query = "SELECT key, value AS v FROM clicks WHERE false"
    assert text_of("sql", SAMPLE, query, "--format", "csv") == "key,v\n"
    assert text_of("sql", SAMPLE, query) == "key  v\n"
    assert text_of("sql", SAMPLE, query, "--format", "jsonl") == ""
    text_of("sql", SAMPLE, query, "-o", tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    assert (table.column_names, table.num_rows) == (["key", "v"], 0)


def test_columns_of_the_same_name(tmp_path):
    query = "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a"
    assert text_of("sql", SAMPLE, query, "--format", "jsonl") == '{"a":1,"a_2":2,"a_1":3,"a_3":4}\n'
    assert text_of("sql", SAMPLE, query, "--format", "csv") == "a,a_2,a_1,a_3\n1,2,3,4\n"
    text_of("sql", SAMPLE, query, "-o", tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == [{"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}]
    (row,) = rows(SAMPLE, "SELECT * FROM clicks a JOIN orders b USING (topic) RIGHT JOIN (SELECT 1) ON true LIMIT 1")
    assert {"value", "value_1", "offset", "offset_1"} <= row.keys()


def test_null_and_empty_text_in_csv():
    query = "SELECT * FROM (VALUES (1, NULL, 'x'), (2, '', 'a\"b,c'), (3, 'NULL', '')) AS t(n, a, b)"
    assert text_of("sql", SAMPLE, query, "--format", "csv") == 'n,a,b\n1,,x\n2,"","a""b,c"\n3,NULL,""\n'
    query = "SELECT unnest(['x', NULL, '']) AS a"
    assert text_of("sql", SAMPLE, query, "--format", "csv") == 'a\nx\n""\n""\n'


# A value in SQL; its text; what jsonl has of it; its type in Parquet.
TYPES = [
    ("true", "true", True, "bool"),
    ("1::TINYINT", "1", 1, "int8"),
    ("(2**63)::UBIGINT", "9223372036854775808", 2**63, "uint64"),
    ("sum(1)", "1", 1, "decimal128(38, 0)"),
    ("340282366920938463463374607431768211455::UHUGEINT", str(2**128 - 1), 2**128 - 1, "string"),
    ("1.50", "1.50", 1.5, "decimal128(3, 2)"),
    ("-0.5::DECIMAL(2,2)", "-0.50", -0.5, "decimal128(2, 2)"),
    ("0.1::FLOAT", "0.1", 0.1, "float"),
    ("'nan'::DOUBLE", "NaN", "NaN", "double"),
    ("'-inf'::FLOAT", "-Infinity", "-Infinity", "float"),
    ("'\\xFF'::BLOB", '{"base64":"/w=="}', {"base64": "/w=="}, "binary"),
    ("'text'::BLOB", "text", "text", "binary"),
    ("'0101'::BIT", "0101", "0101", "string"),
    ("'a'::ENUM ('a', 'b')", "a", "a", "string"),
    ("'{\"a\":1}'::JSON", '{"a":1}', '{"a":1}', "string"),
    ("DATE '10000-01-01'", "10000-01-01", "10000-01-01", "date32[day]"),
    ("'0044-03-15 (BC)'::DATE", "0044-03-15 (BC)", "0044-03-15 (BC)", "date32[day]"),
    ("'infinity'::DATE", "infinity", "infinity", "date32[day]"),
    ("TIME '10:15:30.123456'", "10:15:30.123456", "10:15:30.123456", "time64[us]"),
    ("'10:15:30+02'::TIMETZ", "10:15:30+02", "10:15:30+02", "string"),
    ("TIMESTAMP '2026-11-20 10:15:30'", "2026-11-20T10:15:30.000", "2026-11-20T10:15:30.000", "timestamp[us]"),
    ("TIMESTAMP '2026-11-20 10:15:30.1234'", "2026-11-20T10:15:30.123400", "2026-11-20T10:15:30.123400",
     "timestamp[us]"),
    ("'2026-11-20 10:15:30.1+01'::TIMESTAMPTZ", "2026-11-20T09:15:30.100Z", "2026-11-20T09:15:30.100Z",
     "timestamp[us, tz=UTC]"),
    ("'2026-11-20 10:15:30.123456789'::TIMESTAMP_NS", "2026-11-20T10:15:30.123456789",
     "2026-11-20T10:15:30.123456789", "timestamp[ns]"),
    ("'infinity'::TIMESTAMP_S", "infinity", "infinity", "timestamp[us]"),
    ("INTERVAL '1 month 2 days 03:00:00'", "1 month 2 days 03:00:00", "1 month 2 days 03:00:00", "string"),
    ("[1, NULL]", "[1,null]", [1, None], "list<element: int32>"),
    ("[]::VARCHAR[]", "[]", [], "list<element: string>"),
    ("['inf'::DOUBLE]::DOUBLE[1]", '["Infinity"]', ["Infinity"], "fixed_size_list<element: double>[1]"),
    ("{'a': INTERVAL 1 DAY}", '{"a":"1 day"}', {"a": "1 day"}, "struct<a: string>"),
    ("row(1, 'x')", '[1,"x"]', [1, "x"], "struct<element1: int32, element2: string>"),
    ("MAP {1: 'x'}", '{"1":"x"}', {"1": "x"}, "map<int32, string ('x')>"),
    ("MAP {[1]: 'x'}", '[{"key":[1],"value":"x"}]', [{"key": [1], "value": "x"}],
     "map<list<element: int32>, string ('x')>"),
    ("'x'::UNION (number INT, word VARCHAR)", "x", "x", "string"),
    ("NULL", "", None, "string"),
]  # fmt: skip


def test_every_type_in_every_form(tmp_path):
    columns = [f"{value} AS c{number}" for number, (value, *_) in enumerate(TYPES)]
    query = f"SELECT {', '.join(columns)}"
    header, cells = csv.reader(io.StringIO(text_of("sql", SAMPLE, query, "--format", "csv")))
    assert cells == [text for _, text, *_ in TYPES]
    (found,) = rows(SAMPLE, query)
    assert list(found) == header
    assert list(found.values()) == [value for _, _, value, _ in TYPES]
    text_of("sql", SAMPLE, query, "-o", tmp_path / "x.parquet")
    kinds = pq.read_table(tmp_path / "x.parquet").schema.types
    types = [str(kind).replace(f"'c{number}'", "'x'") for number, kind in enumerate(kinds)]
    assert types == [kind for *_, kind in TYPES]
    for text in (text for _, text, *_ in TYPES):
        assert text in text_of("sql", SAMPLE, query)


def test_names_of_columns_in_a_terminal():
    assert "\x1b" not in text_of("sql", SAMPLE, 'SELECT 1 AS "\x1b[31m"')


TIMES = [1_763_683_200_000, 1_763_683_200_000_000, 1_763_683_200_000_000_000, -1]


@pytest.fixture
def odd_times(tmp_path):
    batches = [Batch([Record(None, b"x", timestamp=timestamp)]) for timestamp in TIMES]
    return build_log_dir(tmp_path, {"t": [batches]}, broker=False).path


def test_timestamps_that_duckdb_cannot_express(odd_times):
    texts = ["2025-11-21T00:00:00.000Z", "57858-11-24T00:00:00.000Z", "infinity", "1969-12-31T23:59:59.999Z"]
    assert [row["timestamp"] for row in rows(odd_times, "SELECT * FROM t")] == texts
    for condition, offsets in (
        ("timestamp > '2025-01-01'", [0, 1, 2]),
        ("timestamp < '2025-01-01'", [3]),
        ("timestamp = 'infinity'", [2]),
        ("timestamp BETWEEN '2025-01-01' AND '2026-01-01'", [0]),
        ("timestamp > '20000-01-01' AND isfinite(timestamp)", [1]),
        ("timestamp = '1969-12-31 23:59:59.999'", [3]),
    ):
        assert [row["offset"] for row in rows(odd_times, f"SELECT offset FROM t WHERE {condition}")] == offsets
        lines = text_of("cat", odd_times, "t", "--where", condition, "--format", "%o\\n").split()
        assert lines == [str(offset) for offset in offsets]


def test_value_json_is_always_there(tmp_path):
    build_log_dir(tmp_path / "empty", {"t": [[]]}, broker=False)
    assert rows(tmp_path / "empty", "SELECT value_json FROM t") == []
    made(tmp_path / "logs", b'{"a":1}', None, b"\xff", b"oops")
    for options in ([], ["--binary"]):
        found = rows(tmp_path / "logs", "SELECT value_json->>'a' AS a FROM t ORDER BY offset", *options)
        assert [row["a"] for row in found] == ["1", None, None, None]


@pytest.mark.parametrize(
    "text",
    [
        "CREATE VIEW v AS SELECT * FROM clicks; SELECT count(*) AS n FROM v",
        "CREATE VIEW v AS SELECT * FROM clicks; CREATE VIEW w AS FROM v; SELECT count(*) AS n FROM w -- clicks",
        "CREATE MACRO m() AS TABLE SELECT * FROM clicks; SELECT count(*) AS n FROM m()",
        "CREATE MACRO m() AS (SELECT count(*) FROM clicks); SELECT m() AS n",
        "PREPARE p AS SELECT count(*) AS n FROM clicks; EXECUTE p",
        "SELECT count(*) AS n FROM query_table('cli' || 'cks')",
        "BEGIN; CREATE TABLE x AS SELECT * FROM CLICKS; COMMIT; SELECT count(*) AS n FROM x",
        "BEGIN; CREATE TABLE x AS SELECT * FROM clicks; ROLLBACK; SELECT count(*) AS n FROM clicks",
        "CREATE TABLE x AS SELECT * FROM clicks; DROP VIEW clicks; SELECT count(*) AS n FROM clicks",
        "SELECT count(*) AS n FROM main.clicks",
    ],
)
def test_tables_that_the_statement_does_not_name(text):
    assert text_of("sql", SAMPLE, text, "--format", "jsonl") == '{"n":600}\n'


def test_a_view_shows_what_each_statement_begins_with(tmp_path):
    made(tmp_path, b"one", b"two")
    with Database(open_log(tmp_path)) as database:
        list(database.run("CREATE VIEW v AS SELECT count(*) AS n FROM t"))
        (batch,) = database.run("SELECT n FROM v")
        assert batch.to_pylist() == [{"n": 2}]
        output = process("append", tmp_path, "t", stdin=subprocess.PIPE).communicate(b"three\n", timeout=120)
        (batch,) = database.run("SELECT a.n, b.n AS m FROM v a, v b")
        assert batch.to_pylist() == [{"n": 3, "m": 3}], output


def test_only_the_topics_that_are_used_are_opened(monkeypatch):
    opened = set()
    log = LogDir.log
    monkeypatch.setattr(LogDir, "log", lambda self, tp: opened.add(tp.topic) or log(self, tp))
    assert rows(SAMPLE, "SELECT count(*) AS n FROM clicks") == [{"n": 600}]
    assert {row["name"] for row in rows(SAMPLE, "SHOW TABLES")} >= {"orders", "clicks"}
    assert len(rows(SAMPLE, "SELECT table_name FROM information_schema.tables")) > 1
    assert opened - {"_schemas"} == {"clicks"}


def test_topics_of_one_name_in_views(tmp_path):
    topics = {name: [[Batch([Record(None, value)])]] for name, value in (("orders", b"small"), ("Orders", b"large"))}
    build_log_dir(tmp_path, topics, broker=False)
    view = "CREATE VIEW v AS SELECT value FROM Orders; "
    assert text_of("sql", tmp_path, view + "SELECT * FROM v", "--format", "csv") == "value\nlarge\n"
    assert run("sql", tmp_path, view + "SELECT * FROM v, orders").exit_code == 2
    both = "SELECT value FROM orders; SELECT value FROM Orders"
    assert text_of("sql", tmp_path, both, "--format", "csv") == "value\nsmall\nvalue\nlarge\n"


@pytest.mark.parametrize(
    ("query", "meant"),
    [
        ("SELECT * FROM click", 'Did you mean "clicks"?'),
        ("SELECT * FROM pg_clas", "The topics here: "),
        ("CREATE TABLE fruit (a INT); SELECT * FROM fruits", 'Did you mean "fruit"?'),
        ("SELECT valeu FROM clicks", '"value"'),
    ],
)
def test_the_name_that_is_meant(query, meant):
    done = run("sql", SAMPLE, query)
    assert done.exit_code == 2
    assert meant in done.output
    assert "pg_" not in done.output.replace("pg_clas ", "")


def test_a_plan_has_lines():
    plan = text_of("sql", SAMPLE, "EXPLAIN SELECT count(*) FROM clicks WHERE offset > 5")
    assert len(plan.splitlines()) > 5
    assert "\\n" not in plan


ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = -1"


def test_an_interrupt_ends_a_statement(tmp_path):
    file = tmp_path / "report.csv"
    file.write_text("yesterday's")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with process("sql", SAMPLE, ENDLESS, "-o", file, env={**os.environ, "TMPDIR": str(temporary)}) as child:
        wait_for("a statement that runs", lambda: psutil.Process(child.pid).num_threads() > 2)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert child.returncode == INTERRUPTED
    assert said == b"kafkafs: interrupted\n"
    assert file.read_text() == "yesterday's"
    assert list(temporary.iterdir()) == []
    assert sorted(tmp_path.iterdir()) == [file, temporary]


def test_an_interrupt_while_a_topic_is_read(tmp_path):
    made(tmp_path, *[b"x" * 100] * 20_000)
    with Database(open_log(tmp_path)) as database:
        main_thread = threading.get_ident()

        def interrupt():
            wait_for("a statement that reads", lambda: database.bytes_read > 0)
            signal.pthread_kill(main_thread, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            list(database.run("SELECT count(*) FROM t a, t b, t c WHERE a.value || b.value || c.value = 'y'"))
        thread.join()
        assert not database.is_busy
        assert next(database.run("SELECT count(*) FROM t"))[0][0].as_py() == 20_000


def test_interrupts_of_calls():
    ended = threading.Event()

    def interrupted():
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return ended.wait(60)

    call = Caller(ended.set)
    with pytest.raises(KeyboardInterrupt):
        call(interrupted)
    assert not call.is_busy
    assert call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call(lambda: 1 // 0)
    call.close()
    ended.clear()
    stubborn = Caller(lambda: None)
    with pytest.raises(KeyboardInterrupt):
        stubborn(interrupted)
    assert stubborn.is_busy
    ended.set()
    stubborn.close()


def at_the_prompt(typed, *options, home):
    """Types into a prompt; its exit code, and what it prints."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(home), "TERM": "dumb"}
    command = [*KAFKAFS, "sql", str(SAMPLE), *map(str, options)]
    with subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as child:
        os.close(theirs)
        os.write(ours, typed)
        said, _ = child.communicate(timeout=120)
    os.close(ours)
    return child.returncode, said.decode()


@pytest.mark.parametrize("word", ["quit", "exit", "quit;", ".quit", ".exit"])
def test_the_prompt_ends(word, tmp_path):
    code, said = at_the_prompt(f"{word}\n".encode(), home=tmp_path)
    assert (code, "Error" in said) == (0, False)


def test_the_prompt_writes_the_file(tmp_path):
    file = tmp_path / "x.csv"
    typed = b"CREATE TABLE n AS SELECT 7 AS a;\nSELECT nope;\nSELECT a FROM n;\nSELECT 8 AS a;\nquit\n"
    code, said = at_the_prompt(typed, "-o", file, home=tmp_path)
    assert code == 0
    assert file.read_text() == "a\n7\n"
    assert "has the result of a statement already" in said


def test_interrupts_at_the_prompt(tmp_path):
    """The first ends what was typed, the second the program."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*KAFKAFS, "sql", str(SAMPLE)], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as child:
        os.close(theirs)
        assert child.stdout is not None
        os.write(ours, b"SELECT\n")
        for prompt in (b"...>", b"kafkafs>"):
            shown = b""
            while prompt not in shown:
                shown += os.read(child.stdout.fileno(), 100)
            wait_for("a prompt that reads", lambda: Path(f"/proc/{child.pid}/stat").read_text().split()[2] == "S")
            child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=120)
    os.close(ours)
    assert child.returncode == INTERRUPTED
    assert said.endswith(b"kafkafs: interrupted\n")
