"""Spark sessions for tests: local, quick to start, and without a web interface."""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="no pyspark: install the extra `spark`", exc_type=ImportError)

REQUIRED = os.environ.get("CI", "").lower() in ("true", "1")
HAVE_JAVA = bool(shutil.which("java"))

# For tests that run Spark: one worker runs them all (`--dist loadgroup`).
on_spark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def new_spark(test):
    """The test starts a Spark of its own, and runs nightly."""
    has_java = pytest.mark.skipif(not HAVE_JAVA and not REQUIRED, reason="no Java: Spark does not run")
    for mark in (pytest.mark.nightly, *on_spark, has_java):
        test = mark(test)
    return test


def _spark_home(directory):
    """The installed Spark, but with directories instead of the archives of pyspark and py4j.

    Spark puts `python/lib/pyspark.zip` first into the path of its Python processes. The archive has no bytecode: each
    process compiles what it imports, which takes three times as long as to start without it, and on a busy machine
    longer than the ten seconds that Spark waits for the process of a streaming source.
    """
    import py4j
    import pyspark

    directory.mkdir(parents=True, exist_ok=True)
    installed, home = Path(pyspark.__file__).parent, Path(tempfile.mkdtemp(prefix="spark-", dir=directory))
    for path in installed.iterdir():
        if path.name != "python":
            (home / path.name).symlink_to(path)
    for archive in (installed / "python" / "lib").glob("*.zip"):
        package = pyspark if archive.name == "pyspark.zip" else py4j
        place = home / "python" / "lib" / archive.name
        place.mkdir(parents=True)
        (place / package.__name__).symlink_to(Path(package.__file__).parent)
    return home


def start_session(directory, **settings):
    """A session that knows the format `kafkafs`; its files go to `directory`. `settings`: with _ for the dots."""
    from pyspark.sql import SparkSession

    from kafkafs.spark import register

    if not HAVE_JAVA and not REQUIRED:
        pytest.skip("no Java: Spark does not run")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_HOME"] = str(_spark_home(directory))
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


def run_to_end(start, timeout_s):
    """Runs a streaming query until it has nothing more to do; raises its error if it fails."""
    query = start()
    try:
        assert query.awaitTermination(timeout_s), "the query does not end"
    finally:
        query.stop()


def wait_for_tasks(spark):
    """Waits until no task runs: tasks of a failed job continue for some seconds, and Spark does not wait for them."""
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()  # no Python interface tells
    deadline = time.monotonic() + 120
    while True:
        running = scheduler.runningTasksByExecutors().values().iterator()
        if not any(running.next() for _ in iter(running.hasNext, False)):
            return
        assert time.monotonic() < deadline, "tasks do not end"
        time.sleep(0.05)
