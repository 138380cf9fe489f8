"""The transaction index (.txnindex): the aborted transactions that ended in a segment.

Entries of 34 bytes: int16 version 0, int64 producer id, int64 first offset, int64 last offset (the abort marker's),
int64 last stable offset when it was aborted; last offsets strictly ascending. The file exists only after a segment's
first abort. See storage/FORMAT.md, "Index files". Sources: Kafka's TransactionIndex, AbortedTxn.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from storage.errors import CorruptIndex, IndexFault
from storage.files.small_files import MOST_ENTRIES_BYTES, read_whole
from storage.files.sparse_index import broken_entry, first_failure

ENTRY_SIZE = 34
VERSION = 0
_ENTRY = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)


class AbortedTxn(NamedTuple):
    """An aborted transaction; `last_offset` is its marker's (Kafka's AbortedTxn)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The trusted entries of a .txnindex as int64 columns, ascending by `last_offset`.

    `problem`: why later entries are not trusted; aborts that the log's markers record may then be missing here.
    `missing`: there is no such file, as for a segment without aborts.
    """

    __slots__ = ("first_offset", "last_offset", "last_stable_offset", "missing", "problem", "producer_id")

    def __init__(
        self, columns: npt.NDArray[np.int64], *, problem: CorruptIndex | None = None, missing: bool = False
    ) -> None:
        # One row per column, in the order of the file.
        self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset = columns
        self.problem = problem
        self.missing = missing

    def __len__(self) -> int:
        return len(self.producer_id)

    def entry(self, slot: int) -> AbortedTxn:
        """The entry in this slot."""
        return AbortedTxn(
            int(self.producer_id[slot]),
            int(self.first_offset[slot]),
            int(self.last_offset[slot]),
            int(self.last_stable_offset[slot]),
        )

    def entries(self) -> list[AbortedTxn]:
        """All entries, as objects."""
        return [self.entry(slot) for slot in range(len(self))]

    def collect(self, start: int, end: int) -> tuple[npt.NDArray[np.intp], bool]:
        """The slots of transactions that may affect offsets `start` (included) to `end` (excluded), and whether these
        are all.

        If not, the indexes of later segments must be searched too (TransactionIndex.collectAbortedTxns).
        """
        stable = np.flatnonzero(self.last_stable_offset >= end)
        complete = len(stable) > 0
        asked = int(stable[0]) + 1 if complete else len(self)
        slots = np.flatnonzero((self.last_offset[:asked] >= start) & (self.first_offset[:asked] < end))
        return slots, complete


def parse(data: bytes, base_offset: int, *, growing: bool = False, path: Path | None = None) -> TransactionIndex:
    """The entries in the bytes of a .txnindex. Never raises.

    `growing`: an entry that is cut off at the end is being written right now and is not a problem.
    """
    whole, rest = divmod(len(data), ENTRY_SIZE)
    table = np.frombuffer(data, dtype=_ENTRY, count=whole)
    columns = np.empty((4, whole), dtype=np.int64)
    for row, name in enumerate(("producer_id", "first_offset", "last_offset", "last_stable_offset")):
        columns[row] = table[name]
    producer, first, last, stable = columns
    failed = (table["version"] != VERSION) | (producer < 0) | (first < 0) | (first > last) | (last < base_offset)
    failed |= (stable < 0) | (stable > last + 1)
    failed[1:] |= last[1:] <= last[:-1]
    row = first_failure(failed)
    problem = None
    if row < whole:
        entry = table[row]
        problem = broken_entry(
            "transaction index entry is impossible",
            IndexFault.ENTRY,
            path=path,
            position=row * ENTRY_SIZE,
            expected="version 0, first offset <= last offset, last stable offset <= last offset + 1, "
            f"last offset above {max(base_offset, int(last[row - 1]) + 1 if row else 0) - 1}",
            found=", ".join(f"{name} {int(entry[name])}" for name in _ENTRY.names or ()),
        )
    elif rest and not growing:
        problem = broken_entry(
            "transaction index ends within an entry",
            IndexFault.SIZE,
            path=path,
            position=whole * ENTRY_SIZE,
            expected=f"a size that is a multiple of {ENTRY_SIZE}",
            found=len(data),
        )
    return TransactionIndex(np.ascontiguousarray(columns[:, :row]), problem=problem)


def load(path: Path, base_offset: int, *, growing: bool = False) -> TransactionIndex:
    """Reads a .txnindex; see `parse`. Never raises: a missing or unreadable file gives an index without entries."""
    try:
        data = read_whole(path, MOST_ENTRIES_BYTES)
    except OSError as error:
        problem = CorruptIndex(f"cannot be read: {error.strerror}", IndexFault.UNREADABLE, path=path)
        return TransactionIndex(np.empty((4, 0), dtype=np.int64), problem=problem)
    if data is None:
        return TransactionIndex(np.empty((4, 0), dtype=np.int64), missing=True)
    return parse(data, base_offset, growing=growing, path=path)


def stops_at(path: Path) -> int | None:
    """The version of the entry at which a broker stops loading a segment: with VERSION it recovers the segment, with
    another one it does not start. None if there is no such entry (TransactionIndex.sanityCheck)."""
    try:
        data = read_whole(path, MOST_ENTRIES_BYTES) or b""
    except OSError:
        return VERSION  # which `verify` reports
    table = np.frombuffer(data, dtype=_ENTRY, count=len(data) // ENTRY_SIZE)
    rows = np.flatnonzero((table["version"] != VERSION) | (table["last_offset"] < int(path.stem)))
    return int(table["version"][rows[0]]) if rows.size else None


def encode(entries: list[AbortedTxn]) -> bytes:
    """The bytes of a .txnindex. ValueError when last offsets are not strictly ascending (TransactionIndex.append)."""
    table = np.empty(len(entries), dtype=_ENTRY)
    for row, txn in enumerate(entries):
        if row and txn.last_offset <= entries[row - 1].last_offset:
            raise ValueError("last offsets of aborted transactions must be strictly ascending")
        table[row] = (VERSION, txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset)
    return table.tobytes()
