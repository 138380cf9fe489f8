"""Spark's own Kafka source: its jars and the older pyspark that they go with, as tests/run.sh fetched them.

The newest release that Maven has whole is 4.0.0, which does not run on the pyspark that Python data sources want. So
that pyspark has an environment of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.interop.kafka import REQUIRED

VERSION = "4.0.0"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkafs"
PYTHON = _CACHE / f"pyspark-{VERSION}" / "bin" / "python"
_JAR_DIR = _CACHE / f"spark-kafka-{VERSION}"

HAVE_SPARK_KAFKA = PYTHON.exists() and (_JAR_DIR / f"spark-sql-kafka-0-10_2.13-{VERSION}.jar").is_file()
requires_spark_kafka = pytest.mark.skipif(
    not HAVE_SPARK_KAFKA and not REQUIRED,
    reason=f"no pyspark {VERSION} with its Kafka source in {_CACHE} (tests/run.sh fetches them)",
)


def jars() -> list[str]:
    """The paths of the jars that Spark needs for its Kafka source."""
    return sorted(str(path) for path in _JAR_DIR.glob("*.jar"))
