"""Recovery: makes a sound log of a partition's directory after any stop. The passes of Kafka's LogLoader:

1. remove `.deleted`, `.cleaned`, and replacements that were not finished
2. remove what a finished replacement (`.swap`) covers
3. give finished replacements their names
4. remove index files without a .log; an .index that is missing, or a .txnindex at which a broker stops, means 6 for
   its segment, clean shutdown or not; a missing .timeindex is made empty
5. a segment whose offsets exceed the 31 bits of an index entry (old brokers made some) is split; then again from
   4 on
6. without a clean shutdown: check segments from the one that holds the recovery point on; cut at the first batch that
   is not sound; after a cut remove all later segments, unless 4 had already cut there; rebuild the indexes of those
   that were checked. A sound batch stays whatever its offset, if its segment can hold that.
   The segment that ends at the recovery point is checked too if its time index lacks its final entry, and otherwise
   its time index is synced
7. a log that ends below its checkpointed start restarts there; a directory without segments gets one
8. leader epochs beyond the log end, and below its start, are removed
9. producer state is rebuilt, its snapshots put in order

Every pass leaves a directory from which all passes reach the same result, so a crash at any point is harmless: the
recovery point only moves with the first flush after it. Later segments are removed newest first, durably, before the
cut is made; files below the recovery point, which are never checked again, are replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from storage.append.append_values import LoadedLog
from storage.append.batch_checks import recovered_epochs
from storage.append.index_state import IndexEntries, IndexState
from storage.append.producer_snapshots import ProducerSnapshots, rebuild
from storage.append.producer_table import ProducerTable
from storage.clock import Clock
from storage.config import LogConfig
from storage.errors import CorruptCheckpoint, PartitionOffline
from storage.files import leader_epochs, names, offset_index, time_index, transaction_index
from storage.files.disk import opened, replace_file
from storage.files.disk_protocol import Disk
from storage.files.leader_epochs import LeaderEpochs
from storage.files.listing import scan_quietly
from storage.files.names import FileKind, FileState
from storage.files.opening import exists
from storage.files.small_files import read_start
from storage.files.transaction_index import AbortedTxn
from storage.format.batches import MAX_RELATIVE_OFFSET, BatchTable
from storage.log import tail
from storage.log.intact import Budget, Undecided, intact_batch
from storage.log.segment import Segment
from storage.log.segment_check import SegmentCheck, check_readable, check_segment, ignore_batches
from storage.log.segments import live_offsets
from storage.log.tiering import remote_offsets
from storage.progress import NoProgress, Progress, working
from storage.recovery.leftovers import LeftoverPlan, plan_leftovers
from storage.recovery.overflow_split import (
    OffsetOverflow,
    OffsetsOutOfRange,
    highest_offset,
    offset_after,
    overflows,
    split_overflowed,
)
from storage.recovery.time_index_check import has_sound_time_index
from storage.types import MAX_OFFSET, TopicPartition

_MIN_OFFSET = -(2**63)
_ENTRY_SIZES = {
    FileKind.OFFSET_INDEX: offset_index.ENTRY_SIZE,
    FileKind.TIME_INDEX: time_index.ENTRY_SIZE,
    FileKind.TRANSACTION_INDEX: transaction_index.ENTRY_SIZE,
}
_INDEX_KINDS = tuple(_ENTRY_SIZES)


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut in a segment, where no sound batch follows. `intact`: a text that names an intact batch after the cut."""

    base_offset: int
    position: int
    next_offset: int
    lost_bytes: int
    intact: str | None


@dataclass(slots=True)
class RecoveryReport:
    """The report of recovering a partition; `changes` are texts for people, in order. `leftovers`: what recovery did
    with the files of interrupted work. `misordered_segments`: those with an index entry at an offset that does not
    ascend, where a broker fails. `fallen_segments`: those with batches at such offsets. `last_batch_ends`: the end of
    the last batch of each recovered segment, by base offset: a broker takes it for the end of the log.
    `unreadable_segments`: the position of the first batch that readers refuse (SegmentCheck), by base offset. `epochs`:
    those that recovery leaves."""

    tp: TopicPartition
    changes: list[str] = field(default_factory=list)
    leftovers: LeftoverPlan = field(default_factory=LeftoverPlan)
    cuts: list[Cut] = field(default_factory=list)
    removed_segments: list[int] = field(default_factory=list)
    recovered_segments: list[int] = field(default_factory=list)
    misordered_segments: list[int] = field(default_factory=list)
    fallen_segments: list[int] = field(default_factory=list)
    last_batch_ends: dict[int, int] = field(default_factory=dict)
    unreadable_segments: dict[int, int] = field(default_factory=dict)
    log_start_offset: int = 0
    log_end_offset: int = 0
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)

    @property
    def cut(self) -> Cut | None:
        """The first cut, if there is one."""
        return self.cuts[0] if self.cuts else None


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The input of recovering a partition.

    `clean`: the log directory was shut down cleanly. `recovery_point`: everything below it was synced.
    `log_start_offset`: as checkpointed, None without. `tiered`: see remote_offsets. `gentle`: only cut a torn tail;
    PartitionOffline where messages would be removed.
    """

    tp: TopicPartition
    directory: Path
    config: LogConfig
    clean: bool
    recovery_point: int = 0
    log_start_offset: int | None = None
    tiered: bool | None = False
    producer_expiration_ms: int = 86_400_000
    gentle: bool = False


class Recovery:
    """A run over a partition. Errors: PartitionOffline (OffsetsOutOfRange, others if gentle), OSError."""

    def __init__(self, plan: RecoveryPlan, *, disk: Disk, clock: Clock, progress: Progress | None = None) -> None:
        self._plan = plan
        self._disk = disk
        self._clock = clock
        self._progress = progress or NoProgress()
        self._directory = plan.directory
        self._log_start = plan.log_start_offset or 0
        self.report = RecoveryReport(plan.tp)
        self._epochs = LeaderEpochs()
        self._epochs_before: LeaderEpochs | None = None

    def run(self) -> LoadedLog:
        """All passes; the directory is sound afterwards, though not synced."""
        self.report.leftovers = self._finish_leftovers()
        while True:
            try:
                return self._load()
            except OffsetOverflow as found:
                self._split(found.segment)
                self.report.recovered_segments.clear()

    def _load(self) -> LoadedLog:
        """Passes 4 to 9. OffsetOverflow when a segment has to be split first."""
        plan = self._plan
        self._remove_orphans()
        self._load_epochs()
        segments, unsound = self._open_segments()
        ends = self._check_segments(segments, unsound)
        next_offset = self._next_offset(segments, ends)
        if segments and next_offset < self._log_start:
            self._note(f"restarts the log at its start {self._log_start}: it ends at {next_offset}, below its start")
            for segment in reversed(segments):
                self._remove_segment(segment)
            segments, next_offset = [], self._log_start
            self._epochs = LeaderEpochs()
        if not segments:
            next_offset = max(next_offset, self._log_start)
            segments = [self._create_segment(next_offset)]
        log_start = max(self._log_start, segments[0].base_offset)
        remote = remote_offsets(segments[0].base_offset, plan.log_start_offset, self._epochs, lambda: plan.tiered)
        self._store_epochs(next_offset)
        self.report.epochs = self._epochs
        producers = self._rebuild_producers(segments, log_start, next_offset)
        self.report.log_start_offset = log_start if remote is None else remote.start
        self.report.log_end_offset = next_offset
        return LoadedLog(
            segments=segments,
            next_offset=next_offset,
            log_start_offset=log_start,
            recovery_point=next_offset if plan.clean else min(plan.recovery_point, next_offset),
            producers=producers,
            epochs=self._epochs,
            producer_expiration_ms=plan.producer_expiration_ms,
            remote_offsets=remote,
        )

    # Passes 1 to 3

    def _finish_leftovers(self, kept: str | None = None) -> LeftoverPlan:
        """Returns what it did. `kept`: a file that stays although a replacement covers it."""
        with scan_quietly(self._directory) as entries:
            files = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False) and entry.name != kept]
        leftovers = plan_leftovers(files, self._next_offset_of)
        if self._plan.gentle:
            self._check_replacements(leftovers)
        for name in leftovers.remove:
            self._note(f"removes {name}")
            self._disk.unlink(self._directory / name)
        for source, target in leftovers.rename:
            self._note(f"renames {source} to {target}")
            self._disk.rename(self._directory / source, self._directory / target)
        if leftovers.remove or leftovers.rename:
            self._disk.sync_dir(self._directory)
        return leftovers

    def _check_replacements(self, leftovers: LeftoverPlan) -> None:
        """PartitionOffline if a finished replacement has a visibly wrong offset or magic. No CRC covers these: its
        offsets decide which files it replaces, and readers stop at an unknown magic."""
        ends = []
        for name, _ in leftovers.rename:
            parsed = names.parse_segment_file(name)
            if parsed is None or parsed.kind is not FileKind.LOG:
                continue
            segment = Segment.at(self._directory, parsed.offset, parsed.state)
            check = check_readable(segment.log, parsed.offset, segment.size)
            if check.invalid_bytes:
                raise self._damaged_replacement(segment, check.end, check.next_offset, f"{check.invalid_bytes} bytes")
            ends.append((check.next_offset, check.end, segment))
        live = self._offsets_of(FileKind.LOG)
        if ends and live and names.segment_file(live[-1], FileKind.LOG) in leftovers.remove:
            # The last segment is never compacted. One that was split ends where its last part does, and an empty one is
            # replaced by what a staged write appends.
            covered, position, segment = max(ends, key=lambda end: end[0])
            last = Segment.at(self._directory, live[-1])
            if last.size and covered != offset_after(last):
                raise self._damaged_replacement(segment, position, covered, f"it covers the last segment {live[-1]}")

    def _damaged_replacement(self, segment: Segment, position: int, offset: int, found: str) -> PartitionOffline:
        return PartitionOffline(
            "damage in an unfinished replacement",
            path=segment.log.path,
            position=position,
            offset=offset,
            found=found,
            advice="`kafkafs recover` finishes it as a broker would; `kafkafs salvage` first copies what is intact",
        )

    def _next_offset_of(self, name: str) -> int:
        parsed = names.parse_segment_file(name)
        assert parsed is not None
        if not exists(self._directory / name):
            return parsed.offset
        segment = Segment.at(self._directory, parsed.offset, parsed.state)
        live = parsed.state is FileState.LIVE
        return offset_after(segment) if live else tail.measure(segment, segment.size).next_offset

    # Pass 4

    def _remove_orphans(self) -> None:
        logs = self._offsets_of(FileKind.LOG)
        for kind in _INDEX_KINDS:
            for offset in sorted(set(self._offsets_of(kind)).difference(logs)):
                self._note(f"removes {names.segment_file(offset, kind)}, which has no .log")
                self._disk.unlink(self._path(offset, kind))

    def _open_segments(self) -> tuple[list[Segment], set[int]]:
        """The segments, and the base offsets of those whose indexes must be rebuilt in any case."""
        segments: list[Segment] = []
        unsound: set[int] = set()
        bases = self._offsets_of(FileKind.LOG)
        for base_offset in bases:
            segment = Segment.at(self._directory, base_offset)
            if segments and base_offset - segments[-1].base_offset > MAX_RELATIVE_OFFSET + 1:
                self._check_span(segments[-1], base_offset)
            segments.append(segment)
            aborts = self._path(base_offset, FileKind.TRANSACTION_INDEX)
            wrong = transaction_index.stops_at(aborts) is not None
            # Unlike a broker, which appends to the last one's index whatever is in it.
            wrong |= base_offset == bases[-1] and transaction_index.load(aborts, base_offset).problem is not None
            if wrong or not exists(self._path(base_offset, FileKind.OFFSET_INDEX)):
                unsound.add(base_offset)
            times = self._path(base_offset, FileKind.TIME_INDEX)
            if not exists(times):
                self._note(f"makes {times.name}, which is missing")
            with opened(self._disk, times, create=True) as file:
                size = file.size()
                if size % time_index.ENTRY_SIZE:
                    self._note(f"trims {times.name} to whole entries")
                    file.truncate(size - size % time_index.ENTRY_SIZE)
        return segments, unsound

    # Pass 5

    def _check_span(self, segment: Segment, end_offset: int = MAX_OFFSET) -> None:
        """OffsetOverflow if the segment must be split. `end_offset`: the next segment's base. A segment with offsets
        from there on is not split, because the parts would displace the next segment's messages."""
        if overflows(segment, end_offset):
            raise OffsetOverflow(segment)

    def _split(self, segment: Segment) -> None:
        """Splits a segment that is sound except for its span; a torn tail is cut off before. OffsetsOutOfRange."""
        check = check_segment(segment.log, segment.base_offset, segment.size, ignore_batches)
        if check.invalid_bytes:
            if _intact_behind(segment, check.end) is not None:
                limit = highest_offset(segment.base_offset) + 1
                in_range = check_segment(
                    segment.log, segment.base_offset, segment.size, ignore_batches, end_offset=limit, any_order=True
                )
                raise OffsetsOutOfRange(segment, in_range.end)
            later = [base for base in self._offsets_of(FileKind.LOG) if base > segment.base_offset]
            segments = [Segment.at(self._directory, base) for base in later]
            self._cut(segment, check.end, check.next_offset, segments)
        if not check.end:
            return
        interval_bytes = self._plan.config.index_interval_bytes
        bases = split_overflowed(self._disk, self._directory, segment, interval_bytes=interval_bytes)
        self._note(
            f"splits {segment.log.path.name}, whose offsets pass 32 bits, into segments at {', '.join(map(str, bases))}"
        )
        # The first part begins where the segment did. (After a crash the snapshot is removed, as by a broker.)
        self._finish_leftovers(names.segment_file(segment.base_offset, FileKind.PRODUCER_SNAPSHOT))

    # Pass 6

    def _check_segments(self, segments: list[Segment], unsound: set[int]) -> dict[int, int]:
        """Checks what must be checked; cuts and removes. Returns the next offset of each segment that was checked."""
        plan = self._plan
        ends: dict[int, int] = {}
        first = len(segments)
        untimed = -1
        if not plan.clean:
            holding = [row for row, segment in enumerate(segments) if segment.base_offset <= plan.recovery_point]
            first = holding[-1] if holding else 0
            # The previous segment may have been rolled after the flush that moved the recovery point to its end.
            ends_there = 0 < first < len(segments) and segments[first].base_offset == plan.recovery_point
            if ends_there:
                full = segments[first - 1].base_offset
                if has_sound_time_index(segments[first - 1]):
                    # A killed process may have written the entry and not synced it, and no later flush covers it.
                    with opened(self._disk, self._path(full, FileKind.TIME_INDEX)) as file:
                        file.sync()
                else:
                    untimed = first - 1
        chosen = [
            row
            for row, segment in enumerate(segments)
            if row >= first or row == untimed or segment.base_offset in unsound
        ]
        if not chosen:
            return ends
        with working(self._progress, f"recover {plan.tp}", sum(segments[row].size for row in chosen)):
            snapshots = self._snapshots()
            producers: ProducerTable | None = None
            for row in chosen:
                segment = segments[row]
                if producers is None or producers.end_offset > segment.base_offset or row - 1 not in chosen:
                    # A broker loads the segments, and recovers those without indexes, one after the other.
                    loaded = segments if row >= first else segments[:row]
                    start = self._log_start
                    producers = rebuild(snapshots, loaded, start, segment.base_offset, clean=False)
                producers.end_offset = segment.base_offset
                snapshots.write(producers)
                snapshots.expire(producers)  # a broker loads this snapshot for each segment
                # A broker cuts a segment without an index when it loads it, and then finds it sound.
                later = segments[row + 1 :] if row >= first and segment.base_offset not in unsound else []
                check = self._recover_segment(segment, producers, later, below=row < first)
                ends[segment.base_offset] = max(check.next_offset, segment.base_offset)
                snapshots.write(producers)
                self.report.recovered_segments.append(segment.base_offset)
                if check.invalid_bytes and later:
                    del segments[row + 1 :]
                    break
            self._note_corrupt(snapshots)
        return ends

    def _recover_segment(
        self, segment: Segment, producers: ProducerTable, later: Sequence[Segment], *, below: bool
    ) -> SegmentCheck:
        """Checks one segment, cuts off damaged bytes, and rebuilds its indexes.

        `producers` are updated; they end after the last batch of format v2, as in a broker (LogSegment.recover).
        `below`: it is below the recovery point, checked only because its index is invalid; no later recovery will
        revisit it.
        """
        state = IndexState(self._plan.config.index_interval_bytes, segment.base_offset)
        entries: list[IndexEntries] = []
        aborted: list[AbortedTxn] = []
        known = self._epochs_before.entries if self._epochs_before else ()
        known_from = known[0].start_offset if known else 0

        def visit(data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
            entries.append(state.advance(table, 0, rows))
            changes = producers.changes(data, table, 0, rows, origin)
            if changes is not None:
                aborted.extend(changes.aborted)
            newest = (table.magic[:rows] == 2).nonzero()[0]
            if newest.size:
                producers.commit(changes, int(table.last_offset[newest[-1]]) + 1)
            self._epochs = recovered_epochs(self._epochs, table, 0, rows, known_from)
            self._progress.advance(int(table.end[rows - 1] - table.position[0]))

        limit = highest_offset(segment.base_offset) + 1  # of what its indexes can have
        check = check_segment(
            segment.log,
            segment.base_offset,
            segment.size,
            visit,
            end_offset=limit,
            any_order=not self._plan.gentle,
            repeats=segment.repeats if self._plan.gentle else None,
        )
        if check.overflows or _begins_below(segment, check.end):
            self._check_span(segment, later[0].base_offset if later else MAX_OFFSET)
            raise OffsetsOutOfRange(segment, check.end)
        if check.invalid_bytes:
            self._cut(segment, check.end, check.next_offset, later)
        if check.unreadable is not None:
            self.report.unreadable_segments[segment.base_offset] = check.unreadable
        self.report.last_batch_ends[segment.base_offset] = check.last_offset + 1
        if check.falls:
            self.report.fallen_segments.append(segment.base_offset)
            name = segment.log.path.name
            self._note(f"leaves {check.falls} batches of {name} whose offsets do not ascend, as a broker does")
        if check.copies:
            self._note(f"leaves {check.copies} batches that {segment.log.path.name} has twice, as a broker does")
        final = state.final_time_entry()
        last = np.array([[final.timestamp], [final.offset]] if final else [[], []], np.int64)
        entries.append(IndexEntries(*np.empty((2, 0), np.int64), *last))
        columns = [np.concatenate(column) for column in zip(*entries, strict=True)]
        in_order = columns[0] > np.maximum.accumulate(np.append(_MIN_OFFSET, columns[0][:-1]))
        times_in_order = columns[3] >= np.maximum.accumulate(np.append(_MIN_OFFSET, columns[3][:-1]))
        if not (in_order.all() and times_in_order.all()):
            self.report.misordered_segments.append(segment.base_offset)
        in_order &= columns[0] > segment.base_offset  # not so for a copy of the first batch, which a broker indexes
        offsets = offset_index.encode(columns[0][in_order], columns[1][in_order], segment.base_offset)
        times = time_index.encode(columns[2][times_in_order], columns[3][times_in_order], segment.base_offset)
        # A segment that ends at the recovery point may never be checked again: after the next roll.
        below = below or check.next_offset <= self._plan.recovery_point
        # The time index first: the files that made this segment unsound are written after it.
        indexes = [(FileKind.TIME_INDEX, times), (FileKind.OFFSET_INDEX, offsets)]
        if aborted or exists(self._path(segment.base_offset, FileKind.TRANSACTION_INDEX)):
            indexes.append((FileKind.TRANSACTION_INDEX, transaction_index.encode(aborted)))
        for kind, content in indexes:
            self._rewrite_index(kind, segment.base_offset, content, durably=below)
        return check

    def _cut(self, segment: Segment, position: int, next_offset: int, later: Sequence[Segment]) -> None:
        lost = segment.size - position
        # No CRC covers an offset: an intact batch counts, whatever its offset.
        intact = _intact_behind(segment, position)
        if self._plan.gentle and (later or intact is not None):
            raise PartitionOffline(
                "damage before intact messages",
                path=segment.log.path,
                position=position,
                offset=next_offset,
                found=f"{len(later)} later segments" if later else intact,
                advice="`kafkafs recover` cuts the log there as a broker would; "
                "`kafkafs salvage` first copies what is intact",
            )
        for other in reversed(later):
            self._remove_segment(other)
        if later:
            # Otherwise a power failure could leave the cut, which looks sound, with later segments after it.
            self._disk.sync_dir(self._directory)
        place = f"position {position}, offset {next_offset}"
        behind = "" if intact is None else f", with {intact}; `kafkafs salvage` keeps it"
        self._note(f"cuts {segment.log.path.name} at {place}: {lost} bytes are removed{behind}")
        self.report.cuts.append(Cut(segment.base_offset, position, next_offset, lost, intact))
        with opened(self._disk, segment.log.path) as file:
            file.truncate(position)
            # The recovery point may be here already: once another segment follows, nobody looks for what came back.
            file.sync()
        segment.size = position

    # Passes 7 to 9

    def _next_offset(self, segments: Sequence[Segment], ends: dict[int, int]) -> int:
        if not segments:
            return 0
        last = segments[-1]
        known = ends.get(last.base_offset)
        if known is not None:
            return max(known, last.base_offset)
        check = check_segment(
            last.log,
            last.base_offset,
            last.size,
            ignore_batches,
            start=last.floor(MAX_OFFSET, last.size),
            any_order=not self._plan.gentle,
            repeats=last.repeats if self._plan.gentle else None,
        )
        end, next_offset = check.end, check.next_offset
        if next_offset - 1 > highest_offset(last.base_offset):
            self._check_span(last)
        if check.invalid_bytes and last.batch_at(end, last.size, any_offset=True) is None:
            # A whole batch below the recovery point is damage, for readers to report, and no torn tail.
            end, next_offset, *_ = tail.measure(last, last.size, self._plan.recovery_point)
        if end < last.size:
            # Kafka would trust the clean shutdown. Appending after garbage would hide what comes after it.
            self._cut(last, end, next_offset, ())
        return max(next_offset, last.base_offset)

    def _create_segment(self, base_offset: int) -> Segment:
        for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            with opened(self._disk, self._path(base_offset, kind), create=True):
                pass
        return Segment.at(self._directory, base_offset)

    def _remove_segment(self, segment: Segment) -> None:
        self._note(f"removes the segment {segment.base_offset}, {segment.size} bytes")
        self.report.removed_segments.append(segment.base_offset)
        # The .log last: while it exists, all of this is repeated.
        for kind in (*_INDEX_KINDS, FileKind.LOG):
            path = self._path(segment.base_offset, kind)
            if exists(path):
                self._disk.unlink(path)

    def _load_epochs(self) -> None:
        try:
            self._epochs = leader_epochs.read(self._directory / names.LEADER_EPOCH_CHECKPOINT)
        except CorruptCheckpoint as error:
            self._note(f"rebuilds the leader epochs: {error}")
            self._epochs_before = None
            return
        self._epochs_before = self._epochs

    def _store_epochs(self, next_offset: int) -> None:
        epochs = self._epochs.truncate_from_end(next_offset).truncate_from_start(self._log_start)
        self._epochs = epochs
        path = self._directory / names.LEADER_EPOCH_CHECKPOINT
        if epochs != self._epochs_before or not exists(path):
            before = self._epochs_before
            if before is not None and before.truncate_from_end(next_offset) != epochs:
                self._note(f"{'rewrites' if before.entries else 'writes'} {path.name}")
            replace_file(self._disk, path, leader_epochs.encode(epochs.entries))

    def _snapshots(self) -> ProducerSnapshots:
        return ProducerSnapshots(
            self._disk, self._directory, clock=self._clock, expiration_ms=self._plan.producer_expiration_ms
        )

    def _rebuild_producers(self, segments: Sequence[Segment], log_start: int, next_offset: int) -> ProducerTable:
        snapshots = self._snapshots()
        snapshots.remove_strays([segment.base_offset for segment in segments])
        producers = rebuild(snapshots, segments, log_start, next_offset, clean=self._plan.clean)
        self._note_corrupt(snapshots)
        return producers

    def _note_corrupt(self, snapshots: ProducerSnapshots) -> None:
        for offset in snapshots.corrupt:
            self._note(f"removes {names.segment_file(offset, FileKind.PRODUCER_SNAPSHOT)}, which is corrupt")

    def _rewrite_index(self, kind: FileKind, base_offset: int, content: bytes, *, durably: bool) -> None:
        path, entry_size = self._path(base_offset, kind), _ENTRY_SIZES[kind]
        before = None
        try:
            before = read_start(path, len(content) + entry_size)  # all of it, if it is no longer than `content`
        except FileNotFoundError:
            self._note(f"rebuilds {path.name}, which is missing")
        else:
            # Behind the entries there may be preallocated zeros, and the last time is missing until a clean shutdown.
            entries = before[: -(-len(before.rstrip(b"\0")) // entry_size) * entry_size]
            missing_bytes = len(content) - len(entries)
            if not content.startswith(entries) or missing_bytes > (entry_size if kind is FileKind.TIME_INDEX else 0):
                self._note(f"rebuilds {path.name}")
        if durably:
            replace_file(self._disk, path, content)
            return
        if before == content:
            return
        with opened(self._disk, path, create=True) as file:
            file.truncate(0)
            file.write_at(0, content)

    def _offsets_of(self, kind: FileKind) -> list[int]:
        return live_offsets(self._directory, kind)

    def _path(self, offset: int, kind: FileKind) -> Path:
        return self._directory / names.segment_file(offset, kind)

    def _note(self, change: str) -> None:
        self.report.changes.append(change)


def _begins_below(segment: Segment, position: int) -> bool:
    """Whether the batch at a position is intact, and its offsets are below the segment."""
    batch = segment.batch_at(position, segment.size, any_offset=True)
    return batch is not None and int(batch.last_offset[0]) < segment.base_offset


def _intact_behind(segment: Segment, position: int) -> str | None:
    """A text that names an intact batch from `position` on; None if there is none."""
    try:
        intact_position = intact_batch(
            segment, position, segment.size, _MIN_OFFSET, MAX_OFFSET, budget=Budget(segment.size)
        )
    except Undecided:
        return "more bytes that look like batches than can be checked"
    return None if intact_position is None else f"an intact batch at position {intact_position}"
