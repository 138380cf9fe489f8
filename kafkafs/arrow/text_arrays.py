"""Arrow arrays of texts or bytes that lie one after another in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]


def strings(
    kind: pa.DataType, data: NDArray[np.uint8], ends: Int64s, valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Strings or bytes that lie one after another; null where not `valid`."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    validity = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(ends), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])
