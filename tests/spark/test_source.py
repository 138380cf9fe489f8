"""spark.read.format("kafkafs"): what real consumers read, and what the options promise."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from storage.types import TopicPartition
from tests.fixtures import READ_UNCOMMITTED, Golden, GoldenCase, golden_cases, requires_fixtures

PythonException = pytest.importorskip("pyspark.errors").PythonException

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DAMAGED = {"rec-c4-flip-magic", "rec-m-flip-below-recovery-point"}  # the consumer fails there, and so do we
KINDS = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}


def read(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    """`options`: with _ for the dots."""
    texts = {name.replace("_", "."): str(value) for name, value in options.items()}
    return spark.read.format("kafkafs").options(**texts).load(str(path))


def records(table: pa.Table) -> dict[TopicPartition, list[Golden]]:
    """The rows by partition, in the order in which they came."""
    found: dict[TopicPartition, list[Golden]] = defaultdict(list)
    columns = table.set_column(5, "timestamp", table.column("timestamp").cast("int64")).to_pydict()
    headers = columns.pop("headers")
    for row, values in enumerate(zip(*columns.values(), strict=True)):
        key, value, topic, partition, offset, timestamp, kind = values
        pairs = tuple((header["key"].encode(), header["value"]) for header in headers[row] or ())
        assert headers[row] is None or pairs
        assert timestamp % 1000 == 0
        found[TopicPartition(topic, partition)].append(
            Golden(offset, timestamp // 1000, KINDS[kind], key, value, pairs)
        )
    return found


def by_fixture() -> Iterator[pytest.param]:
    cases: dict[tuple[str, str], list[GoldenCase]] = defaultdict(list)
    for case in golden_cases():
        if case.topic not in DAMAGED:
            cases[case.fixture, case.isolation].append(case)
    for (fixture, isolation), several in cases.items():
        yield pytest.param(several, id=f"{fixture}-{isolation}")
    if not cases:
        yield pytest.param([], id="no-fixtures", marks=pytest.mark.skip(reason="no fixtures"))


def assigned(partitions: Iterable[TopicPartition]) -> str:
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        topics[tp.topic].append(tp.partition)
    return json.dumps(topics)


@pytest.mark.parametrize("cases", list(by_fixture()))
def test_every_fixture_reads_as_its_golden_files(spark: SparkSession, cases: list[GoldenCase]) -> None:
    wanted = {TopicPartition(case.topic, case.partition): case for case in cases}
    frame = read(
        spark, cases[0].log_dir, assign=assigned(wanted), includeHeaders=True, kafka_isolation_level=cases[0].isolation
    )
    found = records(frame.toArrow())
    assert found.keys() <= wanted.keys()
    for tp, case in wanted.items():
        assert found.get(tp, []) == case.records(), tp


@requires_fixtures
@pytest.mark.parametrize("topic", sorted(DAMAGED))
def test_a_corrupt_batch_fails_the_query_or_is_skipped(spark: SparkSession, topic: str) -> None:
    (case,) = (case for case in golden_cases() if case.topic == topic and case.isolation == READ_UNCOMMITTED)
    error = r"storage.errors.(UnsupportedFormat|CorruptBatch): .*\.log: .* at position"
    with pytest.raises(PythonException, match=error):
        read(spark, case.log_dir, subscribe=topic).toArrow()
    frame = read(spark, case.log_dir, subscribe=topic, onCorruptBatch="skip", includeHeaders=True)
    (found,) = records(frame.toArrow()).values()
    seen = case.records()
    assert found[: len(seen)] == seen
    assert len(found) > len(seen)
