"""The limit on a process's descriptors, and a wait on one of them.

A log directory may have thousands of partitions. Files that are read are opened for each read (`log_file`), and logs
that are written to share half of the limit (`storage.append.open_logs`). The lock of a log directory is outside of
this: closing any descriptor of the lock file releases the lock (`dir_lock`).
"""

from __future__ import annotations

import contextlib
import errno
import resource
import select
from typing import Final

# Errors of a full descriptor table: the process's, and the system's.
NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
# At least this many may be held, whatever the limit is.
_LEAST: Final = 6


def raise_limit() -> None:
    """Raises the soft limit on descriptors to the hard limit.

    For programs, at their start; a library does not change the limits of its process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # if the system refuses, the limit stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def half_the_limit() -> int:
    """How many descriptors may be held: half of what the process may have now. The rest is for files that are opened
    and closed at once, and for all other code in the process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # never RLIM_INFINITY: Linux bounds it by fs.nr_open
    return max(_LEAST, soft // 2)


def wait_for_room(fd: int) -> None:
    """Waits until a descriptor that would block accepts more data, or never will. select(2) is limited to 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()
