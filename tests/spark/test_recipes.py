"""The recipes of kafkafs/spark/SPARK.md, run as they stand there, with other places."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from storage.format.block import Record
from tests.support.builders import ROLL, Batch, build_log_dir
from tests.support.commands import output_of

pytestmark = pytest.mark.spark

SPARK_MD = Path(__file__).resolve().parents[2] / "kafkafs" / "spark" / "SPARK.md"
HOUR_MS = 3_600_000


def run_recipe(number, spark, log_dir, output):
    """The variables of the recipe, which reads `log_dir` and writes to `output`."""
    recipes = SPARK_MD.read_text().partition("## Recipes\n")[2]
    code = re.findall(r"```python\n(.*?)```", recipes, re.DOTALL)[number]
    assert 3 <= len(code.strip().splitlines()) <= 10
    variables = {"spark": spark}
    exec(code.replace("/var/lib/kafka", str(log_dir)).replace("latest-clicks", str(output)), variables)
    return variables


def test_the_last_message_of_every_key(spark, tmp_path):
    """The rows are those of `cat --latest`."""
    updates = [
        Batch([Record(b"a", b"1"), Record(b"b", b"1"), Record(None, b"no key"), Record(b"c", b"1")]),
        ROLL,
        Batch([Record(b"b", None), Record(b"a", b"2"), Record(b"b", b"3"), Record(b"c", None), Record(b"", b"")]),
    ]
    log_dir = build_log_dir(tmp_path / "log", {"clicks": [updates, [Batch([Record(b"a", b"other")])], []]}).path
    run_recipe(0, spark, log_dir, tmp_path / "table")
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    lines = [
        json.loads(line) for line in output_of("cat", log_dir, "clicks", "--latest", "--format", "jsonl").splitlines()
    ]
    assert sorted((row.partition, row.offset, row.key.decode(), row.value.decode()) for row in rows) == sorted(
        (line["partition"], line["offset"], line["key"], line["value"]) for line in lines
    )
    assert [row.topic for row in rows] == ["clicks"] * 4


def test_messages_by_topic_and_hour(spark, tmp_path, capsys):
    timestamps = {"a": [0, HOUR_MS - 1, HOUR_MS, 5 * HOUR_MS], "b": [HOUR_MS, HOUR_MS + 1]}
    topics = {
        topic: [[Batch([Record(None, b"x", (), timestamp) for timestamp in times])]]
        for topic, times in timestamps.items()
    }
    log_dir = build_log_dir(tmp_path / "log", topics).path
    hours = run_recipe(1, spark, log_dir, tmp_path / "unused")["hours"]
    expected = Counter((topic, timestamp // HOUR_MS) for topic, times in timestamps.items() for timestamp in times)
    rows = [(row.topic, row.hour.day, row.hour.hour, row["count"]) for row in hours.collect()]
    assert rows == [(topic, 1, hour, count) for (topic, hour), count in sorted(expected.items())]
    assert "topic" in capsys.readouterr().out
