"""Which batch belongs to a log at each offset, and in which of its copies. `mirror`, `salvage` and `revive` use this.

Within one copy, if two segments hold the same offsets, or one was written before segments that it follows, by its
leaders or its messages' times, in order:

1. equal batches count once; in a compacted log the segment that was compacted later counts
2. the leader that leader-epoch-checkpoint names for an offset wrote the batch; other batches there are an earlier
   leader's
3. batches that another copy has too are confirmed
4. a file whose first two batches do not fit its name belongs to another log
5. a segment whose messages are all older than those it contradicts was left by an earlier log: a truncated one, or a
   deleted topic of the same name
6. one batch against three or more has a wrong offset (no CRC covers offsets): as few batches as possible are left out
7. otherwise nobody knows: neither counts, and the report says so

A file whose first two batches do not fit its name counts by these batches, if a segment continues there.

Of several copies one counts first: as in an unclean leader election the one with the highest last leader epoch, then
the one that can be read furthest without damage, a gap, or a leader that its leader-epoch-checkpoint does not name
there; then the largest. Batches that it has lost come from the others, if the leaders of the same epochs wrote them: a
leader writes each offset once. If copies hold different messages of one epoch, two are right against one. A segment
that has no batch in common with other copies, but different batches at their offsets, is right or wrong as a whole. In
a compacted log, offsets between two segments of the first copy are not filled: compaction may have removed them, or a
segment may be missing. Another copy's messages there are reported.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import numpy as np

from storage.errors import CorruptBatch
from storage.files import names
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.format.batches import BATCH_HEADER_SIZE, BatchTable, header_of
from storage.log.intact import Budget, Undecided, intact_batch
from storage.log.intact_batches import UNDECIDED, BatchRun, Flags, Int64s, IntactBatches, UncopiedBytes
from storage.log.reader import find_batch, last_batch
from storage.log.same_batches import same_batches
from storage.log.scanning import last_offset_before
from storage.log.segment import Segment
from storage.log.segment_gaps import segment_gaps
from storage.log.snapshot import LogSnapshot
from storage.progress import NoProgress, Progress
from storage.types import MAX_OFFSET, OffsetRange

_CONTESTED: Final = f"{UNDECIDED}another copy holds other messages there"
_NO_BATCH: Final = "no batch here holds the offsets before this one"
_COMPACTED: Final = "compaction removed it from the copy that counts, or a segment is missing there"
_MANY: Final = 3
_REASONS: Final = 3
_NS_PER_MS: Final = 1_000_000

_Identity = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LogCopy:
    """A copy of a log. `reached`: the offset that it once ended at or beyond, according to its checkpoints."""

    snapshot: LogSnapshot
    reached: int = 0

    @property
    def directory(self) -> Path:
        """The partition's directory."""
        segments = self.snapshot.segments
        return segments[-1].directory if segments else Path(self.snapshot.tp.dir_name)

    def begins_before(self, base_offset: int) -> int | None:
        """Where the log begins, if segments before its first one are missing: a broker moves the first leader epoch
        there."""
        entries = self.snapshot.epochs.entries
        is_missing = bool(entries) and entries[0].start_offset < base_offset and self.snapshot.remote_offsets is None
        return entries[0].start_offset if is_missing else None

    def created_ns(self) -> int | None:
        """When this life of the topic began here, by the time of partition.metadata; None without that file."""
        try:
            return (self.directory / names.PARTITION_METADATA).lstat().st_mtime_ns
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Offsets from `first_offset` to `last_offset` (None: the number is not known) are lost because of `damages`.

    Both are None where the damage cost no offset, because there was no message.
    """

    first_offset: int | None
    last_offset: int | None
    damages: tuple[UncopiedBytes, ...]

    @property
    def may_be_compacted(self) -> bool:
        """Whether compaction, too, would leave no batch there."""
        return any(damage.reason == _NO_BATCH for damage in self.damages)

    @property
    def reason(self) -> str:
        """The first reasons, each once."""
        reasons = list(dict.fromkeys(damage.reason for damage in self.damages))
        return "; ".join(reasons[:_REASONS]) + (f"; and {len(reasons) - _REASONS} more" if reasons[_REASONS:] else "")


@dataclass(frozen=True, slots=True)
class FilledOffsets:
    """Offsets that come from another replica, in `directory`."""

    directory: Path
    offsets: OffsetRange


@dataclass(frozen=True, slots=True)
class Beyond:
    """Messages at these offsets in the copy at `path` that do not count, or differ from those that count."""

    path: Path
    offsets: OffsetRange
    reason: str = ""


@dataclass(slots=True)
class BatchChoice:
    """The batches of a log: those of `segments` that are kept. `first`: which of the copies counts first; its segments
    are the first `own` ones. `filled`: the offsets that other copies gave; `lost`: those that none has; `beyond`:
    intact batches that do not count."""

    first: int
    segments: list[IntactBatches]
    own: int
    log_start_offset: int
    lost: list[LostOffsets] = field(default_factory=list)
    filled: list[FilledOffsets] = field(default_factory=list)
    beyond: list[Beyond] = field(default_factory=list)

    def runs(self) -> list[tuple[IntactBatches, BatchRun]]:
        """The batches in the order of their offsets, in runs."""
        split = len(self.segments) > self.own  # others lie in gaps of the first copy
        runs = ((part, run) for part in self.segments for run in part.kept_runs(split=split))
        return sorted(runs, key=lambda item: int(item[0].base[item[1].first]))

    @property
    def base_offset(self) -> int:
        """The base offset of the first segment, or of an earlier batch."""
        bases = [part.segment.base_offset for part in self.segments[: self.own]]
        bases += [part.first_offset for part in self.segments if part.kept.any()]
        return min(bases, default=self.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        """The offset after the last batch; without batches, where the log begins."""
        ends = [part.last_offset + 1 for part in self.segments if part.kept.any()]
        return max(ends, default=self.base_offset)

    @property
    def damage(self) -> UncopiedBytes | None:
        """The first damage, or undecidable bytes, of the first copy; None if there is neither."""
        return next((damage for part in self.segments[: self.own] for damage in part.damages()), None)

    @property
    def is_first_alone(self) -> bool:
        """Whether the choice is exactly the first copy."""
        own = self.segments[: self.own]
        is_whole = not self.lost and not self.filled and not any(part.breaks or not part.kept.all() for part in own)
        return is_whole and not any(part.is_misnamed for part in own)


def choose_batches(
    copies: Sequence[LogCopy], *, compacted: bool, end_offset: int = MAX_OFFSET, progress: Progress | None = None
) -> BatchChoice:
    """Chooses batches by the rules in the module's docstring. Of equal copies the first one named counts. `compacted`:
    offsets may be missing without being lost. `end_offset`: nothing counts that is not wholly below this offset; losses
    beyond it are listed, too. OSError, StorageError where a file cannot be read."""
    progress = progress or NoProgress()
    reports = [progress, *[NoProgress()] * (len(copies) - 1)]
    intact = [_intact(item.snapshot, report, compacted=compacted) for item, report in zip(copies, reports, strict=True)]
    for number, copy in enumerate(copies):
        _settle(copy, intact[number], intact[:number] + intact[number + 1 :], compacted=compacted)
    order = sorted(range(len(copies)), key=lambda at: _rank(copies[at], intact[at], compacted=compacted), reverse=True)
    copies, intact = [copies[at] for at in order], [intact[at] for at in order]
    first = intact[0]
    lineage = Lineage.of(copies[0].snapshot.epochs, first)
    if len(copies) > 1:
        _outvote(first, intact[1:], lineage, compacted=compacted)
    start = _log_start(copies[0], first)
    lost = _lost(first, copies[0], compacted=compacted)
    choice = BatchChoice(order[0], list(first), len(first), start, lost)
    if not lost or lost[-1].last_offset is not None or lost[-1].first_offset is None:
        ends = [choice.log_end_offset, *(item.last_offset + 1 for item in lost if item.last_offset is not None)]
        lost.append(LostOffsets(max(ends), None, ()))  # another copy may continue there
    for copy, parts in zip(copies[1:], intact[1:], strict=True):
        _fill(choice, copy, parts, lineage, compacted=compacted)
    choice.lost = [item for item in choice.lost if item.damages]
    for part in choice.segments:
        part.kept &= part.last < end_offset
    chosen = _Chosen(choice.segments)
    gaps = _between_segments(first) if compacted else []
    for copy, parts in zip(copies, intact, strict=True):
        choice.beyond += _beyond(copy, parts, chosen, lineage, gaps, compacted=compacted)
    return choice


def _log_start(copy: LogCopy, parts: Sequence[IntactBatches]) -> int:
    """Where the log of a copy begins. If nothing but the name of its first segment says that, and the name is wrong, it
    begins with that segment's batches."""
    begins = copy.begins_before(parts[0].segment.base_offset) if parts else None
    if begins is not None:
        return begins
    start, segments = copy.snapshot.log_start_offset, copy.snapshot.segments
    return min(start, parts[0].segment.base_offset) if parts and start == segments[0].base_offset else start


def _intact(snapshot: LogSnapshot, progress: Progress, *, compacted: bool) -> list[IntactBatches]:
    """The batches of each segment, in order."""
    bases = [segment.base_offset for segment in snapshot.segments]

    def placed(*, gaps: bool) -> list[tuple[Segment, int]]:
        ends = zip(snapshot.segments, [*bases[1:], MAX_OFFSET], strict=False)
        return [_by_its_batches(named, end, gaps=gaps) for named, end in ends]

    segments = placed(gaps=compacted)
    if compacted and [segment.base_offset for segment, _ in segments] != bases:
        segments = placed(gaps=False)  # names are wrong here
    parts = [IntactBatches(segment, end, progress) for segment, end in segments]
    return sorted(parts, key=lambda part: (part.segment.base_offset, *part.base[:1].tolist()))


def _by_its_batches(named: Segment, end_offset: int, *, gaps: bool) -> tuple[Segment, int]:
    """A segment, and where the next one begins. If its first two batches lie outside of that range, its name is wrong,
    and it begins with them: one offset alone may be damaged. `gaps`: its first batches may be missing, because it was
    compacted together with the next ones."""
    size = named.log.stat().st_size
    segment = Segment(named.directory, named.base_offset, named.log, size)
    first = None if named.is_remote else segment.batch_at(0, size, any_offset=True)
    second = None if first is None else segment.batch_at(int(first.end[0]), size, any_offset=True)
    if first is None or second is None:
        return segment, end_offset
    bases = int(first.base_offset[0]), int(second.base_offset[0])
    last = MAX_OFFSET if gaps else end_offset
    is_misnamed = 0 <= bases[0] < bases[1] and not any(named.base_offset <= base < last for base in bases)
    return (Segment(named.directory, bases[0], named.log, size), MAX_OFFSET) if is_misnamed else (segment, end_offset)


def is_one_log(copy: LogCopy, *, compacted: bool) -> bool:
    """Whether a look at the ends of its segments, and at its checkpoints, shows one whole log, so that nothing has to
    be decided. Damage within segments is not looked for. SegmentGone, OSError."""
    segments, created_ns = copy.snapshot.segments, copy.created_ns()
    lacks_head = bool(segments) and copy.begins_before(segments[0].base_offset) is not None
    if lacks_head or copy.reached > copy.snapshot.log_end_offset:
        return False
    if copy.snapshot.remote_offsets is not None:
        return True
    last_one = None if compacted else last_batch(copy.snapshot)
    if last_one is not None and last_one.base_offset[0] >= 0:
        before = last_offset_before(copy.snapshot, segments[-1], int(last_one.position[0]))
        if before is None or (last_one.position[0] and before + 1 != int(last_one.base_offset[0])):
            return False
    written = [] if created_ns is None else [sealed.log.stat().st_mtime_ns >= created_ns for sealed in segments]
    if written != sorted(written):
        return False
    for segment, following in pairwise(segments):
        last = last_offset_before(copy.snapshot, segment, segment.size)
        if last is None or (last + 1 < following.base_offset and not compacted):
            return False
    return all(_begins_well(segment, copy.snapshot.epochs, compacted=compacted) for segment in segments)


def _begins_well(segment: Segment, epochs: LeaderEpochs, *, compacted: bool) -> bool:
    """Whether the first batch of a segment, by its header, has the offset of the segment's name, and is of the leader
    that leader-epoch-checkpoint names there."""
    head = segment.log.read(0, BATCH_HEADER_SIZE)
    size = segment.batch_size(head, any_offset=True)
    first = None if size is None else header_of(head, 0, size)
    if first is None or not first.rows:
        return True
    base, epoch = int(first.base_offset[0]), int(first.leader_epoch[0])
    if 0 <= base != segment.base_offset and not compacted:
        return False
    return epoch < 0 or epochs.epoch_at(base) in (None, epoch)


def check_one_log(snapshot: LogSnapshot, *, compacted: bool) -> None:
    """Raise CorruptBatch if a log holds segments of another log, or segments that may belong to another log.

    SegmentGone, OSError."""
    copy = LogCopy(snapshot)
    for part in () if is_one_log(copy, compacted=compacted) else choose_batches([copy], compacted=compacted).segments:
        reason = part.reason_of_another_log
        if reason is not None:
            raise CorruptBatch(
                f"{snapshot.tp} holds messages of another log",
                path=part.segment.log.path,
                found=reason,
                advice="`kafkafs salvage` copies what belongs to it",
            )


def check_tail(snapshot: LogSnapshot) -> None:
    """Raise CorruptBatch if intact batches follow the damage at which a log ends. OSError."""
    last, end, size = snapshot.active, snapshot.active_end, snapshot.active_size
    if last is None or end >= size or last.batch_at(end, size, any_offset=True):
        return
    with suppress(Undecided):
        behind = intact_batch(last, end + 1, size, last.base_offset, budget=Budget(size))
        if behind is not None:
            raise CorruptBatch(
                f"{snapshot.tp} is damaged before intact messages",
                path=last.log.path,
                position=end,
                offset=snapshot.log_end_offset,
                found=f"an intact batch at position {behind}",
                advice="`kafkafs salvage` copies what is intact",
            )


def contradict(first: LogSnapshot, other: LogSnapshot) -> bool:
    """Whether two copies hold different messages of one leader at the beginning or end of a segment. SegmentGone,
    OSError."""
    edges = _at_edges(first, other)
    return any(a.leader_epoch[0] == b.leader_epoch[0] and not _is_same(a, b) for a, b in edges)


def has_what_is_missing(first: LogSnapshot, other: LogSnapshot) -> bool:
    """Whether a copy has messages for which another copy has no segment. SegmentGone, OSError."""
    batches = ((gap, _batch_with(other, gap.first_offset)) for gap in segment_gaps(first))
    return any(batch is not None and int(batch.base_offset[0]) < gap.next_offset for gap, batch in batches)


def are_two_logs(first: LogSnapshot, other: LogSnapshot) -> bool:
    """Whether two copies hold the same offsets, but different messages at the beginning and end of each segment: they
    belong to two topics of one name. SegmentGone, OSError."""
    same = [_is_same(ours, theirs) for ours, theirs in _at_edges(first, other)]
    return bool(same) and not any(same)


def _at_edges(first: LogSnapshot, other: LogSnapshot) -> Iterator[tuple[BatchTable, BatchTable]]:
    """The first and the last batch of each segment of two copies, with the other copy's batch at that offset."""
    for snapshot, another in ((first, other), (other, first)):
        for segment in snapshot.segments:
            last = last_offset_before(snapshot, segment, snapshot.end_position(segment))
            for offset in (segment.base_offset, last) if last is not None and last >= segment.base_offset else ():
                ours, theirs = _batch_with(snapshot, offset), _batch_with(another, offset)
                if ours is not None and theirs is not None and int(theirs.base_offset[0]) <= int(ours.last_offset[0]):
                    yield ours, theirs


def _is_same(ours: BatchTable, theirs: BatchTable) -> bool:
    """Whether two batches are the same, or compaction made one from the other."""
    return same_batches(ours, theirs, compacted=True) or same_batches(theirs, ours, compacted=True)


def batch_ending_at(snapshot: LogSnapshot, offset: int) -> BatchTable | None:
    """The header of the batch whose last offset is `offset`; None if there is none, for example after compaction."""
    batch = _batch_with(snapshot, offset)
    return batch if batch is not None and int(batch.last_offset[0]) == offset else None


def _batch_with(snapshot: LogSnapshot, offset: int) -> BatchTable | None:
    """The header of the first batch that ends at or after an offset; None if there is none."""
    place = find_batch(snapshot, offset)
    return None if place is None else place.segment.batch_at(place.position, snapshot.end_position(place.segment))


# Within one copy


def _settle(
    copy: LogCopy, parts: Sequence[IntactBatches], others: Sequence[Sequence[IntactBatches]], *, compacted: bool
) -> None:
    """Leave out batches that do not belong to the log of one copy."""
    created_ns = copy.created_ns() if copy.snapshot.segments else None
    _compare_leaders(parts, copy.snapshot.epochs)
    for row, part in enumerate(parts):
        _leave_out_fewest([part])
        before = [other for other in parts[:row] if other.kept.any()]
        reach = max((other.last_offset for other in before), default=-1)
        for earlier in before if part.kept.any() and reach >= part.first_offset else ():
            is_left = earlier.kept.any() and part.kept.any()
            if is_left and earlier.last_offset >= part.first_offset:
                _decide(earlier, part, copy.snapshot.epochs, others, compacted=compacted)
        _compare_times(before, part, reach, -1 if created_ns is None else created_ns, compacted=compacted)
    _leave_out_fewest(parts)
    for row, part in enumerate(parts):
        if part.is_misnamed and part.kept.any() and not compacted:
            ends = {other.last_offset + 1 for other in parts[:row] if other.kept.any()}
            begins = {other.first_offset for other in parts[row + 1 :] if other.kept.any()}
            if part.first_offset not in ends and part.last_offset + 1 not in begins:
                reason = f"{UNDECIDED}its file has another name, and no segment is next to it"
                part.leave_out(part.kept, reason)
    gaps = [] if compacted else [(part, row) for part in parts for row in part.rows_beyond_gaps()]
    # Several gaps mean that the log was compacted, whatever its configuration.
    for part, row in gaps if len(gaps) == 1 else ():
        if row == int(np.flatnonzero(part.kept)[-1]):
            reason = f"{UNDECIDED}offsets are missing before the last batch, but no bytes: its offset may be wrong"
            part.leave_out(np.arange(len(part.kept)) == row, reason)


def _compare_leaders(parts: Sequence[IntactBatches], epochs: LeaderEpochs) -> None:
    """Leave out a segment if leader-epoch-checkpoint names other leaders for all of its batches, and one of an earlier
    leader follows a later leader's."""
    lineage = Lineage(epochs, is_whole=True)
    latest = np.array([part.table.leader_epoch[part.kept].max(initial=-1) for part in parts], np.int64)
    fits = np.array([(lineage.fits(part) & part.kept).any() for part in parts], np.bool_)
    before = np.maximum.accumulate(np.where(fits, latest, -1))
    behind = np.minimum.accumulate(np.where(fits & (latest >= 0), latest, MAX_OFFSET)[::-1])[::-1]
    is_strange = ~fits & (latest >= 0) & ((latest < before) | (latest > behind))
    for row in np.flatnonzero(is_strange).tolist() if epochs.entries else ():
        parts[row].leave_out(parts[row].kept, "another leader wrote it")


def _compare_times(
    before: Sequence[IntactBatches], part: IntactBatches, reach: int, created_ns: int, *, compacted: bool
) -> None:
    """Leave out a segment whose messages are all older than those of an earlier segment, if it was written before the
    topic was created, or if offsets are missing before it. In the latter case the topic's creation time may decide for
    it."""
    times = part.times
    newer = [
        earlier for earlier in before if times is not None and earlier.times is not None and earlier.times[0] > times[1]
    ]
    if times is None or not newer:
        return
    is_written_before = part.segment.log.stat().st_mtime_ns < created_ns and times[1] * _NS_PER_MS < created_ns
    if is_written_before and all(
        earlier.times is not None and earlier.times[0] * _NS_PER_MS >= created_ns for earlier in newer
    ):
        part.leave_out(part.kept, "written before this topic was created, by one of the same name")
    elif not compacted and part.first_offset > reach + 1:
        what = f"{UNDECIDED}after missing offsets come messages that are older than those before"
        for strange in newer if 0 <= created_ns <= times[0] * _NS_PER_MS else (part,):
            strange.leave_out(strange.kept, f"{what}: an earlier log's, or this one's")


def _decide(
    low: IntactBatches,
    high: IntactBatches,
    epochs: LeaderEpochs,
    others: Sequence[Sequence[IntactBatches]],
    *,
    compacted: bool,
) -> None:
    """Decides between two segments of one copy that hold the same offsets; `low` begins earlier."""
    first, last = high.first_offset, min(part.last_offset for part in (low, high))
    in_low = low.kept & (low.last >= first) & (low.base <= last)
    in_high = high.kept & (high.base <= last)
    if not in_low.any() and not compacted:
        return  # `high` lies in a gap of `low`
    above, times = low.table.max_timestamp[low.kept & (low.last >= first)], high.times
    if compacted and times is not None and int(above.max()) < times[0]:
        return  # older, with later offsets: these are wrong, and _leave_out_fewest decides
    lows, highs = low.kept_table(in_low), high.kept_table(in_high)
    names_of = low.segment.log.path.name, high.segment.log.path.name
    if same_batches(lows, highs, compacted=False):
        high.leave_out(in_high, f"is in {names_of[0]} too")
        return
    if compacted and same_batches(highs, lows, compacted=True):
        high.leave_out(in_high, f"{names_of[0]} has it as it was compacted later")
        return
    if compacted and same_batches(lows, highs, compacted=True):
        low.leave_out(in_low, f"{names_of[1]} has it as it was compacted later")
        return
    lineage, sides = Lineage(epochs, is_whole=True), ((low, in_low), (high, in_high))
    is_strange = [bool(epochs.entries) and not lineage.fits(part)[rows].any() for part, rows in sides]
    is_alone = [not _confirmed(part.kept_table(rows), others) for part, rows in sides]
    for reason, is_wrong in (("an earlier leader wrote it", is_strange), ("no other copy has it there", is_alone)):
        if is_wrong[0] != is_wrong[1]:
            part, rows = sides[is_wrong.index(True)]
            part.leave_out(rows, reason)
            return
    if low.is_misnamed != high.is_misnamed:
        part, other_name = (low, names_of[1]) if low.is_misnamed else (high, names_of[0])
        part.leave_out(part.kept, f"its name is wrong, and {other_name} has these offsets")
        return
    low_times, high_times = low.times, high.times
    if low_times is not None and high_times is not None:
        if high_times[1] < low_times[0]:
            high.leave_out(high.kept, f"older than what {names_of[0]} has at these offsets")
            return
        stamps = lows.max_timestamp
        if len(stamps) and int(stamps.max()) < high_times[0] and len(stamps) >= _MANY:
            low.leave_out(in_low, f"older than what {names_of[1]} has at these offsets")
            return
    counts = int(in_low.sum()), int(in_high.sum())
    if min(counts) == 1 and max(counts) >= _MANY:
        return  # _leave_out_fewest decides
    reason = f"{UNDECIDED}{names_of[0]} and {names_of[1]} hold other messages at these offsets"
    low.leave_out(in_low, reason)
    high.leave_out(in_high, reason)


def _identities(table: BatchTable) -> set[_Identity]:
    return set(zip(table.base_offset.tolist(), table.last_offset.tolist(), table.crc.tolist(), strict=True))


def _confirmed(table: BatchTable, others: Sequence[Sequence[IntactBatches]]) -> bool:
    """Whether another copy has one of these batches."""
    known = _identities(table)
    return any(not known.isdisjoint(_identities(part.table)) for parts in others for part in parts)


def _leave_out_fewest(parts: Sequence[IntactBatches]) -> None:
    """Keep the longest run of batches in file order whose offsets ascend, so that as few as possible are left out.
    Batches that are isolated in their offsets are left out first.

    `ends[n]`: the least last offset that a run of n + 1 batches can have.
    """
    base = np.concatenate([part.base[part.kept] for part in parts]) if parts else np.empty(0, np.int64)
    last = np.concatenate([part.last[part.kept] for part in parts]) if parts else base
    if (base[1:] > last[:-1]).all():
        return
    # Of two batches that overlap, one that adjoins neither neighbour in its offsets yields to one that does.
    follows = np.concatenate(([False], base[1:] == last[:-1] + 1, [False]))
    joined = follows[:-1] | follows[1:]
    overlaps = (base[1:] <= last[:-1]) & (base[:-1] <= last[1:])
    yields = ~joined & (np.append(overlaps & joined[1:], False) | np.append(False, overlaps & joined[:-1]))
    ends: list[int] = []
    end_rows: list[int] = []
    before = np.full(len(base), -1, np.int64)
    for row, (first_offset, last_offset) in enumerate(zip(base.tolist(), last.tolist(), strict=True)):
        if yields[row]:
            continue
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
    for part in parts:
        rows = np.flatnonzero(part.kept)
        part.kept[rows] = kept[at : at + len(rows)]
        at += len(rows)


# Among copies


def _rank(copy: LogCopy, parts: Sequence[IntactBatches], *, compacted: bool) -> tuple[int, int, int]:
    epochs = copy.snapshot.epochs
    last_epoch = max((int(part.table.leader_epoch[part.kept].max()) for part in parts if part.kept.any()), default=-1)
    if epochs.latest_epoch is not None:
        last_epoch = min(last_epoch, epochs.latest_epoch)
    end = _readable_end(copy, parts, compacted=compacted)
    lineage = Lineage(epochs, is_whole=True)
    for part in parts if epochs.entries else ():
        contradicted = part.kept & ~lineage.fits(part) & (part.table.leader_epoch >= 0)
        end = int(part.base[contradicted].min(initial=end))
    size_bytes = sum(int(part.size[part.kept].sum()) for part in parts)
    return last_epoch, end, size_bytes


def _readable_end(copy: LogCopy, parts: Sequence[IntactBatches], *, compacted: bool) -> int:
    """The offset after the last batch before the first damage or gap of a copy."""
    lost = _lost(parts, copy, compacted=compacted)
    ends = [part.last_offset + 1 for part in parts if part.kept.any()]
    known = [loss.first_offset for loss in lost if loss.first_offset is not None]
    return min([max([copy.snapshot.log_end_offset, *ends]), *known])


class Lineage:
    """The leader epoch of each offset of a log. `is_whole`: from a checkpoint that agrees with the batches; otherwise
    from the batches, so that epochs between theirs may be missing."""

    def __init__(self, epochs: LeaderEpochs, *, is_whole: bool) -> None:
        self._starts = np.array([entry.start_offset for entry in epochs.entries], np.int64)
        self._numbers = np.array([-1, *(entry.epoch for entry in epochs.entries)], np.int64)
        self._is_whole = is_whole

    @classmethod
    def of(cls, epochs: LeaderEpochs, parts: Sequence[IntactBatches]) -> Lineage:
        """From a copy's checkpoint, if most of its batches agree with it; otherwise from its batches."""
        lineage = cls(epochs, is_whole=True)
        rows = sum(int(part.kept.sum()) for part in parts)
        fit = sum(int((lineage.fits(part) & part.kept).sum()) for part in parts)
        if epochs.entries and fit * 10 >= rows * 9:
            return lineage
        known = LeaderEpochs()
        for part in parts:
            for row in np.flatnonzero(part.kept & (part.table.leader_epoch >= 0)).tolist():
                known = known.assign(EpochEntry(int(part.table.leader_epoch[row]), int(part.base[row])))
        return cls(known, is_whole=False)

    def fits(self, part: IntactBatches) -> Flags:
        """The batches of a segment that leaders of this log wrote."""
        epoch = part.table.leader_epoch
        slots = self._starts.searchsorted(part.base, "right")
        ends = self._starts.searchsorted(part.last, "right")
        if self._is_whole:
            fits: Flags = (self._numbers[slots] == epoch) & (slots == ends)
        else:
            following = np.append(self._numbers[1:], self._numbers[-1])
            fits = (self._numbers[slots] <= epoch) & (epoch <= following[ends])
        if len(self._starts):  # offsets before the first known epoch
            fits |= (ends == 0) & (epoch <= self._numbers[1])
        return fits


class _Chosen:
    """The kept batches of segments, or `rows` of each, by their offsets."""

    def __init__(self, parts: Sequence[IntactBatches], rows: Sequence[Flags] | None = None) -> None:
        rows = [part.kept for part in parts] if rows is None else rows
        kept = BatchTable.concat(part.kept_table(own) for part, own in zip(parts, rows, strict=True))
        order = np.argsort(kept.base_offset, kind="stable")
        self.table = BatchTable(np.ascontiguousarray(kept.data[:, order]), kept.rows)
        self.base, self.last, self.crc = self.table.base_offset, self.table.last_offset, self.table.crc

    def has(self, table: BatchTable) -> Flags:
        """Which of these batches are also kept batches."""
        rows = self._rows(table.base_offset)
        if not len(self.base):
            return np.zeros(table.rows, np.bool_)
        same: Flags = (self.base[rows] == table.base_offset) & (self.last[rows] == table.last_offset)
        same &= self.crc[rows] == table.crc
        return same

    def overlaps(self, table: BatchTable) -> Flags:
        """Which of these batches share an offset with a kept batch."""
        if not len(self.base):
            return np.zeros(table.rows, np.bool_)
        rows = np.minimum(self.last.searchsorted(table.base_offset), len(self.last) - 1)
        overlaps: Flags = (self.last[rows] >= table.base_offset) & (self.base[rows] <= table.last_offset)
        return overlaps

    def _rows(self, base: Int64s) -> Int64s:
        return np.minimum(self.base.searchsorted(base), max(len(self.base) - 1, 0))


def _outvote(
    first: Sequence[IntactBatches], others: Sequence[Sequence[IntactBatches]], lineage: Lineage, *, compacted: bool
) -> None:
    """Leave out of the first copy what other copies contradict: two against one, or one against one, which is
    undecided.

    A segment that no copy confirms and a copy contradicts belongs to another log as a whole. In a compacted log batches
    of one leader may differ."""
    if compacted:
        return
    fitting = []
    for parts in others:
        for part in parts:
            part.leave_out(part.kept & ~lineage.fits(part), "another leader wrote it")
        fitting.append(_Chosen(parts))
    standing = []
    for part in first:
        against, with_it = (np.zeros(len(part.kept), np.int64) for _ in range(2))
        for other in fitting:
            same = other.has(part.table)
            with_it += same
            against += part.kept & other.overlaps(part.table) & ~same
        if against.any() and not with_it.any():
            against[part.kept] = against.max()
        part.leave_out(against > with_it + 1, "two other copies hold other messages there")
        standing.append(part.kept)
        part.leave_out(part.kept & (against == with_it + 1), _CONTESTED)
    counting = _Chosen(first, standing)
    contested = _Chosen(first, [rows & ~part.kept for part, rows in zip(first, standing, strict=True)])
    for part in chain.from_iterable(others):
        same, is_contested = counting.has(part.table), contested.overlaps(part.table)
        is_strange = (part.kept & counting.overlaps(part.table) & ~same).any() and not same.any()
        reason = _CONTESTED if is_contested.any() else "its segment is of another log: other messages count there"
        part.leave_out(part.kept if is_strange else is_contested, reason)


def _lost(parts: Sequence[IntactBatches], copy: LogCopy, *, compacted: bool) -> list[LostOffsets]:
    """The gaps between the kept batches that have damage, or that compaction cannot explain; and offsets that are
    missing before and after the batches according to the checkpoints."""
    lost: list[LostOffsets] = []
    waiting: list[UncopiedBytes] = []  # damage since the last kept batch
    expected = parts[0].segment.base_offset if parts else 0
    begins = copy.begins_before(expected)
    if parts and begins is not None:
        missing = UncopiedBytes(parts[0].segment.log.path, 0, 0, "the segments before this one are missing")
        lost.append(LostOffsets(begins, expected - 1, (missing,)))
    for part in parts:
        damages = deque(part.damages())
        rows = np.flatnonzero(part.kept)
        previous = np.concatenate(([expected - 1], part.last[rows]))  # the last offset before each of the rows
        for at in _rows_after_a_gap(part, rows, previous, damages, first=bool(waiting)):
            row = rows[at]
            position, begin, expected = int(part.position[row]), int(part.base[row]), int(previous[at]) + 1
            while damages and damages[0].position < position + part.size[row]:
                waiting.append(damages.popleft())
            if begin > expected and not (waiting or compacted):
                waiting.append(UncopiedBytes(part.segment.log.path, position, position, _NO_BATCH))
            if waiting:
                begin_offset, end_offset = (expected, begin - 1) if begin > expected else (None, None)
                lost.append(LostOffsets(begin_offset, end_offset, tuple(waiting)))
                waiting.clear()
        expected = max(expected, int(previous[-1]) + 1)
        waiting += damages
    if waiting:
        lost.append(LostOffsets(expected, None, tuple(waiting)))
    elif copy.reached > expected:
        reason = f"the log had reached offset {copy.reached}"
        missing = UncopiedBytes(copy.directory.parent / names.REPLICATION_CHECKPOINT, 0, 0, reason)
        lost.append(LostOffsets(expected, copy.reached - 1, (missing,)))
    return lost


def _rows_after_a_gap(
    part: IntactBatches, rows: Int64s, previous: Int64s, damages: Collection[UncopiedBytes], *, first: bool
) -> list[int]:
    """The kept `rows` that come after missing offsets or damage, as indexes into `rows`. `first`: index 0 does."""
    after_damage = part.position[rows].searchsorted([damage.position for damage in damages])
    gaps = np.concatenate((np.flatnonzero(part.base[rows] > previous[:-1] + 1), after_damage, [0] * first))
    return [int(at) for at in np.unique(gaps) if at < len(rows)]


def _fill(
    choice: BatchChoice, copy: LogCopy, parts: Sequence[IntactBatches], lineage: Lineage, *, compacted: bool
) -> None:
    """Adds the lost offsets that another copy has; `lost` is then the rest."""
    left: list[LostOffsets] = []
    fits = [part.kept & lineage.fits(part) for part in parts]
    for part in parts:
        part.kept = np.zeros(len(part.kept), np.bool_)
    for lost in choice.lost:
        if lost.first_offset is None:
            left.append(lost)
            continue
        gap = OffsetRange(lost.first_offset, MAX_OFFSET if lost.last_offset is None else lost.last_offset + 1)
        filled, rest = _fill_gap(gap, copy.snapshot.log_end_offset, parts, fits, compacted=compacted)
        choice.filled += [FilledOffsets(copy.directory, offsets) for offsets in filled]
        for offsets in rest:
            last_offset = None if offsets.end == MAX_OFFSET else offsets.end - 1
            left.append(replace(lost, first_offset=offsets.start, last_offset=last_offset))
    choice.lost = left
    choice.segments += [part for part in parts if part.kept.any()]


def _fill_gap(
    gap: OffsetRange, log_end_offset: int, parts: Sequence[IntactBatches], fits: Sequence[Flags], *, compacted: bool
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Keep another copy's batches in a gap; return the offsets that they fill, and those still missing."""
    filled: list[OffsetRange] = []
    rest: list[OffsetRange] = []
    expected, may_lack = gap.start, False
    ends = [part.segment.base_offset for part in parts[1:]] + [MAX_OFFSET] * bool(parts)
    for part, fit, end in zip(parts, fits, ends, strict=True):
        if part.segment.base_offset >= gap.end or end <= gap.start:
            continue
        # Compaction has removed missing offsets, unless something is damaged.
        may_lack = compacted and not part.breaks and part.segment.base_offset <= expected
        for row in np.flatnonzero(fit & (part.base >= gap.start) & (part.last < gap.end)).tolist():
            first, last = int(part.base[row]), int(part.last[row])
            if first < expected:
                continue
            part.kept[row] = True
            if first > expected and not may_lack:
                rest.append(OffsetRange(expected, first))
            if filled and (filled[-1].end == first or may_lack):
                filled[-1] = OffsetRange(filled[-1].start, last + 1)
            else:
                filled.append(OffsetRange(first, last + 1))
            expected, may_lack = last + 1, compacted and not part.breaks
    if expected < gap.end and not (may_lack and log_end_offset >= gap.end):
        rest.append(OffsetRange(expected, gap.end))
    return filled, rest


def _between_segments(parts: Sequence[IntactBatches]) -> list[OffsetRange]:
    """The offsets after the last batch of each segment, and before the next segment."""
    ends = [part.last_offset + 1 if part.kept.any() else part.segment.base_offset for part in parts[:-1]]
    gaps = (OffsetRange(end, part.segment.base_offset) for end, part in zip(ends, parts[1:], strict=True))
    return [gap for gap in gaps if gap.start < gap.end]


def _beyond(
    copy: LogCopy,
    parts: Sequence[IntactBatches],
    chosen: _Chosen,
    lineage: Lineage,
    gaps: Iterable[OffsetRange],
    *,
    compacted: bool,
) -> Iterator[Beyond]:
    """The intact batches of a copy that do not count, contiguous ones together. `gaps`: where compaction may have
    removed whole segments of the first copy."""
    for part in parts:
        unused, in_gaps = ~chosen.has(part.table), np.zeros(len(part.kept), np.bool_)
        for gap in gaps:
            in_gaps |= (part.base >= gap.start) & (part.last < gap.end)
        if compacted:  # elsewhere the first copy has all that compaction has left
            within = (part.last < chosen.last[-1]) & (part.base >= chosen.base[0]) if len(chosen.base) else unused
            unused &= ~within | in_gaps | chosen.overlaps(part.table) & ~lineage.fits(part)
        fits, reasons = lineage.fits(part), part.reasons("")
        beyond: Beyond | None = None
        for row in np.flatnonzero(unused).tolist():
            offsets = OffsetRange(int(part.base[row]), int(part.last[row]) + 1)
            otherwise = "other messages count at these offsets" if fits[row] else "another leader wrote it"
            reasons[row] = reasons[row] or (_COMPACTED if in_gaps[row] and fits[row] else otherwise)
            if beyond is not None and beyond.reason == reasons[row] and beyond.offsets.end == offsets.start:
                beyond = replace(beyond, offsets=OffsetRange(beyond.offsets.start, offsets.end))
                continue
            if beyond is not None:
                yield beyond
            beyond = Beyond(copy.directory, offsets, reasons[row])
        if beyond is not None:
            yield beyond
