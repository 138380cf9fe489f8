"""Spark's own Kafka source, to compare ours with: its jars and the older pyspark for them, which tests/run.sh fetches.

The newest release that Maven has completely is 4.0.0, which does not run on the pyspark that kafkafs needs. So its
pyspark has an environment of its own.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop.kafka import REQUIRED
from tests.support.downloads import DOWNLOADS

Answers = dict[str, dict[str, Any]]

VERSION = "4.0.0"
PYTHON = DOWNLOADS / f"pyspark-{VERSION}" / "bin" / "python"
SCRIPT = Path(__file__).with_name("spark_queries.py")
_JAR_DIR = DOWNLOADS / f"spark-kafka-{VERSION}"
# Spark's functions for Avro, which its distribution lacks.
AVRO_JAR = _JAR_DIR / f"spark-avro_2.13-{VERSION}.jar"

HAVE_SPARK_KAFKA = PYTHON.exists() and (_JAR_DIR / f"spark-sql-kafka-0-10_2.13-{VERSION}.jar").is_file()
requires_spark_kafka = pytest.mark.skipif(
    not HAVE_SPARK_KAFKA and not REQUIRED,
    reason=f"no pyspark {VERSION} with its Kafka source in {DOWNLOADS} (tests/run.sh fetches them)",
)


def jars():
    """The paths of the jars that Spark needs for its Kafka source."""
    return sorted(str(path) for path in _JAR_DIR.glob("*.jar"))


def ask(broker, queries, directory):
    """The answers of a new Spark's own Kafka source to all queries, by name: see spark_queries.py."""
    queries_file, answers = directory / "queries.json", directory / "answers.json"
    client = {"kafka.bootstrap.servers": broker.address}
    queries_file.write_text(json.dumps([{**client, **options} for options in queries.values()]))
    command = [str(PYTHON), str(SCRIPT), str(queries_file), str(answers), *jars()]
    ours = ("PYTHONPATH", "SPARK_HOME")  # of another Python and Spark
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(command, capture_output=True, text=True, timeout=560, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(queries, json.loads(answers.read_text()), strict=True))
