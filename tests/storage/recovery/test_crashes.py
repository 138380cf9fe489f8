"""Crashes at every disk operation: what was flushed is there, nothing twice, nothing invented, order kept."""

from __future__ import annotations

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

# Crashes at every disk operation: what was flushed is there, nothing twice, nothing invented, order kept.

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
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


def _append(sessions_log, notes, count):
    values = [b"message %04d" % (len(notes.tried) + n) for n in range(count)]
    notes.tried += values
    append(sessions_log, values)
    notes.returned = len(notes.tried)


def _check(stopped, notes):
    # After a kill a mount must be content; a power loss may tear a segment before the last: then it takes `recover`.
    for again in range(2):
        owned = opened(stopped.path, Opening(gentle=not stopped.lost_power))
        assert not owned.failures(), f"{stopped}: {owned.failures()}"
        got = read(owned, "t")
        if stopped.lost_power:
            # Of what was not flushed any part may be gone, a whole segment in the middle too, as from a broker.
            assert got[: notes.flushed] == notes.tried[: notes.flushed], str(stopped)
            assert _in_order(got, notes.tried), str(stopped)
        else:
            assert got == notes.tried[: len(got)], str(stopped)
            assert len(got) >= notes.returned, str(stopped)
        assert read(owned, "t", 1) == []
        if again:
            append(owned.log(TP), [b"after"])
            assert read(owned, "t") == [*got, b"after"]
        close_clean(owned, stopped)
    owned = opened(stopped.path)
    assert read(owned, "t") == [*got, b"after"]
    close_clean(owned)
    left = {path.name for path in (stopped.path / TP.dir_name).iterdir()}
    assert not [name for name in left if name.endswith((".tmp", ".deleted"))], str(stopped)


def _in_order(got, tried):
    """Nothing twice, nothing invented, nothing swapped."""
    rest = iter(tried)
    return all(value in rest for value in got)


def test_append_roll_flush_close(tmp_path, before):
    def work(sessions, notes):
        owned = sessions.open()
        log = owned.log(TP)
        for step in range(9):
            _append(log, notes, 4)
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
        _append(owned.log(TP), notes, 2)
        owned.close()
        notes.flushed = notes.returned

    stopped = None
    for stopped, notes in every_crash(tmp_path, before, work, Notes, power_losses=2):
        _check(stopped, notes)
    assert stopped is not None
    assert stopped.stop_at > 60


def _check_once_more(stopped, got):
    owned = opened(stopped.path)
    assert read(owned, "t") == got
    close_clean(owned)


def test_topic_creation(tmp_path, before):
    """A topic that is made, widened: each of its partitions is whole or not there; the others are untouched."""
    owned = opened(before)
    append(owned.log(TP), [b"kept"])
    owned.close()

    def work(sessions, notes):
        owned = sessions.open()
        owned.create_topic("new", 3, {"segment.bytes": "5000"})
        notes.flushed = 3
        owned.add_partitions("new", 4)
        notes.flushed = 4
        owned.close()

    for stopped, notes in every_crash(tmp_path, before, work, Notes, power_losses=2):
        owned = opened(stopped.path)
        assert not owned.failures()
        assert read(owned, "t") == [b"kept"]
        partitions = owned.log_dir.partitions("new") if "new" in owned.log_dir.topics() else []
        assert partitions == list(range(len(partitions))), str(stopped)
        assert len(partitions) >= notes.flushed, str(stopped)
        ids = {tree_of(stopped.path / f"new-{p}")["partition.metadata"] for p in partitions}
        assert len(ids) <= 1
        for p in partitions:
            assert read(owned, "new", p) == []
            assert owned.topic_info("new").overrides == {"retention.ms": "-1", "segment.bytes": "5000"}
            append(owned.log(TopicPartition("new", p)), [b"x"])
        assert not owned.log_dir.hidden()
        close_clean(owned)


def test_topic_deletion(tmp_path, before):
    """Partitions go from the last to the first; what is made anew under the name begins at 0."""
    owned = opened(before)
    owned.create_topic("old", 3)
    for p in range(3):
        append(owned.log(TopicPartition("old", p)), [b"old"] * 5)
        owned.log(TopicPartition("old", p)).increment_log_start_offset(3)
    close_clean(owned)

    def work(sessions, notes):
        owned = sessions.open()
        owned.delete_topic("old")
        notes.flushed = 1
        owned.create_topic("old", 1)
        append(owned.log(TopicPartition("old", 0)), [b"new"])
        owned.log(TopicPartition("old", 0)).flush()
        notes.flushed = 2
        owned.close()

    for stopped, notes in every_crash(tmp_path, before, work, Notes, power_losses=2):
        owned = opened(stopped.path)
        assert not owned.failures(), str(stopped)
        assert not owned.log_dir.hidden(), str(stopped)
        here = owned.log_dir.partitions("old") if "old" in owned.log_dir.topics() else []
        assert here == list(range(len(here)))
        for p in here:
            got = read(owned, "old", p)
            if notes.flushed == 2:
                assert got == [b"new"], str(stopped)
            elif notes.flushed == 1:
                assert got in ([b"new"], []), str(stopped)
            else:
                assert got == [b"old"] * 2, str(stopped)
        close_clean(owned)


def test_config_change(tmp_path, before):
    """The old configuration or the new one, the same in all partitions once they are open."""
    old = {"retention.ms": "-1", **SMALL}
    new = {"retention.ms": "5000", "segment.bytes": "600", "index.interval.bytes": "100"}

    def work(sessions, notes):
        owned = sessions.open()
        owned.alter_config("t", {"retention.ms": "5000"})
        notes.flushed = 1
        owned.close()

    for stopped, notes in every_crash(tmp_path, before, work, Notes, power_losses=2):
        owned = opened(stopped.path)
        found = dict(owned.topic_info("t").overrides)
        assert found == new if notes.flushed else found in (old, new), str(stopped)
        for tp in (TP, OTHER):
            read(owned, tp.topic, tp.partition)
        assert len({(stopped.path / tp.dir_name / names.TOPIC_PROPERTIES).read_bytes() for tp in (TP, OTHER)}) == 1
        close_clean(owned)


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
    times, values = rolled_after_flush(tmp_path)
    whole = times.read_bytes()
    assert len(whole) > 24
    times.write_bytes(spoil(whole))
    owned = opened(tmp_path)
    assert read(owned, "t") == values
    close_clean(owned)
    assert times.read_bytes() == whole
    assert not verify_log_dir(tmp_path)


def test_an_only_entry_that_is_garbage_is_not_none(tmp_path):
    """Found by the simulation: an entry that cannot be right was taken for one that is being written, and the time
    index for one without entries, which is left as it is."""
    times, values = rolled_after_flush(tmp_path, SEGMENT_BYTES)
    whole = times.read_bytes()
    assert len(whole) == 12
    times.write_bytes(whole[:8] + b"\xff" * 4)
    owned = opened(tmp_path)
    assert read(owned, "t") == values
    close_clean(owned)
    assert times.read_bytes() == whole
    assert not verify_log_dir(tmp_path)


def test_it_is_synced_by_the_process_after_a_killed_one(tmp_path):
    """The killed process may have written the entry only; the next one's flushes begin at the recovery point."""
    times, _values = rolled_after_flush(tmp_path)
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path, disk=disk)
    owned.log(TP)
    assert f"sync {times.name}" in disk.operations
    close_clean(owned)
