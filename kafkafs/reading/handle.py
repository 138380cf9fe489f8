"""An open file: what FUSE needs from it, and the handles of small files whose content is made when they are opened."""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, Protocol, runtime_checkable

from kafkafs.reading.layout import Layout
from kafkafs.reading.state import ViewState
from storage.errors import LogTruncated, SegmentGone, StorageError, UnknownTopicOrPartition

_LEAST_BUFFER = 128 << 10


class Handle(Protocol):
    """An open file. Reads may come from several threads and in any order."""

    @property
    def size(self) -> int:
        """Exact, in bytes, as of now."""

    @property
    def direct_io(self) -> bool:
        """Bypass the kernel's page cache: the file grows, is made again at each open, or is damaged.

        It decides what a short answer to a read means. Without the page cache it is a short read(2), and the next read
        gets the error. In the page cache it is the end of the file: the kernel reduces the inode's size to it and keeps
        the rest of the pages as zeros. So a handle in the page cache answers a whole read that touches damage with the
        error; the kernel then requests its pages one by one, and only those that touch the damage fail.
        """

    @property
    def keep_cache(self) -> bool:
        """The pages of this path that the page cache has from an earlier open are still right."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from the byte position `offset`; fewer or none at the end. Before damage also fewer if
        `direct_io`, otherwise the error."""

    def read_into(self, address: int, offset: int, size: int) -> int:
        """Reads as `read` does, into memory at `address`, which has room for `size` bytes. Returns how many were
        written."""

    def close(self) -> None:
        """Ends the use of the handle; a second call does nothing."""


@runtime_checkable
class Syncs(Protocol):
    """An open file whose fsync(2) does something. sync(1) opens files for reading."""

    def sync(self) -> None:
        """Everything that was written to the file, by any process, is on disk when it returns."""


class WriteHandle(Handle, Syncs, Protocol):
    """A file opened for writing. Bytes are taken in the order of the writes."""

    def write(self, data: bytes | memoryview, offset: int | None = None, *, durable: bool = False) -> int:
        """Takes bytes, which may be changed afterwards; returns how many. Raises an error of the first of them.

        `offset`: the writer's file position; None for a writer that appends (O_APPEND), whose position the kernel
        invents. `durable` (O_SYNC, O_DSYNC): the messages that the bytes complete are on disk when `write`
        returns, and those that `close` completes when `close` returns. If syncing fails, its error is raised although
        the bytes were taken.
        """


@runtime_checkable
class HasHoles(Protocol):
    """A file opened for writing, where a writer that skips a hole in its source writes zeros."""

    def extend(self, size: int) -> None:
        """The writer sets the length of what it writes (ftruncate(2)): what it has not written up to there is zeros."""


class CopyingHandle:
    """A handle whose fast way is `read_into`."""

    def read(self: Handle, offset: int, size: int) -> bytes:
        # A caller may ask for far more than the file has; the file may have grown a moment ago.
        size = min(size, max(self.size - offset, _LEAST_BUFFER))
        if size <= 0:
            return b""
        buffer = ctypes.create_string_buffer(size)
        count = self.read_into(ctypes.addressof(buffer), offset, size)
        return ctypes.string_at(buffer, count)


def read_parts(address: int, offset: int, end: int, part_at: Callable[[int], tuple[Handle, int, int]]) -> int:
    """`read_into` for a direct_io file that consists of other open files, up to its position `end`. `part_at` gives for
    a position the open file that holds it, the position in that file, and where its part ends in the direct_io file."""
    position = offset
    while position < end:
        part, place, part_end = part_at(position)
        needed = min(end, part_end) - position
        try:
            count = part.read_into(address + position - offset, place, needed)
        except Exception:
            if position == offset:
                raise
            break  # up to the damage; the next read reports it
        position += count
        if count < needed:
            break
    return position - offset


class BytesHandle:
    """A small file whose content was made when it was opened."""

    direct_io = True
    keep_cache = False

    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def size(self) -> int:
        return len(self._content)

    def read(self, offset: int, size: int) -> bytes:
        return self._content[offset : offset + size]

    def read_into(self, address: int, offset: int, size: int) -> int:
        part = self._content[offset : offset + size]
        ctypes.memmove(address, part, len(part))
        return len(part)

    def close(self) -> None:
        pass


class SyncHandle(BytesHandle):
    """A file for writing, opened for reading."""

    def __init__(self, content: bytes, sync: Callable[[], object]) -> None:
        super().__init__(content)
        self._sync = sync

    def sync(self) -> None:
        self._sync()


# One open handle of a range's file: which layout its reads use, and when they must fail.
#
# A handle shows the messages of one history of the log. Retention and compaction do not change positions. A truncation
# ends it: others may have the offsets of what it has shown (storage.log.lineage says how that is known). A handle in
# the page cache has the layout of its open, or an error. A log whose topic was removed, or made again, no longer
# answers (ReadOnlyLog), so that its handles end too.

LOOK_S = 0.1  # how long a reader assumes that the log still has the files it reads from


class OpenView:
    """Reads may come from several threads. What is kept of the last one is right for a reader that reads in order, as a
    reader of a direct_io handle does."""

    def __init__(self, state: ViewState, content_of: Callable[[Layout], object] = lambda layout: layout.runs) -> None:
        """Opens the file. StorageError as ViewState.open and PathPages.open.

        `content_of`: a value that differs if the bytes of two layouts may differ; called once.
        """
        opened = state.open()
        layout = opened.positions.layout
        try:
            # A read must end just before a known error, which the page cache does not allow.
            sealed = opened.sealed and not layout.may_fail
            content = content_of(layout) if sealed else None
            direct_io, keep_cache = state.pages.open(content, layout.size, sealed=sealed)
        except BaseException:
            state.close(opened.positions, opened.owner)
            raise
        # constant after construction
        self.positions = opened.positions
        self.direct_io = direct_io
        self.keep_cache = keep_cache
        self._owner = opened.owner
        self._state = state
        self._own = None if direct_io else layout
        self._content = content
        # of one reader
        self._seen = layout
        self._front = 0  # up to where the reader has read before a gap
        self._is_open = True

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def size(self) -> int:
        """Where the file ends, for a reader that goes there (lseek(2)); fstat(2) asks by path. LogTruncated."""
        if self._own is not None:
            return self._own.size
        with _ended_by_removal():
            return self._state.settled(self.positions).size

    def layout_to_read(self, offset: int, size: int) -> Layout:
        """The layout to answer a read from. LogTruncated; SegmentGone when the handle's place in it is gone;
        SizeWasEstimated."""
        positions = self.positions
        if offset + size > positions.layout.size or self._state.is_older_than(positions, LOOK_S):
            self.look()
        layout = positions.layout
        if not layout.covers(offset, offset + size):
            with _ended_by_removal():
                layout = self._state.reach(positions, offset, offset + size, self._front)
        if self._own is not None and layout is not self._seen:
            if layout.runs != self._own.runs:
                raise SegmentGone("what this file showed has changed", advice="Open it again")
            self._seen = layout
        return layout

    def read_ahead(self) -> None:
        """Makes more of the view known, for a reader who comes near its gap. Errors as `layout_to_read`."""
        gap = self.positions.layout.gap
        if gap is not None and not gap.anchored:
            with _ended_by_removal():
                self._state.reach(self.positions, gap.start, gap.start + 1, gap.start)

    def has_read(self, layout: Layout, position: int) -> None:
        """The reader has got bytes of this layout up to `position`."""
        if layout.gap is None or position <= layout.gap.start:
            self._front = max(self._front, position)

    def look(self) -> None:
        """Looks at the log as it is now. LogTruncated."""
        with _ended_by_removal():
            self._state.follow(self.positions)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._own is not None:
                self._state.pages.close(self._content, self._own.size)
            self._state.close(self.positions, self._owner)


class ViewHandle(CopyingHandle):
    """An open file of records. `_copy` says where its bytes come from. Reads may come from several threads."""

    def __init__(self, view: OpenView) -> None:
        self._view = view
        self.direct_io = view.direct_io
        self.keep_cache = view.keep_cache

    @property
    def size(self) -> int:
        return self._view.size

    def close(self) -> None:
        self._view.close()

    def read_into(self, address: int, offset: int, size: int) -> int:
        layout = self._view.layout_to_read(offset, size)
        end = min(offset + size, layout.end_from(offset))
        position = offset
        while position < end:
            target = address + position - offset
            try:
                count, expected = self._copy(layout, position, end, target)
            except StorageError:
                self._view.look()  # a truncation may look like damage or a missing segment
                # Up to the damage; the next read reports it. Not in the page cache: see Handle.direct_io.
                if position > offset and self.direct_io:
                    return position - offset
                raise
            position += count
            self._view.has_read(layout, position)
            if count < expected and self.direct_io:
                return position - offset
        self._after_read(layout, offset, position)
        return max(0, position - offset)

    def _copy(self, layout: Layout, position: int, end: int, address: int) -> tuple[int, int]:
        """Copies bytes from `position` on, up to `end` at most, to `address`. Returns how many were copied, and how
        many could be copied at once if nothing is damaged or gone."""
        raise NotImplementedError

    def _after_read(self, layout: Layout, offset: int, position: int) -> None:
        """Called when a read from `offset` to `position` ended neither at damage nor early."""


@contextmanager
def _ended_by_removal() -> Iterator[None]:
    try:
        yield
    except UnknownTopicOrPartition as error:
        raise LogTruncated(
            "the topic of this file was removed while it was open, or created again",
            path=error.path, advice="Open it again",
        ) from None  # fmt: skip


# One file made of several partitions' views: what each has when the file is opened, one after the other, and then what
# is appended to any of them, or comes with a partition that is added, at the end. So positions stay, as in every view
# that grows; a later open begins anew.


class _Stretch(NamedTuple):
    """The bytes of the file from `start` to `end`: those of the handle `part` from its position `source` on."""

    start: int
    end: int
    part: int
    source: int


def open_all(opens: Iterable[Callable[[], ViewHandle]]) -> list[ViewHandle]:
    """The handles that these calls open. Where one fails, those before it are closed."""
    with ExitStack() as opened:
        handles = []
        for open_one in opens:
            handle = open_one()
            opened.callback(handle.close)
            handles.append(handle)
        opened.pop_all()
    return handles


class JoinedHandle(CopyingHandle):
    """An open file that continues over the views of `parts`, which it closes. Reads may come from several threads."""

    direct_io = True
    keep_cache = False

    def __init__(self, parts: Sequence[ViewHandle], added: Callable[[], Sequence[ViewHandle]] = lambda: ()) -> None:
        """`added`: opens the views of partitions that did not exist at the last call."""
        # constant after construction
        self._added = added
        # replaced as a whole, guarded by the lock for writing
        self._lock = threading.Lock()
        self._parts: tuple[ViewHandle, ...] = ()
        self._stretches: tuple[_Stretch, ...] = ()
        self._covered: list[int] = []
        self._add_locked(parts)

    @property
    def size(self) -> int:
        return self._end(self._grow())

    def read_into(self, address: int, offset: int, size: int) -> int:
        stretches = self._stretches
        if offset + size > self._end(stretches):
            stretches = self._grow()

        def part_at(position: int) -> tuple[Handle, int, int]:
            stretch = stretches[bisect_right(stretches, position, key=lambda stretch: stretch.start) - 1]
            return self._parts[stretch.part], stretch.source + position - stretch.start, stretch.end

        return read_parts(address, offset, min(offset + size, self._end(stretches)), part_at)

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def _grow(self) -> tuple[_Stretch, ...]:
        """Adds what has been appended to the parts."""
        with self._lock, _ended_by_removal():
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
        self._covered += [0] * len(parts)
        self._parts += tuple(parts)

    @staticmethod
    def _end(stretches: Sequence[_Stretch]) -> int:
        return stretches[-1].end if stretches else 0
