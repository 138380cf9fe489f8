"""Spark's own Kafka source: its jars and the older pyspark that they go with, as tests/run.sh fetched them.

The newest release that Maven has whole is 4.0.0, which does not run on the pyspark that Python data sources want. So
that pyspark has an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.interop.kafka import REQUIRED

VERSION = "4.0.0"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkafs"
PYTHON = _CACHE / f"pyspark-{VERSION}" / "bin" / "python"
SCRIPT = Path(__file__).with_name("spark_queries.py")
_JAR_DIR = _CACHE / f"spark-kafka-{VERSION}"
# Spark's functions for Avro, which its distribution lacks.
AVRO_JAR = _JAR_DIR / f"spark-avro_2.13-{VERSION}.jar"

HAVE_SPARK_KAFKA = PYTHON.exists() and (_JAR_DIR / f"spark-sql-kafka-0-10_2.13-{VERSION}.jar").is_file()
requires_spark_kafka = pytest.mark.skipif(
    not HAVE_SPARK_KAFKA and not REQUIRED,
    reason=f"no pyspark {VERSION} with its Kafka source in {_CACHE} (tests/run.sh fetches them)",
)


def jars() -> list[str]:
    """The paths of the jars that Spark needs for its Kafka source."""
    return sorted(str(path) for path in _JAR_DIR.glob("*.jar"))


def ask(
    python: str | Path,
    source: str,
    queries: Mapping[str, Mapping[str, str]],
    more: Mapping[str, str],
    directory: Path,
    jars: Sequence[str] = (),
) -> dict[str, Any]:
    """The answers of a Spark of its own to all queries, by name: see spark_queries.py. `more`: options of them all."""
    asked, answers = directory / f"{source}-queries.json", directory / f"{source}-answers.json"
    asked.write_text(json.dumps([{**more, **options} for options in queries.values()]))
    command = [str(python), str(SCRIPT), source, str(asked), str(answers), *jars]
    environment = {name: value for name, value in os.environ.items() if source == "kafkafs" or name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=560, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(queries, json.loads(answers.read_text()), strict=True))
