"""The places of schemas that a user names, as PATH or TOPIC=FILE[:MESSAGE], in commands, in Python and to Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_FORM: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})(?P<key>#key)?=(?P<file>.+)", re.DOTALL)
_MESSAGE: Final = re.compile(r"(?P<file>.+):(?P<message>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class TopicFile:
    """The file with the schema of a topic's values (`subject` is `<topic>-value`) or keys (`<topic>-key`), which have
    no framing of a registry. `message`: the name of the Protobuf message type; "" for the only type of the file."""

    subject: str
    path: Path
    message: str = ""


@dataclass(frozen=True, slots=True)
class SchemaPlaces:
    """The places of schemas. `directory`: None for the log directory itself. `files`: files for some topics besides."""

    directory: Path | None = None
    files: tuple[TopicFile, ...] = ()

    def __bool__(self) -> bool:
        return self.directory is not None or bool(self.files)

    def __str__(self) -> str:
        return ", ".join(map(str, ([self.directory] if self.directory else []) + [file.path for file in self.files]))

    def __or__(self, other: SchemaPlaces) -> SchemaPlaces:
        """The places of both. Where both name a directory, or a file for one subject, the other's is taken."""
        files = {file.subject: file for file in (*self.files, *other.files)}
        return SchemaPlaces(other.directory or self.directory, tuple(files.values()))

    def with_text(self, text: str) -> SchemaPlaces:
        """These places and the place that the text names: PATH, TOPIC=FILE[:MESSAGE] or TOPIC#key=FILE[:MESSAGE].
        Raises ValueError for a blank text."""
        named = _FORM.fullmatch(text)
        if named is None or Path(text).is_dir():
            if not text.strip():
                raise ValueError("the place of the schemas is empty")
            return self | SchemaPlaces(Path(text))
        path, message = Path(named["file"]), ""
        typed = _MESSAGE.fullmatch(named["file"])
        if typed is not None and not path.exists():
            path, message = Path(typed["file"]), typed["message"]
        file = TopicFile(f"{named['topic']}-{'key' if named['key'] else 'value'}", path, message)
        return self | SchemaPlaces(files=(file,))

    def absolute(self) -> SchemaPlaces:
        """These places with absolute paths, for a process with another working directory."""
        files = tuple(replace(file, path=file.path.absolute()) for file in self.files)
        return SchemaPlaces(None if self.directory is None else self.directory.absolute(), files)


OWN_SCHEMAS: Final = SchemaPlaces()
"""The log directory itself, and no other place."""


def schema_places(texts: Iterable[str]) -> SchemaPlaces:
    """The places that these texts name (`SchemaPlaces.with_text`). Raises ValueError also if a place does not exist."""
    places = OWN_SCHEMAS
    for text in texts:
        places = places.with_text(text)
    if places.directory is not None and not places.directory.is_dir():
        raise ValueError(f"{places.directory} is not a directory; the file of a topic's schema is named as TOPIC=FILE")
    for file in places.files:
        if not file.path.is_file():
            raise ValueError(f"{file.path}, the schema of {file.subject}, is not a file")
    return places
