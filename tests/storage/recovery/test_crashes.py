"""Crashes at every disk operation: what was flushed is there, nothing twice, nothing invented, order kept."""

import contextlib
from dataclasses import dataclass, field

import pytest

from storage.append.appender import Appender
from storage.directory.owned_dir import Opening
from storage.files import checkpoints, names
from storage.format.block import Record
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.support.crash_points import every_crash
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import (
    NOW_MS,
    StandingClock,
    append,
    close_clean,
    killed,
    opened,
    read,
    tree_of,
)

TP = TopicPartition("t", 0)
SMALL = {"segment.bytes": "600", "index.interval.bytes": "100"}


@dataclass
class Notes:
    """What the work tried to append, what had returned, and how much of that a flush had covered."""

    tried: list[bytes | None] = field(default_factory=list)
    returned: int = 0
    flushed: int = 0


@pytest.fixture
def before(tmp_path):
    """A topic with two partitions and nothing in them."""
    path = tmp_path / "before"
    owned = opened(path)
    owned.create_topic("t", 2, SMALL)
    close_clean(owned)
    return path


def test_append_roll_flush_close(tmp_path, before):
    def append_noted(log, notes, count):
        values = [b"message %04d" % (len(notes.tried) + n) for n in range(count)]
        notes.tried += values
        append(log, values)
        notes.returned = len(notes.tried)

    def work(sessions, notes):
        owned = sessions.open()
        log = owned.log(TP)
        for step in range(9):
            append_noted(log, notes, 4)
            if step == 3:
                log.flush()
                notes.flushed = notes.returned
            if step == 5:
                log.roll()
            if step == 6:
                owned.checkpoint()
            if step == 7:
                notes.flushed = log.flush(only_sealed=True)
                assert notes.flushed == log.snapshot().segments[-1].base_offset > 16
                owned.checkpoint()
        assert len(log.snapshot().segments) >= 3
        owned.close()
        notes.flushed = notes.returned
        owned = sessions.open()
        append_noted(owned.log(TP), notes, 2)
        owned.close()
        notes.flushed = notes.returned

    for stopped, notes in every_crash(tmp_path, before, work, Notes, power_losses=2):
        check_messages(stopped, notes)
    assert stopped.stop_at > 60


def check_messages(stopped, notes):
    # After a kill a mount must be content; a power loss may tear a segment before the last: then it takes `recover`.
    for again in range(2):
        owned = opened(stopped.path, Opening(gentle=not stopped.lost_power))
        assert not owned.failures(), f"{stopped}: {owned.failures()}"
        got = read(owned, "t")
        if stopped.lost_power:
            # Of what was not flushed any part may be gone, a whole segment in the middle too, as from a broker.
            assert got[: notes.flushed] == notes.tried[: notes.flushed], str(stopped)
            rest = iter(notes.tried)  # nothing twice, nothing invented, nothing swapped
            assert all(value in rest for value in got), str(stopped)
        else:
            assert got == notes.tried[: len(got)], str(stopped)
            assert len(got) >= notes.returned, str(stopped)
        assert read(owned, "t", 1) == []
        if again:
            append(owned.log(TP), [b"after"])
        close_clean(owned, stopped)
    owned = opened(stopped.path)
    assert read(owned, "t") == [*got, b"after"]
    close_clean(owned)
    assert not [path for path in (stopped.path / "t-0").iterdir() if path.suffix in (".tmp", ".deleted")], str(stopped)


class Creation:
    """A topic that is made, widened: each of its partitions is whole or not there; the others are untouched."""

    @staticmethod
    def prepare(owned):
        append(owned.log(TP), [b"kept"])

    @staticmethod
    def work(owned, notes):
        owned.create_topic("new", 3, {"segment.bytes": "5000"})
        notes.flushed = 3
        owned.add_partitions("new", 4)
        notes.flushed = 4

    @staticmethod
    def check(owned, flushed):
        assert read(owned, "t") == [b"kept"]
        partitions = partitions_of(owned, "new")
        assert len(partitions) >= flushed
        assert len({tree_of(owned.path / f"new-{p}")["partition.metadata"] for p in partitions}) <= 1
        for p in partitions:
            assert read(owned, "new", p) == []
            assert owned.topic_info("new").overrides == {"retention.ms": "-1", "segment.bytes": "5000"}
            append(owned.log(TopicPartition("new", p)), [b"x"])


class Deletion:
    """Partitions go from the last to the first; what is made anew under the name begins at 0."""

    @staticmethod
    def prepare(owned):
        owned.create_topic("old", 3)
        for p in range(3):
            append(owned.log(TopicPartition("old", p)), [b"old"] * 5)
            owned.log(TopicPartition("old", p)).increment_log_start_offset(3)

    @staticmethod
    def work(owned, notes):
        owned.delete_topic("old")
        notes.flushed = 1
        owned.create_topic("old", 1)
        append(owned.log(TopicPartition("old", 0)), [b"new"])
        owned.log(TopicPartition("old", 0)).flush()
        notes.flushed = 2

    @staticmethod
    def check(owned, flushed):
        for p in partitions_of(owned, "old"):
            assert read(owned, "old", p) in (([b"old"] * 2,), ([b"new"], []), ([b"new"],))[flushed]


class Configuration:
    """The old configuration or the new one, the same in all partitions once they are open."""

    @staticmethod
    def prepare(owned):
        pass

    @staticmethod
    def work(owned, notes):
        owned.alter_config("t", {"retention.ms": "5000"})
        notes.flushed = 1

    @staticmethod
    def check(owned, flushed):
        overrides = dict(owned.topic_info("t").overrides)
        assert overrides in [SMALL | {"retention.ms": limit} for limit in ("5000", "-1")[: 2 - flushed]]
        for number in range(2):
            read(owned, "t", number)
        assert len({path.read_bytes() for path in owned.path.glob(f"t-*/{names.TOPIC_PROPERTIES}")}) == 1


def partitions_of(owned, topic):
    partitions = owned.log_dir.partitions(topic) if topic in owned.log_dir.topics() else []
    assert partitions == list(range(len(partitions)))
    return partitions


@pytest.mark.parametrize("change", [Creation, Deletion, Configuration])
def test_topics_that_are_changed(tmp_path, before, change):
    owned = opened(before)
    change.prepare(owned)
    close_clean(owned)

    def work(sessions, notes):
        owned = sessions.open()
        change.work(owned, notes)
        owned.close()

    for stopped, notes in every_crash(tmp_path, before, work, Notes, power_losses=2):
        with annotated(stopped):
            owned = opened(stopped.path)
            assert not owned.failures()
            assert not owned.log_dir.hidden()
            change.check(owned, notes.flushed)
            close_clean(owned)


@contextlib.contextmanager
def annotated(stopped):
    try:
        yield
    except AssertionError as error:
        error.add_note(str(stopped))
        raise


# A power loss after a roll that follows a flush: the full segment's last time index entry is lost or spoilt.

SEGMENT_BYTES = 3000


def rolled_after_flush(path, interval_bytes=500):
    """A log of two segments whose recovery point is where the second begins: the first one's time index, and the
    values. It was not closed."""
    owned = opened(path)
    overrides = {"segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": str(interval_bytes)}
    owned.create_topic("t", 1, overrides)
    log = owned.log(TP)
    values = []
    while len(log.snapshot().segments) < 2:
        log.flush()
        flushed = log.log_end_offset
        values.append(b"%d" % len(values) + b"v" * 100)
        Appender(log, clock=StandingClock()).append([Record(None, values[-1], (), NOW_MS + len(values))])
    first, second = log.snapshot().segments
    assert log.recovery_point == flushed == second.base_offset
    owned.checkpoint()
    killed(owned)
    assert checkpoints.read(path / names.RECOVERY_POINT_CHECKPOINT)[TP] == second.base_offset
    return first.directory / f"{first.base_offset:020}.timeindex", values


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: data[:-12], id="missing"),
        pytest.param(lambda data: data[:-5], id="torn"),
        pytest.param(lambda data: data[:-12] + bytes(12), id="zeros"),
        pytest.param(lambda data: data[:-4] + b"\0\0\0\xff", id="beyond"),
        pytest.param(lambda data: data[:-12] + bytes([data[-12] + 1]) + data[-11:], id="later time"),
        pytest.param(lambda data: data[:-12] + b"\x7f" * 12, id="garbage"),
        pytest.param(lambda data: data, id="as it was"),
    ],
)
def test_it_is_mended(tmp_path, spoil):
    mended(tmp_path, spoil, interval_bytes=500, entries=6)


def test_an_only_entry_that_is_garbage_is_mended(tmp_path):
    """Found by the simulation: an only entry that cannot be right was taken for one that is being written, and the time
    index for one without entries, which is left as it is."""
    mended(tmp_path, lambda data: data[:-4] + b"\xff" * 4, interval_bytes=SEGMENT_BYTES, entries=1)


def mended(path, spoil, interval_bytes, entries):
    times, values = rolled_after_flush(path, interval_bytes)
    whole = times.read_bytes()
    assert len(whole) == 12 * entries
    times.write_bytes(spoil(whole))
    owned = opened(path)
    assert read(owned, "t") == values
    close_clean(owned)
    assert times.read_bytes() == whole
    assert not verify_log_dir(path)


def test_it_is_synced_by_the_process_after_a_killed_one(tmp_path):
    """The killed process may have written the entry only; the next one's flushes begin at the recovery point."""
    times, _values = rolled_after_flush(tmp_path)
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path, disk=disk)
    owned.log(TP)
    assert f"sync {times.name}" in disk.operations
    close_clean(owned)
