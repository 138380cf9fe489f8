"""Checksums, hashes of keys and digests of records: known answers, and every way to one giving the same."""

import hashlib
import random
import struct
import sys
import zlib

import crc32c as crc32c_package
import numpy as np
import pytest
import xxhash
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from storage.backup.canonical_records import CanonicalRecords, RecordDigest
from storage.errors import CorruptBatch
from storage.format import checksum, hashing
from storage.format.block import Record
from storage.format.columns import RecordColumn
from storage.format.compression import Codec
from storage.format.decoder import Decoder, verify_crcs
from storage.format.record_batch import encode_batch
from tests.storage.format.outcomes import exact
from tests.support.fixtures import ROOT
from tests.support.raw_batches import batch, message, record
from tests.support.readers import table_of
from tests.support.uncompiled import plain_kernels, uncompiled

# Checksums

# RFC 3720 B.4 and the usual check string.
CRC32C_ANSWERS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


def test_known_answers(monkeypatch):
    monkeypatch.setitem(sys.modules, "crc32c", None)  # crcmod serves where the package does not load
    without_package = uncompiled("storage.format.checksum")
    assert (checksum.IMPLEMENTATION, without_package.IMPLEMENTATION) == ("crc32c", "crcmod")
    for module in (checksum, without_package):
        assert module.crc32(b"123456789") == 0xCBF43926
        for data, answer in CRC32C_ANSWERS:
            assert module.crc32c(data) == module.crc32c(memoryview(data)) == answer
            assert module.crc32c(data[3:], module.crc32c(data[:3])) == answer


def computed(data):
    """The checksum that the check of a batch finds, whose stored one is wrong."""
    damage = verify_crcs(exact(data), table_of(data), 0, 1, 0)
    return int(damage.error.found, 16)


@pytest.mark.usefixtures("both_forms")
@pytest.mark.parametrize("hardware", [True, False])
def test_batches_of_every_size(hardware, monkeypatch):
    """The processor's instruction takes spans of 3 x 1024 and 3 x 128 bytes, words and single bytes; tables do
    without it."""
    monkeypatch.setattr(checksum, "small_limit", lambda: 1 << 40)
    if not hardware:
        monkeypatch.setattr(checksum, "CRC32C_TABLES", checksum.CRC32C_TABLES[:4096])
    dice = random.Random(3)
    for size in (*range(100), *range(375, 400), *range(3060, 3090), 3500, 10_000):
        data = batch(dice.randbytes(size), count=1, crc=1)
        assert computed(data) == crc32c_package.crc32c(data[21:])
        data = message(1, dice.randbytes(size), crc=1)
        assert computed(data) == zlib.crc32(data[16:])


def test_small_batches_go_through_tables_only_where_those_are_compiled(monkeypatch):
    with plain_kernels():
        assert checksum.small_limit() < 0
    monkeypatch.setattr(checksum, "is_compiled", lambda _: True)
    assert checksum.small_limit() == checksum.SMALL_BYTES
    monkeypatch.setattr(checksum, "IMPLEMENTATION", "crcmod")
    assert checksum.small_limit() > 2**31  # faster than crcmod at any size


@pytest.mark.usefixtures("both_forms")
@pytest.mark.parametrize("limit", [-1, 100, 1 << 40])
def test_a_flipped_bit_anywhere_is_found(limit, monkeypatch):
    """However batches are shared between tables and library: v2 from the attributes on, v0 and v1 from the magic on."""
    monkeypatch.setattr(checksum, "small_limit", lambda: limit)
    parts = [batch([record(value=b"v" * 60)]), message(1, b"v" * 99), message(2, b"v", magic=0), batch([record()], 3)]
    data = b"".join(parts)
    table = table_of(data, 1000)
    assert verify_crcs(data, table, 0, 4, 1000) is None
    for row, part in enumerate(parts):
        start = int(table.position[row]) - 1000
        checked, function = (21, crc32c_package.crc32c) if table.magic[row] == 2 else (16, zlib.crc32)
        for at in (checked, checked + 1, len(part) - 1):
            hurt = bytearray(data)
            hurt[start + at] ^= 0x10
            damage = verify_crcs(hurt, table, 0, 4, 1000)
            assert (damage.row, damage.position) == (row, start + 1000)
            error = damage.error
            assert (error.position, error.offset) == (damage.position, table.last_offset[row])
            assert error.expected == f"{table.crc[row]:#010x}"
            found = function(bytes(hurt[start + checked : start + len(part)]))
            assert error.found == f"{found:#010x}"
            assert verify_crcs(hurt, table, row + 1, 4, 1000) is None


# Hashes

hashes_in_both_forms = pytest.mark.parametrize(
    "module", [hashing, uncompiled("storage.format.hashing")], ids=["as installed", "plain"]
)


@hashes_in_both_forms
def test_murmur2_known_answers(module):
    for key, expected in [
        # UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ]:
        assert module.murmur2(exact(key)) == expected


def columns_of(keys):
    """(buffer, starts, lengths) of keys in exactly their memory."""
    lengths = np.array([-1 if key is None else len(key) for key in keys], np.int64)
    sizes = np.maximum(lengths, 0)
    return exact(b"".join(key or b"" for key in keys)), np.cumsum(sizes, dtype=np.int64) - sizes, lengths


@hashes_in_both_forms
@given(st.lists(st.none() | st.binary(max_size=40), max_size=50))
def test_columns_of_keys_hash_as_single_keys_do(module, keys):
    expected = [(aiokafka_murmur2(key or b"") ^ 0x80000000) - 0x80000000 for key in keys]
    assert [module.murmur2(key or b"") for key in keys] == expected
    hashes = np.zeros(len(keys), np.int32)
    module.murmur2_columns(*columns_of(keys), memoryview(hashes))
    assert hashes.tolist() == [0 if key is None else number for key, number in zip(keys, expected, strict=True)]


def test_java_string_hash():
    for text, expected in [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("grüße", 98768023),
        ("\U0001f600", 1772899),  # a surrogate pair: 31 * 0xd83d + 0xde00
    ]:
        assert hashing.java_string_hash(text) == expected
    assert hashing.group_partition("polygenelubricants", 50) == 0
    assert hashing.group_partition("hello", 50) == 99162322 % 50
    assert hashing.group_partition("a" * 9, 50) == abs(hashing.java_string_hash("a" * 9)) % 50


@hashes_in_both_forms
def test_siphash_of_columns(module):
    """SipHash-1-3 with 128 bits of output: as the authors' reference code gives it for these keys."""
    keys = [None, *(bytes(range(size)) for size in range(80))]
    words = [int.from_bytes(bytes(range(at, at + 8)), "little") for at in (0, 8)]
    hashes = np.ones((len(keys), 2), np.uint64)
    module.siphash_columns(*columns_of(keys), *words, hashes)
    none, *others = [row.astype("<u8").tobytes() for row in hashes]
    assert none == bytes(16)
    assert others[0].hex() == "e77ebcb22788a5befd62db6add303001"
    assert others[13].hex() == "b2f858c7c9ea801d53d603596d657844"
    expected = "6e446214b059408b96be9d4d28e34be2f2278898a31ee09b897881c3af4b8b00"
    assert hashlib.sha256(b"".join(others)).hexdigest() == expected


@hashes_in_both_forms
def test_keys_outside_the_buffer_are_refused(module):
    data, one, two = exact(b"1234"), np.zeros(1, np.int32), np.zeros((1, 2), np.uint64)
    for start, length in ((0, 5), (3, 2), (-1, 1), (4, 1), (2**63 - 1, 1), (1, 2**63 - 1), (2**62, 2**62)):
        columns = np.array([start]), np.array([length])
        with pytest.raises(ValueError, match="outside"):
            module.murmur2_columns(data, *columns, one)
        with pytest.raises(ValueError, match="outside"):
            module.siphash_columns(data, *columns, 1, 2, two)
    for rows, lengths in ((2, 2), (2, 1)):
        columns = np.zeros(rows, np.int64), np.zeros(lengths, np.int64)
        with pytest.raises(ValueError, match="fewer"):
            module.murmur2_columns(data, *columns, one)
        with pytest.raises(ValueError, match="fewer"):
            module.siphash_columns(data, *columns, 1, 2, two)


# Digests of records: the definition in plain Python, test vectors, and the kernel in both forms.

# As in storage/FORMAT.md: offset of the first record, records, digest.
VECTORS = [
    (0, [], "99aa06d3014798d86001c324468d497f"),
    (0, [Record(None, None, (), -1)], "13677f1bfb70d12339888ffef9a78055"),
    (7, [Record(b"key", b"value", (), 1_700_000_000_000)], "4b8da36bad152ad0cb1b7d07e915ce2d"),
    (
        7,
        [Record(b"", b"", ((b"h", None), ("größe".encode(), b"\0\xff")), 5), Record(b"k", b"v", (), 6)],
        "291a510648979078e60f614e2bca4d44",
    ),
]


def plain_canonical(records):
    """The definition."""

    def text(data):
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    out = b""
    for offset, (key, value, headers, timestamp) in records:
        out += struct.pack(">qq", offset, timestamp) + text(key) + text(value) + struct.pack(">i", len(headers))
        for name, header in headers:
            out += text(name) + text(header)
    return out


def block_of(records, base_offset=0, codec=Codec.NONE):
    data = encode_batch(records, base_offset=base_offset, codec=codec) if records else b""
    block = Decoder().decode(exact(data), table_of(data), origin=0)
    block.check()
    return block


def canonical_of(block, *rows):
    return b"".join(bytes(part) for part in CanonicalRecords().parts(block, *rows))


def some_records(seed, count):
    dice = random.Random(seed)

    def some():
        size = dice.choice((None, 0, 1, 7, 100, dice.randrange(3000)))
        return None if size is None else dice.randbytes(size)

    def headers():
        return [(some() or b"", some()) for _ in range(dice.choice((0, 0, 1, 3)))]

    return [Record(some(), some(), headers(), dice.randrange(10**13)) for _ in range(count)]


def test_vectors():
    document = (ROOT / "storage" / "FORMAT.md").read_text()
    for first, records, expected in VECTORS:
        digest = RecordDigest()
        for part in CanonicalRecords().parts(block_of(records, first)):
            digest.add(part)
        assert digest.hexdigest() == expected
        assert xxhash.xxh3_128_hexdigest(plain_canonical(enumerate(records, first))) == expected
        assert expected in document


@pytest.mark.usefixtures("both_forms")
@pytest.mark.parametrize("codec", list(Codec))
def test_the_form_is_the_definition(codec):
    records = some_records(int(codec), 150)
    block = block_of(records, 1000, codec)
    assert canonical_of(block) == plain_canonical(enumerate(records, 1000))
    assert canonical_of(block, 10, 20) == plain_canonical(list(enumerate(records, 1000))[10:20])
    # One record is larger than a part.
    records = [Record(b"k", b"x" * 3_000_000, ((b"h", b"y" * 500_000),), 5), *records[:5]]
    assert canonical_of(block_of(records, 0, codec)) == plain_canonical(enumerate(records))


@pytest.mark.usefixtures("both_forms")
def test_columns_are_not_trusted():
    size = len(block_of([Record(b"key", b"value")]).buffer)
    for column, value in (
        (RecordColumn.KEY_LENGTH, size + 1),
        (RecordColumn.VALUE_LENGTH, size + 1),
        (RecordColumn.KEY_START, -1),
        (RecordColumn.KEY_START, size - 2),
        (RecordColumn.VALUE_START, size),
        (RecordColumn.HEADERS_COUNT, 2),
        (RecordColumn.KEY_LENGTH, 2**62),
        (RecordColumn.KEY_START, 2**62),
    ):
        block = block_of([Record(b"key", b"value")])
        block.columns[column] = value
        with pytest.raises((ValueError, CorruptBatch), match=r"outside|headers do not parse"):
            canonical_of(block)
