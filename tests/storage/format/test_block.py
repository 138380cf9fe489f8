"""RecordBlock: choosing, gathering, and bytes at API edges."""

from __future__ import annotations

import numpy as np
import pytest

from storage.errors import CorruptBatch
from storage.format import block as block_module
from storage.format.batches import BatchTable, scan
from storage.format.block import RecordBlock
from storage.format.decoder import Decoder
from tests.support.raw_batches import batch, record
from tests.support.uncompiled import uncompiled

HEADERS = [(b"a", b"1"), (b"a", None), (b"", b"x" * 200)]
RECORDS = [
    record(0, b"k0", b"v0"),
    record(1, None, b""),
    record(2, b"", None),
    record(3, b"k3", b"v" * 300, HEADERS),
]
KEYS = [b"k0", None, b"", b"k3"]
VALUES = [b"v0", b"", None, b"v" * 300]


def a_block() -> RecordBlock:
    data = batch(RECORDS[:3], 10) + batch(RECORDS[3:], 10)
    table = BatchTable.empty(2)
    scan(data, 0, table)
    return Decoder().decode(data, table, origin=0)


@pytest.mark.parametrize(
    ("rows", "offsets"),
    [
        (np.array([True, False, False, True]), [10, 13]),
        (np.array([3, 0, 0]), [13, 10, 10]),
        (np.array([], np.int64), []),
        (slice(1, 3), [11, 12]),
        (slice(None, None, -1), [13, 12, 11, 10]),
    ],
)
def test_select(rows: np.ndarray | slice, offsets: list[int]) -> None:
    block = a_block()
    part = block.select(rows)
    assert part.offset.tolist() == offsets
    assert [part.key(i) for i in range(len(part))] == [KEYS[offset - 10] for offset in offsets]
    assert (part.buffer, part.table, part.next_row, part.damage) == (block.buffer, block.table, 2, None)
    part.columns[:] = -7
    assert block.offset.tolist() == [10, 11, 12, 13]
    assert all(column.flags.c_contiguous for column in part.columns)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("separator", [None, b"\n", b"", b"\r\n--"])
def test_gather(separator: bytes | None, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if plain:
        monkeypatch.setattr(block_module, "decode_kernel", uncompiled("storage.format.decode_kernel"))
    block = a_block()
    gap = separator or b""
    for column, expected in ("key", KEYS), ("value", VALUES):
        data, ends = block.gather(column, separator)  # type: ignore[arg-type] # a loop over both literals
        assert data == b"".join((item or b"") + gap for item in expected)
        starts = [0, *(ends[:-1] + len(gap)).tolist()]
        assert [data[a:b] for a, b in zip(starts, ends.tolist(), strict=True)] == [item or b"" for item in expected]
    assert (block.select(slice(0)).gather("key")[0], len(block.select(slice(0)).gather("key")[1])) == (b"", 0)


def test_single_records() -> None:
    block = a_block()
    assert [block.key(i) for i in range(4)] == KEYS
    assert [block.value(i) for i in range(4)] == VALUES
    assert [block.headers(i) for i in range(4)] == [[], [], [], HEADERS]


def test_headers_of_foreign_columns_raise() -> None:
    block = a_block().detach()
    block.headers_start[3] = len(block.buffer) - 1
    with pytest.raises(CorruptBatch):
        block.headers(3)


def test_a_detached_block_outlives_the_next_decode() -> None:
    first, second = bytearray(batch([record(0, b"one")])), batch([record(0, b"two")], 5)
    table = BatchTable.empty(1)
    scan(first, 0, table)
    decoder = Decoder()
    block = decoder.decode(first, table, origin=0)
    kept = block.detach()
    table.clear()
    scan(second, 0, table)
    first[:] = bytes(len(first))
    assert decoder.decode(second, table, origin=0).key(0) == b"two"
    assert (kept.key(0), kept.offset.tolist(), kept.table.base_offset.tolist()) == (b"one", [0], [0])
    assert block.offset.tolist() == [5]  # which is why


def test_the_buffer_is_read_only() -> None:
    assert a_block().buffer.readonly
    assert a_block().detach().buffer.readonly
