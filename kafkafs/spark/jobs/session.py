"""A Spark session for a command: in the JVM that spark-submit started, or in one that is started here."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

from pyspark import SparkContext
from pyspark.conf import SparkConf
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from kafkafs.spark.jobs.tasks import SparkFailed
from storage.errors import StorageError

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit: its JVM is running
_SAFE_PATH: Final = "PYTHONSAFEPATH"
_PROGRESS: Final = re.compile(rb"\r(?:\[Stage [^\r\n]*\])? *")  # ConsoleProgressBar: drawn over the previous one


@contextmanager
def spark_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None, show_progress: bool = False
) -> Iterator[SparkSession]:
    """A session, stopped afterwards if it was started here. `settings` override all others; `show_progress`: on stderr.

    Without `master`, spark-submit or spark-defaults.conf names the master, otherwise Spark uses all cores of this
    machine. A JVM that is started here, and its Python workers, write to a temporary file instead of stderr. The file
    is removed unless Spark fails: then the error names it. StorageError if Spark does not start, usually for lack of
    Java.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = dict(settings or {}) if master is None else {**(settings or {}), "spark.master": master}
    if _SUBMITTED in os.environ or SparkContext._gateway is not None:
        with _stopped_afterwards(_in_running_jvm(name, given, _defaults(show_progress))) as spark:
            yield spark
        return
    descriptor, path = tempfile.mkstemp(prefix="kafkafs-spark-", suffix=".log")
    log, has_failed = Path(path), False
    try:
        with _stopped_afterwards(_in_new_jvm(name, {**_defaults(show_progress), **given}, descriptor, log)) as spark:
            yield spark
    except SparkFailed as error:
        has_failed = True
        error.advice = f"{f'{error.advice}. ' if error.advice else ''}Spark's own messages are in {log}"
        raise
    finally:
        if not has_failed:
            log.unlink(missing_ok=True)


@contextmanager
def _stopped_afterwards(spark: SparkSession) -> Iterator[SparkSession]:
    try:
        yield spark
    finally:
        spark.stop()


def _in_running_jvm(name: str, given: Mapping[str, str], defaults: Mapping[str, str]) -> SparkSession:
    """A session in the JVM of spark-submit, whose own settings override `defaults`. StorageError."""
    try:
        gateway = SparkContext._gateway or launch_gateway()  # type: ignore[no-untyped-call]  # only connects
        conf = SparkConf(_jvm=gateway.jvm).setAppName(name)
        for key, value in defaults.items():
            conf.setIfMissing(key, value)
        conf.setIfMissing("spark.master", "local[*]")
        conf.setAll(list(given.items()))
        return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except (PySparkException, OSError) as error:
        raise _does_not_start(_first_line(error)) from error


def _in_new_jvm(name: str, settings: Mapping[str, str], descriptor: int, log: Path) -> SparkSession:
    """A session in a JVM of its own, which writes to `descriptor`, the open `log`, instead of stderr. StorageError."""
    conf = SparkConf().setAppName(name).setAll(list(settings.items()))
    try:
        with _progress_shown(descriptor) as stderr, _no_imports_from_here():
            gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
        return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except (PySparkException, OSError) as error:
        lines = log.read_text(errors="replace").strip().splitlines() if SparkContext._gateway is None else []
        reasons = (line for line in lines if not line.startswith("WARNING:"))
        raise _does_not_start(next(reasons, _first_line(error))) from error


@contextmanager
def _no_imports_from_here() -> Iterator[None]:
    """Keep the workers of a JVM that is started meanwhile from importing from the working directory, as `python -m`
    does: it may be a stranger's log directory."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SAFE_PATH)
        if before is not None:
            os.environ[_SAFE_PATH] = before


@contextmanager
def _progress_shown(log: int) -> Iterator[int]:
    """A descriptor for the output of a process that is started meanwhile: progress bars go on to stderr, everything
    else to `log`, which is closed in the end."""
    reading, writing = os.pipe()
    # Nobody waits for this thread: the JVM holds the other end for as long as this process lives.
    sorting = Thread(target=_sort, args=(reading, log), daemon=True)
    sorting.start()
    try:
        with os.fdopen(writing, "wb", 0):
            yield writing
    except PySparkException:  # the process has ended: the log has the reason in a moment
        sorting.join(5)
        raise


def _sort(reading: int, log: int) -> None:
    with os.fdopen(reading, "rb", 0) as given, os.fdopen(log, "wb", 0) as kept:
        while piece := given.read(1 << 16):
            sys.stderr.write(b"".join(_PROGRESS.findall(piece)).decode(errors="replace"))
            sys.stderr.flush()
            kept.write(_PROGRESS.sub(b"", piece))


def _does_not_start(found: str) -> StorageError:
    return StorageError("Spark does not start", found=found, advice="It needs Java 17 or 21")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _defaults(show_progress: bool) -> dict[str, str]:
    """Settings for a command: Spark's JVM logs only errors, and does not listen for browsers."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(show_progress).lower(),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
    }
