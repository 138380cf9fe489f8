"""What the kernel's page cache has of a file."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def cached_bytes(path: Path) -> int:
    """How many bytes of a file it has, in whole pages (mincore(2))."""
    size = path.stat().st_size
    if not size:
        return 0
    # A private mapping that may be written, because ctypes takes the address of no other; nobody writes.
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, protection) as view:
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        first = ctypes.c_char.from_buffer(view)
        failed = _libc.mincore(ctypes.addressof(first), size, pages)
        del first
        assert not failed, os.strerror(ctypes.get_errno())
    return sum(page[0] & 1 for page in pages) * mmap.PAGESIZE


def uncached(path: Path) -> None:
    """Has the page cache drop a file. Skips the test where the file system keeps its files in memory alone."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_bytes(path):
        pytest.skip("the file system keeps its files in memory")
