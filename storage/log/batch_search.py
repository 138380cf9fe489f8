"""The search for a whole batch with a right CRC among bytes of which nothing else is known.

What looks like a header may claim all bytes that follow, and there may be one at every position. So only the first few
are read to the end that they claim. Of the others the CRCs are computed together, many at a time, in one pass over the
bytes: the CRC of a span follows from those of everything up to its start and up to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from storage.format import checksum_kernel, decode_kernel
from storage.format.batches import BATCH_HEADER_SIZE, LOG_OVERHEAD
from storage.format.checksum import CRC32_TABLES, CRC32C_TABLES, without_prefix
from storage.log.segment import Segment
from storage.types import MAX_OFFSET

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP: Final = 1 << 20
_FEW: Final = 16
_MANY: Final = 1 << 18
_ROUNDS: Final = 32


class Undecided(Exception):
    """The search was given up: too much looks like batches for all of it to be checked."""


class Budget:
    """How many bytes searches may read to check what looks like batches: all of `size` bytes some 32 times."""

    def __init__(self, size: int) -> None:
        self._left = _ROUNDS * (size + _STEP)

    def spend(self, count: int) -> None:
        """Undecided when it is used up."""
        self._left -= count
        if self._left < 0:
            raise Undecided


def intact_batch(
    segment: Segment,
    position: int,
    end: int,
    lowest: int = 0,
    highest: int = MAX_OFFSET - 1,
    *,
    budget: Budget | None = None,
) -> int | None:
    """The position of the first whole batch with a right CRC from `position` up to `end`; None where there is none.

    Its offset must be from `lowest` to `highest`, both included. Undecided when the budget is used up.
    """
    budget = budget or Budget(MAX_OFFSET)
    headers = _headers(segment, position, end, lowest, highest)
    for at, _, stop, *_ in islice(headers, _FEW):
        budget.spend(stop - at)
        if segment.batch_at(at, end, any_offset=True) is not None:
            return at
    while group := list(islice(headers, _MANY)):
        found = np.array(group, np.int64)
        budget.spend(int(found[:, 2].max() - found[0, 0]))
        for row in _of_right_crc(segment, found):
            budget.spend(int(found[row, 2] - found[row, 0]))
            if segment.batch_at(int(found[row, 0]), end, any_offset=True) is not None:
                return int(found[row, 0])
    return None


def _headers(
    segment: Segment, position: int, end: int, lowest: int, highest: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """What looks like a batch, in order: its position, where its bytes that the CRC covers begin and end, that CRC, and
    whether it is CRC-32 (1) or CRC-32C (0)."""
    while position < end:
        # A batch has no length of zero, so it begins at most this far within a hole.
        position = max(position, segment.log.skip_hole(position) - LOG_OVERHEAD)
        if position >= end:
            return
        data = segment.log.read(position, min(_STEP + BATCH_HEADER_SIZE, end - position))
        at = decode_kernel.search(data, 0, end - position, lowest, highest)
        while 0 <= at < _STEP:
            start = position + at
            stop = start + LOG_OVERHEAD + int.from_bytes(data[at + 8 : at + 12], "big")
            old = data[at + 16] < 2
            crc = int.from_bytes(data[at + 12 : at + 16] if old else data[at + 17 : at + 21], "big")
            yield start, start + (16 if old else 21), stop, crc, int(old)
            at = decode_kernel.search(data, at + 1, end - position, lowest, highest)
        if len(data) <= _STEP:
            return
        position += _STEP


def _of_right_crc(segment: Segment, headers: NDArray[np.int64]) -> list[int]:
    """The rows of those headers whose CRC is right."""
    right: list[int] = []
    for ieee, tables in ((0, CRC32C_TABLES), (1, CRC32_TABLES)):
        own = np.flatnonzero(headers[:, 4] == ieee)
        _, start, stop, stored, _ = headers[own].T
        if own.size:
            places, rows = np.unique(np.concatenate([start, stop]), return_inverse=True)
            crcs = _crcs_up_to(segment, places, tables)[rows].astype(np.uint32)
            found = without_prefix(crcs[start.size :], crcs[: start.size], stop - start, ieee=bool(ieee))
            right += own[found == stored].tolist()
    return sorted(right)


def _crcs_up_to(segment: Segment, places: NDArray[np.int64], tables: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The CRCs of what is between the first of `places`, which ascend, and each of them."""
    crcs = np.zeros(places.size, np.int64)
    done, position, value = 1, int(places[0]), 0
    while done < places.size:
        size = min(_STEP, int(places[-1]) - position)
        stop = int(places.searchsorted(position + size, side="right"))
        ends = np.append(places[done:stop] - position, size)
        found = np.empty(ends.size, np.int64)
        checksum_kernel.crcs_up_to(segment.read(position, size), ends, value, tables, found)
        crcs[done:stop] = found[:-1]
        done, position, value = stop, position + size, int(found[-1])
    return crcs
