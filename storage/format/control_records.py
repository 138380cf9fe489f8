"""Reading control records: the markers that end transactions, and others that a broker writes between the data.

See storage/FORMAT.md, "Control records". Source: `ControlRecordType`, `EndTransactionMarker`,
`MemoryRecords.withEndTransactionMarker`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from storage.errors import CorruptBatch

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from storage.format.block import RecordBlock

_KEY = struct.Struct(">hh")  # version, type
_MARKER = struct.Struct(">hi")  # version, coordinator epoch


class ControlType(IntEnum):
    """Kafka's ControlRecordType. Readers ignore UNKNOWN; 2 to 6 occur in `__cluster_metadata` only."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTransactionMarker(NamedTuple):
    """The record that commits or aborts a producer's transaction."""

    type: ControlType
    coordinator_epoch: int = 0


class ControlRecord(NamedTuple):
    """A control record of a block; `row`: its batch's row in the block's table. `coordinator_epoch`: a marker's,
    otherwise None."""

    offset: int
    timestamp: int
    row: int
    type: ControlType
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int | None


def control_type(key: Buffer | None) -> ControlType:
    """The type in a control record's key. Raises CorruptBatch for a null or short key or a negative version."""
    number = _versioned(key, _KEY, "control record key", "a control record key")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def parse_marker(key: Buffer | None, value: Buffer | None) -> EndTransactionMarker | None:
    """The transaction marker in a control record; None for other types. Raises CorruptBatch where Kafka fails, too."""
    kind = control_type(key)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    what = "a transaction marker"
    return EndTransactionMarker(kind, _versioned(value, _MARKER, f"value of {what}", what))


def _versioned(data: Buffer | None, layout: struct.Struct, part: str, what: str) -> int:
    """The field after the version. CorruptBatch when `data` is null or short, or the version is negative."""
    size = 0 if data is None else len(memoryview(data))
    if data is None or size < layout.size:
        raise CorruptBatch(part, expected=f"at least {layout.size} bytes", found=size)
    version, field = layout.unpack_from(data)
    if version < 0:
        raise CorruptBatch(f"version of {what}", expected="0 or more", found=version)
    return int(field)


def control_records(block: RecordBlock) -> list[ControlRecord]:
    """The records of control batches in a block that was decoded with `control=True`, in offset order.

    Raises CorruptBatch, with the record's offset, for one that does not parse.
    """
    table = block.table
    is_control = table.is_control
    records = []
    for index in is_control[block.batch].nonzero()[0].tolist():
        row = int(block.batch[index])
        offset = int(block.offset[index])
        key = block.key(index)
        try:
            marker = parse_marker(key, block.value(index))
            kind = control_type(key) if marker is None else marker.type
        except CorruptBatch as error:
            error.offset = offset
            raise
        records.append(
            ControlRecord(
                offset,
                int(block.timestamp[index]),
                row,
                kind,
                int(table.producer_id[row]),
                int(table.producer_epoch[row]),
                None if marker is None else marker.coordinator_epoch,
            )
        )
    return records
