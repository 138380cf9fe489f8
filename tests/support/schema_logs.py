"""The topic `_schemas`, written as registries write it."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from storage.format.block import Record
from storage.format.record_batch import encode_batch

START_MS = 1_700_000_000_000
STRING = '"string"'
LONG = '"long"'


def schema_record(
    subject: str, version: int, schema_id: int, text: str = STRING, *, timestamp: int = START_MS, **fields: Any
) -> Record:
    """A version of a subject; `fields` are further ones of its value (`schemaType`, `references`, `deleted`)."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": schema_id, "schema": text, "deleted": False, **fields}
    return Record(json.dumps(key).encode(), json.dumps(value).encode(), (), timestamp)


def other_record(kind: str, subject: str | None, value: dict[str, Any] | None, **fields: Any) -> Record:
    """A record of another kind; `fields` are further ones of its key."""
    key = {"keytype": kind, "subject": subject, "magic": 0, **fields}
    return Record(json.dumps(key).encode(), None if value is None else json.dumps(value).encode(), (), START_MS)


def framed(schema_id: int, data: bytes) -> bytes:
    """The wire format: a zero byte, the id, the data."""
    return struct.pack(">bI", 0, schema_id) + data


def avro_string(text: str) -> bytes:
    """A short string as Avro writes it."""
    data = text.encode()
    assert len(data) < 64
    return bytes([2 * len(data)]) + data


class GrowingLog:
    """A partition that a test appends to as a broker would."""

    def __init__(self, log_dir: Path, name: str) -> None:
        self.path = log_dir / name
        self.path.mkdir(parents=True)
        self.next_offset = 0
        self._file = self.path / f"{0:020d}.log"
        self._file.touch()

    def append(self, records: Sequence[Record]) -> None:
        with self._file.open("ab") as file:
            file.write(encode_batch(records, base_offset=self.next_offset))
        self.next_offset += len(records)
