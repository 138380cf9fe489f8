"""The schemas of another source together with those of files that the user has named for topics."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

from kafkafs.schemas.registry import Registry
from kafkafs.schemas.schema import Schema
from kafkafs.schemas.schema_source import SchemaSource


class WithTopicFiles(SchemaSource):
    """The schemas of another source, and those of files that the user has named for topics."""

    def __init__(self, source: SchemaSource, files: Mapping[str, Schema]) -> None:
        # Constant after construction.
        self._source = source
        self._files = files
        # Guarded by the lock.
        self._lock = Lock()
        self._read: Registry | None = None
        self._registry = Registry()

    @property
    def problem(self) -> str:  # type: ignore[override]  # never assigned
        return self._source.problem

    def registry(self) -> Registry:
        read = self._source.registry()
        with self._lock:
            if read is not self._read:
                self._read = read
                self._registry = Registry(read.versions.values(), read.compatibility, read.replaced, self._files)
            return self._registry
