"""The system's libzstd and liblz4, if installed: addresses of their C functions, for inflate_kernel.

cramjam can decompress everything. But it needs a call for each batch, each of which takes the GIL again and creates a
new context: that costs half of the time of zstd, and all that a second thread could gain.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_LZ4F_VERSION = 100  # LZ4F_getVersion of the interface that is used here, since liblz4 1.7


class _Lz4Options(ctypes.Structure):
    """LZ4F_decompressOptions_t. `stable_dst`: output stays in place until a frame ends, so no copy is needed.

    Later versions of the library use the third word (skip checksums); it stays 0.
    """

    _fields_ = (
        ("stable_dst", ctypes.c_uint),
        ("reserved2", ctypes.c_uint),
        ("reserved1", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
    )


class _Zstd(NamedTuple):
    version: str
    decompress: int  # address
    create: Callable[[], int | None]
    free: Callable[[int], object]


class _Lz4(NamedTuple):
    version: str
    decompress: int
    reset: int
    create: Callable[[Any, int], int]
    free: Callable[[int], object]


_OPTIONS = _Lz4Options(stable_dst=1)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@lru_cache(maxsize=1)
def _zstd() -> _Zstd | None:
    try:
        library = ctypes.CDLL("libzstd.so.1")
        version, create, free = library.ZSTD_versionString, library.ZSTD_createDCtx, library.ZSTD_freeDCtx
        decompress = _address(library.ZSTD_decompressDCtx)
    except (OSError, AttributeError):
        return None
    version.restype, create.restype, free.argtypes = ctypes.c_char_p, ctypes.c_void_p, (ctypes.c_void_p,)
    return _Zstd(version().decode(), decompress, create, free)


@lru_cache(maxsize=1)
def _lz4() -> _Lz4 | None:
    try:
        library = ctypes.CDLL("liblz4.so.1")
        version, free = library.LZ4_versionString, library.LZ4F_freeDecompressionContext
        create = library.LZ4F_createDecompressionContext
        decompress, reset = _address(library.LZ4F_decompress), _address(library.LZ4F_resetDecompressionContext)
    except (OSError, AttributeError):
        return None
    version.restype, free.argtypes = ctypes.c_char_p, (ctypes.c_void_p,)
    create.argtypes, create.restype = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint), ctypes.c_size_t
    return _Lz4(version().decode(), decompress, reset, create, free)


def versions() -> dict[str, str]:
    """Names and versions of the libraries that were found."""
    return {
        name: library.version for name, library in (("libzstd", _zstd()), ("liblz4", _lz4())) if library is not None
    }


class CodecLibrary:
    """Decompression contexts, with the addresses that the kernel needs. For one thread at a time."""

    def __init__(self) -> None:
        # In the kernel's order: ZSTD_DECOMPRESS, ZSTD_CONTEXT, LZ4_DECOMPRESS, LZ4_RESET, LZ4_CONTEXT, LZ4_OPTIONS.
        self.addresses: npt.NDArray[np.int64] = np.zeros(6, np.int64)
        zstd, lz4 = _zstd(), _lz4()
        if zstd is not None and (zstd_context := zstd.create()):
            weakref.finalize(self, zstd.free, zstd_context)
            self.addresses[:2] = zstd.decompress, zstd_context
        if lz4 is not None:
            context = ctypes.c_void_p()
            if lz4.create(ctypes.byref(context), _LZ4F_VERSION) == 0 and context.value:
                weakref.finalize(self, lz4.free, context.value)
                self.addresses[2:] = lz4.decompress, lz4.reset, context.value, ctypes.addressof(_OPTIONS)
