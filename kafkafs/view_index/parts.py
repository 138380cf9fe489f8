"""One pass over a large stretch of a segment, shared among threads: parts of it that begin where the offset index says
that a batch begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from kafkafs.view_index.workbench import Workbench, workbench
from kafkafs.view_index.workers import Workers
from storage.log.segment import Segment

_PART_BYTES = 8 << 20  # the least that one thread takes at a time
_PARTS = 8  # the most for one segment

# Read, decoded and summed up at a time. Each step of a window releases the interpreter's lock, and getting it back from
# another thread costs more than a smaller window would gain from the processor's cache.
_WINDOW_BYTES = 4 << 20

OnBytes = Callable[[int], None]
"""Called with the number of file bytes after each step; may raise to end the work."""

Result = TypeVar("Result")

Pass = Callable[[Workbench, Result, int, int], int]
"""Adds what it finds in the batches that begin in [start, stop) to a result; returns the position after them."""


def window_bytes(start: int, stop: int) -> int:
    """The window for a pass over the batches that begin in [start, stop): for short ones the buffers are recycled."""
    return min(_WINDOW_BYTES, max(stop - start, 1))


@dataclass(slots=True)
class _FilePart(Generic[Result]):
    """The batches that begin in [start, stop), for one thread. `reached`: where the first batch after them begins; -1
    until the pass over them has ended."""

    start: int
    stop: int
    result: Result
    reached: int = -1
    failure: BaseException | None = None


def in_parts(
    segment: Segment,
    start: int,
    end: int,
    workers: Workers,
    make: Callable[[], Result],
    do: Pass[Result],
) -> tuple[list[Result], int]:
    """What `do` finds in the batches that begin in [start, end), in order, in results that `make` has made; and the
    position after them. A worker takes some of the parts, if one is free."""
    parts = [_FilePart(first, last, make()) for first, last in pairwise(_edges(segment, start, end))]
    if len(parts) > 1:
        _do_together(parts, do, workers)
    results: list[Result] = []
    reached = start

    def add(stop: int) -> None:
        nonlocal reached
        result = make()
        with workbench() as bench:
            reached = do(bench, result, reached, stop)
        results.append(result)

    # Parts begin where the offset index says, which is used only if the batches before end exactly there.
    for part in parts:
        if reached < part.start:
            add(part.start)
        if reached == part.start and part.reached >= 0:
            results.append(part.result)
            reached = part.reached
    if reached < end:
        add(end)
    return results, reached


def _edges(segment: Segment, start: int, end: int) -> list[int]:
    count = min(_PARTS, (end - start) // _PART_BYTES)
    edges = [start]
    if count > 1:
        hints = segment.offset_index(end).positions
        for part in range(1, count):
            slot = int(hints.searchsorted(start + part * (end - start) // count))
            if slot < len(hints) and edges[-1] < int(hints[slot]) < end:
                edges.append(int(hints[slot]))
    edges.append(end)
    return edges


def _do_together(parts: list[_FilePart[Result]], do: Pass[Result], workers: Workers) -> None:
    """Does the parts in this thread and, if one is free, a worker."""
    changed = threading.Condition()
    waiting = list(reversed(parts))
    under_way = 0

    def work() -> None:
        nonlocal under_way
        with workbench() as bench:
            while True:
                with changed:
                    if not waiting:
                        return
                    part = waiting.pop()
                    under_way += 1
                try:
                    part.reached = do(bench, part.result, part.start, part.stop)
                except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits for the result
                    part.failure = error
                finally:
                    with changed:
                        under_way -= 1
                        changed.notify()

    for _ in range(max(1, workers.count - 1)):
        workers.submit(work, long=True)
    work()
    with changed:
        while under_way:
            changed.wait()
    for part in parts:
        if part.failure is not None:
            raise part.failure
