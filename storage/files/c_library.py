"""Functions of the C library that Python's `os` lacks."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def function(name: str) -> Any:
    """The function of this name; None if the C library has none."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
