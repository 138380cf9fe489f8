"""The buffers with which one thread turns a file span into records: a read buffer, a table and decoders, all
recycled."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kafkafs.formats.format import Format
from storage.format.batches import BatchTable, ScanStop, scan
from storage.format.block import RecordBlock
from storage.format.decoder import Decoder
from storage.log.segment import Segment
from storage.types import Isolation

WINDOW_BYTES = 1 << 20
# A workbench grows to about 20 MiB, so there are no more than the processors can use, however many files are read at
# once: two for each processor, since a thread may wait for a disk.
_MOST = 2 * max(2, os.cpu_count() or 1)
_KEPT = 4  # unused workbenches
_KEPT_BYTES = 8 << 20  # a larger buffer, which a large batch needed, is not kept; a group of pieces fits
_KEPT_RECORDS = 1 << 17

Skips = Callable[[BatchTable], npt.NDArray[np.uint8] | None]
"""For each row of a table, 1 for a batch that the isolation excludes; None if it excludes none."""


class Basis(Protocol):
    """The data besides the records on which the bytes of a format depend (the schemas of decoded values).
    Thread-safe."""

    @property
    def name(self) -> str:
        """A name that differs from every other basis of this process."""

    def is_outdated(self) -> bool:
        """Whether the same messages would look different with a new basis. Open files keep this one; files that are
        opened next need another."""

    def lasting_name(self) -> str | None:
        """A name that later processes can use too, for the present state; None if there is none."""


@dataclass(frozen=True, slots=True)
class Rendition:
    """How messages are shown. `basis` None: the bytes of a message depend on nothing else."""

    format: Format
    isolation: Isolation
    basis: Basis | None = None

    @property
    def name(self) -> str:
        """Within a log and a process, equal names give equal bytes."""
        return self._named("" if self.basis is None else self.basis.name)

    def lasting_name(self) -> str | None:
        """A name that is the same in all processes; None if later processes cannot know whether they have this
        rendition."""
        lasting = "" if self.basis is None else self.basis.lasting_name()
        return None if lasting is None else self._named(lasting)

    def is_outdated(self) -> bool:
        return self.basis is not None and self.basis.is_outdated()

    def _named(self, basis: str) -> str:
        return f"{self.format.name}{basis}:{self.isolation.value}"


class Workbench:
    """Used by one thread at a time, for one span at a time: `read` and `scan` overwrite their previous results."""

    def __init__(self) -> None:
        self.table = BatchTable.empty(WINDOW_BYTES // 64)
        self.checked = Decoder()
        self.unchecked = Decoder(verify_crc=False)
        self._raw = bytearray(WINDOW_BYTES)
        self._sizes = np.empty(1 << 14, dtype=np.int64)
        self._hashes = np.empty(0, dtype=np.uint64)
        self._largest_bytes = 0
        self._largest_count = 0

    def read(self, segment: Segment, position: int, end: int) -> memoryview:
        """The bytes of a segment's file from `position` to `end`. SegmentGone if the file is gone or ends before."""
        size = end - position
        if size > len(self._raw):
            self._raw = bytearray(size)
        return segment.read(position, size, self._raw)

    def scan(self, data: memoryview, position: int) -> ScanStop:
        """Puts the headers of the whole batches in `data`, which is at `position` in the file, into `table`."""
        self.table.clear()
        outcome = scan(data, position, self.table)
        while outcome.stop is ScanStop.FULL:
            larger = BatchTable.empty(2 * self.table.capacity)
            larger.data[:, : self.table.rows] = self.table.data[:, : self.table.rows]
            larger.rows = self.table.rows
            self.table = larger
            outcome = scan(data, position, self.table, outcome.next_start)
        return outcome.stop

    def sizes(self, count: int) -> npt.NDArray[np.int64]:
        """A column of `count` numbers, uninitialised."""
        if count > len(self._sizes):
            self._sizes = np.empty(2 * count, dtype=np.int64)
        return self._sizes[:count]

    def hashes(self, count: int) -> npt.NDArray[np.uint64]:
        """A column of `count` hashes, uninitialised."""
        if count > len(self._hashes):
            self._hashes = np.empty(2 * count, dtype=np.uint64)
        return self._hashes[:count]

    def trim(self) -> None:
        """Frees buffers that an unusual batch has made large."""
        if len(self._raw) > _KEPT_BYTES:
            self._raw = bytearray(WINDOW_BYTES)
        if len(self._sizes) > _KEPT_RECORDS:
            self._sizes = np.empty(1 << 14, dtype=np.int64)
        if len(self._hashes) > _KEPT_RECORDS:
            self._hashes = np.empty(0, dtype=np.uint64)
        if self._largest_bytes > _KEPT_BYTES or self._largest_count > _KEPT_RECORDS:
            self.checked, self.unchecked = Decoder(), Decoder(verify_crc=False)
            self._largest_bytes = self._largest_count = 0

    def note(self, block: RecordBlock) -> None:
        """Record how much memory the decoder of a block has taken. Must be called with each decoded block."""
        self._largest_bytes = max(self._largest_bytes, len(block.buffer))
        self._largest_count = max(self._largest_count, len(block))


_free: deque[Workbench] = deque(maxlen=_KEPT)
_in_use = threading.BoundedSemaphore(_MOST)


@contextmanager
def workbench() -> Iterator[Workbench]:
    """A workbench for the calling thread, which waits while the maximum are in use. Thread-safe: a deque's ends are.

    A thread with a workbench must not take a second one, nor wait for a thread that may need one: all could wait
    forever.
    """
    with _in_use:
        try:
            bench = _free.pop()
        except IndexError:
            bench = Workbench()
        try:
            yield bench
        finally:
            bench.trim()
            _free.append(bench)
