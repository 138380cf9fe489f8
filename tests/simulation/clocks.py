"""Simulated times and inode numbers, which the file system of the machine would give otherwise."""

import contextlib
import itertools
import os

from tests.simulation.scheduler import current, in_moment
from tests.support.owned_dirs import NOW_MS


class SimulatedClock:
    """It goes on a little at each look, and jumps when it is told to.

    Three clocks in one: what the engine calls the time, which may be set back; what never goes back; and what the file
    system stamps files with, of which no two stamps are the same.
    """

    def __init__(self, source):
        self.time_ms = self.latest_ms = NOW_MS  # now, and the latest that was ever seen
        self.set_back = 0  # how often it was
        self._random = source
        self._stamp_ns = NOW_MS * 1_000_000

    def monotonic(self):
        """Seconds, as time.monotonic."""
        return self._stamp_ns / 1e9

    def rest(self, seconds):
        """Nothing happens for so long."""
        self._stamp_ns += seconds * 1_000_000_000

    def time_ns(self):
        """The file system's time, as time.time_ns: now and then it is long after the last stamp."""
        self._stamp_ns += self._random.choice((0, 1000, 100_000_000))
        return self._stamp_ns

    def stamp(self, path):
        """Marks a file or directory as changed now."""
        self._stamp_ns += 10_007
        with contextlib.suppress(FileNotFoundError):
            os.utime(path, ns=(self._stamp_ns, self._stamp_ns))

    def now_ms(self):
        """The engine's time. It stands still in a moment."""
        if not in_moment():
            scheduler = current()
            if scheduler is not None and not scheduler.killed:
                scheduler.switch("clock")
            self.time_ms += self._random.choice((0, 0, 1, 3))
        self.latest_ms = max(self.latest_ms, self.time_ms)
        return self.time_ms


class Inodes:
    """Inode numbers as file systems give them: that of a removed file goes to the next new one."""

    def __init__(self):
        self._numbers = {}  # by the real ones
        self._free = []
        self._new = itertools.count(1)

    def of(self, real):
        """The number of a file, given when it is first asked for."""
        if real not in self._numbers:
            self._numbers[real] = self._free.pop() if self._free else next(self._new)
        return self._numbers[real]

    def freed(self, real):
        """The file was removed."""
        self._free.append(self.of(real))
