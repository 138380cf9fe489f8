"""`.log` views: Kafka's own bytes, whole batches directly from the segment files; reading decodes nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from contextlib import closing
from typing import NamedTuple

import numpy as np

from kafkafs.reading.extent import named_times
from kafkafs.reading.handle import ViewHandle
from kafkafs.reading.layout import Layout, Run, Span
from kafkafs.reading.plans import append_run, damage_within, lies_before
from kafkafs.reading.selection import RecordFilter, time_mask
from kafkafs.reading.workbench import Workbench, workbench
from storage.errors import SegmentGone
from storage.format.batches import claimed_times
from storage.log.scanning import Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import NO_TIMESTAMP, TimeRange


class RawPlan:
    """The plan of a range of offsets: all bytes of the span."""

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        add_bytes(runs, span.segment, span.start, span.end)
        return NO_TIMESTAMP

    def is_outdated(self) -> bool:
        return False


class _Stretch(NamedTuple):
    """Some batches of a file, or damage: least and greatest timestamp, and where the batches with a message of the
    range, or the damaged bytes, begin and end."""

    least: int
    greatest: int
    is_damaged: bool
    places: list[tuple[int, int]]


class RawTimePlan(RawPlan):
    """The plan of a range of times: the batches that hold a message of it. Damaged bytes that belong to it are
    included; a reader that parses them as batches meets the damage."""

    def __init__(self, times: TimeRange) -> None:
        self._times = times

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        if span.segment.sealed and lies_before(snapshot, span, self._times):
            return NO_TIMESTAMP
        stretches: list[_Stretch] = []
        newest = NO_TIMESTAMP
        batches = scan_batches(snapshot, span.segment, span.start, span.end, at_copy=True)
        with workbench() as bench, closing(batches) as windows:
            for window in windows:
                if window.damage is None:
                    newest = max(newest, self._add_window(bench, span, window, stretches))
                else:
                    damage = window.damage
                    times = named_times(damage.times or ())
                    stretches.append(_Stretch(*times, True, [(damage.position, damage.end)]))
        damaged = np.array([stretch.is_damaged for stretch in stretches], np.bool_)
        shown = ~damaged
        if damaged.any():
            least = np.array([stretch.least for stretch in stretches])
            greatest = np.array([stretch.greatest for stretch in stretches])
            shown |= damage_within(self._times, snapshot, span.segment, least, greatest, damaged)
        for slot in np.flatnonzero(shown).tolist():
            for start, end in stretches[slot].places:
                add_bytes(runs, span.segment, start, end)
        return newest

    def _add_window(self, bench: Workbench, span: Span, window: Window, stretches: list[_Stretch]) -> int:
        """Add the stretches of a window; return the greatest timestamp of the messages in the range."""
        table, row, newest = window.table, 0, NO_TIMESTAMP
        offsets = RecordFilter(0 if span.record_filter is None else span.record_filter.first)

        def places(rows: Iterable[int]) -> list[tuple[int, int]]:
            return [(int(table.position[row]), int(table.end[row])) for row in rows]

        while row < table.rows:
            block = bench.checked.decode(window.buffer, table, row, origin=window.origin)
            row = block.next_row
            if len(block):
                stamps = block.timestamp
                mask = time_mask(stamps, self._times) & (block.offset >= offsets.first)
                holds = np.zeros(table.rows, np.bool_)
                if mask.any():
                    holds[block.batch[mask]] = True
                    newest = max(newest, int(stamps[mask].max()))
                held = places(np.flatnonzero(holds).tolist())
                stretches.append(_Stretch(int(stamps.min()), int(stamps.max()), False, held))
            if block.damage is not None:
                row = block.damage.row
                held = places([row] if offsets.may_hold(table, row) else [])
                stretches.append(_Stretch(*named_times(claimed_times(table, row)), True, held))
                row += 1
        return newest


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
