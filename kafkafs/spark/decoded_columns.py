"""Keys and values decoded by their schemas → Arrow columns, for the option `decode`: the texts that `decoded.jsonl`
shows, the ids of the schemas, and what could not be decoded."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from kafkafs.decoding import TextDecoder, find_guids, own_texts
from kafkafs.schemas.sources import SCHEMAS_LOG, LogSchemas, SchemaSource, schemas_at
from kafkafs.spark.log_dirs import open_log_dirs
from kafkafs.spark.option_values import InvalidOption
from storage.errors import UnknownTopicOrPartition
from storage.format.block import RecordColumn
from storage.format.messages import GROUPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kafkafs.schemas.schema import SchemaLookup
    from storage.format.block import RecordBlock
    from storage.types import TopicPartition

    Int64s = NDArray[np.int64]

Side = Literal["key", "value"]
SIDES: Final[tuple[Side, Side]] = ("key", "value")

# A record's text may be thousands of times larger than the record: few are decoded at once until their size is known.
_FIRST_STEP: Final = 16
_MOST_STEP: Final = 4096
_LARGE_BYTES: Final = 4 << 20


class Texts(NamedTuple):
    """What was made of one side of a block: texts one after the other and where each ends, which rows are not null, ids
    (-1: none), errors by row."""

    data: NDArray[np.uint8]
    ends: Int64s
    valid: NDArray[np.bool_]
    ids: Int64s
    errors: dict[int, str]


class Decoding:
    """Decodes the block that is being added, once for all its columns. For one task; not thread-safe.

    `step`: how many records may be decoded at once.
    """

    def __init__(self, schemas: SchemaLookup) -> None:
        self.step = _FIRST_STEP
        self._schemas = schemas
        self._decoders: dict[str, TextDecoder] = {}
        self._texts: dict[Side, Texts] = {}

    def take(self, tp: TopicPartition, block: RecordBlock) -> None:
        """Decodes a block."""
        if tp.topic in GROUPS:
            sides = zip(SIDES, own_texts(tp.topic, block), (block.key_length, block.value_length), strict=True)
            self._texts = {
                side: Texts(data, ends, lengths >= 0, ids, errors)
                for side, (data, ends, ids, errors), lengths in sides
            }
        else:
            guids = dict(zip(SIDES, find_guids(block), strict=True))
            self._texts = {side: self._decoded(tp, block, side, guids[side]) for side in SIDES}
        size = sum(len(texts.data) for texts in self._texts.values())
        self.step = min(2 * self.step, _MOST_STEP) if size < _LARGE_BYTES else max(1, self.step // 8)

    def texts(self, side: Side) -> Texts:
        """Of the block that was taken last."""
        return self._texts[side]

    def _decoded(self, tp: TopicPartition, block: RecordBlock, side: Side, guids: Mapping[int, bytes]) -> Texts:
        subject = f"{tp.topic}-{side}"
        decoder = self._decoders.get(subject)
        if decoder is None:
            decoder = self._decoders[subject] = TextDecoder(self._schemas, subject)
        first = RecordColumn.KEY_START if side == "key" else RecordColumn.VALUE_START
        starts, lengths = block.columns[first], block.columns[first + 1]
        data, ends, ids, errors = decoder.decode(block.buffer, starts, lengths, guids)
        return Texts(data, ends, lengths >= 0, ids, errors)


class TextColumn:
    """`key_json` or `value_json`."""

    def __init__(self, decoding: Decoding, side: Side) -> None:
        self.size_bytes = 0
        self._decoding = decoding
        self._side = side
        self._parts: list[pa.Array] = []

    def add(self, tp: TopicPartition, block: RecordBlock, row: int) -> None:
        texts = self._decoding.texts(self._side)
        offsets = np.zeros(len(texts.ends) + 1, np.int32)
        offsets[1:] = texts.ends
        validity = None if texts.valid.all() else pa.py_buffer(np.packbits(texts.valid, bitorder="little"))
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(texts.data)]
        self._parts.append(pa.Array.from_buffers(pa.string(), len(texts.ends), buffers))
        self.size_bytes += len(texts.data)

    def finish(self, rows: int) -> pa.Array:
        parts, self._parts, self.size_bytes = self._parts, [], 0
        return pa.concat_arrays(parts) if parts else pa.array([], pa.string())


class IdColumn:
    """`key_schema_id` or `value_schema_id`."""

    def __init__(self, decoding: Decoding, side: Side, capacity: int) -> None:
        self.size_bytes = 0
        self._decoding = decoding
        self._side = side
        self._ids = np.empty(capacity, np.int64)

    def add(self, tp: TopicPartition, block: RecordBlock, row: int) -> None:
        self._ids[row : row + len(block)] = self._decoding.texts(self._side).ids

    def finish(self, rows: int) -> pa.Array:
        ids = self._ids[:rows]
        return pa.array(ids, pa.int64(), mask=ids < 0)


class ErrorColumn:
    """`decode_error`."""

    def __init__(self, decoding: Decoding) -> None:
        self.size_bytes = 0
        self._decoding = decoding
        self._errors: list[str | None] = []

    def add(self, tp: TopicPartition, block: RecordBlock, row: int) -> None:
        errors: list[str | None] = [None] * len(block)
        for side in SIDES:
            for at, error in self._decoding.texts(side).errors.items():
                before = errors[at]
                errors[at] = f"{side}: {error}" if before is None else f"{before}; {side}: {error}"
        self._errors += errors
        self.size_bytes += sum(len(error) for error in errors if error is not None)

    def finish(self, rows: int) -> pa.Array:
        errors, self._errors, self.size_bytes = self._errors, [], 0
        return pa.array(errors, pa.string())


@lru_cache(maxsize=4)
def schemas_for(paths: tuple[Path, ...], schemas: Path | None) -> SchemaSource:
    """The schemas for log directories that are read as one: those at `schemas`, or in the topic `_schemas` of one of
    the directories. The process keeps what it has read. InvalidOption where there are none; StorageError, OSError."""
    source: SchemaSource | None = None
    if schemas is not None:
        source = schemas_at(schemas)
    else:
        log_dirs = open_log_dirs(paths)
        try:
            source = LogSchemas(log_dirs.directories[log_dirs.place(SCHEMAS_LOG)])
        except UnknownTopicOrPartition:
            source = None
    if source is None or not source.registry():
        where = schemas or ", ".join(map(str, paths))
        raise InvalidOption(
            f"there are no schemas in {where}: decode needs the topic _schemas there, or the option schemas with "
            "another log directory that has it, or with a directory of files like 12.avsc"
        )
    return source
