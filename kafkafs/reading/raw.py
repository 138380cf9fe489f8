"""`.log` views: Kafka's own bytes, whole batches directly from the segment files; reading decodes nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kafkafs.reading.extent import Times, hidden_times, of_damaged_rows, times_at_ends
from kafkafs.reading.handle import ViewHandle
from kafkafs.reading.layout import Layout, Run, Span
from kafkafs.reading.plans import append_run, lies_before
from kafkafs.reading.selection import RecordFilter, may_lie_in, time_mask
from kafkafs.reading.workbench import Workbench, workbench
from storage.errors import SegmentGone
from storage.log.greatest_timestamp import first_times_behind
from storage.log.scanning import SpanDamage, Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import NO_TIMESTAMP, TimeRange


class RawPlan:
    """The plan of a range of offsets: all bytes of the span."""

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        add_bytes(runs, span.segment, span.start, span.end)
        return NO_TIMESTAMP

    def kept(self, snapshot: LogSnapshot, runs: Iterable[Run]) -> tuple[Run, ...]:
        return tuple(runs)

    def count(self, runs: Sequence[Run]) -> int | None:
        return None

    def is_outdated(self) -> bool:
        return False


class _ChosenBatches(NamedTuple):
    """The batches of a window that belong to a range of times. `holds`: by row, whether the batch has a message of the
    range, or may have one. `greatest`: the greatest timestamp of these messages. `ends`: the times of the first and the
    last readable batch (None: there is none)."""

    holds: npt.NDArray[np.bool_]
    greatest: int
    ends: tuple[Times, Times] | None


class RawTimePlan(RawPlan):
    """The plan of a range of times: the batches that hold a message of it. Damaged bytes that may have held one are
    included; a reader that parses them as batches meets the damage."""

    def __init__(self, times: TimeRange) -> None:
        self._times = times

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        if span.segment.sealed and lies_before(snapshot, span, self._times):
            return NO_TIMESTAMP
        greatest = NO_TIMESTAMP
        before: Times | None = None
        waiting: list[SpanDamage] = []  # for the next readable batch
        with workbench() as bench, closing(scan_batches(snapshot, span.segment, span.start, span.end)) as windows:
            for window in windows:
                if window.damage is not None:
                    waiting.append(window.damage)
                    continue
                chosen = self._choose(bench, span, window, before)
                if chosen.ends is not None:
                    self._add_damage(runs, span, waiting, before, chosen.ends[0])
                    before = chosen.ends[1]
                for row in np.flatnonzero(chosen.holds).tolist():
                    start = int(window.table.position[row])
                    add_bytes(runs, span.segment, start, start + int(window.table.size[row]))
                greatest = max(greatest, chosen.greatest)
        self._add_damage(runs, span, waiting, before, first_times_behind(snapshot, span.segment))
        return greatest

    def _add_damage(
        self, runs: list[Run], span: Span, waiting: list[SpanDamage], before: Times | None, behind: Times | None
    ) -> None:
        """Adds the bytes of stretches without a valid batch where they may have held messages of the range."""
        for damage in waiting:
            if may_lie_in(self._times, *hidden_times(before, behind, damage.times)):
                add_bytes(runs, span.segment, damage.position, damage.end)
        waiting.clear()

    def _choose(self, bench: Workbench, span: Span, window: Window, before: Times | None) -> _ChosenBatches:
        table = window.table
        wanted = RecordFilter(0 if span.wanted is None else span.wanted.first, None, self._times)
        holds = np.zeros(table.rows, dtype=np.bool_)
        damaged: list[int] = []
        greatest = NO_TIMESTAMP
        row = 0
        while row < table.rows:
            block = bench.checked.decode(window.buffer, table, row, origin=window.origin)
            row = block.next_row
            mask = time_mask(block.timestamp, self._times) & (block.offset >= wanted.first)
            if mask.any():
                holds[block.batch[mask]] = True
                greatest = max(greatest, int(block.timestamp[mask].max()))
            if block.damage is not None:
                damaged.append(block.damage.row)
                row = block.damage.row + 1
        if damaged:
            for row, hidden in of_damaged_rows(table, damaged, before).items():
                holds[row] = wanted.may_hold(table, row, hidden)
        return _ChosenBatches(holds, greatest, times_at_ends(table, damaged))


def add_bytes(runs: list[Run], segment: Segment, start: int, end: int) -> None:
    """Adds bytes of a file after the runs; bytes that continue the last run extend it."""
    last = runs[-1] if runs else None
    if last is not None and last.segment is segment and last.source_start + last.end - last.start == start:
        runs[-1] = last._replace(end=last.end + end - start)
    else:
        append_run(runs, segment, None, start, end - start)


class RawHandle(ViewHandle):
    """An open `.log` view. Each read opens the file, checks that it is the expected one, and closes it."""

    def _copy(self, layout: Layout, position: int, end: int, address: int) -> tuple[int, int]:
        run = layout.run_at(position)
        size = min(end, run.end) - position
        place = run.source_start + position - run.start
        target = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        count = len(run.segment.log.read(place, size, target))
        if count == 0:
            raise SegmentGone("segment was truncated", path=run.segment.log.path, position=place)
        return count, size
