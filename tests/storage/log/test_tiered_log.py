"""Logs whose older segments are in a tier, as one: against what a broker's consumers saw."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from storage.errors import TierUnavailable
from storage.files import names
from storage.log.log_dir import LogDir
from storage.log.offset_lookup import offset_for_timestamp
from storage.log.reader import find_batch
from storage.log.scanning import scan_batches
from storage.types import Isolation, TopicPartition
from tests.support.fixtures import requires_fixtures
from tests.support.readers import read_all, read_past_damage
from tests.support.tiers import ISOLATIONS, LAYOUTS, TIERS, copied, golden_of, opened, partitions

pytestmark = requires_fixtures

GONE, LZ, TWO = TopicPartition("gone", 0), TopicPartition("lz", 0), TopicPartition("two", 0)


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_record_once_from_every_layout(layout: str, metadata: bool, tmp_path: Path) -> None:
    directory = TIERS / "log" if metadata else copied(TIERS / "log", tmp_path / "log", metadata=False)
    log_dir = opened(directory, TIERS / layout)
    rng = random.Random(layout)
    for tp in partitions():
        snapshot = log_dir.log(tp).snapshot()
        assert snapshot.remote_offsets is None
        for isolation in ISOLATIONS:
            golden = golden_of(tp, isolation)
            assert read_all(snapshot, isolation=Isolation(isolation)) == golden, (tp, isolation)
            start = rng.randint(snapshot.log_start_offset, snapshot.log_end_offset)
            end = rng.randint(start, snapshot.log_end_offset)
            expected = [record for record in golden if start <= record.offset < end]
            assert read_all(snapshot, start, end, Isolation(isolation), window=4096) == expected, (tp, start, end)


def test_ends_are_those_of_the_broker() -> None:
    log_dir = opened(TIERS / "log", TIERS / "tier-local")
    golden = json.loads((TIERS / "golden" / "offsets.json").read_text())
    for tp in partitions():
        snapshot = log_dir.log(tp).snapshot()
        found = snapshot.log_start_offset, snapshot.local_log_start_offset, snapshot.log_end_offset
        offsets = golden[tp.dir_name]
        assert found == (offsets["earliest"], offsets["earliest-local"], offsets["latest"]), tp


def test_offsets_by_time_are_those_of_the_broker() -> None:
    log_dir = opened(TIERS / "log", TIERS / "tier-aiven")
    checked = 0
    for name, answers in json.loads((TIERS / "golden" / "list-offsets.json").read_text()).items():
        topic, _, number = name.rpartition("-")
        snapshot = log_dir.log(TopicPartition(topic, int(number))).snapshot()
        for asked, offset, timestamp in answers["for_timestamp"] if topic != "txn" else ():
            found = offset_for_timestamp(snapshot, asked)
            answer = (-1, -1) if found is None else (found.offset, found.timestamp)
            assert answer == (offset, timestamp), (name, asked)
            checked += 1
    assert checked > 50


@pytest.mark.parametrize("metadata", [True, False])
def test_accidents(metadata: bool, tmp_path: Path) -> None:
    directory = copied(TIERS / "lost" / "log", tmp_path / "log", metadata=metadata)
    log_dir = opened(directory, TIERS / "lost" / "tier-local")
    for tp in log_dir.all_partitions():
        if tp not in set(partitions()):
            continue
        snapshot = log_dir.log(tp).snapshot()
        for isolation in ISOLATIONS:
            records, errors = read_past_damage(snapshot, Isolation(isolation))
            golden = golden_of(tp, isolation)
            if tp == LZ:
                golden = [record for record in golden if not 781 <= record.offset <= 1538]
                assert [str(error).partition(" and cannot")[0].partition(": ")[2] for error in errors] == [
                    "messages 781 to 1538 are in tiered storage"
                ]
                assert isinstance(errors[0], TierUnavailable)
            else:
                assert errors == []
                golden = [record for record in golden if record.offset >= snapshot.log_start_offset]
            assert records == golden, (tp, isolation)


def test_a_lost_lineage_is_that_of_the_last_upload(tmp_path: Path) -> None:
    directory = copied(TIERS / "lost" / "log", tmp_path / "log", metadata=False)
    (directory / TWO.dir_name / names.LEADER_EPOCH_CHECKPOINT).unlink()
    snapshot = opened(directory, TIERS / "lost" / "tier-local").log(TWO).snapshot()
    assert read_all(snapshot) == golden_of(TWO)


def test_a_tier_that_is_away_is_an_error_for_its_part_and_is_tried_again(tmp_path: Path) -> None:
    away = tmp_path / "tier"
    log = opened(TIERS / "log", away).log(LZ)
    now = [0.0]
    log._monotonic = lambda: now[0]  # type: ignore[attr-defined]
    records, errors = read_past_damage(log.snapshot())
    assert records == golden_of(LZ)[-570:]
    assert [type(error) for error in errors] == [TierUnavailable]
    assert str(away) in str(errors[0])
    assert "messages 0 to 2403 are" in str(errors[0])
    shutil.copytree(TIERS / "tier-local", away)
    now[0] = 3600.0
    assert read_all(log.snapshot()) == golden_of(LZ)


def test_a_truncated_object_is_an_error_where_it_ends(tmp_path: Path) -> None:
    tier = copied(TIERS / "tier-local", tmp_path / "tier")
    log = next(tier.glob("lz-*/*0781-*.log"))
    log.write_bytes(log.read_bytes()[:40_000])
    snapshot = opened(TIERS / "log", tier).log(LZ).snapshot()
    found, errors = read_past_damage(snapshot, window=4096)
    assert [type(error) for error in errors] == [TierUnavailable]
    kept = {record.offset for record in found}
    assert found == [record for record in golden_of(LZ) if record.offset in kept]
    assert {*range(900), *range(1539, 2974)} <= kept
    assert errors[0].offset == min(set(range(2974)) - kept)  # type: ignore[attr-defined]


def test_a_segment_that_moves_stays_the_same(tmp_path: Path) -> None:
    keep = TopicPartition("keep", 0)
    directory = copied(TIERS / "log", tmp_path / "log")
    log = opened(directory, TIERS / "tier-aiven-enc").log(keep)
    before = log.snapshot()
    assert before.remote == ()
    part, seen = directory / keep.dir_name, [segment.log.stat() for segment in before.segments]
    for segment in before.segments[:3]:
        for file in part.glob(f"{segment.base_offset:020d}.*"):
            file.unlink()
    # Whoever has the old list goes on with it, although nobody has looked at the directory since.
    assert read_all(before) == golden_of(keep)
    after = log.snapshot()
    assert after.segments == before.segments
    assert [segment.log.stat() for segment in after.segments] == seen
    assert (after.log_start_offset, after.local_log_start_offset) == (0, 719)
    assert read_all(after) == golden_of(keep)


def test_the_active_segment_moves_after_it_has_grown(tmp_path: Path) -> None:
    two = TopicPartition("gone", 1)
    directory, whole = copied(TIERS / "log", tmp_path / "log"), tmp_path / "whole"
    part, tier = directory / two.dir_name, next((TIERS / "tier-local").glob("gone-1-*"))
    (part / f"{506:020d}.log").rename(whole)
    last = next(tier.glob(f"{479:020d}-*.log")).read_bytes()
    active = part / f"{479:020d}.log"
    active.write_bytes(last[:-1])  # all but its last batch can be read
    log = opened(directory, TIERS / "tier-local").log(two)
    before = log.snapshot()
    assert before.log_end_offset < 506
    active.unlink()
    whole.rename(part / f"{506:020d}.log")
    after = log.snapshot()
    assert after.segments[: len(before.segments)] == before.segments
    assert read_all(after) == golden_of(two)


def test_a_log_without_a_tier_is_as_before() -> None:
    snapshot = LogDir.open_read_only(TIERS / "log").log(GONE).snapshot()
    assert (snapshot.log_start_offset, snapshot.remote_offsets is None) == (1260, False)


def test_overlapping_segments_are_cut_where_batches_begin(tmp_path: Path) -> None:
    directory = copied(TIERS / "lost" / "log", tmp_path / "log", metadata=False)
    tier = copied(TIERS / "lost" / "tier-local", tmp_path / "tier")
    for path in tier.glob(f"gone-0-*/{233:020d}-*"):
        path.unlink()
    snapshot = opened(directory, tier).log(GONE).snapshot()
    # The one from 367 to 612 is read whole, and the one from 482 to 718 from there on.
    assert [segment.base_offset for segment in snapshot.segments[:4]] == [0, 233, 367, 613]
    records, errors = read_past_damage(snapshot)
    assert [str(error).partition(": ")[2][:22] for error in errors] == ["messages 233 to 366 ar"]
    golden = golden_of(GONE)
    assert records == golden[:233] + golden[367:]
    for start in (613, 650, 700):
        assert read_all(snapshot, start, 720) == golden[start:720]
        assert find_batch(snapshot, start).position < snapshot.segments[3].size  # type: ignore[union-attr]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_followers_segments_begin_elsewhere_than_those_in_the_tier(layout: str, tmp_path: Path) -> None:
    directory = copied(TIERS / "log", tmp_path / "log")
    whole = opened(TIERS / "log", TIERS / "tier-local").log(GONE).snapshot()
    part = directory / GONE.dir_name
    for base, end in ((367, 613), (613, 1260)):
        data = b""
        for segment in whole.segments:
            for window in scan_batches(whole, segment, 0):
                rows = (window.table.base_offset >= base) & (window.table.base_offset < end)
                starts, ends = window.table.position[rows] - window.origin, window.table.end[rows] - window.origin
                data += b"".join(bytes(window.buffer[a:b]) for a, b in zip(starts, ends, strict=True))
        (part / f"{base:020d}.log").write_bytes(data)
    log = opened(directory, TIERS / layout).log(GONE)
    before, golden = log.snapshot(), golden_of(GONE)
    assert (before.local_log_start_offset, [one.base_offset for one in before.remote]) == (367, [0, 233])
    assert read_all(before) == golden
    (part / f"{367:020d}.log").unlink()
    assert read_all(before) == golden
    after = log.snapshot()
    assert (after.segments, after.local_log_start_offset) == (before.segments, 613)
    assert read_all(after, 400, 700) == golden[400:700]
    for start in (370, 481, 482, 500, 612):  # by the index that its parts have together
        assert find_batch(after, start).segment is before.segments[2]  # type: ignore[union-attr]
    assert len(after.segments[2].offset_index()) > 10
