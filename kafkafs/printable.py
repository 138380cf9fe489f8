"""Text for people that comes from a log directory, or names something in it."""

from __future__ import annotations


def printable(text: str, kept: str = "") -> str:
    """The text, with characters escaped that a terminal would obey or could not show (`\\x1b`): control characters,
    those that change the direction of text, bytes of a name that are not UTF-8. Those in `kept` stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in kept else repr(char)[1:-1] for char in text)
