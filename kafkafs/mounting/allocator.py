"""How much freed memory the C library keeps: as little as possible, for a process that runs for months.

By default glibc has an arena for each thread (up to eight for each processor), and raises the size from which blocks
are allocated by mmap to that of the largest block ever freed, up to 32 MiB. Then the buffers of all threads are mixed
with small objects in heaps that cannot shrink: after eight parallel readers, a mount held 90 MB of unused memory.
"""

from __future__ import annotations

import ctypes

# From malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

_SETTINGS = {
    # Because of Python's lock, hardly ever more than one thread allocates at a time.
    _ARENA_MAX: 2,
    # Larger blocks are returned to the system when freed; frequently needed ones are recycled (buffers, workbenches).
    _MMAP_THRESHOLD: 1 << 20,
    # Setting one of these keeps the other from adapting itself, so both are set.
    _TRIM_THRESHOLD: 4 << 20,
}


def tune_malloc() -> bool:
    """Make the C library return freed memory to the system. Call it once, before threads are started. False if the
    library is not glibc, or refuses a setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    done = [mallopt(what, value) == 1 for what, value in _SETTINGS.items()]
    return all(done)
