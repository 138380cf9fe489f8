"""A pass done in parts leaves what one pass leaves, byte for byte; stopped anywhere, all groups are old or all new."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.append.partition_log import PartitionLog
from storage.compaction.cleaner import compact_divided, preview_divided, preview_partition
from storage.compaction.divided_pass import Copied, DividedPass, RunParts
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import CorruptBatch, CorruptIndex, SegmentGone, StorageError
from storage.files import names
from storage.files.names import FileKind, FileState
from storage.format.control_records import ControlType
from storage.types import TopicPartition
from storage.verify.findings import FaultKind, Severity
from storage.verify.verify import verify_log_dir
from tests.storage.compaction.test_compaction import PARTITIONS, any_batches, cleaned_at, compacted, prepared, transact
from tests.support.compacted_logs import TP, compact, contents, opened, put, updates
from tests.support.crash_points import Sessions, every_crash
from tests.support.divided_passes import both_ways, in_parts
from tests.support.faults import FaultyDisk
from tests.support.fixtures import requires_fixtures
from tests.support.owned_dirs import HastyDisk, StandingClock, close_clean, tree_of

DAY_MS = 86_400_000


def divided(owned: OwnedDir, run_parts: RunParts, tp: TopicPartition = TP) -> None:
    """A divided pass; what it replaced is removed at once."""
    for path in compact_divided(owned, tp, run_parts).files:
        owned.disk.unlink(path)


def any_transactions(log: PartitionLog, dice: random.Random) -> None:
    """Transactions of a few producers, committed, aborted and interleaved, with records of no transaction between."""
    open_producers: set[int] = set()
    for _ in range(40):
        producer = dice.randrange(1, 5)
        pairs = [(b"k%d" % dice.randrange(12), b"%d" % producer) for _ in range(dice.choice((1, 1, 3)))]
        end = dice.choice((None, ControlType.COMMIT, ControlType.ABORT))
        transact(log, producer, pairs, end)
        (open_producers.add if end is None else open_producers.discard)(producer)
        if dice.random() < 0.3:
            put(log, updates([(b"k%d" % dice.randrange(12), dice.choice((None, b"plain")))]))
    for producer in open_producers:
        transact(log, producer, [], dice.choice((ControlType.COMMIT, ControlType.ABORT)))


def any_records(log: PartitionLog, dice: random.Random) -> None:
    any_batches(log, dice, 60)


@pytest.mark.parametrize("write", [any_records, any_transactions])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_as_one_pass(tmp_path: Path, seed: int, write: Callable[[PartitionLog, random.Random], None]) -> None:
    """Round after round: clean parts, delete horizons that pass, producers that are forgotten."""
    dice = random.Random(seed)
    clock = StandingClock()
    path = tmp_path / "log"
    for number in range(4):
        owned = opened(path, clock=clock, delete_retention_ms=str(DAY_MS // 2))
        write(owned.log(TP), dice)
        if dice.random() < 0.5:
            owned.log(TP).roll()
        close_clean(owned)

        def once(copy: Path) -> None:
            owned = opened(copy, clock=clock)
            compact(owned)
            close_clean(owned)

        def in_two(copy: Path) -> None:
            owned = opened(copy, clock=clock)
            divided(owned, in_parts(dice))
            close_clean(owned)

        both_ways(path, once, in_two)
        path = path.with_name(f"{path.name}-{number % 2}")
        clock.time_ms += dice.choice((0, DAY_MS // 4, DAY_MS))


@pytest.mark.parametrize("seed", range(12))
def test_the_same_behind_a_pass_that_ended_within_a_batch(tmp_path: Path, seed: int) -> None:
    """A full map leaves the first dirty offset anywhere: in a segment, in a batch, in a transaction."""
    dice = random.Random(seed)
    small = {"log.cleaner.dedupe.buffer.size": str(24 * 8), "log.cleaner.threads": "1"}
    owned = opened(tmp_path / "log", config=small)
    if seed % 2:
        any_batches(owned.log(TP), dice, 40)
    any_transactions(owned.log(TP), dice)
    owned.log(TP).roll()
    for _ in range(dice.randrange(1, 4)):
        compact(owned)
    assert (owned.checkpoints.cleaner_offset(TP) or 0) < owned.log(TP).log_end_offset
    close_clean(owned)

    def once(copy: Path) -> None:
        owned = opened(copy)
        assert compact(owned).is_complete
        close_clean(owned)

    def in_two(copy: Path) -> None:
        owned = opened(copy, config=small)
        divided(owned, in_parts(dice))
        close_clean(owned)

    both_ways(tmp_path / "log", once, in_two)


@requires_fixtures
@pytest.mark.parametrize("name", PARTITIONS)
def test_the_same_on_kafkas_logs(tmp_path: Path, name: str) -> None:
    """Of which test_compaction knows that one pass makes of them what Kafka's cleaner did."""
    tp, clock = TopicPartition(name[:-2], int(name[-1])), StandingClock(cleaned_at(name))

    def in_two(copy: Path) -> None:
        owned = OwnedDir.open(copy, Opening(only=[tp]), disk=HastyDisk(), clock=clock)
        divided(owned, in_parts(random.Random(1)), tp)
        assert owned.close().clean

    both_ways(prepared(tmp_path, name), lambda copy: compacted(copy, name, clock.time_ms), in_two)


def test_a_dry_run_tells_the_same_and_changes_nothing(tmp_path: Path) -> None:
    owned = opened(tmp_path / "log")
    any_batches(owned.log(TP), random.Random(5), 60)
    before = tree_of(tmp_path)
    told = preview_partition(owned.log_dir, TP)
    found = preview_divided(owned.log_dir, TP, in_parts(random.Random(1)))
    assert tree_of(tmp_path) == before
    assert found.dry_run
    assert (found.counts, found.map_keys, found.end_offset) == (told.counts, told.map_keys, told.end_offset)
    assert (found.segments_before, found.segments_after) == (told.segments_before, told.segments_after)
    done = compact_divided(owned, TP, in_parts(random.Random(1)))
    assert (done.counts, done.map_keys, done.is_complete) == (told.counts, told.map_keys, True)
    for path in done.files:
        owned.disk.unlink(path)
    close_clean(owned)


def nothing_to_do(_: DividedPass) -> list[Copied]:
    raise AssertionError("there is nothing to do")


def test_nothing_to_compact(tmp_path: Path) -> None:
    owned = opened(tmp_path / "log")
    put(owned.log(TP), updates([(b"a", b"1")]))
    assert compact_divided(owned, TP, nothing_to_do).segments_before == 0
    owned.log(TP).roll()
    divided(owned, in_parts(random.Random(1)))
    assert compact_divided(owned, TP, nothing_to_do).segments_before == 0
    assert owned.checkpoints.cleaner_offset(TP) == 1
    close_clean(owned)


# What goes wrong


def several_groups(path: Path, batches: int = 30) -> OwnedDir:
    owned = opened(path, segment_bytes="1500")
    dice = random.Random(2)
    for n in range(batches):
        put(owned.log(TP), updates([(b"k%d" % dice.randrange(6), b"%d" % n * 20), (b"k%d" % dice.randrange(6), b"")]))
        if n % 3 == 2:
            owned.log(TP).roll()
    transact(owned.log(TP), 9, [(b"k1", b"aborted")], ControlType.ABORT)
    owned.log(TP).roll()
    return owned


@pytest.mark.parametrize("keeps", [0, 1, 2])
def test_what_fails_elsewhere_leaves_the_log_as_it_was(tmp_path: Path, keeps: int) -> None:
    owned = several_groups(tmp_path / "log")
    before = tree_of(tmp_path)

    def failing(work: DividedPass) -> list[Copied]:
        done = in_parts(random.Random(1))(work)
        assert len(done) > 2
        if keeps == 0:
            raise OSError(28, "No space left on device")
        if keeps == 1:
            return done[1:]
        staged = max((tmp_path / "log" / "t-0").glob("*.log.*.staged"), key=lambda path: path.stat().st_size)
        staged.write_bytes(staged.read_bytes()[:-1])
        return done

    with pytest.raises((OSError, StorageError), match=r"No space|not every group|missing or has another size here"):
        compact_divided(owned, TP, failing)
    assert tree_of(tmp_path) == before
    divided(owned, in_parts(random.Random(1)))
    close_clean(owned)


def test_damage_and_a_lost_txnindex(tmp_path: Path) -> None:
    owned = several_groups(tmp_path / "log")
    last = owned.log(TP).snapshot().segments[-2]
    index = last.path_of(FileKind.TRANSACTION_INDEX)
    content = index.read_bytes()
    index.unlink()
    before = tree_of(tmp_path)
    with pytest.raises(CorruptIndex, match=r"not in the \.txnindex"):
        compact_divided(owned, TP, in_parts(random.Random(1)))
    assert tree_of(tmp_path) == before
    index.write_bytes(content)
    data = last.log.path.read_bytes()
    last.log.path.write_bytes(data[:70] + bytes([data[70] ^ 1]) + data[71:])
    with pytest.raises(CorruptBatch):
        compact_divided(owned, TP, in_parts(random.Random(1)))
    last.log.path.write_bytes(data)
    divided(owned, in_parts(random.Random(1)))
    close_clean(owned)


def test_segments_that_go_meanwhile(tmp_path: Path) -> None:
    owned = several_groups(tmp_path / "log")
    before = contents(owned)
    log = owned.log(TP)

    def slow(work: DividedPass) -> list[Copied]:
        done = in_parts(random.Random(1))(work)
        for path in log.remove_segments(log.snapshot().segments[:2]):
            path.unlink()
        return done

    with pytest.raises(SegmentGone):
        compact_divided(owned, TP, slow)
    assert contents(owned) == [m for m in before if m[0] >= log.log_start_offset]
    close_clean(owned)


def test_what_an_earlier_pass_left_goes_first(tmp_path: Path) -> None:
    """A `.cleaned` file that stays would make recovery drop what replaces the log."""
    owned = several_groups(tmp_path / "log")
    base = owned.log(TP).snapshot().segments[3].base_offset
    owned.log(TP).path.joinpath(names.segment_file(base, FileKind.LOG, FileState.CLEANED)).write_bytes(b"")
    other = names.segment_file(base, FileKind.LOG) + names.new_staged_ending()
    owned.log(TP).path.joinpath(other).write_bytes(b"of a task that was killed")
    divided(owned, in_parts(random.Random(1)))
    close_clean(owned)


def test_what_a_killed_task_leaves_is_noted_and_removed(tmp_path: Path) -> None:
    owned = several_groups(tmp_path / "log", 3)
    left = owned.log(TP).path / (names.segment_file(0, FileKind.LOG) + names.new_staged_ending())
    close_clean(owned)
    left.write_bytes(b"of a task that was killed")
    (note,) = verify_log_dir(tmp_path / "log")
    assert (note.kind, note.severity, note.path) == (FaultKind.FILE_LEFT_OVER, Severity.NOTE, left)
    again = opened(tmp_path / "log")
    again.log(TP)
    assert not left.exists()
    close_clean(again)


def test_stopped_anywhere(tmp_path: Path) -> None:
    """All groups are old or all are new; nothing is left of what was being built."""
    owned = several_groups(tmp_path / "before", 24)
    before = contents(owned)
    close_clean(owned)
    after = opened(Path(shutil.copytree(tmp_path / "before", tmp_path / "after")))
    result = compact_divided(after, TP, in_parts(random.Random(1)))
    assert result.segments_before > result.segments_after > 2
    new = contents(after)
    after.close()

    def work(sessions: Sessions, _: list[str]) -> None:
        own = sessions.open()
        for path in compact_divided(own, TP, in_parts(random.Random(1), sessions.disk)).files:
            own.disk.unlink(path)
        own.close()

    seen = set()
    for stopped, _ in every_crash(tmp_path, tmp_path / "before", work, list):
        again = opened(stopped.path)
        assert not [path for path in again.log(TP).path.iterdir() if path.name.endswith((".staged", ".cleaned"))]
        found = contents(again)
        assert found in (before, new), str(stopped)
        seen.add(found == new)
        if stopped.stop_at % 4 == 0:
            divided(again, in_parts(random.Random(1)))
            assert contents(again) == new, str(stopped)
        close_clean(again, stopped)
    assert seen == {False, True}


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_a_disk_that_fails(tmp_path: Path, operation: str) -> None:
    """Wherever it does: a log that still works is as it was; one that is offline is old or new when it is opened."""
    close_clean(several_groups(tmp_path / "before"))
    before = tree_of(tmp_path / "before" / "t-0")
    number, failed = 0, True
    outcomes = set()
    while failed:
        path = Path(shutil.copytree(tmp_path / "before", tmp_path / f"{number}"))
        disk = FaultyDisk(path)
        owned = opened(path, disk=disk)
        failed = False
        seen = 0

        def fail(what: str, _: Path, at: int = number) -> int | None:
            nonlocal seen, failed
            seen += what.startswith(operation)
            if seen <= at or not what.startswith(operation):
                return None
            failed = failed or seen == at + 1
            return errno.ENOSPC if seen == at + 1 else None

        disk.fail = fail
        try:
            compact_divided(owned, TP, in_parts(random.Random(1), disk))
        except OSError:
            assert failed
        else:
            assert not failed
        disk.fail = lambda _what, _path: None
        offline = owned.log(TP).failure is not None
        outcomes.add((failed, offline))
        if failed and not offline:
            assert {name: data for name, data in tree_of(path / "t-0").items() if name in before} == before
        owned.close()
        again = opened(path)
        divided(again, in_parts(random.Random(1)))
        close_clean(again)
        shutil.rmtree(path)
        number += 5
    assert (True, False) in outcomes
