"""When a source's batches count as those of a copy."""

from __future__ import annotations

import numpy as np
import pytest

from storage.backup.mirror import same_batches
from storage.format.batches import BatchTable, Column


def table(*rows: dict[Column, int]) -> BatchTable:
    made = BatchTable(np.zeros((len(Column), len(rows)), np.int64), len(rows))
    for index, row in enumerate(rows):
        for column, value in row.items():
            made.data[column, index] = value
    return made


def batch(last: int, crc: int, count: int = 2, **others: int) -> dict[Column, int]:
    named = {Column[name.upper()]: value for name, value in others.items()}
    return {Column.BASE_OFFSET: last - 1, Column.LAST_OFFSET: last, Column.CRC: crc, Column.COUNT: count,
            Column.MAGIC: 2, **named}  # fmt: skip


COPY = table(batch(1, 11), batch(3, 22), batch(5, 33))


@pytest.mark.parametrize(
    ("source", "plain", "compacted"),
    [
        ([batch(1, 11), batch(3, 22), batch(5, 33)], True, True),
        ([batch(1, 11), batch(3, 99), batch(5, 33)], False, False),
        ([batch(1, 11), batch(5, 33)], False, True),
        ([], False, True),
        ([batch(1, 11), batch(3, 99, 1), batch(5, 33)], False, True),
        ([batch(1, 11), batch(3, 99, 0), batch(5, 33)], False, True),
        ([batch(1, 11), batch(3, 99, 1, producer_id=7), batch(5, 33)], False, False),
        ([batch(1, 11), batch(3, 99, 1, base_offset=3), batch(5, 33)], False, False),
        ([batch(1, 11), batch(3, 99, 1, leader_epoch=1), batch(5, 33)], False, False),
        ([batch(1, 11), batch(2, 44), batch(3, 22), batch(5, 33)], False, False),
    ],
)
def test_sources(source: list[dict[Column, int]], plain: bool, compacted: bool) -> None:
    assert same_batches(COPY, table(*source), compacted=False) is plain
    assert same_batches(COPY, table(*source), compacted=True) is compacted


def test_old_formats_become_new_ones() -> None:
    old = table(batch(1, 11, magic=1))
    new = table(batch(1, 99, 1, producer_id=-1))
    assert same_batches(old, new, compacted=True)
    assert not same_batches(old, new, compacted=False)
