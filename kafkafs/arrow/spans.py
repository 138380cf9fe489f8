"""The places of the values of a binary Arrow column in its data."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def spans(column: pa.Array) -> tuple[memoryview, NDArray[np.int64], NDArray[np.int64]]:
    """The data of a column of bytes or strings, and where each value is: starts and lengths, -1 for null."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
    starts, lengths = bounds[:-1], np.diff(bounds)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return np.frombuffer(b"" if data is None else data, np.uint8).data, starts, lengths
