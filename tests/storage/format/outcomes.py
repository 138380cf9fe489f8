"""All that reading some bytes of a log gives, as plain values: what the two forms of the kernels must agree on."""

from typing import NamedTuple

import numpy as np

from storage.errors import StorageError
from storage.format import decode_kernel
from storage.format.batches import BatchTable, ScanStop, scan
from storage.format.decoder import NO_RECORDS, Decoder
from tests.support.uncompiled import plain_kernels


def exact(data):
    """A copy in memory that ends with its last byte (`bytes` have one more), so that sanitizers see a byte too many."""
    return np.frombuffer(bytes(data), np.uint8).copy().data


def in_both_forms(function, *arguments, **options):
    """What a call returns, or its error's type and text: the same from compiled kernels and from plain Python."""

    def outcome():
        try:
            return function(*arguments, **options)
        except (StorageError, ValueError) as error:
            return type(error), str(error)

    compiled = outcome()
    with plain_kernels():
        assert outcome() == compiled
    return compiled


class ReadRecord(NamedTuple):
    """A decoded record; `row` is its batch's."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    row: int


class Outcome(NamedTuple):
    """Headers, records, damages as (row, position, error class, text), and why and where the scan stopped."""

    batches: list[list[int]]
    records: list[ReadRecord]
    damages: list[tuple[int, int, str, str]]
    stop: ScanStop
    stop_at: int


def read_all(data, *, verify_crc=True):
    """Scan and decode `data`; damaged batches are stepped over.

    Checks what holds for any bytes: columns lie within their buffer, and decoding goes on or stops.
    """
    data = exact(data)
    table = BatchTable.empty(len(data) // 26 + 2)
    stop = scan(data, 0, table)
    assert stop.stop is not ScanStop.FULL
    decoder = Decoder(max_decompressed_bytes=1 << 20, verify_crc=verify_crc, block_bytes=4096)
    records, damages, row = [], [], 0
    while row < table.rows:
        block = decoder.decode(data, table, row, origin=0, control=True)
        for starts, lengths in ((block.key_start, block.key_length), (block.value_start, block.value_length)):
            assert (lengths >= -1).all()
            assert ((lengths < 0) | ((starts >= 0) & (starts + lengths <= len(block.buffer)))).all()
        assert ((block.batch >= row) & (block.batch < block.next_row)).all()
        columns = zip(block.offset.tolist(), block.timestamp.tolist(), block.batch.tolist(), strict=True)
        for index, (offset, timestamp, batch) in enumerate(columns):
            headers = tuple(block.headers(index))
            records.append(ReadRecord(offset, timestamp, block.key(index), block.value(index), headers, batch))
        if block.damage is None:
            assert block.next_row > row
            row = block.next_row
        else:
            assert block.next_row == block.damage.row >= row
            damages.append(_told(block.damage))
            row = block.damage.row + 1
    _check_search(data, table)
    _check_audit(data, table, decoder, records, damages)
    return Outcome(table.data[:, : table.rows].T.tolist(), records, damages, stop.stop, stop.next_start)


def _told(damage):
    assert isinstance(damage.error, StorageError)
    return damage.row, damage.position, type(damage.error).__name__, str(damage.error)


def _check_search(data, table):
    """A search for headers anywhere finds each batch that can be one."""
    found, at = set(), decode_kernel.search(data, 0, len(data), 0, 2**63 - 1)
    while at >= 0:
        found.add(at)
        at = decode_kernel.search(data, at + 1, len(data), 0, 2**63 - 1)
    plausible = (table.base_offset >= 0) & (table.codec <= np.where(table.magic < 2, 3, 4)) & (table.last_offset >= 0)
    assert set(table.position[plausible].tolist()) <= found


def _check_audit(data, table, decoder, records, damages):
    """Checking records without keeping them finds what decoding found."""
    found, row = [], 0
    while row < table.rows:
        audit = decoder.audit(data, table, row, origin=0)
        columns = zip(audit.greatest.tolist(), audit.misplaced.tolist(), audit.misplaced_offset.tolist(), strict=True)
        for number, (greatest, misplaced, misplaced_offset) in enumerate(columns, row):
            mine = [record for record in records if record.row == number]
            # A timestamp of -2**63 cannot be told from none.
            assert greatest == max([NO_RECORDS, *(record.timestamp for record in mine)])
            last = table.last_offset[number]
            before = [-1, *(record.offset for record in mine)]
            wrong = [i for i, record in enumerate(mine) if record.offset <= before[i] or record.offset > last]
            if table.magic[number] == 2 and mine and mine[0].offset < table.base_offset[number]:
                wrong.insert(0, 0)
            assert misplaced == (wrong[0] if wrong else -1)
            assert misplaced_offset == (mine[wrong[0]].offset if wrong else -1)
        row = audit.next_row
        if audit.damage is not None:
            found.append(_told(audit.damage))
            row += 1
    assert found == damages
