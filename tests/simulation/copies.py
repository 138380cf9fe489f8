"""What a follower's partition should hold: batches of a leader.

A plain list of batches, changed by whoever calls the engine, before and after each call.
"""

import struct
from typing import NamedTuple

COMMIT, ABORT = "commit", "abort"
PRODUCER_EXPIRATION_MS = 1000


class Copied(NamedTuple):
    """A batch that was appended: from offset `base` to `last`. `marker`: COMMIT, ABORT, or "" for messages."""

    base: int
    last: int
    crc: int
    values: tuple[bytes | None, ...]
    timestamp: int
    producer: int = -1
    transactional: bool = False
    marker: str = ""
    epoch: int = 0  # of the leader
    sequence: int = -1  # of its first message
    keys: tuple[bytes | None, ...] = ()
    size: int = 0  # in bytes


class Producer(NamedTuple):
    """What a log knows of a producer: -1 where there is nothing."""

    last_sequence: int = -1
    last_offset: int = -1
    open_from: int = -1  # the first offset of its open transaction
    timestamp: int = -1
    wrote_ms: int = -1  # the timestamp of its last message

    def may_be_forgotten(self, latest_ms):
        """By the older of its two timestamps: where the clock was set back, a marker's is before its messages'."""
        return self.open_from < 0 and latest_ms - min(self.wrote_ms, self.timestamp) >= PRODUCER_EXPIRATION_MS


class Copy:
    """A follower's partition. `appending`: batches of a call that has not returned; `synced`: what is below is on disk;
    `start`: the log start, below which batches may no longer be in the files; `is_compacted`: a cleaner goes through
    it."""

    def __init__(self, *, is_compacted):
        self.is_compacted = is_compacted
        self.batches, self.appending = [], []
        self.undone = []  # refused, and perhaps back after a power loss
        self.values = set()  # all that ever were there
        self.synced = self.start = 0

    @property
    def end(self):
        """The log end offset."""
        return self.batches[-1].last + 1 if self.batches else 0

    def begin(self, batch):
        """Before an append."""
        self.appending = [batch]
        self.values.update(value for value in batch.values if value is not None)

    def appended(self):
        """After it."""
        self.batches += self.appending
        self.appending = []

    def refused(self):
        """After one that failed and left nothing, if the power stays: what undid it is not on disk yet."""
        self.undone += self.appending
        self.appending = []

    def flushed(self, end):
        """A flush has returned that began when the log ended at `end`."""
        self.synced = max(self.synced, end)

    def recovered(self, batches):
        """These are there after a recovery, all on disk."""
        self.batches, self.appending, self.undone = batches, [], []
        self.synced = self.end


def producers_of(batches):
    """What is known of producers after these batches (ProducerStateManager)."""
    producers = {}
    for batch in batches:
        if batch.producer < 0:
            continue
        known = producers.get(batch.producer, Producer())
        if batch.marker:
            # A marker that comes before all data is of an epoch that nobody knew.
            producers[batch.producer] = known._replace(open_from=-1, timestamp=batch.timestamp)
            continue
        begins = known.open_from < 0 and batch.transactional
        last = batch.sequence + len(batch.values) - 1 if batch.sequence >= 0 else -1
        open_from = batch.base if begins else known.open_from
        producers[batch.producer] = Producer(last, batch.last, open_from, batch.timestamp, batch.timestamp)
    return producers


def epochs_of(batches):
    """The leader epochs of these batches, each with the offset where it begins."""
    epochs = []
    for batch in batches:
        if not epochs or epochs[-1][0] != batch.epoch:
            epochs.append((batch.epoch, batch.base))
    return epochs


def crc_of(data):
    """The checksum in a batch's header."""
    return int(struct.unpack_from(">I", data, 17)[0])


def shown(batches, *, committed):
    """What a consumer sees: offset, value and timestamp of each message."""
    fates, ends = {}, {}  # of the batch at a place, by the next marker of its producer
    for place in range(len(batches) - 1, -1, -1):
        batch = batches[place]
        if batch.marker:
            ends[batch.producer] = batch.marker
        elif batch.transactional:
            fates[place] = ends.get(batch.producer, "")
    messages = []
    for place, batch in enumerate(batches):
        if committed and fates.get(place) == "":
            break  # the last stable offset
        if batch.marker or (committed and fates.get(place) == ABORT):
            continue
        first = batch.last - len(batch.values) + 1
        messages += [(first + n, value, batch.timestamp) for n, value in enumerate(batch.values)]
    return messages
