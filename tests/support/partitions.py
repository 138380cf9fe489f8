"""Which partition a key goes to, worked out one key at a time."""

from __future__ import annotations

from storage.format import hashing


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of one key, the empty one included (BuiltInPartitioner)."""
    return (int(hashing.murmur2(key)) & 0x7FFFFFFF) % partitions
