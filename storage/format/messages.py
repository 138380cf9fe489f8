"""Kafka's own messages: the records of its own topics, of the metadata log and of control batches, read by definition.

`message_definitions.txt` has a line for each message: its group (for records of a topic the topic's name), whether it
is a key or a value, its type, its name, its versions, those that are flexible (KIP-482), and its fields. What is read
becomes JSON as Kafka's JSON converters write it: fields in the order of the definition, tagged fields only if they have
not their default, bytes as base64, UUIDs as base64url. Sources: Kafka's message generator, ByteBufferAccessor,
CoordinatorRecordSerde, MetadataRecordSerde; for the data their definitions, `common/message/*.json` and others of 4.4.

A record is one of four framings. COORDINATOR: the key is an int16 type and the message, the value an int16 version and
the message; bytes that follow are ignored, as Kafka does. FRAMED: the value is unsigned varints 1, type and version and
the message, and nothing may follow. PLAIN: the key is the message, the value as in COORDINATOR. CONTROL: the key is an
int16 version and an int16 type.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable, Iterator
from enum import Enum, IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from storage.errors import CorruptData, StorageError, TooManyKeys, UnsupportedFormat
from storage.format import message_kernel
from storage.format.columns import RecordColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from storage.format.block import RecordBlock

    Int64s = NDArray[np.int64]

TYPES: Final = (
    "bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float64", "string", "bytes", "uuid",
)  # fmt: skip
_STRUCT: Final = len(TYPES)
_SIZES: Final = dict(zip(TYPES, (1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 16), strict=True))
_MOST_TYPES, _MOST_VERSIONS, _MOST_TAGS, _DEEPEST = 64, 16, 16, 7
_STEP_NUMBERS: Final = 10
_CELLS: Final = 260
_RESULTS: Final = 8
_SIDES: Final = list(range(RecordColumn.KEY_START, RecordColumn.KEY_START + 4))
_ROOM: Final = 1 << 20
_PIECE: Final = 16  # bytes of a literal that the kernel copies at once
_MOST_ROWS: Final = 4096
_LAST_VERSION: Final = 32767
MOST_JSON: Final = 32 << 20
"""Bytes of a key or value as JSON. What is longer is an error, since a few bytes may stand for many."""
MOST_HELD: Final = 384 << 20
"""Bytes of memory that the states of all `Held` of a process take together."""
_OF_A_RECORD: Final = 512  # bytes that a state takes for a record at most, and for each byte of its JSON
_OF_A_BYTE: Final = 6
# Python keeps one object for each of these, and for each number below 257.
_SHARED: Final = (type, Enum, bool, type(None))
_SMALL: Final = 257


class Framing(IntEnum):
    """How a record's key and value tell their types and versions."""

    COORDINATOR = 0
    FRAMED = 1
    PLAIN = 2
    CONTROL = 3


_FRAMINGS: Final = {
    "__consumer_offsets": Framing.COORDINATOR,
    "__transaction_state": Framing.COORDINATOR,
    "__share_group_state": Framing.COORDINATOR,
    "__cluster_metadata": Framing.FRAMED,
    "__remote_log_metadata": Framing.FRAMED,
    "control": Framing.CONTROL,
}
GROUPS: Final = frozenset(_FRAMINGS) - {"control"}
"""The topics whose records are read by definition."""


class MessageFault(IntEnum):
    """Why a message cannot be read."""

    SHORT = -2
    NULL = -3
    VARINT = -4
    UNKNOWN_TYPE = -5
    UNKNOWN_VERSION = -6
    FRAME = -7
    LEFT_OVER = -8
    OUTSIDE = -9
    TOO_LONG = -10


_TEXTS: Final = {
    MessageFault.SHORT: "cut off",
    MessageFault.NULL: "null where it must not be",
    MessageFault.VARINT: "an overlong varint",
    MessageFault.UNKNOWN_TYPE: "type {} is not known to this version of kafkafs",
    MessageFault.UNKNOWN_VERSION: "version {} is not known to this version of kafkafs",
    MessageFault.FRAME: "frame {} is not known to this version of kafkafs",
    MessageFault.LEFT_OVER: "bytes are left over",
    MessageFault.TOO_LONG: f"more than {MOST_JSON} bytes as JSON",
}


class MessageTexts(NamedTuple):
    """JSON texts of the first `rows` records: places[0] and [1] start and length of those of keys, [2] and [3] of
    values, the length -1 where there is none. `errors` by row: ("key" or "value", why it cannot be read, the fault)."""

    rows: int
    end: int
    places: Int64s
    errors: dict[int, tuple[str, str, MessageFault]]


class _Program(NamedTuple):
    """The arguments of the kernel for one group; `names` by step."""

    steps: Int64s
    literals: NDArray[np.uint8]
    entries: Int64s
    keys: Int64s
    values: Int64s
    framing: Framing
    names: tuple[str, ...]


class MessageReader:
    """Reads the records of one group. Threads can share it."""

    def __init__(self, group: str) -> None:
        self._program = _program(group)

    def read(self, buffer: Buffer, columns: Int64s, out: NDArray[np.uint8], *, exact: bool = False) -> MessageTexts:
        """The texts of as many records as fit into `out`. `columns`: start and length of keys in `buffer`, then of
        values. `exact`: whether bytes after a message are an error in every framing. ValueError if one is outside of
        `buffer`."""
        count = columns.shape[1]
        results = np.empty((_RESULTS, count), np.int64)
        program, names = self._program, self._program.names
        rows, end = message_kernel.run(
            program.steps, program.literals, program.entries, program.keys, program.values, program.framing, exact,
            buffer, np.ascontiguousarray(columns), 0, out, 0, results, np.empty(_CELLS, np.int64),
        )  # fmt: skip
        errors = {}
        for row in np.flatnonzero(results[4, :rows]).tolist():
            fault, at, step, number = results[4:, row].tolist()
            if fault == MessageFault.OUTSIDE:
                raise ValueError(f"record {row} points outside the buffer")
            field = f" in field {names[step // 2 // _STEP_NUMBERS]}" if step >= 0 else ""
            side = "value" if step % 2 else "key"
            errors[row] = (
                side,
                f"{_TEXTS[MessageFault(fault)].format(number)}{field}, at byte {at}",
                MessageFault(fault),
            )
        return MessageTexts(rows, end, results[:4], errors)

    def objects(
        self, block: RecordBlock, *, exact: bool = False, held: Held | None = None
    ) -> Iterator[tuple[Any, Any, StorageError | None]]:
        """Key and value of each record of a block as `json` reads their texts: None where there is none; its error:
        CorruptData, or UnsupportedFormat for types, versions and frames that are not known here. `held`: counts them
        for the state to which the caller adds them. TooManyKeys."""
        row = 0
        room = usual = np.empty(_ROOM, np.uint8)
        while row < len(block):
            texts = self.read(block.buffer, block.columns[_SIDES, row : row + _MOST_ROWS], room, exact=exact)
            if not texts.rows:
                room = np.empty(4 * len(room), np.uint8)
                continue
            if held is not None:
                held.add(texts.rows, texts.end)
            places = texts.places[:, : texts.rows].T.ravel().tolist()
            text = room[: texts.end].tobytes()
            room = usual
            sides = zip(places[::2], places[1::2], strict=True)
            parts = [text[at : at + size] if size >= 0 else b"null" for at, size in sides]
            read = json.loads(b"[%b]" % b",".join(parts))  # all at once: a call costs as much as a small text
            for at in range(texts.rows):
                error = texts.errors.get(at)
                yield read[2 * at], read[2 * at + 1], None if error is None else _error(error)
            row += texts.rows

    def one(self, key: bytes | None, value: bytes | None) -> tuple[Any, Any]:
        """Key and value of one record. CorruptData; UnsupportedFormat for types, versions and frames that are not known
        here."""
        data = np.frombuffer((key or b"") + (value or b""), np.uint8)
        sizes = [-1 if side is None else len(side) for side in (key, value)]
        columns = np.array([[0], [sizes[0]], [max(sizes[0], 0)], [sizes[1]]], np.int64)
        room = np.empty(_ROOM, np.uint8)
        while not (texts := self.read(data.data, columns, room)).rows:
            room = np.empty(4 * len(room), np.uint8)
        if texts.errors:
            raise _error(texts.errors[0])
        text = room[: texts.end].tobytes()
        starts, lengths = texts.places[::2, 0].tolist(), texts.places[1::2, 0].tolist()
        first, second = (
            json.loads(text[at : at + size]) if size >= 0 else None for at, size in zip(starts, lengths, strict=True)
        )
        return first, second


class Held:
    """The bytes of a state that is replayed from records of Kafka's own topics. A few MB of compressed records
    may make millions of entries, so all of a process together are bounded (MOST_HELD).

    Belongs to the thread that replays, but for `size`, which others read.
    """

    def __init__(self, *state: object) -> None:
        """`state`: the dictionaries and lists to which the records are applied."""
        self._state = state
        self.size = 0
        _all_held[id(self)] = self

    def add(self, records: int, json_bytes: int) -> None:
        """Counts records before they are applied. TooManyKeys if they take too much, with all that the process
        holds."""
        added = _OF_A_RECORD * records + _OF_A_BYTE * json_bytes
        self.size += added
        if held_by_all() <= MOST_HELD:
            return
        # Measure the state: most of the added records may have replaced others. A quarter must be free after it, so
        # that this is rarely done.
        self.size = memory_of(self._state) + added
        if held_by_all() > MOST_HELD // 4 * 3:
            raise TooManyKeys(
                "groups, transactional ids, remote segments or the cluster's metadata take too much memory",
                expected=f"at most {MOST_HELD >> 20} MiB",
                advice="What comes after it in this partition is not read",
            )


_all_held: Final[WeakValueDictionary[int, Held]] = WeakValueDictionary()


def held_by_all() -> int:
    """Bytes that all states of this process take."""
    # A list of the references is made in one step, whatever other threads add.
    return sum(held.size for each in _all_held.valuerefs() if (held := each()) is not None)


def memory_of(state: Iterable[object]) -> int:
    """Bytes of memory that objects take with their content; shared content counts twice."""
    size, level = 0, list(state)
    while level:
        level = [
            value
            for value in level
            if not isinstance(value, _SHARED) and not (value.__class__ is int and value < _SMALL)
        ]
        size += sum(map(sys.getsizeof, level))
        level = gc.get_referents(*level)
    return size


class UnknownRecordType(UnsupportedFormat):
    """A record of a type that is not defined here; Kafka's coordinators skip such records."""


def _error(failure: tuple[str, str, MessageFault]) -> StorageError:
    side, text, fault = failure
    kinds = {MessageFault.UNKNOWN_TYPE: UnknownRecordType, MessageFault.UNKNOWN_VERSION: UnsupportedFormat,
             MessageFault.FRAME: UnsupportedFormat}  # fmt: skip
    return kinds.get(fault, CorruptData)(f"record's {side} cannot be read: {text}")


@cache
def messages(group: str) -> MessageReader:
    """The reader of a group. KeyError for one that is not defined."""
    return MessageReader(group)


class _Builder:
    """The steps, texts and entries of the definitions of one group."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.names: list[str] = []
        self.literals = bytearray()
        self.entries: list[int] = []
        self.keys = [-1] * _MOST_TYPES
        self.values = [-1] * (_MOST_TYPES * _MOST_VERSIONS)

    def add(self, framing: Framing, role: str, number: int, name: str, words: list[str]) -> None:
        """Add a definition."""
        versions, flexible, *fields = words
        for version in _versions(versions):
            if role == "key":
                before = f'{{"type":{number},"name":"{name}","data":'
                self.keys[number] = len(self.entries) // 4
            else:
                named = f'"type":"{name}",' if framing in (Framing.FRAMED, Framing.CONTROL) else ""
                before = f'{{{named}"version":{version},"data":'
                self.values[number * _MOST_VERSIONS + version] = len(self.entries) // 4
                if framing in (Framing.FRAMED, Framing.CONTROL):
                    self.keys[number] = 0
            is_flexible = flexible != "none" and version in _versions(flexible)
            first = self._struct(iter(fields), version, is_flexible, 0)
            self.entries += [first, is_flexible, *self._literal(before)]

    def _struct(self, words: Iterator[str], version: int, flexible: bool, depth: int) -> int:
        """The first step of a struct, whose fields are the words up to a closing brace."""
        if depth > _DEEPEST:
            raise ValueError("definitions nest too deeply")
        fields: list[tuple[list[int], str]] = []
        last: list[int] = []
        # A struct's fields follow it in the text. Its steps are put after those of the structs within it.
        for word in words:
            if word == "}":
                break
            if word == "{":
                inner = self._struct(words, version, flexible, depth + 1)
                last[8] = inner
                continue
            last, is_there = self._field(word, version, flexible)
            if is_there:
                fields.append((last, word.partition(":")[0]))
        head = len(self.steps) * _STEP_NUMBERS
        tags = [step[5] >= 0 for step, _ in fields]
        self.steps.append([_STRUCT, len(fields), any(tags), tags != sorted(tags), 0, 0, 0, 0, 0, 0])
        self.names.append("")
        for step, name in fields:
            self.steps.append(step)
            self.names.append(name)
        return head

    def _field(self, word: str, version: int, flexible: bool) -> tuple[list[int], bool]:
        """A field's step, and whether the version has it."""
        name, kind, versions, *more = word.split(":")
        bare = kind.removeprefix("[]").replace("records", "bytes")
        options = dict(item.split("=", 1) for item in more)
        tag, _, tagged = options.get("t", "-1/0-0").partition("/")
        default, is_null = options.get("d", "0"), options.get("d") == "null"
        number = {"true": 1, "false": 0, "null": 0}.get(default)
        step = [
            TYPES.index(bare) if bare in TYPES else _STRUCT,
            *self._literal(f'"{name}":'),
            kind != bare and kind.startswith("[]"),
            "n" in options and version in _versions(options["n"]),
            int(tag) if flexible and version in _versions(tagged) else -1,
            int(default, 0) if number is None else number,
            is_null,
            0,
            _SIZES.get(bare, 0),
        ]
        if int(tag) >= _MOST_TAGS:
            raise ValueError(f"tag {tag} of {name}")
        return [int(item) for item in step], version in _versions(versions)

    def _literal(self, text: str) -> tuple[int, int]:
        start = len(self.literals)
        self.literals += text.encode()
        return start, len(text)


def _versions(text: str) -> range:
    """The versions in a text such as `0-3`, `2+` or `1`."""
    first, dash, last = text.rstrip("+").partition("-")
    if text.endswith("+"):
        return range(int(first), _LAST_VERSION + 1)
    return range(int(first), int(last if dash else first) + 1)


def _definitions() -> str:
    return Path(__file__).with_name("message_definitions.txt").read_text()


@cache
def definitions_digest() -> str:
    """A digest of these definitions: equal definitions give equal texts."""
    import hashlib

    return hashlib.sha256(_definitions().encode()).hexdigest()[:16]


@cache
def _program(group: str) -> _Program:
    framing = _FRAMINGS.get(group, Framing.PLAIN)
    builder = _Builder()
    for line in _definitions().splitlines():
        line_group, role, *words = line.split()
        if line_group == group:
            builder.add(framing, role, int(words[0]), words[1], words[2:])
    if not builder.entries:
        raise KeyError(group)
    return _Program(
        np.array(builder.steps, np.int64).ravel(),
        np.frombuffer(builder.literals + bytes(_PIECE), np.uint8),
        np.array(builder.entries, np.int64),
        np.array(builder.keys, np.int64),
        np.array(builder.values, np.int64),
        framing,
        tuple(builder.names),
    )
