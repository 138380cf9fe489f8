"""Names of groups and subjects as file names."""

from __future__ import annotations

from typing import Final
from unicodedata import category
from urllib.parse import quote, unquote_to_bytes

_OBEYED: Final = ("Cc", "Cf")
EMPTY_NAME = "%"


def encoded_name(name: str) -> str:
    """The file name of a group or subject. Percent-encodes `/`, `%`, a leading `.`, and the characters that a terminal
    obeys (control and format characters); the empty name becomes a single `%`."""
    if not name:
        return EMPTY_NAME
    encoded = "".join(quote(char, safe="") if char in "/%" or category(char) in _OBEYED else char for char in name)
    return "%2E" + encoded[1:] if encoded.startswith(".") else encoded


def decoded_name(encoded: str) -> str:
    """The inverse of `encoded_name`. ValueError for a text that `encoded_name` never returns: each group or subject has
    exactly one file name."""
    if encoded == EMPTY_NAME:
        return ""
    # UnicodeEncodeError is a ValueError.
    name = unquote_to_bytes(encoded.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
    if encoded_name(name) != encoded:
        raise ValueError(f"{encoded!r} is not the encoded form of {name!r}")
    return name


# Text for people that comes from a log directory, or names something in it.


def printable(text: str, kept: str = "") -> str:
    """The text, with escapes (`\\x1b`) for what a terminal would obey or could not show: control characters, characters
    that change the direction of text, bytes of a name that are not UTF-8. Characters in `kept` stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in kept else repr(char)[1:-1] for char in text)
