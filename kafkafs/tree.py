"""The tree: from a path to its view. The core of a mount, without FUSE.

    tree = Tree(LogDir.open_read_only(path), TreeOptions(), files={"@status.json": …})
    tree.start()                      # after any fork: the threads that render ahead
    tree.lookup("/t/0/messages.txt")  # -> View; StorageError, NoSuchPath or OSError where there is none
    tree.stop()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkafs.handles import DEFAULT_CACHE_BYTES
from kafkafs.views.base import View
from storage.clock import Clock, SystemClock
from storage.log.log_dir import LogDir
from storage.types import Isolation


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """What a mount may choose. Sizes in bytes.

    `clamp`: ranges that begin below the log start give what is left, instead of OffsetOutOfRange.
    `index_dir`: where the view index is kept; None is the user's cache directory. `index_bytes` 0: it is not kept.
    `workers`: threads that render ahead of readers.
    """

    isolation: Isolation = Isolation.READ_UNCOMMITTED
    clamp: bool = False
    cache_bytes: int = DEFAULT_CACHE_BYTES
    workers: int = 2
    index_dir: Path | None = None
    index_bytes: int = 256 << 20


class Tree:
    """All that can be looked up in a log directory. Thread-safe."""

    def __init__(
        self,
        log_dir: LogDir,
        options: TreeOptions | None = None,
        *,
        files: Mapping[str, Callable[[], bytes]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`files` makes the content of files at the root by name, in place of ours: `@status.json`, `@metrics`…"""
        self.log_dir = log_dir
        self.options = options or TreeOptions()
        self._clock = clock or SystemClock()
        self._files = dict(files or {})

    def start(self) -> None:
        """Starts the worker threads: after any fork, from FUSE's init."""

    def stop(self) -> None:
        """Ends the worker threads and keeps what is worth keeping of the view index: from FUSE's destroy."""

    def lookup(self, path: str) -> View:
        """The view at `path`, as FUSE hands it over (`/` is the root)."""
        raise NotImplementedError(path)

    def status(self) -> dict[str, Any]:
        """Caches, view index, scans under way, open files: the tree's part of @status.json."""
        return {}
