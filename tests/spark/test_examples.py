"""The examples are run as tests, in the session of the tests here."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storage.verify.verify import verify_log_dir
from tests.interop.spark_kafka import AVRO_JAR
from tests.support.builders import build_log_dir

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
SAMPLE = EXAMPLES / "sample-log"

pytestmark = pytest.mark.usefixtures("spark")


def run(monkeypatch, script, *arguments):
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")


def test_batch(monkeypatch, capsys):
    run(monkeypatch, "spark_batch.py")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "|       day|messages|bytes|"
    assert sum(int(line.split("|")[2]) for line in lines if line.startswith("|2026-")) == 700


def test_stream(spark, monkeypatch, tmp_path):
    log_dir = tmp_path / "log"
    shutil.copytree(SAMPLE, log_dir)
    messages = tmp_path / "out" / "messages"
    for lines, expected in ((b"", 700), (b"one\ntwo\n", 702), (b"", 702)):
        command = [sys.executable, "-m", "kafkafs", "append", str(log_dir), "orders/0"]
        subprocess.run(command, input=lines, check=True, timeout=120)
        run(monkeypatch, "spark_stream.py", log_dir, "orders", tmp_path / "out")
        assert spark.read.parquet(str(messages)).distinct().count() == expected
        assert spark.read.parquet(str(messages)).count() == expected
    assert not verify_log_dir(log_dir)


def test_lag(monkeypatch, capsys):
    run(monkeypatch, "spark_lag.py")
    rows = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in capsys.readouterr().out.splitlines()[3:]]
    listed = subprocess.run(
        [sys.executable, "-m", "kafkafs", "groups", str(SAMPLE), "--json"], capture_output=True, check=True, timeout=60
    )
    assert len(rows) > 1
    for group in json.loads(listed.stdout)["groups"]:
        assert sum(int(row[5]) for row in rows if row and row[0] == group["group"]) == group["lag"]


def submitted(*arguments, cwd):
    """What spark-submit has printed."""
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.nightly
def test_submit(tmp_path):
    """With the settings that spark-submit has, not with the command's own."""
    settings = ["--master", "local[2]", "--conf", "spark.log.level=WARN"]
    command = [EXAMPLES / "spark_submit.py", "export", SAMPLE, tmp_path / "lake", "orders", "--json"]
    done = submitted(*settings, *command, cwd=tmp_path)
    assert 'Setting Spark log level to "WARN"' in done.stderr
    assert json.loads(done.stdout)["messages"] == 700


def test_merge(spark, monkeypatch):
    """The merged rows, and the syntax of the statements: a table to merge into would need Delta or Iceberg."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import spark_merge

    rows = [(b"a", b"1", 0, 0), (b"a", b"2", 0, 5), (b"b", b"3", 1, 1), (b"b", None, 1, 2), (None, b"4", 1, 3)]
    schema = "key binary, value binary, partition int, offset bigint"
    batch = spark.createDataFrame(rows, schema).selectExpr("*", "current_timestamp() AS timestamp")
    found = spark_merge.latest_by_key(batch).select("key", "value", "offset").orderBy("key").collect()
    assert [tuple(row) for row in found] == [(b"a", b"2", 5), (b"b", None, 2)]
    parser = spark._jsparkSession.sessionState().sqlParser()
    for statement in (spark_merge.CREATE, spark_merge.MERGE):
        parser.parsePlan(statement.format(table="orders", changes="changes"))


@pytest.mark.nightly
@pytest.mark.skipif(not AVRO_JAR.is_file(), reason=f"no {AVRO_JAR.name} in {AVRO_JAR.parent}: tests/run.sh fetches it")
def test_avro(spark, tmp_path):
    """In a new Spark: jars are named when it starts."""
    record = json.dumps({"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]})
    values = [b"\0\0\0\0\x07" + bytes([2 * number]) for number in range(3)]
    path = build_log_dir(tmp_path / "log", {"t": [[*values, b"plain text", b"\0\0\0\1\0\x02"]]}, broker=False).path
    (tmp_path / "order.avsc").write_text(record)
    arguments = [EXAMPLES / "spark_avro.py", path, "t", tmp_path / "order.avsc", "7"]
    done = submitted("--master", "local[1]", "--jars", AVRO_JAR, *arguments, cwd=tmp_path)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if "|" in line]
    assert rows[:4] == [["schemaId", "count"], ["NULL", "1"], ["7", "3"], ["256", "1"]]
    assert [(row[1], row[3]) for row in rows[5:]] == [("0", "0"), ("1", "1"), ("2", "2")]
