"""What is in the files of a log directory."""

from typing import NamedTuple

from storage.errors import StorageError
from storage.files import checkpoints, names
from storage.format.batches import BatchTable, scan
from storage.format.decoder import Decoder
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import Isolation


class Anomaly(AssertionError):
    """What was promised does not hold."""


class Message(NamedTuple):
    """A message as a reader finds it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


def scanned(data):
    """The headers of the whole batches that a segment's bytes begin with."""
    table = BatchTable.empty(4096)
    scan(memoryview(data), 0, table, 0, len(data))
    return table


def segments_of(directory):
    """Path, bytes and batch headers of each segment of a partition, ascending."""
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        yield path, data, scanned(data)


def batches_in(directory):
    """Base offset and checksum of each batch in a partition's segments."""
    return [
        (int(table.base_offset[row]), int(table.crc[row]))
        for _, _, table in segments_of(directory)
        for row in range(table.rows)
    ]


def messages_of(data):
    """The messages in a segment's bytes, as far as they are whole batches."""
    table, decoder, row = scanned(data), Decoder(), 0
    while row < table.rows:
        block = decoder.decode(data, table, row, origin=0)
        if block.damage is not None:
            return
        yield from _messages(block)
        row = block.next_row


def messages_in(path, damaged=(), isolation=Isolation.READ_UNCOMMITTED):
    """Every message that a reader finds in a log directory. Raises what is damaged, except in these partitions."""
    log_dir = LogDir.open_read_only(path)
    messages = {}
    try:
        for tp in log_dir.all_partitions():
            messages[tp] = []
            snapshot = log_dir.log(tp).snapshot()
            for block in read_range(snapshot, snapshot.log_start_offset, isolation=isolation):
                if block.damage is not None and tp not in damaged:
                    raise Anomaly(f"{tp} is damaged: {block.damage.error}")
                messages[tp] += _messages(block)
    except StorageError as error:
        raise Anomaly(f"cannot be read: {error}") from error
    finally:
        log_dir.close()
    return messages


def log_start(path, tp):
    """Where a log of a closed directory begins."""
    bases = [int(log.stem) for log in (path / tp.dir_name).glob("*.log")]
    return max(checkpoints.read(path / names.LOG_START_CHECKPOINT).get(tp, 0), min(bases, default=0))


def _messages(block):
    for n in range(len(block)):
        yield Message(int(block.offset[n]), block.key(n), block.value(n), int(block.timestamp[n]))
