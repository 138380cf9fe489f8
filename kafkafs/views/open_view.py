"""One open handle of a range's file: which layout its reads use, and when they must fail.

A handle shows the messages of one history of the log. Retention and compaction do not change positions. A truncation
removes bytes, and others take their place: a reader that has read some of the removed bytes, and continues where it
stopped, would take the new ones for their continuation. So it is an error to continue behind the position up to which
the view was not changed (growth.py); storage.log.lineage says how a truncation is known. A reader that moves elsewhere
starts again. A handle in the page cache does not need this: it has the layout of its open, or an error. A log whose
topic was made again no longer answers (ReadOnlyLog), so the reads of its handles fail too.
"""

from __future__ import annotations

from collections.abc import Callable

from kafkafs.views.handle import CopyingHandle
from kafkafs.views.layout import Layout
from kafkafs.views.state import ViewState
from storage.errors import SegmentGone, StorageError

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
            # A read must end just before known damage, which the page cache does not allow.
            sealed = opened.sealed and not layout.is_damaged
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
        self._cuts = self.cuts
        self._next = 0  # where the last read ended
        self._is_open = True

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def cuts(self) -> int:
        """How many truncations have removed something from the view, as of the last look."""
        return len(self.positions.shown.cuts)

    @property
    def size(self) -> int:
        return self._state.glance_at(self.positions).size if self._own is None else self._own.size

    def layout_to_read(self, offset: int, size: int) -> Layout:
        """The layout to answer a read from. SegmentGone when the handle's place in it is gone."""
        positions = self.positions
        if offset + size > positions.layout.size or self._state.is_older_than(positions, LOOK_S):
            self._state.follow(positions)
        shown = positions.shown  # once: its layout and its cuts belong together
        layout = shown.layout
        cuts = shown.cuts[self._cuts :]
        if cuts and self._own is None:
            if offset == self._next > min(cuts):
                raise _gone()
            self._cuts = len(shown.cuts)
        if self._own is not None and layout is not self._seen:
            if layout.runs != self._own.runs:
                raise _gone()
            self._seen = layout
        return layout

    def gave(self, end: int) -> None:
        """Must be called with each answer: the position where it ended."""
        self._next = end

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

    @property
    def cuts(self) -> int:
        """See OpenView."""
        return self._view.cuts

    def close(self) -> None:
        self._view.close()

    def read_into(self, address: int, offset: int, size: int) -> int:
        layout = self._view.layout_to_read(offset, size)
        end = min(offset + size, layout.size)
        position = offset
        while position < end:
            target = address + position - offset
            try:
                count, expected = self._copy(layout, position, end, target)
            except StorageError:
                # Up to the damage; the next read reports it. Not in the page cache: see Handle.direct_io.
                if position > offset and self.direct_io:
                    return position - offset
                raise
            position += count
            self._view.gave(position)
            if count < expected and self.direct_io:
                return position - offset
        self._after_read(layout, offset, position)
        return max(0, position - offset)

    def _copy(self, layout: Layout, position: int, end: int, address: int) -> tuple[int, int]:
        """Copies bytes from `position` on, up to `end` at most, to `address`: how many, and how many there are in one
        go unless something is damaged or gone."""
        raise NotImplementedError

    def _after_read(self, layout: Layout, offset: int, position: int) -> None:
        """Called when a read from `offset` to `position` ended neither at damage nor early."""


def _gone() -> SegmentGone:
    return SegmentGone(
        "the log was truncated while this file was open: the bytes read last are no longer in it",
        advice="Read it from the beginning",
    )
