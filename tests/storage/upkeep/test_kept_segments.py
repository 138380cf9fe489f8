"""Why a segment is still there: checked by what retention does once the time, or the bytes, that it names have come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.config import LogConfig
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition
from storage.upkeep.retention import EMPTY, NO_LIMIT, OLDER, ONLY_COMPACTED, UNTOUCHABLE, KeptSegment, Retention
from tests.support.builders import ROLL, START_MS, Batch, Item, Partition, build_log_dir
from tests.support.owned_dirs import StandingClock

HOUR_MS = 3_600_000
NOW_MS = START_MS + 100 * HOUR_MS


def log_of(path: Path, *segments: list[int], **partition: Any) -> LogSnapshot:
    """Segments of messages with these ages in hours; below 0 they lie in the future."""
    items: list[Item] = []
    for ages in segments:
        items += [Batch([Record(None, b"x" * 50, (), NOW_MS - age * HOUR_MS)]) for age in ages] + [ROLL]
    built = build_log_dir(path, {"t": [Partition(items[:-1], **partition)]})["t", 0]
    return LogDir.open_read_only(built.path.parent).log(TopicPartition("t", 0)).snapshot()


def kept(snapshot: LogSnapshot, now_ms: int = NOW_MS, limits: dict[str, str] | None = None, **more: Any) -> Any:
    config = LogConfig.from_overrides(LogConfig(), limits or {})
    return Retention(StandingClock(now_ms), lambda: 10**12, **more).preview(snapshot, config)


def why(found: Any) -> list[tuple[str, ...]]:
    return [segment.kept_by for segment in found.kept]


def test_by_time(tmp_path: Path) -> None:
    snapshot, limits = log_of(tmp_path, [90, 80], [70], [20, 10], [5]), {"retention.ms": str(50 * HOUR_MS)}
    found = kept(snapshot, limits=limits)
    assert len(found.segments) == 2
    assert why(found) == [("retention.ms",), ("retention.ms",)]
    assert [one.largest_timestamp for one in found.kept] == [NOW_MS - 10 * HOUR_MS, NOW_MS - 5 * HOUR_MS]
    assert [one.future_offset for one in found.kept] == [None, None]
    for number, one in enumerate(found.kept):
        assert len(kept(snapshot, one.goes_at - 1, limits).segments) == 2 + number
        assert len(kept(snapshot, one.goes_at, limits).segments) > 2 + number


def test_a_timestamp_in_the_future_keeps_all_after_it(tmp_path: Path) -> None:
    snapshot, limits = log_of(tmp_path, [90], [70, -500, 70], [60], [0]), {"retention.ms": str(50 * HOUR_MS)}
    found = kept(snapshot, limits=limits)
    assert len(found.segments) == 1
    assert why(found) == [("retention.ms",), (OLDER,), ("retention.ms",)]
    assert found.kept[0].future_offset == 2
    assert found.kept[0].largest_timestamp == NOW_MS + 500 * HOUR_MS
    assert [one.future_offset for one in found.kept[1:]] == [None, None]
    at = {one.goes_at for one in found.kept}
    assert at == {NOW_MS + 550 * HOUR_MS + 1}
    assert len(kept(snapshot, at.pop(), limits).segments) == 4


def test_by_size(tmp_path: Path) -> None:
    snapshot = log_of(tmp_path, [9], [8], [7], [6])
    size = snapshot.segments[0].size
    found = kept(snapshot, limits={"retention.bytes": str(3 * size), "retention.ms": "-1"})
    assert len(found.segments) == 1
    assert why(found) == [("retention.bytes",), (OLDER,), (OLDER,)]
    assert [one.goes_after_bytes for one in found.kept] == [size, 2 * size, 3 * size]
    assert {one.goes_at for one in found.kept} == {None}


def test_both_limits(tmp_path: Path) -> None:
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
def test_other_reasons(tmp_path: Path, limits: dict[str, str], more: dict[str, Any], reason: str) -> None:
    found = kept(log_of(tmp_path, [10], [5]), limits=limits, **more)
    assert found.segments == ()
    assert why(found) == [(reason,)] * 2


def test_an_empty_active_segment(tmp_path: Path) -> None:
    build_log_dir(tmp_path, {"t": [Partition([b"old", ROLL])]})
    (tmp_path / "t-0" / f"{1:020d}.log").touch()
    snapshot = LogDir.open_read_only(tmp_path).log(TopicPartition("t", 0)).snapshot()
    found = kept(snapshot, limits={"retention.ms": "1000"})
    assert (len(found.segments), why(found)) == (1, [(EMPTY,)])
    assert isinstance(found.kept[0], KeptSegment)


def test_damage_does_not_end_it(tmp_path: Path) -> None:
    """The message with the timestamp in the future cannot be named then."""
    snapshot = log_of(tmp_path, [-5], [1])
    path = snapshot.segments[0].log.path
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    snapshot = LogDir.open_read_only(tmp_path).log(TopicPartition("t", 0)).snapshot()
    assert len(kept(snapshot, limits={"retention.ms": "1000"}).kept) == 2
