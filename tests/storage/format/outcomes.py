"""All that reading some bytes of a log gives, as plain values: what two forms of the code must agree on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage.errors import StorageError
from storage.format import decode_kernel
from storage.format.batches import BatchTable, ScanStop, scan
from storage.format.decoder import NO_RECORDS, Decoder

Header = tuple[bytes, bytes | None]


class ReadRecord(NamedTuple):
    """A decoded record; `row` is its batch's."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    row: int


class Outcome(NamedTuple):
    """Headers, records, damages as (row, position, error class, text), and why and where the scan stopped."""

    batches: list[list[int]]
    records: list[ReadRecord]
    damages: list[tuple[int, int, str, str]]
    stop: ScanStop
    stop_at: int


def read_all(data: bytes, *, position: int = 0, verify_crc: bool = True, max_bytes: int = 1 << 20) -> Outcome:
    """Scan and decode `data`, which lies at `position` of its file; damaged batches are stepped over.

    Checks what holds for any bytes: columns lie within their buffer, and decoding goes on or stops.
    """
    table = BatchTable.empty(len(data) // 26 + 2)
    stop = scan(data, position, table)
    assert stop.stop is not ScanStop.FULL
    decoder = Decoder(max_decompressed_bytes=max_bytes, verify_crc=verify_crc, block_bytes=4096)
    records: list[ReadRecord] = []
    damages = []
    row = 0
    while row < table.rows:
        block = decoder.decode(data, table, row, origin=position, control=True)
        size = len(block.buffer)
        for starts, lengths in ((block.key_start, block.key_length), (block.value_start, block.value_length)):
            assert (lengths >= -1).all()
            assert ((lengths < 0) | ((starts >= 0) & (starts + lengths <= size))).all()
        assert ((block.batch >= row) & (block.batch < block.next_row)).all()
        for index in range(len(block)):
            records.append(
                ReadRecord(
                    int(block.offset[index]),
                    int(block.timestamp[index]),
                    block.key(index),
                    block.value(index),
                    tuple(block.headers(index)),
                    int(block.batch[index]),
                )
            )
        damage = block.damage
        if damage is None:
            assert block.next_row > row
            row = block.next_row
        else:
            assert block.next_row == damage.row >= row
            assert isinstance(damage.error, StorageError)
            damages.append((damage.row, damage.position, type(damage.error).__name__, str(damage.error)))
            row = damage.row + 1
    searched, at = [], decode_kernel.search(data, 0, len(data), 0, 2**63 - 1)
    while at >= 0:
        searched.append(at)
        at = decode_kernel.search(data, at + 1, len(data), 0, 2**63 - 1)
    plausible = (table.base_offset >= 0) & (table.codec <= np.where(table.magic < 2, 3, 4)) & (table.last_offset >= 0)
    assert set((table.position[plausible] - position).tolist()) <= set(searched)
    check_audit(data, table, position, decoder, records, damages)
    return Outcome(table.data[:, : table.rows].T.tolist(), records, damages, stop.stop, stop.next_start)


def check_audit(
    data: bytes,
    table: BatchTable,
    position: int,
    decoder: Decoder,
    records: list[ReadRecord],
    damages: list[tuple[int, int, str, str]],
) -> None:
    """Checking records without keeping them finds what decoding found."""
    found = []
    row = 0
    while row < table.rows:
        audit = decoder.audit(data, table, row, origin=position)
        columns = zip(audit.greatest.tolist(), audit.misplaced.tolist(), audit.misplaced_offset.tolist(), strict=True)
        for number, (greatest, misplaced, misplaced_offset) in enumerate(columns, row):
            mine = [one for one in records if one.row == number]
            # A timestamp of -2**63 cannot be told from none.
            assert greatest == max([NO_RECORDS, *(one.timestamp for one in mine)])
            last = table.last_offset[number]
            before = [-1, *(one.offset for one in mine)]
            wrong = [i for i, one in enumerate(mine) if one.offset <= before[i] or one.offset > last]
            if table.magic[number] == 2 and mine and mine[0].offset < table.base_offset[number]:
                wrong.insert(0, 0)
            assert misplaced == (wrong[0] if wrong else -1)
            assert misplaced_offset == (mine[wrong[0]].offset if wrong else -1)
        row = audit.next_row
        if audit.damage is not None:
            error = audit.damage.error
            found.append((audit.damage.row, audit.damage.position, type(error).__name__, str(error)))
            row += 1
    assert found == damages
