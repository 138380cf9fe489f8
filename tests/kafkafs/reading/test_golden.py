"""Every fixture through the views: what real consumers read, whole, and of some of them in ranges; both isolations."""

import random
import zlib
from bisect import bisect_right
from datetime import UTC, datetime
from functools import cache

import pytest

from storage.types import TopicPartition
from tests.support.fixtures import case_params, golden_cases
from tests.support.reference_views import (
    check_log_view,
    content,
    jsonl_objects,
    parsed,
    read_all,
    read_anyhow,
    readable,
    tree_of,
    txt,
)

# Their `after` logs hold damage that Kafka's recovery does not look for: consumers fail there.
DAMAGED = ("rec-c4-", "rec-m-")


def is_damaged(case):
    return case.topic.startswith(DAMAGED)


SOUND = [case for case in golden_cases() if not is_damaged(case)]
# Every third, and all whose indexes were damaged or are missing.
SOME = [case for number, case in enumerate(SOUND) if number % 3 == 0 or "index" in case.topic]


@cache
def _tree(log_dir, isolation):
    return tree_of(log_dir, isolation)


def tree(case):
    """One for all tests of a log directory: what one has measured, others find."""
    return _tree(case.log_dir, case.isolation)


def base(case):
    return f"/{case.topic}/{case.partition}"


def snapshot(case):
    return tree(case).log_dir.log(TopicPartition(case.topic, case.partition)).snapshot()


def seed(case):
    return zlib.crc32(str(case).encode())


@pytest.mark.parametrize("case", case_params([case for case in golden_cases() if is_damaged(case)]))
def test_what_is_before_damage(case):
    records, shown = case.records(), tree(case)
    stretches, errors = readable(shown.lookup(f"{base(case)}/messages.txt"))
    assert errors
    assert stretches[0] == txt(records)
    stretches, errors = readable(shown.lookup(f"{base(case)}/messages.jsonl"))
    assert errors
    assert parsed(stretches[0]) == jsonl_objects(case.topic, case.partition, records)


@pytest.mark.parametrize("case", case_params(SOUND))
def test_whole_partition(case):
    """Also where it is rendered while it is measured. Without a cache each message is rendered again, by the size that
    came from rendering."""
    views = {path: content(tree(case), path) for path in (f"{base(case)}/messages.{ext}" for ext in ("txt", "jsonl"))}
    lines, objects = views.values()
    assert lines == txt(case.records())
    assert parsed(objects) == jsonl_objects(case.topic, case.partition, case.records())
    for path, expected in views.items():
        for cache_bytes in (0, 1 << 20):
            large = tree_of(case.log_dir, case.isolation, exact_below=1, cache_bytes=cache_bytes)
            handle = large.lookup(path).open()
            assert read_all(handle, 1000) == expected
            assert handle.size == len(expected)
            assert content(large, path) == expected


@pytest.mark.parametrize("case", case_params(SOUND[::6]))
def test_reads_anywhere_in_any_order(case):
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
    if not records:
        return
    fresh, indexed = tree_of(case.log_dir, case.isolation), tree(case)
    content(indexed, f"{base(case)}/messages.txt")
    log = snapshot(case)
    rng = random.Random(seed(case))
    names = {}
    for _ in range(12):
        first, last = sorted(rng.randint(log.log_start_offset, log.log_end_offset + 3) for _ in range(2))
        first = min(first, log.log_end_offset)
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
    if not records:
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
    log = snapshot(case)
    files = b"".join(segment.log.read(0, log.end_position(segment)) for segment in log.segments)
    raw = content(chosen, f"{base(case)}/messages.log")
    check_log_view(raw, files, log.log_start_offset, case.records(), case.isolation)


@pytest.mark.parametrize("case", case_params(SOME))
def test_listed_ranges_hold_each_message_once(case):
    chosen = tree(case)
    listed = [entry.name for entry in chosen.lookup(f"{base(case)}/offsets").list()]
    whole = b"".join(content(chosen, f"{base(case)}/offsets/{name}") for name in listed)
    assert whole == txt(case.records())
    bases = [segment.base_offset for segment in snapshot(case).segments]
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
