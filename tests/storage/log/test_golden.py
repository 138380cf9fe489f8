"""Every fixture, through LogDir and read_range, against what real consumers saw."""

from __future__ import annotations

import json
import random

import pytest

from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.types import Isolation, TopicPartition
from tests.support.fixtures import FIXTURES, GoldenCase, case_params, golden_cases, requires_fixtures, topics_of
from tests.support.readers import open_log, read_all, read_past_damage

# A batch here fails for Kafka's consumer too, and the golden file ends before it.
_DAMAGED_AFTER = {"rec-c4-flip-magic", "rec-m-flip-below-recovery-point"}


@pytest.mark.parametrize("case", case_params())
def test_records_equal_golden(case: GoldenCase) -> None:
    log = LogDir.open_read_only(case.log_dir).log(TopicPartition(case.topic, case.partition))
    snapshot = log.snapshot()
    isolation = Isolation(case.isolation)
    golden = case.records()
    if case.topic in _DAMAGED_AFTER:
        records, errors = read_past_damage(snapshot, isolation)
        assert records[: len(golden)] == golden
        assert len(errors) == 1
        return
    assert read_all(snapshot, isolation=isolation) == golden
    # Small windows cut batches and segments in other places.
    assert read_all(snapshot, isolation=isolation, window=4096) == golden


@pytest.mark.parametrize("case", case_params())
def test_any_range_equals_golden(case: GoldenCase) -> None:
    if case.topic in _DAMAGED_AFTER:
        pytest.skip("ends in damage; see test_records_equal_golden")
    snapshot = LogDir.open_read_only(case.log_dir).log(TopicPartition(case.topic, case.partition)).snapshot()
    golden = case.records()
    rng = random.Random(str(case))
    for _ in range(12):
        start = rng.randint(snapshot.log_start_offset, snapshot.log_end_offset)
        end = rng.randint(start, snapshot.log_end_offset)
        expected = [record for record in golden if start <= record.offset < end]
        assert read_all(snapshot, start, end, Isolation(case.isolation)) == expected


@requires_fixtures
def test_last_stable_offsets_equal_the_brokers() -> None:
    checked = 0
    for case in golden_cases():
        counts = topics_of(case.fixture)[case.topic].get("golden", {}).get(str(case.partition), {})
        if "last_stable_offset" in counts:
            snapshot = open_log(case.partition_dir).snapshot()
            assert last_stable_offset(snapshot) == counts["last_stable_offset"], str(case)
            assert snapshot.log_end_offset == counts["high_watermark"], str(case)
            checked += 1
    assert checked >= 6


@requires_fixtures
def test_open_transaction_bounds_the_last_stable_offset() -> None:
    counts = topics_of("transactions")["tx-open"]["golden"]["0"]
    snapshot = open_log(FIXTURES / "transactions/log/tx-open-0").snapshot()
    assert last_stable_offset(snapshot) == counts["last_stable_offset"] < snapshot.log_end_offset


@requires_fixtures
def test_log_start_offsets_come_from_the_checkpoint() -> None:
    golden = json.loads((FIXTURES / "times/golden/list-offsets.json").read_text())
    log_dir = LogDir.open_read_only(FIXTURES / "times/log")
    for name, offsets in golden.items():
        topic, _, partition = name.rpartition("-")
        snapshot = log_dir.log(TopicPartition(topic, int(partition))).snapshot()
        assert (snapshot.log_start_offset, snapshot.log_end_offset) == (offsets["earliest"], offsets["latest"])
