"""Digests of a log's records by ranges of offsets, and the differences of two logs.

Records count as a consumer sees them: no control records, nothing below the log start; under read_committed nothing of
aborted transactions, and nothing from the last stable offset on. So the digests of two copies are equal whatever
batches, codec and format version they have, and wherever their segments end.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from storage.backup.canonical_records import CanonicalRecords, RecordDigest
from storage.format.compression import Codec
from storage.log.reader import read_range
from storage.log.scanning import scan_sound_batches
from storage.progress import NoProgress, Progress
from storage.types import MAX_OFFSET, Isolation

if TYPE_CHECKING:
    from storage.format.block import Headers, RecordBlock
    from storage.log.snapshot import LogSnapshot

# The ranges in which two logs are compared at first; ranges that differ are compared record by record.
COMPARED_OFFSETS: Final = 1 << 16
# The most messages to compare in ranges that differ.
MOST_COUNTED: Final = 1 << 20
_FIELDS: Final = ("timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class DigestedRange:
    """The records with offsets from `start_offset` (included) to `end_offset` (excluded): how many, and their digest
    (storage.backup.record_digests)."""

    start_offset: int
    end_offset: int
    records: int
    digest: str


@dataclass(frozen=True, slots=True)
class LogDigest:
    """The digest of a stretch of a log, and the digests of its parts that have records, ascending."""

    whole: DigestedRange
    ranges: tuple[DigestedRange, ...]


@dataclass(frozen=True, slots=True)
class SeenRecord:
    """A record as a consumer sees it. `timestamp`: epoch milliseconds, -1 none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class Difference:
    """The first offset at which two logs differ, and the record of each; None: no record."""

    offset: int
    left: SeenRecord | None
    right: SeenRecord | None


@dataclass(frozen=True, slots=True)
class Differences:
    """Counts of differences. `changed`: messages on both sides that are not equal, and `fields` that differ. `only`:
    messages that one side has alone, left and right; `superseded`: how many of them compaction may have removed from
    the other side, as deletions, or because this side has a later message with their key. `whole`: False if only the
    first MOST_COUNTED messages were compared."""

    changed: int = 0
    fields: tuple[str, ...] = ()
    only: tuple[int, int] = (0, 0)
    superseded: tuple[int, int] = (0, 0)
    whole: bool = True


@dataclass(frozen=True, slots=True)
class LogDiff:
    """The differences of two logs. `ranges`: first and last offset (included) of stretches with a difference, as finely
    as they were compared; `first`: the first of all differences, None if there is none."""

    ranges: tuple[tuple[int, int], ...] = ()
    first: Difference | None = None
    differences: Differences = Differences()


@dataclass(frozen=True, slots=True)
class Stored:
    """How messages are stored: the number of batches, format versions and codecs."""

    batches: int
    formats: tuple[int, ...]
    codecs: tuple[str, ...]


def digest_records(
    snapshot: LogSnapshot,
    start_offset: int,
    end_offset: int | None = None,
    *,
    by: int | None = None,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    progress: Progress | None = None,
) -> LogDigest:
    """Return the digest of the records from `start_offset` (included) to `end_offset` (excluded, by default the log's
    end).

    `by`: also digest each range of this many offsets, counted from its multiples. OffsetOutOfRange; CorruptBatch and
    the like for damage, which makes a digest impossible.
    """
    report = progress or NoProgress()
    end = snapshot.log_end_offset if end_offset is None else min(end_offset, snapshot.log_end_offset)
    whole = RecordDigest()
    parts: dict[int, RecordDigest] = {}
    encoder = CanonicalRecords()
    for block in read_range(snapshot, start_offset, end, isolation=isolation):
        for number, first, last in _cut(block, by):
            # Without ranges, only the whole is digested.
            digest = whole if number is None else parts.setdefault(number, RecordDigest())
            for part in encoder.parts(block, first, last):
                digest.add(part)
                if digest is not whole:
                    whole.add(part)
            digest.records += last - first
            if digest is not whole:
                whole.records += last - first
        report.advance(len(block.buffer))
        block.check()
    width = MAX_OFFSET if by is None else by
    ranges = tuple(
        DigestedRange(
            max(number * width, start_offset),
            min((number + 1) * width, end),
            part_digest.records,
            part_digest.hexdigest(),
        )
        for number, part_digest in parts.items()
    )
    return LogDigest(DigestedRange(start_offset, max(end, start_offset), whole.records, whole.hexdigest()), ranges)


def _cut(block: RecordBlock, by: int | None) -> Iterator[tuple[int | None, int, int]]:
    """A block's rows by range: the range's number, first row, end of the rows."""
    if not len(block):
        return
    if by is None:
        yield None, 0, len(block)
        return
    numbers = block.offset // by
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(block)]
    for first, last in pairwise(starts):
        yield int(numbers[first]), first, last


def diff_records(
    left: LogSnapshot,
    right: LogSnapshot,
    start_offset: int = 0,
    end_offset: int = MAX_OFFSET,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    by: int = COMPARED_OFFSETS,
    progress: Progress | None = None,
) -> LogDiff:
    """Return where the records of two logs differ, from `start_offset` (included) to `end_offset` (excluded).

    `by`: how many offsets to compare at once. CorruptBatch and the like for damage.
    """
    by_side = [_by_range(log, start_offset, end_offset, by, isolation, progress) for log in (left, right)]
    wrong = sorted(number for number in {*by_side[0], *by_side[1]} if by_side[0].get(number) != by_side[1].get(number))
    if not wrong:
        return LogDiff()
    bounds = [(max(number * by, start_offset), min((number + 1) * by, end_offset)) for number in wrong]
    return LogDiff(_joined(bounds), *_differences((left, right), bounds, isolation))


def stored_as(snapshot: LogSnapshot, start_offset: int = 0, end_offset: int = MAX_OFFSET) -> Stored:
    """Return how the batches with offsets from `start_offset` (included) to `end_offset` (excluded) are stored.
    CorruptBatch and the like for damage."""
    batches, formats, codecs = 0, set[int](), set[int]()
    for segment in snapshot.segments:
        if segment.base_offset < end_offset:
            with closing(scan_sound_batches(snapshot, segment, 0)) as windows:
                for window in windows:
                    table = window.table
                    within = (table.last_offset >= start_offset) & (table.base_offset < end_offset)
                    batches += int(within.sum())
                    formats |= set(table.magic[within].tolist())
                    codecs |= set(table.codec[within].tolist())
    return Stored(batches, tuple(sorted(formats)), tuple(Codec(number).config_name for number in sorted(codecs)))


def empty_log(like: LogSnapshot) -> LogSnapshot:
    """A log without messages, to compare with a log that has no counterpart."""
    return replace(like, segments=(), log_start_offset=0, log_end_offset=0, active_end=0, active_size=0)


def _by_range(
    snapshot: LogSnapshot, start: int, end: int, by: int, isolation: Isolation, progress: Progress | None
) -> Mapping[int, tuple[int, str]]:
    """Number of records and digest, by number of the range."""
    first, last = max(start, snapshot.log_start_offset), min(end, snapshot.log_end_offset)
    if first >= last:
        return {}
    digest = digest_records(snapshot, first, last, by=by, isolation=isolation, progress=progress)
    return {digested.start_offset // by: (digested.records, digested.digest) for digested in digest.ranges}


def _joined(bounds: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Adjacent ranges as one; ends included."""
    joined: list[tuple[int, int]] = []
    for start, end in bounds:
        if joined and joined[-1][1] == start - 1:
            joined[-1] = joined[-1][0], end - 1
        else:
            joined.append((start, end - 1))
    return tuple(joined)


def _differences(
    logs: tuple[LogSnapshot, LogSnapshot], bounds: list[tuple[int, int]], isolation: Isolation
) -> tuple[Difference | None, Differences]:
    """The first difference in ranges of offsets, and the counts of all differences."""
    first: Difference | None = None
    differences = Differences()
    only: tuple[list[SeenRecord], list[SeenRecord]] = [], []
    left = MOST_COUNTED
    for offset, pair in _pairs(logs, bounds, isolation):
        if not left:
            differences = replace(differences, whole=False)
            break
        left -= 1
        if pair[0] != pair[1]:
            first = first or Difference(offset, *pair)
            if pair[0] is None or pair[1] is None:
                side = int(pair[0] is None)
                alone = pair[side]
                assert alone is not None
                only[side].append(replace(alone, value=alone.value and b"", headers=()))
            else:
                ours, theirs = pair
                names = [name for name in _FIELDS if getattr(ours, name) != getattr(theirs, name)]
                fields = tuple(name for name in _FIELDS if name in {*differences.fields, *names})
                differences = replace(differences, changed=differences.changed + 1, fields=fields)
    superseded = [_superseded(log, alone, isolation) for log, alone in zip(logs, only, strict=True)]
    return first, replace(differences, only=(len(only[0]), len(only[1])), superseded=(superseded[0], superseded[1]))


def _pairs(
    logs: tuple[LogSnapshot, LogSnapshot], bounds: list[tuple[int, int]], isolation: Isolation
) -> Iterator[tuple[int, tuple[SeenRecord | None, SeenRecord | None]]]:
    """The records of both logs at each offset of ranges, wherever one of the logs has a message."""
    for start, end in bounds:
        sides = [_records(log, start, end, isolation) for log in logs]
        ours, theirs = (next(side, None) for side in sides)
        while ours is not None or theirs is not None:
            offset = min(seen.offset for seen in (ours, theirs) if seen is not None)
            has = [seen is not None and seen.offset == offset for seen in (ours, theirs)]
            yield offset, (ours if has[0] else None, theirs if has[1] else None)
            ours, theirs = (next(sides[0], None) if has[0] else ours, next(sides[1], None) if has[1] else theirs)


def _superseded(log: LogSnapshot, alone: list[SeenRecord], isolation: Isolation) -> int:
    """How many of these messages compaction may remove: deletions, and those whose key a later message has."""
    count = sum(seen.key is not None and seen.value is None for seen in alone)
    waiting: dict[bytes, list[int]] = {}
    for seen in alone:
        if seen.key is not None and seen.value is not None:
            waiting.setdefault(_hashed(seen.key), []).append(seen.offset)
    if not waiting:
        return count
    for block in read_range(log, alone[0].offset, log.log_end_offset, isolation=isolation):
        for row in range(len(block)):
            key = block.key(row)
            offsets = None if key is None else waiting.get(_hashed(key))
            if key is not None and offsets and offsets[0] < int(block.offset[row]):
                before = bisect_left(offsets, int(block.offset[row]))
                count += before
                del offsets[:before]
                if not offsets:
                    del waiting[_hashed(key)]
        block.check()
        if not waiting:
            break
    return count


def _hashed(key: bytes) -> bytes:
    """A digest in place of a key, which may be large."""
    return hashlib.blake2b(key, digest_size=16).digest()


def _records(snapshot: LogSnapshot, start: int, end: int, isolation: Isolation) -> Iterator[SeenRecord]:
    first, last = max(start, snapshot.log_start_offset), min(end, snapshot.log_end_offset)
    if first >= last:
        return
    for block in read_range(snapshot, first, last, isolation=isolation):
        for row in range(len(block)):
            place = int(block.offset[row]), int(block.timestamp[row])
            yield SeenRecord(*place, block.key(row), block.value(row), tuple(block.headers(row)))
        block.check()
