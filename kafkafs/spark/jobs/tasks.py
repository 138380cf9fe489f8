"""Running tasks on Spark: plain functions over plain values, a task each; results and errors come back as values.

A worker that dies, or a task that is killed, is Spark's to repeat (`spark.task.maxFailures`). What our own code finds
wrong is not: it comes back as the outcome, so that the driver can say it in one line, with the right exit code.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from kafkafs.spark.kernels import UncompiledKernels, require_compiled
from kafkafs.spark.worker_checks import mending
from kafkafs.spark.worker_start import Started
from storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")

# What comes back as a value.
EXPECTED: Final = (StorageError, OSError, UncompiledKernels)

_TRACEBACK: Final = "Traceback (most recent call last):"
_LACKING: Final = re.compile("No module named '(?:kafkafs|storage|pyarrow)")



class SparkFailed(StorageError):
    """Spark gave up a job; what our own code finds wrong comes back as a value instead."""


# The place of what is for the driver.
TO_DRIVER: Final = -1


def run_tasks(
    spark: SparkSession, work: Callable[[T], R], tasks: Sequence[T], what: str, *, allow_uncompiled: bool = False
) -> list[R]:
    """`work` of each task, one Spark task each, in order. `what` is shown in Spark's UI.

    UncompiledKernels; the first StorageError or OSError that `work` raised; SparkFailed.
    """
    if not tasks:
        return []
    require_compiled(allow_uncompiled)
    caught = _catching(work, allow_uncompiled)
    with _job(spark, what) as context:
        outcomes = context.parallelize(tasks, len(tasks)).map(caught).collect()
    return _results(outcomes)


def reduce_tasks(
    spark: SparkSession,
    work: Callable[[T], Mapping[K, R]],
    merge: Callable[[R, R], R],
    tasks: Sequence[T],
    what: str,
    *,
    allow_uncompiled: bool = False,
) -> dict[K, R]:
    """What `work` gives for each key, merged over all tasks by a shuffle. Errors as from `run_tasks`."""
    if not tasks:
        return {}
    require_compiled(allow_uncompiled)
    caught = _catching(work, allow_uncompiled)

    def pairs(task: T) -> list[tuple[K | None, R | Exception]]:
        outcome = caught(task)
        return [(None, outcome)] if isinstance(outcome, Exception) else [*outcome.items()]

    def merged(one: R | Exception, other: R | Exception) -> R | Exception:
        return one if isinstance(one, Exception) or isinstance(other, Exception) else merge(one, other)

    with _job(spark, what) as context:
        parallelism = min(len(tasks), int(context.defaultParallelism))
        found = context.parallelize(tasks, len(tasks)).flatMap(pairs).reduceByKey(merged, parallelism).collectAsMap()
    failed = found.pop(None, None)
    if isinstance(failed, Exception):
        raise failed
    return found  # type: ignore[return-value]  # only None has errors


def scatter(
    spark: SparkSession,
    work: Callable[[T], Iterable[tuple[int, Any]]],
    tasks: Sequence[T],
    places: int,
    what: str,
    *,
    allow_uncompiled: bool = False,
) -> tuple[RDD[tuple[int, Any]], list[Any]]:
    """`work` of each task, which gives values to places from 0 on, or TO_DRIVER: a shuffle, and what the driver got.

    Errors as from `run_tasks`. What lies shuffled is kept by Spark and made anew if that is lost: `work` must give the
    same again. An error goes to all places, so that nobody takes for all there is what was made anew in part.
    """
    require_compiled(allow_uncompiled)
    caught = _catching_each(work, allow_uncompiled)

    def pairs(task: T) -> Iterator[tuple[int, Any]]:
        for one in caught(task):
            if isinstance(one, Exception):
                yield from ((place, one) for place in (TO_DRIVER, *range(places)))
            else:
                yield one

    with _job(spark, what) as context:
        given = context.parallelize(tasks, len(tasks)).flatMap(pairs)
        shuffled = given.partitionBy(places + 1, int)  # of -1 that is the last one
        told = context.runJob(shuffled, lambda found: (value for _, value in found), [places])
    return shuffled, _results(told)


def gather(
    spark: SparkSession,
    shuffled: RDD[tuple[int, Any]],
    pass_on: Callable[[Iterator[Any]], Iterable[tuple[int, Any]]],
    work: Callable[[T, Iterator[Any]], Iterable[R]],
    tasks: Sequence[T],
    what: str,
    *,
    allow_uncompiled: bool = False,
) -> list[R]:
    """What `work` gives for each task with the values that it gets: `pass_on` has all of one place of a `scatter`, and
    gives values to tasks, by number. In order of the tasks; errors as from `run_tasks`, but that those of `pass_on` are
    Spark's: it gives up."""
    last = shuffled.getNumPartitions() - 1
    caught = _catching_each(work, allow_uncompiled)
    passed_on = Started(pass_on)
    with _job(spark, what):
        outcomes = (
            shuffled.mapPartitionsWithIndex(
                lambda place, found: passed_on(_values(found)) if place != last else ()
            )
            .partitionBy(len(tasks), int)
            .mapPartitionsWithIndex(lambda number, found: caught(tasks[number], _values(found)))
            .collect()
        )
    return _results(outcomes)


def _values(pairs: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    for _, value in pairs:
        if isinstance(value, Exception):
            raise value
        yield value


def packed(items: Sequence[T], sizes: Sequence[int], target: int) -> Iterator[list[T]]:
    """Items in order, together up to `target` bytes; one that is larger by itself."""
    task: list[T] = []
    held = 0
    for item, size in zip(items, sizes, strict=True):
        if task and held + size > target:
            yield task
            task, held = [], 0
        task.append(item)
        held += size
    if task:
        yield task


def _results(outcomes: Iterable[R | Exception]) -> list[R]:
    """The outcomes, or the first of them that is an error."""
    results: list[R] = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        results.append(outcome)
    return results


def _catching_each(
    work: Callable[..., Iterable[R]], allow_uncompiled: bool
) -> Callable[..., Iterator[R | Exception]]:
    """As `_catching`, of work that gives many values: an error is the last of them."""

    def caught(*given: Any) -> Iterator[R | Exception]:
        try:
            require_compiled(allow_uncompiled)
            yield from work(*given)
        except EXPECTED as error:
            yield error

    return Started(caught)


def _catching(work: Callable[[T], R], allow_uncompiled: bool) -> Callable[[T], R | Exception]:
    """`work` with its expected errors as values."""

    def caught(task: T) -> R | Exception:
        try:
            require_compiled(allow_uncompiled)  # a worker may be another machine
            return work(task)
        except EXPECTED as error:
            return error

    return Started(caught)


@contextmanager
def _job(spark: SparkSession, what: str) -> Iterator[SparkContext]:
    """Names Spark's job, and says in a line why it failed."""
    context = spark.sparkContext
    context.setJobDescription(f"kafkafs: {what}")
    try:
        yield context
    except (Py4JError, PySparkException) as error:
        reason = _reason(error)
        lacking = _LACKING.search(reason)
        advice = None if lacking is None else f"The workers' Python has none. {mending(context.pythonExec)}"
        raise SparkFailed(f"Spark gave up: {what}", found=reason, advice=advice) from error
    finally:
        context.setJobDescription("")


def _reason(error: Exception) -> str:
    """The line of a Java or Python trace that says why, without the trace: of a Python one it is the last."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java is not None else error)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    traced = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    if traced:
        # What is raised stands behind its trace, at the margin; Java's own trace follows.
        for line in lines[traced[-1] + 1 :]:
            if not line[0].isspace():
                return line
    return lines[0].strip() if lines else type(error).__name__
