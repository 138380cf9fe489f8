"""Control records, written: a batch of one each. Source: `MemoryRecords.withEndTransactionMarker`; storage/FORMAT.md,
"Control records"."""

from __future__ import annotations

import struct
from dataclasses import replace

from storage.format.block import Record
from storage.format.control_records import ControlType, EndTransactionMarker
from storage.format.record_batch import NO_LEADER_EPOCH, BatchFields, encode_batch


def control_key(kind: ControlType) -> bytes:
    if kind is ControlType.UNKNOWN:
        raise ValueError("an unknown control type has no key")
    return struct.pack(">hh", 0, kind)


def marker_value(marker: EndTransactionMarker) -> bytes:
    return struct.pack(">hi", 0, marker.coordinator_epoch)


def control_batch(
    kind: ControlType, value: bytes | None, *, base_offset: int, timestamp: int, fields: BatchFields
) -> bytes:
    """A batch of one control record; the control flag is set here."""
    return encode_batch(
        [Record(control_key(kind), value, (), timestamp)], base_offset=base_offset, fields=replace(fields, control=True)
    )


def marker_batch(
    marker: EndTransactionMarker,
    *,
    base_offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The 78-byte batch that ends a transaction."""
    if marker.type not in (ControlType.ABORT, ControlType.COMMIT):
        raise ValueError(f"{marker.type.name} does not end a transaction")
    fields = BatchFields(
        leader_epoch=leader_epoch, producer_id=producer_id, producer_epoch=producer_epoch, transactional=True
    )
    value = marker_value(marker)
    return control_batch(marker.type, value, base_offset=base_offset, timestamp=timestamp, fields=fields)
