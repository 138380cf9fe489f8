"""Checks of batches before they are appended: whole, in order, and which leader epochs they begin. Pure.

Source: UnifiedLog.analyzeAndValidateRecords, as a follower runs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from storage.errors import CorruptBatch, InvalidRecord, RecordTooLarge
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.format.batches import MAX_RELATIVE_OFFSET, BatchTable, ScanStop, scan

_LEAST_BATCH_BYTES: Final = 26
_FEW_ROWS: Final = 64


def scanned(data: memoryview, path: Path) -> BatchTable:
    """The headers of all batches in `data`, positions counted from its start. CorruptBatch unless it is whole batches.

    `path`: the path that the error names.
    """
    # A leader's append is usually one batch.
    table = BatchTable.empty(_FEW_ROWS)
    outcome = scan(data, 0, table)
    if outcome.stop is ScanStop.FULL:
        table = BatchTable.empty(len(data) // _LEAST_BATCH_BYTES)
        outcome = scan(data, 0, table)
    if outcome.stop is not ScanStop.END or outcome.next_start != len(data) or not table.rows:
        raise CorruptBatch("not whole batches", path=path, position=outcome.next_start, found=outcome.stop.name)
    return table


def check_size(size: int, segment_bytes: int) -> None:
    """RecordTooLarge for a batch of `size` bytes that no segment can hold."""
    if size > segment_bytes:
        raise RecordTooLarge("record batch", expected=f"at most segment.bytes = {segment_bytes}", found=size)


def check_continues(table: BatchTable, next_offset: int, path: Path) -> None:
    """InvalidRecord unless the batches' offsets ascend, from `next_offset` on. Gaps are fine."""
    first = int(table.base_offset[0]) if int(table.base_offset[0]) >= 0 else int(table.last_offset[0])
    last = table.last_offset
    if first < next_offset or (last[1:] <= last[:-1]).any():
        raise InvalidRecord(
            "batches do not continue the log", path=path, expected=f"offsets from {next_offset} on", found=first
        )


def first_offset(table: BatchTable, row: int) -> int:
    """A batch's first offset; for a compressed message set, whose first offset is not known, the lowest possible
    one."""
    base_offset = int(table.base_offset[row])
    return base_offset if base_offset >= 0 else int(table.last_offset[row]) - MAX_RELATIVE_OFFSET


def assigned_epochs(epochs: LeaderEpochs, table: BatchTable, first: int, last: int, end_offset: int) -> LeaderEpochs:
    """The epochs after the rows `first` to `last` are appended to a log that ends at `end_offset`; the same object if
    no epoch begins in these rows.

    A failed append may have left an epoch that begins beyond the end: the epoch of these rows replaces it.
    """
    base_offset = int(table.base_offset[first])
    if epochs.entries and epochs.entries[-1].start_offset >= end_offset and base_offset >= 0:
        has_epoch = table.magic[first] == 2 and table.leader_epoch[first] >= 0
        if has_epoch or epochs.entries[-1].start_offset > base_offset:
            epochs = epochs.truncate_from_end(end_offset)
    return recovered_epochs(epochs, table, first, last)


def recovered_epochs(
    epochs: LeaderEpochs, table: BatchTable, first: int, last: int, known_from: int = 0
) -> LeaderEpochs:
    """The epochs, plus those epochs of the rows `first` to `last` that are newer than all known ones
    (LogSegment.recover) or begin below `known_from`.

    `known_from`: the first offset with a known epoch. The first entry had moved up to the log start, which may be lower
    after a truncation.

    Other epochs stay: compaction may have removed the batches with which they began.
    """
    if epochs.entries and table.base_offset[first] < known_from:
        starts = [entry.start_offset for entry in epochs.entries]
        slots = np.searchsorted(starts, table.base_offset[first:last], side="right")
        known_epochs = np.array([-1, *(entry.epoch for entry in epochs.entries)])[slots]
        unknown = (table.magic[first:last] == 2) & (table.leader_epoch[first:last] > known_epochs)
        unknown &= table.base_offset[first:last] < known_from
        for row in (unknown.nonzero()[0] + first).tolist():
            epochs = epochs.insert(EpochEntry(int(table.leader_epoch[row]), int(table.base_offset[row])))
    known = -1 if epochs.latest_epoch is None else epochs.latest_epoch
    newer = (table.magic[first:last] == 2) & (table.leader_epoch[first:last] > known)
    for row in (newer.nonzero()[0] + first).tolist():
        epoch = int(table.leader_epoch[row])
        if epochs.latest_epoch is None or epoch > epochs.latest_epoch:
            epochs = epochs.assign(EpochEntry(epoch, int(table.base_offset[row])))
    return epochs
