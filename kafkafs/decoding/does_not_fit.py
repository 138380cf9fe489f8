"""The error of a JSON value that cannot be written by its schema; and how long the texts of errors are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

_MOST_SHOWN: Final = 300


def shortened(text: str) -> str:
    """At most about 300 characters: the beginning and the end, which says what is wrong, of a long text. What a schema
    names may be megabytes, and each message repeats it."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:100]}… {text[-200:]}"


class DoesNotFit(ValueError):
    """A value that its schema does not allow; the message names the field."""

    @classmethod
    def named(cls, path: Sequence[str], what: str) -> DoesNotFit:
        """Says `what` of the field at `path`; an empty one is the value itself."""
        return cls(f"field {'.'.join(path)}: {what}" if path else what)

    @classmethod
    def at(cls, path: Sequence[str], expected: str, found: object) -> DoesNotFit:
        return cls.named(path, f"expected {expected}, found {_short(found)}")


def _short(value: object) -> str:
    """As JSON, at most 60 characters."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "an array"
    text = json.dumps(value) if not isinstance(value, int) or abs(value) < 1 << 100 else "a very large integer"
    return text if len(text) <= 60 else f"{text[:60]}…"
