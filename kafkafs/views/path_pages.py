"""What the kernel's page cache may hold for one path, and what that means for others that open the path.

To the kernel a path is one file, whichever log it shows by now, and all handles in the page cache share its pages and
its size. So that no reader gets a mixture of the path's old and new content:

1. A buffered handle gets the content that it was opened with, or an error, from reads and so from the pages they fill.
2. An open with a content other than the one that last filled the pages makes the kernel drop them (no keep_cache).
3. While a buffered handle with another content is open, new handles are direct_io: they neither see nor fill pages.
4. The kernel ends a buffered read at the size that the path shows, without asking. So while such a handle is open,
   the path must not show a smaller size than the handle's: a stat or an open of the path fails until it is closed.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from storage.errors import SegmentGone


class _Opened(NamedTuple):
    content: object
    size: int


class PathPages:
    """The pages of one path. Contents are compared for equality. Thread-safe."""

    def __init__(self) -> None:
        # guarded by the lock
        self._lock = threading.Lock()
        self._buffered: list[_Opened] = []  # the open handles that go through the page cache
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
            if not sealed or any(one.content != content for one in self._buffered):
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
        largest = max((one.size for one in self._buffered), default=0)
        if size < largest:
            raise SegmentGone(
                "the log was truncated or compacted, or its topic made again, while this file was open",
                expected=f"at least {largest} bytes, the size that its readers were given",
                found=f"{size} bytes",
                advice="Close the file first",
            )
