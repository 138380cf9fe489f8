"""The common part of offset index and time index: fixed-width big-endian entries in ascending order.

An index is only a hint; the log decides. So loading one never fails: the longest prefix of entries that obey the rules
is kept, and a fault after it is reported in `problem`. A running broker's index is
preallocated with zeros; its end is where the zeros begin.

Nothing here locks: an index object is immutable once loaded.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from storage.errors import CorruptIndex, IndexFault
from storage.files.log_file import open_quietly

# Read in steps, so that the zeros of a preallocated file (10 MiB) are not all read.
_STEP_ENTRIES = 8192
_END_ENTRIES = 256
_REINDEX = "Readers work around it; `kafkafs reindex` rebuilds it from the log"

I = TypeVar("I", bound="SparseIndex")  # noqa: E741


def load_index(path: Path, entry_size: int, parse: Callable[[bytes], I]) -> I:
    """Reads an index file up to its preallocated zeros and parses it. Never raises: see `missing` and `problem`."""
    data, missing, problem = b"", False, None
    try:
        with open(path, "rb", buffering=0, opener=open_quietly) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            data = b"".join(used_parts(file.fileno(), entry_size))
    except FileNotFoundError:
        missing = True
    except OSError as error:
        problem = CorruptIndex(f"cannot be read: {error.strerror}", IndexFault.UNREADABLE, path=path)
    else:
        if size_bytes % entry_size:
            problem = broken_entry(
                "index file ends within an entry",
                IndexFault.SIZE,
                path=path,
                position=size_bytes - size_bytes % entry_size,
                expected=f"a size that is a multiple of {entry_size}",
                found=size_bytes,
            )
    index = parse(data)
    index.missing, index.problem = missing, index.problem or problem
    return index


def load_end(path: Path, entry_size: int, parse: Callable[[bytes], I]) -> I | None:
    """The last entries of an index file; None if it must be read as a whole, because it cannot be read, ends in
    preallocated zeros, or these entries are not sound. Whether the entries before them are is not looked at."""
    with suppress(OSError), open(path, "rb", buffering=0, opener=open_quietly) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        data = os.pread(file.fileno(), _END_ENTRIES * entry_size, max(0, size_bytes - _END_ENTRIES * entry_size))
        if size_bytes % entry_size == 0 and any(data[-entry_size:]):
            index = parse(data)
            return index if index.problem is None else None
    return None


def used_parts(fd: int, entry_size: int) -> Iterator[bytes]:
    """The bytes of an index file, in parts, up to its preallocated zeros."""
    step = _STEP_ENTRIES * entry_size
    zero = bytes(entry_size)
    position = 0
    while True:
        part = os.pread(fd, step, position)
        yield part
        position += len(part)
        # A short read is the end of the file (or its growing end, which the next load sees).
        if len(part) < step or part.endswith(zero):
            return


def used_entries(words: npt.NDArray[np.int64]) -> int:
    """The number of rows up to the last one that is not all zero. `words`: shape (rows, fields)."""
    used = np.flatnonzero(words.any(axis=1))
    return int(used[-1]) + 1 if len(used) else 0


def first_failure(failed: npt.NDArray[np.bool_]) -> int:
    """The first row where `failed` holds; its length when there is none."""
    if not len(failed):
        return 0
    row = int(failed.argmax())
    return row if failed[row] else len(failed)


def broken_entry(
    what: str, fault: IndexFault, *, path: Path | None, position: int, expected: object, found: object
) -> CorruptIndex:
    """The error for the first entry that breaks a rule; `position` is the entry's byte position in the index."""
    return CorruptIndex(what, fault, path=path, position=position, expected=expected, found=found, advice=_REINDEX)


class SparseIndex:
    """The trusted entries of one index file, as two native columns: `keys` (ascending, searched) and `values`.

    `problem`: why entries beyond these (or the file as a whole) are not trusted; None for a sound file.
    `missing`: there is no such file (which is right for a segment that nobody has indexed yet).
    """

    __slots__ = ("_keys", "_values", "base_offset", "missing", "problem")

    def __init__(
        self,
        base_offset: int,
        keys: npt.NDArray[Any],
        values: npt.NDArray[Any],
        *,
        problem: CorruptIndex | None,
        missing: bool,
    ) -> None:
        self.base_offset = base_offset
        self._keys = keys
        self._values = values
        self.problem = problem
        self.missing = missing

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def entries(self) -> int:
        """The number of trusted entries."""
        return len(self._keys)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory of the columns."""
        return self._keys.nbytes + self._values.nbytes

    def _floor_slot(self, key: int) -> int:
        """The last entry with a key <= `key`; -1 when there is none (AbstractIndex.largestLowerBoundSlotFor)."""
        # Not numpy's searchsorted, which converts the whole column when the key has another type.
        return bisect_right(self._keys.data, key) - 1
