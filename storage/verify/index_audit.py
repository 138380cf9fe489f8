"""Checks a segment's indexes against its batches: entries are compared with thousands of batches at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.errors import IndexFault
from storage.files import names, offset_index, sparse_index, time_index, transaction_index
from storage.files.names import FileKind
from storage.format.batches import BatchTable
from storage.log.segment import Segment
from storage.verify.findings import REINDEX, FaultKind, Finding, Findings, Repair

Flags = npt.NDArray[np.bool_]

# The faults that loading a file reports.
_OFFSET_KINDS = {
    IndexFault.SIZE: FaultKind.INDEX_SIZE,
    IndexFault.ORDER: FaultKind.INDEX_ORDER,
    IndexFault.BEYOND_LOG: FaultKind.INDEX_BEYOND_LOG,
}
_TIME_KINDS = {IndexFault.SIZE: FaultKind.TIME_INDEX_SIZE, IndexFault.ORDER: FaultKind.TIME_INDEX_ORDER}


class IndexAudit:
    """The .index and .timeindex of one segment. `settled`: the segment was closed in order, so nothing is unfinished.

    `recovery`: what recovery would do to wrong indexes. `visit` gets the batches in order.
    """

    def __init__(
        self, segment: Segment, indexes: LoadedIndexes, findings: Findings, *, settled: bool, recovery: str
    ) -> None:
        self._segment = segment
        self._findings = findings
        self._settled = settled
        self._how = Repair(recovery, REINDEX)
        self._offset_path = segment.path_of(FileKind.OFFSET_INDEX)
        self._time_path = segment.path_of(FileKind.TIME_INDEX)
        self._offsets, self._times = indexes.offsets, indexes.times
        self._offset_keys, self._positions = self._offsets.offsets, self._offsets.positions
        self._timestamps, self._time_offsets = self._times.timestamps, self._times.offsets
        self._next_entry = self._next_time = 0
        self._known_offsets = np.zeros(len(self._offset_keys), np.bool_)
        self._last_offset = segment.base_offset - 1
        self._max_timestamp = -1

    def visit(self, part: BatchTable) -> None:
        """Compares the entries for these batches."""
        self._match_offset_entries(part)
        self._match_time_entries(part)
        self._max_timestamp = max(self._max_timestamp, int(part.max_timestamp.max()))
        self._last_offset = int(part.last_offset[-1])

    def pass_over(self, end: int, next_offset: int) -> None:
        """Damage up to the position `end`, after which offsets continue with `next_offset`: entries there are not
        judged."""
        stop = int(self._positions.searchsorted(end))
        self._known_offsets[self._next_entry : stop] = True
        self._next_entry = max(self._next_entry, stop)
        self._next_time = max(self._next_time, int(self._time_offsets.searchsorted(next_offset)))

    def finish(self, *, whole: bool) -> None:
        """Checks the files themselves, and entries that match no batch. `whole`: the log has no damage."""
        size, time_size, findings = offset_index.ENTRY_SIZE, time_index.ENTRY_SIZE, self._findings
        self._check_file(self._offsets, self._offset_path, size, _OFFSET_KINDS, FaultKind.INDEX_NOT_TRIMMED)
        self._check_file(self._times, self._time_path, time_size, _TIME_KINDS, FaultKind.TIME_INDEX_NOT_TRIMMED)
        if self._offsets.missing and self._segment.size:
            findings.add(Finding(FaultKind.INDEX_MISSING, self._offset_path, Repair("rebuilds it", REINDEX)))
        unknown: Flags = ~self._known_offsets
        unknown[self._next_entry :] = False
        self._report(FaultKind.INDEX_OFFSET, unknown, self._offset_path, self._offset_keys, size)
        beyond = self._positions >= self._segment.size
        path, positions = self._offset_path, self._positions
        self._report(FaultKind.INDEX_BEYOND_LOG, beyond, path, self._offset_keys, size, founds=positions)
        if not whole:
            return
        beyond = np.arange(len(self._time_offsets)) >= self._next_time
        expected = f"an offset up to {self._last_offset}"
        self._report(
            FaultKind.TIME_INDEX_BEYOND_LOG, beyond, self._time_path, self._time_offsets, time_size, expected=expected
        )
        last = self._times.last.timestamp
        if self._settled and last < self._max_timestamp:
            found = last if len(self._times) else "no entry"
            kind, greatest = FaultKind.TIME_INDEX_INCOMPLETE, self._max_timestamp
            findings.add(Finding(kind, self._time_path, self._how, expected=greatest, found=found))

    def _match_offset_entries(self, part: BatchTable) -> None:
        """Checks entries that point into these batches: to a batch's start, and no earlier batch holds their offset."""
        stop = int(self._positions.searchsorted(int(part.end[-1])))
        first = self._next_entry
        if stop > first:
            positions, offsets = self._positions[first:stop], self._offset_keys[first:stop]
            rows = np.minimum(part.position.searchsorted(positions), part.rows - 1)
            astray = part.position[rows] != positions
            before = np.concatenate(([self._last_offset], part.last_offset))[rows]
            behind = ~astray & (offsets <= before)
            self._report(
                FaultKind.INDEX_POSITION, astray, self._offset_path, offsets, offset_index.ENTRY_SIZE, first,
                expected="a position where a batch begins", founds=positions,
            )  # fmt: skip
            self._report(
                FaultKind.INDEX_FLOOR, behind, self._offset_path, offsets, offset_index.ENTRY_SIZE, first,
                expected="an offset above those before that position", founds=offsets,
            )  # fmt: skip
            self._next_entry = stop
        # An entry's offset is its batch's last one, or that of the whole append that began there (before 3.9.1).
        low, high = self._offset_keys.searchsorted((self._last_offset + 1, int(part.last_offset[-1]) + 1))
        keys = self._offset_keys[low:high]
        self._known_offsets[low:high] |= part.last_offset[part.last_offset.searchsorted(keys)] == keys

    def _match_time_entries(self, part: BatchTable) -> None:
        """Checks entries with offsets in these batches: the greatest timestamp so far, at the first batch that has
        it."""
        first = self._next_time
        stop = int(self._time_offsets.searchsorted(int(part.last_offset[-1]), side="right"))
        if stop <= first:
            return
        timestamps, offsets = self._timestamps[first:stop], self._time_offsets[first:stop]
        running = np.maximum.accumulate(np.concatenate(([self._max_timestamp], part.max_timestamp)))
        rows = part.last_offset.searchsorted(offsets)
        untrue = part.base_offset[rows] > offsets
        untrue |= (part.max_timestamp[rows] != timestamps) | (running[rows] >= timestamps)
        self._report(
            FaultKind.TIME_INDEX_UNTRUE, untrue, self._time_path, offsets, time_index.ENTRY_SIZE, first,
            expected="the greatest timestamp so far, at the first batch that has it", founds=timestamps,
        )  # fmt: skip
        self._next_time = stop

    def _check_file(
        self,
        index: sparse_index.SparseIndex,
        path: Path,
        entry_size: int,
        kinds: dict[IndexFault, FaultKind],
        not_trimmed: FaultKind,
    ) -> None:
        """Reports the fault that loading found, and a file that is not trimmed although it was closed in order."""
        if index.problem is not None:
            kind, how = kinds.get(index.problem.fault, FaultKind.UNREADABLE), self._how._replace(note=not self._settled)
            self._findings.add(Finding.of_error(kind, index.problem, path, how))
        elif not index.missing:
            size, used = path.lstat().st_size, len(index) * entry_size
            if size != used:
                how = Repair("trims it", REINDEX, note=not self._settled)
                what, expected = "" if self._settled else "index is preallocated", f"{used} bytes"
                self._findings.add(Finding(not_trimmed, path, how, what, position=used, expected=expected, found=size))

    def _report(
        self,
        kind: FaultKind,
        wrong: Flags,
        path: Path,
        offsets: npt.NDArray[np.int64],
        entry_size: int,
        first: int = 0,
        *,
        expected: str | None = None,
        founds: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Reports the wrong entries, counted from the slot `first`."""
        for slot in np.flatnonzero(wrong).tolist() if wrong.any() else ():
            position, found = (first + slot) * entry_size, None if founds is None else int(founds[slot])
            self._findings.add(Finding(kind, path, self._how, "", position, int(offsets[slot]), expected, found))


class LoadedIndexes:
    """A segment's indexes, loaded before its log is read, so that everything they refer to is in the log by then."""

    __slots__ = ("aborts", "offsets", "times")

    def __init__(self, directory: Path, base_offset: int) -> None:
        def path(kind: FileKind) -> Path:
            return directory / names.segment_file(base_offset, kind)

        self.offsets = offset_index.load(path(FileKind.OFFSET_INDEX), base_offset)
        self.times = time_index.load(path(FileKind.TIME_INDEX), base_offset)
        self.aborts = transaction_index.load(path(FileKind.TRANSACTION_INDEX), base_offset)
