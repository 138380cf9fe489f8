"""Inode numbers: the same from mount to mount, without a table of them."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from kafkafs.reading.range_names import plain_offsets_name


@lru_cache(maxsize=4096)  # A listing needs it three times for each entry, in quick succession.
def inode(path: str) -> int:
    """A number for `path` that stays the same from mount to mount. Leading zeros in an offset range are ignored."""
    folder, slash, name = path.rpartition("/")
    if folder.endswith("/offsets"):
        path = folder + slash + plain_offsets_name(name)
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little") >> 1 or 1
