"""A topic's own configuration, stored with its data (topic.properties): Java properties with Kafka's topic config
names.

The file is kafkafs' own: brokers ignore it. Each partition's directory has it, so that a copied topic keeps its
configuration. The values are texts; `storage.config` parses them. See storage/DESIGN.md, "Topic configuration".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from storage.files.small_files import read_whole
from storage.format import properties

_COMMENT = "Configuration of this topic, kept by kafkafs; brokers ignore this file"


def parse(data: bytes, path: Path | None = None) -> dict[str, str]:
    """The overrides in the bytes of a topic.properties. CorruptCheckpoint when it does not parse."""
    return properties.parse(data, path)


def encode(overrides: Mapping[str, str]) -> bytes:
    """The bytes of a topic.properties, keys in ascending order."""
    return properties.encode(dict(sorted(overrides.items())), [_COMMENT])


def read(path: Path) -> dict[str, str] | None:
    """Reads a topic.properties; None when there is none. CorruptCheckpoint, or OSError when it cannot be read."""
    data = read_whole(path)
    return None if data is None else parse(data, path)
