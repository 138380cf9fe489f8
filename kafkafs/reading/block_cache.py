"""Rendered blocks in one bounded cache that all open files share.

A block is rendered once, however many readers wait for it, into a recycled buffer. It stays in the cache until it is
the least recently used. A reader pins a block while it copies from it; a pinned buffer is never recycled.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from storage.errors import SegmentGone, StorageError

# The pages that the kernel's page cache may hold for one path, and the consequences for others that open the path.
#
# To the kernel a path is one file, whichever log it shows by now, and all handles in the page cache share its pages and
# its size. So that no reader gets a mixture of the path's old and new content:
#
# 1. Reads of a buffered handle give the content that the handle was opened with, or an error; so the pages that
#    these reads fill hold only that content.
# 2. An open with another content than the one that last filled the pages makes the kernel drop them (no keep_cache).
# 3. While a buffered handle with another content is open, new handles are direct_io: they neither see nor fill pages.
# 4. The kernel ends a buffered read at the size that the path shows, without asking. So while such a handle is open,
#    the path must not show a smaller size than the handle's: a stat or an open of the path fails until it is closed.


class _Opened(NamedTuple):
    content: object
    size: int


class PathPages:
    """The pages of one path. Contents are compared for equality. Thread-safe."""

    def __init__(self) -> None:
        # guarded by the lock
        self._lock = threading.Lock()
        self._buffered: list[_Opened] = []  # the open handles in the page cache
        self._filled_with: object = None  # by the last of them

    @property
    def is_in_use(self) -> bool:
        """Whether a buffered handle is open."""
        return bool(self._buffered)

    def open(self, content: object, size: int, *, sealed: bool) -> tuple[bool, bool]:
        """How to open a handle: (direct_io, keep_cache). If not direct_io, `close` must follow.

        `sealed`: the content is final and may be in the page cache. SegmentGone: see 4.
        """
        with self._lock:
            self._check_locked(size)
            if not sealed or any(buffered.content != content for buffered in self._buffered):
                return True, False
            keep = self._filled_with is not None and self._filled_with == content
            self._filled_with = content
            self._buffered.append(_Opened(content, size))
            return False, keep

    def close(self, content: object, size: int) -> None:
        """Ends the use of a buffered handle."""
        with self._lock:
            self._buffered.remove(_Opened(content, size))

    def check(self, size: int) -> None:
        """SegmentGone if the path must not show this size now: see 4."""
        if self._buffered:
            with self._lock:
                self._check_locked(size)

    def _check_locked(self, size: int) -> None:
        largest = max((buffered.size for buffered in self._buffered), default=0)
        if size < largest:
            raise SegmentGone(
                "the log was truncated or compacted, or its topic made again, while this file was open",
                expected=f"at least {largest} bytes, the size that its readers were given",
                found=f"{size} bytes",
                advice="Close the file first",
            )


DEFAULT_CACHE_BYTES = 64 << 20

_SIZE_CLASS = 256 << 10  # buffer sizes are multiples of this, so that most fit the next block

# Blocks that sequential readers have finished are kept for other readers shortly after them, but not for long: a buffer
# that is reused soon is still in the processor's cache.
_FINISHED_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class DamagedPlace:
    """The bytes of a block, `start` to `end` (excluded), that stand for unreadable data or for a message that is too
    long, and the error that reading them raises. `read_at`: the file's ctime (ns) before it was read; if it has changed
    since, the file may have been repaired."""

    start: int
    end: int
    error: StorageError
    read_at: int = -1


class Buffer:
    """Memory with a fixed address. `uses`: how many blocks it has, and 1 while it is being filled."""

    __slots__ = ("address", "array", "capacity", "uses")

    def __init__(self, capacity: int) -> None:
        self.array = np.empty(capacity, dtype=np.uint8)
        self.address: int = self.array.ctypes.data
        self.capacity = capacity
        self.uses = 1


class Block:
    """The rendered bytes of one piece: `size` bytes at `address`, valid while pinned."""

    __slots__ = ("address", "buffer", "damage", "finished", "key", "pins", "size")

    def __init__(
        self, key: Hashable, buffer: Buffer, size: int, damage: Sequence[DamagedPlace] = (), start: int = 0
    ) -> None:
        self.key = key
        self.buffer = buffer
        self.address = buffer.address + start
        self.size = size
        self.damage = tuple(damage)
        self.pins = 1
        self.finished = False  # read to its end by a sequential reader, and not requested since

    def readable_until(self, start: int) -> int:
        """Where a read from `start` must stop: at the next damage or the end. Raises the error of damage at `start`."""
        for place in self.damage:
            if place.start <= start < place.end:
                raise place.error
            if start < place.start:
                return place.start
        return self.size


class _Pending:
    """A block that a thread is rendering; the lock `done` is held until it is finished. Not a Future: the simulation
    schedules threads by locks, and would not see that they wait."""

    __slots__ = ("block", "done", "error", "waiters")

    def __init__(self) -> None:
        self.done = threading.Lock()
        self.done.acquire()
        self.waiters = 0
        self.block: Block | None = None
        self.error: BaseException | None = None


Fill = Callable[[Buffer], Sequence[DamagedPlace]]


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """The state of the cache: bytes allocated and allowed, blocks, requests answered without and with rendering."""

    used_bytes: int
    max_bytes: int
    blocks: int
    hits: int
    misses: int


class BlockCache:
    """Rendered blocks by key; the least recently used is evicted first. Thread-safe.

    `max_bytes` limits all buffers, including free ones; it is exceeded only while everything is pinned.
    """

    def __init__(self, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        # constant after construction
        self.max_bytes = max_bytes
        # guarded by the lock
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Hashable, Block] = OrderedDict()
        self._pending: dict[Hashable, _Pending] = {}
        self._free: dict[int, list[Buffer]] = {}
        self._finished: OrderedDict[Block, None] = OrderedDict()  # some of the blocks
        self._finished_bytes = 0
        self._used_bytes = 0
        self._hits = 0
        self._misses = 0

    def get(self, key: Hashable, size: int, fill: Fill, while_waiting: Callable[[], object] | None = None) -> Block:
        """The block of `key`, pinned: call `release` when done with it.

        `fill` renders its `size` bytes into a buffer and returns the damaged places; only one thread calls it.
        `while_waiting` is called if another thread is rendering the block. Raises what `fill` raises, in all threads
        that wait for this block.
        """
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
                block.pins += 1
                block.finished = False
                self._hits += 1
                return block
            pending = self._pending.get(key)
            if pending is None:
                self._misses += 1
                mine = self._pending[key] = _Pending()
                buffer = self._allocate_locked(size)
            else:
                self._hits += 1
                pending.waiters += 1
        if pending is not None:
            if while_waiting is not None and pending.done.locked():
                while_waiting()
            return self._wait(pending)
        try:
            block = Block(key, buffer, size, fill(buffer))
        except BaseException as error:
            with self._lock:
                del self._pending[key]
                self._recycle_locked(buffer)
                mine.error = error
            mine.done.release()
            raise
        with self._lock:
            del self._pending[key]
            block.pins += mine.waiters
            self._blocks[key] = block
            mine.block = block
        mine.done.release()
        return block

    def take(self, size: int) -> Buffer:
        """A buffer for blocks that are rendered together; `put` must follow."""
        with self._lock:
            return self._allocate_locked(size)

    def put(self, buffer: Buffer, blocks: Iterable[tuple[Hashable, int, int]]) -> None:
        """Ends the use of a buffer from `take`, and keeps the blocks in it: key, start and size of each."""
        with self._lock:
            for key, start, size in blocks:
                if key not in self._blocks and key not in self._pending:
                    block = self._blocks[key] = Block(key, buffer, size, start=start)
                    block.pins = 0
                    buffer.uses += 1
            self._recycle_locked(buffer)

    def holds(self, key: Hashable) -> bool:
        """Whether the block is cached or being rendered."""
        with self._lock:
            return key in self._blocks or key in self._pending

    def release(self, block: Block, *, finished: bool = False, outdated: bool = False) -> None:
        """Ends a pin. `finished`: a sequential reader has read the block to its end. `outdated`: the block must be
        rendered again for the next reader."""
        with self._lock:
            block.pins -= 1
            if outdated and self._blocks.get(block.key) is block:
                self._remove_locked(block)
            is_held = self._blocks.get(block.key) is block
            if finished and not block.finished and is_held:
                block.finished = True
                self._unqueue_locked(block)
                self._finished[block] = None
                self._finished_bytes += block.size
            if block.pins == 0 and not is_held:
                self._recycle_locked(block.buffer)  # dropped meanwhile

    def status(self) -> CacheStatus:
        with self._lock:
            return CacheStatus(self._used_bytes, self.max_bytes, len(self._blocks), self._hits, self._misses)

    @staticmethod
    def _wait(pending: _Pending) -> Block:
        with pending.done:
            pass
        if pending.block is None:
            assert pending.error is not None
            raise pending.error
        return pending.block

    def _allocate_locked(self, size: int) -> Buffer:
        capacity = max(1, -(-size // _SIZE_CLASS)) * _SIZE_CLASS
        while self._used_bytes > self.max_bytes and self._shrink_locked():
            pass  # many blocks were pinned at once
        while True:
            free = self._free.get(capacity)
            if free:
                buffer = free.pop()
                buffer.uses = 1
                return buffer
            if self._finished_bytes > _FINISHED_BYTES:
                self._drop_finished_locked()
                continue
            if self._used_bytes + capacity <= self.max_bytes or not self._shrink_locked(capacity):
                self._used_bytes += capacity
                return Buffer(capacity)

    def _shrink_locked(self, needed: int | None = None) -> bool:
        """Frees a buffer of the capacity that is needed, or returns memory to the system; False if it cannot."""
        for capacity, buffers in self._free.items():
            if buffers:
                buffers.pop()
                self._used_bytes -= capacity
                return True
        while (block := next((block for block in self._blocks.values() if block.pins == 0), None)) is not None:
            self._remove_locked(block)
            block.buffer.uses -= 1
            if block.buffer.uses == 0:
                if block.buffer.capacity == needed:
                    self._free.setdefault(needed, []).append(block.buffer)
                else:
                    self._used_bytes -= block.buffer.capacity
                return True
        return False

    def _drop_finished_locked(self) -> None:
        """Frees the block that was finished first, unless it has been requested since."""
        block = next(iter(self._finished))
        self._unqueue_locked(block)
        if block.finished and block.pins == 0:
            self._remove_locked(block)
            self._recycle_locked(block.buffer)

    def _remove_locked(self, block: Block) -> None:
        del self._blocks[block.key]
        self._unqueue_locked(block)

    def _unqueue_locked(self, block: Block) -> None:
        if block in self._finished:
            del self._finished[block]
            self._finished_bytes -= block.size

    def _recycle_locked(self, buffer: Buffer) -> None:
        """Ends one use of a buffer."""
        buffer.uses -= 1
        if buffer.uses > 0:
            return
        if self._used_bytes > self.max_bytes:
            self._used_bytes -= buffer.capacity
        else:
            self._free.setdefault(buffer.capacity, []).append(buffer)
