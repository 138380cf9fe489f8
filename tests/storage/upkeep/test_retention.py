"""Retention: what the policies choose, what a pass leaves, and why a segment is still there."""

import pytest

from storage.compaction import partition_compaction
from storage.config import BrokerConfig, LogConfig
from storage.errors import NotPermitted, OffsetOutOfRange, SegmentGone
from storage.files.names import FileKind, segment_file
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.upkeep.kept_segments import EMPTY, NO_LIMIT, OLDER, ONLY_COMPACTED, UNTOUCHABLE
from storage.upkeep.partition_retention import preview_partition, retain_partition
from storage.upkeep.retention import (
    BY_SIZE,
    BY_TIME,
    HIGH_WATERMARK,
    LOG_START_BREACH,
    LogState,
    Retention,
    SegmentInfo,
    by_free_space,
    disk_free_bytes,
    plan,
    policies_for,
)
from tests.support.builders import ROLL, START_MS, Batch, Partition, build_log_dir, many, metadata_records
from tests.support.damaged_bytes import flip
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import NOW_MS, StandingClock, append, close_clean, opened, read, values_of

TP = TopicPartition("t", 0)


def config_of(**values):
    overrides = {name.replace("_", "."): str(value) for name, value in values.items()}
    return LogConfig.from_overrides(BrokerConfig().topic_defaults, overrides)


def state(sizes, *, times=None, start=0, high_watermark=None, **config):
    """Segments of ten offsets each, the newest message of each as old as `times` says."""
    ages = [0] * len(sizes) if times is None else times
    segments = tuple(
        SegmentInfo(n * 10, n * 10 + (10 if size else 0), size, lambda age=age: NOW_MS - age)
        for n, (size, age) in enumerate(zip(sizes, ages, strict=True))
    )
    end = segments[-1].next_offset
    return LogState(segments, start, end if high_watermark is None else high_watermark, NOW_MS, config_of(**config))


@pytest.mark.parametrize(
    ("policy", "log", "expired"),
    [
        (BY_SIZE, state([100, 100, 100, 100], retention_bytes=250), 1),
        (BY_SIZE, state([100, 100, 150], retention_bytes=250), 1),  # exactly the limit is left
        (BY_SIZE, state([100, 100, 149], retention_bytes=250), 0),
        (BY_SIZE, state([300, 10, 10], retention_bytes=250), 0),  # stops at the first, small ones behind it or not
        (BY_SIZE, state([100, 100], retention_bytes=0), 2),  # the active one, too
        (BY_SIZE, state([100, 100]), 0),
        (BY_TIME, state([9, 9, 9], times=[1001, 1000, 5000], retention_ms=1000), 1),
        (BY_TIME, state([9, 9, 9], times=[1001, 1001, 1001], retention_ms=1000), 3),
        (BY_TIME, state([9, 9, 0], times=[1001, 1001, 9999], retention_ms=1000), 2),  # an empty active one stays
        (BY_TIME, state([9, 9], times=[10**12, 10**12], retention_ms=-1), 0),
        (BY_TIME, state([9, 9, 9], times=[1, 1, 1], high_watermark=19, retention_ms=0), 1),
        (BY_TIME, state([9, 9, 9], times=[1, 1, 1], high_watermark=20, retention_ms=0), 2),
        (LOG_START_BREACH, state([9, 9, 9], start=19), 1),
        (LOG_START_BREACH, state([9, 9, 9], start=20), 2),
        (LOG_START_BREACH, state([9, 9, 9], start=30), 2),  # never the active one
        (by_free_space(lambda: 1000), state([100, 100, 100], retention_free_bytes=1000), 0),
        (by_free_space(lambda: 999), state([100, 100, 100], retention_free_bytes=1000), 1),
        (by_free_space(lambda: 899), state([100, 100, 100], retention_free_bytes=1000), 2),
        (by_free_space(lambda: 0), state([100, 100, 100], retention_free_bytes=1000), 2),
        (by_free_space(lambda: 0), state([100, 100, 100]), 0),
    ],
)
def test_policies(policy, log, expired):
    assert policy.expired(log) == expired


def test_order_and_reasons(tmp_path):
    """Each policy looks at what those before it leave. Compacted topics lose only what is below their start."""
    assert disk_free_bytes(tmp_path)() > 0
    log = state([100] * 5, times=[0, 0, 2000, 2000, 0], start=10, retention_ms=1000, retention_bytes=250)
    expired = plan(log, policies_for(log.config, disk_free_bytes(tmp_path)))
    assert [(segment.base_offset, segment.reason) for segment in expired] == [
        (0, "below the log start offset"),
        (10, "retention.bytes"),
        (20, "retention.ms"),
        (30, "retention.ms"),
    ]
    config = config_of(cleanup_policy="compact", retention_ms=0, retention_bytes=0, retention_free_bytes=999999)
    assert [policy.reason for policy in policies_for(config, lambda: 0)] == ["below the log start offset"]
    assert len(policies_for(config_of(cleanup_policy="compact,delete"), lambda: 0)) == 4


def filled(path, **overrides):
    owned = opened(path)
    small = {"segment.bytes": "600", "index.interval.bytes": "100"}
    owned.create_topic("t", 1, small | {name.replace("_", "."): value for name, value in overrides.items()})
    values = [b"message %04d" % n for n in range(120)]
    for first in range(0, len(values), 4):
        append(owned.log(TP), values[first : first + 4])
    return owned, owned.log(TP), values


def retain(log, *, later_ms=0, before=None):
    return Retention(StandingClock(NOW_MS + later_ms), lambda: 10**15, before).run(log)


def end(owned, result=None):
    for path in () if result is None else result.files:
        owned.disk.unlink(path)
    close_clean(owned)


def test_a_pass_by_size(tmp_path):
    owned, log, values = filled(tmp_path, retention_bytes="1500")
    before = log.snapshot()
    result = retain(log)
    after = log.snapshot()
    assert after.size_bytes >= 1500 > after.size_bytes - after.segments[0].size
    assert result.size_bytes == before.size_bytes - after.size_bytes
    removed = before.segments[: len(result.segments)]
    assert [segment.base_offset for segment in result.segments] == [segment.base_offset for segment in removed]
    assert result.log_start_offset == after.log_start_offset == after.segments[0].base_offset > 0
    assert {path.name.partition(".")[2] for path in result.files} >= {
        "log.deleted",
        "index.deleted",
        "timeindex.deleted",
    }
    assert values_of(before) == values  # readers of removed segments are undisturbed
    assert not retain(log).segments
    end(owned, result)
    with pytest.raises(SegmentGone):
        before.segments[0].log.read(0, 1)
    owned = opened(tmp_path)
    assert read(owned, "t") == values[after.log_start_offset :]
    end(owned)


def test_by_time_everything_goes_and_the_offsets_go_on(tmp_path):
    owned, log, values = filled(tmp_path, retention_ms="60000")
    assert not retain(log, later_ms=60_000).segments
    result = retain(log, later_ms=60_001)
    assert result.rolled
    assert result.log_start_offset == result.log_end_offset == len(values)
    assert log.is_empty
    assert not retain(log, later_ms=10**9).segments  # an empty segment is left alone
    append(log, [b"next"])
    end(owned, result)
    owned = opened(tmp_path)
    assert read(owned, "t") == [b"next"]
    assert owned.log(TP).log_start_offset == len(values)
    end(owned)


def test_segments_that_are_no_more_the_oldest_are_left_alone(tmp_path):
    owned, log, values = filled(tmp_path)
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
    end(owned)


def test_what_nobody_set_removes_nothing(tmp_path):
    owned, log, _ = filled(tmp_path)
    owned.alter_config("t", {}, ["retention.ms"])
    log.reconfigure(config_of())
    assert not retain(log, later_ms=10**11).segments
    end(owned)


def test_records_deleted_before_an_offset(tmp_path):
    owned, log, values = filled(tmp_path)
    for wrong in (len(values) + 1, -2):
        with pytest.raises(OffsetOutOfRange):
            retain(log, before=wrong)
    middle = log.snapshot().segments[2].base_offset + 1
    result = retain(log, before=middle)
    assert result.log_start_offset == middle
    assert len(result.segments) == 2
    assert values_of(log.snapshot()) == values[middle:]
    end(owned, result)
    owned = opened(tmp_path)
    assert owned.log(TP).log_start_offset == middle
    result = retain(owned.log(TP), before=HIGH_WATERMARK)
    assert result.log_start_offset == len(values)
    assert not result.rolled  # the active segment is never below the log start
    assert owned.log(TP).is_empty
    owned.log(TP).reconfigure(config_of(cleanup_policy="compact"))
    with pytest.raises(NotPermitted):
        retain(owned.log(TP), before=len(values))
    end(owned, result)


@pytest.mark.parametrize(("replicas", "limit"), [([1], 50), ([1, 2], 25)])
def test_nothing_above_the_high_watermark_goes_from_a_topic_with_replicas(tmp_path, replicas, limit):
    """Neither expired messages, nor deleted ones, nor compacted ones: a broker's checkpoint has the high watermark."""
    items = [item for _ in range(5) for item in (Batch(many(10, keys=2)), ROLL)][:-1]
    partition = Partition(items, high_watermark=25)
    topics = {"t": [partition, partition], "__cluster_metadata": [metadata_records("t", 2, replicas)]}
    build_log_dir(tmp_path, topics)
    config = BrokerConfig.from_values({"log.retention.ms": "1000", "log.cleanup.policy": "compact,delete"})
    log_dir = LogDir.open_read_only(tmp_path, config=config, clock=StandingClock(START_MS + 10**9))
    assert partition_compaction.preview_partition(log_dir, TP).first_uncleanable == min(40, limit // 10 * 10)
    told = preview_partition(log_dir, TP, free_bytes=lambda: 10**15)
    owned = opened(tmp_path, config=config)
    owned.clock.time_ms = START_MS + 10**9
    done = retain_partition(owned, TP, free_bytes=lambda: 10**15)
    assert told.log_start_offset == done.log_start_offset == limit // 10 * 10
    deleted = retain_partition(owned, TopicPartition("t", 1), free_bytes=lambda: 10**15, before=HIGH_WATERMARK)
    assert deleted.log_start_offset == limit
    for result in (done, deleted):
        for path in result.files:
            path.unlink()
    close_clean(owned)


def test_a_segment_that_was_just_begun_is_on_the_disk_before_the_others_are_removed(tmp_path):
    """Otherwise a power loss may leave neither it nor the one before it, and offsets are given a second time."""
    owned, _, values = filled(tmp_path, retention_ms="1000")
    end(owned)
    disk, done = FaultyDisk(tmp_path), []
    owned = opened(tmp_path, disk=disk)
    log = owned.log(TP)
    disk.fail = lambda what, _path: done.append(what)
    assert retain(log, later_ms=5000).log_start_offset == len(values)
    disk.fail = lambda _what, _path: None
    begun = done.index(f"create {segment_file(len(values), FileKind.LOG)}")
    removed = [what.partition(" ")[0] for what in done].index("rename")
    assert "sync_dir t-0" in done[begun:removed]
    assert owned.close().clean


# Why a segment is still there: checked by what retention does once the time, or the bytes, that it names have come.

HOUR_MS = 3_600_000
KEPT_NOW_MS = START_MS + 100 * HOUR_MS


def log_of(path, *segments):
    """Segments of messages with these ages in hours; below 0 they lie in the future."""
    items = []
    for ages in segments:
        items += [Batch([Record(None, b"x" * 50, (), KEPT_NOW_MS - age * HOUR_MS)]) for age in ages] + [ROLL]
    build_log_dir(path, {"t": [Partition(items[:-1])]})
    return LogDir.open_read_only(path).log(TP).snapshot()


def kept(snapshot, limits=None, now_ms=KEPT_NOW_MS, **more):
    config = LogConfig.from_overrides(LogConfig(), limits or {})
    return Retention(StandingClock(now_ms), lambda: 10**12, **more).preview(snapshot, config)


def why(result):
    return [segment.kept_by for segment in result.kept]


def test_kept_by_time(tmp_path):
    snapshot, limits = log_of(tmp_path, [90, 80], [70], [20, 10], [5]), {"retention.ms": str(50 * HOUR_MS)}
    result = kept(snapshot, limits)
    assert len(result.segments) == 2
    assert why(result) == [("retention.ms",), ("retention.ms",)]
    assert [(segment.largest_timestamp, segment.future_offset) for segment in result.kept] == [
        (KEPT_NOW_MS - 10 * HOUR_MS, None),
        (KEPT_NOW_MS - 5 * HOUR_MS, None),
    ]
    for number, segment in enumerate(result.kept):
        assert len(kept(snapshot, limits, segment.goes_at - 1).segments) == 2 + number
        assert len(kept(snapshot, limits, segment.goes_at).segments) > 2 + number
    both = limits | {"retention.bytes": "1000000"}
    assert why(kept(snapshot, both)) == [("retention.ms", "retention.bytes")] * 2


@pytest.mark.parametrize("damaged", [False, True])
def test_a_timestamp_in_the_future_keeps_all_after_it(tmp_path, damaged):
    """Its message cannot be named where it is damaged."""
    snapshot, limits = log_of(tmp_path, [90], [70, -500, 70], [60], [0]), {"retention.ms": str(50 * HOUR_MS)}
    if damaged:
        flip(snapshot.segments[1].log.path, snapshot.segments[1].size * 2 // 3 - 3)
        snapshot = LogDir.open_read_only(tmp_path).log(TP).snapshot()
    result = kept(snapshot, limits)
    assert len(result.segments) == 1
    assert why(result) == [("retention.ms",), (OLDER,), ("retention.ms",)]
    assert [segment.future_offset for segment in result.kept] == [None if damaged else 2, None, None]
    assert result.kept[0].largest_timestamp == KEPT_NOW_MS + 500 * HOUR_MS
    assert {segment.goes_at for segment in result.kept} == {KEPT_NOW_MS + 550 * HOUR_MS + 1}
    assert len(kept(snapshot, limits, KEPT_NOW_MS + 550 * HOUR_MS + 1).segments) == 4


def test_kept_by_size(tmp_path):
    snapshot = log_of(tmp_path, [9], [8], [7], [6])
    size = snapshot.segments[0].size
    result = kept(snapshot, {"retention.bytes": str(3 * size), "retention.ms": "-1"})
    assert len(result.segments) == 1
    assert why(result) == [("retention.bytes",), (OLDER,), (OLDER,)]
    assert [(segment.goes_after_bytes, segment.goes_at) for segment in result.kept] == [
        (size * number, None) for number in (1, 2, 3)
    ]


def test_other_reasons(tmp_path):
    snapshot = log_of(tmp_path / "two", [10], [5])
    for limits, more, reason in (
        ({}, {}, NO_LIMIT),
        ({"retention.ms": "1000"}, {"only_start": True}, NO_LIMIT),
        ({"cleanup.policy": "compact", "retention.ms": "1000"}, {}, ONLY_COMPACTED),
        ({"retention.ms": "1000"}, {"high_watermark": 0}, UNTOUCHABLE),
        ({"retention.ms": "1000"}, {"kept_from": lambda: 0}, UNTOUCHABLE),
    ):
        result = kept(snapshot, limits, **more)
        assert (result.segments, why(result)) == ((), [(reason,)] * 2)
    build_log_dir(tmp_path / "empty", {"t": [Partition([b"old", ROLL])]})
    result = kept(LogDir.open_read_only(tmp_path / "empty").log(TP).snapshot(), {"retention.ms": "1000"})
    assert (len(result.segments), why(result)) == (1, [(EMPTY,)])
