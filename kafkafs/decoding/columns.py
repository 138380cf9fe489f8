"""Keys or values in columns to JSON texts in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkafs.decoding import avro_kernel
from kafkafs.decoding.avro_program import FAULT_TEXTS, POWERS, DatumFault
from kafkafs.decoding.guid_headers import GUID_HEADER_SIZE, guid_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from kafkafs.decoding.avro_program import Programs
    from kafkafs.decoding.avro_resolution import ValueColumn
    from kafkafs.decoding.rooms import Room
    from kafkafs.schemas.registry import SchemaLookup

    Int64s = NDArray[np.int64]
from kafkafs.decoding.schema_plans import SchemaPlans

# Magic byte and schema id.
HEADER_SIZE: Final = 5


class Decoded(NamedTuple):
    """What `ColumnDecoder.decode` made of rows: texts[0] their starts in the room, texts[1] their lengths, -1 where a
    row is not decoded; its schema's id, -1 where it is not in the wire format; errors by row, counted from 0.
    `in_order`: every row has a text, and they lie one after another."""

    rows: int
    texts: Int64s
    ids: Int64s
    errors: dict[int, str]
    in_order: bool = False


class ColumnDecoder:
    """Decodes the keys or the values of one topic. Threads can share it, each with a Room of its own."""

    def __init__(
        self, schemas: SchemaLookup, subject: str, programs: Programs, reader: ValueColumn | None = None
    ) -> None:
        """With `reader` the texts are in the shape of its columns (`avro_resolution`)."""
        self._programs = programs
        self._plans = SchemaPlans(schemas, subject, programs, reader)

    def decode(
        self,
        buffer: Buffer,
        starts: Int64s,
        lengths: Int64s,
        room: Room,
        position: int = 0,
        guids: Mapping[int, bytes] | None = None,
    ) -> tuple[Decoded, int]:
        """Decodes the first rows, as many as fit into `room` from `position` on; and the position after their texts.

        `guids`: the header of each row that has one (`framing.find_guids`); its bytes then begin with the data.
        Raises ValueError if a row points outside `buffer`.
        """
        starts, lengths = np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
        count = len(starts)
        ids = np.empty(count, np.int64)
        if (row := avro_kernel.find_ids(buffer, starts, lengths, ids)) < count:
            raise ValueError(f"record {row} of the block points outside its buffer")
        guids = guids or {}
        if count and not guids and ids.max() < 0:
            return Decoded(count, np.full((2, count), -1, np.int64), ids, {}), position
        columns = np.empty((3, count), np.int64)
        np.add(starts, HEADER_SIZE, out=columns[0])
        np.subtract(lengths, HEADER_SIZE, out=columns[1])
        others = self._find_entries(ids, columns[2])
        unknown = self._find_guids(guids, starts, lengths, ids, columns)
        others = others or bool(guids)
        results = np.empty((5, count), np.int64)
        rows, position = avro_kernel.run(
            *self._programs.arrays, POWERS, buffer, columns, 0, count, room.texts, position, results,
            room.stack, room.scratch,
        )  # fmt: skip
        texts, errors = results[:2], {row: error for row, error in unknown.items() if row < rows}
        for found in np.flatnonzero(results[2, :rows]).tolist():
            fault, at, instruction = results[2:, found].tolist()
            if fault == DatumFault.OUTSIDE:
                raise ValueError(f"record {found} of the block points outside its buffer")
            errors[found] = self._fault(int(ids[found]), fault, at - int(starts[found]), instruction)
        if others:
            rows, position = self._of_protobuf(buffer, columns, ids, guids, room, position, texts, rows)
            data = memoryview(buffer).cast("B")
            left = (ids[:rows] >= 0) & (columns[2, :rows] < 0) & (texts[1, :rows] < 0)
            for found in np.flatnonzero(left).tolist():
                start, length = columns[:2, found].tolist()
                text = self._row(int(ids[found]), data[start : start + length], guids.get(found))
                if isinstance(text, str):
                    errors[found] = text
                    continue
                end = room.append(position, text)
                if end < 0:
                    rows = found
                    break
                texts[:, found] = position, end - position
                position = end
            errors = {row: error for row, error in errors.items() if row < rows}
        in_order = rows > 0 and int(texts[1, :rows].min()) >= 0
        if in_order and others:
            in_order = bool((texts[0, 1:rows] == texts[:, : rows - 1].sum(0)).all())
        return Decoded(rows, texts, ids, errors, in_order), position

    def _of_protobuf(
        self,
        buffer: Buffer,
        columns: Int64s,
        ids: Int64s,
        guids: Mapping[int, bytes],
        room: Room,
        position: int,
        texts: Int64s,
        rows: int,
    ) -> tuple[int, int]:
        """Puts what the Protobuf kernel makes of the first rows into `texts`; how many of them fit, and the position
        after their texts."""
        left = (ids[:rows] >= 0) & (columns[2, :rows] < 0)
        left[[row for row in guids if row < rows]] = False  # their message indexes are elsewhere
        there = ids[:rows][left]
        for one in [int(there[0])] if len(there) and (there == there[0]).all() else np.unique(there).tolist():
            decoder = self._plans.plan(one).rows
            if decoder is None:
                continue
            chosen = np.flatnonzero(left[:rows] & (ids[:rows] == one))
            done, position = decoder.decode_rows(buffer, columns, chosen, room.texts, position, texts)
            if done < len(chosen):
                rows = int(chosen[done])
        return rows, position

    def _find_entries(self, ids: Int64s, entries: Int64s) -> bool:
        """Puts each row's first instruction into `entries`, -1 if there is none; whether rows with an id are among
        those."""
        if not len(ids):
            return False
        if ids.min() == ids.max():
            entries[:] = entry = -1 if ids[0] < 0 else self._plans.plan(int(ids[0])).entry
            return entry < 0 <= int(ids[0])
        known, inverse = np.unique(ids, return_inverse=True)
        plans = [-1 if one < 0 else self._plans.plan(one).entry for one in known.tolist()]
        entries[:] = np.array(plans, np.int64)[inverse]
        return any(entry < 0 <= one for entry, one in zip(plans, known.tolist(), strict=True))

    def _find_guids(
        self, guids: Mapping[int, bytes], starts: Int64s, lengths: Int64s, ids: Int64s, columns: Int64s
    ) -> dict[int, str]:
        """Puts ids, places and instructions of the rows with a GUID in place of those that their bytes seem to have;
        the errors of rows whose GUID is unknown."""
        errors = {}
        for row, header in guids.items():
            if row >= len(ids) or lengths[row] < 0:
                continue
            plan = self._plans.plan(guid_in(header))
            ids[row] = plan.schema_id
            columns[:, row] = starts[row], lengths[row], plan.entry
            if plan.schema_id < 0:
                errors[row] = plan.error
        return errors

    def _row(self, schema_id: int, data: memoryview, header: bytes | None) -> bytes | str:
        """The text of a row that has no program, or why there is none."""
        from kafkafs.decoding.protobuf import CannotDecode

        plan = self._plans.plan(schema_id if header is None else guid_in(header))
        if plan.rows is None:
            return plan.error
        # Behind a GUID there are the message indexes, which otherwise are before the message.
        before = b"" if header is None else header[GUID_HEADER_SIZE:] or b"\0"
        try:
            return plan.rows.decode(before + bytes(data))
        except CannotDecode as error:
            return f"schema {schema_id} does not fit the data: {error}"

    def _fault(self, schema_id: int, fault: int, at: int, instruction: int) -> str:
        path = self._programs.path(instruction)
        if fault == DatumFault.NOT_RESOLVED:
            return f"schema {schema_id} does not resolve to that of the columns: {path}"
        field = f" in field {path}" if path else ""
        return f"schema {schema_id} does not fit the data: {FAULT_TEXTS[DatumFault(fault)]}{field}, at byte {at}"
