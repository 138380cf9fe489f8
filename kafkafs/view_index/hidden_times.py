"""Which times damage may hide: a range of times that one of them lies in must not read as if nothing had been there.

What a damaged batch held nobody knows. It is taken to lie from the times of the batch before to those of the one
behind, and where its own header says, if that is near. Where there is no neighbour the times are open at that end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from kafkafs.view_index.pieces import NO_GREATEST, NO_LEAST, OPEN_ABOVE, OPEN_BELOW
from storage.format.batches import BatchTable
from storage.log.timestamps import times_of
from storage.types import NO_TIMESTAMP

Times = tuple[int, int]
"""Least and greatest timestamp of a batch as its header names them, or of what damage may have held."""

_NEAR_MS = 366 * 86_400_000  # how far from its neighbours' times a damaged batch's own are believed


def between(before: Times | None, behind: Times | None) -> Times:
    """What may have stood between two batches. None: there is none on that side, as far as one can see."""
    known = _known(before, behind)
    least = OPEN_BELOW if before is None else min(known, default=NO_LEAST)
    greatest = OPEN_ABOVE if behind is None else max(known, default=NO_GREATEST)
    return least, greatest


def of_damaged_rows(table: BatchTable, damaged: Sequence[int], before: Times | None) -> dict[int, Times]:
    """By damaged row (ascending) of a table; `before`: of the last batch before the table that reads."""
    bad = set(damaged)
    good = [row for row in range(table.rows) if row not in bad]
    found = {}
    for row in damaged:
        slot = bisect_left(good, row)
        last = times_of(table, good[slot - 1]) if slot else before
        following = times_of(table, good[slot]) if slot < len(good) else None
        least, greatest = between(last, following)
        own, known = times_of(table, row), _known(last, following)
        if known and own[0] > NO_TIMESTAMP and min(known) - _NEAR_MS <= own[0] and own[1] <= max(known) + _NEAR_MS:
            least, greatest = min(least, own[0]), max(greatest, own[1])
        found[row] = least, greatest
    return found


def times_at_ends(table: BatchTable, damaged: Sequence[int]) -> tuple[Times, Times] | None:
    """The times of the first and the last batch of a table that read; None when none does."""
    bad = set(damaged)
    first = next((row for row in range(table.rows) if row not in bad), None)
    if first is None:
        return None
    last = next(row for row in reversed(range(table.rows)) if row not in bad)
    return times_of(table, first), times_of(table, last)


def _known(before: Times | None, behind: Times | None) -> list[int]:
    return [time for pair in (before, behind) if pair is not None for time in pair if time > NO_TIMESTAMP]
