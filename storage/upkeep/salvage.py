"""Salvage: copies every intact batch of a log in any state into a new log.

A batch is intact if it is whole, has a right CRC and an offset of its segment. The CRC does not cover offsets: where
those of intact batches contradict one another, as few batches as possible are left out. A batch of an unknown magic
whose CRC is right was written as v2 (only the byte of the magic is wrong), and is copied as such.

What is lost may be in other replicas of the partition: their batches at these offsets are copied, if the leaders of the
same epochs wrote them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.append.partition_log import PartitionLog
from storage.errors import InvalidRecord, TierUnavailable
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.format.batches import MAGIC_AT, MAX_MAGIC, MOST_BATCH_BYTES, BatchTable, header_of
from storage.format.decoder import Decoder
from storage.log.intact import Break, Fault, walk
from storage.log.segment import LargeBatch, Segment
from storage.log.snapshot import LogSnapshot
from storage.progress import NoProgress, Progress, working
from storage.types import MAX_OFFSET, OffsetRange, TopicPartition

_WINDOW = 1 << 20
_COPIED_MAGIC = b"\x02"

_Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class UncopiedBytes:
    """Bytes of a .log from `position` to `end` that could not be copied, and why."""

    path: Path
    position: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Offsets from `first_offset` to `last_offset` (None: the number is not known) are lost because of `damages`.

    Both are None where the damage cost no offset, because there was no message.
    """

    first_offset: int | None
    last_offset: int | None
    damages: tuple[UncopiedBytes, ...]


@dataclass(frozen=True, slots=True)
class FilledOffsets:
    """Offsets that are from another replica, in `directory`."""

    directory: Path
    offsets: OffsetRange


@dataclass(slots=True)
class Salvaged:
    """What was copied, from `first_offset` to below `log_end_offset`; the magic of `repaired` batches was corrected."""

    tp: TopicPartition
    first_offset: int
    log_end_offset: int
    batches: int = 0
    size_bytes: int = 0
    repaired: int = 0
    lost: list[LostOffsets] = field(default_factory=list)
    filled: list[FilledOffsets] = field(default_factory=list)


def salvage(
    snapshot: LogSnapshot,
    target: PartitionLog,
    *,
    compacted: bool,
    end_offset: int = MAX_OFFSET,
    others: Sequence[LogSnapshot] = (),
    epochs: LeaderEpochs | None = None,
    progress: Progress | None = None,
) -> Salvaged:
    """Copies everything that is intact in the files of `snapshot` into `target`, which must hold no messages.

    `compacted`: offsets may be missing between segments without being lost. `end_offset`: the copy ends with the last
    batch that is wholly below this offset; losses beyond it are reported, too. `others`: replicas that have what is
    lost, the best first; `epochs`: of `snapshot`, by default as its intact batches tell them. InvalidRecord when
    `target` holds messages; errors of its `append_batches`, including that for a batch above its segment.bytes.
    """
    before = target.snapshot()
    if before.size_bytes:
        raise InvalidRecord(
            "the log to salvage into already holds messages", path=target.path, advice="Salvage into another directory"
        )
    report = progress or NoProgress()
    segments = [
        Segment(segment.directory, segment.base_offset, segment.log, segment.log.stat().st_size)
        for segment in snapshot.segments
    ]
    with working(report, f"salvage {snapshot.tp}", 2 * sum(segment.size for segment in segments)):
        finds = [
            _IntactBatches(segment, segments[row + 1].base_offset if row + 1 < len(segments) else MAX_OFFSET, report)
            for row, segment in enumerate(segments)
        ]
        _choose(finds)
        if segments and target.log_end_offset < segments[0].base_offset:
            target.restart_at(segments[0].base_offset)
        result = Salvaged(snapshot.tp, target.log_end_offset, target.log_end_offset)
        result.lost = _lost(finds, compacted=compacted)
        if others and result.lost:
            finds += _fill(result, others, _epochs(finds) if epochs is None else epochs, compacted=compacted)
        for find in finds:
            find.kept &= find.last < end_offset
        runs = ((find, run) for find in finds for run in find.kept_runs(split=bool(result.filled)))
        for find, run in sorted(runs, key=lambda one: int(one[0].base[one[1].first])):
            target.append_batches(*find.read(run))
            report.advance(run.size_bytes)
            result.batches += run.last - run.first
            result.size_bytes += run.size_bytes
        result.repaired = sum(int((find.kept & find.repaired).sum()) for find in finds)
        result.log_end_offset = target.log_end_offset
        target.increment_log_start_offset(min(snapshot.log_start_offset, target.log_end_offset))
    return result


@dataclass(frozen=True, slots=True)
class _Run:
    """The batches `first` to below `last` of a segment's intact ones, which are contiguous in the file."""

    first: int
    last: int
    position: int
    size_bytes: int


class _IntactBatches:
    """The intact batches of one segment, as columns in file order, and its breaks. `kept`: which are copied."""

    def __init__(self, segment: Segment, end_offset: int, progress: Progress) -> None:
        self.segment = segment
        self.breaks: list[Break] = []
        self.unavailable: str | None = None  # why a tier does not give what follows in this segment
        parts: list[_Int64s] = []
        repaired: list[int] = []
        seen = 0

        def visit(data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
            nonlocal seen
            wanted = table.position, table.size, table.base_offset, table.last_offset, table.leader_epoch
            columns = np.stack([column[:rows] for column in wanted])
            if (columns[2] < 0).any():
                columns[2] = _first_offsets(data, table, rows, origin)
            parts.append(columns)
            if rows == 1 and segment.log.read(int(columns[0, 0]) + MAGIC_AT, 1)[0] > MAX_MAGIC:
                repaired.append(seen)
            seen += rows
            progress.advance(int(columns[1].sum()))

        def passed(broken: Break, _next_offset: int) -> None:
            self.breaks.append(broken)
            progress.advance(broken.end - broken.position)

        try:
            walk(segment, visit, passed, end_offset)
        except TierUnavailable as error:
            self.unavailable = f"{error.what}: {error.found}"
        columns = np.concatenate(parts, axis=1) if parts else np.empty((5, 0), np.int64)
        self.position, self.size, self.base, self.last, self.epoch = columns
        self.repaired = np.zeros(len(self.position), np.bool_)
        self.repaired[repaired] = True
        self.kept = np.ones(len(self.position), np.bool_)

    def kept_runs(self, *, split: bool = False) -> Iterator[_Run]:
        """The batches to copy, in parts of about a megabyte. `split`: of each, the offsets have no gaps."""
        rows = np.flatnonzero(self.kept)
        ends = self.position + self.size
        first = 0
        for at in range(1, len(rows) + 1):
            row, start = rows[at - 1], rows[first]
            if (
                at == len(rows)
                or self.position[rows[at]] != ends[row]
                or ends[rows[at]] - self.position[start] > _WINDOW
                or self.repaired[row]
                or self.repaired[rows[at]]
                or (split and self.base[rows[at]] > self.last[row] + 1)
            ):
                begin = int(self.position[start])
                yield _Run(int(start), int(row) + 1, begin, int(ends[row]) - begin)
                first = at

    def read(self, run: _Run) -> tuple[memoryview | LargeBatch, BatchTable | None]:
        """The bytes of a run, ready to be appended, and the header of a large batch, which is alone in its run."""
        if run.size_bytes > MOST_BATCH_BYTES:
            large = LargeBatch(self.segment.log, run.position, run.size_bytes, bool(self.repaired[run.first]))
            return large, header_of(large.head(), 0, run.size_bytes)
        data = self.segment.log.read(run.position, run.size_bytes)
        if self.repaired[run.first]:
            data = memoryview(bytes(data[:MAGIC_AT]) + _COPIED_MAGIC + bytes(data[MAGIC_AT + 1 :]))
        return data, None

    def damages(self) -> list[UncopiedBytes]:
        """Breaks, and intact batches that are left out, in file order."""
        path = self.segment.log.path
        breaks = (one for one in self.breaks if one.fault is not Fault.ORDER)
        found = [
            UncopiedBytes(path, one.position, one.end, one.fault.value + (one.behind if one.undecided else ""))
            for one in breaks
        ]
        for row in np.flatnonzero(~self.kept).tolist():
            position = int(self.position[row])
            reason = f"offset {int(self.base[row])} contradicts those around it"
            found.append(UncopiedBytes(path, position, position + int(self.size[row]), reason))
        if self.unavailable is not None:
            end = max([0, *(one.end for one in found), *(self.position + self.size).tolist()])
            found.append(UncopiedBytes(path, end, self.segment.size, self.unavailable))
        return sorted(found, key=lambda one: one.position)


def _epochs(finds: list[_IntactBatches]) -> LeaderEpochs:
    """The leader epochs of the batches that were kept."""
    epochs = LeaderEpochs()
    for find in finds:
        for row in np.flatnonzero(find.kept & (find.epoch >= 0)).tolist():
            epochs = epochs.assign(EpochEntry(int(find.epoch[row]), int(find.base[row])))
    return epochs


def _fill(
    result: Salvaged, others: Sequence[LogSnapshot], epochs: LeaderEpochs, *, compacted: bool
) -> list[_IntactBatches]:
    """Finds what is lost in other replicas; what is found is in `filled`, and no longer in `lost`. Returns their
    segments, of which the batches that are to be copied are kept."""
    fills: list[_IntactBatches] = []
    for other in others:
        left: list[LostOffsets] = []
        for lost in result.lost:
            if lost.first_offset is None:
                left.append(lost)
                continue
            gap = OffsetRange(lost.first_offset, MAX_OFFSET if lost.last_offset is None else lost.last_offset + 1)
            filled, rest, found = _fill_gap(gap, other, epochs, compacted=compacted)
            fills += found
            result.filled += [FilledOffsets(other.segments[0].directory, one) for one in filled]
            for one in rest:
                last_offset = None if one.end == MAX_OFFSET else one.end - 1
                left.append(replace(lost, first_offset=one.start, last_offset=last_offset))
        result.lost = left
    return fills


def _fill_gap(
    gap: OffsetRange, other: LogSnapshot, epochs: LeaderEpochs, *, compacted: bool
) -> tuple[list[OffsetRange], list[OffsetRange], list[_IntactBatches]]:
    """What another replica has of a gap, what is still missing, and the segments with the batches to copy."""
    filled: list[OffsetRange] = []
    rest: list[OffsetRange] = []
    finds: list[_IntactBatches] = []
    expected, may_lack = gap.start, False
    ends = [segment.base_offset for segment in other.segments[1:]] + [MAX_OFFSET]
    for segment, end in zip(other.segments, ends, strict=True):
        if segment.base_offset >= gap.end or end <= gap.start:
            continue
        find = _IntactBatches(segment, end, NoProgress())
        _choose([find])
        # Where nothing is damaged, compaction has removed what is missing.
        may_lack = compacted and not find.breaks and segment.base_offset <= expected
        find.kept &= (find.base >= gap.start) & (find.last < gap.end)
        for row in np.flatnonzero(find.kept).tolist():
            first, last, epoch = int(find.base[row]), int(find.last[row]), int(find.epoch[row])
            if {epochs.epoch_at(first), epochs.epoch_at(last)} != {None if epoch < 0 else epoch}:
                find.kept[row] = False
                continue
            if first > expected and not may_lack:
                rest.append(OffsetRange(expected, first))
            if filled and (filled[-1].end == first or may_lack):
                filled[-1] = OffsetRange(filled[-1].start, last + 1)
            else:
                filled.append(OffsetRange(first, last + 1))
            expected, may_lack = last + 1, compacted and not find.breaks
        finds.append(find)
    if expected < gap.end and not (may_lack and other.log_end_offset >= gap.end):
        rest.append(OffsetRange(expected, gap.end))
    return filled, rest, finds


def _first_offsets(data: memoryview, table: BatchTable, rows: int, origin: int) -> _Int64s:
    """First offsets of batches, including the old formats' compressed sets, whose headers have only their last
    offset."""
    first = np.where(table.base_offset[:rows] < 0, table.last_offset[:rows], table.base_offset[:rows])
    decoder = Decoder(verify_crc=False)
    row = 0
    while row < rows:
        block = decoder.decode(data, table, row, rows, origin=origin, control=True)
        np.minimum.at(first, block.batch, block.offset)
        row = block.next_row + (block.damage is not None)
    return first


def _choose(finds: list[_IntactBatches]) -> None:
    """Marks as `kept` the longest run of batches in file order whose offsets ascend, so that few are left out.

    `ends[n]`: the least last offset that a run of n + 1 batches can have.
    """
    base = np.concatenate([find.base for find in finds]) if finds else np.empty(0, np.int64)
    last = np.concatenate([find.last for find in finds]) if finds else base
    if (base[1:] > last[:-1]).all():
        return
    ends: list[int] = []
    end_rows: list[int] = []
    before = np.full(len(base), -1, np.int64)
    for row, (first_offset, last_offset) in enumerate(zip(base.tolist(), last.tolist(), strict=True)):
        length = bisect_left(ends, first_offset)
        if length:
            before[row] = end_rows[length - 1]
        if length == len(ends):
            ends.append(last_offset)
            end_rows.append(row)
        elif last_offset < ends[length]:
            ends[length], end_rows[length] = last_offset, row
    kept = np.zeros(len(base), np.bool_)
    chosen = end_rows[-1] if end_rows else -1
    while chosen >= 0:
        kept[chosen] = True
        chosen = int(before[chosen])
    at = 0
    for find in finds:
        find.kept = kept[at : at + len(find.kept)]
        at += len(find.kept)


def _lost(finds: list[_IntactBatches], *, compacted: bool) -> list[LostOffsets]:
    """The gaps between the batches that were kept, where there is damage, or where nothing may be missing."""
    lost: list[LostOffsets] = []
    waiting: list[UncopiedBytes] = []  # met since the last batch that was kept
    expected = finds[0].segment.base_offset if finds else 0
    for find in finds:
        damages = deque(find.damages())
        rows = np.flatnonzero(find.kept)
        previous = np.concatenate(([expected - 1], find.last[rows]))  # the last offset before each of them
        for at in _rows_after_a_gap(find, rows, previous, damages, first=bool(waiting)):
            row = rows[at]
            position, begin, expected = int(find.position[row]), int(find.base[row]), int(previous[at]) + 1
            while damages and damages[0].position < position + find.size[row]:
                waiting.append(damages.popleft())
            if begin > expected and not (waiting or compacted):
                reason = "no batch here holds the offsets before this one"
                waiting.append(UncopiedBytes(find.segment.log.path, position, position, reason))
            if waiting:
                first, last = (expected, begin - 1) if begin > expected else (None, None)
                lost.append(LostOffsets(first, last, tuple(waiting)))
                waiting.clear()
        expected = int(previous[-1]) + 1
        waiting += damages
    if waiting:
        lost.append(LostOffsets(expected, None, tuple(waiting)))
    return lost


def _rows_after_a_gap(
    find: _IntactBatches, rows: _Int64s, previous: _Int64s, damages: Collection[UncopiedBytes], *, first: bool
) -> list[int]:
    """Which of the kept `rows` come after missing offsets or damage, counted within them. `first`: row 0 does."""
    after_damage = find.position[rows].searchsorted([one.position for one in damages])
    gaps = np.concatenate((np.flatnonzero(find.base[rows] > previous[:-1] + 1), after_damage, [0] * first))
    return [int(at) for at in np.unique(gaps) if at < len(rows)]
