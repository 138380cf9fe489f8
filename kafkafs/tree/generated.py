"""Small texts made when they are looked at: `@info.json`, `@config`, `@help`, `@status.json`, `@metrics`.

What a tool sees of such a file must be consistent, although the next text may be longer: `tar` asks for its size, opens
it, asks again (fstat arrives as a stat of the path), reads that many bytes, and complains if size or time have changed.
So

    while open  a stat shows the text that was opened last; each handle keeps its own
    otherwise   a stat makes a text, and the open that follows it within a moment takes that one

The latter applies only to texts that differ each time they are made (`moment_s`); of others an open shows the current
state. Opening a file twice gives a new text each time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from kafkafs.reading.handle import BytesHandle, Handle, WriteHandle
from kafkafs.tree.append_files import LinesHandle
from kafkafs.tree.info import InfoTexts
from kafkafs.tree.node import FILE_MODE, Attributes, File, NodeKind
from kafkafs.writing.destinations import Taken
from kafkafs.writing.line_parsers import Parsed, parse_txt
from kafkafs.writing.line_writer import Refused
from storage.directory.owned_dir import OwnedDir
from storage.errors import InvalidConfig, StorageError

MOMENT_S = 0.25  # from a stat to the open that belongs to it
_KEPT = 64  # texts, of files without an open handle

Make = Callable[[], tuple[bytes, int]]


@dataclass(slots=True)
class _Text:
    """A text; `made`: when, by the monotonic clock; `handles`: how many are open; `opened`: whether one ever was."""

    content: bytes
    mtime_ns: int
    made: float
    handles: int = 0
    opened: bool = False


class GeneratedTexts:
    """The texts of a tree's generated files, by path. Thread-safe; texts are made outside the lock.

    It keeps what open handles were given, whether or not that has changed since. `InfoTexts` keeps texts by another
    rule: until what they were made from changes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # constant after construction
        self._clock = clock
        # guarded by the lock
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, _Text] = OrderedDict()

    def shown(self, path: str, moment_s: float) -> _Text | None:
        """The text that a stat must show: that of an open handle, or one made a moment ago. None: make one."""
        with self._lock:
            text = self._texts.get(path)
            return text if text is not None and (text.handles or self._is_fresh(text, moment_s)) else None

    def keep(self, path: str, content: bytes, mtime_ns: int, handles: int = 0) -> _Text:
        """Keeps a new text of a file, with so many handles open."""
        text = _Text(content, mtime_ns, self._clock(), handles, opened=handles > 0)
        with self._lock:
            self._texts[path] = text
            self._texts.move_to_end(path)
            if len(self._texts) > _KEPT:
                oldest = next((path for path, text in self._texts.items() if not text.handles), None)
                if oldest is not None:
                    del self._texts[oldest]
        return text

    def open(self, path: str, make: Make, moment_s: float) -> _Text:
        """The text for an open; `close` must follow."""
        with self._lock:
            text = self._texts.get(path)
            if text is not None and self._is_fresh(text, moment_s):
                text.handles += 1
                text.opened = True
                return text
        return self.keep(path, *make(), handles=1)

    def close(self, text: _Text) -> None:
        """Ends the use of a text by a handle."""
        with self._lock:
            text.handles -= 1

    def _is_fresh(self, text: _Text, moment_s: float) -> bool:
        return not text.opened and self._clock() - text.made < moment_s


class GeneratedFile(File):
    """A generated file: `make` returns its content and mtime in ns. `moment_s`: see the module's description.

    `size` returns its size and mtime where they are cheaper to know than the text, for a stat while no handle is open.
    """

    def __init__(
        self,
        texts: GeneratedTexts,
        path: str,
        make: Make,
        moment_s: float = 0.0,
        size: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._texts = texts
        self._path = path
        self._make = make
        self._moment_s = moment_s
        self._size = size

    def attributes(self) -> Attributes:
        text = self._texts.shown(self._path, self._moment_s)
        if text is not None:
            size, mtime_ns = len(text.content), text.mtime_ns
        elif self._size is not None:
            size, mtime_ns = self._size()
        else:
            content, mtime_ns = self._make()
            size = len(content)
            if self._moment_s:
                self._texts.keep(self._path, content, mtime_ns)
        return Attributes(NodeKind.FILE, size, mtime_ns, FILE_MODE)

    def open(self) -> Handle:
        return _GeneratedHandle(self._texts, self._texts.open(self._path, self._make, self._moment_s))


class _GeneratedHandle(BytesHandle):
    def __init__(self, texts: GeneratedTexts, text: _Text) -> None:
        super().__init__(text.content)
        self._texts = texts
        self._text: _Text | None = text

    def close(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            self._texts.close(text)


# A topic's `@config` on a writable mount: each `key=value` line sets one key, `key=` unsets it.

_MODE = 0o644
_LONGEST_LINE = 64 << 10


class ConfigFile(File):
    """UnknownTopicOrPartition when there is no such topic."""

    def __init__(self, owned: OwnedDir, texts: InfoTexts, topic: str, refused: Refused) -> None:
        self._owned = owned
        self._refused = refused
        self._texts = texts
        self._topic = topic
        owned.log_dir.partitions(topic)

    def attributes(self) -> Attributes:
        return Attributes(NodeKind.FILE, len(self._content()), self._owned.log_dir.mtime_ns, _MODE)

    def open(self) -> Handle:
        return BytesHandle(self._content())

    def open_to_write(self) -> WriteHandle:
        return LinesHandle(_Settings(self._owned, self._topic), parse_txt, self._refused, self._content())

    def _content(self) -> bytes:
        return self._texts.topic_config(self._topic)


class _Settings:
    """The destination of settings lines. Blank lines and comments are skipped: `@config` itself has some."""

    def __init__(self, owned: OwnedDir, topic: str) -> None:
        self._owned = owned
        self._topic = topic

    def append(self, parsed: Parsed) -> Taken:
        columns = parsed.columns
        data = memoryview(columns.buffer)
        for row in range(len(columns)):
            start = int(columns.value_start[row])
            try:
                self._set(bytes(data[start : start + int(columns.value_length[row])]))
            except (StorageError, OSError) as error:
                return Taken(row, error)
        return Taken(len(columns), None)

    def longest_line(self, *, verbatim: bool) -> int:
        return _LONGEST_LINE

    def forget_refused(self) -> None:
        """Does nothing: settings are made one by one, so none after a refused one is made."""

    def sync(self) -> None:
        """Does nothing: each setting is on disk as soon as it is made."""

    def _set(self, line: bytes) -> None:
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise InvalidConfig(f"line is not UTF-8: {error}") from None
        if not text or text.startswith("#"):
            return
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise InvalidConfig("line is not key=value", found=text[:100])
        if value:
            self._owned.alter_config(self._topic, {key: value})
        else:
            self._owned.alter_config(self._topic, {}, [key])
