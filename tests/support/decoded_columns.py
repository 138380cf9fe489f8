"""Single values through the decoders of columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kafkafs.decoding.decoded_jsonl import TextDecoder
from kafkafs.formats.format import Format
from kafkafs.schemas.schema import AVRO, Reference, Schema
from tests.support.blocks import Row, block_of


class SchemaTable:
    """A SchemaLookup of a few schemas; references are found by (subject, version)."""

    def __init__(self, *schemas: Schema, versions: dict[tuple[str, int], Schema] | None = None) -> None:
        self._ids = {schema.schema_id: schema for schema in schemas}
        self._versions = versions or {}
        self.asked: list[tuple[int, str | None]] = []

    def by_id(self, schema_id: int, subject: str | None = None) -> Schema | None:
        self.asked.append((schema_id, subject))
        return self._ids.get(schema_id)

    def by_guid(self, guid: bytes) -> Schema | None:
        return None

    def by_message_type(self, name: str) -> Schema | None:
        return None

    def of_file(self, subject: str) -> Schema | None:
        return None

    def referenced(self, reference: Reference) -> Schema | None:
        return self._versions.get((reference.subject, reference.version))


def one_schema(text: str, schema_type: str = AVRO, schema_id: int = 7) -> SchemaTable:
    return SchemaTable(Schema(schema_id, schema_type, text))


def framed(data: bytes, schema_id: int = 7) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


def columns_of(values: Sequence[bytes | None]) -> tuple[bytes, np.ndarray, np.ndarray]:
    """The buffer without a byte to spare, starts, lengths."""
    lengths = np.array([-1 if value is None else len(value) for value in values], np.int64)
    starts = np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0)
    return b"".join(value or b"" for value in values), starts, lengths


def decoded_texts(decoder: TextDecoder, values: Sequence[bytes | None]) -> tuple[list[str], dict[int, str]]:
    """The JSON text of each value, and the errors by row."""
    texts, ends, _, errors = decoder.decode(*columns_of(values))
    data, begins = texts.tobytes(), [0, *ends.tolist()]
    return [data[begins[i] : begins[i + 1]].decode() for i in range(len(values))], errors


def decoded_text(decoder: TextDecoder, value: bytes) -> str:
    (text,), errors = decoded_texts(decoder, [value])
    assert not errors
    return text


def lines(form: Format, rows: list[Row]) -> list[bytes]:
    """The rows as the format shows them: measured and rendered, which must agree."""
    block = block_of(rows)
    sizes = np.full(len(rows) + 1, -7, np.int64)
    form.measure(block, sizes)
    assert sizes[-1] == -7
    out = np.full(int(sizes[:-1].sum()) + 50, 35, np.uint8)
    end = form.render(block, out.data[: len(out) - 40], 3)
    assert end == len(out) - 47
    assert out[:3].tobytes() + out[end:].tobytes() == b"#" * 50
    found = out[3:end].tobytes().splitlines(keepends=True)
    assert [*map(len, found)] == sizes[:-1].tolist()
    return found
