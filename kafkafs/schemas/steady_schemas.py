"""Schemas as one rendering of a view sees them: an answer, once given, stays.

A schema may be registered while a view is open. A message that was rendered with an unknown id must not change its size
under an open file, so this id stays unknown as long as the rendering is used. Other ids are looked up when they are
needed: a `tail -f` decodes messages whose schema was registered after it began.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from kafkafs.schemas.registry import Registry
from kafkafs.schemas.schema import AVRO, PROTOBUF, Reference, Schema
from kafkafs.schemas.schema_source import SchemaSource

MOST_ANSWERS: Final = 10_000

_Question = tuple[int, str | None] | bytes | Reference | str


class SteadySchemas:
    """A SchemaLookup whose answers never change, over a source whose answers may. Thread-safe.

    It remembers its answers. After MOST_ANSWERS it takes all others from the registry as of that moment.
    """

    def __init__(self, source: SchemaSource) -> None:
        # constant after construction
        self._source = source
        self._has_protobuf_file = False  # once a file of Protobuf was asked for, it stays so
        # guarded by the lock
        self._lock = Lock()
        self._answers: dict[_Question, Schema | None] = {}
        self._frozen: Registry | None = None
        self._compared: tuple[Registry | None, bool, bool] = None, False, False

    def by_id(self, schema_id: int, subject: str | None = None) -> Schema | None:
        return self._answer((schema_id, subject))

    def by_guid(self, guid: bytes) -> Schema | None:
        return self._answer(bytes(guid))

    def referenced(self, reference: Reference) -> Schema | None:
        return self._answer(reference)

    def by_message_type(self, name: str) -> Schema | None:
        return self._answer(name)

    def of_file(self, subject: str) -> Schema | None:
        """Files are read once, so that their answers never change."""
        schema = self._source.of_file(subject)
        self._has_protobuf_file = self._has_protobuf_file or (schema is not None and schema.schema_type != AVRO)
        return schema

    def is_outdated(self) -> bool:
        """Whether the source now has another schema for a question that was answered."""
        return self._compare(self._source.registry())[1]

    def fingerprint(self) -> str | None:
        """A value that identifies all answers, for files that outlive this process: the fingerprint of the source's
        registry. None if the registry would now answer otherwise, if a question had no answer or there were too many,
        and if an answer is Protobuf, whose decoding also depends on the installed packages."""
        registry = self._source.registry()
        _, outdated, complete = self._compare(registry)
        return registry.fingerprint if complete and not outdated and not self._has_protobuf_file else None

    def _answer(self, question: _Question) -> Schema | None:
        with self._lock:
            if question in self._answers:
                return self._answers[question]
            if self._frozen is not None:
                return _ask(self._frozen, question)
            registry = self._source.registry()
            answer = self._answers[question] = _ask(registry, question)
            self._compared = None, False, False
            if len(self._answers) >= MOST_ANSWERS:
                self._frozen = registry
            return answer

    def _compare(self, registry: Registry) -> tuple[Registry | None, bool, bool]:
        """(`registry`, whether it has other schemas for answered questions, whether it gives all answers, the same and
        not of Protobuf). The result is kept."""
        with self._lock:
            if self._compared[0] is not registry:
                outdated = self._frozen is not None and self._frozen is not registry
                complete = self._frozen is None
                for question, answer in self._answers.items():
                    now = _ask(registry, question)
                    outdated = outdated or (now is not None and now != answer)
                    lasting = answer is not None and answer.schema_type != PROTOBUF
                    complete = complete and lasting and now == answer
                self._compared = registry, outdated, complete
            return self._compared


def _ask(registry: Registry, question: _Question) -> Schema | None:
    if isinstance(question, bytes):
        return registry.by_guid(question)
    if isinstance(question, Reference):
        return registry.referenced(question)
    if isinstance(question, str):
        return registry.by_message_type(question)
    return registry.by_id(*question)
