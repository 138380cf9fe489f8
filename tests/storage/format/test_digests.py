"""Checksums, hashes of keys and digests of records: known answers, and every way to one giving the same."""

from __future__ import annotations

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

from storage.backup.record_digests import CanonicalRecords, RecordDigest
from storage.format import checksum, checksum_kernel, decoder, digest_kernel, hashing
from storage.format.batches import Column
from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.decoder import Decoder, verify_crcs
from storage.format.record_batch import BatchFields, encode_batch
from storage.types import is_compiled
from tests.support.fixtures import ROOT
from tests.support.raw_batches import batch, message, record
from tests.support.readers import table_of
from tests.support.uncompiled import plain_kernels, uncompiled

# Known answers, and every way to a checksum giving the same one.

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
def test_crc32c_known_answers(data, answer):
    assert checksum.crc32c(data) == answer
    assert checksum.crc32c(memoryview(data)) == answer
    assert checksum.crc32c(data[3:], checksum.crc32c(data[:3])) == answer


def test_crc32_known_answer():
    assert checksum.crc32(b"123456789") == 0xCBF43926


def by_tables(kernel, data, magic):  # a module
    """The checksum that the kernel finds with its slicing tables for a batch with `data` as what is checksummed."""
    head = 21 if magic == 2 else 16
    table = np.zeros((len(Column), 1), np.int64)
    table[Column.SIZE], table[Column.MAGIC] = head + len(data), magic
    tables = checksum.CRC32C_TABLES[:4096], checksum.CRC32_TABLES  # without those for the processor's instruction
    _, found, _ = kernel.check_batches(bytes(head) + data, table, 0, 1, 0, *tables, 1000, np.zeros((1, 5), np.int64))
    return int(found)


@pytest.mark.parametrize("kernel", KERNELS)
def test_tables_agree_with_the_libraries_at_every_length(kernel):  # a module
    data = random.Random(1).randbytes(100)
    for start in range(3):
        for end in range(start, len(data)):
            part = data[start:end]
            assert by_tables(kernel, part, 2) == crc32c_package.crc32c(part)
            assert by_tables(kernel, part, 1) == zlib.crc32(part)


def test_crcmod_serves_where_the_crc32c_package_does_not_load(monkeypatch):
    monkeypatch.setitem(sys.modules, "crc32c", None)
    function, name = checksum._choose()
    assert name == "crcmod"
    for data, answer in CRC32C_ANSWERS:
        assert function(memoryview(data)) == answer
        assert function(data[3:], function(data[:3])) == answer


def test_small_batches_go_through_tables_only_where_those_are_compiled(monkeypatch):
    monkeypatch.setattr(checksum_kernel, "__file__", "checksum_kernel.so")
    assert checksum.small_limit() == checksum.SMALL_BYTES
    monkeypatch.setattr(checksum, "IMPLEMENTATION", "crcmod")
    assert checksum.small_limit() > 2**31  # faster than crcmod at any size
    monkeypatch.setattr(checksum_kernel, "__file__", "checksum_kernel.py")
    assert checksum.small_limit() < 0


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("limit", [-1, 100, 1 << 40])
def test_a_flipped_bit_anywhere_is_found(plain, limit, monkeypatch):
    """However batches are shared between tables and library: v2 from the attributes on, v0 and v1 from the magic on."""
    monkeypatch.setattr(checksum, "small_limit", lambda: limit)
    if plain:
        monkeypatch.setattr(decoder, "checksum_kernel", uncompiled("storage.format.checksum_kernel"))
    parts = [batch([record(value=b"v" * 60)]), message(1, b"v" * 99), message(2, b"v", magic=0), batch([record()], 3)]
    data = b"".join(parts)
    table = table_of(data, 1000)
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


def test_batches_of_every_size():
    """The processor's instruction takes spans of 3 x 1024 and 3 x 128 bytes, words and single bytes."""
    dice = random.Random(3)
    for size in (*range(70), *range(375, 400), *range(3060, 3090), 3500, 10_000, 100_001):
        data = bytearray(batch(dice.randbytes(size), count=1))
        table = table_of(data)
        assert verify_crcs(data, table, 0, 1, 0) is None
        data[dice.randrange(21, len(data))] ^= 1 << dice.randrange(8)
        damage = verify_crcs(data, table, 0, 1, 0)
        assert damage is not None
        assert damage.error.found == crc32c_package.crc32c(bytes(data[21:]))


plain = uncompiled("storage.format.hashing")


def signed(value):
    return value - ((value & 0x80000000) << 1)


def test_the_compiled_forms_are_compared_with_the_plain_ones():
    assert not is_compiled(plain)


@pytest.mark.parametrize("module", [hashing, plain], ids=["as-installed", "plain"])
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_murmur2_known_answers(module, key, expected):
    assert module.murmur2(key) == expected


@given(st.binary(max_size=300))
def test_murmur2_equals_aiokafkas(key):
    assert hashing.murmur2(key) == plain.murmur2(key) == signed(aiokafka_murmur2(key))


@given(st.lists(st.none() | st.binary(max_size=40), max_size=50))
def test_columns_of_keys_hash_as_single_keys_do(keys):
    data = b"".join(key or b"" for key in keys)
    lengths = np.array([-1 if key is None else len(key) for key in keys], np.int64)
    ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
    expected = [hashing.murmur2(key or b"") for key in keys]
    for module in (hashing, plain):
        hashes = np.zeros(len(keys), np.int32)
        module.murmur2_columns(data, ends - np.maximum(lengths, 0), lengths, memoryview(hashes))
        assert hashes.tolist() == [0 if key is None else e for key, e in zip(keys, expected, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("grüße", 98768023),
        ("\U0001f600", 1772899),  # a surrogate pair: 31 * 0xd83d + 0xde00
    ],
)
def test_java_string_hash(text, expected):
    assert hashing.java_string_hash(text) == expected


def test_group_partition():
    assert hashing.group_partition("polygenelubricants", 50) == 0
    assert hashing.group_partition("hello", 50) == 99162322 % 50
    assert hashing.group_partition("a" * 9, 50) == abs(hashing.java_string_hash("a" * 9)) % 50


def reference_siphash(key, secret, rounds):
    """SipHash with 128 bits of output, after the authors' reference code."""
    mask = 2**64 - 1
    k0, k1 = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotated(value, bits):
        return (value << bits | value >> (64 - bits)) & mask

    def sip(times):
        for _ in range(times):
            v[0] = (v[0] + v[1]) & mask
            v[1] = rotated(v[1], 13) ^ v[0]
            v[0] = rotated(v[0], 32)
            v[2] = (v[2] + v[3]) & mask
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & mask
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & mask
            v[1] = rotated(v[1], 17) ^ v[2]
            v[2] = rotated(v[2], 32)

    padded = key + bytes(7 - len(key) % 8) + bytes([len(key) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        sip(rounds[0])
        v[0] ^= word
    v[2] ^= 0xEE
    sip(rounds[1])
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    sip(rounds[1])
    return low.to_bytes(8, "little") + (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")


@given(st.lists(st.none() | st.binary(max_size=40), max_size=20), st.binary(min_size=16, max_size=16))
def test_siphash_of_columns(keys, secret):
    data = b"".join(key or b"" for key in keys)
    lengths = np.array([-1 if key is None else len(key) for key in keys], np.int64)
    starts = np.cumsum(np.maximum(lengths, 0), dtype=np.int64) - np.maximum(lengths, 0)
    words = [int.from_bytes(part, "little") for part in (secret[:8], secret[8:])]
    expected = [bytes(16) if key is None else reference_siphash(key, secret, (1, 3)) for key in keys]
    for module in (hashing, plain):
        hashes = np.ones((len(keys), 2), np.uint64)
        module.siphash_columns(data, starts, lengths, *words, hashes)
        assert [row.astype("<u8").tobytes() for row in hashes] == expected


def test_the_reference_siphash_gives_its_authors_answers():
    secret = bytes(range(16))
    assert reference_siphash(b"", secret, (2, 4)).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert reference_siphash(b"\0", secret, (2, 4)).hex() == "da87c1d86b99af44347659119b22fc45"


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
    data = encode_batch(records, base_offset=base_offset, codec=codec, fields=BatchFields()) if records else b""
    table = table_of(data)
    block = Decoder().decode(data, table, origin=0)
    block.check()
    return block


def canonical_of(block):
    return b"".join(bytes(part) for part in CanonicalRecords().parts(block))


def some_records(seed, count):
    dice = random.Random(seed)

    def some():
        size = dice.choice((None, 0, 1, 7, 100, dice.randrange(3000)))
        return None if size is None else dice.randbytes(size)

    return [
        Record(
            some(), some(), [(some() or b"", some()) for _ in range(dice.choice((0, 0, 1, 3)))], dice.randrange(10**13)
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("vector", range(len(VECTORS)))
def test_vectors(vector):
    first, records, expected = VECTORS[vector]
    digest = RecordDigest()
    for part in CanonicalRecords().parts(block_of(records, first)):
        digest.add(part)
    assert digest.hexdigest() == expected
    assert xxhash.xxh3_128_hexdigest(plain_canonical(enumerate(records, first))) == expected


def test_the_document_has_the_vectors():
    text = (ROOT / "storage" / "FORMAT.md").read_text()
    assert all(digest in text for _, _, digest in VECTORS)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("seed", range(3))
def test_the_form_is_the_definition(seed, codec):
    records = some_records(seed, 50)
    block = block_of(records, 1000, codec)
    assert canonical_of(block) == plain_canonical(enumerate(records, 1000))
    with plain_kernels():
        assert canonical_of(block) == plain_canonical(enumerate(records, 1000))


def test_a_record_that_is_larger_than_a_part():
    records = [Record(b"k", b"x" * 3_000_000, ((b"h", b"y" * 500_000),), 5), *some_records(1, 5)]
    assert canonical_of(block_of(records)) == plain_canonical(enumerate(records))


def test_rows_in_between():
    records = some_records(5, 30)
    block = block_of(records)
    expected = plain_canonical(list(enumerate(records))[10:20])
    assert b"".join(bytes(part) for part in CanonicalRecords().parts(block, 10, 20)) == expected


@pytest.mark.parametrize("kernel", KERNELS)
def test_too_few_tables_are_refused(kernel):  # a module
    short, rows = np.zeros(4095, np.uint32), (np.zeros((len(Column), 1), np.int64), 0, 0, 0)
    for tables in ((short, checksum.CRC32_TABLES), (checksum.CRC32C_TABLES, short)):
        with pytest.raises(ValueError, match="tables"):
            kernel.check_batches(b"", *rows, *tables, 0, np.zeros((1, 5), np.int64))


@pytest.mark.parametrize("module", [hashing, plain], ids=["as-installed", "plain"])
def test_keys_outside_the_buffer_are_refused(module):
    columns = module.murmur2_columns
    one, two = np.zeros(1, np.int32), np.zeros(2, np.int32)
    for start, length in ((0, 5), (-1, 1), (4, 1), (2**63 - 1, 1), (1, 2**63 - 1)):
        with pytest.raises(ValueError, match="outside"):
            columns(b"1234", np.array([start]), np.array([length]), one)
    with pytest.raises(ValueError, match="fewer"):
        columns(b"1234", np.array([0, 0]), np.array([0, 0]), one)
    with pytest.raises(ValueError, match="fewer"):
        columns(b"1234", np.array([0, 0]), np.array([0]), two)


@pytest.mark.parametrize("module", [hashing, plain], ids=["as-installed", "plain"])
def test_siphash_refuses_keys_outside_the_buffer(module):
    column = np.array([1], np.int64)
    hashes = np.zeros((1, 2), np.uint64)
    for start, length in ((0, 4), (3, 1), (-1, 1), (2**62, 2**62)):
        with pytest.raises(ValueError, match="outside"):
            module.siphash_columns(b"abc", column * start, column * length, 1, 2, hashes)
    with pytest.raises(ValueError, match="fewer"):
        module.siphash_columns(b"abc", column, column, 1, 2, hashes[:0])


@pytest.mark.parametrize("form", ["built", "plain"])
def test_columns_are_not_trusted(form):
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
