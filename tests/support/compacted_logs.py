"""Compacted logs: made of any batches, and what compaction must leave of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from storage.append import message_sets
from storage.append.partition_log import PartitionLog
from storage.compaction.compaction import CompactionResult, Pace, unpaced
from storage.compaction.partition_compaction import compact_partition
from storage.config import BrokerConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.files.disk_protocol import Disk
from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.record_batch import PLAIN, BatchFields, encode_batch
from storage.types import TopicPartition
from tests.support.owned_dirs import NOW_MS, HastyDisk, StandingClock
from tests.support.readers import read_all

TP = TopicPartition("t", 0)
SMALL = {"cleanup.policy": "compact", "segment.bytes": "2000", "index.interval.bytes": "200"}


def opened(
    path: Path, *, disk: Disk | None = None, clock: StandingClock | None = None, config: dict[str, str] | None = None,
    **overrides: str,
) -> OwnedDir:  # fmt: skip
    """A directory with the compacted topic t, created if necessary; `overrides` with _ for the dots of its keys."""
    broker = BrokerConfig.from_values({"num.recovery.threads.per.data.dir": "1"} | (config or {}))
    owned = OwnedDir.open(
        path, Opening(create=True), config=broker, disk=disk or HastyDisk(), clock=clock or StandingClock()
    )
    if TP.topic not in owned.log_dir.topics():
        owned.create_topic(TP.topic, 1, SMALL | {key.replace("_", "."): value for key, value in overrides.items()})
    return owned


def put(
    log: PartitionLog,
    records: Sequence[Record],
    *,
    magic: int = 2,
    codec: Codec = Codec.NONE,
    fields: BatchFields = PLAIN,
) -> None:
    """Appends one batch, or an old format's messages, at the log end."""
    if magic == 2:
        data = encode_batch(records, base_offset=log.log_end_offset, codec=codec, fields=fields)
    else:
        data = message_sets.encode(records, magic, base_offset=log.log_end_offset, codec=codec)
    log.append_batches(memoryview(data))


def updates(pairs: Iterable[tuple[bytes | None, bytes | None]], timestamp: int = NOW_MS) -> list[Record]:
    return [Record(key, value, (), timestamp) for key, value in pairs]


def compact(owned: OwnedDir, pace: Pace = unpaced) -> CompactionResult:
    """Runs one pass and removes the replaced files at once."""
    result = compact_partition(owned, TP, pace=pace)
    for path in result.files:
        owned.disk.unlink(path)
    return result


def contents(owned: OwnedDir) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in read_all(owned.log(TP).snapshot())]


def latest(
    messages: Iterable[tuple[int, bytes | None, bytes | None]], end: int
) -> list[tuple[int, bytes | None, bytes | None]]:
    """What one pass up to offset `end` must leave: the last message of each key below it, and all from it on."""
    messages = list(messages)
    last = {key: offset for offset, key, _ in messages if offset < end}
    return [m for m in messages if m[0] >= end or (m[1] is not None and last[m[1]] == m[0])]
