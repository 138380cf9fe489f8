"""A pass of the cleaner that is done by other processes, for a partition with more keys than one offset map holds.

The steps, and the state after a crash at each:

1. others read stretches of the log, and find together the latest record of each key (`key_scan`)
                                                 → nothing has changed
2. others copy the groups, each into a segment under `.staged` names of its own, and sync it
                                                 → a pass that fails removes staged files, or the next opening does
3. the owner renames them to `.cleaned`          → the next opening removes them
4. and replaces their sources by them, all at once (storage.append.swap, 2 to 5)
                                                 → all groups are old, or all are new
5. the cleaner's checkpoint is written (directory_compaction)
                                                 → the next pass begins at the same offset, and copies the clean part
6. the caller unlinks the sources                → the next opening does

The owner holds the directory's `.lock` from before 1 until after 5, so the log that others read is the one that is
replaced. Checking before 4 whether something had changed would not be enough: a broker that cleaned meanwhile would use
the same `.cleaned` names. The result is byte for byte that of a Pass whose map has room for all keys.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.append import swap
from storage.append.partition_log import PartitionLog
from storage.append.swap import CleanedSegment, Replacement
from storage.compaction.batch_filter import BatchFilter, CleanedTransactions, FilterCounts, Passed, Rules
from storage.compaction.compaction import CompactionResult, PassInput, Rewriter, between, counting_blocks, windows
from storage.errors import SegmentGone, StorageError
from storage.files import names
from storage.files.disk_protocol import Disk
from storage.files.log_file import LogFile
from storage.files.names import FileKind
from storage.files.opening import exists
from storage.files.transaction_index import AbortedTxn
from storage.format.block import RecordBlock
from storage.format.decoder import Decoder
from storage.latest.latest_records import rows_among
from storage.latest.offset_map import Int64s, OffsetMap, Secret, UInt64s, hash_keys, new_secret, retained
from storage.log.isolation import Transactions
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import OffsetRange, TopicPartition

# The latest records of their keys as a list of offsets, to compact a part of a log without the keys of the rest.

_NO_MAP: Final = np.zeros(3, np.uint64)
_NO_HASHES: Final = np.empty((0, 2), np.uint64)


class Survivors:
    """Offsets of the records that have no later one of the same key, ascending; 8 bytes each. Not thread-safe.

    Replaces a complete OffsetMap, with the same rules and the same kernel.
    """

    def __init__(self, offsets: Int64s) -> None:
        self._offsets = offsets

    def retain(
        self, block: RecordBlock, verdicts: npt.NDArray[np.uint8], kept: Int64s, deletes: Int64s, counts: Int64s
    ) -> npt.NDArray[np.uint8]:
        """OffsetMap.retain with the survivors in place of a map."""
        # The kernel's marks are by offset, and offsets may be far apart: row numbers are passed instead.
        rows, marks = len(block), np.packbits(rows_among(block.offset, self._offsets), bitorder="little")
        known = _NO_MAP, rows, 0, marks, _NO_HASHES, np.arange(rows, dtype=np.int64)
        return retained(block, known, verdicts, kept, deletes, counts)


# Finds the latest record of each key with many processes: some read stretches of a log and produce hashes of keys,
# others collect equal hashes.
#
# A reader (`KeyScan`) reads a stretch and produces *chunks*: for the dirty part the latest offset of each key within a
# small map of its own, for the clean part the offset of every record. A collector (`latest_offsets`) gets all chunks of
# some of the hashes (`spread`) and returns the offsets of the records to keep. Together they follow the rules of one
# OffsetMap. Apart from reading the log there are no side effects.


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


_LOOKS: Final = 16


@dataclass(frozen=True, slots=True)
class Copied:
    """The copy of a group: a segment whose files' names end with `ending`, with a .log of `size` bytes.

    `keys`: how many of the kept records are dirty, and so the latest of their keys.
    """

    base_offset: int
    ending: str
    size: int
    counts: FilterCounts
    keys: int


@dataclass(frozen=True, slots=True)
class GroupCopy:
    """The task of copying one group, for any process that can access the directory. `aborted`: the aborted transactions
    with offsets in the group; `before`: the state of transactions before it. Without `writes` it is a dry run."""

    part: Part
    rules: Rules
    legacy_horizon_ms: int
    interval_bytes: int
    first_dirty: int
    aborted: tuple[AbortedTxn, ...]
    before: Passed
    writes: bool

    @property
    def start_offset(self) -> int:
        """The group's first base offset."""
        return self.part.segments[0][0]

    @property
    def size(self) -> int:
        """Bytes of the sources."""
        return sum(size for _, size in self.part.segments)

    def run(self, latest: Int64s, disk: Disk) -> Copied:
        """`latest`: the offsets, ascending, of the group's records that are the latest of their keys.

        StorageError for damage, SegmentGone, OSError: files already written are removed, if possible.
        """
        snapshot = self.part.snapshot()
        transactions = CleanedTransactions(self.aborted, self.before)
        batches = BatchFilter(self.rules, Survivors(latest), transactions)
        rewriter = Rewriter(snapshot, batches, transactions, self.legacy_horizon_ms)
        base_offset = self.start_offset
        keys = len(latest) - int(latest.searchsorted(self.first_dirty))
        if not self.writes:
            rewriter.copy(snapshot.segments, lambda _: None)
            return Copied(base_offset, "", batches.counts.bytes_kept, batches.counts, keys)
        ending = names.new_staged_ending()
        directory, interval_bytes = self.part.directory, self.interval_bytes
        try:
            cleaned = CleanedSegment(disk, directory, base_offset, interval_bytes=interval_bytes, ending=ending)
            try:
                rewriter.write(snapshot.segments, cleaned)
            finally:
                cleaned.close()
            disk.sync_dir(directory)
        except BaseException:
            with suppress(OSError):
                swap.remove_cleaned(disk, directory, base_offset, ending)
            raise
        return Copied(base_offset, ending, cleaned.size, batches.counts, keys)


class DividedPass:
    """One pass over the log of its `pass_input`, in parts. `groups`: the groups to be copied, as offsets from each
    first base offset to the next."""

    def __init__(self, pass_input: PassInput, *, dry_run: bool = False) -> None:
        """CorruptIndex when a .txnindex cannot be read."""
        self.pass_input: Final = pass_input
        self._dry_run = dry_run
        dirty = pass_input.dirty
        self._segments = pass_input.groups(dirty.first_uncleanable)
        bases = [group[0].base_offset for group in self._segments] + [dirty.first_uncleanable]
        self.groups: Final = [OffsetRange(start, end) for start, end in itertools.pairwise(bases)]
        self.secret: Final = new_secret()
        self._aborted = pass_input.aborted(self._segments)
        self._aborted_first = np.array([one.first_offset for one in self._aborted], np.int64)
        self._aborted_last = np.array([one.last_offset for one in self._aborted], np.int64)

    def records(self) -> int:
        """An estimate of the number of records in the groups, from some of them. SegmentGone."""
        segments = [segment for group in self._segments for segment in group if segment.size]
        looked_at, found = 0, 0
        for segment in segments[:: max(len(segments) // _LOOKS, 1)]:
            for window in windows(self.pass_input.snapshot, segment, 0):
                table = window.table
                # The header of a compressed set of an old format does not have the number of its records.
                most = np.diff(table.last_offset, prepend=table.last_offset[0] - 1)
                found += int(np.where(table.count < 0, most, table.count).sum())
                looked_at += int(table.size.sum())
                break
        total = sum(segment.size for segment in segments)
        offsets = sum(group.end - group.start for group in self.groups)
        return min(-(-found * total // max(looked_at, 1)), offsets)

    def stretch(self, start_offset: int, end_offset: int) -> Stretch:
        """A part of a group to be searched for keys; together, stretches must cover all groups."""
        snapshot = self.pass_input.snapshot
        first, behind = snapshot.segment_index(start_offset), snapshot.segment_index(end_offset - 1) + 1
        part = Part.of(snapshot, snapshot.segments[first:behind], snapshot.segments[behind].base_offset)
        aborted = self._aborted_in(start_offset, end_offset)
        return Stretch(part, start_offset, end_offset, self.pass_input.dirty.first_dirty, aborted)

    def copies(self, passed: Iterable[tuple[int, Passed]]) -> list[GroupCopy]:
        """The copies to be made, one for each group. `passed`: the result of each stretch, with its start."""
        told = sorted(passed, key=lambda pair: pair[0])
        pass_input = self.pass_input
        before, row = Passed(), 0
        copies = []
        for group, segments in zip(self.groups, self._segments, strict=True):
            while row < len(told) and told[row][0] < group.start:
                before = before.then(told[row][1])
                row += 1
            aborted = self._aborted_in(group.start, group.end)
            # Of those observed before, only those that reach into this group can reach further.
            before = Passed(before.observed & frozenset(aborted), before.committed)
            copies.append(
                GroupCopy(
                    Part.of(pass_input.snapshot, segments, group.end),
                    pass_input.rules,
                    pass_input.legacy_horizon_ms,
                    pass_input.config.index_interval_bytes,
                    pass_input.dirty.first_dirty,
                    aborted,
                    before,
                    not self._dry_run,
                )
            )
        return copies

    def run(self, log: PartitionLog, disk: Disk, run_parts: RunParts) -> CompactionResult:
        """Runs the pass: `run_parts` has steps 1 and 2 done; steps 3 and 4 are done here.

        A failure before step 4 leaves the log unchanged. Errors of `run_parts`, SegmentGone, OSError.
        """
        began = time.monotonic()
        adopted = False
        try:
            copied = self._done(run_parts)
            self._check(log.path, copied)
            swap.adopt(disk, log.path, [(one.base_offset, one.ending) for one in copied])
            adopted = True
            replacements = [Replacement(s[0].base_offset, s) for s in self._segments]
            files = log.replace_segments(replacements) if replacements else []
        except BaseException as error:
            # A failure while files are renamed may leave a part done: the next opening finishes or undoes it.
            if not adopted or isinstance(error, SegmentGone):
                with suppress(OSError):
                    swap.remove_unfinished(disk, log.path)
            raise
        return self._result(copied, time.monotonic() - began, files)

    def rehearse(self, run_parts: RunParts) -> CompactionResult:
        """What `run` would do; only for a pass with `dry_run`. Errors of `run_parts`."""
        began = time.monotonic()
        return self._result(self._done(run_parts), time.monotonic() - began, [])

    def _done(self, run_parts: RunParts) -> list[Copied]:
        copied = sorted(run_parts(self), key=lambda one: one.base_offset) if self.groups else []
        if [one.base_offset for one in copied] != [group.start for group in self.groups]:
            raise StorageError(
                "not every group of segments was copied once",
                expected=f"{len(self.groups)} groups",
                found=len(copied),
            )
        return copied

    def _check(self, directory: Path, copied: Sequence[Copied]) -> None:
        """Checks that files written by other processes are visible here."""
        for one in copied:
            path = directory / (names.segment_file(one.base_offset, FileKind.LOG) + one.ending)
            found = path.lstat().st_size if exists(path) else None
            if found != one.size:
                raise StorageError(
                    "a copied segment is missing or has another size here",
                    path=path,
                    expected=f"{one.size} bytes",
                    found=found,
                    advice="Workers must see the log directory under the same name",
                )

    def _result(self, copied: Sequence[Copied], seconds: float, files: Sequence[Path]) -> CompactionResult:
        dirty = self.pass_input.dirty
        return CompactionResult(
            self.pass_input.snapshot.tp,
            dirty.first_dirty,
            max(dirty.first_uncleanable, dirty.first_dirty),
            dirty.first_uncleanable,
            sum(map(len, self._segments)),
            len(self._segments),
            sum((one.counts for one in copied), FilterCounts()),
            sum(one.keys for one in copied),
            None,
            dirty.cleanable_bytes,
            0.0,
            seconds,
            dry_run=self._dry_run,
            files=tuple(files),
        )

    def _aborted_in(self, start: int, end: int) -> tuple[AbortedTxn, ...]:
        """The aborted transactions with offsets from `start` (included) to `end` (excluded)."""
        within = (self._aborted_last >= start) & (self._aborted_first < end)
        return tuple(self._aborted[row] for row in np.flatnonzero(within).tolist())


# Has the parts of a pass done by other processes: every group is copied once.
RunParts = Callable[[DividedPass], Iterable[Copied]]
