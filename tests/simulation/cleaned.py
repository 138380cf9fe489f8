"""What a cleaner must leave of a log, and what it must not."""

from __future__ import annotations

from storage.files import checkpoints, names
from storage.format.batches import BatchTable, scan
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import Isolation
from tests.simulation.copies import producers_of, shown
from tests.simulation.upkept import check_horizons
from tests.simulation.world import Anomaly, Message

Header = tuple[int, int, int]  # a batch's producer, last offset and first sequence


def check(world, tp, copy, least, possible):
    """A follower's compacted partition after recovery; the copy becomes what is there. The cleaner takes messages that
    have later ones of their key, and no others; batches that are the last of their producers; nothing of a transaction
    that is open, and of an aborted one only what nobody is shown then.

    `least`: the batches that must be there, but for the cleaner, and `possible`: those that may be.
    """
    headers = _headers(world.path / tp.dir_name)
    end = headers[-1][1] + 1 if headers else 0
    copy.batches = [batch for batch in possible if batch.last < end]
    copy.appending, copy.synced = [], copy.end
    copy.undone.clear()
    if copy.end < max((batch.last + 1 for batch in least), default=0):
        raise Anomaly(f"lost write: {tp} ends at {copy.end}, expected {least[-1].last + 1}")
    for isolation in Isolation:
        check_shown(world, tp, copy, _messages(world.path, tp, isolation), isolation)
    check_horizons(world, tp, {batch.last: batch.timestamp for batch in copy.batches})
    known = producers_of(copy.batches)
    last_of = {batch.producer: batch for batch in copy.batches if batch.producer >= 0 and not batch.marker}
    for producer, batch in last_of.items():
        is_known = not known[producer].may_be_forgotten(world.clock.latest_ms)
        if is_known and (producer, batch.last, batch.sequence) not in headers:
            raise Anomaly(f"producers: {tp} is without the last batch of {producer}, at {batch.last}")
    check_unique(world.path, tp, _messages(world.path, tp, Isolation.READ_UNCOMMITTED))


def check_shown(world, tp, copy, found, isolation):
    """What a consumer is shown of it."""
    set_back, latest_ms = world.clock.set_back, world.clock.latest_ms
    keep_ms = world.delete_retention_ms.get(tp.topic, 0)
    all_shown = shown(copy.batches, committed=isolation is Isolation.READ_COMMITTED)
    may = {(offset, value) for offset, value, _ in all_shown}
    wrong = [message for message in found if (message.offset, message.value) not in may]
    if wrong:
        raise Anomaly(f"aborted read: {tp} shows {wrong[0]}, which was not written, or was aborted")
    keys = {
        batch.last - len(batch.keys) + 1 + number: key
        for batch in copy.batches
        for number, key in enumerate(batch.keys)
    }
    latest = {keys[offset]: (offset, value, time_ms) for offset, value, time_ms in shown(copy.batches, committed=True)}
    there = {(message.offset, message.value) for message in found}
    first = {message.key: message.offset for message in reversed(found)}
    for key, (offset, value, time_ms) in latest.items():
        if (offset, value) in there:
            continue
        # The last word on a key that says that it is deleted may go when its time is over, and all before it is gone.
        if value is None and first.get(key, offset) >= offset and (set_back or latest_ms - time_ms >= keep_ms):
            continue
        raise Anomaly(f"lost write: {tp} does not show {(offset, value)} ({isolation.value}), the last of its key")


def check_unique(path, tp, messages):
    """Below the cleaner's checkpoint no key has two messages."""
    until = checkpoints.read(path / names.CLEANER_CHECKPOINT).get(tp, 0)
    seen = {}
    for message in messages:
        if message.offset < until and message.key in seen:
            raise Anomaly(
                f"cleaner checkpoint: {tp} is cleaned up to {until}, and has {message.key!r} at {seen[message.key]} "
                f"and {message.offset}"
            )
        seen[message.key] = message.offset


def _headers(directory):
    found = []
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        table = BatchTable.empty(4096)
        scan(memoryview(data), 0, table, 0, len(data))
        columns = (table.producer_id, table.last_offset, table.base_sequence)
        found += zip(*(column[: table.rows].tolist() for column in columns), strict=True)
    return found


def _messages(path, tp, isolation):
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
