"""Which batch belongs to a log at each offset, and from which of its copies: DESIGN.md, "Which batch belongs to a log"."""

import os
import shutil

import pytest

from storage.log.batch_choice import LogCopy, choose_batches
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, START_MS, Batch, Partition, build_log_dir, many
from tests.support.damaged_bytes import flip

TP = TopicPartition("t", 0)


def copy_of(log_dir, reached=0):
    return LogCopy(LogDir.open_read_only(log_dir).log(TP).snapshot(), reached)


def taken(choice):
    """The copies' directories by name, with the offsets of the batches that count in each."""
    return [
        (run_of.segment.directory.parent.name, int(run_of.base[row]), int(run_of.last[row]))
        for run_of, run in choice.runs()
        for row in range(run.first, run.last)
    ]


def offsets(choice):
    return [offset for _, first, last in taken(choice) for offset in range(first, last + 1)]


def lost(choice):
    return [(one.first_offset, one.last_offset) for one in choice.lost]


@pytest.mark.parametrize(
    ("start", "other", "compacted", "filled", "lost"),
    [
        (0, [(0, 9), (10, 19), (20, 29), (30, 39)], False, [(10, 30)], []),
        (0, [(0, 9), (10, 19), ROLL, (20, 29), ROLL, (30, 39)], False, [(10, 30)], []),
        (0, [(0, 9), (14, 14), (30, 39)], False, [(14, 15)], [(10, 13), (15, 29)]),
        (0, [(0, 9), (14, 14), (17, 17), (30, 39)], True, [(14, 18)], []),  # the rest was compacted away
        (10, [(14, 14), (30, 30)], True, [(14, 15)], []),
        (0, [(0, 9), (14, 14), (29, 29)], True, [(14, 30)], []),
        (0, [(0, 9), (14, 14)], True, [(14, 15)], [(15, 29)]),  # which ends earlier
        (20, [(20, 29), (30, 39)], True, [(20, 30)], [(10, 19)]),  # whose beginning retention has removed
        (0, [(0, 9), (13, 27)], False, [(13, 28)], [(10, 12), (28, 29)]),  # whole batches alone
        (0, [(0, 9), (30, 39)], False, [], [(10, 29)]),
        (30, [(30, 39)], False, [], [(10, 29)]),
    ],
)
def test_what_another_copy_has_of_what_is_lost(tmp_path, start, other, compacted, filled, lost):
    batches = [*(Batch(many(10)) for _ in range(4)), Batch(many(10), leader_epoch=1)]
    built = build_log_dir(tmp_path / "damaged", {"t": [batches]})["t", 0].batches
    for number in (1, 2):
        flip(tmp_path / "damaged" / "t-0" / f"{0:020}.log", built[number].position + 70)
    items = [item if item is ROLL else Batch(many(item[1] - item[0] + 1), base_offset=item[0]) for item in other]
    replica = build_log_dir(tmp_path / "other", {"t": [Partition(items, start_offset=start)]})["t", 0]
    choice = choose_batches([copy_of(tmp_path / "other"), copy_of(tmp_path / "damaged")], compacted=compacted)
    assert choice.first == 1
    assert [(one.offsets.start, one.offsets.end) for one in choice.filled] == filled
    assert {one.directory for one in choice.filled} <= {replica.path}
    assert [(one.first_offset, one.last_offset) for one in choice.lost] == lost
    given = {offset for first, end in filled for offset in range(first, end)} & {r.offset for r in replica.records}
    assert offsets(choice) == [*range(10), *sorted(given), *range(30, 50)]


def test_up_to_an_offset_only_whole_batches_count(tmp_path):
    items = [Batch(many(10)) for _ in range(3)]
    build_log_dir(tmp_path / "damaged", {"t": [Partition(items, start_offset=100, log_start_offset=112)]})
    for end_offset, log_end in ((0, 100), (109, 100), (110, 110), (125, 120), (130, 130), (199, 130)):
        choice = choose_batches([copy_of(tmp_path / "damaged")], compacted=False, end_offset=end_offset)
        assert (choice.base_offset, choice.log_start_offset, choice.log_end_offset) == (100, 112, log_end)
        assert offsets(choice) == [*range(100, log_end)]


def segments(directory, *numbers, epoch=0, first=0, tag=b"v", at=0):
    """A log of segments of two batches of five messages; those of these numbers are left, or all."""
    items = []
    for number in range(6):
        items += [ROLL] * bool(number)
        stamps = START_MS + at + 1000 * number
        items += [Batch([(tag + b"%d" % one, stamps + one) for one in range(5)], leader_epoch=epoch) for _ in range(2)]
    built = build_log_dir(directory, {"t": [Partition(items)]}, broker=False)
    for number in range(6):
        if numbers and number not in numbers:
            for path in built.path.glob(f"t-0/{10 * number:020}.*"):
                path.unlink()
    return built.path
