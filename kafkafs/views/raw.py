"""`.log` views: Kafka's own bytes, whole batches straight from the segment files; nothing is decoded to read them."""

from __future__ import annotations

import ctypes
from contextlib import closing

import numpy as np

from kafkafs.selection import time_mask
from kafkafs.view_index.pieces import RecordFilter
from kafkafs.view_index.workbench import Workbench, workbench
from kafkafs.views.base import read_through
from kafkafs.views.layout import Run
from kafkafs.views.plans import append_run, lies_before
from kafkafs.views.spans import Span
from kafkafs.views.state import ViewState
from storage.errors import SegmentGone
from storage.log.scanning import Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import NO_TIMESTAMP, TimeRange


class RawPlan:
    """Of a range of offsets: all bytes of the span."""

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        add_bytes(runs, span.segment, span.start, span.end)
        return NO_TIMESTAMP


class RawTimePlan:
    """Of a range of times: the batches that hold a message of it."""

    def __init__(self, times: TimeRange) -> None:
        self._times = times

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        if span.segment.sealed and lies_before(snapshot, span, self._times):
            return NO_TIMESTAMP
        greatest = NO_TIMESTAMP
        with workbench() as bench, closing(scan_batches(snapshot, span.segment, span.start, span.end)) as windows:
            for window in windows:
                if window.damage is None:
                    greatest = max(greatest, self._add_window(bench, runs, span, window))
        return greatest

    def _add_window(self, bench: Workbench, runs: list[Run], span: Span, window: Window) -> int:
        table = window.table
        holds = np.zeros(table.rows, dtype=np.bool_)
        greatest = NO_TIMESTAMP
        row = 0
        while row < table.rows:
            block = bench.unchecked.decode(window.buffer, table, row, origin=window.origin)
            row = block.next_row
            mask = time_mask(block.timestamp, self._times)
            if span.wanted is not None:
                mask &= block.offset >= span.wanted.first
            if mask.any():
                holds[block.batch[mask]] = True
                greatest = max(greatest, int(block.timestamp[mask].max()))
            if block.damage is not None:
                row = block.damage.row
                holds[row] = RecordFilter(times=self._times).may_hold(table, row)
                row += 1
        for row in np.flatnonzero(holds).tolist():
            add_bytes(runs, span.segment, int(table.position[row]), int(table.position[row] + table.size[row]))
        return greatest


def add_bytes(runs: list[Run], segment: Segment, start: int, end: int) -> None:
    """Puts bytes of a file behind the runs; what follows on the last run makes that longer."""
    last = runs[-1] if runs else None
    if last is not None and last.segment is segment and last.source_start + last.end - last.start == start:
        runs[-1] = last._replace(end=last.end + end - start)
    else:
        append_run(runs, Run(0, 0, segment, None, start, -1), end - start)


class RawHandle:
    """An open `.log` view. Each read opens the file, checks that it is the one that was meant, and closes it."""

    def __init__(self, state: ViewState, *, sealed: bool, unchanged: bool) -> None:
        self._state = state
        self._open = True
        self.direct_io = not sealed
        self.keep_cache = sealed and unchanged

    @property
    def size(self) -> int:
        return self._state.shared_layout.size

    def read(self, offset: int, size: int) -> bytes:
        return read_through(self, offset, size)

    def read_into(self, address: int, offset: int, size: int) -> int:
        layout = self._state.shared_layout
        if offset + size > layout.size:
            layout = self._state.refresh()
        end = min(offset + size, layout.size)
        position = offset
        while position < end:
            run = layout.run_at(position)
            wanted = min(end, run.end) - position
            try:
                count = _read(run, position, address + position - offset, wanted)
            except SegmentGone:
                if position > offset:
                    break
                raise
            position += count
            if count < wanted:
                break
        return max(0, position - offset)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._state.close()


def _read(run: Run, position: int, address: int, size: int) -> int:
    place = run.source_start + position - run.start
    target = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
    count = len(run.segment.log.read(place, size, target))
    if count == 0:
        raise SegmentGone("segment was truncated", path=run.segment.log.path, position=place)
    return count
