"""Which times damage may hide: a range of times that includes one of them must not read as if nothing had been there.

The content of a damaged batch is unknown. Its times are assumed to be those between the batches before and after it,
and those in its own header if they are near. Without a neighbour the times are open at that end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from kafkafs.view_index.pieces import NO_GREATEST, NO_LEAST, OPEN_ABOVE, OPEN_BELOW
from storage.format.batches import BatchTable, claimed_times, times_of
from storage.types import NO_TIMESTAMP

Times = tuple[int, int]
"""Least and greatest timestamp of a batch as its header names them, or of what damage may have held."""

_NEAR_MS = 366 * 86_400_000  # a damaged batch's own times are used if they are at most so far from its neighbours'


def hidden_times(before: Times | None, behind: Times | None, own: Times | None) -> Times:
    """The times that damage between two batches may hide, open where no batch is known on that side (None).

    `own`: those in the header of a damaged batch, if it has one. Each counts if it is near the others.
    """
    known = [time for pair in (before, behind) if pair is not None for time in pair if time > NO_TIMESTAMP]
    if own is not None and known:
        first, last = min(known) - _NEAR_MS, max(known) + _NEAR_MS
        known += [time for time in own if max(first, 0) <= time <= last]
    least = OPEN_BELOW if before is None else min(known, default=NO_LEAST)
    greatest = OPEN_ABOVE if behind is None else max(known, default=NO_GREATEST)
    return least, greatest


def of_damaged_rows(table: BatchTable, damaged: Sequence[int], before: Times | None) -> dict[int, Times]:
    """The times that each damaged row (ascending) of a table may hide. `before`: the times of the last readable batch
    before the table."""
    bad = set(damaged)
    good = [row for row in range(table.rows) if row not in bad]
    found = {}
    for row in damaged:
        slot = bisect_left(good, row)
        last = times_of(table, good[slot - 1]) if slot else before
        following = times_of(table, good[slot]) if slot < len(good) else None
        found[row] = hidden_times(last, following, claimed_times(table, row))
    return found


def times_at_ends(table: BatchTable, damaged: Sequence[int]) -> tuple[Times, Times] | None:
    """The times of the first and the last readable batch of a table; None when there is none."""
    bad = set(damaged)
    first = next((row for row in range(table.rows) if row not in bad), None)
    if first is None:
        return None
    last = next(row for row in reversed(range(table.rows)) if row not in bad)
    return times_of(table, first), times_of(table, last)
