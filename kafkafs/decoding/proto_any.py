"""google.protobuf.Any: messages of a type that their own type_url names.

The type is looked up among the schema's types, then among those of all schemas (`SchemaLookup.by_message_type`) and the
files that need no reference. An Any is shown plainly, as type_url and value, if its type is unknown, or if only another
schema has the type and the bytes do not fit it.

The protobuf library asks a descriptor pool for such types, and refuses the whole message if a type is missing. So it
gets `AnyTypes` in place of a pool. And before it writes a message as JSON, each Any to be shown plainly is put as the
value into another Any, whose type `kafkafs.PlainAny` has the same two fields.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from kafkafs.decoding.avro_schema import BadSchema
from kafkafs.decoding.proto_files import compiled_files, files_without_reference, longest_name
from kafkafs.schemas.registry import Registry
from kafkafs.schemas.schema import Schema

if TYPE_CHECKING:
    from kafkafs.decoding.proto_files import Compiled
    from kafkafs.schemas.schema import SchemaLookup

ANY: Final = "google.protobuf.Any"
_OWN: Final = "google.protobuf."
_KNOWN: Final = (_OWN, "google.type.", "confluent.type.")
_NAME: Final = re.compile(r"[A-Za-z_][\w.]{0,999}", re.ASCII)
# Not a valid type name, and different in each process: writers of data cannot know it.
_PLAIN: Final = f"@{secrets.token_hex(8)}"
MOST_WITHIN_EACH_OTHER: Final = 100  # messages below the outermost one, also in an Any
# The bytes of all Any of a message together; those of an Any within another count in both.
MOST_ANY_BYTES: Final = 1 << 20
ANY_BYTES_PER_BYTE: Final = 16  # and this many for each byte of the data


class TooMuch(Exception):
    """The nesting of messages, or all their bytes, exceed a bound; the message says which."""


class AnyTypes:
    """The message types that an Any in data of one schema may have; the library uses it like a descriptor pool. Threads
    can share it. The type that it returns for a name never changes."""

    def __init__(self, compiled: Compiled, schemas: SchemaLookup | None) -> None:
        self._own = compiled.pool
        self._schemas = schemas
        # Guarded by the lock, which is held while a schema is compiled.
        self._lock = Lock()
        self._others: dict[Schema, Compiled | None] = {}  # kept here, so that descriptors in use are counted
        # Read and written without the lock, each entry as a whole.
        self._found: dict[str, Any] = {}  # types of other schemas by name
        self.longest_name = 0  # of the fields and symbols of these
        self._fields: dict[Any, list[tuple[Any, Any]]] = {}  # see fields_with_any
        self._with_any: dict[Any, bool] = {}  # see may_have_any

    def FindMessageTypeByName(self, name: str) -> Any:  # noqa: N802 - the library calls it so
        """Return the descriptor of a type. KeyError."""
        descriptor = _plain() if name == _PLAIN else self.find(name)[0]
        if descriptor is None:
            raise KeyError(name)
        return descriptor

    def find(self, name: str) -> tuple[Any, bool]:
        """Return the descriptor of a type, None if it is unknown, and whether the schema itself has it."""
        if _NAME.fullmatch(name) is None:
            return None, False
        with suppress(KeyError):
            return self._own.FindMessageTypeByName(name), True
        descriptor = self._found.get(name)
        if descriptor is None and (descriptor := self._find_elsewhere(name)) is not None:
            descriptor = self._found.setdefault(name, descriptor)
        return descriptor, False

    def _find_elsewhere(self, name: str) -> Any:
        places = [files_without_reference()] if name.startswith(_KNOWN) else []
        declaring = None if self._schemas is None else self._schemas.by_message_type(name)
        if declaring is not None:
            places.append(declaring)
        for place in places:
            compiled = self._compiled(place)
            if compiled is not None:
                with suppress(KeyError):
                    return compiled.pool.FindMessageTypeByName(name)
        return None

    def fields_with_any(self, kind: Any) -> list[tuple[Any, Any]]:
        """The fields of a message type whose messages may have an Any, each with its type; for a map the type of its
        values."""
        fields = self._fields.get(kind)
        if fields is None:
            fields = []
            for field in kind.fields:
                below = field.message_type
                if below is not None and below.GetOptions().map_entry:
                    below = below.fields_by_name["value"].message_type
                if below is not None and self.may_have_any(below):
                    fields.append((field, below))
            self._fields[kind] = fields
        return fields

    def may_have_any(self, kind: Any) -> bool:
        """Whether a message of this type may be an Any, or contain one at any depth."""
        may_have = self._with_any.get(kind)
        if may_have is None:
            may_have = self._with_any[kind] = _may_have_any(kind)
        return may_have

    def _compiled(self, schema: Schema) -> Compiled | None:
        with self._lock:
            if schema not in self._others:
                self._others[schema] = None
                with suppress(BadSchema):
                    compiled = compiled_files(schema, self._schemas or Registry())
                    self.longest_name = max(self.longest_name, longest_name(compiled.file))
                    self._others[schema] = compiled
            return self._others[schema]


def show_plainly(message: Any, types: AnyTypes) -> None:
    """Replace each Any that is to be shown plainly by an Any that contains it. TooMuch."""
    _Walk(types).all_in(message)


def without_marks(value: dict[str, Any]) -> dict[str, Any]:
    """The JSON object of an Any, without the Any that `show_plainly` put around it."""
    return {name: value[name] for name in value if name != "@type"} if value.get("@type") == _PLAIN else value


class _Walk:
    """Visits every Any in one message, including those within others."""

    def __init__(self, types: AnyTypes) -> None:
        self._types = types
        self._bytes_left = 0

    def all_in(self, message: Any) -> None:
        """Visit every Any in a message. TooMuch."""
        if self._types.may_have_any(message.DESCRIPTOR):
            self._bytes_left = MOST_ANY_BYTES + ANY_BYTES_PER_BYTE * len(message.SerializePartialToString())
            self.message(message, 0)

    def message(self, message: Any, within: int) -> None:
        """`within`: the number of messages around this one."""
        if within > MOST_WITHIN_EACH_OTHER:
            raise TooMuch(f"more than {MOST_WITHIN_EACH_OTHER} messages are within each other")
        if message.DESCRIPTOR.full_name == ANY:
            self._any(message, within)
            return
        for field, _ in self._types.fields_with_any(message.DESCRIPTOR):
            for below in _values(message, field):
                self.message(below, within + 1)

    def _any(self, found: Any, within: int) -> None:
        if not found.type_url and not found.value:
            return
        kind, is_own = self._types.find(_type_name(found.type_url))
        content = None if kind is None else self._content(found, kind)
        if content is not None:
            self._replace_within(found, content, within)
        elif not is_own:  # otherwise the library reports what is wrong with it
            found.value = found.SerializeToString()
            found.type_url = _PLAIN

    def _content(self, any_message: Any, kind: Any) -> Any:
        """The message in an Any; None if its bytes do not fit the type."""
        from google.protobuf import message_factory

        self._bytes_left -= len(any_message.value)
        if self._bytes_left < 0:
            raise TooMuch("the Any within each other are more than 1 MiB and 16 times the data")
        content = message_factory.GetMessageClass(kind)()
        try:
            content.ParseFromString(any_message.value)
        except Exception:  # noqa: BLE001 - the library's errors depend on its version
            return None
        return content

    def _replace_within(self, any_message: Any, content: Any, within: int) -> None:
        """Visit the message in an Any, and put it back."""
        if self._types.may_have_any(content.DESCRIPTOR):
            self.message(content, within + 1)
            any_message.value = content.SerializePartialToString()


def _type_name(type_url: str) -> str:
    return type_url.rpartition("/")[2]


def _values(message: Any, field: Any) -> Iterator[Any]:
    """The messages in a field."""
    if field.message_type.GetOptions().map_entry:
        yield from getattr(message, field.name).values()
    elif is_repeated(field):
        yield from getattr(message, field.name)
    elif message.HasField(field.name):
        yield getattr(message, field.name)


def is_repeated(field: Any) -> bool:
    """Whether a field, given by its descriptor, is repeated."""
    repeated = getattr(field, "is_repeated", None)  # protobuf 6.31
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)


def _may_have_any(kind: Any) -> bool:
    seen, waiting = {kind.full_name}, [kind]
    while waiting:
        message_type = waiting.pop()
        if message_type.full_name == ANY:
            return True
        for field in message_type.fields:
            below = field.message_type
            if below is not None and below.full_name not in seen:
                seen.add(below.full_name)
                waiting.append(below)
    return False


@cache
def _plain() -> Any:
    """The type of an Any that contains another Any, to be shown plainly."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="kafkafs/plain_any.proto", package="kafkafs", syntax="proto3")
    message = file.message_type.add(name="PlainAny")
    for number, (name, kind) in enumerate((("type_url", "TYPE_STRING"), ("value", "TYPE_BYTES")), 1):
        field = descriptor_pb2.FieldDescriptorProto
        message.field.add(name=name, number=number, type=getattr(field, kind), label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindMessageTypeByName("kafkafs.PlainAny")
