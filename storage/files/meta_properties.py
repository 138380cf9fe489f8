"""The broker that owns a log directory (meta.properties); the file marks a directory as a broker's.

Java properties: `version`, `cluster.id`, `node.id` (version 0: `broker.id`), `directory.id`. Source: Kafka's
MetaProperties. kafkafs reads it and never writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from storage.errors import CorruptCheckpoint
from storage.files.small_files import read_whole
from storage.format import properties

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """A broker's identity. Ids are the texts in the file, None if missing."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None


def parse(data: bytes, path: Path | None = None) -> MetaProperties:
    """The content of a meta.properties. CorruptCheckpoint when a broker would refuse it."""
    values = properties.parse(data, path)
    version = _integer(values.get("version", "0"), "version", path)
    if version not in (0, 1):
        raise CorruptCheckpoint("meta.properties has an unknown version", path=path, expected="0 or 1", found=version)
    node_key = "node.id" if version else "broker.id"
    node_id = _integer(values[node_key], node_key, path) if node_key in values else None
    cluster_id = values.get("cluster.id")
    if version == 1 and (node_id is None or cluster_id is None):
        missing = "node.id" if node_id is None else "cluster.id"
        raise CorruptCheckpoint(f"meta.properties lacks {missing}", path=path)
    return MetaProperties(version, cluster_id, node_id, values.get("directory.id"))


def _integer(text: str, key: str, path: Path | None) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise CorruptCheckpoint(f"meta.properties: {key} is no number", path=path, found=repr(text))
    return int(text)


def read(path: Path) -> MetaProperties | None:
    """Reads a meta.properties; None when there is none. CorruptCheckpoint, or OSError when it cannot be read."""
    data = read_whole(path)
    return None if data is None else parse(data, path)
