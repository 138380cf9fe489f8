"""Small texts made when they are looked at: `@info.json`, `@config`, `@help`, `@status.json`, `@metrics`.

A stat makes the text to know its size, and each open makes it again.
"""

from __future__ import annotations

from collections.abc import Callable

from kafkafs.reading.handle import BytesHandle, Handle
from kafkafs.tree.node import FILE_MODE, Attributes, File, NodeKind

Make = Callable[[], tuple[bytes, int]]


class GeneratedFile(File):
    """A generated file. `make` returns its content and its mtime in ns; `size`, if given, its size and mtime without
    making the content."""

    def __init__(self, make: Make, size: Callable[[], tuple[int, int]] | None = None) -> None:
        self._make = make
        self._size = size

    def attributes(self) -> Attributes:
        if self._size is not None:
            size, mtime_ns = self._size()
        else:
            content, mtime_ns = self._make()
            size = len(content)
        return Attributes(NodeKind.FILE, size, mtime_ns, FILE_MODE)

    def open(self) -> Handle:
        content, _ = self._make()
        return BytesHandle(content)
