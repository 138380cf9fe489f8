"""Messages of several partitions in the order of their timestamps: a merge of blocks.

A message counts with the latest timestamp so far in its partition. Where these are equal, the partition that was added
first comes first, then the lower offset. So messages of one partition keep their order, even if timestamps go back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from storage.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.block import RecordBlock

_Source = TypeVar("_Source")
Read = Callable[[], "Iterator[RecordBlock] | None"]
"""The blocks that there are now, each valid until the next is requested; None where no more can come."""


class Due(NamedTuple):
    """Which messages no longer wait for messages of other partitions: those with timestamps up to `timestamp_ms`, those
    in blocks read before `read_s` (a monotonic time), and all messages that precede them in the order."""

    timestamp_ms: int
    read_s: float


class Merge(Generic[_Source]):
    """Merges sources and holds one block of each in memory. `monotonic`: the clock of `Due.read_s`."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._heads: list[_Head[_Source]] = []

    def add(self, source: _Source, read: Read) -> None:
        """Merge this source too, after the others where timestamps are equal."""
        self._heads.append(_Head(source, read))

    @property
    def is_empty(self) -> bool:
        """Whether no more messages can come."""
        return not self._heads

    def parts(self, due: Due | None = None) -> Iterator[tuple[_Source, RecordBlock]]:
        """The messages that the sources have now, in order; each block is valid until the next is requested. Messages
        that are not `due` yet are kept for a later call: messages that precede them may still come."""
        for head in self._heads:
            head.begin()
        while True:
            for head in self._heads:
                head.fill(self._monotonic)
            self._heads = [head for head in self._heads if head.may_continue]
            blocks = [(number, head, head.block) for number, head in enumerate(self._heads) if head.block is not None]
            if not blocks:
                return
            # No message may pass the block that ends first: what follows it in its partition is not known yet.
            bound, first = min((int(head.times[-1]), number) for number, head, _ in blocks)
            if due is not None:
                overdue = [int(head.times[-1]) for _, head, _ in blocks if head.read_s <= due.read_s]
                latest = max([due.timestamp_ms, *overdue])
                bound, first = min((bound, first), (latest, len(self._heads)))
            chunks = []
            for number, head, block in blocks:
                end = int(head.times.searchsorted(bound, side="right" if number <= first else "left"))
                if end > head.row:
                    chunks.append((head, block, end))
            if not chunks:
                return
            yield from _interleaved(chunks)
            for head, _, end in chunks:
                head.advance(end)


class _Head(Generic[_Source]):
    """A source and its current block. The rows before `row` were passed on. `times`: for each row of the block, the
    latest timestamp so far."""

    def __init__(self, source: _Source, read: Read) -> None:
        self.source = source
        self.block: RecordBlock | None = None
        self.times: NDArray[np.int64] = np.empty(0, np.int64)
        self.row = 0
        self.read_s = 0.0
        self.may_continue = True
        self._read = read
        self._blocks: Iterator[RecordBlock] | None = None
        self._latest = NO_TIMESTAMP

    def begin(self) -> None:
        """Begin to read again, if the last reading has reached the source's end."""
        if self._blocks is None:
            self._blocks = self._read()
            self.may_continue = self._blocks is not None

    def fill(self, monotonic: Callable[[], float]) -> None:
        """Read the next block, if all rows of the last one were passed on."""
        while self.block is None and self._blocks is not None:
            block = next(self._blocks, None)
            if block is None:
                self._blocks = None
            elif len(block):
                self.block, self.row, self.read_s = block, 0, monotonic()
                self.times = np.maximum(np.maximum.accumulate(block.timestamp), self._latest)
                self._latest = int(self.times[-1])

    def advance(self, row: int) -> None:
        """Note that the rows before `row` were passed on."""
        self.row = row
        if self.block is not None and row == len(self.block):
            self.block = None


def _interleaved(
    chunks: list[tuple[_Head[_Source], RecordBlock, int]],
) -> Iterator[tuple[_Source, RecordBlock]]:
    """The rows of each block up to its end, in one order, and in parts that are as long as possible."""
    times = np.concatenate([head.times[head.row : end] for head, _, end in chunks])
    numbers = np.repeat(np.arange(len(chunks)), [end - head.row for head, _, end in chunks])
    order = numbers[np.argsort(times, kind="stable")]
    rows = [head.row for head, _, _ in chunks]
    starts = np.append(np.flatnonzero(np.diff(order, prepend=-1)), len(order)).tolist()
    for start, end in pairwise(starts):
        number = int(order[start])
        head, block, _ = chunks[number]
        row = rows[number]
        rows[number] += end - start
        yield head.source, block.select(slice(row, rows[number]))
