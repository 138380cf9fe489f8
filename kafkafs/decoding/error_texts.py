"""Shorten the texts of errors, because the names of a schema may make them megabytes long."""

from __future__ import annotations

from typing import Final

# The longest text of an error.
MOST_SHOWN: Final = 300


def shortened(text: str) -> str:
    """Cut a long text to about 300 characters: its beginning, and its end, which says what is wrong."""
    return text if len(text) <= MOST_SHOWN else f"{text[:100]}… {text[-200:]}"
