"""Spark sessions for tests: local, quick to start, and without a web interface."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytest.importorskip("pyspark", reason="no pyspark: install the extra `spark`", exc_type=ImportError)

REQUIRED = os.environ.get("CI", "").lower() in ("true", "1")
HAVE_JAVA = bool(shutil.which("java"))


def start_session(directory: Path, **settings: str) -> SparkSession:
    """A session that knows the format `kafkafs`; its files go to `directory`. `settings`: with _ for the dots."""
    from pyspark.sql import SparkSession

    from kafkafs.spark import register

    if not HAVE_JAVA and not REQUIRED:
        pytest.skip("no Java: Spark does not run")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Three attempts at a task: a task that loses its worker is repeated, as on a cluster.
    builder = SparkSession.builder.master("local[2, 3]").appName("kafkafs-tests")
    for name, value in {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # Workers get disks of tests. The JVM may be one that a command has started: its workers do not import from the
        # working directory.
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
        "spark.local.dir": str(directory / "local"),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def with_patience(run: Callable[[], None]) -> None:
    """Calls `run`, which runs a streaming query with a checkpoint, and repeats it when Spark gave up because a Python
    worker did not connect within ten seconds. That time is fixed (PythonWorkerFactory.createSimpleWorker), and a busy
    machine needs longer to start a worker."""
    from pyspark.errors import StreamingQueryException

    for attempts_left in (2, 1, 0):
        try:
            run()
        except StreamingQueryException as error:
            if not attempts_left or "Python worker failed to connect back" not in str(error):
                raise
        else:
            return


def run_to_end(start: Callable[[], StreamingQuery], timeout_s: int) -> None:
    """Runs a streaming query, with patience, until it has nothing more to do; raises its error if it fails."""

    def run() -> None:
        query = start()
        try:
            assert query.awaitTermination(timeout_s), "the query does not end"
        finally:
            query.stop()

    with_patience(run)


def wait_for_tasks(spark: SparkSession) -> None:
    """Waits until no task runs: tasks of a failed job continue for some seconds, and Spark does not wait for them."""
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()  # no Python interface tells
    deadline = time.monotonic() + 120
    while True:
        running = scheduler.runningTasksByExecutors().values().iterator()
        if not any(running.next() for _ in iter(running.hasNext, False)):
            return
        assert time.monotonic() < deadline, "tasks do not end"
        time.sleep(0.05)
