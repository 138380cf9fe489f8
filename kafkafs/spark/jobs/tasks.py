"""Running tasks on Spark: plain functions over plain values, a task each; results and errors come back as values.

A worker that dies, or a task that is killed, is Spark's to repeat (`spark.task.maxFailures`). What our own code finds
wrong is not: it comes back as the outcome, so that the driver can say it in one line, with the right exit code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from kafkafs.spark.kernels import UncompiledKernels, require_compiled
from storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


def run_tasks(
    spark: SparkSession, work: Callable[[T], R], tasks: Sequence[T], what: str, *, allow_uncompiled: bool = False
) -> list[R]:
    """`work` of each task, one Spark task each, in order. `what` is shown in Spark's UI.

    UncompiledKernels; the first StorageError or OSError that `work` raised; StorageError when Spark itself gave up.
    """
    if not tasks:
        return []
    require_compiled(allow_uncompiled)

    def caught(task: T) -> R | Exception:
        try:
            require_compiled(allow_uncompiled)  # a worker may be another machine
            return work(task)
        except (StorageError, OSError, UncompiledKernels) as error:
            return error

    context = spark.sparkContext
    context.setJobDescription(f"kafkafs: {what}")
    try:
        outcomes = context.parallelize(tasks, len(tasks)).map(caught).collect()
    except (Py4JError, PySparkException) as error:
        raise StorageError(f"Spark gave up: {what}", found=_reason(error)) from error
    finally:
        context.setJobDescription("")
    results: list[R] = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        results.append(outcome)
    return results


def _reason(error: Exception) -> str:
    """The line of a Java or Python trace that says why, without the trace."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java is not None else error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
