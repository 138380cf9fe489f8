"""Which records of a block have a key or a header: by columns, with Python objects only for possible matches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from kafkafs.selection import key_kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from storage.format.block import RecordBlock


def key_rows(block: RecordBlock, key: bytes) -> NDArray[np.intp]:
    """The rows whose key is `key`, ascending."""
    rows = np.empty(len(block), np.int64)
    return rows[: key_kernel.rows_with_key(block.buffer, block.key_start, block.key_length, key, rows)]


def header_rows(block: RecordBlock, name: bytes, value: bytes) -> NDArray[np.intp]:
    """The rows that have a header of this name and value, ascending."""
    needle = value or name
    rows = np.flatnonzero(block.headers_count > 0)
    if needle:
        rows = _that_may_hold(block, rows, needle)
    return np.array([row for row in rows.tolist() if (name, value) in block.headers(row)], np.intp)


def _that_may_hold(block: RecordBlock, rows: NDArray[np.intp], needle: bytes) -> NDArray[np.intp]:
    """Those of `rows` (which have headers) with the needle between the start of their headers and that of the next
    row's."""
    starts = block.headers_start[rows]
    search = re.compile(re.escape(needle)).search
    slots = []
    found = search(block.buffer, int(starts[0])) if len(rows) else None
    while found is not None:
        slot = int(starts.searchsorted(found.start(), side="right")) - 1
        slots.append(slot)
        # One match in a record is enough.
        found = search(block.buffer, int(starts[slot + 1])) if slot + 1 < len(starts) else None
    return rows[np.array(slots, np.intp)]
