"""Apache Kafka's on-disk log as a library: read and write a log directory's partitions, without a broker.

    from storage import LogDir, TopicPartition, read_range

    log = LogDir.open_read_only("/var/lib/kafka").log(TopicPartition("orders", 0))
    snapshot = log.snapshot()
    for block in read_range(snapshot, snapshot.log_start_offset):
        if block.damage is not None:
            raise block.damage.error
        ...

    from storage import Appender, Opening, OwnedDir, Record

    owned = OwnedDir.open("./logs", Opening(create=True))
    owned.create_topic("orders", 3)
    outcome = Appender(owned.appendable(TopicPartition("orders", 0)), clock=owned.clock).append([Record(b"k", b"v")])
    owned.close()

Names are imported on first use: `import storage` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.append.appender import Appended, Appender
    from storage.directory.owned_dir import Closing, Opening, OwnedDir
    from storage.errors import StorageError
    from storage.format.block import Record, RecordBlock, RecordColumns
    from storage.format.decoder import Decoder
    from storage.log.isolation import last_stable_offset
    from storage.log.log_dir import LogDir
    from storage.log.offset_lookup import offset_for_timestamp
    from storage.log.reader import find_batch, read_blocks, read_range
    from storage.log.scanning import scan_batches
    from storage.log.snapshot import LogSnapshot, ReadableLog
    from storage.types import Isolation, TimestampOffset, TimestampType, TopicPartition

__all__ = [
    "Appended",
    "Appender",
    "Closing",
    "Decoder",
    "Isolation",
    "LogDir",
    "LogSnapshot",
    "Opening",
    "OwnedDir",
    "ReadableLog",
    "Record",
    "RecordBlock",
    "RecordColumns",
    "StorageError",
    "TimestampOffset",
    "TimestampType",
    "TopicPartition",
    "find_batch",
    "last_stable_offset",
    "offset_for_timestamp",
    "read_blocks",
    "read_range",
    "scan_batches",
]

_HOMES = {
    "storage.log.offset_lookup": ("offset_for_timestamp",),
    "storage.errors": ("StorageError",),
    "storage.format.decoder": ("Decoder",),
    "storage.format.block": ("Record", "RecordBlock", "RecordColumns"),
    "storage.append.appender": ("Appended", "Appender"),
    "storage.log.isolation": ("last_stable_offset",),
    "storage.log.log_dir": ("LogDir",),
    "storage.directory.owned_dir": ("Closing", "Opening", "OwnedDir"),
    "storage.log.reader": ("find_batch", "read_blocks", "read_range"),
    "storage.log.scanning": ("scan_batches",),
    "storage.log.snapshot": ("ReadableLog", "LogSnapshot"),
    "storage.types": ("Isolation", "TimestampOffset", "TimestampType", "TopicPartition"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'storage' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
