"""Which remote segments make up a log: against histories of leaders that uploaded what they had."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from hypothesis import given
from hypothesis import strategies as st

from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.log.remote_metadata import Candidate, Slice, behind_deleted, counted_slices, cover, lineage_of, slices_of

END = 40
Branch = tuple[tuple[int, int], ...]


def branches(draw: st.DrawFn) -> list[Branch]:
    """Logs of leaders: each begins as another one did, and goes on with an epoch of its own. The last is the log."""
    found: list[Branch] = [((0, 0),)]
    for epoch in range(1, draw(st.integers(1, 6))):
        before = draw(st.sampled_from(found))
        cut = draw(st.integers(0, END - 1))
        found.append((*(entry for entry in before if entry[1] < cut), (epoch, cut)))
    return found


def epoch_at(branch: Branch, offset: int) -> int:
    return branch[bisect_right(branch, offset, key=lambda entry: entry[1]) - 1][0]


def upload(branch: Branch, start: int, end: int, order: int, *, deleted: bool = False) -> Candidate:
    inside = [(epoch, first) for epoch, first in branch if start < first < end]
    epochs = ((epoch_at(branch, start), start), *inside)
    return Candidate(str(order), start, end, 1, epochs, order, None, deleted)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Branch], list[tuple[Branch, Candidate]]]:
    leaders = branches(draw)
    uploads = []
    for order in range(draw(st.integers(0, 12))):
        start = draw(st.integers(0, END - 1))
        branch = draw(st.sampled_from(leaders))
        end = draw(st.integers(start + 1, END))
        uploads.append((branch, upload(branch, start, end, order, deleted=draw(st.integers(0, 9)) == 0)))
    return leaders, uploads


@given(histories(), st.integers(0, END - 1), st.integers(1, END))
def test_every_offset_is_from_a_segment_that_has_it_in_the_logs_epoch(
    history: tuple[list[Branch], list[tuple[Branch, Candidate]]], start: int, size: int
) -> None:
    leaders, uploads = history
    log, end = leaders[-1], min(start + size, END)
    lineage = LeaderEpochs(tuple(EpochEntry(*entry) for entry in log)).truncate_from_start(start)
    counted = counted_slices((one for _, one in uploads), lineage)
    assert counted == sorted(counted, key=attrgetter("start"))
    found = cover(counted, start, end)
    assert [found[0].start, *(one.end for one in found)] == [*(one.start for one in found), end]
    of = {one.segment_id: branch for branch, one in uploads}
    for one in found:
        for offset in range(one.start, one.end):
            have = [
                candidate
                for branch, candidate in uploads
                if not candidate.deleted
                and candidate.base_offset <= offset < candidate.end_offset
                and epoch_at(branch, offset) == epoch_at(log, offset)
            ]
            if one.candidate is None:
                assert have == [], offset
            else:
                assert one.candidate in have, offset
                assert epoch_at(of[one.candidate.segment_id], offset) == epoch_at(log, offset)


def test_a_loser_that_finished_last_is_read_only_up_to_where_it_lost() -> None:
    """Facts of a real broker: it reads on in the loser's segment, beyond the end of the epoch."""
    lineage = LeaderEpochs((EpochEntry(0, 0), EpochEntry(2, 60)))
    right, loser = upload(((0, 0), (2, 60)), 50, 100, 1), upload(((0, 0), (1, 60)), 50, 100, 2)
    assert slices_of(loser, lineage) == [Slice(50, 60, loser)]
    assert cover(counted_slices([right, loser], lineage), 50, 100) == [Slice(50, 60, loser), Slice(60, 100, right)]
    assert lineage_of([upload(((0, 0), (1, 60)), 0, 100, 1), upload(((0, 0), (2, 40)), 0, 90, 2)]) == LeaderEpochs(
        (EpochEntry(0, 0), EpochEntry(2, 40))
    )


def test_without_epochs_a_segment_counts_as_a_whole() -> None:
    one = Candidate("a", 0, 10, 1, (), 0, None)
    assert slices_of(one, LeaderEpochs((EpochEntry(5, 3),))) == [Slice(0, 10, one)]


def test_the_log_begins_behind_what_retention_removes() -> None:
    gone = [upload(((0, 0),), 0, 10, 1, deleted=True), upload(((0, 0),), 10, 20, 2, deleted=True)]
    kept = upload(((0, 0),), 25, 30, 3)
    found = cover(counted_slices([*gone, kept], LeaderEpochs()), 5, 30)
    assert behind_deleted(found, [*gone, kept]) == [Slice(20, 25, None), Slice(25, 30, kept)]
