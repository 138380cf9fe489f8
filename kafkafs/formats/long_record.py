"""One record's rendered bytes, part by part: a large key or value is rendered in chunks, and many headers are rendered
some at a time, wherever a reader is, so that no memory of their rendered size is needed. The bytes are those that the
format renders."""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkafs.formats import render_kernel
from kafkafs.formats.program import JSON_VALUE, Code, Operation, Program
from storage.format.block import RecordColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkafs.formats.format import Format
    from storage.format.block import RecordBlock

    Int64s = NDArray[np.int64]

# Bytes of a key, a value or headers that are rendered at once; a multiple of 3, so that base64 can be put together.
_CHUNK_BYTES: Final = 48 << 10
_LONGEST_ESCAPE: Final = 6
_NO_SIZES: Final = np.empty(0, np.int64)
_NO_OUT: Final = memoryview(bytearray())
_STRING: Final = Program.of([JSON_VALUE])


class _Part(NamedTuple):
    """Bytes of `source`, as they are, as a part of a JSON string, or in base64; or the headers from `start` on, as
    many as `headers` says, which `form` renders to `length` bytes."""

    source: memoryview
    start: int
    length: int
    form: str | Operation = "plain"
    headers: int = 0


class LongRecord:
    """Valid as long as the block that it is from. Not thread-safe."""

    def __init__(self, form: Format, record: RecordBlock) -> None:
        """`record`: a block of one record. ValueError if it points outside its buffer."""
        self._record = record
        self._prepared = form.prepared(record)
        self._types = np.ascontiguousarray(record.table.timestamp_type)
        self._buffer = record.buffer
        self._parts = [part for part in self._all_parts() if part.length]
        self._room = memoryview(bytearray(_LONGEST_ESCAPE * (_CHUNK_BYTES + 3) + 256))

    def parts(self) -> Iterator[memoryview]:
        """All bytes in order; each part is valid until the next."""
        return map(self._rendered, self._parts)

    def render(self, out: memoryview, skip: int) -> None:
        """Fills `out` with the bytes from `skip` on. ValueError if there are fewer."""
        if not 0 <= skip <= self.size - len(out):
            raise ValueError(f"bytes {skip} to {skip + len(out)} of {self.size}")
        at, row = 0, int(self._ends.searchsorted(skip, side="right"))
        skip -= int(self._ends[row - 1]) if row else 0
        while at < len(out):
            data = self._rendered(self._parts[row])[skip : skip + len(out) - at]
            out[at : at + len(data)] = data
            at += len(data)
            skip, row = 0, row + 1

    @property
    def size(self) -> int:
        """Of all parts in bytes."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @cached_property
    def _ends(self) -> Int64s:
        """Where each part ends."""
        sizes = np.array([part.length for part in self._parts], np.int64)
        based = np.array([part.form == "base64" for part in self._parts])
        sizes[based] = (sizes[based] + 2) // 3 * 4
        strings = np.flatnonzero([part.form == "string" for part in self._parts])
        if len(strings):
            starts = np.array([self._parts[row].start for row in strings], np.int64)
            measured = np.empty(len(strings), np.int64)
            self._run(_STRING, _spans(starts, sizes[strings]), _NO_OUT, measured)
            sizes[strings] = measured - 2
        return np.cumsum(sizes)

    def _rendered(self, part: _Part) -> memoryview:
        data = part.source[part.start : part.start + part.length]
        if part.form == "plain":
            return data
        if part.form == "base64":
            return memoryview(binascii.b2a_base64(data, newline=False))
        if isinstance(part.form, Operation):
            return self._whole(part.form, _header_cells(part.start, part.headers), part.length)
        end = self._run(_STRING, _spans(np.array([part.start]), np.array([part.length])), self._room, _NO_SIZES)
        return self._room[1 : end - 1]  # without quotes

    def _run(self, program: Program, columns: Int64s, out: memoryview, sizes: Int64s) -> int:
        rows = columns.shape[1]
        done, end, outside = render_kernel.run(
            program.steps, program.literals, self._buffer, columns, self._types, 0, rows, out, 0, sizes,
            self._prepared.extra,
        )  # fmt: skip
        if outside or done < rows:
            raise ValueError("the record points outside its buffer")
        return end

    def _all_parts(self) -> Iterator[_Part]:
        steps, columns = self._prepared.program.steps.tolist(), self._prepared.columns
        literals = memoryview(self._prepared.program.literals)
        before = 0
        for end, number, column in zip(steps[2::3], steps[3::3], steps[4::3], strict=True):
            yield _Part(literals, before, end - before)
            before, code = end, Code(number)
            if code is Code.NOTHING:
                continue
            source, (start, length) = self._buffer, columns[column : column + 2, 0].tolist()
            if code in (Code.EXTRA, Code.EXTRA_OR_JSON):
                source = self._prepared.extra
                if code is Code.EXTRA_OR_JSON and length < 0:
                    source, (start, length) = self._buffer, columns[column + 2 : column + 4, 0].tolist()
                    code = Code.JSON
            if code is Code.JSON:
                _check(source, start, length)
                yield from _json(source, start, length)
            elif code in (Code.TEXT, Code.EXTRA, Code.EXTRA_OR_JSON):
                _check(source, start, length)
                yield _Part(source, start, max(length, 0))
            elif code in (Code.HEADERS, Code.JSON_HEADERS):
                yield from self._headers(Operation(code, column), start, length)
            else:
                operation, cells = Operation(code, column), self._prepared.columns
                whole = self._whole(operation, cells, self._size(operation, cells))
                yield _Part(whole, 0, len(whole))

    def _headers(self, form: Operation, start: int, count: int) -> Iterator[_Part]:
        """Headers that begin within a chunk together, a larger one by itself."""
        if count <= 0:
            return
        spans = self._record.headers_spans()
        ends = spans[2] + np.maximum(spans[3], 0)
        row = 0
        while row < count:
            if row:
                yield _plain(b",")
            last = int(ends.searchsorted(start + _CHUNK_BYTES, side="right"))
            if last > row:
                size = self._size(form, _header_cells(start, last - row))
                yield _Part(self._buffer, start, size, form, last - row)
            else:
                last = row + 1
                yield from self._header(form.code is Code.JSON_HEADERS, *spans[:, row].tolist())
            row, start = last, int(ends[last - 1])

    def _header(self, json: bool, name: int, name_length: int, value: int, length: int) -> Iterator[_Part]:
        if json:
            yield _plain(b"[")
            yield from _json(self._buffer, name, name_length)
            yield _plain(b",")
            yield from _json(self._buffer, value, length)
            yield _plain(b"]")
        else:
            yield _Part(self._buffer, name, name_length)
            yield _plain(b"=NULL" if length < 0 else b"=")
            yield _Part(self._buffer, value, max(length, 0))

    def _size(self, operation: Operation, cells: Int64s) -> int:
        sizes = np.empty(1, np.int64)
        self._run(Program.of([operation]), cells, _NO_OUT, sizes)
        return int(sizes[0])

    def _whole(self, operation: Operation, cells: Int64s, size: int) -> memoryview:
        out = memoryview(bytearray(size))
        self._run(Program.of([operation]), cells, out, _NO_SIZES)
        return out


def _header_cells(start: int, count: int) -> Int64s:
    """Columns of one record with these headers."""
    cells = np.zeros((len(RecordColumn), 1), np.int64)
    cells[RecordColumn.HEADERS_START], cells[RecordColumn.HEADERS_COUNT] = start, count
    return cells


def _check(source: memoryview, start: int, length: int) -> None:
    if length > 0 and not 0 <= start <= len(source) - length:
        raise ValueError("the record points outside its buffer")


def _spans(starts: Int64s, lengths: Int64s) -> Int64s:
    """Columns of records with these values."""
    columns = np.zeros((len(RecordColumn), len(starts)), np.int64)
    columns[RecordColumn.VALUE_START], columns[RecordColumn.VALUE_LENGTH] = starts, lengths
    return columns


def _json(source: memoryview, start: int, length: int) -> Iterator[_Part]:
    """The text that the kernel's _json makes: null, a string, or a base64 object where it is not UTF-8."""
    if length < 0:
        yield _plain(b"null")
        return
    stop = start + length
    cuts = [start]
    while stop - cuts[-1] > _CHUNK_BYTES:
        cuts.append(_sequence_start(source, cuts[-1] + _CHUNK_BYTES))
    cuts.append(stop)
    spans = list(pairwise(cuts))
    if all(_is_utf8(source[first:last]) for first, last in spans):
        yield _plain(b'"')
        for first, last in spans:
            yield _Part(source, first, last - first, "string")
        yield _plain(b'"')
        return
    yield _plain(b'{"base64":"')
    for first in range(start, stop, _CHUNK_BYTES):
        yield _Part(source, first, min(_CHUNK_BYTES, stop - first), "base64")
    yield _plain(b'"}')


def _plain(data: bytes) -> _Part:
    return _Part(memoryview(data), 0, len(data))


def _sequence_start(source: memoryview, at: int) -> int:
    """Where the UTF-8 sequence begins that holds the byte at `at`; `at` if no sequence does."""
    return next((first for first in range(at, at - 4, -1) if source[first] & 0xC0 != 0x80), at)


def _is_utf8(data: memoryview) -> bool:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
