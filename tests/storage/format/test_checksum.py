"""Known answers, and every way to a checksum giving the same one."""

from __future__ import annotations

import random
import zlib

import crc32c as crc32c_package
import numpy as np
import pytest

from storage.format import checksum, checksum_kernel, decoder
from storage.format.batches import BatchTable, Column, scan
from storage.format.decoder import verify_crcs
from tests.support.raw_batches import batch, message, record
from tests.support.uncompiled import uncompiled

KERNELS = [
    pytest.param(checksum_kernel, id="as installed"),
    pytest.param(uncompiled("storage.format.checksum_kernel"), id="plain"),
]
# RFC 3720 B.4 and the usual check string.
CRC32C_ANSWERS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "answer"), CRC32C_ANSWERS)
def test_crc32c_known_answers(data: bytes, answer: int) -> None:
    assert checksum.crc32c(data) == answer
    assert checksum.crc32c(memoryview(data)) == answer
    assert checksum.crc32c(data[3:], checksum.crc32c(data[:3])) == answer


def test_crc32_known_answer() -> None:
    assert checksum.crc32(b"123456789") == 0xCBF43926


def by_tables(kernel, data: bytes, magic: int) -> int:  # type: ignore[no-untyped-def] # a module
    """The checksum that the kernel finds with its slicing tables for a batch with `data` as what is checksummed."""
    head = 21 if magic == 2 else 16
    table = np.zeros((len(Column), 1), np.int64)
    table[Column.SIZE], table[Column.MAGIC] = head + len(data), magic
    tables = checksum.CRC32C_TABLES[:4096], checksum.CRC32_TABLES  # without those for the processor's instruction
    _, found, _ = kernel.check_batches(bytes(head) + data, table, 0, 1, 0, *tables, 1000, np.zeros((1, 5), np.int64))
    return int(found)


@pytest.mark.parametrize("kernel", KERNELS)
def test_tables_agree_with_the_libraries_at_every_length(kernel) -> None:  # type: ignore[no-untyped-def] # a module
    data = random.Random(1).randbytes(100)
    for start in range(3):
        for end in range(start, len(data)):
            part = data[start:end]
            assert by_tables(kernel, part, 2) == crc32c_package.crc32c(part)
            assert by_tables(kernel, part, 1) == zlib.crc32(part)


@pytest.mark.parametrize("kernel", KERNELS)
def test_running_crcs_and_those_of_spans(kernel) -> None:  # type: ignore[no-untyped-def] # a module
    data, dice = random.Random(2).randbytes(5000), random.Random(3)
    for tables, function in ((checksum.CRC32C_TABLES, crc32c_package.crc32c), (checksum.CRC32_TABLES, zlib.crc32)):
        ends = np.sort(np.array([0, 0, len(data), *(dice.randrange(len(data)) for _ in range(50))], np.int64))
        crcs = np.zeros(len(ends), np.int64)
        kernel.crcs_up_to(data, ends, function(b"before"), tables, crcs)
        assert crcs.tolist() == [function(b"before" + data[:end]) for end in ends.tolist()]
        starts = np.array([dice.randrange(end + 1) for end in ends.tolist()], np.int64)
        before = np.array([function(data[:at]) for at in starts.tolist()], np.uint32)
        whole = np.array([function(data[:at]) for at in ends.tolist()], np.uint32)
        found = checksum.without_prefix(whole, before, ends - starts, ieee=function is zlib.crc32)
        assert found.tolist() == [function(data[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        for wrong in ([-1], [3, 2], [len(data) + 1], [2**62], [-(2**63)]):
            with pytest.raises(ValueError, match="ascend"):
                kernel.crcs_up_to(data, np.array(wrong, np.int64), 0, tables, crcs)
        with pytest.raises(ValueError, match="no room"):
            kernel.crcs_up_to(data, ends, 0, tables, crcs[1:])


@pytest.mark.parametrize("kernel", KERNELS)
def test_too_few_tables_are_refused(kernel) -> None:  # type: ignore[no-untyped-def] # a module
    short, rows = np.zeros(4095, np.uint32), (np.zeros((len(Column), 1), np.int64), 0, 0, 0)
    for tables in ((short, checksum.CRC32_TABLES), (checksum.CRC32C_TABLES, short)):
        with pytest.raises(ValueError, match="tables"):
            kernel.check_batches(b"", *rows, *tables, 0, np.zeros((1, 5), np.int64))


def test_small_batches_go_through_tables_only_where_those_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum_kernel, "is_compiled", lambda: True)
    assert checksum.small_limit() == checksum.SMALL_BYTES
    monkeypatch.setattr(checksum_kernel, "is_compiled", lambda: False)
    assert checksum.small_limit() < 0


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("limit", [-1, 100, 1 << 40])
def test_a_flipped_bit_anywhere_is_found(plain: bool, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However batches are shared between tables and library: v2 from the attributes on, v0 and v1 from the magic on."""
    monkeypatch.setattr(checksum, "small_limit", lambda: limit)
    if plain:
        monkeypatch.setattr(decoder, "checksum_kernel", uncompiled("storage.format.checksum_kernel"))
    parts = [batch([record(value=b"v" * 60)]), message(1, b"v" * 99), message(2, b"v", magic=0), batch([record()], 3)]
    data = b"".join(parts)
    table = BatchTable.empty(4)
    scan(data, 1000, table)
    assert verify_crcs(data, table, 0, 4, 1000) is None
    for row, part in enumerate(parts):
        start = int(table.position[row]) - 1000
        checked = 21 if table.magic[row] == 2 else 16
        for at in (checked, checked + 1, len(part) - 1):
            hurt = bytearray(data)
            hurt[start + at] ^= 0x10
            damage = verify_crcs(hurt, table, 0, 4, 1000)
            assert damage is not None
            assert (damage.row, damage.position) == (row, start + 1000)
            assert damage.error.expected == table.crc[row]
            assert damage.error.found == (
                crc32c_package.crc32c(bytes(hurt[start + 21 : start + len(part)]))
                if checked == 21
                else zlib.crc32(hurt[start + 16 : start + len(part)])
            )
            assert damage.error.position == damage.position
            assert damage.error.offset == table.last_offset[row]
            assert verify_crcs(hurt, table, row + 1, 4, 1000) is None


def test_batches_of_every_size() -> None:
    """The processor's instruction takes spans of 3 x 1024 and 3 x 128 bytes, words and single bytes."""
    dice = random.Random(3)
    for size in (*range(70), *range(375, 400), *range(3060, 3090), 3500, 10_000, 100_001):
        data = bytearray(batch(dice.randbytes(size), count=1))
        table = BatchTable.empty(1)
        scan(data, 0, table)
        assert verify_crcs(data, table, 0, 1, 0) is None
        data[dice.randrange(21, len(data))] ^= 1 << dice.randrange(8)
        damage = verify_crcs(data, table, 0, 1, 0)
        assert damage is not None
        assert damage.error.found == crc32c_package.crc32c(bytes(data[21:]))


def test_rows_outside_of_the_buffer_are_refused() -> None:
    data = batch([record()])
    table = BatchTable.empty(1)
    scan(data, 1000, table)
    for part, origin in ((data[:-1], 1000), (data, 1001), (data, 999)):
        with pytest.raises(ValueError, match="outside"):
            verify_crcs(part, table, 0, 1, origin)
