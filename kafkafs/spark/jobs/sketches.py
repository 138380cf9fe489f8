"""Summaries that tasks compute separately and that can be merged: distinct keys, and the distribution of sizes. Pure.

Distinct keys: the smallest hashes seen (k minimum values; Bar-Yossef et al. 2002). Up to K keys the count is exact,
except for equal hashes of different keys (32 bits: the chance for a pair is one in 4 billion); beyond that its standard
error is 1 / sqrt(K - 2), 2.2 %. Sizes: eight buckets for each doubling, so a quantile is accurate to 9 %.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    UInt32s = NDArray[np.uint32]
    Int64s = NDArray[np.int64]

K: Final = 2048
_HASHES: Final = 2**32

_BUCKETS_PER_DOUBLING: Final = 8
BUCKETS: Final = 1 + 31 * _BUCKETS_PER_DOUBLING + 1  # 0; 1 to 2^31


def least_hashes(*parts: UInt32s) -> UInt32s:
    """The K smallest distinct hashes of all parts, ascending."""
    return np.unique(np.concatenate(parts))[:K]


def distinct(hashes: UInt32s) -> int:
    """An estimate of the number of distinct keys from their smallest hashes."""
    seen: float = len(hashes)
    if len(hashes) == K:
        seen = (K - 1) / ((int(hashes[-1]) + 1) / _HASHES)
    # Corrects for different keys with equal hashes (balls thrown into _HASHES urns).
    return round(-_HASHES * math.log1p(-min(seen, _HASHES - 1) / _HASHES))


def size_counts(sizes: Int64s) -> Int64s:
    """The number of sizes (bytes, from 0 to 2^31) in each of BUCKETS buckets."""
    with np.errstate(divide="ignore"):
        buckets = np.floor(np.log2(sizes) * _BUCKETS_PER_DOUBLING) + 1
    return np.bincount(np.maximum(buckets, 0).astype(np.int64), minlength=BUCKETS)


def quantile(counts: Int64s, share: float) -> int:
    """The size that `share` (0 to 1) of the sizes do not exceed: the middle of its bucket."""
    bucket = int(np.searchsorted(np.cumsum(counts), max(math.ceil(share * int(counts.sum())), 1)))
    return 0 if bucket == 0 else round(2 ** ((bucket - 0.5) / _BUCKETS_PER_DOUBLING))
