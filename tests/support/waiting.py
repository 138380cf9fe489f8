"""Waiting for what another process or thread does, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(what: str, condition: Callable[[], bool], seconds: float = 120) -> None:
    """Returns once the condition holds. Fails with the words of `what` if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.01)
