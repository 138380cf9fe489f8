"""Decoded blocks encoded again: the way that compaction and conversions go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from storage.errors import CorruptBatch
from storage.format.batches import BatchTable, scan
from storage.format.block import Record, RecordBlock, RecordColumns
from storage.format.compression import Codec
from storage.format.control_records import ControlRecord, ControlType, EndTransactionMarker, control_records
from storage.format.decoder import Decoder
from storage.format.record_batch import BatchFields, encode_batch
from tests.storage.format.outcomes import read_all
from tests.support.control_batches import control_key, marker_batch
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.uncompiled import plain_kernels

# The broker accepted these as they are; they do not decode (fixtures/README.md).
DAMAGED = {"rec-c4-flip-magic-0", "rec-m-flip-below-recovery-point-0"}


def table_of(data: bytes) -> BatchTable:
    table = BatchTable.empty(len(data) // 26 + 1)
    scan(data, 0, table)
    return table


def decoded(data: bytes, *, control: bool = True) -> RecordBlock:
    table = table_of(data)
    block = Decoder().decode(data, table, origin=0, control=control)
    assert block.damage is None
    assert block.next_row == table.rows
    return block


def partitions() -> list[Any]:
    logs = [p for d in ("log", "after") for p in FIXTURES.glob(f"*/{d}/*") if p.is_dir() and any(p.glob("*.log"))]
    return [
        pytest.param(str(p.relative_to(FIXTURES)), id=f"{p.parent.parent.name}:{p.name}")
        for p in sorted(logs)
        if p.name not in DAMAGED
    ]


@requires_fixtures
@pytest.mark.parametrize("partition", partitions())
def test_uncompressed_batches_come_out_as_they_were(partition: str) -> None:
    """Byte for byte, of every producer, coordinator and cleaner, where timestamps are the records' own."""
    for log in sorted((FIXTURES / partition).glob("*.log")):
        data = log.read_bytes()
        table = table_of(data)
        decoder = Decoder()
        for row in range(table.rows):
            attributes = int(table.attributes[row])
            if table.magic[row] != 2 or attributes & 0x0F or table.count[row] == 0:
                continue
            block = decoder.decode(data, table, row, row + 1, origin=0, control=True)
            base_offset = int(table.base_offset[row])
            fields = BatchFields(
                leader_epoch=int(table.leader_epoch[row]),
                producer_id=int(table.producer_id[row]),
                producer_epoch=int(table.producer_epoch[row]),
                base_sequence=int(table.base_sequence[row]),
                transactional=bool(table.is_transactional[row]),
                control=bool(table.is_control[row]),
                delete_horizon_ms=int(table.base_timestamp[row]) if table.has_delete_horizon[row] else None,
                last_offset_delta=int(table.last_offset[row]) - base_offset,
            )
            columns = RecordColumns.from_block(block, block.offset - base_offset)
            start, size = int(table.position[row]), int(table.size[row])
            assert encode_batch(columns, base_offset=base_offset, fields=fields) == data[start : start + size]


def test_kept_records_of_a_compressed_batch() -> None:
    """A selection of a block's rows, with their offsets, into another codec."""
    records = [Record(b"k%d" % i, b"v" * i, ((b"h", b"%d" % i), (b"n", None))[: i % 3], 1000 - i) for i in range(20)]
    block = decoded(encode_batch(records, base_offset=500, codec=Codec.ZSTD))
    kept = block.select(np.arange(20) % 3 == 2)
    columns = RecordColumns.from_block(kept, kept.offset - 500)
    again = encode_batch(
        columns, base_offset=500, codec=Codec.LZ4, fields=BatchFields(delete_horizon_ms=77, last_offset_delta=19)
    )
    outcome = read_all(again)
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in outcome.records] == [
        (500 + i, r.timestamp, r.key, r.value, tuple(r.headers)) for i, r in enumerate(records) if i % 3 == 2
    ]
    assert outcome.batches[0][3] == 519
    with plain_kernels():
        columns = RecordColumns.from_block(kept, kept.offset - 500)
        plain = encode_batch(columns, base_offset=500, fields=BatchFields(delete_horizon_ms=77))
    assert [r.value for r in read_all(plain).records] == [r.value for r in outcome.records]


def test_headers_that_do_not_parse_stop_the_conversion() -> None:
    block = decoded(encode_batch([Record(None, b"", ((b"name", b"value"),))], base_offset=9))
    block.columns[6] = len(block.buffer) - 1
    with pytest.raises(CorruptBatch, match="headers") as raised:
        RecordColumns.from_block(block)
    assert raised.value.offset == 9


MARKERS = [EndTransactionMarker(ControlType.COMMIT, 4), EndTransactionMarker(ControlType.ABORT, 5)]


def a_log_with_markers() -> bytes:
    markers = [
        marker_batch(marker, base_offset=10 + i, timestamp=100 + i, producer_id=70 + i, producer_epoch=i)
        for i, marker in enumerate(MARKERS)
    ]
    return encode_batch([Record(None, b"data")] * 10) + b"".join(markers)


def test_control_records_of_a_block() -> None:
    data = a_log_with_markers()
    assert control_records(decoded(data)) == [
        ControlRecord(10, 100, 1, ControlType.COMMIT, 70, 0, 4),
        ControlRecord(11, 101, 2, ControlType.ABORT, 71, 1, 5),
    ]
    assert control_records(decoded(data, control=False)) == []


def test_a_control_record_that_does_not_parse_is_told_with_its_offset() -> None:
    fields = BatchFields(producer_id=1, producer_epoch=0, transactional=True, control=True)
    record = Record(control_key(ControlType.ABORT), b"12345")
    data = a_log_with_markers() + encode_batch([record], base_offset=12, fields=fields)
    with pytest.raises(CorruptBatch) as raised:
        control_records(decoded(data))
    assert raised.value.offset == 12
    data = encode_batch([Record(b"\x00\x00\x00\x02", None)], base_offset=3, fields=replace(fields, transactional=False))
    assert [(r.type, r.coordinator_epoch) for r in control_records(decoded(data))] == [
        (ControlType.LEADER_CHANGE, None)
    ]
