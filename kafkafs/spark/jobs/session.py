"""A Spark session for a command: the one that spark-submit set up, or one on this machine's cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.conf import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from storage.errors import StorageError

LOCAL = "local[*]"


@contextmanager
def spark_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None, show_progress: bool = False
) -> Iterator[SparkSession]:
    """A session, stopped afterwards if it is ours. `settings` go over all defaults; `show_progress`: on stderr.

    StorageError when Spark does not start (no Java, mostly).
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in _defaults(show_progress).items():
        builder = builder.config(key, value)
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    try:
        if master is None and not SparkConf().contains("spark.master"):
            builder = builder.master(LOCAL)
        spark = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise StorageError(
            "Spark does not start", found=str(error).strip().splitlines()[0], advice="It needs Java 17 or 21"
        ) from error
    try:
        yield spark
    finally:
        spark.stop()


def _defaults(show_progress: bool) -> dict[str, str]:
    """Quiet, and nothing listening: what a command wants that ends when its work is done."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(show_progress).lower(),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
    }
