"""What the kernel's page cache may hold of one path, and what that means for others who open it.

To the kernel a path is one file, whatever log stands behind it by now, and all handles that go through the page cache
share its pages and its size. So that no reader is given a mixture of what a path was and what it has become:

1. A buffered handle is given the content that it was opened with, or an error, by reads and so by the pages they fill.
2. An open whose content is not the one that the pages were last filled with makes the kernel drop them (no keep_cache).
3. While a buffered handle with another content is open, new handles are direct_io: they neither see nor fill pages.
4. The kernel ends a buffered reader at the size that the path shows, without asking us. So while such a handle is
   open, the path cannot show a smaller size than its: looking at the path, and opening it, is an error until it closes.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from storage.errors import SegmentGone


class _Opened(NamedTuple):
    content: object
    size: int


class PathPages:
    """Of one path. Contents are compared for equality. Thread-safe."""

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
        """How a handle is to be opened: (direct_io, keep_cache). If not direct_io, `close` must come.

        `sealed`: the content is final, and may go through the page cache. SegmentGone: see 4.
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
        """Ends what `open` gave for a buffered handle."""
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
                expected=f"at least the {largest} bytes that its readers were promised",
                found=f"{size} bytes",
                advice="Close the file first",
            )
