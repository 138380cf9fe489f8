"""Java properties: server.properties, meta.properties, and our topic.properties.

Reading follows java.util.Properties.load exactly: `key=value`, `key:value` or `key value`; comments begin with
`#` or `!`; a line that ends in an odd number of backslashes continues on the next one; `\\uXXXX`, `\\t`, `\\n`, `\\r`,
`\\f` are escapes, a backslash before anything else is dropped. Writing produces ASCII, which every reader accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from storage.errors import CorruptCheckpoint

_SPACE = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_UNESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {
    "\t": "\\t",
    "\n": "\\n",
    "\r": "\\r",
    "\f": "\\f",
    "\\": "\\\\",
    "=": "\\=",
    ":": "\\:",
    "#": "\\#",
    "!": "\\!",
}
_HEX = re.compile(r"[0-9a-fA-F]{4}")


def parse(data: bytes, path: Path | None = None) -> dict[str, str]:
    """The properties in these bytes, in the file's order. Of a key that occurs twice the last value counts.

    Bytes that are not UTF-8 are read as ISO-8859-1, which is what Java does with all. CorruptCheckpoint on a malformed
    `\\u` escape.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    try:
        return dict(_split(line) for line in _logical_lines(text))
    except CorruptCheckpoint as error:
        error.path = path
        raise


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments, blank lines and leading space, continuation lines joined; still escaped."""
    line: str | None = None
    naturals = _LINE_END.split(text)
    if not naturals[-1]:
        naturals.pop()
    for natural in naturals:
        stripped = natural.lstrip(_SPACE)
        # After a line of one backslash alone the next line is still a new one.
        if not line and (not stripped or stripped[0] in "#!"):
            line = None
            continue
        line = (line or "") + stripped
        if (len(stripped) - len(stripped.rstrip("\\"))) % 2:
            line = line[:-1]
        else:
            yield line
            line = None
    if line is not None:
        yield line


def _split(line: str) -> tuple[str, str]:
    escaped = False
    end = len(line)
    for position, char in enumerate(line):
        if not escaped and char in "=: \t\f":
            end = position
            break
        escaped = char == "\\" and not escaped
    value = line[end:].lstrip(_SPACE)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(_SPACE)
    return _unescape(line[:end]), _unescape(value)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts = []
    position = 0
    while True:
        escape = text.find("\\", position)
        if escape < 0 or escape == len(text) - 1:
            parts.append(text[position : len(text) if escape < 0 else escape])
            break
        parts.append(text[position:escape])
        char = text[escape + 1]
        position = escape + 2
        if char == "u":
            digits = text[position : position + 4]
            if _HEX.fullmatch(digits) is None:
                raise CorruptCheckpoint(
                    "malformed \\u escape in properties", expected="four hex digits", found=repr(digits)
                )
            parts.append(chr(int(digits, 16)))
            position += 4
        else:
            parts.append(_UNESCAPED.get(char, char))
    # Characters beyond the basic plane are written as two escapes.
    return "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encode(properties: Mapping[str, str], comments: Iterable[str] = ()) -> bytes:
    """ASCII bytes that `parse` and Java read back, one `key=value` line each, in the mapping's order."""
    lines = [f"#{_escape_unprintable(comment)}" for comment in comments]
    lines += [f"{_escape(key, key=True)}={_escape(value, key=False)}" for key, value in properties.items()]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def _escape(text: str, *, key: bool) -> str:
    parts = []
    for position, char in enumerate(text):
        if char == " ":
            parts.append("\\ " if key or position == 0 else " ")
        else:
            parts.append(_ESCAPED.get(char) or _escape_unprintable(char))
    return "".join(parts)


def _escape_unprintable(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char
        if " " <= char <= "~"
        else "".join(f"\\u{unit:04X}" for unit in memoryview(char.encode("utf-16-le", "surrogatepass")).cast("H"))
        for char in text
    )
