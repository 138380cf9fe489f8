"""Which batch belongs to a log at each offset, and from which of its copies."""

import os
import shutil

import pytest

from storage.format.block import Record
from storage.log.batch_choice import LogCopy, choose_batches, is_one_log
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
    return [(one.first_offset, one.last_offset) for one in choice.lost if one.first_offset is not None]


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
        (0, [(0, 9), (13, 27), (30, 39)], False, [(13, 28)], [(10, 12), (28, 29)]),  # whole batches alone
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


def segments(directory, *numbers, epoch=0, tag=b"v", at=0):
    """A log of segments of two batches of five messages; those of these numbers are left, or all."""
    items = []
    for number in range(6):
        items += [ROLL] * bool(number)
        stamps = START_MS + at + 1000 * number
        records = [Record(None, tag + b"%d" % one, (), stamps + one) for one in range(5)]
        items += [Batch(records, leader_epoch=epoch)] * 2
    built = build_log_dir(directory, {"t": [Partition(items)]}, broker=False)
    for number in range(6):
        if numbers and number not in numbers:
            for path in built.path.glob(f"t-0/{10 * number:020}.*"):
                path.unlink()
    return built.path


# Which segment belongs to a log


def add(target, source, *numbers):
    """Copies segments of one directory into another one, with their times, as `cp -a` would."""
    for number in numbers:
        for path in source.glob(f"t-0/{10 * number:020}.*"):
            shutil.copy2(path, target / "t-0" / path.name)


def touch(directory, times):
    """Sets the times of files by a pattern, seconds."""
    for pattern, seconds in times.items():
        for path in directory.glob(f"t-0/{pattern}"):
            os.utime(path, (seconds, seconds))


LATER_MS = 3_600_000
CREATED = START_MS // 1000 + 1800  # between the messages of two lives of a topic


def test_segments_of_a_topic_that_was_deleted_are_left_out(tmp_path):
    """Copied twice into one place, with a new topic of that name in between. The times of the files tell."""
    old, new = segments(tmp_path / "old"), segments(tmp_path / "new", 0, 1, at=LATER_MS, tag=b"w")
    touch(old, {"*": CREATED - 900})
    touch(new, {"*.*": CREATED + 2000, "partition.metadata": CREATED})
    add(new, old, 2, 3, 4, 5)
    choice = choose_batches([copy_of(new)], compacted=False)
    assert (offsets(choice), choice.damage) == ([*range(20)], None)
    assert [(one.offsets.start, one.offsets.end) for one in choice.beyond] == [(n, n + 10) for n in (20, 30, 40, 50)]
    assert {one.reason for one in choice.beyond} == {"written before this topic was created, by one of the same name"}


def test_without_times_nobody_knows_whose_segments_after_a_gap_are(tmp_path):
    old, new = segments(tmp_path / "old"), segments(tmp_path / "new", 0, 1, at=LATER_MS, tag=b"w")
    add(new, old, 3, 4, 5)
    touch(new, {"*": CREATED + 9000})
    choice = choose_batches([copy_of(new)], compacted=False)
    assert offsets(choice) == [*range(20)]
    assert choice.damage.reason.startswith("undecided: ")
    assert all(one.reason.startswith("undecided: ") for one in choice.beyond)
    assert lost(choice) == [(20, None)]


def test_a_segment_is_missing_and_the_messages_are_of_the_same_log(tmp_path):
    choice = choose_batches([copy_of(segments(tmp_path / "a", 0, 1, 3, 4, 5))], compacted=False)
    assert (offsets(choice), lost(choice)) == ([*range(20), *range(30, 60)], [(20, 29)])
    assert choice.damage is None


def test_of_segments_at_the_same_offsets_the_leader_decides(tmp_path):
    """The log was truncated between two copies, and another leader went on."""
    items = [Batch(many(10)), ROLL, Batch(many(5), leader_epoch=3), ROLL, Batch(many(10), leader_epoch=3)]
    new = build_log_dir(tmp_path / "new", {"t": [Partition(items)]}).path
    stale = build_log_dir(tmp_path / "old", {"t": [Partition([Batch(many(10)), ROLL, Batch(many(12))])]}).path
    for path in stale.glob(f"t-0/{10:020}.*"):
        shutil.copy2(path, new / "t-0" / path.name.replace(f"{10:020}", f"{12:020}"))
    (new / "t-0" / f"{12:020}.log").write_bytes(b"")
    choice = choose_batches([copy_of(new)], compacted=False)
    assert offsets(choice) == [*range(25)]
    shutil.copy2(stale / "t-0" / f"{10:020}.log", new / "t-0" / f"{10:020}.log")
    choice = choose_batches([copy_of(new)], compacted=False)
    assert offsets(choice) == [*range(10), *range(15, 25)]
    assert {one.reason for one in choice.beyond} == {"an earlier leader wrote it"}
    assert lost(choice) == [(10, 14)]


@pytest.mark.parametrize("compacted_first", [True, False])
def test_of_a_compacted_log_the_segment_that_was_compacted_later_counts(tmp_path, compacted_first):
    """Copied twice, with a compaction in between, which has merged segments."""
    batches = [Batch(many(10, keys=7)) for _ in range(6)]
    plain = build_log_dir(tmp_path / "plain", {"t": [Partition([x for b in batches for x in (b, ROLL)][:-1])]}).path
    # The first four merged, without the batches at 10 and 20.
    items = [batches[0], Batch(many(10, keys=7), base_offset=30)]
    merged = build_log_dir(tmp_path / "m", {"t": [Partition(items)]}).path
    shutil.copy2(merged / "t-0" / f"{0:020}.log", plain / "t-0" / f"{0:020}.log")
    for number in () if compacted_first else (1, 2):
        for path in plain.glob(f"t-0/{10 * number:020}.*"):
            path.unlink()
    choice = choose_batches([copy_of(plain)], compacted=True)
    assert offsets(choice) == [*range(10), *range(30, 60)]
    assert (choice.damage, lost(choice)) == (None, [])


def test_a_last_batch_beyond_a_gap_may_have_a_wrong_offset(tmp_path):
    """No CRC covers offsets. Where bytes are missing in front of it too, it is believed."""
    built = build_log_dir(tmp_path / "a", {"t": [[Batch(many(10)) for _ in range(4)]]})
    log, last = tmp_path / "a" / "t-0" / f"{0:020}.log", built["t", 0].batches[-1]
    whole = log.read_bytes()
    log.write_bytes(whole[: last.position] + (1030).to_bytes(8, "big") + whole[last.position + 8 :])
    choice = choose_batches([copy_of(tmp_path / "a")], compacted=False)
    assert (offsets(choice), choice.damage.reason[:11]) == ([*range(30)], "undecided: ")
    log.write_bytes(whole[: last.position - 40] + whole[last.position :])
    choice = choose_batches([copy_of(tmp_path / "a")], compacted=False)
    assert (offsets(choice), lost(choice)) == ([*range(20), *range(30, 40)], [(20, 29)])


def test_of_two_that_overlap_the_one_that_fits_counts(tmp_path):
    """The offset of a batch is wrong by less than the batch has messages, so that it reaches into the next one."""
    built = build_log_dir(tmp_path / "a", {"t": [[Batch(many(10)) for _ in range(4)]]})
    log, second = tmp_path / "a" / "t-0" / f"{0:020}.log", built["t", 0].batches[1]
    whole = log.read_bytes()
    log.write_bytes(whole[: second.position] + (12).to_bytes(8, "big") + whole[second.position + 8 :])
    choice = choose_batches([copy_of(tmp_path / "a")], compacted=False)
    assert (offsets(choice), lost(choice)) == ([*range(10), *range(20, 40)], [(10, 19)])


def test_a_first_segment_whose_name_is_too_high_hides_nothing(tmp_path):
    log_dir = segments(tmp_path / "a")
    (log_dir / "t-0" / f"{0:020}.log").rename(log_dir / "t-0" / f"{7:020}.log")
    choice = choose_batches([copy_of(log_dir)], compacted=False)
    assert (choice.log_start_offset, offsets(choice), lost(choice)) == (0, [*range(60)], [])


@pytest.mark.parametrize("compacted", [False, True])
def test_segments_with_wrong_names_count_by_their_batches(tmp_path, compacted):
    log_dir = segments(tmp_path / "a")
    logs = [log_dir / "t-0" / f"{base:020}.log" for base in (10, 30, 50)]
    logs[0].rename(log_dir / "t-0" / "kept")
    logs[1].rename(logs[0])
    (log_dir / "t-0" / "kept").rename(logs[1])
    logs[2].rename(log_dir / "t-0" / f"{57:020}.log")
    choice = choose_batches([copy_of(log_dir)], compacted=compacted)
    assert (offsets(choice), lost(choice), choice.damage) == ([*range(60)], [], None)


def test_a_segment_of_another_log_under_the_name_of_one_of_this(tmp_path):
    """Its messages are younger, at offsets that this log has elsewhere."""
    for name, stamp in (("a", START_MS), ("foreign", START_MS + LATER_MS)):
        batches = [[Batch([Record(None, name.encode(), (), stamp)] * 5)] * 4 for _ in range(3)]
        build_log_dir(tmp_path / name, {"t": [[*batches[0], ROLL, *batches[1], ROLL, *batches[2]]]}, broker=False)
    own, foreign = ([tmp_path / name / "t-0" / f"{base:020}.log" for base in (20, 40)] for name in ("a", "foreign"))
    shutil.copy2(foreign[1], own[0])
    choice = choose_batches([copy_of(tmp_path / "a")], compacted=False)
    assert (offsets(choice), lost(choice)) == ([*range(20), *range(40, 60)], [(20, 39)])
    assert [(one.offsets.start, one.offsets.end) for one in choice.beyond] == [(40, 60)]
    assert choice.beyond[0].reason.startswith("its name is wrong")


def test_what_is_missing_before_a_misnamed_first_segment_is_lost(tmp_path):
    """The file of the first segment holds the second one, and that of the first one is cut to nothing."""
    log_dir = segments(tmp_path / "a")
    (log_dir / "t-0" / f"{10:020}.log").replace(log_dir / "t-0" / f"{0:020}.log")
    choice = choose_batches([copy_of(log_dir)], compacted=False)
    assert (offsets(choice), lost(choice)) == ([*range(10, 60)], [(0, 9)])


def test_a_misnamed_segment_counts_beside_a_neighbour_alone(tmp_path):
    """Another one may be of any log."""
    log_dir = segments(tmp_path / "a", 0, 1, 4)
    (log_dir / "t-0" / f"{40:020}.log").rename(log_dir / "t-0" / f"{57:020}.log")
    choice = choose_batches([copy_of(log_dir)], compacted=False)
    assert (offsets(choice), choice.damage.reason[:11]) == ([*range(20)], "undecided: ")


def test_a_segment_that_was_copied_twice_counts_once(tmp_path):
    log_dir = segments(tmp_path / "a")
    log = log_dir / "t-0" / f"{10:020}.log"
    whole = log.read_bytes()
    (log_dir / "t-0" / f"{15:020}.log").write_bytes(whole[len(whole) // 2 :])
    choice = choose_batches([copy_of(log_dir)], compacted=False)
    assert (offsets(choice), lost(choice), choice.beyond, choice.damage) == ([*range(60)], [], [], None)


@pytest.mark.parametrize(
    ("start", "count", "epoch", "is_one"),
    [(50, 5, 2, True), (54, 5, 2, False), (50, 5, 1, False), (50, 7, 1, False), (50, 5, 3, False)],
)
def test_a_last_segment_of_another_log_is_seen_at_its_ends(tmp_path, start, count, epoch, is_one):
    """It begins beyond its name, or another leader wrote it than leader-epoch-checkpoint names. The checkpoint of a
    killed broker may lack the last leader: all batches decide then."""
    log_dir = segments(tmp_path / "a", epoch=2)
    items = [Batch(many(count), leader_epoch=epoch) for _ in range(3)]
    foreign = build_log_dir(tmp_path / "x", {"t": [Partition(items, start_offset=start)]}).path
    shutil.copy2(foreign / "t-0" / f"{start:020}.log", log_dir / "t-0" / f"{50:020}.log")
    assert is_one_log(copy_of(log_dir), compacted=False) == is_one
    assert is_one_log(copy_of(log_dir), compacted=True) == (is_one or start > 50)


@pytest.mark.parametrize(("place", "epoch", "others"), [(5, 1, 2), (2, 1, 2), (2, 3, 2)])
def test_a_segment_of_another_leader_is_left_out(tmp_path, place, epoch, others):
    """Of a leader that came before those of earlier segments, or after those of later ones."""
    log_dir = segments(tmp_path / "a", epoch=others)
    add(log_dir, segments(tmp_path / "x", epoch=epoch, tag=b"w"), place)
    choice = choose_batches([copy_of(log_dir)], compacted=False)
    left_out = [*range(10 * place, 10 * place + 10)]
    assert offsets(choice) == [offset for offset in range(60) if offset not in left_out]
    assert [(one.offsets.start, one.offsets.end, one.reason) for one in choice.beyond] == [
        (10 * place, 10 * place + 10, "another leader wrote it")
    ]


def test_what_a_leader_wrote_that_the_checkpoint_lacks_counts(tmp_path):
    """A killed broker may not have written it; nor does a checkpoint count that fits no batch at all."""
    log_dir = segments(tmp_path / "a", epoch=2)
    add(log_dir, segments(tmp_path / "x", epoch=3, tag=b"w"), 5)
    assert offsets(choose_batches([copy_of(log_dir)], compacted=False)) == [*range(60)]
    (log_dir / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n7 0\n")
    assert offsets(choose_batches([copy_of(log_dir)], compacted=False)) == [*range(60)]


# Which copy's batch counts


def test_two_halves_are_one_log(tmp_path):
    first, second = segments(tmp_path / "a", 0, 2, 3, 5), segments(tmp_path / "b", 1, 2, 4, 5)
    choice = choose_batches([copy_of(first), copy_of(second)], compacted=False)
    assert (offsets(choice), lost(choice), choice.damage) == ([*range(60)], [], None)
    assert [(one.offsets.start, one.offsets.end) for one in choice.filled] == [(10, 20), (40, 50)]


def test_a_copy_without_its_first_segments_is_filled_from_an_older_one(tmp_path):
    """The leader epochs know that the log began earlier."""
    first, second = segments(tmp_path / "a", 2, 3, 4, 5), segments(tmp_path / "b", 0, 1, 2)
    choice = choose_batches([copy_of(first), copy_of(second)], compacted=False)
    assert (offsets(choice), lost(choice), choice.log_start_offset) == ([*range(60)], [], 0)
    alone = choose_batches([copy_of(first)], compacted=False)
    assert (offsets(alone), lost(alone)) == ([*range(20, 60)], [(0, 19)])


def test_a_log_without_its_last_segment_goes_on_in_another_copy(tmp_path):
    first, second = segments(tmp_path / "a", 0, 1, 2, 3, 4), segments(tmp_path / "b", 0, 1, 2, 3, 5)
    choice = choose_batches([copy_of(second), copy_of(first)], compacted=False)
    assert (offsets(choice), lost(choice)) == ([*range(60)], [])
    alone = choose_batches([copy_of(first, reached=60)], compacted=False)
    assert (offsets(alone), lost(alone)) == ([*range(50)], [(50, 59)])
    assert "reached offset 60" in alone.lost[0].reason


def test_copies_that_hold_other_messages_of_one_leader(tmp_path):
    """Two are right against one; of one against one nobody knows."""
    right, also = segments(tmp_path / "a"), segments(tmp_path / "b")
    wrong = segments(tmp_path / "c")
    add(wrong, segments(tmp_path / "x", tag=b"w"), 2)
    copies = [copy_of(one) for one in (wrong, right, also)]
    choice = choose_batches(copies, compacted=False)
    assert (offsets(choice), lost(choice)) == ([*range(60)], [])
    assert {name for name, first, _ in taken(choice) if 20 <= first < 30} == {"a"}
    assert "two other copies hold other messages there" in {one.reason for one in choice.beyond}
    choice = choose_batches(copies[:2], compacted=False)
    assert (offsets(choice), lost(choice)) == ([*range(20), *range(30, 60)], [(20, 29)])
    assert choice.damage.reason.startswith("undecided: ")


def test_a_segment_of_another_log_goes_on_after_the_copies_that_contradict_it(tmp_path):
    """What it has after their end is of that other log, too. Of one against one nobody knows which is of another."""
    right, also, wrong = (segments(tmp_path / name) for name in "abc")
    items = [Batch(many(7)) for _ in range(4)]
    foreign = build_log_dir(tmp_path / "x", {"t": [Partition(items, start_offset=50)]}).path
    shutil.copy2(foreign / "t-0" / f"{50:020}.log", wrong / "t-0")
    copies = [copy_of(one) for one in (wrong, right, also)]
    choice = choose_batches(copies, compacted=False)
    assert (offsets(choice), lost(choice)) == ([*range(60)], [])
    assert [(one.path.parent.name, one.offsets.start, one.offsets.end) for one in choice.beyond] == [("c", 50, 78)]
    choice = choose_batches(copies[:2], compacted=False)
    assert offsets(choice) == [*range(50)]
    assert sorted((one.path.parent.name, one.offsets.end) for one in choice.beyond) == [("a", 60), ("c", 78)]


def test_a_last_segment_whose_leader_its_checkpoint_lacks_yields_to_a_copy_without_a_contradiction(tmp_path):
    """It is of another log: not even the larger one counts."""
    right, wrong = segments(tmp_path / "a", epoch=2), segments(tmp_path / "b", epoch=2)
    add(wrong, segments(tmp_path / "x", epoch=3, tag=b"longer"), 5)
    choice = choose_batches([copy_of(wrong), copy_of(right)], compacted=False)
    assert (choice.first, offsets(choice), lost(choice)) == (1, [*range(60)], [])
    assert [(one.path.parent.name, one.offsets.start, one.offsets.end, one.reason) for one in choice.beyond] == [
        ("b", 50, 60, "another leader wrote it")
    ]


def test_the_copy_of_the_latest_leader_counts_even_if_it_is_damaged(tmp_path):
    """What an earlier leader wrote where a later one went on is no part of the log."""
    items = [Batch(many(10), leader_epoch=1), Batch(many(10), leader_epoch=2), Batch(many(10), leader_epoch=2)]
    latest = build_log_dir(tmp_path / "a", {"t": [Partition(items)]})
    flip(latest.path / "t-0" / f"{0:020}.log", latest["t", 0].batches[1].position + 70)
    items = [Batch(many(10), leader_epoch=1), *[Batch(many(10, 30), leader_epoch=1)] * 3]
    stale = build_log_dir(tmp_path / "b", {"t": [Partition(items)]}).path
    choice = choose_batches([copy_of(stale), copy_of(latest.path)], compacted=False)
    assert (choice.first, offsets(choice), lost(choice)) == (1, [*range(10), *range(20, 30)], [(10, 19)])
    assert [(one.path.parent.name, one.offsets.start, one.offsets.end) for one in choice.beyond] == [("b", 10, 40)]
