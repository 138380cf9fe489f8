"""The base of all sources of schemas: their methods, and the log of the schemas that they skip.

A source follows changes. Errors are logged, never raised: a source that cannot be read keeps the schemas that it read
last, and a single schema that cannot be read is skipped.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Final

from kafkafs.schemas.registry import Registry
from kafkafs.schemas.schema import Reference, Schema
from storage.errors import StorageError

_log = logging.getLogger(__name__)

_MOST_LINES_LOGGED: Final = 20


class SchemaSource(ABC):
    """Schemas that may change. Thread-safe. Also a SchemaLookup: each call answers from the schemas as of now.

    `problem`: the latest error of reading them; "" if there was none.
    """

    problem: str

    @abstractmethod
    def registry(self) -> Registry:
        """All schemas as of now; the same object until something changes. Never raises."""

    def by_id(self, schema_id: int, subject: str | None = None) -> Schema | None:
        return self.registry().by_id(schema_id, subject)

    def by_guid(self, guid: bytes) -> Schema | None:
        return self.registry().by_guid(guid)

    def referenced(self, reference: Reference) -> Schema | None:
        return self.registry().referenced(reference)

    def by_message_type(self, name: str) -> Schema | None:
        return self.registry().by_message_type(name)

    def of_file(self, subject: str) -> Schema | None:
        return self.registry().of_file(subject)


class SkippedSchemas:
    """Logs the errors of skipped schemas, up to a number of lines."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._count = 0
        self._first = ""

    def add(self, error: StorageError) -> None:
        self._count += 1
        self._first = self._first or str(error)
        if self._count <= _MOST_LINES_LOGGED:
            _log.warning("skipped among the schemas: %s", error)

    def close(self) -> str:
        """Log how many more errors there were; return the first error, "" if there was none."""
        if self._count > _MOST_LINES_LOGGED:
            _log.warning("%s: %d more were skipped among the schemas", self._place, self._count - _MOST_LINES_LOGGED)
        return self._first
