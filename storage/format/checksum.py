"""CRC-32C of v2 batches and producer snapshots, CRC-32 of v0 and v1 messages.

CRC-32C comes from the crc32c package (the processor's own instruction) where it loads, from crcmod where not. Batches
too small to be worth a call go through the compiled tables of checksum_kernel, which are made from crcmod's.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

import crcmod.predefined
import numpy as np

from storage.format import checksum_kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    Tables = NDArray[np.uint32]

# A library call from Python costs what the compiled tables need for about so many bytes.
SMALL_BYTES = 512


def _slicing_tables(name: str) -> Tables:
    """Sixteen tables of 256 entries, flat: table k steps a byte that k zero bytes follow."""
    first = np.array(crcmod.predefined.PredefinedCrc(name).table, np.uint32)
    tables = [first]
    for _ in range(15):
        previous = tables[-1]
        tables.append((previous >> 8) ^ first[previous & 0xFF])
    return np.concatenate(tables).astype(np.uint32)


CRC32C_TABLES = _slicing_tables("crc-32c")
CRC32_TABLES = _slicing_tables("crc-32")


def _crcmod_crc32c() -> Callable[[Buffer, int], int]:
    function: Callable[[bytes, int], int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

    def crc32c(data: Buffer, value: int = 0) -> int:
        return function(bytes(data), value)

    return crc32c


def _crc32c_extension() -> Callable[..., int] | None:
    """The function of the package's extension module, without the rest of the package: that reads its own version from
    its metadata and brings an argument parser, which takes a tenth of the start of `kafkafs cat`."""
    package = find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    spec = None if places is None else PathFinder.find_spec("crc32c._crc32c", places)
    if spec is None or spec.loader is None:
        return None
    try:
        extension = module_from_spec(spec)
        spec.loader.exec_module(extension)
        function: Callable[..., int] = extension.crc32c
    except (ImportError, AttributeError):
        return None
    return function


def _choose() -> tuple[Callable[..., int], str]:
    function = _crc32c_extension()
    return (_crcmod_crc32c(), "crcmod") if function is None else (function, "crc32c")


_function, IMPLEMENTATION = _choose()


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of `data`, continuing from `value`."""
    return _function(data, value)


def crc32(data: Buffer, value: int = 0) -> int:
    """CRC-32 (IEEE 802.3) of `data`, continuing from `value`."""
    return zlib.crc32(data, value)


def small_limit() -> int:
    """Up to how many bytes the compiled tables are to be preferred to `crc32c`."""
    if not checksum_kernel.is_compiled():
        return -1
    return SMALL_BYTES if IMPLEMENTATION == "crc32c" else 1 << 62
