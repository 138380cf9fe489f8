"""Every fixture through the views: what real consumers read, whole, and of some of them in ranges; both isolations."""

from __future__ import annotations

import random
import zlib
from bisect import bisect_right
from datetime import UTC, datetime
from functools import cache

import pytest

from kafkafs.reading.pieces import Piece
from storage.errors import OffsetOutOfRange, StorageError
from storage.types import TopicPartition
from tests.support.fixtures import case_params, golden_cases
from tests.support.reference_views import (
    check_log_view,
    content,
    jsonl_objects,
    parsed,
    read_anyhow,
    readable,
    tree_of,
    txt,
)

# Their `after` logs hold damage that Kafka's recovery does not look for: consumers fail there.
DAMAGED = ("rec-c4-", "rec-m-")
# Every third, and all whose indexes were damaged or are missing.
SOME = [case for number, case in enumerate(golden_cases()) if number % 3 == 0 or "index" in case.topic]


@cache
def _tree(log_dir, isolation):
    return tree_of(log_dir, isolation)


def tree(case):
    """One for all tests of a log directory: what one has measured, others find."""
    return _tree(case.log_dir, case.isolation)


def is_damaged(case):
    return case.topic.startswith(DAMAGED)


def base(case):
    return f"/{case.topic}/{case.partition}"


def seed(case):
    return zlib.crc32(str(case).encode())


@pytest.mark.parametrize("case", case_params())
def test_whole_partition(case):
    records = case.records()
    if is_damaged(case):
        for ext in ("txt", "jsonl"):
            stretches, errors = readable(tree(case).lookup(f"{base(case)}/messages.{ext}"))
            assert errors
            if ext == "txt":
                assert stretches[0] == txt(records)
            else:
                assert parsed(stretches[0]) == jsonl_objects(case.topic, case.partition, records)
        return
    assert content(tree(case), f"{base(case)}/messages.txt") == txt(records)
    lines = content(tree(case), f"{base(case)}/messages.jsonl", step=1000)
    assert parsed(lines) == jsonl_objects(case.topic, case.partition, records)


@pytest.mark.parametrize("case", case_params(golden_cases()[::6]))
def test_reads_anywhere_in_any_order(case):
    if is_damaged(case):
        return
    expected = txt(case.records())
    shared = tree_of(case.log_dir, case.isolation)
    shared.start()
    try:
        handle = shared.lookup(f"{base(case)}/messages.txt").open()
        read_anyhow(handle, expected, seed(case))
        handle.close()
    finally:
        shared.stop()


@pytest.mark.parametrize("case", case_params(SOME))
def test_offset_ranges(case):
    """Through a tree that knows nothing, and through one whose view index is complete."""
    records = case.records()
    if is_damaged(case) or not records:
        return
    fresh, indexed = tree_of(case.log_dir, case.isolation), tree(case)
    content(indexed, f"{base(case)}/messages.txt")
    snapshot = indexed.log_dir.log(_tp(case)).snapshot()
    rng = random.Random(seed(case))
    names = {}
    for _ in range(12):
        first, last = sorted(rng.randint(snapshot.log_start_offset, snapshot.log_end_offset + 3) for _ in range(2))
        first = min(first, snapshot.log_end_offset)
        count = rng.randint(1, len(records) + 2)
        names[f"{first}-{last}"] = [record for record in records if first <= record.offset <= last]
        names[f"{first}-"] = [record for record in records if first <= record.offset]
        names[f"{first}"] = [record for record in records if first == record.offset]
        names[f"{first}+{count}"] = [record for record in records if first <= record.offset][:count]
        names[f"last-{count}"] = records[-count:]
    for name, wanted in names.items():
        for chosen in (fresh, indexed):
            assert content(chosen, f"{base(case)}/offsets/{name}.txt") == txt(wanted), name
    name = next(iter(names))
    lines = content(fresh, f"{base(case)}/offsets/{name}.jsonl")
    assert parsed(lines) == jsonl_objects(case.topic, case.partition, names[name])


@pytest.mark.parametrize("case", case_params(SOME))
def test_time_ranges(case):
    records = case.records()
    if is_damaged(case) or not records:
        return
    chosen = tree_of(case.log_dir, case.isolation)
    times = sorted({record.timestamp for record in records})
    rng = random.Random(seed(case))
    for _ in range(10):
        first, last = sorted(rng.choice(times) + rng.randint(-2, 2) for _ in range(2))
        first, last = max(first, 10**12), max(last, 10**12)
        wanted = [record for record in records if first <= record.timestamp < last]
        if first < last:
            assert content(chosen, f"{base(case)}/time/{first}--{last}.txt") == txt(wanted), (first, last)
        since = [record for record in records if first <= record.timestamp]
        assert content(chosen, f"{base(case)}/time/{first}--.txt") == txt(since), first
        until = [record for record in records if -1 < record.timestamp < last]
        assert content(chosen, f"{base(case)}/time/until-{last}.txt") == txt(until), last


@pytest.mark.parametrize("case", case_params(SOME))
def test_raw_views_are_spans_of_the_files(case):
    chosen = tree(case)
    log = chosen.log_dir.log(_tp(case)).snapshot()
    files = b"".join(segment.log.read(0, log.end_position(segment)) for segment in log.segments)
    raw = content(chosen, f"{base(case)}/messages.log")
    check_log_view(raw, files, log.log_start_offset, case.records(), case.isolation)


@pytest.mark.parametrize("case", case_params(SOME))
def test_listed_ranges_hold_each_message_once(case):
    if is_damaged(case):
        return
    chosen = tree(case)
    listed = [entry.name for entry in chosen.lookup(f"{base(case)}/offsets").list()]
    whole = b"".join(content(chosen, f"{base(case)}/offsets/{name}") for name in listed)
    assert whole == txt(case.records())
    bases = [segment.base_offset for segment in chosen.log_dir.log(_tp(case)).snapshot().segments]
    by_day = {}
    firsts = {}
    needed = set()
    for record in case.records():
        if record.timestamp != -1:
            day = datetime.fromtimestamp(record.timestamp / 1000, UTC).date().isoformat()
            by_day.setdefault(f"{day}.txt", []).append(record)
            if record.timestamp >= firsts.setdefault(bisect_right(bases, record.offset), record.timestamp):
                needed.add(f"{day}.txt")  # the day of a late message may be missing
    days = [entry.name for entry in chosen.lookup(f"{base(case)}/time").list()]
    assert days == sorted(set(days))
    assert needed <= set(days)
    for day in days:
        assert content(chosen, f"{base(case)}/time/{day}") == txt(by_day.get(day, [])), day


@pytest.mark.parametrize("case", case_params(SOME))
def test_edges_of_ranges(case):
    chosen = tree(case)
    log = chosen.log_dir.log(_tp(case)).snapshot()
    above = f"{base(case)}/offsets/{log.log_end_offset + 1}"
    for name in (f"{above}.txt", f"{above}-.txt", f"{above}-{log.log_end_offset + 9}.jsonl", f"{above}+3.log"):
        with pytest.raises(OffsetOutOfRange):
            chosen.lookup(name).attributes()
        with pytest.raises(OffsetOutOfRange):
            chosen.lookup(name).open()
    at_end = f"{base(case)}/offsets/{log.log_end_offset}-.txt"
    assert content(chosen, at_end) == b""
    assert chosen.lookup(at_end).attributes().size == 0
    if log.log_start_offset:
        below = f"{base(case)}/offsets/{log.log_start_offset - 1}"
        for name in (f"{below}.txt", f"{below}-.txt", f"{below}-{log.log_end_offset}.txt", f"{below}+3.txt"):
            with pytest.raises(StorageError):
                chosen.lookup(name).open()
        clamped = tree_of(case.log_dir, case.isolation, clamp=True)
        if not is_damaged(case):
            assert content(clamped, f"{below}-.txt") == txt(case.records())
        with pytest.raises(OffsetOutOfRange):
            clamped.lookup(f"{below}.txt").open()


def _tp(case):
    return TopicPartition(case.topic, case.partition)


def test_piece_fields_have_the_kernel_s_order():
    from kafkafs.reading.pieces import BASE_OFFSET, CRC, END, GREATEST, LEAST, RECORDS, SKIP

    assert (END, SKIP, BASE_OFFSET, CRC, LEAST, GREATEST, RECORDS) == (0, 4, 5, 6, 7, 8, 9)
    assert len(Piece._fields) == 10
