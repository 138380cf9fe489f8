"""The schemas of files that the user has named for topics: `.avsc`, `.proto`, or a compiled Protobuf descriptor set.

A file is read once. A `.proto` may import files below its own directory. A text is parsed when the first value is
decoded, like the schemas of a registry.
"""

from __future__ import annotations

import errno
import os
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kafkafs.schemas.places import TopicFile
from kafkafs.schemas.proto_names import imports
from kafkafs.schemas.registry_replay import DEFAULT_LIMITS
from kafkafs.schemas.schema import AVRO, DESCRIPTORS, FILE, PROTOBUF, Reference, Schema
from storage.errors import InvalidConfig
from storage.files.opening import open_below, real_place

MOST_IMPORTS: Final = 1000
_TEXTS: Final = {".avsc": AVRO, ".proto": PROTOBUF}
_COMPILED: Final = (".desc", ".pb", ".binpb", ".protoset", ".fds")


def read_files(files: Iterable[TopicFile]) -> dict[str, Schema]:
    """The schemas by subject, and the files that they import by `<subject>/<import>`. Raises InvalidConfig for a file
    that cannot be a schema, and OSError."""
    schemas: dict[str, Schema] = {}
    for file in files:
        schemas |= _Reading(file).schemas()
    return schemas


class _Reading:
    """Reads one file and its imports, together up to the limit for the text of a schema."""

    def __init__(self, file: TopicFile) -> None:
        self._file = file
        self._path = real_place(file.path)
        self._left = DEFAULT_LIMITS.text_bytes

    def schemas(self) -> dict[str, Schema]:
        file, path = self._file, self._file.path
        kind = _TEXTS.get(path.suffix)
        if kind is None and path.suffix not in _COMPILED:
            expected = f"a name that ends in {', '.join((*_TEXTS, *_COMPILED))}"
            raise InvalidConfig("is not the file of a schema", path=path, expected=expected)
        if file.message and kind == AVRO:
            raise InvalidConfig(f"only a Protobuf schema has message types such as {file.message}", path=path)
        data = self._read(self._path.name)
        if kind is None:
            text = b64encode(data).decode()
            return {file.subject: Schema(-1, DESCRIPTORS, text, file=path.name, message=file.message)}
        text = self._text(data, path)
        if kind == AVRO:
            return {file.subject: Schema(-1, AVRO, text, file=path.name)}
        imported = dict(self._imported(text))
        references = tuple(Reference(name, f"{file.subject}/{name}", FILE) for name in imported)
        main = Schema(-1, PROTOBUF, text, references, file=path.name, message=file.message)
        return {file.subject: main} | {
            f"{file.subject}/{name}": Schema(-1, PROTOBUF, below, file=name) for name, below in imported.items()
        }

    def _imported(self, text: str) -> Iterator[tuple[str, str]]:
        """The name and text of each imported file below the directory, at any depth. The compiler may know others."""
        waiting, seen = [text], set[str]()
        while waiting:
            for name in imports(waiting.pop()):
                if name in seen or len(seen) >= MOST_IMPORTS:
                    continue
                seen.add(name)
                try:
                    below = self._text(self._read(name), self._path.parent / name)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                waiting.append(below)
                yield name, below

    def _read(self, name: str) -> bytes:
        with os.fdopen(open_below(self._path.parent, name, os.O_RDONLY), "rb") as opened:
            data = opened.read(self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            limit = f"a schema and what it imports have at most {DEFAULT_LIMITS.text_bytes} bytes"
            raise OSError(errno.EFBIG, limit, os.fspath(self._file.path))
        return data

    @staticmethod
    def _text(data: bytes, path: Path) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidConfig(f"schema is not UTF-8: {error}", path=path) from None
