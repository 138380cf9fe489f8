"""Lines to append, destinations that keep or refuse them, and what became of them."""

import errno
import json

from kafkafs.writing.destinations import Taken
from storage.errors import InvalidRecord, RecordTooLarge
from storage.log.reader import read_range
from storage.types import TopicPartition


class Kept:
    """A destination that keeps values, refuses some, and fails when told to."""

    def __init__(self, limit=100):
        self.values = []
        self.calls = 0
        self.synced = 0
        self.limit = limit
        self.failure = None

    def append(self, parsed):
        if self.failure is not None:
            return Taken(0, self.failure)
        self.calls += 1
        columns = parsed.columns
        for row in range(len(columns)):
            start, length = int(columns.value_start[row]), int(columns.value_length[row])
            value = bytes(memoryview(columns.buffer)[start : start + length])
            if value.startswith(b"BAD"):
                return Taken(row, InvalidRecord("bad"))
            if length > self.limit:
                return Taken(row, RecordTooLarge("long"))
            self.values.append(value)
        return Taken(len(columns), None)

    def longest_line(self, *, verbatim):
        return self.limit

    def sync(self):
        self.synced += 1


def values(owned, topic):
    """Of each partition."""
    found = []
    for partition in owned.log_dir.partitions(topic):
        snapshot = owned.log(TopicPartition(topic, partition)).snapshot()
        found.append([block.value(row) for block in read_range(snapshot, 0) for row in range(len(block))])
    return found


def jsonl(*lines):
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def failing(disk, *partitions):
    """Writes to the logs of these partitions of t find the disk full."""
    logs = {f"t-{partition}" for partition in partitions}
    disk.fail = lambda what, path: errno.ENOSPC if what.startswith("write 0") and path.parent.name in logs else None


NINE = [jsonl({"value": f"{number}", "partition": number % 3}) for number in range(9)]
