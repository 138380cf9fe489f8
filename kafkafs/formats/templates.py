r"""Templates like `%o %T %k %s\n`: kcat's format letters (`kcat -f`).

As in kcat, a null prints nothing, except that a header's null value prints NULL. Numbers after a backslash follow C
(`\x41`, `\0101`, `\65`); kcat refuses `\xNN` if the first digit is above 9, kafkafs takes it.
"""

from __future__ import annotations

import os
import re

from kafkafs.formats import program
from kafkafs.formats.program import Operation, Program, ProgramFormat
from storage.types import TopicPartition

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
