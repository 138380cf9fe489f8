"""What a follower's partition should hold: batches of a leader.

A plain list of batches, changed by whoever calls the engine, before and after each call.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
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
        return self.open_from < 0 and latest_ms - self.wrote_ms >= PRODUCER_EXPIRATION_MS


@dataclass
class Copy:
    """A follower's partition. `appending`: batches of a call that has not returned; `synced`: what is below is on disk;
    `start`: the log start, below which batches may no longer be in the files; `compacted`: a cleaner goes through
    it."""

    batches: list[Copied] = field(default_factory=list)
    appending: list[Copied] = field(default_factory=list)
    synced: int = 0
    start: int = 0
    compacted: bool = False
    undone: list[Copied] = field(default_factory=list)  # refused, and perhaps back after a power loss
    values: set[bytes] = field(default_factory=set)  # all that ever were there

    @property
    def end(self):
        """The log end offset."""
        return self.batches[-1].last + 1 if self.batches else 0

    def begin(self, batches):
        """Before an append."""
        self.appending = list(batches)
        self.values.update(value for batch in batches for value in batch.values if value is not None)

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


def producers_of(batches):
    """What is known of producers after these batches (ProducerStateManager)."""
    found = {}
    for batch in batches:
        if batch.producer < 0:
            continue
        known = found.get(batch.producer, Producer())
        if batch.marker:
            # A marker that comes before all data is of an epoch that nobody knew.
            found[batch.producer] = known._replace(open_from=-1, timestamp=batch.timestamp)
            continue
        begins = known.open_from < 0 and batch.transactional
        last = batch.sequence + len(batch.values) - 1 if batch.sequence >= 0 else -1
        open_from = batch.base if begins else known.open_from
        found[batch.producer] = Producer(last, batch.last, open_from, batch.timestamp, batch.timestamp)
    return found


def epochs_of(batches):
    """The leader epochs of these batches, each with the offset where it begins."""
    found = []
    for batch in batches:
        if not found or found[-1][0] != batch.epoch:
            found.append((batch.epoch, batch.base))
    return found


def crc_of(data):
    """The checksum in a batch's header."""
    return int(struct.unpack_from(">I", data, 17)[0])


def shown(batches, *, committed):
    """What a consumer sees: offset, value and timestamp of each message."""
    batches = list(batches)
    fate = {}  # of the batch at this place, by the next marker of its producer
    ends = {}
    for place in range(len(batches) - 1, -1, -1):
        batch = batches[place]
        if batch.marker:
            ends[batch.producer] = batch.marker
        elif batch.transactional:
            fate[place] = ends.get(batch.producer, "")
    found = []
    for place, batch in enumerate(batches):
        if committed and fate.get(place) == "":
            break  # the last stable offset
        if batch.marker or (committed and fate.get(place) == ABORT):
            continue
        first = batch.last - len(batch.values) + 1
        found += [(first + n, value, batch.timestamp) for n, value in enumerate(batch.values)]
    return found
