"""The four codecs of record batches, with the framing of Kafka's clients.

Sources: common.compress of Kafka, Lz4BlockInputStream/OutputStream, snappy-java's SnappyInputStream. Output always goes
into a buffer that the caller provides and that limits it: a decompression bomb cannot make us allocate memory. cramjam
decodes; its gzip and zstd calls release the GIL, its snappy and lz4 block calls do not (they take 20 us for a block of
64 KiB).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import cramjam
import numpy as np
import xxhash

from storage.errors import DecompressionFailed, UnsupportedFormat

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Codec(IntEnum):
    """Attribute bits 0 to 2, named as in compression.type."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def config_name(self) -> str:
        """The value of compression.type, `uncompressed` for none."""
        return "uncompressed" if self is Codec.NONE else self.name.lower()


class OutputFull(Exception):
    """The output buffer is too small: try again with a larger one, unless the limit is reached.

    `needed`: the least size that the data claims to need; 0 if unknown.
    """

    def __init__(self, needed: int = 0) -> None:
        super().__init__(needed)
        self.needed = needed


XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = struct.Struct(
    ">"
    "8s"  # magic
    "i"  # version: 1
    "i"  # least version that can read it: 1
)
XERIAL_BLOCK_SIZE = 32 * 1024
INT32_BE = struct.Struct(">i")

LZ4_MAGIC = b"\x04\x22\x4d\x18"
LZ4_BLOCK_SIZE = 64 * 1024
LZ4_STORED = 0x80000000  # top bit of a block's length: not compressed
_LZ4_BLOCK_CHECKSUM = 0x10  # flag of a frame: each block is followed by a checksum
UINT32_LE = struct.Struct("<I")
# FLG bits
LZ4_VERSION = 0xC0  # must be 01
LZ4_INDEPENDENT = 0x20
LZ4_BLOCK_CHECKSUM = 0x10
LZ4_CONTENT_SIZE = 0x08
LZ4_CONTENT_CHECKSUM = 0x04
LZ4_RESERVED = 0x03

GZIP_LEVEL = 6
# Below this size zlib is faster than cramjam, which takes at least 7 us.
SMALL_GZIP_BYTES = 4096
_GZIP_PIECE_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b\x08"  # with the compression method
_GZIP_LEAST_MEMBER = 19  # bytes after a member in which GZIPInputStream looks for another one
ZSTD_LEVEL = 3


def decompress_into(codec: int, data: Buffer, out: Buffer, magic: int = 2) -> int:
    """Decompress `data` into the start of the writable `out`; returns the number of bytes written.

    `magic` is the batch's format: with 0 a wrong lz4 header checksum is ignored. OutputFull: `out` is too small.
    DecompressionFailed: not a complete stream of this codec. UnsupportedFormat: unknown codec, or zstd before v2.
    """
    source, target = memoryview(data), memoryview(out)
    try:
        if codec == Codec.GZIP:
            return _gzip_into(source, target)
        if codec == Codec.SNAPPY:
            return _snappy_into(source, target)
        if codec == Codec.LZ4:
            return _lz4_into(source, target, magic)
        if codec == Codec.ZSTD and magic >= 2:
            return int(cramjam.zstd.decompress_into(source, _array(target)))
    except cramjam.DecompressionError as error:
        if _is_full(error):
            raise OutputFull from None
        raise DecompressionFailed(f"{Codec(codec).name.lower()} data does not decompress: {error}") from None
    raise UnsupportedFormat(
        "batch has a codec that its format does not have", expected="gzip, snappy, lz4, zstd (v2 only)", found=codec
    )


def _is_full(error: cramjam.DecompressionError) -> bool:
    # The text of Rust's io::Write::write_all, the only indication in cramjam's error; a test checks it.
    return "write whole buffer" in str(error)


def decompress(codec: int, data: Buffer, max_bytes: int, magic: int = 2) -> bytes:
    """Decompress as a whole; for API edges. DecompressionFailed beyond `max_bytes`."""
    size = min(4096, max_bytes)
    while True:
        out = bytearray(size)
        try:
            return bytes(memoryview(out)[: decompress_into(codec, data, out, magic)])
        except OutputFull as full:
            if size >= max_bytes or full.needed > max_bytes:
                raise too_large(max_bytes) from None
            size = min(max(2 * size, full.needed), max_bytes)


def too_large(max_bytes: int) -> DecompressionFailed:
    """The error for a batch that exceeds the limit."""
    return DecompressionFailed(
        "batch decompresses to more than the cap", expected=f"at most {max_bytes} bytes", found="more"
    )


def compress(codec: int, data: Buffer, magic: int = 2, level: int | None = None) -> bytes:
    """Compress records with the framing of Kafka's producer. UnsupportedFormat as for `decompress_into`."""
    source = memoryview(data).cast("B")
    if codec == Codec.GZIP:
        return bytes(cramjam.gzip.compress(source, level=GZIP_LEVEL if level is None or level < 0 else level))
    if codec == Codec.SNAPPY:
        return _snappy_frame(source)
    if codec == Codec.LZ4:
        return _lz4_frame(source, magic, level)
    if codec == Codec.ZSTD and magic >= 2:
        return bytes(cramjam.zstd.compress(source, level=ZSTD_LEVEL if level is None else level))
    raise UnsupportedFormat("no such codec for this format", expected="gzip, snappy, lz4, zstd (v2 only)", found=codec)


def _array(target: memoryview) -> Any:
    """A copy of the bytes: on a free-threaded Python cramjam writes into no memoryview."""
    return np.asarray(target)


def _gzip_into(source: memoryview, target: memoryview) -> int:
    """RFC 1952, members one after the other; bytes after them are ignored, as GZIPInputStream ignores them."""
    if len(source) >= SMALL_GZIP_BYTES:
        try:
            return int(cramjam.gzip.decompress_into(source, _array(target)))
        except cramjam.DecompressionError as error:
            if _is_full(error):
                raise
    return _gzip_members_into(source, target)


def _gzip_members_into(source: memoryview, target: memoryview) -> int:
    at = used = 0
    while True:
        stream = zlib.decompressobj(wbits=31)
        size = SMALL_GZIP_BYTES  # zlib copies the input that follows a member: members may be many and short
        while not stream.eof:
            piece = source[at : at + size]
            if not piece:
                raise DecompressionFailed("gzip data is cut off", expected="the end of a member", found="the end")
            room = len(target) - used
            try:
                data = stream.decompress(piece, room + 1)
            except zlib.error as error:
                raise DecompressionFailed(f"gzip data does not decompress: {error}") from None
            if len(data) > room:
                raise OutputFull
            target[used : used + len(data)] = data
            used += len(data)
            at += len(piece) - len(stream.unused_data)
            size = min(2 * size, _GZIP_PIECE_BYTES)
        if len(source) - at < _GZIP_LEAST_MEMBER or source[at : at + len(_GZIP_MAGIC)] != _GZIP_MAGIC:
            return used


def _snappy_into(source: memoryview, target: memoryview) -> int:
    """Xerial frames, or one raw block as librdkafka writes (SnappyInputStream)."""
    if bytes(source[:8]) != XERIAL_MAGIC:
        return _snappy_block(source, target, 0)
    at = used = 0
    while at < len(source):
        if bytes(source[at : at + 8]) == XERIAL_MAGIC:  # again in the middle: streams written one after the other
            if len(source) - at < XERIAL_HEADER.size:
                raise DecompressionFailed(
                    "snappy header is cut off", expected=XERIAL_HEADER.size, found=len(source) - at
                )
            _, version, _ = XERIAL_HEADER.unpack_from(source, at)
            if version < 1:
                raise DecompressionFailed("snappy frame of an unknown version", expected="1 or more", found=version)
            at += XERIAL_HEADER.size
            continue
        left = len(source) - at - INT32_BE.size
        if left < 0 or bytes(source[at : at + 4]) == XERIAL_MAGIC[:4]:
            break  # SnappyInputStream ignores one to three bytes, and what follows something like a header
        (length,) = INT32_BE.unpack_from(source, at)
        if length < 0 or length > left:
            raise DecompressionFailed("snappy block passes the end", expected=f"at most {max(left, 0)}", found=length)
        at += INT32_BE.size
        used += _snappy_block(source[at : at + length], target, used)
        at += length
    return used


def _snappy_block(source: memoryview, target: memoryview, used: int) -> int:
    needed = used + int(cramjam.snappy.decompress_raw_len(source))
    if needed > len(target):
        raise OutputFull(needed)
    return int(cramjam.snappy.decompress_raw_into(source, _array(target[used:])))


def _snappy_frame(source: memoryview) -> bytes:
    parts = [XERIAL_HEADER.pack(XERIAL_MAGIC, 1, 1)]
    for at in range(0, len(source), XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(source[at : at + XERIAL_BLOCK_SIZE]))
        parts += (INT32_BE.pack(len(block)), block)
    return b"".join(parts)


def _lz4_into(source: memoryview, target: memoryview, magic: int) -> int:
    """An lz4 frame by Kafka's rules (Lz4BlockInputStream): independent blocks with verified checksums. The size of
    the content and its checksum are skipped. What follows the frame is ignored.

    Decoded block by block, which takes a third of the time of a call for the whole frame.
    """
    at, block_max, flags = _lz4_header(source, magic)
    used = 0
    checksum_size = UINT32_LE.size if flags & LZ4_BLOCK_CHECKSUM else 0
    while True:
        left = len(source) - at - UINT32_LE.size
        if left < 0:
            raise DecompressionFailed("lz4 frame is cut off", expected="an end mark", found="the end")
        (length,) = UINT32_LE.unpack_from(source, at)
        at += UINT32_LE.size
        stored, length = length & LZ4_STORED, length & ~LZ4_STORED
        if length == 0:
            break
        left -= checksum_size
        if length > block_max or length > left:
            raise DecompressionFailed(
                "lz4 block does not fit", expected=f"at most {max(min(block_max, left), 0)}", found=length
            )
        block = source[at : at + length]
        at += length
        if checksum_size:
            (expected,), computed = UINT32_LE.unpack_from(source, at), xxhash.xxh32_intdigest(block)
            if computed != expected:
                raise DecompressionFailed("lz4 block checksum differs", expected=hex(expected), found=hex(computed))
            at += checksum_size
        used += _lz4_block(block, target[used : used + block_max], bool(stored), block_max)
    if flags & LZ4_CONTENT_CHECKSUM and len(source) - at < UINT32_LE.size:
        raise DecompressionFailed("lz4 frame is cut off", expected="a checksum of the content", found="the end")
    return used


def _lz4_header(source: memoryview, magic: int) -> tuple[int, int, int]:
    """(where blocks begin, greatest block size, FLG); DecompressionFailed."""
    if len(source) < 7 or bytes(source[:4]) != LZ4_MAGIC:
        raise DecompressionFailed("not an lz4 frame", expected=LZ4_MAGIC.hex(), found=bytes(source[:4]).hex())
    flags, descriptor = source[4], source[5]
    if flags & LZ4_VERSION != 0x40 or flags & LZ4_RESERVED or not flags & LZ4_INDEPENDENT:
        raise DecompressionFailed("lz4 frame of a kind that Kafka does not read", expected="0x60", found=hex(flags))
    if descriptor & 0x8F or not 4 <= descriptor >> 4 <= 7:
        raise DecompressionFailed(
            "lz4 frame with an unknown block size", expected="0x40 to 0x70", found=hex(descriptor)
        )
    start = 15 if flags & LZ4_CONTENT_SIZE else 7
    if len(source) < start:
        raise DecompressionFailed("lz4 frame is cut off", expected=f"{start} bytes of header", found=len(source))
    if magic > 0:  # in format v0 the checksum covers the wrong bytes; readers ignore it
        expected = _lz4_header_checksum(bytes(source[4 : start - 1]))
        if source[start - 1] != expected:
            found = hex(source[start - 1])
            raise DecompressionFailed("lz4 header checksum differs", expected=hex(expected), found=found)
    return start, 1 << (8 + 2 * (descriptor >> 4)), flags


def _lz4_block(source: memoryview, target: memoryview, stored: bool, block_max: int) -> int:
    if stored:
        if len(source) > len(target):
            raise OutputFull
        target[: len(source)] = source
        return len(source)
    try:
        return int(cramjam.lz4.decompress_block_into(source, _array(target), output_len=len(target)))
    except cramjam.DecompressionError:
        if len(target) < block_max:
            raise OutputFull from None
        raise


def _lz4_frame(source: memoryview, magic: int, level: int | None) -> bytes:
    descriptor = b"\x60\x40"
    # Format v0 hashes from the frame's magic on: an error of the first clients that became part of the format.
    checksum = _lz4_header_checksum(LZ4_MAGIC + descriptor if magic == 0 else descriptor)
    parts = [LZ4_MAGIC, descriptor, bytes([checksum])]
    if level is not None and level != 9:  # Kafka's level 9, the default, is the fast compressor
        parts += _lz4_blocks(source, level)
    else:
        for at in range(0, len(source), LZ4_BLOCK_SIZE):
            block = source[at : at + LZ4_BLOCK_SIZE]
            packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
            if len(packed) < len(block):
                parts += (UINT32_LE.pack(len(packed)), packed)
            else:
                parts += (UINT32_LE.pack(len(block) | LZ4_STORED), bytes(block))
    parts.append(UINT32_LE.pack(0))
    return b"".join(parts)


def _lz4_blocks(source: memoryview, level: int) -> Iterator[bytes]:
    """The independent blocks of the data, compressed at a level, each with its size before it. cramjam obeys the level
    only for a frame, in whose header it announces a checksum after each block."""
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(source))
    frame = memoryview(compressor.finish())
    checksum_bytes = 4 if frame[4] & _LZ4_BLOCK_CHECKSUM else 0
    position = 7
    while size := UINT32_LE.unpack_from(frame, position)[0] & ~LZ4_STORED:
        end = position + 4 + size
        yield bytes(frame[position:end])
        position = end + checksum_bytes


def _lz4_header_checksum(descriptor: bytes) -> int:
    """The second byte of xxHash32 with seed 0."""
    return xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF
