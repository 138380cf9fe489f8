"""Statistics on Spark, compared with the same counts in plain Python."""

import json
from collections import defaultdict

import numpy as np
import pytest

from kafkafs.spark.jobs.stats import HOUR_MS, K, distinct, least_hashes, quantile, size_counts, stats
from storage.errors import CorruptBatch
from storage.format.block import Record
from storage.format.compression import Codec
from storage.types import TopicPartition
from tests.support.builders import Batch, Partition, abort, build_log_dir, commit, many
from tests.support.commands import run
from tests.support.damaged_bytes import flip


def a_log(path):
    """Two topics, one of two partitions with common keys; several hours in a batch; null keys, values and times."""
    mixed = [
        Record(None if n % 5 == 0 else b"k%d" % (n % 11), None if n % 7 == 0 else bytes(n * 3), (), n * 600_000)
        for n in range(60)
    ]
    return build_log_dir(
        path,
        {
            "mixed": [[Batch(mixed[:30]), Batch(mixed[30:])], [Batch(mixed[10:50], codec=Codec.GZIP)]],
            "timeless": [[Batch([Record(b"k", b"v", (), -1)])]],
            "packed": [Partition([Batch(many(500, 100), codec=Codec.ZSTD)])],
            "tx": [[Batch(many(3), producer_id=7, transactional=True), abort(7), Batch(many(2)), commit(8)]],
        },
    )


def by_hour(built):
    hours = defaultdict(list)
    for (topic, _), partition in built.partitions.items():
        for record in partition.records:
            hour = None if record.timestamp == -1 else record.timestamp // HOUR_MS * HOUR_MS
            hours[topic, hour].append(record)
    return hours


def check(hour, records):
    sizes = sorted(len(record.key or b"") + len(record.value or b"") for record in records)
    assert hour.messages == len(records)
    assert hour.key_bytes == sum(len(record.key or b"") for record in records)
    assert hour.value_bytes == sum(len(record.value or b"") for record in records)
    assert (hour.least_size, hour.greatest_size) == (sizes[0], sizes[-1])
    exact = sizes[(len(sizes) + 1) // 2 - 1]
    assert abs(hour.median_size - exact) <= 0.09 * exact + 1
    assert hour.least_size <= hour.median_size <= hour.p90_size <= hour.p99_size <= hour.greatest_size
    assert hour.without_key == sum(record.key is None for record in records)
    assert hour.distinct_keys == len({record.key for record in records} - {None})
    assert hour.tombstones == sum(record.value is None for record in records)


def test_stats_equal_plain_counting(spark, tmp_path):
    built = a_log(tmp_path)
    tps = [TopicPartition(topic, partition) for topic, partition in built.partitions]
    found = stats(spark, tmp_path, tps)
    hours = by_hour(built)
    assert [(hour.topic, hour.hour_ms) for hour in found.hours] == sorted(
        hours, key=lambda key: (key[0], -(2**62) if key[1] is None else key[1])
    )
    for hour in found.hours:
        check(hour, hours[hour.topic, hour.hour_ms])
    assert found.damaged == 0
    # The shares of the batches' bytes add up; a compression ratio appears where there is compression.
    for topic in ("packed", "timeless"):
        stored = sum(batch.size for batch in built[topic, 0].batches)
        assert abs(sum(hour.log_bytes for hour in found.hours if hour.topic == topic) - stored) <= 1
    ratios = {hour.topic: hour.compression_ratio for hour in found.hours}
    assert ratios["timeless"] == ratios["tx"] == 1.0
    raw = sum(len(batch) for batch in [b"".join(r.value or b"" for r in built["packed", 0].records)])
    packed = built["packed", 0].batches[0].size
    assert raw / packed < ratios["packed"] < 1.3 * raw / packed


def test_damage(spark, tmp_path):
    built = a_log(tmp_path)
    bad = built["mixed", 0].batches[1]
    path = built["mixed", 0].log()
    flip(path, bad.position + 80)
    tps = [TopicPartition("mixed", 0)]
    with pytest.raises(CorruptBatch):
        stats(spark, tmp_path, tps)
    found = stats(spark, tmp_path, tps, keep_damage=True)
    assert (sum(hour.messages for hour in found.hours), found.damaged) == (30, 1)


def test_the_command(spark, tmp_path):
    """Runs in the existing session; a table, JSON, a plot."""
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    a_log(tmp_path / "log")
    shown = run("spark", "stats", tmp_path / "log", "mixed", "--json")
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    assert sum(hour["messages"] for hour in document["hours"]) == 100
    table = run("spark", "stats", tmp_path / "log", "timeless", "--png", tmp_path / "plot.png")
    assert table.exit_code == 0, table.output
    assert table.stdout.splitlines()[1].split()[:3] == ["timeless", "-", "1"]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


# Sketches against exact counts


def hashes(rng, keys):
    """The hashes of this many different keys."""
    return rng.integers(0, 2**32, keys, dtype=np.uint32)


def test_few_keys_are_counted_exactly():
    some = np.array([5, 5, 7, 0, 2**32 - 1, 7], np.uint32)
    assert distinct(least_hashes(some)) == 4
    assert distinct(least_hashes(some, some, np.empty(0, np.uint32))) == 4
    assert distinct(least_hashes(np.empty(0, np.uint32))) == 0


@pytest.mark.parametrize("keys", [K - 1, K, K + 1, 10_000, 1_000_000])
def test_many_keys_are_estimated(keys):
    """Within four standard errors, and independent of how the keys are distributed among tasks."""
    rng = np.random.default_rng(keys)
    seen = hashes(rng, keys)
    whole = least_hashes(seen)
    parts = [least_hashes(part) for part in np.array_split(rng.permutation(np.concatenate([seen, seen])), 7)]
    assert np.array_equal(whole, least_hashes(*parts))
    assert abs(distinct(whole) - keys) <= max(1, (4 / (K - 2) ** 0.5 if keys > K else 0) * keys)


def test_hashes_that_many_keys_share():
    """A billion keys have a ninth fewer hashes than keys; the estimate corrects this."""
    keys = 1_000_000_000
    different = 2**32 * (1 - np.exp(-keys / 2**32))
    spaced = (np.arange(1, K + 1) * (2**32 / different)).astype(np.uint32)
    assert abs(distinct(spaced) - keys) < 0.01 * keys


def test_quantiles():
    rng = np.random.default_rng(3)
    sizes = np.concatenate([np.zeros(50, np.int64), (rng.pareto(1.2, 20_000) * 100).astype(np.int64)])
    counts = size_counts(sizes)
    assert int(counts.sum()) == len(sizes)
    for share in (0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 1.0):
        exact = int(np.quantile(sizes, share, method="inverted_cdf"))
        assert abs(quantile(counts, share) - exact) <= 0.09 * exact + 1
    assert quantile(size_counts(np.array([2**31], np.int64)), 0.5) > 2**30
