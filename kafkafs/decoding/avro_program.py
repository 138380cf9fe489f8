"""Avro schemas compiled to programs for the kernel, and the meanings of the kernel's faults.

An instruction is six numbers: its code, start and length of the literal before it, two arguments, and the instruction
after it. Literals are JSON around the values: brackets, commas, names of fields. The instructions of a record type that
is used once stand where it is used; a type that is used more often, or contains itself, is called.
"""

from __future__ import annotations

import json
import threading
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkafs.decoding.avro_schema import AvroType, BadSchema
from kafkafs.decoding.error_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from numpy.typing import NDArray

WIDTH: Final = 6
# The kernel copies short literals 16 bytes at a time.
_LITERALS_SPARE: Final = 16
# The deepest nesting of records whose instructions stand where they are used; deeper records are called.
_MAX_INLINED: Final = 16
_MOST_STEPS: Final = 1 << 22
MOST_TOGETHER: Final = 1 << 24  # numbers of all programs, and bytes of their literals


class Opcode(IntEnum):
    """The action of an instruction; the kernel has the same numbers. Instructions from 16 on begin by reading a zigzag
    varint."""

    LITERAL = 0
    END = 1  # the data must end here
    BOOLEAN = 2
    FLOAT = 3
    DOUBLE = 4
    FIXED = 5  # size
    DECIMAL_FIXED = 6  # size, scale
    CALL = 7  # instruction
    RETURN = 8
    PUSH = 9  # before the blocks of an array or map
    NEXT = 10  # first instruction of an item, and its BLOCK
    REST = 11  # all bytes that are left, in base64
    JSON = 12  # all bytes that are left, as JSON
    FAIL = 13  # the written type does not resolve; the path of the instruction says why
    INT = 16
    LONG = 17
    STRING = 18
    BYTES = 19
    ENUM = 20  # table of literals, count; a length of -1: a symbol that does not resolve
    UNION = 21  # table of instructions, count
    BLOCK = 22  # the instruction after the last block
    DECIMAL = 23  # -, scale
    DATE = 24
    TIME = 25  # units a second, decimals
    TIMESTAMP = 26  # units a second, decimals * 2 + (1: with Z)


class DatumFault(IntEnum):
    """The reason why a datum cannot be decoded; the kernel has the same numbers."""

    SHORT = -2
    BAD_VARINT = -3
    BAD_LENGTH = -4
    NOT_UTF8 = -5
    BAD_BRANCH = -6
    BAD_SYMBOL = -7
    BAD_BOOLEAN = -8
    NOT_INT = -9
    TOO_DEEP = -10
    EMPTY_ITEMS = -11
    TOO_LONG = -12
    LEFT_OVER = -13
    LARGE_DECIMAL = -14
    NOT_JSON = -15
    OUTSIDE = -16
    NOT_RESOLVED = -17
    NO_SYMBOL = -18


FAULT_TEXTS: Final = {
    DatumFault.SHORT: "the data end too early",
    DatumFault.BAD_VARINT: "a number has more than 64 bits",
    DatumFault.BAD_LENGTH: "a length or count is negative or larger than what is left",
    DatumFault.NOT_UTF8: "a string is not UTF-8",
    DatumFault.BAD_BRANCH: "the union has no such branch",
    DatumFault.BAD_SYMBOL: "the enum has no such symbol",
    DatumFault.BAD_BOOLEAN: "a boolean is neither 0 nor 1",
    DatumFault.NOT_INT: "an int has more than 32 bits",
    DatumFault.TOO_DEEP: "it is nested too deeply",
    DatumFault.EMPTY_ITEMS: "more than 65536 items take no bytes",
    DatumFault.TOO_LONG: "the JSON text would be longer than 1 MiB and 16 times the data, or 128 MiB",
    DatumFault.LEFT_OVER: "bytes are left over after the value",
    DatumFault.LARGE_DECIMAL: "a decimal has more than 8192 bytes",
    DatumFault.NOT_JSON: "it is not valid JSON",
    DatumFault.NO_SYMBOL: "the enum that reads it has neither the symbol nor a default",
}

_SIMPLE: Final = {
    "boolean": Opcode.BOOLEAN,
    "int": Opcode.INT,
    "long": Opcode.LONG,
    "float": Opcode.FLOAT,
    "double": Opcode.DOUBLE,
    "bytes": Opcode.BYTES,
    "string": Opcode.STRING,
}
_UNITS: Final = {"millis": (1000, 3), "micros": (1_000_000, 6), "nanos": (1_000_000_000, 9)}


def _powers() -> NDArray[np.uint64]:
    """Return 10**-292 to 10**324 as pairs of numbers: the upper 128 bits of each, rounded up, the more significant half
    first (Schubfach's table g)."""
    pairs: list[int] = []
    for exponent in range(-292, 325):
        if exponent < 0:
            divisor = 10**-exponent
            power = -(-(1 << (divisor.bit_length() + 127)) // divisor)
            if power >> 128:
                power = -(-(1 << (divisor.bit_length() + 126)) // divisor)
        else:
            power = 10**exponent
            shift = power.bit_length() - 128
            power = -(-power >> shift) if shift > 0 else power << -shift
        pairs += (power >> 64, power & 0xFFFFFFFFFFFFFFFF)
    return np.array(pairs, np.uint64)


POWERS: Final = _powers()


class Programs:
    """Programs one after another in two arrays. Arrays that were handed out stay valid while programs are added.
    Threads can share this; the lock guards adding."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = np.zeros(4096, np.int64)
        self._literals = np.zeros(4096, np.uint8)
        self._steps_used = 0
        self._literals_used = 0
        self._paths: list[str] = []  # for each instruction the field that it reads; "" for tables
        self.arrays = self._steps, self._literals  # what the kernel runs; replaced when they are too small

    def add_avro(self, root: AvroType, *, length_before_bytes: bool = False) -> int:
        """Add the program for data of this type; return its first instruction. `length_before_bytes`: whether data of a
        type that is itself `bytes` begin with a length, which the clients of Confluent's registry leave out."""
        return self.add(lambda assembler: assembler.assemble(root, length_before_bytes=length_before_bytes))

    def add_json(self) -> int:
        """Add the program for JSON texts; return its first instruction."""
        return self.add(lambda assembler: assembler.finish(assembler.emit(Opcode.JSON)))

    def add(self, assemble: Callable[[Assembler], None]) -> int:
        """Add the program that `assemble` makes; return its first instruction. BadSchema if all programs are too
        large."""
        with self._lock:
            if self._steps_used + self._literals_used > MOST_TOGETHER:
                raise BadSchema("the schemas in use before it are too large together")
            assembler = Assembler(self._steps_used, self._literals_used)
            assemble(assembler)
            return self._append(assembler)

    def path(self, instruction: int) -> str:
        """The field that an instruction reads: names with dots between them, "" for the value itself; for FAIL, the
        reason."""
        return self._paths[instruction // WIDTH]

    def _append(self, assembler: Assembler) -> int:
        entry, steps_end = self._steps_used, self._steps_used + len(assembler.steps)
        literals_end = self._literals_used + len(assembler.literals)
        if steps_end > len(self._steps):
            self._steps = np.concatenate((self._steps, np.zeros(steps_end, np.int64)))
        if literals_end + _LITERALS_SPARE > len(self._literals):
            self._literals = np.concatenate((self._literals, np.zeros(literals_end + _LITERALS_SPARE, np.uint8)))
        self._steps[entry:steps_end] = assembler.steps
        self._literals[self._literals_used : literals_end] = memoryview(assembler.literals)
        self._paths += assembler.paths
        self._steps_used, self._literals_used = steps_end, literals_end
        self.arrays = self._steps, self._literals
        return entry


def quoted(name: str) -> bytes:
    """A name as JSON."""
    return json.dumps(name, ensure_ascii=False).encode()


class Assembler:
    """Makes one program, which will lie at `steps_base` and `literals_base`."""

    def __init__(self, steps_base: int, literals_base: int) -> None:
        self.steps: list[int] = []
        self.literals = bytearray()
        self.paths: list[str] = []
        self.pending = bytearray()  # the literal before the next instruction
        self.path: list[str] = []
        self._steps_base, self._literals_base = steps_base, literals_base
        self._target = -1  # the last place that a jump named before anything was emitted for it
        self._size = 0  # of steps and tables
        self._called: dict[Hashable, Callable[[], None]] = {}  # functions that emit the bodies of calls
        self._calls: list[tuple[int, Hashable]] = []  # where a CALL is in steps, and the key of its body
        self._tables: list[tuple[int, list[int]]] = []  # the argument in `steps` that is the table's place
        self._several: set[int] = set()  # id() of records that are used more than once

    def assemble(self, root: AvroType, *, length_before_bytes: bool) -> None:
        """Make the program that shows data of this type as JSON."""
        self._count_uses(root)
        if root.kind == "bytes" and root.logical is None and not length_before_bytes:
            self.emit(Opcode.REST)
        else:
            self._type(root, 0)
        self.finish()

    def finish(self, _: object = None) -> None:
        """Add the end of the data, the bodies of calls, and the tables."""
        self.emit(Opcode.END)
        bodies: dict[Hashable, int] = {}
        while waiting := [item for item in self._called.items() if item[0] not in bodies]:
            for key, make_body in waiting:
                bodies[key] = self.here()
                make_body()
                self.emit(Opcode.RETURN)
        for at, key in self._calls:
            self.steps[at + 3] = bodies[key]
        for at, table in self._tables:
            self.steps[at] = self.here()
            table += [0] * (-len(table) % WIDTH)
            self.steps += table
            self.paths += [""] * (len(table) // WIDTH)

    def _count_uses(self, root: AvroType) -> None:
        seen: set[int] = set()
        waiting = [root]
        while waiting:
            type_ = waiting.pop()
            if id(type_) in seen:
                if type_.kind == "record":
                    self._several.add(id(type_))
                continue
            seen.add(id(type_))
            waiting += type_.children()

    def here(self) -> int:
        """The place where the next instruction will be."""
        return self._steps_base + len(self.steps)

    def literal(self, text: bytes) -> tuple[int, int]:
        """Add a literal; return its start and length. BadSchema if the literals become too long."""
        start = self._literals_base + len(self.literals)
        self.literals += text
        if len(self.literals) > MOST_TOGETHER:
            raise BadSchema("its names and defaults are too long together")
        return start, len(text)

    def emit(self, code: int, first: int = 0, second: int = 0) -> int:
        """Add an instruction with the pending literal; return its place in `steps`. BadSchema if the program becomes
        too long."""
        self._grow(WIDTH)
        at = len(self.steps)
        start, length = self.literal(bytes(self.pending))
        self.pending.clear()
        self.steps += (code, start, length, first, second, self.here() + WIDTH)
        # Shorten each name before joining: a name may be megabytes, and each instruction has a path.
        self.paths.append(shortened(".".join(map(shortened, self.path))))
        return at

    def table(self, argument: int, numbers: list[int]) -> None:
        """Add a table after the program, and put its place into `steps` at `argument`."""
        self._grow(len(numbers))
        self._tables.append((argument, numbers))

    def _grow(self, numbers: int) -> None:
        self._size += numbers
        if self._size > _MOST_STEPS:
            raise BadSchema("its types are used too many times")

    def call(self, key: Hashable, make_body: Callable[[], None]) -> None:
        """Call the body with the key `key`, which `make_body` emits once."""
        self._called.setdefault(key, make_body)
        self._calls.append((self.emit(Opcode.CALL), key))

    def _type(self, found: AvroType, depth: int) -> None:
        if found.kind == "union":
            self.union(found, lambda branch: self._type(branch, depth))
        elif found.item is not None:
            item = found.item
            self.blocks(found.kind == "map", lambda: self._type(item, depth))
        elif found.kind != "record":
            self.leaf(found)
        elif id(found) in self._several or depth >= _MAX_INLINED:
            self.call(id(found), lambda: self._called_record(found))
        else:
            self._record(found, depth + 1)

    def _called_record(self, record: AvroType) -> None:
        self.path = [str(record).rpartition(".")[2]]
        self._record(record, 0)
        self.path = []

    def _record(self, record: AvroType, depth: int) -> None:
        self.pending += b"{"
        for i, (name, child) in enumerate(record.fields):
            self.pending += (b"," if i else b"") + quoted(name) + b":"
            self.path.append(name)
            self._type(child, depth)
            self.path.pop()
        self.pending += b"}"

    def leaf(self, leaf_type: AvroType) -> None:
        """Show a value that contains no other value."""
        kind, logical = leaf_type.kind, leaf_type.logical
        if kind == "null":
            self.pending += b"null"
        elif logical == "decimal":
            self.emit(Opcode.DECIMAL if kind == "bytes" else Opcode.DECIMAL_FIXED, leaf_type.size, leaf_type.scale)
        elif logical == "date":
            self.emit(Opcode.DATE)
        elif logical is not None and logical != "uuid":
            name, _, unit = logical.rpartition("-")
            per_second, decimals = _UNITS[unit]
            if name == "time":
                self.emit(Opcode.TIME, per_second, decimals)
            else:
                self.emit(Opcode.TIMESTAMP, per_second, 2 * decimals + (name == "timestamp"))
        elif kind in _SIMPLE:
            self.emit(_SIMPLE[kind])
        elif kind == "fixed":
            self.emit(Opcode.FIXED, leaf_type.size)
        else:
            self.enum(map(quoted, leaf_type.symbols))

    def enum(self, texts: Iterable[bytes | None]) -> None:
        """Show each symbol as its text; None for a symbol that does not resolve."""
        numbers = [n for text in texts for n in ((0, -1) if text is None else self.literal(text))]
        self.table(self.emit(Opcode.ENUM, 0, len(numbers) // 2) + 3, numbers)

    def union(self, union: AvroType, each: Callable[[AvroType], None]) -> None:
        """Continue with the instructions that `each` emits for the branch of the value."""
        at = self.emit(Opcode.UNION, 0, len(union.branches))
        branches, ends = [], []
        for branch in union.branches:
            branches.append(self.here())
            each(branch)
            if self.pending or self.here() in (branches[-1], self._target):
                self.emit(Opcode.LITERAL)  # an instruction whose next instruction can be set below
            ends.append(len(self.steps) - WIDTH)
        for end in ends:
            self.steps[end + 5] = self.here()
        self._target = self.here()
        self.table(at + 3, branches)

    def blocks(self, is_map: bool, item: Callable[[], None]) -> None:
        """Show an array or map, with the instructions that `item` emits for each item."""
        self.pending += b"{" if is_map else b"["
        self.emit(Opcode.PUSH)
        block = self.emit(Opcode.BLOCK)
        body = self.here()
        if is_map:
            self.emit(Opcode.STRING)
            self.pending += b":"
        item()
        self.emit(Opcode.NEXT, body, self._steps_base + block)
        self._target = self.steps[block + 3] = self.here()
        self.pending += b"}" if is_map else b"]"
