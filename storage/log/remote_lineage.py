"""Which remote segments make up a log: by its lineage, its leader epochs with their first offsets.

Uploads overlap, after a failover and after retries, and a leader that lost an unclean election may have uploaded
messages that are no part of the log. Kafka's identity of a message is its leader epoch and its offset. So an offset of
a segment counts if the segment has it in the epoch that the log has there; segments that count at the same offset have
the same bytes there, in the same batches. Sources: Kafka's RemoteLogMetadataCache, RemoteLogLeaderEpochState,
RemoteLogManager.isRemoteSegmentWithinLeaderEpochs. A broker reads a segment beyond the end of an epoch; this module
does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from storage.errors import StorageError
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.tier.remote_segments import RemoteSegment
from storage.types import MAX_OFFSET


@dataclass(frozen=True, slots=True)
class Candidate:
    """A remote segment with offsets from `base_offset` to `end_offset` (excluded) that was uploaded as a whole.

    `epochs`: (leader epoch, first offset), ascending; empty if they are unknown. `remote`: None if its objects are
    missing. `deleted`: its removal has begun, so that it is not read.
    """

    segment_id: str
    base_offset: int
    end_offset: int
    size_bytes: int
    epochs: tuple[tuple[int, int], ...]
    order: int
    remote: RemoteSegment | None
    deleted: bool = False

    def is_whole(self) -> bool:
        """Whether its .log exists with the expected size. May read from the tier."""
        try:
            return self.remote is not None and self.remote.log_size == self.size_bytes
        except StorageError:
            return False


@dataclass(frozen=True, slots=True)
class Slice:
    """Offsets from `start` to `end` (excluded), and the segment to read them from; None if no segment has them."""

    start: int
    end: int
    candidate: Candidate | None


def lineage_of(candidates: Iterable[Candidate]) -> LeaderEpochs:
    """The lineage for a log that has lost its own: that of the segment that a leader uploaded last."""
    known = [candidate for candidate in candidates if candidate.epochs]
    if not known:
        return LeaderEpochs()
    last = max(known, key=lambda uploaded: (uploaded.epochs[-1][0], uploaded.end_offset, uploaded.order))
    with suppress(StorageError):
        if last.remote is not None and last.remote.epochs is not None:
            return last.remote.epochs
    return LeaderEpochs(tuple(EpochEntry(epoch, start) for epoch, start in last.epochs))


def slices_of(candidate: Candidate, lineage: LeaderEpochs) -> list[Slice]:
    """The offsets of a segment that are part of the log, ascending, as few slices as possible."""
    base, end = candidate.base_offset, candidate.end_offset
    if not lineage.entries or not candidate.epochs:
        return [Slice(base, end, candidate)]
    entries = lineage.entries
    slices: list[Slice] = []
    for slot, (epoch, first) in enumerate(candidate.epochs):
        at = bisect_right(entries, epoch, key=lambda entry: entry.epoch) - 1
        if at < 0 or entries[at].epoch != epoch:
            continue
        last = candidate.epochs[slot + 1][1] if slot + 1 < len(candidate.epochs) else end
        # The log's first epoch may begin below its entry, which moves up with the log start.
        start = max(base, first, entries[at].start_offset if at else 0)
        stop = min(end, last, entries[at + 1].start_offset if at + 1 < len(entries) else MAX_OFFSET)
        if start >= stop:
            continue
        if slices and slices[-1].end == start:
            start = slices.pop().start
        slices.append(Slice(start, stop, candidate))
    return slices


def cover(counted: Sequence[Slice], start: int, end: int) -> list[Slice]:
    """The offsets from `start` to `end` (excluded) as slices that adjoin, each from one segment or from none.

    `counted`: by ascending start. If several have an offset, one with a whole .log is preferred, then the one that
    begins last, then the one finished last, and it is read to its end.
    """
    cut: list[Slice] = []
    begun: list[Slice] = []
    at, offset = 0, start
    while offset < end:
        while at < len(counted) and counted[at].start <= offset:
            begun.append(counted[at])
            at += 1
        begun = [begun_slice for begun_slice in begun if begun_slice.end > offset]
        best = begun[0] if len(begun) == 1 else max(begun, key=_preference, default=None)
        stop = end if best is None else min(end, best.end)
        if best is None or best.candidate is None or best.candidate.remote is None:
            # End where another slice begins, because that segment may exist.
            stop = min(stop, counted[at].start if at < len(counted) else end)
        chosen = None if best is None else best.candidate
        if cut and cut[-1].candidate is chosen:
            offset = cut.pop().start
        cut.append(Slice(offset, stop, chosen))
        offset = stop
    return cut


def _preference(slice_: Slice) -> tuple[bool, bool, int, int]:
    candidate = slice_.candidate
    assert candidate is not None
    return candidate.is_whole(), candidate.remote is not None, slice_.start, candidate.order


def counted_slices(candidates: Iterable[Candidate], lineage: LeaderEpochs) -> list[Slice]:
    """The slices of all segments that are not being removed, by ascending start."""
    slices = [slice_ for candidate in candidates if not candidate.deleted for slice_ in slices_of(candidate, lineage)]
    return sorted(slices, key=attrgetter("start", "end"))


def behind_deleted(cut: list[Slice], candidates: Iterable[Candidate]) -> list[Slice]:
    """`cut` without missing offsets at its beginning that retention is removing: a broker moves the log's beginning
    after them before it writes that into its checkpoint."""
    removed = sorted((candidate for candidate in candidates if candidate.deleted), key=attrgetter("base_offset"))
    while cut and cut[0].candidate is None:
        offset = cut[0].start
        for candidate in removed:
            if candidate.base_offset <= offset < candidate.end_offset:
                offset = min(candidate.end_offset, cut[0].end)
        if offset == cut[0].start:
            break
        cut = cut[1:] if offset == cut[0].end else [Slice(offset, cut[0].end, None), *cut[1:]]
    return cut
