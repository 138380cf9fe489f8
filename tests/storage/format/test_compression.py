"""The codecs' frames, their damage, and the caps that keep bombs small."""

from __future__ import annotations

import random
import struct
import zlib

import cramjam
import pytest

from storage.errors import DecompressionFailed, StorageError, UnsupportedFormat
from storage.format import compression
from storage.format.compression import Codec, OutputFull, compress, decompress, decompress_into
from storage.format.decoder import Decoder
from tests.support.raw_batches import batch, message, record
from tests.support.readers import table_of
from tests.support.uncompiled import plain_kernels

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
CAP = 1 << 20
NOISE = random.Random(7).randbytes(200_000)
SAMPLES = [b"", b"a", b"hello, hello, hello", NOISE[:70_000], b"text " * 40_000, NOISE[:65_536] + bytes(65_536)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_round_trip(codec, magic, data):
    if codec is Codec.ZSTD and magic < 2:
        with pytest.raises(UnsupportedFormat):
            compress(codec, data, magic)
        return
    assert decompress(codec, compress(codec, data, magic), CAP, magic) == data


@pytest.mark.parametrize(("codec", "level"), [(1, 1), (1, 9), (1, -1), (3, 1), (3, 9), (3, 17), (4, 1), (4, 19)])
def test_levels(codec, level):
    for data in (b"text " * 50_000, random.Random(1).randbytes(200_000), b"", b"x"):
        assert decompress(codec, compress(codec, data, level=level), CAP) == data


@pytest.mark.parametrize("codec", [0, 5, 6, 7])
def test_unknown_codecs(codec):
    with pytest.raises(UnsupportedFormat) as caught:
        decompress_into(codec, b"abc", bytearray(10))
    assert caught.value.found == codec
    with pytest.raises(UnsupportedFormat):
        compress(codec, b"abc")


def test_zstd_is_unknown_before_v2():
    with pytest.raises(UnsupportedFormat):
        decompress_into(Codec.ZSTD, compress(Codec.ZSTD, b"abc"), bytearray(10), magic=1)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", SAMPLES[2:], ids=len)
def test_output_is_written_in_place_and_never_past_the_end(codec, data):
    packed = compress(codec, data)
    out = bytearray(b"\xaa" * (len(data) + 100))
    view = memoryview(out)
    assert decompress_into(codec, packed, view[50:-50]) == len(data)
    assert out == b"\xaa" * 50 + data + b"\xaa" * 50
    for room in (0, 1, len(data) // 2, len(data) - 1):
        out[:] = b"\xaa" * len(out)
        with pytest.raises(OutputFull):
            decompress_into(codec, packed, view[50 : 50 + room])
        assert out[:50] == b"\xaa" * 50
        assert out[50 + room :] == b"\xaa" * (len(data) + 50 - room)


@pytest.mark.parametrize("codec", CODECS)
def test_cut_off_data_is_damage(codec):
    packed = compress(codec, NOISE[:3000] + b"text " * 20_000)
    for length in {0, 1, 3, 4, 5, 6, 7, 8, 15, 16, 17, 20, len(packed) // 2, len(packed) - 1}:
        if codec is Codec.SNAPPY and length in (16, 17):
            # A header and no block: nothing is missing. Java ignores less than a block's length.
            assert decompress(codec, packed[:length], CAP) == b""
            continue
        with pytest.raises(DecompressionFailed):
            decompress(codec, packed[:length], CAP)


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_data_is_damage_or_other_data(codec):
    dice = random.Random(int(codec))
    packed = compress(codec, b"some text, " * 300 + NOISE[:500])
    failures = set()
    for _ in range(1000):
        hurt = bytearray(packed)
        hurt[dice.randrange(40)] ^= 1 << dice.randrange(8)
        try:
            assert len(decompress(codec, hurt, 8192)) <= 8192
        except StorageError as error:
            failures.add(type(error))
    assert failures == {DecompressionFailed}


# gzip


@pytest.mark.parametrize("size", [100, 50_000])
def test_gzip_members_one_after_the_other(size):
    packed = compress(Codec.GZIP, NOISE[:size]) + compress(Codec.GZIP, b"second")
    assert decompress(Codec.GZIP, packed, CAP) == NOISE[:size] + b"second"


# snappy


def xerial(*blocks, version=1):
    parts = [b"\x82SNAPPY\x00", struct.pack(">ii", version, 1)]
    for block in blocks:
        packed = bytes(cramjam.snappy.compress_raw(block))
        parts.append(struct.pack(">i", len(packed)) + packed)
    return b"".join(parts)


def test_snappy_is_framed_as_by_the_java_client():
    packed = compress(Codec.SNAPPY, bytes(40_000))
    assert packed[:16].hex() == "82534e415050590000000001" + "00000001"
    (first,) = struct.unpack_from(">i", packed, 16)
    assert cramjam.snappy.decompress_raw_len(packed[20 : 20 + first]) == 32 * 1024


def test_snappy_headers_may_come_again():
    assert decompress(Codec.SNAPPY, xerial(b"one, ", b"two, ") + xerial(b"three"), CAP) == b"one, two, three"


def test_raw_snappy_as_librdkafka_writes_it():
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"raw " * 999)), CAP) == b"raw " * 999


@pytest.mark.parametrize(
    ("packed", "what"),
    [
        (xerial(b"a", version=0), "snappy frame of an unknown version"),
        (xerial(b"a")[:12], "snappy header is cut off"),
        (xerial(b"a") + b"\x82SNAPPY\x00" + bytes(7), "snappy header is cut off"),
        (xerial() + b"\x00\x00\x00\x09abc", "snappy block passes the end"),
        (xerial() + b"\x7f\xff\xff\xffabc", "snappy block passes the end"),
        (xerial() + b"\xff\xff\xff\xffabc", "snappy block passes the end"),
    ],
)
def test_bad_snappy_frames(packed, what):
    with pytest.raises(DecompressionFailed) as caught:
        decompress(Codec.SNAPPY, packed, CAP)
    assert caught.value.what == what


# lz4


def lz4_frame(*blocks, flags=0x60, descriptor=0x40, size=None):
    """A frame of stored blocks with its right header checksum."""
    header = bytes([flags, descriptor]) + (b"" if size is None else struct.pack("<Q", size))
    parts = [b"\x04\x22\x4d\x18", header, bytes([compression._lz4_header_checksum(header)])]
    parts += [struct.pack("<I", len(block) | 0x80000000) + block for block in blocks]
    return b"".join([*parts, bytes(4)])


@pytest.mark.parametrize(("magic", "checksum"), [(0, 0x1A), (1, 0x82), (2, 0x82)])
def test_lz4_header_checksums_of_the_formats(magic, checksum):
    packed = compress(Codec.LZ4, b"text " * 100, magic)
    assert packed[:7] == b"\x04\x22\x4d\x18\x60\x40" + bytes([checksum])
    assert decompress(Codec.LZ4, packed, CAP, magic) == b"text " * 100


def test_only_format_v0_forgives_a_wrong_header_checksum():
    packed = compress(Codec.LZ4, b"text " * 100, magic=0)
    for magic in (1, 2):
        with pytest.raises(DecompressionFailed) as caught:
            decompress(Codec.LZ4, packed, CAP, magic)
        assert (caught.value.expected, caught.value.found) == (0x82, 0x1A)
    assert decompress(Codec.LZ4, compress(Codec.LZ4, b"x", magic=1), CAP, magic=0) == b"x"


def test_lz4_blocks_that_do_not_shrink_are_stored():
    packed = compress(Codec.LZ4, NOISE[:100_000])
    assert struct.unpack_from("<I", packed, 7) == (65_536 | 0x80000000,)
    assert len(packed) == 7 + 4 + 65_536 + 4 + 34_464 + 4


@pytest.mark.parametrize("descriptor", [0x40, 0x50, 0x60, 0x70])
def test_lz4_block_sizes(descriptor):
    limit = 1 << (8 + 2 * (descriptor >> 4))
    data = bytes(min(limit, 300_000))
    assert decompress(Codec.LZ4, lz4_frame(data, b"end", descriptor=descriptor), CAP) == data + b"end"
    with pytest.raises(DecompressionFailed):
        decompress(Codec.LZ4, lz4_frame(bytes(limit + 1), descriptor=descriptor), 8 * CAP)


def test_lz4_content_size_is_skipped():
    assert decompress(Codec.LZ4, lz4_frame(b"abc", flags=0x68, size=2**63), CAP) == b"abc"


def test_lz4_stops_at_the_end_mark():
    assert decompress(Codec.LZ4, lz4_frame(b"abc") + b"whatever", CAP) == b"abc"


@pytest.mark.parametrize("magic", [0, 2])
def test_lz4_frames_with_checksums_are_read(magic):
    """Which of them are verified: test_framings.py."""
    frame = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    frame.compress(b"text " * 1000)
    packed = bytearray(frame.finish())
    if magic == 0:
        start = 14 if packed[4] & 0x08 else 6
        packed[start] ^= 0xFF  # v0's wrong header checksum does not stand in the way
    assert decompress(Codec.LZ4, packed, CAP, magic) == b"text " * 1000


@pytest.mark.parametrize(
    ("packed", "what"),
    [
        (b"", "not an lz4 frame"),
        (b"\x05\x22\x4d\x18\x60\x40\x82" + bytes(4), "not an lz4 frame"),
        (lz4_frame(flags=0x40), "lz4 frame of a kind that Kafka does not read"),  # dependent blocks
        (lz4_frame(flags=0x61), "lz4 frame of a kind that Kafka does not read"),  # a dictionary
        (lz4_frame(flags=0xA0), "lz4 frame of a kind that Kafka does not read"),  # version 2
        (lz4_frame(descriptor=0x30), "lz4 frame with an unknown block size"),
        (lz4_frame(descriptor=0xC0), "lz4 frame with an unknown block size"),
        (lz4_frame(descriptor=0x41), "lz4 frame with an unknown block size"),
        (lz4_frame(flags=0x68, size=1)[:10], "lz4 frame is cut off"),
        (lz4_frame(b"abc")[:-4], "lz4 frame is cut off"),
        (lz4_frame(b"abc")[:-6], "lz4 block does not fit"),
        (lz4_frame()[:-4] + b"\xff\xff\xff\x7f" + bytes(99), "lz4 block does not fit"),
    ],
)
def test_bad_lz4_frames(packed, what):
    with pytest.raises(DecompressionFailed) as caught:
        decompress(Codec.LZ4, packed, CAP)
    assert caught.value.what == what


# Bombs


def lz4_bomb(size):
    block = bytes(cramjam.lz4.compress_block(bytes(65_536), store_size=False))
    packed = b"\x04\x22\x4d\x18\x60\x40\x82" + (struct.pack("<I", len(block)) + block) * (size // 65_536)
    return packed + bytes(4)


BOMBS = {
    Codec.GZIP: lambda size: zlib.compress(bytes(size), 9, wbits=31),
    Codec.SNAPPY: lambda size: xerial(*[bytes(65_536)] * (size // 65_536)),
    Codec.LZ4: lz4_bomb,
    Codec.ZSTD: lambda size: bytes(cramjam.zstd.compress(bytes(size), level=3)),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [CAP + 65_536, 16 * CAP])
def test_bombs_end_at_the_cap(codec, size):
    packed = BOMBS[codec](size)
    assert len(packed) < size // 15
    with pytest.raises(DecompressionFailed) as caught:
        decompress(codec, packed, CAP)
    assert caught.value.expected == f"at most {CAP} bytes"
    assert len(decompress(codec, BOMBS[codec](CAP), CAP)) == CAP


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("plain", [False, True])
def test_a_bomb_is_one_damaged_batch_to_the_decoder(codec, magic, plain):
    if magic < 2 and codec is Codec.ZSTD:
        codec = Codec.GZIP
    packed = BOMBS[codec](16 * CAP)
    bomb = batch(packed, 1, attributes=codec, count=1) if magic == 2 else message(1, packed, attributes=codec)
    data = batch([record()]) + bomb + batch([record()], 2)
    table = table_of(data)
    decoder = Decoder(max_decompressed_bytes=CAP, block_bytes=4096)

    def blocks():
        block = decoder.decode(data, table, origin=0)
        assert block.offset.tolist() == [0]
        if block.damage is None:  # the arena was full beside the first batch
            block = decoder.decode(data, table, 1, origin=0)
        assert block.damage is not None
        assert block.damage.row == 1
        assert type(block.damage.error) is DecompressionFailed
        assert str(CAP) in str(block.damage.error)
        assert len(decoder._arena) <= CAP
        assert decoder.decode(data, table, 2, origin=0).offset.tolist() == [2]

    if plain:
        with plain_kernels():
            blocks()
    else:
        blocks()


def test_a_snappy_block_that_claims_four_gigabytes_takes_no_memory():
    claim = b"\xff\xff\xff\xff\x0f" + b"\x00a"
    with pytest.raises(OutputFull) as caught:
        decompress_into(Codec.SNAPPY, claim, bytearray(100))
    assert caught.value.needed == 2**32 - 1
    data = batch(claim, attributes=Codec.SNAPPY, count=1)
    table = table_of(data)
    decoder = Decoder()
    damage = decoder.decode(data, table, origin=0).damage
    assert damage is not None
    assert type(damage.error) is DecompressionFailed
    assert len(decoder._arena) < 4 * CAP


def test_names():
    assert [codec.config_name for codec in Codec] == ["uncompressed", "gzip", "snappy", "lz4", "zstd"]
