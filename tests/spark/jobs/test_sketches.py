"""Sketches against exact counts."""

from __future__ import annotations

import numpy as np
import pytest

from kafkafs.spark.jobs.stats import K, distinct, least_hashes, quantile, size_counts


def hashes(rng: np.random.Generator, keys: int) -> np.ndarray:
    """The hashes of this many different keys."""
    return rng.integers(0, 2**32, keys, dtype=np.uint32)


def test_few_keys_are_counted_exactly() -> None:
    some = np.array([5, 5, 7, 0, 2**32 - 1, 7], np.uint32)
    assert distinct(least_hashes(some)) == 4
    assert distinct(least_hashes(some, some, np.empty(0, np.uint32))) == 4
    assert distinct(least_hashes(np.empty(0, np.uint32))) == 0


@pytest.mark.parametrize("keys", [K - 1, K, K + 1, 10_000, 1_000_000])
def test_many_keys_are_estimated(keys: int) -> None:
    """Within four standard errors, and independent of how the keys are distributed among tasks."""
    rng = np.random.default_rng(keys)
    seen = hashes(rng, keys)
    whole = least_hashes(seen)
    parts = [least_hashes(part) for part in np.array_split(rng.permutation(np.concatenate([seen, seen])), 7)]
    assert np.array_equal(whole, least_hashes(*parts))
    assert abs(distinct(whole) - keys) <= max(1, (4 / (K - 2) ** 0.5 if keys > K else 0) * keys)


def test_hashes_that_many_keys_share() -> None:
    """A billion keys have a ninth fewer hashes than keys; the estimate corrects this."""
    keys = 1_000_000_000
    different = 2**32 * (1 - np.exp(-keys / 2**32))
    spaced = (np.arange(1, K + 1) * (2**32 / different)).astype(np.uint32)
    assert abs(distinct(spaced) - keys) < 0.01 * keys


def test_quantiles() -> None:
    rng = np.random.default_rng(3)
    sizes = np.concatenate([np.zeros(50, np.int64), (rng.pareto(1.2, 20_000) * 100).astype(np.int64)])
    counts = size_counts(sizes)
    assert int(counts.sum()) == len(sizes)
    for share in (0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 1.0):
        exact = int(np.quantile(sizes, share, method="inverted_cdf"))
        assert abs(quantile(counts, share) - exact) <= 0.09 * exact + 1
    assert quantile(size_counts(np.array([2**31], np.int64)), 0.5) > 2**30
