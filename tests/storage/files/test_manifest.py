"""The manifest of a backup: what is written is read again, and nothing else is believed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from storage.errors import CorruptCheckpoint, UnsupportedFormat
from storage.files import manifest
from storage.files.disk import RealDisk
from storage.files.manifest import Manifest, ManifestOffset, ManifestPartition, ManifestTopic
from storage.format.batches import BatchRange
from storage.types import TopicPartition

RANGES = (BatchRange(0, 99, 7, 5000, "ab" * 32, 0), BatchRange(100, 101, 1, 80, "cd" * 32, 0xFFFFFFFF))
SAMPLE = Manifest(
    "cluster",
    1000,
    2000,
    None,
    {"t": ManifestTopic("s", "Zml4dHVyZXMtY2x1c3Rlcg", 2, {"segment.bytes": "1000", "cleanup.policy": "compact"})},
    {TopicPartition("t", 1): ManifestPartition(5, 102, RANGES), TopicPartition("t", 0): ManifestPartition(0, 0)},
    (ManifestOffset("g", "t", 1, 50, -1, "größe"),),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    assert manifest.read(path) is None
    manifest.write(RealDisk(), path, SAMPLE)
    assert manifest.read(path) == SAMPLE
    assert [file.name for file in tmp_path.iterdir()] == ["m.json"]


def test_a_changed_byte_is_found() -> None:
    """Except in white space, which means nothing."""
    data = manifest.encode(SAMPLE)
    dice = random.Random(7)
    for at in range(len(data)):
        hurt = bytearray(data)
        hurt[at] ^= dice.choice((1, 2, 4, 8, 16, 32, 64, 128))
        try:
            found = manifest.parse(bytes(hurt))
        except (CorruptCheckpoint, UnsupportedFormat):
            continue
        assert found == SAMPLE
        assert data[at : at + 1].isspace()


@pytest.mark.parametrize("size", [0, 1, 100, 1000])
def test_a_part_of_it_is_no_manifest(size: int) -> None:
    with pytest.raises(CorruptCheckpoint):
        manifest.parse(manifest.encode(SAMPLE)[:size])


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"format": "kafkafs-manifest"}', '{"format": 1}', "[" * 100_000]
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(CorruptCheckpoint, match="does not parse"):
        manifest.parse(text.encode(), Path("m.json"))


@pytest.mark.parametrize("value", ["x", 1.5, None, [], {"a": 1}])
@pytest.mark.parametrize(
    "place", [("created_ms",), ("partitions", 1, "log_end_offset"), ("partitions", 1, "ranges", 0, "size_bytes"),
              ("groups", 0, "offset"), ("partitions", 0, "partition")],
)  # fmt: skip
def test_numbers_are_numbers(place: tuple[str | int, ...], value: object) -> None:
    """Also with a digest that is right: somebody else may have made it."""
    content: Any = json.loads(manifest.encode(SAMPLE))
    inner = content
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    content.pop("sha256")
    content["sha256"] = manifest._digest(content)
    with pytest.raises(CorruptCheckpoint, match="does not parse"):
        manifest.parse(json.dumps(content).encode())


def test_a_later_version_is_named() -> None:
    content = {**json.loads(manifest.encode(SAMPLE)), "version": 2}
    with pytest.raises(UnsupportedFormat, match="unknown version"):
        manifest.parse(json.dumps(content).encode())
