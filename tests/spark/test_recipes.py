"""The recipes of kafkafs/spark/SPARK.md, run as they stand there, with other places."""

import json
import re
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
    assert 3 <= len(code.strip().splitlines()) <= 15
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


def test_messages_sizes_and_keys_by_topic_and_hour(spark, tmp_path, capsys):
    """By hour the same as by plain counting; added up, what `kafkafs stats` counts."""
    timestamps = {"a": [0, HOUR_MS - 1, HOUR_MS, 5 * HOUR_MS], "b": [HOUR_MS, HOUR_MS + 1]}
    keys, values = [b"k", b"other", None], [b"value", None]
    records = {
        topic: [Record(keys[n % 3], values[n % 2], (), time) for n, time in enumerate(times)]
        for topic, times in timestamps.items()
    }
    log_dir = build_log_dir(tmp_path / "log", {topic: [[Batch(of_topic)]] for topic, of_topic in records.items()}).path
    rows = [row.asDict() for row in run_recipe(1, spark, log_dir, tmp_path / "unused")["hours"].collect()]
    expected = []
    for topic, hour in sorted({(topic, time // HOUR_MS) for topic, times in timestamps.items() for time in times}):
        of_hour = [record for record in records[topic] if record.timestamp // HOUR_MS == hour]
        sizes = sorted(len(record.key or b"") + len(record.value or b"") for record in of_hour)
        expected.append(
            {
                "topic": topic, "messages": len(of_hour), "null_keys": sum(record.key is None for record in of_hour),
                "tombstones": sum(record.value is None for record in of_hour), "bytes": sum(sizes), "max": sizes[-1],
                "keys": len({record.key for record in of_hour} - {None}),
            }
        )  # fmt: skip
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    assert [row["hour"].hour for row in rows] == [0, 1, 5, 1]
    assert all(row["quantiles"][-1] == row["max"] for row in rows)
    counted = json.loads(output_of("stats", log_dir, "--json"))
    for name in ("messages", "null_keys", "tombstones"):
        assert sum(row[name] for row in rows) == counted[name]
    assert sum(row["bytes"] for row in rows) == counted["bytes_decoded"]
    assert "topic" in capsys.readouterr().out
