"""One file made of several partitions' views: what each has when the file is opened, one after the other, and then what
is appended to any of them, or comes with a partition that is added, at the end. So positions stay, as in every view
that grows; a later open begins anew.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kafkafs.views.handle import CopyingHandle, Handle, read_parts
from kafkafs.views.open_view import ViewHandle
from storage.errors import SegmentGone


class _Stretch(NamedTuple):
    """The bytes of the file from `start` to `end`: those of the handle `part` from its position `source` on."""

    start: int
    end: int
    part: int
    source: int


class JoinedHandle(CopyingHandle):
    """An open file that continues over the views of `parts`, which it closes. Reads may come from several threads.

    When one of the logs is truncated, positions no longer mean what they did: reading is SegmentGone from then on.
    """

    direct_io = True
    keep_cache = False

    def __init__(self, parts: Sequence[ViewHandle], added: Callable[[], Sequence[ViewHandle]] = lambda: ()) -> None:
        """`added`: opens the views of partitions that did not exist at the last call."""
        # constant after construction
        self._added = added
        # replaced as a whole, guarded by the lock for writing
        self._lock = threading.Lock()
        self._parts: tuple[ViewHandle, ...] = ()
        self._cuts: tuple[int, ...] = ()
        self._stretches: tuple[_Stretch, ...] = ()
        self._covered: list[int] = []
        self._add_locked(parts)
        self._grow()

    @property
    def size(self) -> int:
        return self._end(self._grow())

    def read_into(self, address: int, offset: int, size: int) -> int:
        stretches = self._stretches
        if offset + size > self._end(stretches):
            stretches = self._grow()
        self._check()

        def part_at(position: int) -> tuple[Handle, int, int]:
            stretch = stretches[bisect_right(stretches, position, key=lambda stretch: stretch.start) - 1]
            return self._parts[stretch.part], stretch.source + position - stretch.start, stretch.end

        return read_parts(address, offset, min(offset + size, self._end(stretches)), part_at)

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def _grow(self) -> tuple[_Stretch, ...]:
        """Adds what has been appended to the parts."""
        with self._lock:
            self._check()
            stretches = list(self._stretches)
            self._add_locked(self._added())
            for number, part in enumerate(self._parts):
                end, covered = part.size, self._covered[number]
                if end <= covered:
                    continue
                start = self._end(stretches)
                last = stretches[-1] if stretches else None
                if last is not None and last.part == number:
                    stretches[-1] = last._replace(end=start + end - covered)
                else:
                    stretches.append(_Stretch(start, start + end - covered, number, covered))
                self._covered[number] = end
            self._stretches = tuple(stretches)
            return self._stretches

    def _add_locked(self, parts: Sequence[ViewHandle]) -> None:
        self._cuts += tuple(part.cuts for part in parts)
        self._covered += [0] * len(parts)
        self._parts += tuple(parts)

    def _check(self) -> None:
        cuts_then = self._cuts
        for part, cuts in zip(self._parts, cuts_then, strict=False):
            if part.cuts != cuts:
                raise SegmentGone(
                    "a partition was truncated while this file was open: its messages may have moved",
                    advice="Open it again",
                )

    @staticmethod
    def _end(stretches: Sequence[_Stretch]) -> int:
        return stretches[-1].end if stretches else 0
