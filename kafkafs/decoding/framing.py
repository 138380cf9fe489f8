"""What is in front of a value that a schema registry knows: an id or a GUID, and the indexes of Protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    pass


# How long the texts of errors are.
MOST_SHOWN: Final = 300


def shortened(text: str) -> str:
    """At most about 300 characters: the beginning and the end, which says what is wrong, of a long text. What a schema
    names may be megabytes, and each message repeats it."""
    return text if len(text) <= MOST_SHOWN else f"{text[:100]}… {text[-200:]}"
