"""`latest.jsonl` of a compacted topic that a broker writes, rolls and cleans meanwhile."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from tests.interop.client import Client, Message
from tests.interop.kafka import requires_kafka
from tests.support.mounts import Mounted, requires_fuse

pytestmark = [requires_kafka, requires_fuse]

KEYS = 40
CONFIG = {
    "cleanup.policy": "compact", "segment.ms": 1000, "min.cleanable.dirty.ratio": 0.01, "delete.retention.ms": 0,
    "max.compaction.lag.ms": 1000,
}  # fmt: skip


def latest(path: Path) -> dict[str, int]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    offsets = [line["offset"] for line in lines]
    assert offsets == sorted(offsets)
    found = {line["key"]: int(line["value"]) for line in lines}
    assert len(found) == len(lines)
    return found


def test_no_value_is_older_than_one_that_was_there_at_the_open(client: Client, live: Mounted) -> None:
    client.create_topic("latest-under-load", 1, CONFIG)
    acknowledged: dict[str, int] = {}
    rounds, ended = 25, threading.Event()

    def write() -> None:
        try:
            for number in range(rounds):
                values = {f"key-{(number * 7 + n) % KEYS}": number * KEYS + n for n in range(KEYS // 2)}
                client.produce(
                    "latest-under-load",
                    [Message(str(value).encode(), key.encode()) for key, value in values.items()],
                    batch=3,
                )
                acknowledged.update(values)
        finally:
            ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    path = live.path / "latest-under-load" / "latest.jsonl"
    looks = 0
    try:
        while not (ended.is_set() and looks):
            before = dict(acknowledged)
            found = latest(path)
            assert all(found[key] >= value for key, value in before.items())
            looks += 1
    finally:
        writer.join()
    assert latest(path) == acknowledged
