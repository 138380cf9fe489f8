"""Files that are read from a tier block by block: Aiven's chunks, and ranges of objects in far places.

A block is read, decrypted and decompressed as a whole, and kept: decoded in memory; and, if the place is far away, with
the tier's own bytes in the user's cache directory, so that data encrypted in the tier are encrypted on this disk too.
Blocks that are read ahead stay in memory with the tier's bytes: if they were decoded, they would evict each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cachetools import LRUCache

from storage.errors import CorruptData
from storage.files.cache_files import CacheFiles, cache_directory
from storage.format.checksum import crc32c
from storage.tier.layouts import StoredObject
from storage.tier.object_places import Place
from storage.tier.remote_segments import ObjectFile, RemoteFile

MEMORY_BYTES: Final = 64 << 20
DISK_BYTES: Final = 1 << 30
RANGE_BYTES: Final = 1 << 20  # of an object without blocks
_REQUEST_BYTES: Final = 8 << 20  # the most to request at once, unless a block is larger
_CRC_BYTES: Final = 4

# Returns a block's position and size in the object.
Stored = Callable[[int], tuple[int, int]]
# Decodes a block, given its bytes in the object and its decoded size. CorruptData.
Decode = Callable[[memoryview, int], memoryview]
# A block in memory: its object, its position there, and whether it is decoded.
_Key = tuple[StoredObject, int, bool]


class RemoteBlockCache:
    """Blocks in memory, of which the least recently used are evicted first, and blocks of far places in the cache
    directory, unless `disk_bytes` is 0. Thread-safe."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES, disk_bytes: int = DISK_BYTES, directory: Path | None = None):
        self.files: Final = CacheFiles(directory or cache_directory("tier"), ".block", disk_bytes)
        # Guarded by the lock. A block that is larger than the limit replaces all others.
        self._lock: Final = threading.Lock()
        self._blocks: LRUCache[_Key, memoryview] = LRUCache(memory_bytes, lambda block: min(len(block), memory_bytes))

    def is_kept(self, place: Place) -> bool:
        """Whether the blocks of a place are kept in the cache directory."""
        return self.files.max_bytes > 0 and not place.is_local

    def get(self, key: _Key) -> memoryview | None:
        with self._lock:
            return self._blocks.get(key)

    def put(self, key: _Key, block: memoryview) -> None:
        with self._lock:
            self._blocks[key] = block

    def take(self, key: _Key) -> memoryview | None:
        """Return a block, and remove it from the cache."""
        with self._lock:
            return self._blocks.pop(key, None)


class BlockFile(RemoteFile):
    """A file of blocks of `block_size` bytes, the last one shorter. `stored`: gives their positions and sizes in an
    object. `decode`: None if the object has them decoded."""

    __slots__ = ("_block_size", "_cache", "_decode", "_lock", "_object", "_stored")

    def __init__(
        self,
        stored_in: StoredObject,
        size: int,
        block_size: int,
        stored: Stored,
        decode: Decode | None,
        cache: RemoteBlockCache,
    ) -> None:
        super().__init__(stored_in.name, size)
        self._object: Final = stored_in
        self._block_size: Final = block_size
        self._stored: Final = stored
        self._decode: Final = decode
        self._cache: Final = cache
        # One thread at a time reads from the tier: others that need the same block would request it too.
        self._lock: Final = threading.Lock()

    @property
    def content_key(self) -> str | None:
        """For a far place a name of the listed object, under which its blocks are also kept on disk."""
        stored = self._object
        if stored.place.is_local or not stored.version:
            return None
        return repr((stored.name, stored.size, stored.version))

    def read(self, position: int, size: int) -> memoryview:
        end = min(position + size, self.size)
        if position >= end:
            return memoryview(b"")
        first, last = position // self._block_size, (end - 1) // self._block_size
        if first == last:
            at = position - first * self._block_size
            return self._block(first, last)[at : at + end - position]
        result = memoryview(bytearray(end - position))
        for number in range(first, last + 1):
            start = number * self._block_size
            part = self._block(number, last)[max(position - start, 0) : end - start]
            result[max(start - position, 0) :][: len(part)] = part
        return result

    def _key(self, number: int, *, decoded: bool = True) -> _Key:
        # By the place in the object: an object may have several files, and may be opened several times.
        return self._object, self._stored(number)[0], decoded

    def _block(self, number: int, last: int) -> memoryview:
        block = self._cache.get(self._key(number))
        if block is None:
            with self._lock:
                block = self._cache.get(self._key(number))
                if block is None:
                    block = self._load(number, last)
        return block

    def _load(self, number: int, last: int) -> memoryview:
        """Read a block, with the following blocks up to `last`; more of them if the read continues the previous one."""
        data = self._kept(number)
        if data is not None:
            return self._decoded(number, data)
        if number and not self._object.place.is_local and self._cache.get(self._key(number - 1)) is not None:
            last = max(last, number + _REQUEST_BYTES // self._block_size)
        position, size = self._stored(number)
        sizes = [size]
        for following in range(number + 1, min(last, (self.size - 1) // self._block_size) + 1):
            more = self._stored(following)[1]
            following_is_kept = any(
                self._cache.get(self._key(following, decoded=form)) is not None for form in (True, False)
            )
            if sum(sizes) + more > _REQUEST_BYTES or following_is_kept:
                break
            sizes.append(more)
        total_bytes = sum(sizes)
        data = memoryview(self._object.place.read(self._object.key, position, total_bytes))
        if len(data) != total_bytes:
            expected = f"at least {position + total_bytes} bytes"
            raise CorruptData("object is cut off", path=self.name, expected=expected, found=position + len(data))
        first = data[: sizes[0]]
        for at, size in enumerate(sizes):
            self._keep(number + at, data[:size])
            if at:
                self._cache.put(self._key(number + at, decoded=False), memoryview(bytes(data[:size])))
            data = data[size:]
        return self._decoded(number, first)

    def _decoded(self, number: int, data: memoryview) -> memoryview:
        size = min(self._block_size, self.size - number * self._block_size)
        # A copy, because a view would keep all bytes of the request in memory.
        block = memoryview(bytes(data)) if self._decode is None else self._decode(data, size)
        self._cache.put(self._key(number), block)
        return block

    def _file_key(self, number: int) -> bytes:
        stored, (position, size) = self._object, self._stored(number)
        return repr((stored.name, stored.size, stored.version, position, size)).encode("utf-8", "surrogateescape")

    def _kept(self, number: int) -> memoryview | None:
        ahead = self._cache.take(self._key(number, decoded=False))
        if ahead is not None or not self._cache.is_kept(self._object.place):
            return ahead
        key = self._file_key(number)
        data = self._cache.files.read(key)
        if data is None or len(data) != self._stored(number)[1] + _CRC_BYTES:
            return None
        if crc32c(memoryview(data)[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "big"):
            return None
        self._cache.files.used(key)
        return memoryview(data)[:-_CRC_BYTES]

    def _keep(self, number: int, data: memoryview) -> None:
        if self._cache.is_kept(self._object.place):
            self._cache.files.write(self._file_key(number), bytes(data) + crc32c(data).to_bytes(_CRC_BYTES, "big"))


def open_object(stored: StoredObject, cache: RemoteBlockCache) -> RemoteFile:
    """An object that has the file's own bytes: read by ranges, from far places in blocks that are kept."""
    if stored.place.is_local:
        return ObjectFile(stored.place, stored.key, stored.size)

    def range_of(number: int) -> tuple[int, int]:
        return number * RANGE_BYTES, min(RANGE_BYTES, stored.size - number * RANGE_BYTES)

    return BlockFile(stored, stored.size, RANGE_BYTES, range_of, None, cache)
