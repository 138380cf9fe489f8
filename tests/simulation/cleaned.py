"""What a cleaner must leave of a log, and what it must not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage.files import checkpoints, names
from storage.format.batches import BatchTable, scan
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import Isolation, TopicPartition
from tests.simulation.copies import Copied, Copy, shown
from tests.simulation.world import Anomaly, Message, World

Header = tuple[int, int, int]  # a batch's producer, last offset and first sequence


def check(world: World, tp: TopicPartition, copy: Copy, least: Sequence[Copied], possible: Sequence[Copied]) -> None:
    """A follower's compacted partition after recovery; the copy becomes what is there. The cleaner takes messages that
    have later ones of their key, and no others; batches that are the last of their producers; nothing of a transaction
    that is open, and of an aborted one only what nobody is shown then.

    `least`: the batches that must be there, but for the cleaner, and `possible`: those that may be.
    """
    headers = _headers(world.path / tp.dir_name)
    end = headers[-1][1] + 1 if headers else 0
    copy.batches = [batch for batch in possible if batch.last < end]
    copy.appending, copy.cutting, copy.synced = [], None, copy.end
    copy.gone.clear()
    copy.undone.clear()
    if not copy.forgets and copy.end < max((batch.last + 1 for batch in least), default=0):
        raise Anomaly(f"lost write: {tp} ends at {copy.end}, expected {least[-1].last + 1}")
    for isolation in (Isolation.READ_UNCOMMITTED,) if copy.forgets else Isolation:
        check_shown(tp, copy, _messages(world.path, tp, isolation), isolation)
    batches = [] if copy.forgets else copy.batches
    last_of = {batch.producer: batch for batch in batches if batch.producer >= 0 and not batch.marker}
    for producer, batch in last_of.items():
        if (producer, batch.last, batch.sequence) not in headers:
            raise Anomaly(f"producers: {tp} is without the last batch of {producer}, at {batch.last}")
    check_unique(world.path, tp, _messages(world.path, tp, Isolation.READ_UNCOMMITTED))


def check_shown(tp: TopicPartition, copy: Copy, found: Sequence[Message], isolation: Isolation) -> None:
    """What a consumer is shown of it."""
    keys = {value: key for batch in copy.batches for value, key in zip(batch.values, batch.keys, strict=False)}
    all_shown = shown(copy.batches, committed=isolation is Isolation.READ_COMMITTED)
    may = {(offset, value) for offset, value, _ in all_shown}
    wrong = [message for message in found if (message.offset, message.value) not in may]
    if wrong:
        raise Anomaly(f"aborted read: {tp} shows {wrong[0]}, which was not written, or was aborted")
    stable = shown(copy.batches, committed=True)
    latest = {keys[value]: (offset, value) for offset, value, _ in stable}
    there = {(message.offset, message.value) for message in found}
    missing = [message for message in latest.values() if message not in there and not copy.forgets]
    if missing:
        raise Anomaly(f"lost write: {tp} does not show {missing[0]} ({isolation.value}), the last of its key")


def check_unique(path: Path, tp: TopicPartition, messages: Sequence[Message]) -> None:
    """Below the cleaner's checkpoint no key has two messages."""
    until = checkpoints.read(path / names.CLEANER_CHECKPOINT).get(tp, 0)
    seen: dict[bytes | None, int] = {}
    for message in messages:
        if message.offset < until and message.key in seen:
            raise Anomaly(
                f"cleaner checkpoint: {tp} is cleaned up to {until}, and has {message.key!r} at {seen[message.key]} "
                f"and {message.offset}"
            )
        seen[message.key] = message.offset


def _headers(directory: Path) -> list[Header]:
    found: list[Header] = []
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        table = BatchTable.empty(4096)
        scan(memoryview(data), 0, table, 0, len(data))
        columns = (table.producer_id, table.last_offset, table.base_sequence)
        found += zip(*(column[: table.rows].tolist() for column in columns), strict=True)
    return found


def _messages(path: Path, tp: TopicPartition, isolation: Isolation) -> list[Message]:
    log_dir = LogDir.open_read_only(path)
    try:
        snapshot = log_dir.log(tp).snapshot()
        return [
            Message(int(block.offset[n]), block.key(n), block.value(n), int(block.timestamp[n]))
            for block in read_range(snapshot, snapshot.log_start_offset, isolation=isolation)
            for n in range(len(block))
        ]
    finally:
        log_dir.close()
