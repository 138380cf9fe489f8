"""Dividing logs into tasks: which offsets each task reads. Reads no files except offset indexes.

Tasks have equal sizes in file bytes. A task is a list of splits in log order. A log is divided after a batch that its
offset index names; any offset will do, so a wrong index makes tasks unequal, but never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkafs.reading.split_reader import Split
from storage.log.snapshot import LogSnapshot

if TYPE_CHECKING:
    from storage.log.segment import Segment


# Spark takes about 27 ms for a task, most of the time of a task of a few MiB; several per core even out slow tasks.
TASKS_PER_CORE: Final = 4
LEAST_TASK_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class LogRange:
    """Offsets of a log from `start_offset` (included) to `end_offset` (excluded), both within the snapshot."""

    snapshot: LogSnapshot
    start_offset: int
    end_offset: int


class _Piece(NamedTuple):
    """The part of a range in one segment, with file positions as precise as the index."""

    segment: Segment
    log_end: int  # position
    start_offset: int
    end_offset: int
    start_position: int
    end_position: int


def plan(
    ranges: Iterable[LogRange],
    cores: int,
    *,
    least_tasks: int | None = None,
    most_records: int | None = None,
    separate: bool = False,
) -> list[tuple[Split, ...]]:
    """Return tasks that together read the ranges, in the order of `ranges`. A task is a list of non-empty splits.

    About four tasks for each of the `cores`, fewer if there is little to read. `least_tasks`: at least this many, if
    there are as many offsets; `most_records`: no task has more offsets. `separate`: no task reads several logs, unless
    there are more logs than cores.
    """
    logs = [
        (log_range, list(_pieces(log_range))) for log_range in ranges if log_range.start_offset < log_range.end_offset
    ]
    total_bytes = sum(piece.end_position - piece.start_position for _, pieces in logs for piece in pieces)
    tasks = max(min(cores * TASKS_PER_CORE, -(-total_bytes // LEAST_TASK_BYTES)), least_tasks or 1)
    limits = [] if most_records is None else [most_records]
    if least_tasks is not None:
        offsets = sum(log_range.end_offset - log_range.start_offset for log_range, _ in logs)
        limits.append(max(offsets // least_tasks, 1))
    packer = _Packer(max(-(-total_bytes // tasks), 1), min(limits, default=None))
    for log_range, pieces in logs:
        packer.add(log_range.snapshot, pieces)
        if separate and len(logs) <= cores:
            packer.close()
    return packer.done()


def plan_by_size(ranges: Iterable[LogRange], cores: int, task_bytes: int) -> list[tuple[Split, ...]]:
    """`plan` with enough tasks that each reads about `task_bytes` of the log's files, or less."""
    ranges = list(ranges)
    tasks = plan(ranges, cores)
    least = -(-sum(split.size_bytes for splits in tasks for split in splits) // task_bytes)
    return tasks if least <= len(tasks) else plan(ranges, cores, least_tasks=least)


class _Packer:
    """Fills tasks one after another, each up to `target_bytes` and `most_records`."""

    def __init__(self, target_bytes: int, most_records: int | None) -> None:
        self._target_bytes = target_bytes
        self._most_records = most_records
        self._tasks: list[tuple[Split, ...]] = []
        self._task: list[Split] = []
        self._bytes = 0
        self._records = 0

    def add(self, snapshot: LogSnapshot, pieces: list[_Piece]) -> None:
        """Add one log's pieces, ascending."""
        tp, identity = snapshot.tp, snapshot.identity
        start = pieces[0].start_offset
        size_bytes = 0
        for piece in pieces:
            position = piece.start_position
            at = piece.start_offset
            while at < piece.end_offset:
                cut, cut_position = self._fitting(piece, at, position, size_bytes, at - start)
                size_bytes += cut_position - position
                at, position = cut, cut_position
                if at < piece.end_offset or self._is_full(size_bytes, at - start):
                    self._put(Split(tp, start, at, size_bytes, identity))
                    self.close()
                    start, size_bytes = at, 0
        end = pieces[-1].end_offset
        if start < end:
            self._put(Split(tp, start, end, size_bytes, identity))

    def done(self) -> list[tuple[Split, ...]]:
        self.close()
        return self._tasks

    def _fitting(self, piece: _Piece, start: int, position: int, more_bytes: int, more_records: int) -> tuple[int, int]:
        """The (offset, position) up to which the piece fits into the task, next to `more_bytes` and `more_records` of
        the same log that are not in the task yet."""
        end, end_position = piece.end_offset, piece.end_position
        room = self._target_bytes - self._bytes - more_bytes
        if end_position - position > room:
            entry = piece.segment.offset_index(piece.log_end).first_from_position(position + max(room, 1))
            if entry is not None and start < entry.offset + 1 < end and entry.position < end_position:
                end, end_position = entry.offset + 1, max(entry.position, position)
        if self._most_records is not None:
            most = start + self._most_records - self._records - more_records
            if most < end:
                # Interpolated: the position only decides the sizes of tasks.
                end_position = position + (end_position - position) * (most - start) // (end - start)
                end = most
        return end, end_position

    def _is_full(self, more_bytes: int, more_records: int) -> bool:
        if self._bytes + more_bytes >= self._target_bytes:
            return True
        return self._most_records is not None and self._records + more_records >= self._most_records

    def _put(self, split: Split) -> None:
        self._task.append(split)
        self._bytes += split.size_bytes
        self._records += split.end_offset - split.start_offset

    def close(self) -> None:
        """End the task that is being filled, if it has any splits."""
        if self._task:
            self._tasks.append(tuple(self._task))
        self._task = []
        self._bytes = self._records = 0


def _pieces(log_range: LogRange) -> Iterator[_Piece]:
    """The range, segment by segment. Offsets in a gap belong to the segment before the gap; offsets below the first
    segment belong to the first segment."""
    snapshot, start, end = log_range.snapshot, log_range.start_offset, log_range.end_offset
    segments = snapshot.segments
    index = max(snapshot.segment_index(start), 0)
    while start < end:
        segment = segments[index]
        index += 1
        following = segments[index].base_offset if index < len(segments) else snapshot.log_end_offset
        log_end = snapshot.end_position(segment)
        first = segment.offset_index(log_end).floor(start).position if start > segment.base_offset else 0
        last = log_end if end >= following else max(segment.offset_index(log_end).floor(end).position, first)
        yield _Piece(segment, log_end, start, min(end, following), first, last)
        start = following
