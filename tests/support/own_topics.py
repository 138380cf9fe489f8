"""Records of Kafka's own topics: the fixtures that real brokers wrote, with what Kafka's own classes print of them."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.types import TopicPartition
from tests.support.fixtures import FIXTURES

INTERNAL = ["internal", "internal-4.4"]
PARTITIONS = [
    (fixture, path.name.removesuffix(".jsonl.gz"))
    for fixture in INTERNAL
    for path in sorted((FIXTURES / fixture / "golden").glob("__*-?.jsonl.gz"))
]


def lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


def raw(line: dict[str, Any]) -> tuple[bytes | None, bytes | None]:
    key, value = (line[side] for side in ("rawKey", "rawValue"))
    return None if key is None else base64.b64decode(key), None if value is None else base64.b64decode(value)


def without_name(key: Any) -> Any:
    """The names of types are ours."""
    return {part: key[part] for part in key if part != "name"} if isinstance(key, dict) else key


def golden(fixture: str, partition: str) -> list[dict[str, Any]]:
    """Of one partition, control records too."""
    return list(lines(FIXTURES / fixture / "golden" / f"{partition}.jsonl.gz"))


def tp_of(partition: str) -> TopicPartition:
    topic, _, number = partition.rpartition("-")
    return TopicPartition(topic, int(number))
