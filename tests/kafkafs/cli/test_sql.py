"""`kafkafs sql` and `cat --where`: topics as tables, formats, errors, and that nothing else can be reached."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="no duckdb: install the extra `sql`")
pytest.importorskip("pyarrow", reason="no pyarrow: install the extra `sql`")

import pyarrow.parquet as pq

from kafkafs.arrow.database import BadQuery, Database, Where
from kafkafs.arrow.opened_log import open_log
from kafkafs.cli.process import DATA_ERROR
from storage.format.block import Record
from storage.types import TopicPartition
from tests.support.builders import Batch, build_log_dir
from tests.support.commands import output_of, process, run
from tests.support.damaged_bytes import flip
from tests.support.mounts import KAFKAFS

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "examples" / "sample-log"
AVRO = ROOT / "examples" / "avro-log"


def text_of(*args: object) -> str:
    return output_of(*args).decode()


def made(place: Path, *values: bytes | None, topic: str = "t") -> None:
    build_log_dir(place, {topic: [[Batch([Record(None, value)]) for value in values]]}, broker=False)


def rows(logdir: Path, query: str, *options: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text_of("sql", logdir, query, "--format", "jsonl", *options).splitlines()]


def test_a_topic_is_a_table() -> None:
    printed = [json.loads(line) for line in text_of("cat", SAMPLE, "orders", "--format", "jsonl").splitlines()]
    found = rows(SAMPLE, 'SELECT * FROM orders ORDER BY partition, "offset"')
    assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in found] == [
        (row["partition"], row["offset"], row["key"], row["value"]) for row in printed
    ]
    assert [row["value_json"] for row in found] == [row["value"] for row in printed]
    assert list(found[0]) == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
                              "value_json"]  # fmt: skip


def test_the_topics_are_listed(tmp_path: Path) -> None:
    topics = sorted(path.name.removesuffix("-0") for path in SAMPLE.glob("*-0"))
    assert [row["name"] for row in rows(SAMPLE, "show tables")] == topics
    assert text_of("sql", SAMPLE, ".tables").split() == topics
    assert text_of("sql", SAMPLE, ".tables", "-o", tmp_path / "x") == ""
    assert (tmp_path / "x").read_text().split() == topics
    assert "offset         BIGINT" in text_of("sql", SAMPLE, ".schema orders")


def test_filters_are_pushed_down(tmp_path: Path) -> None:
    made(tmp_path, *[b"x" * 1000] * 3000)
    with Database(open_log(tmp_path)) as database:
        assert next(database.run('SELECT count(value) FROM t WHERE "offset" BETWEEN 2000 AND 2010'))[0][0].as_py() == 11
        some = database.bytes_read
        assert next(database.run("SELECT count(value) FROM t"))[0][0].as_py() == 3000
        assert 0 < some < database.bytes_read / 10


def test_offset_is_a_column_and_a_word() -> None:
    query = "SELECT offset, 'offset' AS x FROM clicks WHERE offset >= 3 ORDER BY offset LIMIT 2 OFFSET 1"
    assert rows(SAMPLE, query) == [{"offset": 4, "x": "offset"}, {"offset": 5, "x": "offset"}]
    assert text_of("cat", SAMPLE, "clicks", "--where", "offset = 7", "--format", "%o\\n") == "7\n"


def test_formats(tmp_path: Path) -> None:
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


def test_statements_from_a_pipe() -> None:
    with process("sql", SAMPLE, "--format", "csv", stdin=subprocess.PIPE) as child:
        said, _ = child.communicate(b"CREATE TABLE n AS SELECT 1 AS x; SELECT x + 1 AS y\nFROM n", timeout=120)
    assert child.returncode == 0
    assert said.splitlines()[-2:] == [b"y", b"2"]


def test_binary_values(tmp_path: Path) -> None:
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
def test_nothing_else_can_be_reached(statement: str, tmp_path: Path) -> None:
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
def test_what_is_wrong_is_told(query: str, said: str) -> None:
    done = run("sql", SAMPLE, query)
    assert done.exit_code == 2
    assert said in done.output


def test_damage_is_told_with_its_place(tmp_path: Path) -> None:
    made(tmp_path, b"one", b"two")
    path = tmp_path / "t-0" / "00000000000000000000.log"
    flip(path, path.stat().st_size // 2 + 70)
    done = run("sql", tmp_path, "SELECT count(value) FROM t")
    assert done.exit_code == DATA_ERROR
    assert "00000000000000000000.log" in done.output


def test_topics_whose_names_differ_in_case(tmp_path: Path) -> None:
    topics = {name: [[Batch([Record(None, value)])]] for name, value in (("orders", b"small"), ("Orders", b"large"))}
    build_log_dir(tmp_path, topics, broker=False)
    assert [row["value"] for row in rows(tmp_path, "SELECT value FROM Orders")] == ["large"]
    assert run("sql", tmp_path, "SELECT * FROM Orders, orders").exit_code == 2
    assert run("sql", tmp_path, "SELECT * FROM ORDERS").exit_code == 2


def test_the_prompt(tmp_path: Path) -> None:
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


def test_where(tmp_path: Path) -> None:
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
def test_where_that_is_no_expression(expression: str) -> None:
    done = run("cat", SAMPLE, "orders", "--where", expression)
    assert done.exit_code == 2
    assert "--where: " in done.output
    assert run("cat", SAMPLE, "orders/0", "--format", "log", "--where", "true").exit_code == 2


def test_a_filter_of_records() -> None:
    where = Where("key = 'c-11'", None)
    log = open_log(SAMPLE)
    for tp, block in log["accounts"].scan().blocks():
        assert {where(tp, block).key(row) for row in range(len(where(tp, block)))} <= {b"c-11"}
        assert tp == TopicPartition("accounts", 0)
    with pytest.raises(BadQuery):
        Where("read_text('/etc/passwd') IS NULL", None)


def test_a_table_has_at_most_a_thousand_rows(tmp_path: Path) -> None:
    made(tmp_path, b"x")
    for count, shown in ((999, 999), (1001, 1000)):
        result = run("sql", tmp_path, f"SELECT range AS number FROM range({count})")
        assert result.exit_code == 0
        assert result.stdout.split() == ["number", *map(str, range(shown))]
        assert ("a table has at most 1000 rows" in result.stderr) == (count > shown)
