"""The four codecs: the frames of Kafka's clients, framings that no client writes, damage, and caps that keep bombs
small."""

import gzip
import random
import struct
import tracemalloc
import zlib
from typing import NamedTuple

import cramjam
import pytest
import xxhash

from storage.errors import DecompressionFailed, UnsupportedFormat
from storage.format.compression import Codec, OutputFull, compress, decompress, decompress_into
from storage.format.decoder import Decoder
from tests.storage.format.outcomes import exact
from tests.support.raw_batches import batch, message, record
from tests.support.readers import table_of

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
CAP = 1 << 20
NOISE = random.Random(7).randbytes(200_000)
SAMPLES = [b"", b"a", b"hello, hello, hello", NOISE[:70_000], b"text " * 40_000, NOISE[:65_536] + bytes(65_536)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_round_trip(codec, magic):
    for data in SAMPLES:
        if codec is Codec.ZSTD and magic < 2:
            with pytest.raises(UnsupportedFormat):
                compress(codec, data, magic)
            with pytest.raises(UnsupportedFormat):
                decompress_into(codec, compress(codec, data), bytearray(10), magic=magic)
        else:
            assert decompress(codec, exact(compress(codec, data, magic)), CAP, magic) == data


@pytest.mark.parametrize(
    ("codec", "levels"), [(Codec.GZIP, (-1, 1, 9)), (Codec.LZ4, (1, 9, 17)), (Codec.ZSTD, (1, 4, 19))]
)
def test_levels(codec, levels):
    numbers = b"".join(b"%d %d;" % (i * i % 997, i) for i in range(20_000))
    for data in (numbers, NOISE, b"", b"x"):
        packed = [compress(codec, data, level=level) for level in levels]
        assert {decompress(codec, part, CAP) for part in packed} == {data}
        assert data != numbers or len(packed[-1]) < len(packed[1 if codec is Codec.GZIP else 0])


def test_codecs():
    assert [codec.config_name for codec in Codec] == ["uncompressed", "gzip", "snappy", "lz4", "zstd"]
    for codec in (0, 5, 6, 7):
        with pytest.raises(UnsupportedFormat) as caught:
            decompress_into(codec, b"abc", bytearray(10))
        assert caught.value.found == codec
        with pytest.raises(UnsupportedFormat):
            compress(codec, b"abc")


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
            decompress(codec, exact(packed[:length]), CAP)


# What Kafka's clients write


def test_frames_are_those_of_the_java_client():
    snappy = compress(Codec.SNAPPY, bytes(40_000))
    assert snappy[:16].hex() == "82534e415050590000000001" + "00000001"
    (first,) = struct.unpack_from(">i", snappy, 16)
    assert cramjam.snappy.decompress_raw_len(snappy[20 : 20 + first]) == 32 * 1024
    # Blocks that do not shrink are stored.
    lz4 = compress(Codec.LZ4, NOISE[:100_000])
    assert struct.unpack_from("<I", lz4, 7) == (65_536 | 0x80000000,)
    assert len(lz4) == 7 + 4 + 65_536 + 4 + 34_464 + 4


@pytest.mark.parametrize(("magic", "checksum"), [(0, 0x1A), (1, 0x82), (2, 0x82)])
def test_lz4_header_checksums_of_the_formats(magic, checksum):
    packed = compress(Codec.LZ4, b"text " * 100, magic)
    assert packed[:7] == b"\x04\x22\x4d\x18\x60\x40" + bytes([checksum])
    if magic == 0:  # only v0 forgives its wrong checksum
        for other in (1, 2):
            with pytest.raises(DecompressionFailed) as caught:
                decompress(Codec.LZ4, packed, CAP, other)
            assert (caught.value.expected, caught.value.found) == ("0x82", "0x1a")


# Framings that no client writes by itself: read where Kafka's Java client reads them, damage where it fails. Each
# verdict is that of Kafka 4.3.0 (`Compression.of(…).build().wrapForInput`, OpenJDK 17).


class Framing(NamedTuple):
    """`plain`: what Java reads, None where it fails."""

    name: str
    codec: Codec
    packed: bytes
    plain: bytes | None
    magic: int = 2


def snappy_block(data):
    return bytes(cramjam.snappy.compress_raw(data))


def xerial(*blocks, version=1):
    parts = [b"\x82SNAPPY\x00", struct.pack(">ii", version, 1)]
    parts += [struct.pack(">i", len(block)) + block for block in map(snappy_block, blocks)]
    return b"".join(parts)


def lz4(*blocks, flags=0x60, descriptor=0x40, size=None, content_sum=b"", block_sum_xor=0, header_sum_xor=0):
    """A frame of stored blocks, with their checksums if the flags say so."""
    header = bytes([flags, descriptor]) + (b"" if size is None else struct.pack("<Q", size))
    checksum = (xxhash.xxh32_intdigest(header) >> 8 & 0xFF) ^ header_sum_xor
    parts = [b"\x04\x22\x4d\x18", header, bytes([checksum])]
    for block in blocks:
        parts += [struct.pack("<I", len(block) | 0x80000000), block]
        if flags & 0x10:
            parts.append(struct.pack("<I", xxhash.xxh32_intdigest(block) ^ block_sum_xor))
    return b"".join([*parts, bytes(4), content_sum])


def zstd(data):
    return bytes(cramjam.zstd.compress(data))


def zstd_stored(data, checksum):
    """A frame of one raw block, with a checksum of the content."""
    header = struct.pack("<IBB", 0xFD2FB528, 0x04, 0x58)  # checksum; window of 2 MiB
    return header + struct.pack("<I", len(data) << 3 | 1)[:3] + data + checksum


SKIPPABLE = struct.pack("<II", 0x184D2A50, 5) + b"12345"
NOT_A_HEADER = b"\x82SNAPPX\x00" + bytes(8)


def framings(one, two, large):
    first, second = gzip.compress(one), gzip.compress(two)
    xxh64 = struct.pack("<I", xxhash.xxh64_intdigest(one) & 0xFFFFFFFF)
    xxh32 = struct.pack("<I", xxhash.xxh32_intdigest(one))
    return [
        Framing("gzip: a byte behind", Codec.GZIP, first + b"\x01", one),
        Framing("gzip: eight zeros behind", Codec.GZIP, first + bytes(8), one),
        Framing("gzip: noise behind", Codec.GZIP, first + NOISE[:500], one),
        Framing("gzip: noise behind a large member", Codec.GZIP, gzip.compress(large) + NOISE[:500], large),
        Framing("gzip: two members", Codec.GZIP, first + second, one + two),
        Framing("gzip: a large member first", Codec.GZIP, gzip.compress(large) + second, large + two),
        Framing("gzip: two, a byte behind", Codec.GZIP, first + second + b"x", one + two),
        Framing("gzip: empty members", Codec.GZIP, gzip.compress(b"") * 3 + first, one),
        Framing("gzip: a header behind", Codec.GZIP, first + second[:12], one),
        Framing("gzip: a cut second member", Codec.GZIP, first + second[:-9], None),
        Framing("gzip: a wrong CRC", Codec.GZIP, first[:-8] + bytes(8), None),
        Framing("gzip: without its trailer", Codec.GZIP, first[:-8], None),
        Framing("gzip: zlib's header", Codec.GZIP, zlib.compress(one), None),
        Framing("gzip: in a wrapper of v0", Codec.GZIP, first + bytes(8), one, 0),
        Framing("snappy: three bytes behind", Codec.SNAPPY, xerial(one) + b"abc", one),
        Framing("snappy: four bytes behind", Codec.SNAPPY, xerial(one) + b"abcd", None),
        Framing("snappy: two streams", Codec.SNAPPY, xerial(one) + xerial(two), one + two),
        Framing("snappy: a cut header behind", Codec.SNAPPY, xerial(one) + b"\x82SNAPPY\x00", None),
        Framing("snappy: something like a header behind", Codec.SNAPPY, xerial(one) + NOT_A_HEADER + b"x", one),
        Framing("snappy: raw", Codec.SNAPPY, snappy_block(one), one),
        Framing("snappy: raw, bytes behind", Codec.SNAPPY, snappy_block(one) + b"abc", None),
        Framing("lz4: a wrong checksum of the content", Codec.LZ4, lz4(one, flags=0x64, content_sum=b"abcd"), one),
        Framing("lz4: a right checksum of the content", Codec.LZ4, lz4(one, flags=0x64, content_sum=xxh32), one),
        Framing("lz4: no checksum of the content", Codec.LZ4, lz4(one, flags=0x64), None),
        Framing("lz4: checksums of blocks", Codec.LZ4, lz4(one, two, flags=0x70), one + two),
        Framing("lz4: a wrong checksum of a block", Codec.LZ4, lz4(one, flags=0x70, block_sum_xor=1), None),
        Framing("lz4: all checksums", Codec.LZ4, lz4(one, flags=0x74, content_sum=b"abcd"), one),
        Framing("lz4: a wrong size of the content", Codec.LZ4, lz4(one, flags=0x6C, size=7, content_sum=b"abcd"), one),
        Framing("lz4: any size of the content", Codec.LZ4, lz4(one, flags=0x68, size=2**63), one),
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


# (codec, frame, what is wrong with it)
BROKEN = [
    (Codec.SNAPPY, xerial(b"a", version=0), "snappy frame of an unknown version"),
    (Codec.SNAPPY, xerial(b"a")[:12], "snappy header is cut off"),
    (Codec.SNAPPY, xerial(b"a") + b"\x82SNAPPY\x00" + bytes(7), "snappy header is cut off"),
    *((Codec.SNAPPY, xerial() + size + b"abc", "snappy block passes the end")
      for size in (b"\x00\x00\x00\x09", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff")),
    (Codec.LZ4, b"", "not an lz4 frame"),
    (Codec.LZ4, b"\x05\x22\x4d\x18\x60\x40\x82" + bytes(4), "not an lz4 frame"),
    (Codec.LZ4, SKIPPABLE + lz4(b"abc"), "not an lz4 frame"),
    *((Codec.LZ4, lz4(flags=flags), "lz4 frame of a kind that Kafka does not read")
      for flags in (0x40, 0x61, 0xA0)),  # dependent blocks, a dictionary, version 2
    *((Codec.LZ4, lz4(b"abc", descriptor=size), "lz4 frame with an unknown block size") for size in (0x30, 0xC0, 0x41)),
    (Codec.LZ4, lz4(flags=0x68, size=1)[:10], "lz4 frame is cut off"),
    (Codec.LZ4, lz4(b"abc")[:-4], "lz4 frame is cut off"),
    (Codec.LZ4, lz4(b"abc")[:-6], "lz4 block does not fit"),
    (Codec.LZ4, lz4()[:-4] + b"\xff\xff\xff\x7f" + bytes(99), "lz4 block does not fit"),
    (Codec.ZSTD, zstd(b"abc")[:-1], "zstd data does not decompress"),
    (Codec.ZSTD, b"\x28\xb5\x2f\xfd\x00\xff" + zstd(NOISE)[6:], "zstd data does not decompress"),  # a huge window
    (Codec.ZSTD, b"\x28\xb5\x2f\xfd", "zstd data does not decompress"),
]  # fmt: skip


@pytest.mark.parametrize("framing", framings(b"one, " * 60, b"two; " * 60, NOISE[:50_000]), ids=lambda it: it.name)
def test_it_is_read_where_java_reads_it(framing):
    if framing.plain is not None:
        assert decompress(framing.codec, framing.packed, CAP, framing.magic) == framing.plain
        return
    with pytest.raises(DecompressionFailed):
        decompress(framing.codec, framing.packed, CAP, framing.magic)


@pytest.mark.parametrize(("codec", "packed", "what"), BROKEN)
def test_broken_frames(codec, packed, what):
    with pytest.raises(DecompressionFailed) as caught:
        decompress(codec, packed, CAP)
    assert caught.value.what.partition(":")[0] == what


TWO = record(1, value=b"two; " * 60)
IN_BATCHES = [
    *(one for one in framings(record(value=b"one, " * 60), TWO, record(value=NOISE[:50_000])) if one.magic == 2),
    *(Framing(what, codec, packed, None) for codec, packed, what in BROKEN),
]


@pytest.mark.usefixtures("both_forms")
@pytest.mark.parametrize("framing", IN_BATCHES, ids=lambda framing: framing.name)
def test_a_batch_of_it(framing):
    """Through the loops that decompress many batches in one call, between ordinary batches of the same codec."""
    count = 2 if framing.plain is not None and framing.plain.endswith(TWO) else 1
    ordinary = compress(framing.codec, record(value=b"x"))
    data = b"".join(
        batch(packed, offset, attributes=framing.codec, count=number)
        for packed, offset, number in ((ordinary, 0, 1), (framing.packed, 1, count), (ordinary, 1 + count, 1))
    )
    block = Decoder(max_decompressed_bytes=CAP).decode(exact(data), table_of(data), origin=0)
    if framing.plain is None:
        assert (block.damage.row, block.offset.tolist()) == (1, [0])
    else:
        assert block.damage is None
        assert block.offset.tolist() == list(range(2 + count))


def test_many_members_of_gzip_take_no_time_of_their_own():
    """Also where bytes behind them keep the library from reading them all in one call."""
    packed = gzip.compress(b"") * 20_000 + compress(Codec.GZIP, b"one") + b"x"
    assert decompress(Codec.GZIP, packed, CAP) == b"one"


def test_lz4_block_sizes():
    for descriptor in (0x40, 0x50, 0x60, 0x70):
        limit = 1 << (8 + 2 * (descriptor >> 4))
        data = bytes(min(limit, 300_000))
        assert decompress(Codec.LZ4, lz4(data, b"end", descriptor=descriptor), CAP) == data + b"end"
        with pytest.raises(DecompressionFailed):
            decompress(Codec.LZ4, lz4(bytes(limit + 1), descriptor=descriptor), 8 * CAP)


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
def test_bombs_end_at_the_cap(codec):
    for size in (CAP + 65_536, 16 * CAP):
        packed = BOMBS[codec](size)
        assert len(packed) < size // 15
        with pytest.raises(DecompressionFailed) as caught:
            decompress(codec, packed, CAP)
        assert caught.value.expected == f"at most {CAP} bytes"
    assert len(decompress(codec, BOMBS[codec](CAP), CAP)) == CAP


def decoded(decoder, data, row):
    """A block, and the most bytes that decoding took."""
    table = table_of(data)
    tracemalloc.start()
    try:
        return decoder.decode(data, table, row, origin=0), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("both_forms")
@pytest.mark.parametrize(("codec", "magic"), [*((codec, 2) for codec in CODECS), *((codec, 1) for codec in CODECS[:3])])
def test_a_bomb_is_one_damaged_batch_to_the_decoder(codec, magic):
    packed = BOMBS[codec](16 * CAP)
    bomb = batch(packed, 1, attributes=codec, count=1) if magic == 2 else message(1, packed, attributes=codec)
    data = batch([record()]) + bomb + batch([record()], 2)
    decoder = Decoder(max_decompressed_bytes=CAP, block_bytes=4096)
    block = decoder.decode(data, table_of(data), origin=0)
    assert block.offset.tolist() == [0]
    block, taken = decoded(decoder, data, 1)  # the arena may have been full beside the first batch
    assert block.damage.row == 1
    assert type(block.damage.error) is DecompressionFailed
    assert str(CAP) in str(block.damage.error)
    assert taken < 4 * CAP
    assert decoder.decode(data, table_of(data), 2, origin=0).offset.tolist() == [2]


def test_a_snappy_block_that_claims_four_gigabytes_takes_no_memory():
    claim = b"\xff\xff\xff\xff\x0f" + b"\x00a"
    with pytest.raises(OutputFull) as caught:
        decompress_into(Codec.SNAPPY, claim, bytearray(100))
    assert caught.value.needed == 2**32 - 1
    block, taken = decoded(Decoder(), batch(claim, attributes=Codec.SNAPPY, count=1), 0)
    assert type(block.damage.error) is DecompressionFailed
    assert taken < 4 * CAP
