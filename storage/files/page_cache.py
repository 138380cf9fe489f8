"""Which bytes of a file the machine's page cache does not have (mincore(2)).

Asking changes nothing: no page is read, and no byte of the mapping is touched, so a file that another process truncates
meanwhile does no harm. The kernel answers only those who own the file or may write it; to others it says that
everything is there.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

import numpy as np

from storage.files import c_library

_MOST_BYTES: Final = 1 << 31  # no segment of a broker has more; the answer takes memory for each page


def uncached_spans(fd: int, start: int, end: int) -> list[tuple[int, int]]:
    """The spans, each from a byte to another (excluded), of the bytes from `start` to `end` that the page cache does
    not have; none where the kernel does not say, or beyond the first 2 GiB."""
    call = c_library.function("mincore")
    first, end = start - start % mmap.PAGESIZE, min(end, start + _MOST_BYTES)
    if call is None or start >= end:
        return []
    with mmap.mmap(fd, end - first, mmap.MAP_SHARED, mmap.PROT_READ, offset=first) as mapping:
        content = np.frombuffer(mapping, np.uint8)
        pages = np.zeros(-(-len(content) // mmap.PAGESIZE), np.uint8)
        failed = call(
            ctypes.c_void_p(content.ctypes.data),
            ctypes.c_size_t(len(content)),
            ctypes.c_void_p(pages.ctypes.data),
        )
        del content  # a mapping with a buffer in use cannot be closed
    if failed:
        return []
    edges = np.flatnonzero(np.diff(pages & 1, prepend=1, append=1))
    return [
        (max(start, first + int(begin) * mmap.PAGESIZE), min(end, first + int(stop) * mmap.PAGESIZE))
        for begin, stop in edges.reshape(-1, 2)
    ]
