"""Digests of records: the definition in plain Python, test vectors, and the kernel in both forms."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable

import numpy as np
import pytest
import xxhash

from storage.backup.record_digests import CanonicalRecords, RecordDigest
from storage.format import digest_kernel
from storage.format.batches import BatchTable, scan
from storage.format.block import Record, RecordBlock
from storage.format.compression import Codec
from storage.format.decoder import Decoder
from storage.format.record_batch import BatchFields, encode_batch
from tests.support.fixtures import ROOT
from tests.support.uncompiled import plain_kernels, uncompiled

# As in storage/FORMAT.md: offset of the first record, records, digest.
VECTORS: list[tuple[int, list[Record], str]] = [
    (0, [], "99aa06d3014798d86001c324468d497f"),
    (0, [Record(None, None, (), -1)], "13677f1bfb70d12339888ffef9a78055"),
    (7, [Record(b"key", b"value", (), 1_700_000_000_000)], "4b8da36bad152ad0cb1b7d07e915ce2d"),
    (
        7,
        [Record(b"", b"", ((b"h", None), ("größe".encode(), b"\0\xff")), 5), Record(b"k", b"v", (), 6)],
        "291a510648979078e60f614e2bca4d44",
    ),
]


def plain_canonical(records: Iterable[tuple[int, Record]]) -> bytes:
    """The definition."""

    def text(data: bytes | None) -> bytes:
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    out = b""
    for offset, (key, value, headers, timestamp) in records:
        out += struct.pack(">qq", offset, timestamp) + text(key) + text(value) + struct.pack(">i", len(headers))
        for name, header in headers:
            out += text(name) + text(header)
    return out


def block_of(records: list[Record], base_offset: int = 0, codec: Codec = Codec.NONE) -> RecordBlock:
    data = encode_batch(records, base_offset=base_offset, codec=codec, fields=BatchFields()) if records else b""
    table = BatchTable.empty(4)
    scan(data, 0, table)
    block = Decoder().decode(data, table, origin=0)
    block.check()
    return block


def canonical_of(block: RecordBlock) -> bytes:
    return b"".join(bytes(part) for part in CanonicalRecords().parts(block))


def some_records(seed: int, count: int) -> list[Record]:
    dice = random.Random(seed)

    def some() -> bytes | None:
        size = dice.choice((None, 0, 1, 7, 100, dice.randrange(3000)))
        return None if size is None else dice.randbytes(size)

    return [
        Record(
            some(), some(), [(some() or b"", some()) for _ in range(dice.choice((0, 0, 1, 3)))], dice.randrange(10**13)
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("vector", range(len(VECTORS)))
def test_vectors(vector: int) -> None:
    first, records, expected = VECTORS[vector]
    digest = RecordDigest()
    for part in CanonicalRecords().parts(block_of(records, first)):
        digest.add(part)
    assert digest.hexdigest() == expected
    assert xxhash.xxh3_128_hexdigest(plain_canonical(enumerate(records, first))) == expected


def test_the_document_has_the_vectors() -> None:
    text = (ROOT / "storage" / "FORMAT.md").read_text()
    assert all(digest in text for _, _, digest in VECTORS)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("seed", range(3))
def test_the_form_is_the_definition(seed: int, codec: Codec) -> None:
    records = some_records(seed, 50)
    block = block_of(records, 1000, codec)
    assert canonical_of(block) == plain_canonical(enumerate(records, 1000))
    with plain_kernels():
        assert canonical_of(block) == plain_canonical(enumerate(records, 1000))


def test_a_record_that_is_larger_than_a_part() -> None:
    records = [Record(b"k", b"x" * 3_000_000, ((b"h", b"y" * 500_000),), 5), *some_records(1, 5)]
    assert canonical_of(block_of(records)) == plain_canonical(enumerate(records))


def test_rows_in_between() -> None:
    records = some_records(5, 30)
    block = block_of(records)
    expected = plain_canonical(list(enumerate(records))[10:20])
    assert b"".join(bytes(part) for part in CanonicalRecords().parts(block, 10, 20)) == expected


@pytest.mark.parametrize("form", ["built", "plain"])
def test_columns_are_not_trusted(form: str) -> None:
    kernel = digest_kernel if form == "built" else uncompiled("storage.format.digest_kernel")
    columns = np.zeros((9, 1), np.int64)
    columns[3:6:2] = -1
    spans, out, data = np.zeros((4, 1), np.int64), np.zeros(100, np.uint8), b"abcdef"
    assert kernel.canonical(data, columns, spans, 0, 0, 1, out) == (1, 0, 28, 0)
    for row, value in ((3, 7), (5, 7), (2, -1), (4, 6), (7, 2), (3, 2**62), (2, 2**62)):
        wrong = columns.copy()
        wrong[3:6:2] = 1
        wrong[row] = value
        with pytest.raises(ValueError, match="outside"):
            kernel.canonical(data, wrong, spans, 0, 0, 1, out)
    for bounds in ((-1, 1), (0, 2)):
        with pytest.raises(ValueError, match="outside"):
            kernel.canonical(data, columns, spans, 0, *bounds, out)
    assert kernel.canonical(data, columns, spans, 0, 0, 1, out[:27]) == (0, 0, 0, 28)
