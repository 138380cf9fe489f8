"""The batches and records of one .log file, in whatever directory, as JSON lines."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafkafs.cli.dump_lines import put, put_damage
from kafkafs.formats import program
from storage.errors import CorruptBatch, StorageError
from storage.files import names
from storage.files.log_file import LogFile
from storage.format.batches import BatchTable
from storage.format.compression import Codec
from storage.format.control_records import ControlType, control_type, parse_marker
from storage.format.decoder import Decoder
from storage.format.messages import GROUPS, messages
from storage.log.isolation import Transactions
from storage.log.scanning import Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.types import MAX_OFFSET, TimestampType, TopicPartition

if TYPE_CHECKING:
    from kafkafs.cli.output import Output
    from kafkafs.formats.base import Format
    from storage.format.block import RecordBlock

_OFFSET: Final = struct.Struct(">q")
_TYPE_NAMES: Final = {
    TimestampType.NO_TIMESTAMP_TYPE: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


def dump_log(output: Output, path: Path, *, raw: bool | None) -> bool:
    """Prints a file of batches; False if some of it is damaged. `raw`: whether records of Kafka's own topics are
    printed as any others; None: no records. OSError if it cannot be read."""
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
    dumped = _Dumped(output, path, raw=raw)
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

    def __init__(self, output: Output, path: Path, *, raw: bool | None) -> None:
        self.sound = True
        self._output = output
        self._path = path
        self._raw = raw
        self._decoder = Decoder()
        self._line: Format | None = None if not raw else _record_format(path)

    def window(self, window: Window) -> None:
        """Prints the batches of a window with their records."""
        table = window.table
        row = 0
        while row < table.rows:
            block = self._decoder.decode(window.buffer, table, row, origin=window.origin, control=True)
            bounds = block.batch.searchsorted(range(row, block.next_row + 1)).tolist()
            for index, batch in enumerate(range(row, block.next_row)):
                self._batch(table, batch, valid=True)
                if self._raw is not None and bounds[index] < bounds[index + 1]:
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
            if self._line is None:
                group = _group_of(self._path, block)
                self._line = _record_format(self._path) if group is None else _own_format(self._path, group)
            self._output.render(self._line, block)
            return
        for index in range(len(block)):
            facts = {"offset": int(block.offset[index]), "timestamp": int(block.timestamp[index])}
            try:
                facts |= self._control(block.key(index), block.value(index))
                put(self._output, self._path, "controlRecord", facts)
            except CorruptBatch as error:
                error.offset = facts["offset"]
                self.sound = False
                put_damage(self._output, self._path, error)


    def _control(self, key: bytes | None, value: bytes | None) -> dict[str, Any]:
        marker, kind = parse_marker(key, value), control_type(key)
        facts: dict[str, Any] = {"type": kind.name if kind is not ControlType.UNKNOWN else None}
        if marker is not None:
            facts["coordinatorEpoch"] = marker.coordinator_epoch
        if not self._raw and kind is not ControlType.UNKNOWN:
            try:
                _, found = messages("control").one(key, value)
                facts |= found
            except StorageError as error:
                facts["error"] = error.what
        return facts


def _group_of(path: Path, block: RecordBlock) -> str | None:
    """The group of Kafka's own messages that the records of a file belong to; None: those of clients.

    By the name of its directory or of a metadata snapshot. Only in another directory do the records decide: those of
    the first batch that has any, if they are messages of one group and no other.
    """
    if path.name.endswith(".checkpoint"):
        return names.CLUSTER_METADATA_TOPIC
    tp = names.parse_dir(path.absolute().parent.name).partition
    if tp is None:
        fitting = [group for group in sorted(GROUPS) if _fits(group, block)]
        return fitting[0] if len(fitting) == 1 else None
    if tp.topic in GROUPS:
        return tp.topic
    if tp.topic.endswith(".checkpoints.internal"):
        return "checkpoints"
    return "heartbeats" if tp.topic.rpartition(".")[2] == "heartbeats" else None


def _fits(group: str, block: RecordBlock) -> bool:
    read = list(messages(group).objects(block, exact=True))
    return all(error is None for _, _, error in read) and any(value is not None for _, value, _ in read)


def _own_format(path: Path, group: str) -> Format:
    """The format of a record of Kafka's own: as in `decoded.jsonl`, with the file instead of the partition."""
    from kafkafs.decoding import DecodedJsonl, OwnTopicDecoder
    from kafkafs.schemas.registry import Registry

    before = f'{{"file":{json.dumps(str(path))},"kind":"record"'.encode()
    return DecodedJsonl(TopicPartition(group, 0), Registry(), OwnTopicDecoder(group), before)


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
    step = 1 << 20
    return not any(any(log.read(at, min(step, end - at))) for at in range(start, end, step))


def _known(value: Any) -> int | None:
    return None if value < 0 else int(value)


def _codec(number: int) -> str | int:
    try:
        return Codec(number).name.lower()
    except ValueError:
        return number
