"""`decoded.jsonl`: jsonl with keys and values decoded by their schemas, or by Kafka's definitions in its own topics
(kafkafs/CONTRACT.md, "Decoded values")."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkafs.decoding.avro_program import Programs
from kafkafs.decoding.columns import ColumnDecoder, Decoded
from kafkafs.decoding.guid_headers import find_guids
from kafkafs.decoding.own_topic_decoder import OwnTopicDecoder
from kafkafs.decoding.rooms import Room, Rooms
from kafkafs.formats import program, render_kernel
from kafkafs.formats.format import Format
from kafkafs.formats.program import Code, Operation
from storage.format.block import RecordBlock
from storage.format.columns import RecordColumn
from storage.format.messages import GROUPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from kafkafs.schemas.schema import SchemaLookup
    from storage.types import TopicPartition

    Int64s = NDArray[np.int64]
    Texts = tuple[NDArray[np.uint8], Int64s, Int64s, dict[int, str]]

# Columns after a block's own, as EXTRA_OR_JSON reads them: start and length of the text, then of the bytes.
_KEY: Final = len(RecordColumn)
_VALUE: Final = _KEY + 4
_KEY_SCHEMA: Final = _VALUE + 4
_VALUE_SCHEMA: Final = _KEY_SCHEMA + 1
_ERROR: Final = _VALUE_SCHEMA + 1
_COLUMNS: Final = _ERROR + 2

_NO_SIZES: Final = np.empty(0, np.int64)
_NO_OUT: Final = memoryview(bytearray())
ROOM_BYTES: Final = 1 << 20
# The most that a thread keeps of a room that grew.
MOST_KEPT_BYTES: Final = 4 << 20
# As many rows as fit, with their columns and texts, into a processor's second cache: 4096 rows take a fifth longer.
MOST_ROWS: Final = 1536


class DecodedJsonl(Format):
    """The Format for the records of one partition.

    A record renders to the same bytes as long as this object exists: the object keeps the answers of `schemas`, and an
    unknown id stays unknown. For schemas that were registered later, create another object.
    """

    name = "decoded.jsonl"

    def __init__(
        self, tp: TopicPartition, schemas: SchemaLookup, own: OwnTopicDecoder | None = None, before: bytes | None = None
    ) -> None:
        """`own`: a decoder for records of Kafka's own topics, used whatever the topic's name. `before`: the beginning
        of each line, in place of topic and partition."""
        programs = Programs()
        self._own = own or (OwnTopicDecoder(tp.topic) if tp.topic in GROUPS else None)
        self._keys = ColumnDecoder(schemas, f"{tp.topic}-key", programs)
        self._values = ColumnDecoder(schemas, f"{tp.topic}-value", programs)
        self._program = _line(before or f'{{"topic":"{tp.topic}","partition":{tp.partition}'.encode())
        self._rooms = Rooms(ROOM_BYTES, MOST_KEPT_BYTES)

    def measure(self, block: RecordBlock, sizes: Int64s) -> None:
        """ValueError if a column points outside its buffer, or `sizes` is too short."""
        if len(sizes) < len(block):
            raise ValueError(f"{len(sizes)} sizes for {len(block)} records")
        row, step = 0, MOST_ROWS
        room = self._rooms.take()
        while row < len(block):
            columns = self._window(block, row, step, room)
            rows = columns.shape[1]
            self._run(block, columns, room, row, _NO_OUT, 0, sizes[row : row + rows])
            row += rows
            step = min(rows + rows // 4 + 1, MOST_ROWS)
        self._rooms.keep(room)

    def render_rows(
        self,
        block: RecordBlock,
        out: memoryview,
        out_start: int = 0,
        first_row: int = 0,
        sizes: Int64s | None = None,
    ) -> tuple[int, int]:
        """ValueError if a column points outside its buffer, or `out_start` outside `out`."""
        if not 0 <= out_start <= len(out):
            raise ValueError(f"position {out_start} in {len(out)} bytes")
        row, position, step = first_row, out_start, MOST_ROWS
        room = self._rooms.take()
        while row < len(block):
            columns = self._window(block, row, step, room)
            rows = columns.shape[1]
            lines = _NO_SIZES if sizes is None else sizes[row : row + rows]
            done, position = self._run(block, columns, room, row, out, position, lines)
            row += done
            if done < rows:
                break
            step = min(rows + rows // 4 + 1, MOST_ROWS)
        self._rooms.keep(room)
        return row, position

    def _run(
        self, block: RecordBlock, columns: Int64s, room: Room, row: int, out: memoryview, at: int, sizes: Int64s
    ) -> tuple[int, int]:
        """Run the program over the window; return (rows done, position after them)."""
        done, position, outside = render_kernel.run(
            self._program.steps, self._program.literals, block.buffer, columns, block.table.timestamp_type,
            0, columns.shape[1], out, at, sizes, room.texts,
        )  # fmt: skip
        if outside:
            raise ValueError(f"record {row + done} of the block points outside its buffer")
        return done, position

    def _window(self, block: RecordBlock, row: int, step: int, room: Room) -> Int64s:
        """The columns of at least one row and at most `step`, with the texts of keys, values and errors in `room`."""
        while True:
            columns = self._decoded(block, row, step, room)
            if columns is not None:
                return columns
            step = 1
            room.grow()

    def _decoded(self, block: RecordBlock, row: int, step: int, room: Room) -> Int64s | None:
        """The columns of `_window`; None if not even one row fits into the room."""
        original = block.columns[:, row : row + step]
        if self._own is not None:
            keys, values, position = self._own.decode(block.buffer, original, room)
        else:
            keys, values, position = self._by_schemas(block, original, room)
        rows = values.rows
        columns = np.empty((_COLUMNS, rows), np.int64)
        columns[:_KEY] = original[:, :rows]
        columns[_KEY : _KEY + 2] = keys.texts[:, :rows]
        columns[_KEY + 2 : _KEY + 4] = original[RecordColumn.KEY_START : RecordColumn.KEY_START + 2, :rows]
        columns[_VALUE : _VALUE + 2] = values.texts[:, :rows]
        columns[_VALUE + 2 : _VALUE + 4] = original[RecordColumn.VALUE_START : RecordColumn.VALUE_START + 2, :rows]
        columns[_KEY_SCHEMA] = keys.ids[:rows]
        columns[_VALUE_SCHEMA] = values.ids[:rows]
        columns[_ERROR + 1] = 0
        rows = _put_errors(columns, keys, values, room, position)
        return columns[:, :rows] if rows else None

    def _by_schemas(self, block: RecordBlock, columns: Int64s, room: Room) -> tuple[Decoded, Decoded, int]:
        """Keys and values of the first rows, as many as fit, and the position after their texts."""
        key_guids, value_guids = find_guids(RecordBlock(block.buffer, block.table, columns, block.next_row))
        keys, position = self._keys.decode(
            block.buffer, columns[RecordColumn.KEY_START], columns[RecordColumn.KEY_LENGTH], room, 0, key_guids
        )
        columns = columns[:, : keys.rows]
        values, position = self._values.decode(
            block.buffer,
            columns[RecordColumn.VALUE_START],
            columns[RecordColumn.VALUE_LENGTH],
            room,
            position,
            value_guids,
        )
        return keys, values, position


def _put_errors(columns: Int64s, keys: Decoded, values: Decoded, room: Room, position: int) -> int:
    """Put the errors of keys and values into the room; return the number of rows whose errors fit."""
    rows = int(columns.shape[1])
    for row in sorted(keys.errors.keys() | values.errors.keys()):
        if row >= rows:
            break
        named = [f"{name}: {side.errors[row]}" for name, side in (("key", keys), ("value", values))
                 if row in side.errors]  # fmt: skip
        end = room.append(position, b',"error":' + json.dumps("; ".join(named), ensure_ascii=False).encode())
        if end < 0:
            return row
        columns[_ERROR : _ERROR + 2, row] = position, end - position
        position = end
    return rows


def _line(before: bytes) -> program.Program:
    return program.Program.of(
        [
            before + b',"offset":',
            program.OFFSET,
            b',"timestamp":',
            program.TIMESTAMP,
            b',"timestampType":"',
            program.TIMESTAMP_TYPE,
            b'","key":',
            Operation(Code.EXTRA_OR_JSON, _KEY),
            b',"value":',
            Operation(Code.EXTRA_OR_JSON, _VALUE),
            b',"headers":[',
            program.JSON_HEADERS,
            b'],"keySchema":',
            Operation(Code.NUMBER_OR_NULL, _KEY_SCHEMA),
            b',"valueSchema":',
            Operation(Code.NUMBER_OR_NULL, _VALUE_SCHEMA),
            Operation(Code.EXTRA, _ERROR),
            b"}\n",
        ]
    )


class TextDecoder:
    """Decodes one column of a topic to JSON texts, for readers of columns: the keys by subject `<topic>-key`, or the
    values by `<topic>-value`. It keeps the answers of `schemas`, like DecodedJsonl."""

    def __init__(self, schemas: SchemaLookup, subject: str) -> None:
        self._decoder = ColumnDecoder(schemas, subject, Programs())
        self._rooms = Rooms(ROOM_BYTES, MOST_KEPT_BYTES)

    def decode(self, data: Buffer, starts: Int64s, lengths: Int64s, guids: Mapping[int, bytes] | None = None) -> Texts:
        """Return (texts one after another, where each ends, schema ids, errors by row).

        A text is the decoded value, or the bytes as jsonl shows them if they cannot be decoded; null, whose length is
        -1, has an empty text. Schema id -1: not in the wire format. `guids`: by row, the headers that `find_guids`
        found. Raises ValueError if a row points outside `data`.
        """
        count = len(starts)
        ids, ends, errors = np.empty(count, np.int64), np.empty(count, np.int64), dict[int, str]()
        parts: list[NDArray[np.uint8]] = []
        row, total = 0, 0
        room = self._rooms.take()
        while row < count:
            window = slice(row, row + MOST_ROWS)
            headers = {at - row: header for at, header in guids.items() if at >= row} if guids else None
            decoded, end = self._decoder.decode(data, starts[window], lengths[window], room, 0, headers)
            if not decoded.rows:
                room.grow()
                continue
            window = slice(row, row + decoded.rows)
            if decoded.in_order:
                part, part_ends = room.texts[:end].copy(), decoded.texts[:, : decoded.rows].sum(0)
            else:
                part, part_ends = _texts(data, starts[window], lengths[window], decoded, room)
            parts.append(part)
            ends[window] = part_ends + total
            ids[window] = decoded.ids[: decoded.rows]
            errors.update((row + at, error) for at, error in decoded.errors.items())
            total += len(part)
            row += decoded.rows
        self._rooms.keep(room)
        texts = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])
        return texts, ends, ids, errors


def own_texts(topic: str, block: RecordBlock) -> list[Texts]:
    """Decode keys and values of a block of one of Kafka's own topics; the result is `TextDecoder.decode`'s for each.
    KeyError for other topics."""
    decoder, room = OwnTopicDecoder(topic), Room(ROOM_BYTES)
    *sides, _ = decoder.decode(block.buffer, block.columns, room)
    while sides[0].rows < len(block):
        room.grow()
        *sides, _ = decoder.decode(block.buffer, block.columns, room)
    columns = []
    for first, side in zip((RecordColumn.KEY_START, RecordColumn.VALUE_START), sides, strict=True):
        texts, ends = _texts(block.buffer, block.columns[first], block.columns[first + 1], side, room)
        columns.append((texts, ends, side.ids, side.errors))
    return columns


def _texts(
    data: Buffer, starts: Int64s, lengths: Int64s, decoded: Decoded, room: Room
) -> tuple[NDArray[np.uint8], Int64s]:
    """The texts of the decoded rows, copied out of the room, and where they end."""
    rows = decoded.rows
    columns = np.zeros((_VALUE, rows), np.int64)
    columns[_KEY : _KEY + 2] = decoded.texts[:, :rows]
    columns[_KEY + 2], columns[_KEY + 3] = starts, lengths
    steps, literals = _TEXT.steps, _TEXT.literals
    sizes = np.empty(rows, np.int64)
    plain = memoryview(data).cast("B")
    arguments = (steps, literals, plain, columns, _NO_TYPE, 0, rows)
    _, _, outside = render_kernel.run(*arguments, _NO_OUT, 0, sizes, room.texts)
    if outside:
        raise ValueError("a row points outside the data")
    sizes[lengths < 0] = 0
    out = np.empty(int(sizes.sum()), np.uint8)
    ends = np.cumsum(sizes)
    if (lengths >= 0).all():
        render_kernel.run(*arguments, out.data, 0, _NO_SIZES, room.texts)
        return out, ends
    shown = np.flatnonzero(lengths >= 0)
    kept = np.ascontiguousarray(columns[:, shown])
    render_kernel.run(steps, literals, plain, kept, _NO_TYPE, 0, len(shown), out.data, 0, _NO_SIZES, room.texts)
    return out, ends


_TEXT: Final = program.Program.of([Operation(Code.EXTRA_OR_JSON, _KEY)])
_NO_TYPE: Final = np.zeros(1, np.int64)
