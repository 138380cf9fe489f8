"""Finds the latest record of each key with many processes: some read stretches of a log and produce hashes of keys,
others collect equal hashes.

A reader (`KeyScan`) reads a stretch and produces *chunks*: for the dirty part the latest offset of each key within a
small map of its own, for the clean part the offset of every record. A collector (`latest_offsets`) gets all chunks of
some of the hashes (`spread`) and returns the offsets of the records to keep. Together they follow the rules of one
OffsetMap. Apart from reading the log there are no side effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from storage.compaction.cleaned_transactions import CleanedTransactions, Passed
from storage.compaction.rewriting import between, counting_blocks, windows
from storage.errors import SegmentGone
from storage.files import names
from storage.files.log_file import LogFile
from storage.files.names import FileKind
from storage.files.transaction_index import AbortedTxn
from storage.format.block import RecordBlock
from storage.format.decoder import Decoder
from storage.latest.offset_map import Int64s, OffsetMap, Secret, UInt64s, hash_keys
from storage.log.isolation import Transactions
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive sealed segments of a log, to be found by another process: base offsets and sizes in bytes. All their
    offsets are below `end_offset`."""

    tp: TopicPartition
    directory: Path
    segments: tuple[tuple[int, int], ...]
    end_offset: int

    @staticmethod
    def of(snapshot: LogSnapshot, segments: Iterable[Segment], end_offset: int) -> Part:
        """These segments of a snapshot, at least one."""
        found = tuple((segment.base_offset, segment.size) for segment in segments)
        return Part(snapshot.tp, snapshot.segments[0].directory, found, end_offset)

    def snapshot(self) -> LogSnapshot:
        """The segments as a log of their own. SegmentGone when one is missing or has changed."""
        segments = []
        for base_offset, size in self.segments:
            path = self.directory / names.segment_file(base_offset, FileKind.LOG)
            try:
                segment = Segment(self.directory, base_offset, LogFile(path), size)
            except FileNotFoundError:
                raise SegmentGone("segment is missing", path=path) from None
            found = segment.log.stat().st_size
            if found != size:
                raise SegmentGone("segment has changed", path=path, expected=f"{size} bytes", found=found)
            segment.sealed = True
            segments.append(segment)
        return LogSnapshot(
            tp=self.tp,
            segments=tuple(segments),
            log_start_offset=segments[0].base_offset,
            log_end_offset=self.end_offset,
            active_end=segments[-1].size,
            active_size=segments[-1].size,
            cuts=(),
            transactions=Transactions(self.directory),
        )


@dataclass(frozen=True, slots=True)
class Stretch:
    """The batches of a part with last offsets from `start_offset` (included) to `end_offset` (excluded).

    Records from `first_dirty` on are dirty. `aborted`: the aborted transactions with offsets in the stretch.
    """

    part: Part
    start_offset: int
    end_offset: int
    first_dirty: int
    aborted: tuple[AbortedTxn, ...]


class KeyChunk(NamedTuple):
    """Hashes of keys, two halves each, and offsets of their records. If `dirty`, no hash occurs twice."""

    dirty: bool
    hashes: UInt64s
    offsets: Int64s


class KeyScan:
    """Reads one stretch, once. At most `most_keys` keys are held at a time."""

    def __init__(self, stretch: Stretch, secret: Secret, *, most_keys: int) -> None:
        self._stretch = stretch
        self._secret = secret
        self._most_keys = most_keys
        self._map = OffsetMap.for_keys(most_keys, secret)
        self._transactions = CleanedTransactions(stretch.aborted)
        self._clean: list[tuple[UInt64s, Int64s]] = []
        self._held = 0

    def chunks(self) -> Iterator[KeyChunk]:
        """The whole stretch, in order. StorageError for damage; SegmentGone."""
        start, end = self._stretch.start_offset, self._stretch.end_offset
        decoder = Decoder()
        snapshot = self._stretch.part.snapshot()
        for segment in snapshot.segments:
            position = segment.floor(start, segment.size) if segment.base_offset < start else 0
            for window in windows(snapshot, segment, position):
                if int(window.table.last_offset[0]) >= end:
                    break
                for block in counting_blocks(between(window, start, end), decoder, self._transactions):
                    yield from self._take(block)
        yield from self._clean_chunks()
        if len(self._map):
            yield KeyChunk(True, *self._map.drain())

    def passed(self) -> Passed:
        """The state of transactions after the stretch; call it after all chunks were produced."""
        return self._transactions.passed()

    def _take(self, block: RecordBlock) -> Iterator[KeyChunk]:
        first = self._stretch.first_dirty
        clean = int(block.offset.searchsorted(first))
        if clean:
            hashes = np.empty((len(block), 2), np.uint64)
            hash_keys(block, self._secret, hashes)
            rows = np.flatnonzero(block.key_length[:clean] >= 0)
            self._clean.append((hashes[rows], block.offset[rows]))
            self._held += len(rows)
            if self._held >= self._most_keys:
                yield from self._clean_chunks()
        while (taken := self._map.put(block, first)) < len(block):
            yield KeyChunk(True, *self._map.drain())
            first = int(block.offset[taken])

    def _clean_chunks(self) -> Iterator[KeyChunk]:
        if self._held:
            hashes, offsets = zip(*self._clean, strict=True)
            yield KeyChunk(False, np.concatenate(hashes), np.concatenate(offsets))
        self._clean, self._held = [], 0


def spread(chunk: KeyChunk, places: int) -> Iterator[tuple[int, KeyChunk]]:
    """Splits a chunk by hash into its parts for each of the `places`, numbered from 0."""
    # By the lower halves: the upper ones determine a key's slot in a map.
    place = ((chunk.hashes[:, 0] & np.uint64(0xFFFFFFFF)) * np.uint64(places)) >> np.uint64(32)
    order = place.argsort(kind="stable")
    ends = np.bincount(place.astype(np.int64), minlength=places).cumsum().tolist()
    start = 0
    for number, end in enumerate(ends):
        if start < end:
            rows = order[start:end]
            yield number, KeyChunk(chunk.dirty, chunk.hashes[rows], chunk.offsets[rows])
        start = end


def latest_offsets(chunks: Iterable[KeyChunk], secret: Secret) -> Int64s:
    """The offsets, ascending, of the records to keep: the latest dirty one of each key, and clean ones of keys without
    a dirty one. `chunks`: all chunks of these keys, in any order."""
    dirty: list[KeyChunk] = []
    clean: list[KeyChunk] = []
    for chunk in chunks:
        (dirty if chunk.dirty else clean).append(chunk)
    known = OffsetMap.for_keys(sum(len(chunk.offsets) for chunk in dirty), secret)
    # Dirty chunks do not overlap in the log, so any of their offsets sorts them; later ones overwrite earlier ones.
    for chunk in sorted(dirty, key=lambda chunk: int(chunk.offsets[0])):
        known.put_hashed(chunk.hashes, chunk.offsets)
    found = [chunk.offsets[known.lacks(chunk.hashes)] for chunk in clean]
    found.append(known.drain()[1])
    return np.sort(np.concatenate(found))
