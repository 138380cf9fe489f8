"""The prefix of a value that a schema registry knows: an id or a GUID, and the indexes of Protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    pass


# The longest text of an error.
MOST_SHOWN: Final = 300


def shortened(text: str) -> str:
    """Cut a long text to about 300 characters: its beginning, and its end, which says what is wrong. A schema's names
    may be megabytes, and each message repeats them."""
    return text if len(text) <= MOST_SHOWN else f"{text[:100]}… {text[-200:]}"
