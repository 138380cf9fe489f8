"""Time, passed in wherever a decision depends on it, so that no test sleeps."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the engine needs to know about time."""

    def now_ms(self) -> int:
        """The wall clock in epoch milliseconds."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
