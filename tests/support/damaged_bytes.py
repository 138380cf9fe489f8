"""Damaging bytes: flips, cuts, insertions, numbers at their limits; and correcting checksums afterwards."""

from __future__ import annotations

import os
import random
import struct
import zlib
from pathlib import Path

import crc32c

# Bytes that lengths, counts and varints are sensitive to.
PROVOCATIVE = [
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
]


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Changes bytes of a file in place; a position below 0 counts from its end."""
    with path.open("r+b") as file:
        file.seek(position, os.SEEK_SET if position >= 0 else os.SEEK_END)
        file.write(data)


def flip(path: Path, position: int, bits: int = 1) -> None:
    """Flips bits of one byte of a file in place."""
    overwrite(path, position, bytes([path.read_bytes()[position] ^ bits]))


def flip_middle(path: Path) -> None:
    """Flips a bit of the byte in the middle of a file."""
    flip(path, path.stat().st_size // 2)


def damaged(data: bytes, dice: random.Random) -> bytes:
    """A copy of `data` with one to four damages."""
    out = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        at = dice.randrange(len(out) + 1)
        kind = dice.randrange(9)
        if kind == 0 and out:
            out[min(at, len(out) - 1)] ^= 1 << dice.randrange(8)
        elif kind == 1 and out:
            out[min(at, len(out) - 1)] = dice.randrange(256)
        elif kind == 2:
            del out[at:]
        elif kind == 3:
            del out[at : at + dice.choice((1, 1, 2, 8, 60))]
        elif kind == 4:
            out[at:at] = dice.randbytes(dice.choice((1, 1, 2, 8, 60)))
        elif kind in (5, 6) and out:  # a length that is one or a few off
            at = min(at, len(out) - 1)
            out[at] = (out[at] + dice.choice((-4, -2, -1, 1, 2, 4))) & 0xFF
        elif kind == 7:
            patch = dice.choice(PROVOCATIVE)
            out[at : at + len(patch)] = patch
        else:
            patch = dice.choice(PROVOCATIVE)
            out[at:at] = patch
    return bytes(out)


def with_right_checksums(data: bytes) -> bytes:
    """`data` with the CRCs of its whole batches corrected; lengths and the rest are unchanged.

    So damage passes the checksum and reaches the code after it.
    """
    out = bytearray(data)
    position = 0
    while position + 17 <= len(out):
        (length,) = struct.unpack_from(">i", out, position + 8)
        end = position + 12 + length
        if length < 14 or end > len(out):
            break
        magic = out[position + 16]
        if magic == 2 and length >= 49:
            struct.pack_into(">I", out, position + 17, crc32c.crc32c(bytes(out[position + 21 : end])))
        elif magic < 2:
            struct.pack_into(">I", out, position + 12, zlib.crc32(out[position + 16 : end]))
        position = end
    return bytes(out)
