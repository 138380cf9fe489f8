"""Splits segments whose offsets exceed their base by more than 31 bits, as cleaners before Kafka 1.0.1 made them.

1. the parts are written under `.cleaned` names and synced → recovery removes them: the segment remains
2. their files are renamed to `.swap`, the highest first   → as 1 while a `.cleaned` is left; then recovery finishes
3. the segment's files are removed                         → recovery finishes: it knows the segment by its messages,
                                                             which reach into those of the parts
4. the parts get their names                               → recovery renames what is left of `.swap`

Source: LocalLog.splitOverflowedSegment (KAFKA-6264), LogLoader.retryOnOffsetOverflow.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from storage.append import swap
from storage.append.batch_checks import first_offset
from storage.append.swap import CleanedSegment
from storage.errors import PartitionOffline
from storage.files import transaction_index
from storage.files.disk_protocol import Disk
from storage.files.log_file import LogFile
from storage.files.names import FileKind
from storage.format.batches import MAX_RELATIVE_OFFSET, BatchTable
from storage.format.decoder import Decoder
from storage.log.segment import Segment, bytes_of
from storage.log.segment_check import check_segment, ignore_batches
from storage.types import MAX_OFFSET


class OffsetOverflow(Exception):
    """A segment holds sound batches whose offsets it cannot index."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self.segment: Final = segment


class OffsetsOutOfRange(PartitionOffline):
    """A batch's offsets are below its segment, or too far above, and a split would lose messages. A broker does not
    start, or moves the batch to the end of the log; either way it removes nothing, and neither do we."""

    def __init__(self, segment: Segment, position: int) -> None:
        base = segment.base_offset
        batch = segment.batch_at(position, segment.size, any_offset=True)
        super().__init__(
            "a batch's offsets are out of its segment's range",
            path=segment.log.path,
            position=position,
            expected=f"offsets from {base} to {highest_offset(base)}",
            found=None if batch is None else int(batch.last_offset[0]),
            advice="`kafkafs doctor` says what a broker does; `kafkafs salvage` copies what is intact",
        )


def offset_after(segment: Segment) -> int:
    """The offset after a segment's last sound batch, however far above its base; the base without any."""
    start = segment.floor(highest_offset(segment.base_offset), segment.size)
    check = check_segment(segment.log, segment.base_offset, segment.size, ignore_batches, start=start)
    return check.next_offset


def overflows(segment: Segment, end_offset: int = MAX_OFFSET) -> bool:
    """True when some of its offsets are too far above its base for an index entry, and all are below `end_offset`."""
    return MAX_RELATIVE_OFFSET < offset_after(segment) - 1 - segment.base_offset < end_offset - segment.base_offset


def split_overflowed(disk: Disk, directory: Path, segment: Segment, *, interval_bytes: int) -> list[int]:
    """Steps 1 and 2: the base offsets of the parts, each the first offset in it. All of the segment must be sound."""
    parts = _Parts(disk, directory, segment.base_offset, interval_bytes)
    try:
        take = partial(parts.take, segment.log)
        check_segment(segment.log, segment.base_offset, segment.size, take)
        parts.finish(segment)
    finally:
        parts.close()
    bases = [part.base_offset for part in parts.all]
    for base_offset in reversed(bases):
        swap.make_ready(disk, directory, base_offset)
    return bases


class _Parts:
    """The new segments; the last of them is being written."""

    def __init__(self, disk: Disk, directory: Path, lowest: int, interval_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._lowest = lowest  # the next part's least base offset
        self._interval_bytes = interval_bytes
        self.all: list[CleanedSegment] = []

    def take(self, log: LogFile, data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
        """The next sound batches: see segment_check.Visit."""
        last = table.last_offset[:rows]
        row = 0
        while row < rows:
            if not self.all or int(last[row]) - self.all[-1].base_offset > MAX_RELATIVE_OFFSET:
                # What a message set holds may contradict its own offset, which no CRC covers.
                lowest = max(self._lowest, int(last[row]) - MAX_RELATIVE_OFFSET)
                first = _first_offset(data, table, row, origin)
                self._begin(min(max(first, lowest), int(last[row])))
            stop = int(last.searchsorted(highest_offset(self.all[-1].base_offset), side="right"))
            part = bytes_of(log, data, table, row, stop, origin)
            self.all[-1].append(part, table.slice(row, stop).copy())
            self._lowest = int(last[stop - 1]) + 1
            row = stop

    def _begin(self, base_offset: int) -> None:
        self.all.append(CleanedSegment(self._disk, self._directory, base_offset, interval_bytes=self._interval_bytes))

    def finish(self, source: Segment) -> None:
        """Each part gets its entries of the source's .txnindex, and the source's modification time."""
        path = source.path_of(FileKind.TRANSACTION_INDEX)
        aborted = transaction_index.load(path, source.base_offset).entries()
        mtime_ns = source.log.stat().st_mtime_ns
        ends = [*(part.base_offset for part in self.all[1:]), None]
        for part, end in zip(self.all, ends, strict=True):
            own = [
                entry
                for entry in aborted
                if part.base_offset <= entry.last_offset and (end is None or entry.last_offset < end)
            ]
            part.finish(own, mtime_ns)

    def close(self) -> None:
        for part in self.all:
            part.close()


def highest_offset(base_offset: int) -> int:
    return min(base_offset + MAX_RELATIVE_OFFSET, MAX_OFFSET)


def _first_offset(data: memoryview, table: BatchTable, row: int, origin: int) -> int:
    """The first offset of a batch; a compressed message set has to be decompressed for it."""
    if int(table.base_offset[row]) < 0:
        block = Decoder().decode(data, table, row, row + 1, origin=origin)
        if len(block):
            return int(block.offset[0])
    return first_offset(table, row)
