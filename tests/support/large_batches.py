"""Batches whose bytes are in a hole of a sparse file, with a right CRC."""

from __future__ import annotations

from storage.format.batches import BATCH_HEADER_SIZE
from storage.format.checksum import crc32, crc32c


def large_batch(offset: int, size: int, magic: int = 2) -> bytes:
    """The header of a batch of one record whose other bytes are zeros."""
    head = bytearray(BATCH_HEADER_SIZE)
    head[:17] = offset.to_bytes(8, "big") + (size - 12).to_bytes(4, "big") + bytes(4) + bytes([magic])
    at, covered, checksum = (12, 16, crc32) if magic < 2 else (17, 21, crc32c)
    if magic > 1:
        head[43:61] = b"\xff" * 14 + (1).to_bytes(4, "big")  # no producer, one record
    crc, left, zeros = checksum(head[covered:]), size - BATCH_HEADER_SIZE, bytes(1 << 20)
    while left:
        part = min(left, len(zeros))
        crc = checksum(zeros[:part], crc)
        left -= part
    head[at : at + 4] = crc.to_bytes(4, "big")
    return bytes(head)
