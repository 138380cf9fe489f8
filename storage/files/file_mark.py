"""Whether a file or directory has changed since it was last examined, judged by its stat alone.

File times have the resolution of the kernel's clock tick. So a time close to now does not prove that nothing has
changed since, and is not relied on.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Final

_SETTLED_NS: Final = 50_000_000
_SETTLED_SECONDS_NS: Final = 2_100_000_000  # for file systems that keep whole seconds


@dataclass(frozen=True, slots=True)
class FileMark:
    """A stat of a file or directory, to be compared with a later one.

    `settled`: the last change is old enough that another change would show in the times.
    """

    mtime_ns: int
    size: int
    inode: int
    settled: bool = field(default=False, compare=False)

    @staticmethod
    def of(status: os.stat_result) -> FileMark:
        settled_ns = _SETTLED_SECONDS_NS if _is_coarse(status.st_mtime_ns) else _SETTLED_NS
        # The system's own clock, since it is what stamps the files.
        settled = abs(time.time_ns() - status.st_mtime_ns) > settled_ns
        return FileMark(status.st_mtime_ns, status.st_size, status.st_ino, settled)

    def matches(self, status: os.stat_result) -> bool:
        """True when nothing can have changed between this stat and `status`."""
        return self.settled and self.shows(status)

    def shows(self, status: os.stat_result) -> bool:
        """True when `status` shows the same state. If this mark is not settled, the file may still have changed."""
        return status.st_mtime_ns == self.mtime_ns and status.st_size == self.size and status.st_ino == self.inode

    def still_shows(self, status: os.stat_result) -> bool:
        """`shows` for a file that is no longer written continuously: two changes within one tick of a nanosecond
        clock are ruled out, but not two within the same second where times are whole seconds."""
        return self.shows(status) and (self.settled or not _is_coarse(self.mtime_ns))


def _is_coarse(mtime_ns: int) -> bool:
    return mtime_ns % 1_000_000_000 == 0


NEVER: Final = FileMark(-1, -1, -1)
