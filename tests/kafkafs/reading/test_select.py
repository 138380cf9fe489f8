"""Ranges on logs: edges, last-N over gaps, times."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.reading.range_names import parse_offset_spec, parse_time_spec
from kafkafs.reading.selection import Question, Selection, header_rows, key_rows, time_mask
from storage.errors import OffsetOutOfRange
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import Isolation, TimeRange, TopicPartition
from tests.support.blocks import Row, block_of
from tests.support.builders import ROLL, START_MS, STEP_MS, Batch, Partition, build_log_dir, many

PLAIN = Isolation.READ_UNCOMMITTED


def snapshot_of(path, topic="t"):
    return LogDir.open_read_only(path).log(TopicPartition(topic, 0)).snapshot()


@pytest.fixture
def log(tmp_path):
    """Offsets 10 to 39 in batches of five, a segment each ten; log start 12."""
    items = [item for _ in range(3) for item in (Batch(many(5)), Batch(many(5)), ROLL)][:-1]
    build_log_dir(tmp_path, {"t": [Partition(items, start_offset=10, log_start_offset=12)]})
    return snapshot_of(tmp_path)


def chosen(snapshot, text, *, clamp=False):
    return Question.of(parse_offset_spec(text), PLAIN, clamp=clamp).resolve(snapshot, 0)


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("12-", Selection(12, None)),
        ("40-", Selection(40, None)),
        ("20-29", Selection(20, 30, complete=True)),
        ("20-39", Selection(20, 40, complete=True)),
        ("20-40", Selection(20, 41)),
        ("40-50", Selection(40, 51)),
        ("40", Selection(40, 41)),
        ("39", Selection(39, 40, complete=True)),
        ("20+7", Selection(20, 27, limit=7, complete=True)),
        ("20+20", Selection(20, 40, limit=20, complete=True)),
        ("20+21", Selection(20, None, limit=21)),
        ("40+1", Selection(40, None, limit=1)),
        ("last-3", Selection(37, 40, complete=True)),
        ("last-28", Selection(12, 40, complete=True)),
        ("last-1000", Selection(12, 40, complete=True)),
    ],
)
def test_offsets(log, text, selection):
    assert chosen(log, text) == selection


@pytest.mark.parametrize("text", ["41", "41-", "41-50", "41+1", "11", "0-11", "5-20", "0-", "11+2"])
def test_out_of_range(log, text):
    with pytest.raises(OffsetOutOfRange):
        chosen(log, text)


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("5-20", Selection(12, 21, complete=True)),
        ("0-", Selection(12, None)),
        ("11+2", Selection(12, 14, limit=2, complete=True)),
        ("0-12", Selection(12, 13, complete=True)),
    ],
)
def test_clamped(log, text, selection):
    assert chosen(log, text, clamp=True) == selection


@pytest.mark.parametrize("text", ["41", "41-", "11", "0-11"])
def test_out_of_range_even_if_clamped(log, text):
    with pytest.raises(OffsetOutOfRange):
        chosen(log, text, clamp=True)


times = st.lists(st.integers(-1, 40) | st.just(2000), min_size=1, max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(times, st.integers(1, 8), st.integers(0, 45))
def test_time_ranges_begin_early_enough(tmp_path_factory, timestamps, batch, start_ms):
    records = [r._replace(timestamp=t) for r, t in zip(many(len(timestamps)), timestamps, strict=True)]
    items = [Batch(records[i : i + batch]) for i in range(0, len(records), batch)]
    rolled = [part for item in items for part in (item, ROLL)][:-1]
    path = tmp_path_factory.mktemp("log")
    build_log_dir(path, {"t": [Partition(rolled)], "one": [Partition(items)]})
    for topic in ("t", "one"):
        snapshot = snapshot_of(path, topic)
        selection = Question.of(parse_time_spec(f"{start_ms:013d}--"), PLAIN).resolve(snapshot, 0)
        expected = [offset for offset, t in enumerate(timestamps) if t >= start_ms]
        assert selection.start_offset <= min(expected, default=len(timestamps))
        assert selection.time_range == TimeRange(start_ms, None)
        found = []
        for block in read_range(snapshot, selection.start_offset):
            found += block.offset[time_mask(block.timestamp, TimeRange(start_ms, None))].tolist()
        assert found == expected


def test_last_duration_is_fixed_and_holds_now(log):
    now = START_MS + 35 * STEP_MS
    selection = Question.of(parse_time_spec("last-10s"), PLAIN).resolve(log, now)
    assert selection.time_range == TimeRange(now - 10_000, now + 1)
    assert selection.end_offset == 40
    assert selection.complete
    assert 20 <= selection.start_offset <= 25


# Keys and headers of blocks against looking at each record


few = st.binary(max_size=2) | st.sampled_from(
    [b"key", b"x" * 31, b"x" * 32, b"x" * 33, b"x" * 40 + b"a", b"x" * 40 + b"b"]
)
headers = st.lists(st.tuples(few, st.none() | few), max_size=3).map(tuple)
rows = st.lists(st.builds(Row, key=st.none() | few, value=st.none() | few, headers=headers), max_size=12)


@given(rows, few)
def test_keys(chosen, key):
    expected = [i for i, row in enumerate(chosen) if row.key == key]
    assert key_rows(block_of(chosen), key).tolist() == expected


@given(rows, few, few)
def test_headers(chosen, name, value):
    expected = [i for i, row in enumerate(chosen) if (name, value) in row.headers]
    assert header_rows(block_of(chosen), name, value).tolist() == expected


@given(rows)
def test_headers_that_are_there(chosen):
    for name, value in {header for row in chosen for header in row.headers}:
        if value is not None:
            expected = [i for i, row in enumerate(chosen) if (name, value) in row.headers]
            assert header_rows(block_of(chosen), name, value).tolist() == expected
