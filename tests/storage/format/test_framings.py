"""Framings of the four codecs that no client writes by itself: read where Kafka's Java client reads them, damage where
it fails.

Each verdict is that of Kafka 4.3.0 (`Compression.of(…).build().wrapForInput`, OpenJDK 17).
"""

from __future__ import annotations

import gzip
import struct
import zlib
from contextlib import nullcontext
from typing import NamedTuple

import cramjam
import numpy as np
import pytest
import xxhash

from storage.errors import DecompressionFailed
from storage.format.compression import Codec, compress, decompress
from storage.format.decoder import Decoder
from tests.support.raw_batches import batch, record
from tests.support.readers import table_of
from tests.support.uncompiled import plain_kernels

CAP = 1 << 20
ONE = b"one, " * 60
TWO = b"two; " * 60
NOISE = np.random.default_rng(5).integers(0, 256, 50_000, np.uint8).tobytes()


class Framing(NamedTuple):
    """`plain`: what Java reads, None where it fails."""

    name: str
    codec: Codec
    packed: bytes
    plain: bytes | None
    magic: int = 2


def snappy_block(data):
    return bytes(cramjam.snappy.compress_raw(data))


def xerial(*blocks):
    parts = [b"\x82SNAPPY\x00", struct.pack(">ii", 1, 1)]
    parts += [struct.pack(">i", len(block)) + block for block in map(snappy_block, blocks)]
    return b"".join(parts)


def lz4(*blocks, flags=0x60, size=None, content_sum=b"", block_sum_xor=0, header_sum_xor=0):
    """A frame of stored blocks, with their checksums if the flags say so."""
    header = bytes([flags, 0x40]) + (b"" if size is None else struct.pack("<Q", size))
    checksum = (xxhash.xxh32_intdigest(header) >> 8 & 0xFF) ^ header_sum_xor
    parts = [b"\x04\x22\x4d\x18", header, bytes([checksum])]
    for block in blocks:
        parts += [struct.pack("<I", len(block) | 0x80000000), block]
        if flags & 0x10:
            parts.append(struct.pack("<I", xxhash.xxh32_intdigest(block) ^ block_sum_xor))
    return b"".join([*parts, bytes(4), content_sum])


def sum_of(data):
    return struct.pack("<I", xxhash.xxh32_intdigest(data))


def zstd(data):
    return bytes(cramjam.zstd.compress(data))


def zstd_stored(data, checksum):
    """A frame of one raw block, with a checksum of the content."""
    header = struct.pack("<IBB", 0xFD2FB528, 0x04, 0x58)  # checksum; window of 2 MiB
    return header + struct.pack("<I", len(data) << 3 | 1)[:3] + data + checksum


SKIPPABLE = struct.pack("<II", 0x184D2A50, 5) + b"12345"
CUT_HEADER = b"\x82SNAPPY\x00"
NOT_A_HEADER = b"\x82SNAPPX\x00" + bytes(8)


def framings(one, two, large):
    xxh64 = struct.pack("<I", xxhash.xxh64_intdigest(one) & 0xFFFFFFFF)
    wrong_trailer = gzip.compress(one)[:-8] + bytes(8)
    return [
        Framing("gzip: a byte behind", Codec.GZIP, gzip.compress(one) + b"\x01", one),
        Framing("gzip: eight zeros behind", Codec.GZIP, gzip.compress(one) + bytes(8), one),
        Framing("gzip: noise behind", Codec.GZIP, gzip.compress(one) + NOISE[:500], one),
        Framing("gzip: noise behind a large member", Codec.GZIP, gzip.compress(large) + NOISE[:500], large),
        Framing("gzip: two members", Codec.GZIP, gzip.compress(one) + gzip.compress(two), one + two),
        Framing("gzip: two, a byte behind", Codec.GZIP, gzip.compress(one) + gzip.compress(two) + b"x", one + two),
        Framing("gzip: empty members", Codec.GZIP, gzip.compress(b"") * 3 + gzip.compress(one), one),
        Framing("gzip: a header behind", Codec.GZIP, gzip.compress(one) + gzip.compress(two)[:12], one),
        Framing("gzip: a cut second member", Codec.GZIP, gzip.compress(one) + gzip.compress(two)[:-9], None),
        Framing("gzip: a wrong CRC", Codec.GZIP, wrong_trailer, None),
        Framing("gzip: without its trailer", Codec.GZIP, gzip.compress(one)[:-8], None),
        Framing("gzip: zlib's header", Codec.GZIP, zlib.compress(one), None),
        Framing("gzip: in a wrapper of v0", Codec.GZIP, gzip.compress(one) + bytes(8), one, 0),
        Framing("snappy: three bytes behind", Codec.SNAPPY, xerial(one) + b"abc", one),
        Framing("snappy: four bytes behind", Codec.SNAPPY, xerial(one) + b"abcd", None),
        Framing("snappy: two streams", Codec.SNAPPY, xerial(one) + xerial(two), one + two),
        Framing("snappy: a cut header behind", Codec.SNAPPY, xerial(one) + CUT_HEADER, None),
        Framing("snappy: something like a header behind", Codec.SNAPPY, xerial(one) + NOT_A_HEADER + b"x", one),
        Framing("snappy: raw", Codec.SNAPPY, snappy_block(one), one),
        Framing("snappy: raw, bytes behind", Codec.SNAPPY, snappy_block(one) + b"abc", None),
        Framing("lz4: a wrong checksum of the content", Codec.LZ4, lz4(one, flags=0x64, content_sum=b"abcd"), one),
        Framing("lz4: a right checksum of the content", Codec.LZ4, lz4(one, flags=0x64, content_sum=sum_of(one)), one),
        Framing("lz4: no checksum of the content", Codec.LZ4, lz4(one, flags=0x64), None),
        Framing("lz4: checksums of blocks", Codec.LZ4, lz4(one, two, flags=0x70), one + two),
        Framing("lz4: a wrong checksum of a block", Codec.LZ4, lz4(one, flags=0x70, block_sum_xor=1), None),
        Framing("lz4: all checksums", Codec.LZ4, lz4(one, flags=0x74, content_sum=b"abcd"), one),
        Framing("lz4: a wrong size of the content", Codec.LZ4, lz4(one, flags=0x6C, size=7, content_sum=b"abcd"), one),
        Framing("lz4: two frames", Codec.LZ4, lz4(one) + lz4(two), one),
        Framing("lz4: bytes behind", Codec.LZ4, lz4(one) + b"abc", one),
        Framing("lz4: blocks that depend on each other", Codec.LZ4, lz4(one, flags=0x40), None),
        Framing("lz4: a wrong checksum of the header", Codec.LZ4, lz4(one, header_sum_xor=1), None),
        Framing("lz4: the same in a wrapper of v1", Codec.LZ4, lz4(one, header_sum_xor=1), None, 1),
        Framing("lz4: the same in a wrapper of v0", Codec.LZ4, lz4(one, header_sum_xor=1), one, 0),
        Framing("zstd: two frames", Codec.ZSTD, zstd(one) + zstd(two), one + two),
        Framing("zstd: an empty frame first", Codec.ZSTD, zstd(b"") + zstd(one), one),
        Framing("zstd: skippable frames", Codec.ZSTD, SKIPPABLE + zstd(one) + SKIPPABLE + SKIPPABLE, one),
        Framing("zstd: a skippable frame between", Codec.ZSTD, zstd(one) + SKIPPABLE + zstd(two), one + two),
        Framing("zstd: a checksum", Codec.ZSTD, zstd_stored(one, xxh64), one),
        Framing("zstd: a wrong checksum", Codec.ZSTD, zstd_stored(one, b"abcd"), None),
        Framing("zstd: bytes behind", Codec.ZSTD, zstd(one) + b"abcde", None),
        Framing("zstd: a byte behind", Codec.ZSTD, zstd(one) + b"a", None),
    ]


FRAMINGS = framings(ONE, TWO, NOISE)
RECORDS = framings(record(value=ONE), record(1, value=TWO), record(value=NOISE))


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda framing: framing.name)
def test_it_is_read_where_java_reads_it(framing):
    if framing.plain is not None:
        assert decompress(framing.codec, framing.packed, CAP, framing.magic) == framing.plain
        return
    with pytest.raises(DecompressionFailed):
        decompress(framing.codec, framing.packed, CAP, framing.magic)


@pytest.mark.parametrize("framing", [one for one in RECORDS if one.magic == 2], ids=lambda framing: framing.name)
@pytest.mark.parametrize("plain", [False, True])
def test_a_batch_of_it(framing, plain):
    """Through the loops that decompress many batches in one call, between ordinary batches of the same codec."""
    count = 2 if framing.plain is not None and framing.plain.endswith(TWO + b"\0") else 1
    ordinary = compress(framing.codec, record(value=b"x"))
    data = b"".join(
        batch(packed, offset, attributes=framing.codec, count=number)
        for packed, offset, number in ((ordinary, 0, 1), (framing.packed, 1, count), (ordinary, 1 + count, 1))
    )
    with plain_kernels() if plain else nullcontext():
        block = Decoder(max_decompressed_bytes=CAP).decode(data, table_of(data), origin=0)
    if framing.plain is None:
        assert block.damage is not None
        assert (block.damage.row, block.offset.tolist()) == (1, [0])
    else:
        assert block.damage is None
        assert block.offset.tolist() == list(range(2 + count))


def test_many_members_of_gzip_take_no_time_of_their_own():
    """Also where bytes behind them keep the library from reading them all in one call."""
    packed = gzip.compress(b"") * 20_000 + compress(Codec.GZIP, ONE) + b"x"
    assert decompress(Codec.GZIP, packed, CAP) == ONE
