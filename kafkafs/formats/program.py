"""A format as a program for the kernel: operations, each after a literal; and the Format that runs it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkafs.formats import render_kernel
from kafkafs.formats.format import Format
from storage.format.columns import RecordColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.block import RecordBlock

_NO_SIZES = np.empty(0, np.int64)
_NO_OUT = memoryview(bytearray())
_NO_EXTRA = memoryview(b"")
# The most that an operation writes without checking for space: a number, a name, brackets.
_SPARE = 64


class Code(IntEnum):
    """The output of an operation; the kernel has the same numbers. Null writes no bytes unless stated otherwise."""

    NOTHING = 0
    NUMBER = 1  # a column's number in decimal
    TIMESTAMP_TYPE = 2  # as Kafka's consumer names it
    HEADERS = 3  # name=value,name=value; a null value is NULL
    JSON_HEADERS = 4  # ["name","value"],…
    TEXT = 5  # bytes as they are
    JSON = 6  # a string, {"base64":"…"} or null
    LENGTH = 7  # of bytes, in decimal; null is -1
    BINARY_LENGTH = 8  # 32-bit big-endian; null is -1
    # For columns that come after a block's own:
    EXTRA = 9  # start and length of bytes in a second buffer
    EXTRA_OR_JSON = 10  # the same; if the length is below 0, the output of JSON for the next two columns
    NUMBER_OR_NULL = 11  # a number in decimal; null if it is below 0


class Operation(NamedTuple):
    """A code and the first column that it reads."""

    code: Code
    column: int  # a RecordColumn, or a column after these


OFFSET = Operation(Code.NUMBER, RecordColumn.OFFSET)
TIMESTAMP = Operation(Code.NUMBER, RecordColumn.TIMESTAMP)
TIMESTAMP_TYPE = Operation(Code.TIMESTAMP_TYPE, RecordColumn.TIMESTAMP)
KEY = Operation(Code.TEXT, RecordColumn.KEY_START)
VALUE = Operation(Code.TEXT, RecordColumn.VALUE_START)
KEY_LENGTH = Operation(Code.LENGTH, RecordColumn.KEY_START)
VALUE_LENGTH = Operation(Code.LENGTH, RecordColumn.VALUE_START)
VALUE_LENGTH_BINARY = Operation(Code.BINARY_LENGTH, RecordColumn.VALUE_START)
HEADERS = Operation(Code.HEADERS, RecordColumn.HEADERS_START)
JSON_KEY = Operation(Code.JSON, RecordColumn.KEY_START)
JSON_VALUE = Operation(Code.JSON, RecordColumn.VALUE_START)
JSON_HEADERS = Operation(Code.JSON_HEADERS, RecordColumn.HEADERS_START)
_NOTHING = Operation(Code.NOTHING, RecordColumn.OFFSET)


class Program(NamedTuple):
    """A format's operations as the kernel reads them. `steps`: bytes to reserve, number of operations, and for each
    operation the end of the literal before it, its code and its column. Immutable."""

    steps: NDArray[np.int64]
    literals: bytes

    @classmethod
    def of(cls, parts: Iterable[bytes | Operation]) -> Program:
        """A program that writes literals and operations in the order given."""
        steps: list[int] = []
        literals = bytearray()
        for part in [*parts, _NOTHING]:
            if isinstance(part, Operation):
                steps += (len(literals), *part)
            else:
                literals += part
        operations = len(steps) // 3
        reserve = len(literals) + _SPARE * operations
        # The kernel takes the address of the first byte, so there must be one.
        return cls(np.array([reserve, operations, *steps], np.int64), bytes(literals) or b"\0")


class ProgramFormat(Format):
    """The Format that runs a program."""

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self._program = program

    def measure(self, block: RecordBlock, sizes: NDArray[np.int64]) -> None:
        """ValueError if a column points outside its buffer, or `sizes` is too short."""
        if len(sizes) < len(block):
            raise ValueError(f"{len(sizes)} sizes for {len(block)} records")
        if len(block):
            self._run(block, 0, _NO_OUT, 0, sizes)

    def render_rows(
        self,
        block: RecordBlock,
        out: memoryview,
        out_start: int = 0,
        first_row: int = 0,
        sizes: NDArray[np.int64] | None = None,
    ) -> tuple[int, int]:
        """ValueError if a column points outside its buffer, or `out_start` outside `out`."""
        if not 0 <= out_start <= len(out):
            raise ValueError(f"position {out_start} in {len(out)} bytes")
        return self._run(block, first_row, out, out_start, _NO_SIZES if sizes is None else sizes)

    def _run(
        self, block: RecordBlock, row: int, out: memoryview, position: int, sizes: NDArray[np.int64]
    ) -> tuple[int, int]:
        program = self._program
        row, position, outside = render_kernel.run(
            program.steps,
            program.literals,
            block.buffer,
            block.columns,
            block.table.timestamp_type,
            row,
            len(block),
            out,
            position,
            sizes,
            _NO_EXTRA,
        )
        if outside:
            raise ValueError(f"record {row} of the block points outside its buffer")
        return row, position
