"""The formats txt and jsonl, and those that a template describes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import numpy as np

from kafkafs.formats import program
from kafkafs.formats.program import VALUE, Operation, Program, ProgramFormat
from storage.format import decode_kernel
from storage.types import TopicPartition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.block import RecordBlock


# `jsonl`: one JSON object a line (kafkafs/CONTRACT.md, "Formats").


class Jsonl(program.ProgramFormat):
    """For the records of one partition, whose name is in each line. Topic names need no escapes."""

    def __init__(self, tp: TopicPartition) -> None:
        lines = program.Program.of(
            [
                f'{{"topic":"{tp.topic}","partition":{tp.partition},"offset":'.encode(),
                program.OFFSET,
                b',"timestamp":',
                program.TIMESTAMP,
                b',"timestampType":"',
                program.TIMESTAMP_TYPE,
                b'","key":',
                program.JSON_KEY,
                b',"value":',
                program.JSON_VALUE,
                b',"headers":[',
                program.JSON_HEADERS,
                b"]}\n",
            ]
        )
        super().__init__("jsonl", lines)


# `txt`: each message's value and a newline; a null value is an empty line.


class Txt(ProgramFormat):
    """The same for every partition."""

    def __init__(self) -> None:
        super().__init__("txt", Program.of([VALUE, b"\n"]))

    def measure(self, block: RecordBlock, sizes: NDArray[np.int64]) -> None:
        """Needs only one column."""
        wanted = sizes[: len(block)]
        np.maximum(block.value_length, 0, out=wanted)
        wanted += 1

    def render_rows(
        self, block: RecordBlock, out: memoryview, out_start: int = 0, first_row: int = 0
    ) -> tuple[int, int]:
        """Gathers the column of values if all fit, which takes a third of the time of running the program."""
        if first_row == 0 and out_start >= 0:
            room = len(out) - out_start
            if int(np.maximum(block.value_length, 0).sum()) + len(block) <= room:
                ends = np.empty(len(block), np.int64)
                values = block.value_start, block.value_length
                used = decode_kernel.gather(block.buffer, *values, b"\n", out[out_start:], ends)
                return len(block), out_start + used
        return super().render_rows(block, out, out_start, first_row)


# Templates like `%o %T %k %s\n`: kcat's format letters (`kcat -f`).
#
# As in kcat, a null prints nothing, except that a header's null value prints NULL. Numbers after a backslash follow C
# (`\x41`, `\0101`, `\65`); kcat's `\xNN` fails if the first digit is above 9, this one does not.

_LETTERS = {
    "s": program.VALUE,
    "S": program.VALUE_LENGTH,
    "R": program.VALUE_LENGTH_BINARY,
    "k": program.KEY,
    "K": program.KEY_LENGTH,
    "o": program.OFFSET,
    "T": program.TIMESTAMP,
    "h": program.HEADERS,
}
_TOKEN = re.compile(
    r"%(?P<letter>.?)|\\(?:x(?P<hex>[0-9a-fA-F]{1,2})|(?P<octal>0[0-7]{0,3})|(?P<decimal>[1-9][0-9]{0,2})|(?P<escaped>[^%]))",
    re.DOTALL,
)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r"}


class BadTemplate(ValueError):
    """A format that cannot be used; the message says why."""


def template(text: str, tp: TopicPartition) -> ProgramFormat:
    """The format that `text` describes, for the records of `tp`. Raises BadTemplate."""
    parts: list[bytes | Operation] = []
    at = 0
    for token in _TOKEN.finditer(text):
        parts.append(os.fsencode(text[at : token.start()]))
        parts.append(_letter(token["letter"], tp) if token["letter"] is not None else _escape(token))
        at = token.end()
    parts.append(os.fsencode(text[at:]))
    return ProgramFormat(text, Program.of(parts))


def _letter(letter: str, tp: TopicPartition) -> bytes | Operation:
    if letter == "%":
        return b"%"
    if letter == "t":
        return tp.topic.encode()
    if letter == "p":
        return str(tp.partition).encode()
    if not letter:
        raise BadTemplate("the format ends in a single %; write %% for a percent sign")
    if letter not in _LETTERS:
        raise BadTemplate(f"unknown format letter %{letter}; there are %s %S %R %k %K %t %p %o %T %h and %%")
    return _LETTERS[letter]


def _escape(token: re.Match[str]) -> bytes:
    if token["hex"]:
        return bytes([int(token["hex"], 16)])
    if token["octal"]:
        return bytes([int(token["octal"], 8) & 0xFF])
    if token["decimal"]:
        return bytes([int(token["decimal"]) & 0xFF])
    return _ESCAPES.get(token["escaped"]) or os.fsencode(token["escaped"])
