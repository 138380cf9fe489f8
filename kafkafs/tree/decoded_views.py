"""`decoded.jsonl`: which topics have it, and by which schemas or definitions it is rendered.

A rendition belongs to one partition and to the schemas as `SteadySchemas` gives them: a schema that appears later does
not change measured or served bytes. If it would change the bytes, the rendition is outdated: open files keep it, and
the next open creates a new rendition, which measures the partition again (kafkafs/DESIGN.md, "Decoded views").
"""

from __future__ import annotations

import itertools
from threading import Lock
from typing import Final

from cachetools import LRUCache

from kafkafs.decoding.decoded_jsonl import DecodedJsonl
from kafkafs.reading.workbench import Rendition
from kafkafs.schemas.schema_source import SchemaSource
from kafkafs.schemas.steady_schemas import SteadySchemas
from storage.format.messages import GROUPS, definitions_digest
from storage.types import Isolation, TopicPartition

_KEPT: Final = 1024

_numbers = itertools.count()


class SchemaBasis:
    """The schemas of one rendition. See Basis."""

    def __init__(self, schemas: SteadySchemas) -> None:
        self._schemas = schemas
        self._number = next(_numbers)

    @property
    def name(self) -> str:
        return f"#{self._number}"

    def is_outdated(self) -> bool:
        return self._schemas.is_outdated()

    def lasting_name(self) -> str | None:
        fingerprint = self._schemas.fingerprint()
        return None if fingerprint is None else f"@{fingerprint}"


class DefinedBasis:
    """The definitions of the messages in Kafka's own topics. See Basis."""

    name = "definitions"

    def is_outdated(self) -> bool:
        return False

    def lasting_name(self) -> str:
        return f"@{definitions_digest()}"


class DecodedViews:
    """The renditions of a tree's decoded views. Thread-safe."""

    def __init__(self, source: SchemaSource, isolation: Isolation) -> None:
        # constant after construction
        self.source = source
        self._isolation = isolation
        # guarded by the lock
        self._lock = Lock()
        self._renditions: LRUCache[TopicPartition, Rendition] = LRUCache(_KEPT)

    def has(self, topic: str) -> bool:
        """Whether the topic's partitions have decoded views: those of Kafka's own topics always, others if there are
        schemas."""
        return topic in GROUPS or bool(self.source.registry())

    def rendition(self, tp: TopicPartition) -> Rendition:
        """The rendition of a partition by the schemas as of now. The same object until it is outdated."""
        with self._lock:
            rendition = self._renditions.get(tp)
            if rendition is None or rendition.is_outdated():
                schemas = SteadySchemas(self.source)
                basis = DefinedBasis() if tp.topic in GROUPS else SchemaBasis(schemas)
                rendition = Rendition(DecodedJsonl(tp, schemas), self._isolation, basis)
                self._renditions[tp] = rendition
            return rendition
