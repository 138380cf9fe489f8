"""The state of a range's file: which threads have it open, and from which positions each of them reads.

Positions are fixed while they are held: messages that retention and compaction remove keep their bytes, new ones are
added at the end (growth.py); a truncation ends them. A later open gets the same positions if beginning now would give
the same; otherwise it gets new ones. So a forgotten `tail -f` does not hide from others what retention has left. The
positions of a path, oldest first:

                 handles   a look at them
    older        some      follows the log; forgotten at the last close
    the last     any       follows the log if beginning now would give the same. If not, it begins again: positions
                           without handles are replaced; those with handles become older ones
    none yet               begins

Every look is based on one immutable value (`Shown`), which is replaced as a whole once the next one is made: a look
that fails has changed nothing.

The kernel has one inode for a path, and fstat asks by path. A stat is answered for its caller: with the size of the
older positions if the calling thread, its process or a parent holds them, otherwise, and after a truncation, with what
an open now would give.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kafkafs.reading.block_cache import PathPages
from kafkafs.reading.growth import Growth, Shown
from kafkafs.reading.layout import Layout, Plan, Raced
from kafkafs.reading.range_names import LastDuration
from kafkafs.reading.selection import Question, Selection
from storage.errors import SegmentGone
from storage.log.rereads import Rereads
from storage.log.snapshot import LogSnapshot, ReadableLog

# The origin of a request: the kernel gives the calling thread, and /proc its process and parents.

_GENERATIONS = 16  # of parents that are examined
_INIT = 1


class Callers(Protocol):
    """The origin of the current request."""

    def thread(self) -> int:
        """The id of the calling thread; 0 if it is unknown."""

    def kin(self) -> Iterator[Collection[int]]:
        """The threads that may have opened a file for the caller, nearest first: its own, its process's, parents'."""


class OneCaller:
    """All requests have the same origin: a tree that serves one program."""

    def thread(self) -> int:
        return 1

    def kin(self) -> Iterator[Collection[int]]:
        yield (1,)


class Processes:
    """The processes of this machine. `thread` returns the calling thread's id, 0 for one in another pid namespace."""

    def __init__(self, thread: Callable[[], int]) -> None:
        self._thread = thread

    def thread(self) -> int:
        return self._thread()

    def kin(self) -> Iterator[Collection[int]]:
        asking = self._thread()
        yield (asking,)
        process = asking
        for _ in range(_GENERATIONS):
            if process <= _INIT:
                return
            try:
                process, parent = _family(process)
                yield {int(name) for name in os.listdir(f"/proc/{process}/task")}  # noqa: PTH208 - names alone
            except (OSError, ValueError):
                return  # the process has ended meanwhile, or /proc hides it
            process = parent


def _family(thread: int) -> tuple[int, int]:
    """The process of a thread, and the parent of that process."""
    numbers = {"Tgid": 0, "PPid": 0}
    with open(f"/proc/{thread}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - as above
        for line in file:
            name, _, value = line.partition(":")
            if name in numbers:
                numbers[name] = int(value)
    return numbers["Tgid"], numbers["PPid"]


_RACES = 1000  # another thread was faster each time: the log itself is in order
_PATIENCE_S = 0.1
_FIXED_S = 1.0  # how long a resolved `last-15m` is used


@dataclass(frozen=True, slots=True)
class Clocks:
    """The time of day for `last-15m`, and a monotonic clock for the age of a look."""

    now_ms: Callable[[], int]
    monotonic: Callable[[], float] = time.monotonic


class Positions:
    """The position of each byte of a view, for the handles that were opened while it began with the same message.

    Thread-safe. `shown` is replaced as a whole, under the view's lock; it may be read without the lock.
    """

    def __init__(self, shown: Shown, now: float) -> None:
        # constant after construction
        self.begun = now
        # replaced as a whole, guarded by the view's lock for writing
        self.shown = shown
        self.looked = now
        self.owners: tuple[int, ...] = ()  # the thread that opened each handle

    @property
    def layout(self) -> Layout:
        """The layout of the last look."""
        return self.shown.layout


class Opened(NamedTuple):
    """The result of an open. `sealed`: nothing that is appended can change it; `owner`: to be passed to `close`."""

    positions: Positions
    owner: int
    sealed: bool


class ViewState:
    """The positions of one path. Thread-safe."""

    def __init__(
        self,
        log: ReadableLog,
        question: Question,
        plan: Callable[[Selection], Plan],
        clocks: Clocks,
        callers: Callers | None = None,
        pages: PathPages | None = None,
        exact_below: int | None = None,
    ) -> None:
        """`log`: when its topic is made again, the path shows another log (StateTable). `pages`: of the path, if it
        showed another log before. `exact_below`: see Growth."""
        # constant after construction
        self.clocks = clocks
        self._callers = callers or OneCaller()
        self.log = log
        self._question = question
        self._growth = Growth(question, plan, exact_below)
        # has its own locking
        self.pages = PathPages() if pages is None else pages
        # replaced as a whole, guarded by the lock for writing
        self._positions: tuple[Positions, ...] = ()
        self._generation = 0  # that the last look has seen
        # guarded by the lock
        self._lock = threading.Lock()
        self._fresh_at: LogSnapshot | None = None  # beginning at this snapshot gives the last positions
        self._repaired: Positions | None = None  # no later open gets them

    @property
    def handles(self) -> int:
        """How many handles are open."""
        return sum(len(positions.owners) for positions in self._positions)

    @property
    def layout(self) -> Layout | None:
        """The result of the last look at the last positions; None before the first look."""
        positions = self._positions
        return positions[-1].layout if positions else None

    def open(self) -> Opened:
        """Registers a handle, and makes the layout."""
        owner = self._callers.thread()
        with self._lock:
            positions = self._look_locked(self._begun_locked)
            positions.owners += (owner,)
            # The page cache has one content for a path, so all handles in it must have the same positions.
            alone = positions is self._positions[0]
            sealed = alone and _is_sealed(positions.shown) and not self._question.is_fixed
            return Opened(positions, owner, sealed)

    def begin_again(self) -> None:
        """Give the next open new positions, because damage that the last ones show was repaired."""
        with self._lock:
            self._repaired = self._positions[-1] if self._positions else None

    def close(self, positions: Positions, owner: int) -> None:
        """Ends the use of a handle on these positions."""
        with self._lock:
            owners = list(positions.owners)
            owners.remove(owner)
            positions.owners = tuple(owners)
            *older, last = self._positions
            self._positions = (*(held for held in older if held.owners), last)

    def is_older_than(self, positions: Positions, age_s: float) -> bool:
        """Whether the last look at these positions was longer ago, or another look has seen a truncation since."""
        is_ended = positions.shown.snapshot.generation != self._generation
        return is_ended or self.clocks.monotonic() - positions.looked > age_s

    def follow(self, positions: Positions) -> Layout:
        """The layout of held positions, as of now. LogTruncated, UnknownTopicOrPartition."""
        with self._lock:
            return self._look_locked(lambda snapshot: self._follow_locked(positions, snapshot)).layout

    def reach(self, positions: Positions, start: int, end: int, seen: int) -> Layout:
        """The positions now, with the bytes from `start` to `end` that a reader needs (Growth.reach)."""

        def look(snapshot: LogSnapshot) -> Positions:
            positions.shown = self._growth.reach(positions.shown, snapshot, start, end, seen)
            positions.looked = self.clocks.monotonic()
            return positions

        with self._lock:
            return self._look_locked(look).layout

    def settled(self, positions: Positions) -> Layout:
        """The positions now, for a reader that asks where the file ends (Growth.settled); the previous ones if another
        thread takes long to make them."""

        def look(snapshot: LogSnapshot) -> Positions:
            positions.shown = self._growth.settled(positions.shown, snapshot)
            positions.looked = self.clocks.monotonic()
            return positions

        return (self._glance(look) or positions).layout

    def seen(self) -> Layout | None:
        """The layout that a stat shows if the file takes long to make: the one that the calling process has open,
        otherwise the last open's; None before the first open."""
        held = self._of_caller()
        return self.layout if held is None else held.layout

    def glance(self) -> Layout | None:
        """For a stat, which must not wait: the layout for the calling process as of now, or the previous one if another
        thread takes long to make it."""
        positions = self._glance(self._for_caller_locked) or self._of_caller()
        return self.layout if positions is None else positions.layout

    def _glance(self, look: Callable[[LogSnapshot], Positions]) -> Positions | None:
        """`_look_locked`, or None if another thread keeps the lock for long."""
        if not self._lock.acquire(timeout=_PATIENCE_S):
            return None
        try:
            return self._look_locked(look)
        finally:
            self._lock.release()

    def _look_locked(self, look: Callable[[LogSnapshot], Positions]) -> Positions:
        """The result of `look` for the log as it is now; it is called again when the log has changed meanwhile."""
        races, rereads = 0, Rereads()
        while True:
            snapshot = self.log.snapshot()
            self._generation = snapshot.generation
            try:
                return look(snapshot)
            except Raced:
                races += 1
                if races == _RACES:
                    raise SegmentGone(
                        "log changes faster than it is measured", path=self.log.path, advice="Try again"
                    ) from None
            except SegmentGone:
                if rereads.are_exhausted(0):
                    raise

    def _for_caller_locked(self, snapshot: LogSnapshot) -> Positions:
        """The positions that a stat shows."""
        positions = self._positions
        held = None
        if positions and positions[-1].shown.plan.is_outdated():
            held = self._of_caller() or positions[-1]  # only an open measures everything anew
        elif len(positions) > 1 or (positions and positions[-1].owners and not self._is_fresh_locked(snapshot)):
            held = self._of_caller()
        if held is not None and held.shown.snapshot.generation == snapshot.generation:
            return self._follow_locked(held, snapshot)
        return self._fresh_locked(snapshot)

    def _begun_locked(self, snapshot: LogSnapshot) -> Positions:
        """The positions that an open gets. Those with a gap belong to one handle: what it reads decides about them."""
        return self._fresh_locked(snapshot, shared=False)

    def _fresh_locked(self, snapshot: LogSnapshot, *, shared: bool = True) -> Positions:
        """The positions that an open gets; if `shared`, for a stat, they may have a gap that belongs to another
        handle."""
        if self._is_fresh_locked(snapshot) and (shared or self._positions[-1].shown.ends is None):
            positions = self._follow_locked(self._positions[-1], snapshot)
        else:
            shown = self._growth.begin(snapshot, self.clocks.now_ms())
            positions = Positions(shown, self.clocks.monotonic())
            self._positions = (*(held for held in self._positions if held.owners), positions)
        self._fresh_at = snapshot
        return positions

    def _is_fresh_locked(self, snapshot: LogSnapshot) -> bool:
        """Whether the last positions, followed to this snapshot, are what beginning would give."""
        if not self._positions:
            return False
        last = self._positions[-1]
        if last.shown.plan.is_outdated() or last is self._repaired:
            return False
        if isinstance(self._question.times, LastDuration):
            return snapshot is last.shown.snapshot and self.clocks.monotonic() - last.begun <= _FIXED_S
        if snapshot is self._fresh_at and snapshot is last.shown.snapshot and not last.shown.is_estimated:
            return True
        if last.shown.is_estimated and self._growth.is_measured(last.shown, snapshot):
            return False
        return self._growth.would_begin_alike(last.shown, snapshot, self.clocks.now_ms())

    def _follow_locked(self, positions: Positions, snapshot: LogSnapshot) -> Positions:
        positions.shown = self._growth.follow(positions.shown, snapshot)
        positions.looked = self.clocks.monotonic()
        return positions

    def _of_caller(self) -> Positions | None:
        """The positions that the calling thread, its process or a parent holds; the last ones if there are several. The
        first positions if callers cannot be distinguished: a size that is too large does less harm than one that
        shrinks."""
        positions = self._positions
        if not any(held.owners for held in positions):
            return None
        in_order = positions if self._callers.thread() == 0 else positions[::-1]
        for threads in self._callers.kin():
            for held in in_order:
                if any(owner in threads for owner in held.owners):
                    return held
        return None


def _is_sealed(shown: Shown) -> bool:
    """Whether the range is complete and ends below the active segment: nothing appended can change it.

    Never so for a range of times: an appended message may have any timestamp.
    """
    active, layout = shown.snapshot.active, shown.layout
    if active is None or not layout.complete or layout.cursor.next_offset > active.base_offset:
        return False
    return all(run.segment is not active for run in layout.runs)
