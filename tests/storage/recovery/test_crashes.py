"""Crashes at every disk operation: what was flushed is there, nothing twice, nothing invented, order kept."""

import contextlib

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
)

TP = TopicPartition("t", 0)
STEPS = ["appended", "flushed", "created", "extended", "altered", "removed", "made anew", "rolled", "closed"]


def test_stopped_anywhere(tmp_path):
    """What was flushed is there, nothing twice, nothing invented, order kept. A topic's partitions are created in
    order, whole or not at all, and removed from the last on; all have the old configuration or the new one."""
    owned = opened(tmp_path / "before")
    owned.create_topic("t", 2, {"segment.bytes": "600", "index.interval.bytes": "100"})
    owned.create_topic("old", 3)
    for number in range(3):
        append(owned.log(TopicPartition("old", number)), [b"old"] * 5)
        owned.log(TopicPartition("old", number)).increment_log_start_offset(3)
    close_clean(owned)
    values = [b"message %04d" % n for n in range(28)]

    def steps(sessions):
        owned = sessions.open()
        log = owned.log(TP)
        for first in range(0, 20, 4):
            append(log, values[first : first + 4])
        yield "appended"
        log.flush()
        owned.checkpoint()
        yield "flushed"
        owned.create_topic("new", 2, {"segment.bytes": "5000"})
        yield "created"
        owned.add_partitions("new", 3)
        yield "extended"
        owned.alter_config("t", {"retention.ms": "5000"})
        yield "altered"
        owned.delete_topic("old")
        yield "removed"
        owned.create_topic("old", 1)
        append(owned.log(TopicPartition("old", 0)), [b"new"])
        owned.log(TopicPartition("old", 0)).flush()
        yield "made anew"
        append(log, values[20:24])
        log.roll()
        append(log, values[24:])
        assert log.flush(only_sealed=True) == 24
        owned.checkpoint()
        yield "rolled"
        owned.close()
        yield "closed"

    for stopped, notes in every_crash(
        tmp_path, tmp_path / "before", lambda sessions, notes: notes.extend(steps(sessions)), list, power_losses=2
    ):
        is_done = {step: step in notes for step in STEPS}
        with annotated(stopped, notes):
            # A power loss may tear a segment before the last: then it takes `recover`.
            owned = opened(stopped.path, Opening(gentle=not stopped.lost_power))
            assert not owned.failures()
            assert not owned.log_dir.hidden()
            messages, rest = read(owned, "t"), iter(values)
            returned = 28 * is_done["rolled"] or 20 * is_done["appended"]
            durable = 28 * is_done["closed"] or 24 * is_done["rolled"] or 20 * is_done["flushed"]
            assert messages[:durable] == values[:durable]
            assert all(value in rest for value in messages)  # of the others any part may be gone, as from a broker
            assert stopped.lost_power or messages == values[: max(len(messages), returned)]
            assert read(owned, "t", 1) == []
            limits = {dict(owned.topic_info("t").overrides)["retention.ms"]}
            assert limits <= ({"5000"} if is_done["altered"] else {"5000", "-1"})
            assert len({path.read_bytes() for path in stopped.path.glob(f"t-*/{names.TOPIC_PROPERTIES}")}) == 1
            created = partitions_of(owned, "new")
            assert len(created) >= (3 * is_done["extended"] or 2 * is_done["created"])
            assert len({(stopped.path / f"new-{p}/{names.PARTITION_METADATA}").read_bytes() for p in created}) <= 1
            for number in created:
                assert read(owned, "new", number) == []
                assert owned.topic_info("new").overrides == {"retention.ms": "-1", "segment.bytes": "5000"}
            expected = (
                ([b"new"],) if is_done["made anew"] else ([b"new"], []) if is_done["removed"] else ([b"old"] * 2,)
            )
            for number in partitions_of(owned, "old"):
                assert read(owned, "old", number) in expected
            append(owned.log(TP), [b"after"])
            close_clean(owned)
            owned = opened(stopped.path)
            assert read(owned, "t") == [*messages, b"after"]
            close_clean(owned)
            assert not [path for path in stopped.path.rglob("*") if path.suffix in (".tmp", ".deleted")]
    assert notes == STEPS
    assert stopped.stop_at > 100


def partitions_of(owned, topic):
    partitions = owned.log_dir.partitions(topic) if topic in owned.log_dir.topics() else []
    assert partitions == list(range(len(partitions)))
    return partitions


@contextlib.contextmanager
def annotated(*notes):
    try:
        yield
    except AssertionError as error:
        error.add_note(" ".join(map(str, notes)))
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
