"""Retention: what the policies choose, what a pass leaves, and why a segment is still there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from storage.config import BrokerConfig, LogConfig
from storage.errors import NotPermitted, OffsetOutOfRange, SegmentGone
from storage.files.names import FileKind, segment_file
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.upkeep.retention import (
    BY_SIZE,
    BY_TIME,
    EMPTY,
    HIGH_WATERMARK,
    LOG_START_BREACH,
    NO_LIMIT,
    OLDER,
    ONLY_COMPACTED,
    UNTOUCHABLE,
    KeptSegment,
    LogState,
    Retention,
    SegmentInfo,
    by_free_space,
    disk_free_bytes,
    plan,
    policies_for,
)
from storage.verify.verify import verify_log_dir
from tests.support.builders import ROLL, START_MS, Batch, Partition, build_log_dir
from tests.support.crash_points import every_crash
from tests.support.damaged_bytes import flip
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import NOW_MS, StandingClock, append, opened, read, values_of

# Retention: what the policies choose, and what a pass leaves; stopped at every disk operation too.

TP = TopicPartition("t", 0)
SMALL = {"segment.bytes": "600", "index.interval.bytes": "100"}


def _config(**values):
    overrides = {name.replace("_", "."): value for name, value in values.items()}
    return LogConfig.from_overrides(BrokerConfig().topic_defaults, overrides)


def _state(sizes, config, *, times=None, start=0):
    """Segments of ten offsets each, the newest message of each as old as `times` says."""
    ages = [0] * len(sizes) if times is None else times
    segments = tuple(
        SegmentInfo(n * 10, n * 10 + (10 if size else 0), size, lambda age=age: NOW_MS - age)
        for n, (size, age) in enumerate(zip(sizes, ages, strict=True))
    )
    return LogState(segments, start, segments[-1].next_offset, NOW_MS, config)


# Policies


def test_size_never_goes_below_its_limit():
    config = _config(retention_bytes="250")
    assert BY_SIZE.expired(_state([100, 100, 100, 100], config)) == 1
    assert BY_SIZE.expired(_state([100, 100, 150], config)) == 1  # exactly the limit is left
    assert BY_SIZE.expired(_state([100, 100, 149], config)) == 0
    assert BY_SIZE.expired(_state([300, 10, 10], config)) == 0  # stops at the first, small ones behind it or not
    assert BY_SIZE.expired(_state([100, 100], _config(retention_bytes="0"))) == 2  # the active one, too
    assert BY_SIZE.expired(_state([100, 100], _config())) == 0


def test_time_stops_at_the_first_young_segment():
    config = _config(retention_ms="1000")
    assert BY_TIME.expired(_state([9, 9, 9], config, times=[1001, 1000, 5000])) == 1
    assert BY_TIME.expired(_state([9, 9, 9], config, times=[1001, 1001, 1001])) == 3
    assert BY_TIME.expired(_state([9, 9, 0], config, times=[1001, 1001, 9999])) == 2  # an empty active one stays
    assert BY_TIME.expired(_state([9, 9], _config(retention_ms="-1"), times=[10**12, 10**12])) == 0


def test_log_start():
    assert LOG_START_BREACH.expired(_state([9, 9, 9], _config(), start=19)) == 1
    assert LOG_START_BREACH.expired(_state([9, 9, 9], _config(), start=20)) == 2
    assert LOG_START_BREACH.expired(_state([9, 9, 9], _config(), start=30)) == 2  # never the active one


def test_free_space_takes_no_more_than_is_missing_and_never_the_active_segment():
    config = _config(retention_free_bytes="1000")
    assert by_free_space(lambda: 1000).expired(_state([100, 100, 100], config)) == 0
    assert by_free_space(lambda: 999).expired(_state([100, 100, 100], config)) == 1
    assert by_free_space(lambda: 899).expired(_state([100, 100, 100], config)) == 2
    assert by_free_space(lambda: 0).expired(_state([100, 100, 100], config)) == 2
    assert by_free_space(lambda: 0).expired(_state([100, 100, 100], _config())) == 0


def test_nothing_at_or_above_the_high_watermark():
    state = _state([9, 9, 9], _config(retention_ms="0"), times=[1, 1, 1])
    assert BY_TIME.expired(replace(state, high_watermark=19)) == 1
    assert BY_TIME.expired(replace(state, high_watermark=20)) == 2


def test_order_and_reasons():
    """Each policy looks at what those before it leave (log start, size, time)."""
    config = _config(retention_ms="1000", retention_bytes="250")
    state = _state([100, 100, 100, 100, 100], config, times=[0, 0, 2000, 2000, 0], start=10)
    expired = plan(state, policies_for(config, lambda: 0))
    assert [(one.base_offset, one.reason) for one in expired] == [
        (0, "below the log start offset"),
        (10, "retention.bytes"),
        (20, "retention.ms"),
        (30, "retention.ms"),
    ]


def test_compacted_topics_lose_nothing_but_what_is_below_their_start():
    config = _config(cleanup_policy="compact", retention_ms="0", retention_bytes="0", retention_free_bytes="999999")
    assert [policy.reason for policy in policies_for(config, lambda: 0)] == ["below the log start offset"]
    both = _config(cleanup_policy="compact,delete")
    assert len(policies_for(both, lambda: 0)) == 4


def test_free_bytes_of_a_disk(tmp_path):
    assert disk_free_bytes(tmp_path)() > 0


# A pass over a log


def _filled(path, **overrides):
    """A topic with about eight small segments."""
    owned = opened(path)
    owned.create_topic("t", 1, {**SMALL, **{name.replace("_", "."): value for name, value in overrides.items()}})
    values = [b"message %04d" % n for n in range(120)]
    for first in range(0, len(values), 4):
        append(owned.log(TP), values[first : first + 4])
    log = owned.log(TP)
    assert len(log.snapshot().segments) > 4
    return owned, log, values


def _retain(log, *, later_ms=0, before=None):
    return Retention(StandingClock(NOW_MS + later_ms), lambda: 10**15, before).run(log)


def _end(owned, result=None):
    """Deletes what awaits it, closes, and finds nothing wrong; once more after a reopening."""
    for path in () if result is None else result.files:
        owned.disk.unlink(path)
    assert owned.close().clean
    assert verify_log_dir(owned.path) == []


def test_by_size(tmp_path):
    owned, log, values = _filled(tmp_path, retention_bytes="1500")
    before = log.snapshot()
    result = _retain(log)
    after = log.snapshot()
    assert after.size_bytes >= 1500 > after.size_bytes - after.segments[0].size
    assert result.size_bytes == before.size_bytes - after.size_bytes
    assert [one.base_offset for one in result.segments] == [
        s.base_offset for s in before.segments[: len(result.segments)]
    ]
    assert result.log_start_offset == after.log_start_offset == after.segments[0].base_offset > 0
    assert values_of(after) == values[after.log_start_offset :]
    assert {path.name.partition(".")[2] for path in result.files} >= {
        "log.deleted",
        "index.deleted",
        "timeindex.deleted",
    }
    assert all(path.exists() for path in result.files)
    assert not _retain(log).segments
    _end(owned, result)
    owned = opened(tmp_path)
    assert read(owned, "t") == values[after.log_start_offset :]
    _end(owned)


def test_by_time_everything_goes_and_the_offsets_go_on(tmp_path):
    owned, log, values = _filled(tmp_path, retention_ms="60000")
    assert not _retain(log, later_ms=60_000).segments
    result = _retain(log, later_ms=60_001)
    assert result.rolled
    assert result.log_start_offset == result.log_end_offset == len(values)
    assert log.is_empty
    assert not _retain(log, later_ms=10**9).segments  # an empty segment is left alone
    append(log, [b"next"])
    assert values_of(log.snapshot()) == [b"next"]
    _end(owned, result)
    owned = opened(tmp_path)
    assert read(owned, "t") == [b"next"]
    assert owned.log(TP).log_start_offset == len(values)
    _end(owned)


def test_segments_that_are_no_more_the_oldest_are_left_alone(tmp_path):
    owned, log, values = _filled(tmp_path)
    oldest, second = log.snapshot().segments[:2]
    for wrong in ([second], log.snapshot().segments):
        with pytest.raises(SegmentGone):
            log.remove_segments(wrong)
    assert values_of(log.snapshot()) == values
    for path in log.remove_segments([oldest]):
        owned.disk.unlink(path)
    with pytest.raises(SegmentGone):
        log.remove_segments([oldest])
    assert values_of(log.snapshot()) == values[second.base_offset :]
    _end(owned)


def test_what_nobody_set_removes_nothing(tmp_path):
    """Kafka's default of seven days is nobody's wish."""
    owned = opened(tmp_path)
    owned.create_topic("t", 1, SMALL)
    owned.alter_config("t", {}, ["retention.ms"])
    append(owned.log(TP), [b"kept"])
    owned.log(TP).reconfigure(LogConfig.from_overrides(BrokerConfig().topic_defaults, SMALL))
    assert not _retain(owned.log(TP), later_ms=10**11).segments
    _end(owned)


def test_records_deleted_before_an_offset(tmp_path):
    owned, log, values = _filled(tmp_path)
    middle = log.snapshot().segments[2].base_offset + 1
    result = _retain(log, before=middle)
    assert result.log_start_offset == middle
    assert len(result.segments) == 2
    assert values_of(log.snapshot()) == values[middle:]
    _end(owned, result)
    owned = opened(tmp_path)
    assert owned.log(TP).log_start_offset == middle
    result = _retain(owned.log(TP), before=HIGH_WATERMARK)
    assert result.log_start_offset == len(values)
    assert not result.rolled  # the active segment is never below the log start
    assert owned.log(TP).is_empty
    _end(owned, result)


def test_errors_of_deleting_before_an_offset(tmp_path):
    owned, log, values = _filled(tmp_path)
    with pytest.raises(OffsetOutOfRange):
        _retain(log, before=len(values) + 1)
    with pytest.raises(OffsetOutOfRange):
        _retain(log, before=-2)
    log.reconfigure(_config(cleanup_policy="compact"))
    with pytest.raises(NotPermitted):
        _retain(log, before=5)
    assert log.log_start_offset == 0
    _end(owned)


def test_readers_of_removed_segments_are_undisturbed(tmp_path):
    owned, log, values = _filled(tmp_path, retention_ms="1000")
    held = log.snapshot()
    result = _retain(log, later_ms=5000)
    assert values_of(held) == values
    for path in result.files:
        owned.disk.unlink(path)
    with pytest.raises(SegmentGone):
        held.segments[0].log.read(0, 1)
    assert owned.close().clean


# Crashes


@dataclass
class _Notes:
    start: int = 0
    removed: list[int] = field(default_factory=list)


@pytest.mark.parametrize("overrides", [{"retention_bytes": "1500"}, {"retention_ms": "1000"}], ids=["size", "time"])
def test_stopped_anywhere(tmp_path, overrides):
    """What is left is a log whose oldest part is gone, at most as much of it as retention wanted."""
    owned, _, values = _filled(tmp_path / "before", **overrides)
    assert owned.close().clean

    def work(sessions, notes):
        owned = sessions.open()
        log = owned.log(TP)
        told = Retention(StandingClock(NOW_MS + 5000), lambda: 0).preview(log.snapshot(), log.config)
        notes.start = told.log_start_offset
        result = _retain(log, later_ms=5000)
        assert result.log_start_offset == notes.start
        for path in result.files:
            owned.disk.unlink(path)
        owned.close()
        notes.removed = [one.base_offset for one in result.segments]

    stopped = None
    for stopped, notes in every_crash(tmp_path, tmp_path / "before", work, _Notes, power_losses=2):
        owned = opened(stopped.path)
        log = owned.log(TP)
        start = log.log_start_offset
        assert 0 <= start <= notes.start
        assert log.log_end_offset == len(values)
        assert values_of(log.snapshot()) == values[start:], str(stopped)
        if notes.removed:
            assert start == notes.start
        append(log, [b"after"])
        assert owned.close().clean
        assert verify_log_dir(stopped.path) == [], str(stopped)
    assert stopped is not None
    assert stopped.stop_at > 20


def test_a_segment_that_was_just_begun_is_on_the_disk_before_the_others_are_removed(tmp_path):
    """Otherwise a power loss may leave neither it nor the one before it, and offsets are given a second time."""
    owned, _, values = _filled(tmp_path, retention_ms="1000")
    assert owned.close().clean
    disk = FaultyDisk(tmp_path)
    done = []
    owned = opened(tmp_path, disk=disk)
    log = owned.log(TP)
    disk.fail = lambda what, _path: done.append(what)
    result = _retain(log, later_ms=5000)
    disk.fail = lambda _what, _path: None
    assert result.log_start_offset == len(values)
    begun = done.index(f"create {segment_file(len(values), FileKind.LOG)}")
    removed = [what.partition(" ")[0] for what in done].index("rename")
    assert "sync_dir t-0" in done[begun:removed]
    assert owned.close().clean


# Why a segment is still there: checked by what retention does once the time, or the bytes, that it names have come.

HOUR_MS = 3_600_000
KEPT_NOW_MS = START_MS + 100 * HOUR_MS


def log_of(path, *segments, **partition):
    """Segments of messages with these ages in hours; below 0 they lie in the future."""
    items = []
    for ages in segments:
        items += [Batch([Record(None, b"x" * 50, (), KEPT_NOW_MS - age * HOUR_MS)]) for age in ages] + [ROLL]
    built = build_log_dir(path, {"t": [Partition(items[:-1], **partition)]})["t", 0]
    return LogDir.open_read_only(built.path.parent).log(TopicPartition("t", 0)).snapshot()


def kept(snapshot, now_ms=KEPT_NOW_MS, limits=None, **more):
    config = LogConfig.from_overrides(LogConfig(), limits or {})
    return Retention(StandingClock(now_ms), lambda: 10**12, **more).preview(snapshot, config)


def why(found):
    return [segment.kept_by for segment in found.kept]


def test_by_time(tmp_path):
    snapshot, limits = log_of(tmp_path, [90, 80], [70], [20, 10], [5]), {"retention.ms": str(50 * HOUR_MS)}
    found = kept(snapshot, limits=limits)
    assert len(found.segments) == 2
    assert why(found) == [("retention.ms",), ("retention.ms",)]
    assert [one.largest_timestamp for one in found.kept] == [KEPT_NOW_MS - 10 * HOUR_MS, KEPT_NOW_MS - 5 * HOUR_MS]
    assert [one.future_offset for one in found.kept] == [None, None]
    for number, one in enumerate(found.kept):
        assert len(kept(snapshot, one.goes_at - 1, limits).segments) == 2 + number
        assert len(kept(snapshot, one.goes_at, limits).segments) > 2 + number


def test_a_timestamp_in_the_future_keeps_all_after_it(tmp_path):
    snapshot, limits = log_of(tmp_path, [90], [70, -500, 70], [60], [0]), {"retention.ms": str(50 * HOUR_MS)}
    found = kept(snapshot, limits=limits)
    assert len(found.segments) == 1
    assert why(found) == [("retention.ms",), (OLDER,), ("retention.ms",)]
    assert found.kept[0].future_offset == 2
    assert found.kept[0].largest_timestamp == KEPT_NOW_MS + 500 * HOUR_MS
    assert [one.future_offset for one in found.kept[1:]] == [None, None]
    at = {one.goes_at for one in found.kept}
    assert at == {KEPT_NOW_MS + 550 * HOUR_MS + 1}
    assert len(kept(snapshot, at.pop(), limits).segments) == 4


def test_kept_by_size(tmp_path):
    snapshot = log_of(tmp_path, [9], [8], [7], [6])
    size = snapshot.segments[0].size
    found = kept(snapshot, limits={"retention.bytes": str(3 * size), "retention.ms": "-1"})
    assert len(found.segments) == 1
    assert why(found) == [("retention.bytes",), (OLDER,), (OLDER,)]
    assert [one.goes_after_bytes for one in found.kept] == [size, 2 * size, 3 * size]
    assert {one.goes_at for one in found.kept} == {None}


def test_both_limits(tmp_path):
    limits = {"retention.bytes": "1000000", "retention.ms": str(50 * HOUR_MS)}
    assert why(kept(log_of(tmp_path, [10], [5]), limits=limits)) == [("retention.ms", "retention.bytes")] * 2


@pytest.mark.parametrize(
    ("limits", "more", "reason"),
    [
        ({}, {}, NO_LIMIT),
        ({"retention.ms": "1000"}, {"only_start": True}, NO_LIMIT),
        ({"cleanup.policy": "compact", "retention.ms": "1000"}, {}, ONLY_COMPACTED),
        ({"retention.ms": "1000"}, {"high_watermark": 0}, UNTOUCHABLE),
        ({"retention.ms": "1000"}, {"kept_from": lambda _: 0}, UNTOUCHABLE),
    ],
)
def test_other_reasons(tmp_path, limits, more, reason):
    found = kept(log_of(tmp_path, [10], [5]), limits=limits, **more)
    assert found.segments == ()
    assert why(found) == [(reason,)] * 2


def test_an_empty_active_segment(tmp_path):
    build_log_dir(tmp_path, {"t": [Partition([b"old", ROLL])]})
    (tmp_path / "t-0" / f"{1:020d}.log").touch()
    snapshot = LogDir.open_read_only(tmp_path).log(TopicPartition("t", 0)).snapshot()
    found = kept(snapshot, limits={"retention.ms": "1000"})
    assert (len(found.segments), why(found)) == (1, [(EMPTY,)])
    assert isinstance(found.kept[0], KeptSegment)


def test_damage_does_not_end_it(tmp_path):
    """The message with the timestamp in the future cannot be named then."""
    snapshot = log_of(tmp_path, [-5], [1])
    path = snapshot.segments[0].log.path
    flip(path, -3)
    snapshot = LogDir.open_read_only(tmp_path).log(TopicPartition("t", 0)).snapshot()
    assert len(kept(snapshot, limits={"retention.ms": "1000"}).kept) == 2
