"""Messages and bytes over time, in buckets that widen until they are few.

A time after the year 9999 is not a date: some producers write microseconds or nanoseconds instead of milliseconds.
Messages without a date are counted separately.
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

_Int64s = npt.NDArray[np.int64]

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
# Bucket widths that people use, milliseconds.
WIDTHS: Final = (
    *(n * unit for unit in (1, 10, 100) for n in (1, 2, 5)),
    *(n * unit for unit in (_SECOND, _MINUTE) for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14, 28, 91, 364, 3640)),
)
# The widths used while counting: each divides the next.
_STEPS: Final = (
    1, 10, 100, _SECOND, 10 * _SECOND, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 7 * _DAY, 28 * _DAY, 364 * _DAY,
    3640 * _DAY,
)  # fmt: skip
_LAST_MS: Final = 253_402_300_799_999  # of the year 9999
_MOST_COUNTED: Final = 4096
MOST_BUCKETS: Final = 1_000_000


class TooManyBuckets(ValueError):
    """The given width would need more than MOST_BUCKETS buckets."""


class Histogram(NamedTuple):
    """`messages` and `size_bytes` (int64) of each bucket of `width_ms` from `start_ms` (epoch milliseconds) on.
    Messages without a valid date are counted separately. Without any timestamp there is no bucket."""

    start_ms: int
    width_ms: int
    messages: _Int64s
    size_bytes: _Int64s
    undated_messages: int
    undated_bytes: int

    @property
    def starts_ms(self) -> _Int64s:
        """The time at which each bucket begins."""
        return self.start_ms + np.arange(len(self.messages), dtype=np.int64) * self.width_ms


class HistogramCounter:
    """Counts messages and bytes by time, in at most 4,096 buckets, or in at most MOST_BUCKETS of a given `width_ms`."""

    def __init__(self, width_ms: int | None = None) -> None:
        self._fixed = width_ms is not None
        self._width = width_ms or _STEPS[0]
        self._first = 0  # the bucket in the first column, counted from 1970
        self._totals = np.zeros((2, 0), np.int64)  # messages, bytes
        self._undated = np.zeros(2, np.int64)

    def add_messages(self, times_ms: _Int64s) -> None:
        """Count a message at each of these times. TooManyBuckets."""
        self._add(0, times_ms, None)

    def add_bytes(self, times_ms: _Int64s, sizes: _Int64s) -> None:
        """Count these bytes at these times. TooManyBuckets."""
        self._add(1, times_ms, sizes)

    def histogram(self, most: int = 40) -> Histogram:
        """The counts in at most `most` buckets of one of the WIDTHS, or in buckets of the given width."""
        width, count = self._width, self._totals.shape[1]
        if count and not self._fixed:
            further = (WIDTHS[-1] << doubled for doubled in itertools.count(1))
            start, end = self._first * self._width, (self._first + count - 1) * self._width
            width = next(
                wider
                for wider in itertools.chain(WIDTHS, further)
                if wider % self._width == 0 and end // wider - start // wider < most
            )
        first, totals = self._regrouped(width)
        undated = self._undated.tolist()
        return Histogram(first * width, width if count else self._width, totals[0], totals[1], *undated)

    def _add(self, row: int, times_ms: _Int64s, weights: _Int64s | None) -> None:
        if not len(times_ms):
            return
        least, most = int(times_ms.min()), int(times_ms.max())
        if least < 0 or most > _LAST_MS:
            dated = (times_ms >= 0) & (times_ms <= _LAST_MS)
            missing = np.count_nonzero(~dated) if weights is None else weights[~dated].sum()
            self._undated[row] += int(missing)
            self._add(row, times_ms[dated], None if weights is None else weights[dated])
            return
        self._reach(least, most)
        first, last = least // self._width - self._first, most // self._width - self._first
        if first == last:
            self._totals[row, first] += len(times_ms) if weights is None else int(weights.sum())
            return
        slots = times_ms // self._width - (self._first + first)
        counts = np.bincount(slots, weights)
        self._totals[row, first : last + 1] += counts.astype(np.int64)

    def _reach(self, least_ms: int, most_ms: int) -> None:
        """Make room for these times; widen the buckets until they are few enough."""
        while True:
            first, last = least_ms // self._width, most_ms // self._width
            count = self._totals.shape[1]
            if count:
                first, last = min(first, self._first), max(last, self._first + count - 1)
            if last - first < (MOST_BUCKETS if self._fixed else _MOST_COUNTED):
                break
            if self._fixed:
                raise TooManyBuckets(f"{last - first + 1} buckets of {self._width} ms; at most {MOST_BUCKETS}")
            wider = next(step for step in _STEPS if step > self._width)
            self._first, self._totals = self._regrouped(wider)
            self._width = wider
        if last - first + 1 > count:
            totals = np.zeros((2, last - first + 1), np.int64)
            if count:
                totals[:, self._first - first : self._first - first + count] = self._totals
            self._first, self._totals = first, totals

    def _regrouped(self, width_ms: int) -> tuple[int, _Int64s]:
        """The first bucket and the counts in buckets of a multiple of the width."""
        count = self._totals.shape[1]
        if not count or width_ms == self._width:
            return self._first, self._totals
        slots = (self._first + np.arange(count, dtype=np.int64)) * self._width // width_ms
        first = int(slots[0])
        totals = np.zeros((2, int(slots[-1]) - first + 1), np.int64)
        for total, counts in zip(totals, self._totals, strict=True):
            np.add.at(total, slots - first, counts)
        return first, totals
