"""How the C library keeps memory that nobody uses any more: for a process that runs for months, as little as may be.

By default glibc gives each thread an arena (eight for each processor), and raises the size from which memory comes from
the system by mmap to that of the largest block that was ever given back, up to 32 MiB. Then the buffers of all threads
lie mixed with small objects in heaps that cannot shrink: after eight parallel readers a mount held 90 MB for nothing.
"""

from __future__ import annotations

import ctypes

# From malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

_SETTINGS = {
    # Python's lock lets hardly ever more than one thread allocate at a time.
    _ARENA_MAX: 2,
    # Given back to the system when it is freed; what is needed often is recycled (buffers, benches, blocks).
    _MMAP_THRESHOLD: 1 << 20,
    # Setting one of these keeps the other from adapting itself, so both are set.
    _TRIM_THRESHOLD: 4 << 20,
}


def keep_little() -> bool:
    """Tells the C library so: once, before threads are started. False where it is another one than glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    done = [mallopt(what, value) == 1 for what, value in _SETTINGS.items()]
    return all(done)
