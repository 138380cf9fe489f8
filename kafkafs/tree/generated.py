"""Small texts made when they are looked at: `@info.json`, `@config`, `@help`, `@status.json`, `@metrics`.

What tools see of such a file must hang together, though the next text may be longer: `tar` asks for its size, opens
it, asks again (fstat comes as a stat of the path), reads as many bytes, and complains if size or time have changed. So

    while open  stats tell of the text that was opened last; each handle keeps its own
    else        a stat makes a text, and the open that follows it within a moment takes that one

The latter only of texts that differ each time they are made (`moment_s`): of others an open shows what is so now.
Whoever opens a file twice gets a new text each time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from kafkafs.tree.node import FILE_MODE, Attributes, File, Kind
from kafkafs.views.handle import BytesHandle, Handle

MOMENT_S = 0.25  # from a stat to the open that goes with it
_KEPT = 64  # texts of files that nobody has open

Make = Callable[[], tuple[bytes, int]]


@dataclass(slots=True)
class _Text:
    """A text, `made` when by the monotonic clock, and how many have it open; `opened`: somebody had."""

    content: bytes
    mtime_ns: int
    made: float
    handles: int = 0
    opened: bool = False


class GeneratedTexts:
    """The texts of a tree's generated files, by path. Thread-safe; texts are made outside of the lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # constant after construction
        self._clock = clock
        # guarded by the lock
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, _Text] = OrderedDict()

    def is_open(self, path: str) -> bool:
        """Whether somebody has the file open."""
        with self._lock:
            text = self._texts.get(path)
            return text is not None and text.handles > 0

    def look(self, path: str, make: Make, moment_s: float) -> _Text:
        """What a stat tells of. `make` gives content and mtime."""
        with self._lock:
            text = self._texts.get(path)
            if text is not None and (text.handles or self._is_fresh(text, moment_s)):
                return text
        return self._keep(path, make)

    def open(self, path: str, make: Make, moment_s: float) -> _Text:
        """What an open gets; to be closed."""
        with self._lock:
            text = self._texts.get(path)
            if text is not None and self._is_fresh(text, moment_s):
                text.handles += 1
                text.opened = True
                return text
        return self._keep(path, make, handles=1)

    def close(self, text: _Text) -> None:
        """A handle is closed."""
        with self._lock:
            text.handles -= 1

    def _is_fresh(self, text: _Text, moment_s: float) -> bool:
        return not text.opened and self._clock() - text.made < moment_s

    def _keep(self, path: str, make: Make, handles: int = 0) -> _Text:
        text = _Text(*make(), self._clock(), handles, opened=handles > 0)
        with self._lock:
            self._texts[path] = text
            self._texts.move_to_end(path)
            if len(self._texts) > _KEPT:
                oldest = next((path for path, text in self._texts.items() if not text.handles), None)
                if oldest is not None:
                    del self._texts[oldest]
        return text


class GeneratedFile(File):
    """One of them: `make` gives its content, `mtime_ns` its time. `moment_s`: see above.

    `size`: what a stat tells while nobody has the file open, where that is cheaper to know than the text.
    """

    def __init__(
        self,
        texts: GeneratedTexts,
        path: str,
        make: Callable[[], bytes],
        mtime_ns: Callable[[], int],
        moment_s: float = 0.0,
        size: Callable[[], int] | None = None,
    ) -> None:
        self._texts = texts
        self._path = path
        self._make = make
        self._mtime_ns = mtime_ns
        self._moment_s = moment_s
        self._size = size

    def attributes(self) -> Attributes:
        if self._size is not None and not self._texts.is_open(self._path):
            return Attributes(Kind.FILE, self._size(), self._mtime_ns(), FILE_MODE)
        text = self._texts.look(self._path, self._made, self._moment_s)
        return Attributes(Kind.FILE, len(text.content), text.mtime_ns, FILE_MODE)

    def open(self) -> Handle:
        return _GeneratedHandle(self._texts, self._texts.open(self._path, self._made, self._moment_s))

    def _made(self) -> tuple[bytes, int]:
        return self._make(), self._mtime_ns()


class _GeneratedHandle(BytesHandle):
    def __init__(self, texts: GeneratedTexts, text: _Text) -> None:
        super().__init__(text.content)
        self._texts = texts
        self._text: _Text | None = text

    def close(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            self._texts.close(text)
