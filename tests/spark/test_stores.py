"""A backup in an object store is read by its URL, also by tasks in other processes."""

import pytest

from storage.types import TopicPartition
from tests.support.commands import output_of
from tests.support.fixtures import requires_fixtures
from tests.support.tiers import TIERS, golden_of

pytest.importorskip("kafkafs.spark.data_source")


@requires_fixtures
def test_every_record(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    output_of("mirror", TIERS / "log", f"file://{tmp_path}/store", "--tier", TIERS / "tier-local")
    url = f"local://{tmp_path}/store"  # the same place as a store of fsspec, not as a directory
    rows = spark.read.format("kafkafs").option("subscribe", "plain").load(url).collect()
    golden = golden_of(TopicPartition("plain", 0))
    assert sorted((row.offset, row.key, row.value) for row in rows if row.partition == 0) == [
        (one.offset, one.key, one.value) for one in golden
    ]
    assert len(golden) > 0
