"""What a cleaner must leave of a log, and what it must not."""

from storage.files import checkpoints, names
from storage.types import Isolation
from tests.simulation.contents import Anomaly, messages_in, segments_of
from tests.simulation.copies import producers_of, shown
from tests.simulation.upkept import check_horizons


def check(world, tp, copy, least, possible):
    """A follower's compacted partition after recovery; the copy becomes what is there. The cleaner takes messages that
    have later ones of their key, and no others; batches that are the last of their producers; nothing of a transaction
    that is open, and of an aborted one only what nobody is shown then.

    `least`: the batches that must be there, but for the cleaner, and `possible`: those that may be.
    """
    headers = _headers(world.path / tp.dir_name)
    end = headers[-1][1] + 1 if headers else 0
    copy.recovered([batch for batch in possible if batch.last < end])
    if copy.end < max((batch.last + 1 for batch in least), default=0):
        raise Anomaly(f"lost write: {tp} ends at {copy.end}, expected {least[-1].last + 1}")
    for isolation in Isolation:
        check_shown(world, tp, copy, messages_in(world.path, isolation=isolation)[tp], isolation)
    check_horizons(world, tp, {batch.last: batch.timestamp for batch in copy.batches})
    known = producers_of(copy.batches)
    last_of = {batch.producer: batch for batch in copy.batches if batch.producer >= 0 and not batch.marker}
    for producer, batch in last_of.items():
        is_known = not known[producer].may_be_forgotten(world.clock.latest_ms)
        if is_known and (producer, batch.last, batch.sequence) not in headers:
            raise Anomaly(f"producers: {tp} is without the last batch of {producer}, at {batch.last}")
    check_unique(world.path, tp, messages_in(world.path)[tp])


def check_shown(world, tp, copy, messages, isolation):
    """What a consumer is shown of it."""
    keep_ms = world.settings["delete.retention.ms"].get(tp.topic, 0)
    is_committed = isolation is Isolation.READ_COMMITTED
    may = {(offset, value) for offset, value, _ in shown(copy.batches, committed=is_committed)}
    wrong = [message for message in messages if (message.offset, message.value) not in may]
    if wrong:
        raise Anomaly(f"aborted read: {tp} shows {wrong[0]}, which was not written, or was aborted")
    keys = {batch.last - len(batch.keys) + 1 + n: key for batch in copy.batches for n, key in enumerate(batch.keys)}
    latest = {keys[offset]: (offset, value, time_ms) for offset, value, time_ms in shown(copy.batches, committed=True)}
    shown_values = {(message.offset, message.value) for message in messages}
    first = {message.key: message.offset for message in reversed(messages)}
    for key, (offset, value, time_ms) in latest.items():
        if (offset, value) in shown_values:
            continue
        # The last word on a key that says that it is deleted may go when its time is over, and all before it is gone.
        is_over = world.clock.set_back or world.clock.latest_ms - time_ms >= keep_ms
        if value is None and first.get(key, offset) >= offset and is_over:
            continue
        raise Anomaly(f"lost write: {tp} does not show {(offset, value)} ({isolation.value}), the last of its key")


def check_unique(path, tp, messages):
    """Below the cleaner's checkpoint no key has two messages."""
    until = checkpoints.read(path / names.CLEANER_CHECKPOINT).get(tp, 0)
    seen = {}
    for message in messages:
        if message.offset < until and message.key in seen:
            places = f"{message.key!r} at {seen[message.key]} and {message.offset}"
            raise Anomaly(f"cleaner checkpoint: {tp} is cleaned up to {until}, and has {places}")
        seen[message.key] = message.offset


def _headers(directory):
    """Producer, last offset and first sequence of each batch."""
    return [
        (int(table.producer_id[row]), int(table.last_offset[row]), int(table.base_sequence[row]))
        for _, _, table in segments_of(directory)
        for row in range(table.rows)
    ]
