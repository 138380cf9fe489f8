"""The schemas in the topic `_schemas` of a log directory."""

from __future__ import annotations

import logging
import os
from threading import Lock
from typing import Final

from kafkafs.schemas.registry import Registry
from kafkafs.schemas.registry_replay import RegistryReplay
from kafkafs.schemas.schema_source import SchemaSource, SkippedSchemas
from storage.errors import CorruptData, StorageError, UnknownTopicOrPartition, error_text
from storage.log.follower import Follower
from storage.log.log_dir import LogDir
from storage.log.snapshot import ReadableLog
from storage.types import TopicPartition

_log = logging.getLogger(__name__)

SCHEMAS_LOG: Final = TopicPartition("_schemas", 0)


class LogSchemas(SchemaSource):
    """The schemas in `_schemas` of a log directory, which a running registry may be writing."""

    def __init__(self, log_dir: LogDir) -> None:
        # Constant after construction.
        self._log_dir = log_dir
        # Guarded by the lock, which is held while records are read: other callers need the same answer.
        self._lock = Lock()
        self._follower = Follower(RegistryReplay)
        self._log: ReadableLog | None = None
        self._read = Registry()
        self._registry = self._read
        self._complaint = ""
        self.problem = ""

    def registry(self) -> Registry:
        with self._lock:
            skipped = SkippedSchemas(str(self._log_dir.path))
            try:
                self._log_dir.refresh()
                log = self._log_dir.log(SCHEMAS_LOG)
                if self._follower.refresh(log, skipped.add):
                    self._take_locked(log, self._follower.replay.registry())
                self._complaint = ""
            except UnknownTopicOrPartition:
                if self._registry:
                    self._log, self._registry = None, Registry()
                place = self._log_dir.path / SCHEMAS_LOG.dir_name
                if os.path.lexists(place):
                    self._complain_locked(CorruptData("is not a partition's directory", path=place))
            except (StorageError, OSError) as error:
                self._complain_locked(error)
            self.problem = skipped.close() or self._complaint or self.problem
            return self._registry

    def _complain_locked(self, error: Exception) -> None:
        if error_text(error) != self._complaint:
            self._complaint = error_text(error)
            _log.warning("schemas cannot be read: %s", self._complaint)

    def _take_locked(self, log: ReadableLog, read: Registry) -> None:
        """Set the registry. An id that compaction has removed from the log stays known to this process, because
        rendered bytes must not change."""
        if read is self._read and log is self._log:
            return
        carried = self._registry.entries() if log is self._log else []
        gone = [entry for entry in carried if not read.has_id(entry)]
        if gone:
            self._registry = Registry(read.versions.values(), read.compatibility, [*read.replaced, *gone])
        else:
            self._registry = read
        self._log, self._read = log, read
