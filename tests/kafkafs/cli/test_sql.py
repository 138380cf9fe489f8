"""`kafkafs sql`: what is read, refused and left alone, forms of values, interrupts, the prompt. See also
transcripts/sql.txt."""

import csv
import io
import json
import os
import pty
import signal
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytest.importorskip("duckdb", reason="no duckdb: install the extra `sql`")
pytest.importorskip("pyarrow", reason="no pyarrow: install the extra `sql`")

import pyarrow.parquet as pq

from kafkafs.arrow.database import Database
from kafkafs.arrow.interruptible import Caller
from kafkafs.arrow.opened_log import open_log
from kafkafs.cli.process import DATA_ERROR, INTERRUPTED
from storage.format.block import Record
from storage.log.log_dir import LogDir
from tests.support.builders import Batch, build_log_dir
from tests.support.commands import output_of, process, run
from tests.support.damaged_bytes import flip
from tests.support.fixtures import ROOT
from tests.support.mounts import KAFKAFS
from tests.support.waiting import wait_for

SAMPLE = ROOT / "examples" / "sample-log"


def text_of(*args):
    return output_of("sql", *args).decode()


def made(place, *values):
    return build_log_dir(place, {"t": [[Batch([Record(None, value)]) for value in values]]}, broker=False)["t", 0].log()


def rows(logdir, query, *options):
    return [json.loads(line) for line in text_of(logdir, query, "--format", "jsonl", *options).splitlines()]


# What is read


def test_a_topic_is_a_table():
    printed = [json.loads(line) for line in output_of("cat", SAMPLE, "orders", "--format", "jsonl").splitlines()]
    selected = rows(SAMPLE, 'SELECT * FROM orders ORDER BY partition, "offset"')
    for name in ("partition", "offset", "key", "value"):
        assert [row[name] for row in selected] == [row[name] for row in printed]
    assert [row["value_json"] for row in selected] == [row["value"] for row in printed]


def test_filters_are_pushed_down(tmp_path):
    made(tmp_path, *[b"x" * 1000] * 3000)
    with Database(open_log(tmp_path)) as database:
        assert next(database.run('SELECT count(value) FROM t WHERE "offset" BETWEEN 2000 AND 2010'))[0][0].as_py() == 11
        some = database.bytes_read
        assert next(database.run("SELECT count(value) FROM t"))[0][0].as_py() == 3000
        assert 0 < some < database.bytes_read / 10


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


# What is wrong


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
    result = run("sql", SAMPLE, statement.replace("{there}", str(tmp_path)))
    assert result.exit_code == 2, result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM nope", "The topics here: "),
        ("SELECT * FROM click", 'Did you mean "clicks"?'),
        ("SELECT * FROM pg_clas", "The topics here: "),
        ("CREATE TABLE fruit (a INT); SELECT * FROM fruits", 'Did you mean "fruit"?'),
        ("SELECT valeu FROM clicks", '"value"'),
        ("SELECT 'x'::INT", "Conversion"),
        ('SELECT * FROM "\udcff"', "surrogates not allowed"),
    ],
)
def test_what_is_wrong_is_told(query, said):
    result = run("sql", SAMPLE, query)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "pg_" not in result.stderr.replace("pg_clas ", "")


@pytest.mark.parametrize("expression", ["nope = 1", "1 = (", "CAST(value AS INT) = 1", "read_text('/etc/passwd') = ''"])
def test_where_that_is_no_expression(expression):
    result = run("cat", SAMPLE, "orders", "--where", expression)
    assert (result.exit_code, "--where: " in result.stderr) == (2, True)


@pytest.fixture
def report(tmp_path):
    """A file of yesterday's, alone in its directory."""
    (tmp_path / "out").mkdir()
    file = tmp_path / "out" / "report"
    file.write_text("yesterday's")
    file.chmod(0o640)
    yield file
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("form", ["table", "csv", "jsonl", "parquet"])
@pytest.mark.parametrize("query", ["SELECT nope FROM clicks", "SELEC", "SELECT value::INT FROM clicks"])
def test_a_failed_query_leaves_the_file(query, form, report):
    assert run("sql", SAMPLE, query, "-o", report, "--format", form).exit_code == 2
    assert report.read_text() == "yesterday's"
    assert run("sql", SAMPLE, "SELECT 1 AS a", "-o", report, "--format", "csv").exit_code == 0
    assert report.read_text() == "a\n1\n"
    assert report.stat().st_mode & 0o777 == 0o640


def test_damage_is_told_with_its_place_and_leaves_the_file(tmp_path, report):
    log = made(tmp_path / "logs", *[b"x" * 1000] * 3000)
    flip(log, log.stat().st_size - 70)
    result = run("sql", tmp_path / "logs", "SELECT * FROM t", "-o", report)
    assert result.exit_code == DATA_ERROR
    assert str(log) in result.stderr
    assert report.read_text() == "yesterday's"


def test_files_that_are_not_regular(tmp_path):
    link, target, fifo = tmp_path / "link", tmp_path / "target", tmp_path / "fifo"
    target.write_text("precious")
    link.symlink_to(target)
    for query in ("SELECT 1", "SELECT nope"):
        assert run("sql", SAMPLE, query, "-o", link).exit_code == 2
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


# Forms of values


@pytest.mark.parametrize(
    ("query", "columns", "content"),
    [
        ('SELECT "offset" FROM clicks WHERE "offset" < 3', ["offset"], [{"offset": n} for n in range(3)]),
        ("SELECT key, value AS v FROM clicks WHERE false", ["key", "v"], []),
        ("SELECT 1 AS a, 2 AS a, 3 AS a_1", ["a", "a_2", "a_1"], [{"a": 1, "a_2": 2, "a_1": 3}]),
        ("CREATE TABLE x AS FROM clicks; SELECT count(*) AS n FROM x", ["n"], [{"n": 600}]),
    ],
)
def test_parquet(tmp_path, query, columns, content):
    for name, form in (("x.parquet", ()), ("x.csv", ("--format", "parquet"))):
        text_of(SAMPLE, query, "-o", tmp_path / name, *form)
        table = pq.read_table(tmp_path / name)
        assert (table.column_names, table.to_pylist()) == (columns, content)


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
    header, cells = csv.reader(io.StringIO(text_of(SAMPLE, query, "--format", "csv")))
    assert cells == [text for _, text, *_ in TYPES]
    (row,) = rows(SAMPLE, query)
    assert list(row) == header
    assert list(row.values()) == [value for _, _, value, _ in TYPES]
    text_of(SAMPLE, query, "-o", tmp_path / "x.parquet")
    kinds = pq.read_table(tmp_path / "x.parquet").schema.types
    assert [str(kind).replace(f"'c{number}'", "'x'") for number, kind in enumerate(kinds)] == [
        kind for *_, kind in TYPES
    ]
    table = text_of(SAMPLE, query)
    assert [text for _, text, *_ in TYPES if text not in table] == []


def test_names_of_columns_in_a_terminal():
    assert text_of(SAMPLE, 'SELECT 1 AS "\x1b[31m"').splitlines()[0] == "\\x1b[31m"


def test_a_plan_has_lines():
    plan = text_of(SAMPLE, "EXPLAIN SELECT count(*) FROM clicks WHERE offset > 5")
    assert len(plan.splitlines()) > 5
    assert "\\n" not in plan


# Interrupts

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


# The prompt


@contextmanager
def prompt(home, *options, **streams):
    """A prompt on a terminal of its own: the process, and what types."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(home), "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    command = [*KAFKAFS, "sql", str(SAMPLE), *map(str, options)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **streams}
    try:
        with subprocess.Popen(command, stdin=theirs, env=environment, **streams) as child:
            os.close(theirs)
            yield child, lambda text: os.write(ours, text)
    finally:
        os.close(ours)


@pytest.mark.parametrize("word", ["quit", "exit", "quit;", ".quit", ".exit"])
def test_the_prompt(tmp_path, word):
    with prompt(tmp_path) as (child, typing):
        typing(b".tables\n.schema clicks\nSELECT count(*)\nAS n FROM clicks;\nSELECT nope;\n" + f"{word}\n".encode())
        said, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    for text in (b"payments", b"TIMESTAMP WITH TIME ZONE", b"600", b"Binder Error"):
        assert said.count(text) == 1, text
    assert (tmp_path / "kafkafs" / "sql_history").stat().st_mode & 0o777 == 0o600


def test_the_prompt_writes_the_file(tmp_path):
    file = tmp_path / "x.csv"
    with prompt(tmp_path, "-o", file) as (child, typing):
        typing(b"CREATE TABLE n AS SELECT 7 AS a;\nSELECT nope;\nSELECT a FROM n;\nSELECT 8 AS a;\nquit\n")
        said, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    assert file.read_text() == "a\n7\n"
    assert b"has the result of a statement already" in said


def test_interrupts_at_the_prompt(tmp_path):
    """The first ends what was typed, the second the program."""
    with prompt(tmp_path, stderr=subprocess.PIPE) as (child, typing):
        typing(b"SELECT\n")
        for mark in (b"...>", b"kafkafs>"):
            shown = b""
            while mark not in shown:
                shown += os.read(child.stdout.fileno(), 100)
            wait_for("a prompt that reads", lambda: Path(f"/proc/{child.pid}/stat").read_text().split()[2] == "S")
            child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=120)
    assert child.returncode == INTERRUPTED
    assert said.endswith(b"kafkafs: interrupted\n")
