"""`kafkafs spark latest`: the table equals `latest.jsonl` and a plain dict, and is there whole or not at all."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import dataset, parquet

from kafkafs.spark.jobs.export import ExportOptions
from kafkafs.spark.jobs.latest import LatestOptions, LatestTable, latest
from storage.errors import CorruptBatch, NotPermitted
from storage.files.disk import RealDisk
from storage.format.block import Record
from storage.types import Isolation, TopicPartition
from tests.support.builders import ROLL, Batch, BuiltRecord, Partition, abort, build_log_dir, commit
from tests.support.commands import output_of, run
from tests.support.damaged_bytes import flip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ExportOptions().columns
# Several tasks, chunks and buckets even for these small logs.
SMALL: dict[str, Any] = {"columns": COLUMNS, "keys_per_scan": 10, "keys_per_bucket": 300, "task_bytes": 12_000}
TP = TopicPartition("t", 0)

Found = list[tuple[int, bytes | None, bytes | None]]


def table(directory: Path) -> dict[tuple[str, int], Found]:
    """All rows by topic and partition, in offset order, as a reader of Hive's layout has them."""
    rows: dict[tuple[str, int], Found] = {}
    found = dataset.dataset(directory, partitioning="hive").to_table().to_pylist()
    for row in sorted(found, key=lambda row: int(row["offset"])):
        rows.setdefault((str(row["topic"]), row["partition"]), []).append((row["offset"], row["key"], row["value"]))
    return rows


def expected(records: Iterable[BuiltRecord]) -> Found:
    last = {record.key: record for record in records if record.key is not None}
    return sorted((one.offset, one.key, one.value) for one in last.values() if one.value is not None)


def a_log(path: Path, seed: int) -> Any:
    dice = random.Random(seed)
    items: list[Any] = []
    keys = [None, *(b"%d" % number for number in range(150))]
    for _ in range(60):
        records = [
            Record(dice.choice(keys), None if dice.random() < 0.2 else dice.randbytes(9))
            for _ in range(dice.randrange(1, 20))
        ]
        items.append(Batch(records))
        if dice.random() < 0.3:
            items += [Batch(records[:3], producer_id=1, transactional=True), dice.choice([commit, abort])(1)]
        if dice.random() < 0.1:
            items.append(ROLL)
    items.append(Batch([Record(b"1", b"open")], producer_id=2, transactional=True))
    return build_log_dir(path, {"t": [Partition(items, index_interval_bytes=300), Partition(items[:9]), Partition([])]})


def written(spark: SparkSession, path: Path, directory: Path, **options: Any) -> LatestTable:
    tps = [TopicPartition("t", number) for number in range(3)]
    return latest(spark, path, directory, tps, LatestOptions(**(SMALL | options)))


@pytest.mark.parametrize("isolation", list(Isolation))
def test_equals_a_dict(spark: SparkSession, tmp_path: Path, isolation: Isolation) -> None:
    built = a_log(tmp_path / "log", 5)
    done = written(spark, tmp_path / "log", tmp_path / "table", isolation=isolation)
    found = table(tmp_path / "table")
    for number in range(3):
        part = built["t", number]
        records = part.records if isolation is Isolation.READ_UNCOMMITTED else part.read_committed
        assert found.get(("t", number), []) == expected(records)
    assert done.messages == sum(map(len, found.values()))
    assert done.files == len(list((tmp_path / "table").rglob("*.parquet"))) > 2
    part = built["t", 0]
    assert part.last_stable_offset < part.log_end_offset
    assert done.ends[TP] == (
        part.log_end_offset if isolation is Isolation.READ_UNCOMMITTED else part.last_stable_offset
    )
    assert not list(tmp_path.glob(".*"))


def test_the_place_must_be_free(spark: SparkSession, tmp_path: Path) -> None:
    a_log(tmp_path / "log", 1)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "mine").touch()
    with pytest.raises(NotPermitted, match="not empty"):
        written(spark, tmp_path / "log", tmp_path / "table")
    with pytest.raises(NotPermitted, match="inside the log directory"):
        written(spark, tmp_path / "log", tmp_path / "log" / "table")
    (tmp_path / "table" / "mine").unlink()
    assert written(spark, tmp_path / "log", tmp_path / "table").files


def test_damage_leaves_no_table(spark: SparkSession, tmp_path: Path) -> None:
    built = a_log(tmp_path / "log", 2)
    path = built["t", 0].log(0)
    flip(path, -3)
    with pytest.raises(CorruptBatch):
        written(spark, tmp_path / "log", tmp_path / "table")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log"]


class _FailingDisk(RealDisk):
    """Fails when the table gets its name."""

    def rename(self, source: Path, target: Path) -> None:
        if source.suffix == ".unfinished":
            raise OSError(errno.EIO, "failed")
        super().rename(source, target)


def test_a_failure_while_it_is_put_in_place_leaves_no_table(spark: SparkSession, tmp_path: Path) -> None:
    a_log(tmp_path / "log", 3)
    with pytest.raises(OSError, match="failed"):
        latest(spark, tmp_path / "log", tmp_path / "table", [TP], LatestOptions(**SMALL), disk=_FailingDisk())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log"]


def test_the_command(tmp_path: Path) -> None:
    built = a_log(tmp_path / "log", 4)
    told = json.loads(output_of("spark", "latest", tmp_path / "log", tmp_path / "table", "t/0", "--headers", "--json"))
    assert told["messages"] == len(expected(built["t", 0].records))
    assert told["partitions"] == [{"topic": "t", "partition": 0, "end_offset": built["t", 0].log_end_offset}]
    (path,) = (tmp_path / "table" / "topic=t").iterdir()
    assert parquet.read_schema(path).names == list(ExportOptions(headers=True).columns)
    again = run("spark", "latest", tmp_path / "log", tmp_path / "table", "t/0")
    assert again.exit_code == 4
    assert "not empty" in again.stderr
