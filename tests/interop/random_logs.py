"""Logs drawn from a seed: topic configurations, and what is in each partition.

Every log is written by the rules of `tests/support/broker_rules.py`: all codecs and formats, batches of all sizes,
idempotent producers, transactions that end or do not, tombstones, null keys, gaps as compaction leaves them, empty
batches, leader epochs, timestamps in and out of order; rolled by size, time, full indexes and offsets.
"""

import random
from dataclasses import dataclass, field

from storage.format.block import Record
from storage.format.compression import Codec
from tests.support import raw_batches
from tests.support.builders import ROLL, Batch, Marker, Partition, Raw, abort, commit

DAY_MS = 86_400_000
_OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY)


def topic_config(dice):
    """Of a topic with small segments and indexes, that keeps everything unless it is compacted."""
    return {
        "internal.segment.bytes": dice.choice((1_500, 4_000, 16_000, 60_000, 1_000_000)),
        "index.interval.bytes": dice.choice((0, 100, 500, 500, 4096)),
        "segment.index.bytes": dice.choice((60, 600, 100_000, 100_000)),
        "segment.ms": dice.choice((60_000, DAY_MS, 7 * DAY_MS)),
        "retention.ms": -1,
        "cleanup.policy": dice.choice(("delete", "delete", "compact")),
        "min.cleanable.dirty.ratio": 0,
        "delete.retention.ms": dice.choice((0, DAY_MS)),
        "message.timestamp.before.max.ms": 2**63 - 1,
        "message.timestamp.after.max.ms": 2**63 - 1,
    }


@dataclass
class _Writer:
    """Draws the items of one log."""

    dice: random.Random
    now_ms: int
    items: list = field(default_factory=list)
    next_offset: int = 0
    epoch: int = 0
    open: dict = field(default_factory=dict)  # producer id of an open transaction: its epoch
    epochs: dict = field(default_factory=dict)
    magic: int = 2
    keys: int = 1
    pace: str = ""
    clock: int = 0

    def timestamp(self):
        dice = self.dice
        self.clock += dice.choice((0, 1, 50, 4_000))
        match self.pace:
            case "none":
                return -1
            case "disordered":
                return self.clock - dice.choice((0, 0, 10, 30_000, 3_600_000))
            case "far":
                return dice.choice((self.clock, self.clock - 900 * DAY_MS, self.now_ms + 30 * DAY_MS, 0))
            case "days":
                self.clock += dice.choice((0, 0, DAY_MS // 3))
        return self.clock

    def records(self):
        count = self.dice.choice((1, 1, self.dice.randrange(1, 6), self.dice.randrange(1, 60)))
        return [self.record() for _ in range(count)]

    def batch(self, codec, **more):
        return Batch(self.records(), codec, leader_epoch=self.epoch, **more)

    def record(self):
        dice = self.dice
        key = None if dice.random() < 0.08 else b"k%d" % dice.randrange(self.keys)
        size = dice.choice((0, 5, 30, 200, dice.randrange(1500)))
        value = None if dice.random() < 0.12 else (b"%d." % dice.randrange(10**6)) * (size // 5)
        headers = ()
        if self.magic == 2 and dice.random() < 0.2:
            headers = tuple((b"h%d" % n, None if dice.random() < 0.3 else dice.randbytes(4)) for n in range(2))
        return Record(key, value, headers, self.timestamp())

    def put(self, batch):
        self.items.append(batch)
        base = self.next_offset if batch.base_offset is None else batch.base_offset
        self.next_offset = base + len(batch.records)

    def base(self):
        """Usually the next offset; sometimes one after a gap."""
        chance = self.dice.random()
        if chance < 0.9:
            return None
        # A compressed set of an old format does not say where it begins, so a broker could not roll for it.
        far = chance > 0.997 and self.magic == 2
        return self.next_offset + (2**31 if far else self.dice.randrange(1, 60))

    def step(self):
        dice = self.dice
        if dice.random() < 0.05:
            self.items.append(ROLL)
        if dice.random() < 0.04:
            self.epoch += 1
        if self.magic < 2:
            self.put(Batch(self.records(), dice.choice(_OLD_CODECS), self.magic, base_offset=self.base()))
            return
        codec = dice.choice(list(Codec))
        what = dice.random()
        if what < 0.5:
            when = self.now_ms - dice.randrange(DAY_MS // 2) if dice.random() < 0.1 else None
            self.put(self.batch(codec, base_offset=self.base(), log_append_time_ms=when))
        elif what < 0.65:
            self.put(self.batch(codec, producer_id=dice.randrange(100, 104)))
        elif what < 0.9:
            self.transact(codec)
        elif what < 0.95:
            self.end_transaction()
        else:
            delta = dice.randrange(5)
            empty = {"count": 0, "last_offset_delta": delta, "max_timestamp": -1}
            self.items.append(Raw(raw_batches.batch(b"", self.next_offset, leader_epoch=self.epoch, **empty)))
            self.next_offset += delta + 1

    def transact(self, codec):
        producer = self.dice.randrange(200, 204)
        epoch = self.epochs.setdefault(producer, 0)
        self.put(self.batch(codec, producer_id=producer, producer_epoch=epoch, transactional=True))
        self.open[producer] = epoch
        if self.dice.random() < 0.6:
            self.end_transaction()

    def end_transaction(self):
        if not self.open:
            return
        producer = self.dice.choice(sorted(self.open))
        epoch = self.open.pop(producer)
        if self.dice.random() < 0.5:  # transactions of version 2: the epoch grows with each
            epoch += 1
            self.epochs[producer] = epoch
        kind = self.dice.choice((commit, abort))(producer, epoch).kind
        self.items.append(Marker(kind, producer, epoch, timestamp=max(self.timestamp(), 0), leader_epoch=self.epoch))
        self.next_offset += 1


def random_log(config, dice, now_ms):
    """What one partition of such a topic holds, and what its directory's checkpoints say of it."""
    start = dice.choice((0, 0, 0, dice.randrange(1, 2_000), 2**40))
    writer = _Writer(dice, now_ms, next_offset=start)
    writer.keys = dice.choice((3, 20, 300))
    writer.pace = dice.choice(("steady", "steady", "disordered", "far", "days", "none"))
    writer.clock = now_ms - dice.choice((3 * 3_600_000, 400 * DAY_MS))
    for magic in dice.choice(((2,), (2,), (2,), (2,), (1, 2), (0, 1, 2), (0,), (1,))):
        writer.magic = magic
        for _ in range(dice.choice((0, 2, 10, dice.randrange(1, 40)))):
            writer.step()
    if dice.random() < 0.5:
        while writer.open:
            writer.end_transaction()
    points = (0, start, writer.next_offset, writer.next_offset, dice.randrange(start, writer.next_offset + 1))
    return Partition(
        writer.items,
        start_offset=start,
        segment_bytes=config["internal.segment.bytes"],
        segment_ms=config["segment.ms"],
        index_interval_bytes=config["index.interval.bytes"],
        segment_index_bytes=config["segment.index.bytes"],
        preallocated=True,
        recovery_point=dice.choice(points),
        log_start_offset=dice.randrange(start, writer.next_offset + 1) if dice.random() < 0.15 else None,
    )
