"""Decoded keys and values (`block_texts`) → Arrow columns, for the option `decode`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafkafs.arrow.block_texts import Decoding, Side

if TYPE_CHECKING:
    from storage.format.block import RecordBlock
    from storage.types import TopicPartition


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
        for side in self._decoding.sides:
            for at, error in self._decoding.texts(side).errors.items():
                before = errors[at]
                errors[at] = f"{side}: {error}" if before is None else f"{before}; {side}: {error}"
        self._errors += errors
        self.size_bytes += sum(len(error) for error in errors if error is not None)

    def finish(self, rows: int) -> pa.Array:
        errors, self._errors, self.size_bytes = self._errors, [], 0
        return pa.array(errors, pa.string())
