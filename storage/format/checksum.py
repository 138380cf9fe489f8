"""CRC-32C of v2 batches and producer snapshots, CRC-32 of v0 and v1 messages.

checksum_kernel computes those of many batches at once. Single CRC-32Cs are computed by the crc32c package if it loads,
otherwise by crcmod. The kernel's tables are made from crcmod's.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

import crcmod.predefined
import numpy as np

from storage.format import checksum_kernel
from storage.types import is_compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    Tables = NDArray[np.uint32]

# A library call from Python takes as long as the compiled tables need for about this many bytes.
SMALL_BYTES = 512
_CASTAGNOLI = 0x82F63B78  # the polynomial, its bits reflected


def _slicing_tables(name: str) -> Tables:
    """Sixteen tables of 256 entries, flat: table k is for a byte followed by k zero bytes."""
    first = np.array(crcmod.predefined.PredefinedCrc(name).table, np.uint32)
    tables = [first]
    for _ in range(15):
        previous = tables[-1]
        tables.append((previous >> 8) ^ first[previous & 0xFF])
    return np.concatenate(tables).astype(np.uint32)


@cache
def _carrying_tables(size: int) -> Tables:
    """Four tables of 256 entries, flat: the effect of `size` zero bytes, a power of two, on byte k of a CRC."""
    # The operator for one zero bit as a matrix over GF(2), squared until it is the operator for all of them.
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    operator = np.where(bits & 1, np.uint32(_CASTAGNOLI), bits >> np.uint32(1)).astype(np.uint32)
    for _ in range((8 * size).bit_length() - 1):
        operator = _applied(operator, operator)
    return np.concatenate(
        [_applied(operator, np.arange(256, dtype=np.uint32) << np.uint32(8 * byte)) for byte in range(4)]
    )


def _applied(operator: Tables, values: Tables) -> Tables:
    """Each value multiplied by a matrix over GF(2), given by its columns."""
    chosen = (values[:, None] >> np.arange(32, dtype=np.uint32) & 1).astype(np.bool_)
    products: Tables = np.bitwise_xor.reduce(np.where(chosen, operator[None, :], np.uint32(0)), axis=1)
    return products


CRC32C_TABLES = np.concatenate([_slicing_tables("crc-32c"), _carrying_tables(1024), _carrying_tables(128)])
CRC32_TABLES = _slicing_tables("crc-32")


def _crcmod_crc32c() -> Callable[[Buffer, int], int]:
    function: Callable[[bytes, int], int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

    def crc32c(data: Buffer, value: int = 0) -> int:
        return function(bytes(data), value)

    return crc32c


def _crc32c_extension() -> Callable[..., int] | None:
    """The function of the package's extension module, loaded without the rest of the package. That reads the package's
    metadata and imports an argument parser, which would take a tenth of the start of `kafkafs cat`."""
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
    """Up to how many bytes the compiled tables are faster than `crc32c`."""
    if not is_compiled(checksum_kernel):
        return -1
    return SMALL_BYTES if IMPLEMENTATION == "crc32c" else 1 << 62
