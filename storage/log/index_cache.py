"""Loaded indexes, the recently used ones, within a bound of memory: a large log's indexes do not all fit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from storage.files.names import FileKind
from storage.files.sparse_index import SparseIndex

if TYPE_CHECKING:
    from storage.log.segment import Segment

_CAPACITY_BYTES = 32 << 20
_ENTRY_OVERHEAD_BYTES = 1024  # objects around the columns, roughly

# A growing segment's index is loaded anew when its log has grown by this part of itself since, or this many bytes.
_STALE_BYTES = 256 << 10
_STALE_PART = 256

I = TypeVar("I", bound=SparseIndex)  # noqa: E741


class IndexCache:
    """Least recently used out first. Thread-safe; an index may be loaded twice by two threads at once, harmlessly."""

    def __init__(self, capacity_bytes: int = _CAPACITY_BYTES) -> None:
        # Constant after construction.
        self._capacity_bytes = capacity_bytes
        # Guarded by the lock.
        self._lock = Lock()
        self._loaded: OrderedDict[tuple[Segment, FileKind], tuple[SparseIndex, int]] = OrderedDict()
        self._bytes = 0

    def get(self, segment: Segment, kind: FileKind, end: int, load: Callable[[Path], I]) -> I:
        """The segment's index, loaded now unless it is here and the log, which ends at `end`, has not outgrown it."""
        key = (segment, kind)
        with self._lock:
            held = self._loaded.get(key)
            if held is not None:
                self._loaded.move_to_end(key)
        if held is not None:
            index, loaded_end = held
            if segment.sealed or 0 <= end - loaded_end <= max(_STALE_BYTES, loaded_end // _STALE_PART):
                found: Any = index
                return found  # type: ignore[no-any-return]
        fresh = load(segment.path_of(kind))
        # A missing index may yet come (a swap renames the log first), and asking again costs next to nothing.
        if not fresh.missing:
            self._put(key, fresh, end)
        return fresh

    def _put(self, key: tuple[Segment, FileKind], index: SparseIndex, end: int) -> None:
        with self._lock:
            self._drop_locked(key)
            self._loaded[key] = (index, end)
            self._bytes += index.memory_bytes + _ENTRY_OVERHEAD_BYTES
            while self._bytes > self._capacity_bytes and len(self._loaded) > 1:
                self._drop_locked(next(iter(self._loaded)))

    def _drop_locked(self, key: tuple[Segment, FileKind]) -> None:
        held = self._loaded.pop(key, None)
        if held is not None:
            self._bytes -= held[0].memory_bytes + _ENTRY_OVERHEAD_BYTES
