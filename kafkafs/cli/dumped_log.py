"""The batches and records of one .log file, in whatever directory, as JSON lines."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

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
    from kafkafs.formats.format import Format
    from storage.format.block import RecordBlock

_OFFSET: Final = struct.Struct(">q")
_TYPE_NAMES: Final[dict[int, str]] = {
    TimestampType.NO_TIMESTAMP_TYPE: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
_CODECS: Final[dict[int, str]] = {codec: f'"{codec.name.lower()}"' for codec in Codec}
_BOOLS: Final = {False: "false", True: "true"}
# The most bytes of records that are rendered at once. One call for each batch would cost more than the batch.
_AT_ONCE: Final = 4 << 20


def log_lines(output: Output, path: Path, raw: bool | None) -> bool:
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
        generation=0,
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
            lines, ends = self._rendered(block)
            for index, line in enumerate(self._batches(table, row, block.next_row, valid=True)):
                self._output.put(memoryview(line))
                first, last = bounds[index : index + 2]
                if self._raw is None or first == last:
                    continue
                if lines is not None:
                    self._output.put(lines[ends[first] : ends[last]])
                else:
                    self._records_of(block.select(slice(first, last)), row + index)
            row = block.next_row
            if block.damage is not None:
                self.sound = False
                for line in self._batches(table, block.damage.row, block.damage.row + 1, valid=False):
                    self._output.put(memoryview(line))
                put_damage(self._output, self._path, block.damage.error)
                row = block.damage.row + 1

    def _rendered(self, block: RecordBlock) -> tuple[memoryview | None, list[int]]:
        """The lines of a block's records, and where each ends. None if the batches must be printed one by one: with
        headers, control records or more than _AT_ONCE bytes."""
        size = int(np.maximum(block.key_length, 0).sum() + np.maximum(block.value_length, 0).sum())
        if not len(block) or self._raw is None or size > _AT_ONCE or block.headers_count.any():
            return None, []
        if block.table.is_control[block.batch].any():
            return None, []
        form, room = self._format(block), 16 * size + 512 * len(block)
        while True:
            out = np.empty(room, np.uint8)
            row, end = form.render_rows(block, out.data)
            if row == len(block):
                # A line ends with the only newline that is in it.
                return out[:end].data, [0, *(np.flatnonzero(out[:end] == ord("\n")) + 1).tolist()]
            room *= 4

    def _format(self, block: RecordBlock) -> Format:
        if self._line is None:
            group = _group_of(self._path, block)
            self._line = _record_format(self._path) if group is None else _own_format(self._path, group)
        return self._line

    def _batches(self, table: BatchTable, first: int, last: int, *, valid: bool) -> Iterator[bytes]:
        """The lines of batches. Formatted without `json`, because there may be a batch for every few records."""
        rows = slice(first, last)
        before = b'{"file":%b,"kind":"batch",' % json.dumps(str(self._path), ensure_ascii=False).encode(
            errors="backslashreplace"
        )
        known = (
            table.position, table.size, table.base_offset, table.last_offset, table.count, table.magic, table.codec,
            table.timestamp_type, table.max_timestamp, table.crc,
        )  # fmt: skip
        newer = (
            table.has_delete_horizon, table.base_timestamp, table.leader_epoch, table.producer_id,
            table.producer_epoch, table.base_sequence, table.is_transactional, table.is_control,
        )  # fmt: skip
        columns = [column[rows].tolist() for column in (*known, *newer)]
        for position, size, base, last_offset, count, magic, codec, kind, greatest, crc, *more in zip(
            *columns, strict=True
        ):
            text = (
                f'"position":{position},"size":{size},"baseOffset":{"null" if base < 0 else base},'
                f'"lastOffset":{last_offset},"count":{"null" if count < 0 else count},"magic":{magic},'
                f'"codec":{_CODECS.get(codec, codec)},"timestampType":"{_TYPE_NAMES[kind]}",'
                f'"maxTimestamp":{greatest},"crc":{crc},"valid":{_BOOLS[valid]}'
            )
            if magic == 2:
                horizon, timestamp, epoch, producer, producer_epoch, sequence, transactional, control = more
                text += (
                    f',"{"deleteHorizon" if horizon else "baseTimestamp"}":{timestamp},"leaderEpoch":{epoch},'
                    f'"producerId":{producer},"producerEpoch":{producer_epoch},"baseSequence":{sequence},'
                    f'"isTransactional":{_BOOLS[transactional]},"isControl":{_BOOLS[control]}'
                )
            yield b"%b%b}\n" % (before, text.encode())

    def _records_of(self, block: RecordBlock, row: int) -> None:
        if not block.table.is_control[row]:
            self._output.render(self._format(block), block)
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
                _, decoded = messages("control").one(key, value)
                facts |= decoded
            except StorageError as error:
                facts["error"] = error.what
        return facts


def _group_of(path: Path, block: RecordBlock) -> str | None:
    """The group of Kafka's own messages that the records of a file belong to; None: those of clients.

    The name of the directory, or of a metadata snapshot, decides. Only in a directory with another name do the records
    in `block` decide: if they are messages of one group and of no other group.
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
    from kafkafs.decoding.decoded_jsonl import DecodedJsonl
    from kafkafs.decoding.own_topic_decoder import OwnTopicDecoder
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
    """Whether a range of a file is zero. Holes are not read: a file may claim more bytes than any disk has."""
    at = log.skip_hole(start)
    while at < end and (data := log.read(at, min(1 << 20, end - at))):
        if any(data):
            return False
        at = log.skip_hole(at + len(data))
    return True
