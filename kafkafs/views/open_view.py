"""One open handle of a range's file: which layout its reads are answered from, and when they must not be.

A handle is given the messages of one history of the log. What retention and compaction take away leaves positions as
they are. A truncation takes bytes away, and others come in their place: a reader that was given some of what is gone,
and goes on behind the cut, would take the new for a sequel of the old. It gets an error; one that begins anew, at the
cut or before it, reads on. A handle through the page cache needs none of this: it has the layout of its open, or an
error. A log whose topic was made again answers nothing any more (ReadOnlyLog), so that its handles' reads fail too.
"""

from __future__ import annotations

from kafkafs.views.layout import Layout
from kafkafs.views.state import ViewState
from storage.errors import SegmentGone

LOOK_S = 0.1  # how long a reader believes that the log still has the files it reads from


class OpenView:
    """Reads may come from several threads; `_furthest` is exact for a reader that reads in order."""

    def __init__(self, state: ViewState) -> None:
        """Opens the file. StorageError as ViewState.open and PathPages.open."""
        layout, sealed = state.open()
        try:
            direct_io, keep_cache = state.pages.open(layout.runs, layout.size, sealed=sealed)
        except BaseException:
            state.close()
            raise
        # constant after construction
        self.state = state
        self.direct_io = direct_io
        self.keep_cache = keep_cache
        self._own = None if direct_io else layout
        # of one reader
        self._seen = layout
        self._cuts = state.cuts
        self._furthest = 0
        self._is_open = True

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def size(self) -> int:
        return self.state.shared_layout.size if self._own is None else self._own.size

    def layout_to_read(self, offset: int, size: int) -> Layout:
        """The layout to answer a read from. SegmentGone when the handle's place in it is no more."""
        state = self.state
        layout = state.shared_layout
        if offset + size > layout.size or state.is_older_than(LOOK_S):
            layout = state.refresh()
        # After the layout: a cut shows before the layout that it made.
        if state.cuts is not self._cuts and self._own is None:
            self._begin_anew(offset, state.cuts)
        if self._own is not None and layout is not self._seen:
            if layout.runs != self._own.runs:
                raise self._gone(layout.size)
            self._seen = layout
        return layout

    def gave(self, end: int) -> None:
        """To be told up to which position a read was answered."""
        self._furthest = max(self._furthest, end)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._own is not None:
                self.state.pages.close(self._own.runs, self._own.size)
            self.state.close()

    def _begin_anew(self, offset: int, cuts: tuple[int, ...]) -> None:
        lowest = min(cuts[len(self._cuts) :])
        if offset > lowest and self._furthest > lowest:
            raise self._gone(lowest)
        self._cuts = cuts
        self._furthest = min(self._furthest, lowest)

    def _gone(self, size: int) -> SegmentGone:
        return SegmentGone(
            "the log was truncated while this file was open: what was read of it is in it no more",
            found=f"{size} bytes that are as they were",
            advice="Read it from the beginning",
        )
