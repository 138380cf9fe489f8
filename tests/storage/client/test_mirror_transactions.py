"""Transactions and idempotent producers in a copy: stopped and resumed at each batch, killed, truncated, rebuilt.

What must hold is the builder's: which transactions are open, committed, aborted after each batch of the source.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from storage.backup.mirror import Mirror
from storage.directory.owned_dir import Opening, OwnedDir
from storage.files import names, producer_state, transaction_index
from storage.files.names import FileKind
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation, TopicPartition
from tests.support.builders import START_MS, Batch, BuiltPartition, Item, Partition, abort, build_log_dir, commit, many
from tests.support.crash_points import Sessions, every_crash
from tests.support.owned_dirs import ONE_THREAD, HastyDisk, StandingClock, close_clean
from tests.support.readers import built, read_all

TP = TopicPartition("t", 0)
SMALL = {"segment.bytes": "700", "index.interval.bytes": "100"}
# Not long after the messages: a broker forgets producers that were silent for a day.
CLOCK = StandingClock(START_MS + 600_000)

STORY: Sequence[Item] = (
    Batch(many(2), producer_id=1, transactional=True),
    Batch(many(3), producer_id=2, transactional=True),
    Batch(many(1)),
    abort(1),
    Batch(many(2), producer_id=1, transactional=True),
    Batch(many(2), producer_id=7),  # idempotent only
    Batch(many(2), producer_id=2, transactional=True),
    commit(2),
    Batch(many(2), producer_id=3, transactional=True),
    Batch(many(2), producer_id=7),
    abort(9),  # of a transaction that left nothing here
    abort(1),
    Batch(many(1), producer_id=2, transactional=True, producer_epoch=4),
    abort(3),
    Batch(many(3)),
    Batch(many(2), producer_id=1, transactional=True),  # open at the end, as is that of 2
)


def random_story(seed: int, length: int = 24) -> list[Item]:
    """Interleaved transactions of three producers, some open at the end."""
    dice = random.Random(seed)
    story: list[Item] = []
    for _ in range(length):
        producer = dice.randint(1, 3)
        story.append(
            dice.choice(
                [
                    Batch(many(dice.randint(1, 3)), producer_id=producer, transactional=True),
                    Batch(many(dice.randint(1, 3)), producer_id=producer, transactional=True),
                    commit(producer),
                    abort(producer),
                    Batch(many(2)),
                    Batch(many(1), producer_id=7),
                ]
            )
        )
    return story


@dataclass
class Source:
    """A log directory that shows more and more of a log; `after[n]` is what is true after n batches."""

    path: Path
    whole: BuiltPartition
    after: list[BuiltPartition]

    @property
    def batches(self) -> int:
        return len(self.whole.batches)

    def data(self, first: int, last: int) -> bytes:
        """The bytes of some batches: there is one segment."""
        start = self.whole.batches[first].position
        end = self.whole.batches[last - 1].position + self.whole.batches[last - 1].size
        return self.whole.log().read_bytes()[start:end]

    def show(self, count: int) -> LogDir:
        """The first batches are there."""
        directory = self.path / TP.dir_name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / self.whole.log().name).write_bytes(self.data(0, count) if count else b"")
        return LogDir.open_read_only(self.path)


def source_of(tmp_path: Path, story: Sequence[Item]) -> Source:
    after = [
        build_log_dir(tmp_path / f"after-{count}", {"t": [Partition(story[:count])]})["t", 0]
        for count in range(len(story) + 1)
    ]
    return Source(tmp_path / "source", after[-1], after)


def opened(path: Path, opening: Opening | None = None) -> OwnedDir:
    return OwnedDir.open(path, opening or Opening(create=True), config=ONE_THREAD, disk=HastyDisk(), clock=CLOCK)


def target_of(path: Path) -> OwnedDir:
    owned = opened(path)
    owned.create_topic("t", 1, SMALL)
    return owned


def mirror(source: LogDir, target: OwnedDir) -> None:
    run = Mirror(source, target, lambda _: [TP])
    run.run()
    assert run.results[TP].error is None


def aborted_in(path: Path) -> list[tuple[int, int, int]]:
    """Producer, first offset and marker of all that the .txnindex files tell."""
    found = []
    for file in sorted((path / TP.dir_name).glob("*.txnindex")):
        index = transaction_index.load(file, int(file.stem))
        assert index.problem is None
        columns = (index.producer_id, index.first_offset, index.last_offset)
        found += list(zip(*(column.tolist() for column in columns), strict=True))
    return found


def check(snapshot: LogSnapshot, expected: BuiltPartition, what: object = "") -> None:
    """What consumers of both isolations see, and the last stable offset."""
    assert snapshot.log_end_offset == expected.log_end_offset, what
    assert last_stable_offset(snapshot) == expected.last_stable_offset, what
    assert built(read_all(snapshot)) == expected.records, what
    assert built(read_all(snapshot, isolation=Isolation.READ_COMMITTED)) == expected.read_committed, what


def newest_producers(path: Path) -> dict[int, object]:
    """Producers by id, in the newest .snapshot."""
    newest = max((path / TP.dir_name).glob("*.snapshot"))
    read = producer_state.read(newest)
    assert read is not None
    return {entry.producer_id: entry for entry in read.entries()}


def kill(owned: OwnedDir, tail: bytes = b"") -> None:
    """As the end of the process does it, perhaps in the middle of a write."""
    owned._logs.abandon()
    owned._dir_lock.release()
    active = max((owned.path / TP.dir_name).glob("*.log"))
    with active.open("ab") as file:
        file.write(tail)


@pytest.mark.parametrize("story", [STORY, random_story(1), random_story(2)], ids=["story", "random 1", "random 2"])
@pytest.mark.parametrize("end", ["goes on", "close", "kill", "torn", "rebuilt"])
def test_a_mirror_that_stops_at_each_batch(tmp_path: Path, story: Sequence[Item], end: str) -> None:
    """However it ends and goes on, the copy knows the same transactions and producers as one made in one go."""
    source = source_of(tmp_path, story)
    at_once = target_of(tmp_path / "at-once")
    mirror(source.show(source.batches), at_once)
    check(at_once.log(TP).snapshot(), source.whole)
    assert len(at_once.log(TP).snapshot().segments) > 2
    close_clean(at_once)
    assert aborted_in(at_once.path) == source.whole.aborted

    owned = target_of(tmp_path / "step-by-step")
    for count in range(1, source.batches + 1):
        mirror(source.show(count), owned)
        check(owned.log(TP).snapshot(), source.after[count], count)
        if end == "goes on":
            continue
        if end == "close":
            close_clean(owned, count)
        elif end == "torn" and count < source.batches:
            kill(owned, source.data(count, count + 1)[:-1])
        else:
            kill(owned)
        if end == "rebuilt":
            for path in (owned.path / TP.dir_name).iterdir():
                if path.suffix in (".snapshot", ".txnindex"):
                    path.unlink()
            (owned.path / names.RECOVERY_POINT_CHECKPOINT).unlink(missing_ok=True)
        owned = opened(owned.path, Opening())
        assert not owned.failures()
        check(owned.log(TP).snapshot(), source.after[count], count)
    close_clean(owned)
    assert aborted_in(owned.path) == source.whole.aborted
    assert newest_producers(owned.path) == newest_producers(at_once.path)
    looked = LogDir.open_read_only(owned.path)
    check(looked.log(TP).snapshot(), source.whole)
    for path in (at_once.path / TP.dir_name).glob("*.txnindex"):
        assert (owned.path / TP.dir_name / path.name).read_bytes() == path.read_bytes()


def test_a_mirror_skips_what_the_copy_has(tmp_path: Path) -> None:
    """The batch that holds the copy's end comes whole or not at all; those below it do not come again."""
    source = source_of(tmp_path, STORY)
    owned = target_of(tmp_path / "target")
    for count in (3, 3, 1, 8, 8, source.batches):
        mirror(source.show(count), owned)
        check(owned.log(TP).snapshot(), source.after[max(count, owned_batches(owned, source))])
    close_clean(owned)
    assert aborted_in(owned.path) == source.whole.aborted


def owned_batches(owned: OwnedDir, source: Source) -> int:
    """How many batches a copy holds."""
    end = owned.log(TP).log_end_offset
    return next(count for count, known in enumerate(source.after) if known.log_end_offset == end)


def test_a_crash_while_transactions_are_copied(tmp_path: Path) -> None:
    """At every disk operation, killed or without power: what is left is a beginning of the source, and the copy goes
    on from it to the same end."""
    source = source_of(tmp_path, STORY[:11])
    before = tmp_path / "before"
    close_clean(target_of(before))
    whole = source.data(0, source.batches)
    sizes = [batch.size for batch in source.whole.batches]

    def work(sessions: Sessions, _: None) -> None:
        owned = sessions.open()
        log = owned.log(TP)
        position = 0
        for number, size in enumerate(sizes):
            log.append_batches(memoryview(whole)[position : position + size])
            position += size
            if number == 4:
                log.flush()
                owned.checkpoint()
        owned.close()

    stopped = None
    for stopped, _ in every_crash(tmp_path, before, work, lambda: None):
        owned = opened(stopped.path, Opening())
        assert not owned.failures(), f"{stopped}: {owned.failures()}"
        count = owned_batches(owned, source)
        check(owned.log(TP).snapshot(), source.after[count], stopped)
        mirror(source.show(source.batches), owned)
        check(owned.log(TP).snapshot(), source.whole, stopped)
        close_clean(owned, stopped)
        assert aborted_in(stopped.path) == source.whole.aborted, str(stopped)
        assert set(newest_producers(stopped.path)) == {1, 2, 3, 7, 9}, str(stopped)
    assert stopped is not None
    assert stopped.stop_at > 40


@pytest.mark.parametrize("story", [STORY, random_story(3)], ids=["story", "random 3"])
def test_truncation_at_each_batch(tmp_path: Path, story: Sequence[Item]) -> None:
    """As a follower does it when another leader's log is shorter: what the batches that go had told is forgotten."""
    source = source_of(tmp_path, story)
    for count in range(source.batches):
        owned = target_of(tmp_path / f"truncated-{count}")
        mirror(source.show(source.batches), owned)
        for path in owned.truncate_to(TP, source.after[count].log_end_offset):
            path.unlink()
        check(owned.log(TP).snapshot(), source.after[count], count)
        assert aborted_in(owned.path) == source.after[count].aborted, count
        mirror(source.show(source.batches), owned)
        check(owned.log(TP).snapshot(), source.whole, count)
        close_clean(owned, count)
        assert aborted_in(owned.path) == source.whole.aborted, count
        shutil.rmtree(owned.path)


def _lower_epoch(batch: Batch) -> Batch:
    return replace(batch, producer_epoch=1)


def _gap(batch: Batch) -> Batch:
    return replace(batch, base_sequence=100)


def _again(batch: Batch) -> Batch:
    return replace(batch, base_sequence=0)


@pytest.mark.parametrize("change", [_lower_epoch, _gap, _again])
def test_sequences_and_epochs_are_recorded_not_judged(tmp_path: Path, change: Callable[[Batch], Batch]) -> None:
    """A follower takes what its leader has taken."""
    first = Batch(many(3), producer_id=5, producer_epoch=2)
    second = change(Batch(many(2), producer_id=5, producer_epoch=2, base_sequence=3))
    source = source_of(tmp_path, [first, second])
    owned = target_of(tmp_path / "target")
    mirror(source.show(2), owned)
    check(owned.log(TP).snapshot(), source.whole)
    close_clean(owned)
    found = producer_state.read(owned.path / TP.dir_name / names.segment_file(5, FileKind.PRODUCER_SNAPSHOT))
    assert found is not None
    (entry,) = found.entries()
    sequence = 3 if second.base_sequence is None else second.base_sequence
    assert (entry.epoch, entry.last_sequence, entry.last_offset) == (second.producer_epoch, sequence + 1, 4)
