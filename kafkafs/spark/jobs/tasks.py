"""Running plain functions over plain values as Spark tasks; results and expected errors come back as values.

Spark repeats a task whose worker died or that was killed (`spark.task.maxFailures`). It does not repeat a task in which
our own code found something wrong: that error is the task's outcome, so that the driver can report it in one line, with
the right exit code.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from kafkafs.spark.kernels_check import UncompiledKernels, require_compiled
from kafkafs.spark.python_workers import mending
from kafkafs.spark.worker_start import Started
from storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")

# The errors that come back as values.
EXPECTED: Final = (StorageError, OSError, UncompiledKernels)

_TRACEBACK: Final = "Traceback (most recent call last):"
_LACKING: Final = re.compile("No module named '(?:kafkafs|storage|pyarrow)")


class SparkFailed(StorageError):
    """Spark gave up a job, for another reason than one of EXPECTED."""


def run_tasks(
    spark: SparkSession, work: Callable[[T], R], tasks: Sequence[T], what: str, *, allow_uncompiled: bool = False
) -> list[R]:
    """The results of `work` for each task, in order, each in a Spark task of its own. Spark's UI shows `what`.

    UncompiledKernels; the first StorageError or OSError that `work` raised; SparkFailed.
    """
    if not tasks:
        return []
    require_compiled(allow_uncompiled)
    caught = _catching(work, allow_uncompiled)
    with _job(spark, what) as context:
        outcomes = context.parallelize(tasks, len(tasks)).map(caught).collect()
    return list(_results(outcomes))


def _results(outcomes: Iterable[R | Exception]) -> Iterator[R]:
    """The outcomes; raises the first that is an error."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        yield outcome


def _catching(work: Callable[[T], R], allow_uncompiled: bool) -> Callable[[T], R | Exception]:
    """`work`, returning its expected errors as values."""

    def caught(task: T) -> R | Exception:
        try:
            require_compiled(allow_uncompiled)  # a worker may be on another machine
            return work(task)
        except EXPECTED as error:
            return error

    return Started(caught)


@contextmanager
def _job(spark: SparkSession, what: str) -> Iterator[SparkContext]:
    """Names Spark's job, and turns its failure into an error of one line. SparkFailed."""
    context = spark.sparkContext
    context.setJobDescription(f"kafkafs: {what}")
    try:
        yield context
    except (Py4JError, PySparkException) as error:
        reason = _reason(error)
        lacking = _LACKING.search(reason)
        advice = None if lacking is None else f"The workers' Python lacks kafkafs. {mending(context.pythonExec)}"
        raise SparkFailed(f"Spark gave up: {what}", found=reason, advice=advice) from error
    finally:
        context.setJobDescription("")


def _reason(error: Exception) -> str:
    """The line of a Java or Python traceback that gives the reason: the last one of a Python traceback."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java is not None else error)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    traced = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    if traced:
        # The exception is the first unindented line after its traceback; Java's own trace follows.
        for line in lines[traced[-1] + 1 :]:
            if not line[0].isspace():
                return line
    return lines[0].strip() if lines else type(error).__name__
