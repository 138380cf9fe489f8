"""Decoding columns of keys or values to columns of JSON texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkafs.decoding import avro_kernel
from kafkafs.decoding.avro_program import FAULT_TEXTS, POWERS, DatumFault
from kafkafs.decoding.glue_framing import GLUE_HEADER_SIZE, find_glue, inflate
from kafkafs.decoding.guid_headers import GUID_HEADER_SIZE, guid_in
from kafkafs.decoding.schema_plans import SchemaPlan, SchemaPlans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from kafkafs.decoding.avro_program import Programs
    from kafkafs.decoding.avro_resolution import ValueColumn
    from kafkafs.decoding.rooms import Room
    from kafkafs.schemas.schema import SchemaLookup

    Int64s = NDArray[np.int64]

# Magic byte and schema id.
HEADER_SIZE: Final = 5
# Numbers in place of ids: rows that are not decoded; rows whose schema is in a file that the user names; below these,
# UUIDs and GUIDs.
_NO_SCHEMA: Final = -1
_OF_FILE: Final = -2


class Decoded(NamedTuple):
    """Decoded rows. texts[0]: the starts of their texts in the room; texts[1]: the lengths, -1 for a row that is not
    decoded; ids: schema ids, -1 for a row that is not in the wire format; errors by row, counted from 0. `in_order`:
    every row has a text, and the texts lie one after another."""

    rows: int
    texts: Int64s
    ids: Int64s
    errors: dict[int, str]
    in_order: bool = False


class ColumnDecoder:
    """Decodes the keys or the values of one topic. Threads can share it, each with its own Room."""

    def __init__(
        self, schemas: SchemaLookup, subject: str, programs: Programs, reader: ValueColumn | None = None
    ) -> None:
        """With `reader`, the texts have the shape of its columns (`avro_resolution`)."""
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
        """Decode the first rows, as many as fit into `room` from `position` on; return them and the position after
        them.

        `guids`: by row, the headers that `guid_headers.find_guids` found; the bytes of such a row begin with the data.
        Raises ValueError if a row points outside `buffer`.
        """
        starts, lengths = np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
        numbers = np.empty(len(starts), np.int64)
        if (row := avro_kernel.find_ids(buffer, starts, lengths, numbers)) < len(starts):
            raise ValueError(f"record {row} of the block points outside its buffer")
        guids = guids or {}
        plans, headers, compressed = self._find_plans(buffer, starts, lengths, numbers, guids)
        if not plans:
            return Decoded(len(starts), np.full((2, len(starts)), -1, np.int64), numbers, {}), position
        columns = np.empty((3, len(starts)), np.int64)
        np.add(starts, headers, out=columns[0])
        np.subtract(lengths, headers, out=columns[1])
        errors: dict[int, str] = {}
        if len(compressed):
            inflated = inflate(buffer, columns[0], columns[1], compressed)
            buffer, errors, numbers = inflated.buffer, inflated.errors, numbers[: len(inflated.starts)]
            columns = np.array((inflated.starts, inflated.lengths, inflated.starts))
            numbers[list(errors)] = _NO_SCHEMA
        others = _find_entries(numbers, plans, columns[2]) or bool(guids)
        count = columns.shape[1]
        results = np.empty((5, count), np.int64)
        rows, position = avro_kernel.run(
            *self._programs.arrays, POWERS, buffer, columns, 0, count, room.texts, position, results,
            room.stack, room.scratch,
        )  # fmt: skip
        texts, data = results[:2], memoryview(buffer).cast("B")
        for failed in np.flatnonzero(results[2, :rows]).tolist():
            fault, at, instruction = results[2:, failed].tolist()
            if fault == DatumFault.OUTSIDE:
                raise ValueError(f"record {failed} of the block points outside its buffer")
            name, at = plans[int(numbers[failed])].name, at - int(columns[0, failed]) + int(headers[failed])
            errors[failed] = self._fault(name, fault, at, instruction)
        if others:
            rows, position = _of_protobuf(buffer, columns, numbers, plans, guids, room, position, texts, rows)
            left = (numbers[:rows] != _NO_SCHEMA) & (columns[2, :rows] < 0) & (texts[1, :rows] < 0)
            for row in np.flatnonzero(left).tolist():
                start, length = columns[:2, row].tolist()
                text = _row(plans[int(numbers[row])], data[start : start + length], guids.get(row))
                if isinstance(text, str):
                    errors[row] = text
                    continue
                end = room.append(position, text)
                if end < 0:
                    rows = row
                    break
                texts[:, row] = position, end - position
                position = end
            if _OF_FILE in plans and plans[_OF_FILE].rows is not None:
                empty = (numbers[:rows] == _OF_FILE) & (texts[1, :rows] == 2) & (columns[1, :rows] > 0)
                for row in np.flatnonzero(empty).tolist():
                    texts[:, row] = -1
                    errors[row] = f"{plans[_OF_FILE].name} does not fit the data: they have none of its fields"
        errors = {row: error for row, error in errors.items() if row < rows}
        in_order = rows > 0 and int(texts[1, :rows].min()) >= 0
        if in_order and others:
            in_order = bool((texts[0, 1:rows] == texts[:, : rows - 1].sum(0)).all())
        for number, plan in plans.items():
            if number < _NO_SCHEMA:
                numbers[numbers == number] = plan.schema_id
        return Decoded(rows, texts, numbers, errors, in_order), position

    def _find_plans(
        self, buffer: Buffer, starts: Int64s, lengths: Int64s, numbers: Int64s, guids: Mapping[int, bytes]
    ) -> tuple[dict[int, SchemaPlan], Int64s, Int64s]:
        """Return the plans by number, the number of bytes before each row's data, and the rows with compressed data.
        Puts numbers into `numbers` for rows whose schemas have no id in the data."""
        file, distinct, none = self._plans.plan(None), _distinct(numbers), np.empty(0, np.int64)
        if not guids and len(distinct) == 1 and distinct[0] >= 0:  # the usual case, without passes over the rows
            plan = self._plans.plan(distinct[0])
            if plan.name or not file.name:
                return {distinct[0]: plan}, np.full(len(numbers), HEADER_SIZE), none
        has_guid = np.zeros(len(numbers), np.bool_)
        has_guid[[row for row in guids if row < len(numbers)]] = True
        numbers[has_guid] = _NO_SCHEMA  # the bytes of these rows are data alone
        framing = find_glue(buffer, starts, lengths, np.flatnonzero((numbers == _NO_SCHEMA) & ~has_guid))
        if not guids and distinct == [_NO_SCHEMA] and not len(framing.rows) and not file.name:
            return {}, none, none
        numbers[framing.rows] = _OF_FILE - 1 - framing.which
        plans = {}
        for number in _distinct(numbers):
            if number != _NO_SCHEMA:
                plans[number] = self._plans.plan(number if number >= 0 else framing.versions[_OF_FILE - 1 - number])
        if file.name:
            unknown = [number for number, plan in plans.items() if not plan.name]
            numbers[np.isin(numbers, [_NO_SCHEMA, *unknown]) & (lengths >= 0) & ~has_guid] = _OF_FILE
            plans[_OF_FILE] = file
        headers = np.where(numbers >= 0, HEADER_SIZE, 0)
        headers[numbers < _OF_FILE] = GLUE_HEADER_SIZE
        compressed = framing.compressed[numbers[framing.compressed] < _OF_FILE]
        by_guid: dict[bytes, int] = {}
        for row, header in guids.items():
            if row < len(numbers) and lengths[row] >= 0:
                number = by_guid.setdefault(guid_in(header), _OF_FILE - 1 - len(framing.versions) - len(by_guid))
                numbers[row], plans[number] = number, self._plans.plan(guid_in(header))
        return plans, headers, compressed

    def _fault(self, name: str, fault: int, at: int, instruction: int) -> str:
        path = self._programs.path(instruction)
        if fault == DatumFault.NOT_RESOLVED:
            return f"{name} does not resolve to the schema of the columns: {path}"
        field = f" in field {path}" if path else ""
        return f"{name} does not fit the data: {FAULT_TEXTS[DatumFault(fault)]}{field}, at byte {at}"


def _distinct(numbers: Int64s) -> list[int]:
    if len(numbers) and numbers.min() == numbers.max():
        return [int(numbers[0])]
    distinct: list[int] = np.unique(numbers).tolist()
    return distinct


def _find_entries(numbers: Int64s, plans: Mapping[int, SchemaPlan], entries: Int64s) -> bool:
    """Put each row's first instruction into `entries`, -1 for a row without a program. Return whether a row with a
    schema lacks a program."""
    distinct = _distinct(numbers)
    firsts = [-1 if number == _NO_SCHEMA else plans[number].entry for number in distinct]
    entries[:] = firsts[0] if len(distinct) == 1 else np.array(firsts, np.int64)[np.searchsorted(distinct, numbers)]
    return any(first < 0 and number != _NO_SCHEMA for first, number in zip(firsts, distinct, strict=True))


def _of_protobuf(
    buffer: Buffer,
    columns: Int64s,
    numbers: Int64s,
    plans: Mapping[int, SchemaPlan],
    guids: Mapping[int, bytes],
    room: Room,
    position: int,
    texts: Int64s,
    rows: int,
) -> tuple[int, int]:
    """Decode the first rows with the Protobuf kernel, and put their places into `texts`. Return how many rows fitted,
    and the position after their texts."""
    left = (numbers[:rows] != _NO_SCHEMA) & (columns[2, :rows] < 0)
    left[[row for row in guids if row < rows]] = False  # their message indexes are in the header
    for number in _distinct(numbers[:rows][left]):
        decoder = plans[number].rows
        if decoder is None:
            continue
        chosen = np.flatnonzero(left[:rows] & (numbers[:rows] == number))
        done, position = decoder.decode_rows(buffer, columns, chosen, room.texts, position, texts)
        if done < len(chosen):
            rows = int(chosen[done])
    return rows, position


def _row(plan: SchemaPlan, data: memoryview, header: bytes | None) -> bytes | str:
    """Return the text of a row that has no program, or the error."""
    from kafkafs.decoding.protobuf import CannotDecode

    if plan.rows is None:
        return plan.error
    # The message indexes come after the GUID; without a GUID they come before the message.
    before = b"" if header is None else header[GUID_HEADER_SIZE:] or b"\0"
    try:
        return plan.rows.decode(before + bytes(data))
    except CannotDecode as error:
        return f"{plan.name} does not fit the data: {error}"
