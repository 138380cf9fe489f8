"""The batches and records of one .log file, in whatever directory, as JSON lines."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafkafs.cli.dump_lines import put, put_damage
from kafkafs.formats import program
from storage.errors import CorruptBatch
from storage.files import names
from storage.files.log_file import LogFile
from storage.format.batches import BatchTable
from storage.format.compression import Codec
from storage.format.control_records import ControlType, control_type, parse_marker
from storage.format.decoder import Decoder
from storage.log.isolation import Transactions
from storage.log.scanning import Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import MAX_OFFSET, TimestampType, TopicPartition

if TYPE_CHECKING:
    from kafkafs.cli.output import Output
    from storage.format.block import RecordBlock

_OFFSET: Final = struct.Struct(">q")
_TYPE_NAMES: Final = {
    TimestampType.NO_TIMESTAMP_TYPE: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


def dump_log(output: Output, path: Path, *, records: bool) -> bool:
    """Prints a file of batches; False if some of it is damaged. OSError if it cannot be read."""
    segment = _segment(path)
    snapshot = LogSnapshot(
        tp=TopicPartition(path.parent.name, 0),
        segments=(segment,),
        log_start_offset=0,
        log_end_offset=MAX_OFFSET,
        active_end=segment.size,
        active_size=segment.size,
        cuts=(),
        transactions=Transactions(path.parent),
    )
    dumped = _Dumped(output, path, records=records)
    for window in scan_batches(snapshot, segment, 0):
        if window.damage is None:
            dumped.window(window)
            continue
        start, end = window.damage.position, window.damage.end
        if end == segment.size and _is_zero(segment.log, start, end):
            put(output, path, "preallocated", {"position": start, "bytes": end - start})
        else:
            dumped.sound = False
            put_damage(output, path, window.damage.error, bytes=end - start)
    return dumped.sound


class _Dumped:
    """Prints the lines of one file. `sound` until something damaged is found."""

    def __init__(self, output: Output, path: Path, *, records: bool) -> None:
        self.sound = True
        self._output = output
        self._path = path
        self._records = records
        self._decoder = Decoder()
        self._line = _record_format(path)

    def window(self, window: Window) -> None:
        """Prints the batches of a window with their records."""
        table = window.table
        row = 0
        while row < table.rows:
            block = self._decoder.decode(window.buffer, table, row, origin=window.origin, control=True)
            bounds = block.batch.searchsorted(range(row, block.next_row + 1)).tolist()
            for index, batch in enumerate(range(row, block.next_row)):
                self._batch(table, batch, valid=True)
                if self._records and bounds[index] < bounds[index + 1]:
                    self._records_of(block.select(slice(bounds[index], bounds[index + 1])), batch)
            row = block.next_row
            if block.damage is not None:
                self.sound = False
                self._batch(table, block.damage.row, valid=False)
                put_damage(self._output, self._path, block.damage.error)
                row = block.damage.row + 1

    def _batch(self, table: BatchTable, row: int, *, valid: bool) -> None:
        magic = int(table.magic[row])
        facts: dict[str, Any] = {
            "position": int(table.position[row]),
            "size": int(table.size[row]),
            "baseOffset": _known(table.base_offset[row]),
            "lastOffset": int(table.last_offset[row]),
            "count": _known(table.count[row]),
            "magic": magic,
            "codec": _codec(int(table.codec[row])),
            "timestampType": _TYPE_NAMES[TimestampType(int(table.timestamp_type[row]))],
            "maxTimestamp": int(table.max_timestamp[row]),
            "crc": int(table.crc[row]),
            "valid": valid,
        }
        if magic == 2:
            delete_horizon = bool(table.has_delete_horizon[row])
            facts |= {
                "deleteHorizon" if delete_horizon else "baseTimestamp": int(table.base_timestamp[row]),
                "leaderEpoch": int(table.leader_epoch[row]),
                "producerId": int(table.producer_id[row]),
                "producerEpoch": int(table.producer_epoch[row]),
                "baseSequence": int(table.base_sequence[row]),
                "isTransactional": bool(table.is_transactional[row]),
                "isControl": bool(table.is_control[row]),
            }
        put(self._output, self._path, "batch", facts)

    def _records_of(self, block: RecordBlock, row: int) -> None:
        if not block.table.is_control[row]:
            self._output.render(self._line, block)
            return
        for index in range(len(block)):
            facts = {"offset": int(block.offset[index]), "timestamp": int(block.timestamp[index])}
            try:
                put(self._output, self._path, "controlRecord", facts | _control(block.key(index), block.value(index)))
            except CorruptBatch as error:
                error.offset = facts["offset"]
                self.sound = False
                put_damage(self._output, self._path, error)


def _control(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    marker = parse_marker(key, value)
    if marker is not None:
        return {"type": marker.type.name, "coordinatorEpoch": marker.coordinator_epoch}
    kind = control_type(key)
    return {"type": kind.name if kind is not ControlType.UNKNOWN else None}


def _record_format(path: Path) -> program.ProgramFormat:
    """The format of a record: as in `jsonl`, with the file instead of the partition."""
    steps = program.Program.of(
        [
            f'{{"file":{json.dumps(str(path))},"kind":"record","offset":'.encode(),
            program.OFFSET,
            b',"timestamp":',
            program.TIMESTAMP,
            b',"key":',
            program.JSON_KEY,
            b',"value":',
            program.JSON_VALUE,
            b',"headers":[',
            program.JSON_HEADERS,
            b"]}\n",
        ]
    )
    return program.ProgramFormat("dump", steps)


def _segment(path: Path) -> Segment:
    log = LogFile(path)
    parsed = names.parse_segment_file(path.name)
    if parsed is not None:
        base_offset = parsed.offset
    else:
        head = log.read(0, _OFFSET.size)
        base_offset = max(0, _OFFSET.unpack(head)[0]) if len(head) == _OFFSET.size else 0
    return Segment(path.parent, base_offset, log, log.stat().st_size)


def _is_zero(log: LogFile, start: int, end: int) -> bool:
    """Holes are not read: a file may claim more bytes than any disk has."""
    at = log.skip_hole(start)
    while at < end and (data := log.read(at, min(1 << 20, end - at))):
        if any(data):
            return False
        at = log.skip_hole(at + len(data))
    return True


def _known(value: Any) -> int | None:
    return None if value < 0 else int(value)


def _codec(number: int) -> str | int:
    try:
        return Codec(number).name.lower()
    except ValueError:
        return number
