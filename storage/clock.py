"""Time, passed in wherever a decision depends on it, so that no test sleeps."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The time, as the engine asks for it."""

    def now_ms(self) -> int:
        """The wall clock in epoch milliseconds."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
