"""Every layout gives the bytes that the broker had."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from storage.errors import TierUnavailable
from storage.files.names import FileKind
from storage.tier.manifests import decode_sizes
from storage.tier.remote_segments import RemoteFile, RemoteSegment
from storage.tier.tier import Tier
from tests.support.aiven_objects import RsaKey, Style, random_id, write
from tests.support.fixtures import FIXTURES, requires_fixtures

pytestmark = requires_fixtures

TIERS = FIXTURES / "tiers"
KEYS = {"key1": TIERS / "keys" / "priv.pem"}
LOCAL = Tier([str(TIERS / "tier-local")])


def files_of(segment: RemoteSegment) -> dict[str, RemoteFile]:
    """All files of a segment, by what they are."""
    found = {kind.name: file for kind in FileKind if (file := segment.part(kind)) is not None}
    return found if segment.content.epochs_file is None else {**found, "epochs": segment.content.epochs_file}


def assert_same(found: RemoteSegment, expected: RemoteSegment, rng: random.Random) -> None:
    """Equal files, however they are read."""
    assert (found.segment_id, found.base_offset, found.is_complete) == (expected.segment_id, expected.base_offset, True)
    assert found.segment_epochs == expected.segment_epochs
    files = files_of(expected)
    assert set(files_of(found)) == set(files)
    for name, file in files_of(found).items():
        whole = bytes(files[name].whole())
        assert file.size == len(whole)
        for _ in range(4):
            position, size = rng.randrange(file.size + 10), rng.randrange(file.size + 10)
            assert bytes(file.read(position, size)) == whole[position : position + size], (name, position, size)
        assert bytes(file.read(0, file.size + 1)) == whole


@pytest.mark.parametrize("layout", ["tier-aiven", "tier-aiven-enc"])
def test_the_layouts_of_one_tier_are_equal(layout: str) -> None:
    tier = Tier([str(TIERS / layout)], KEYS)
    rng = random.Random(layout)
    assert tier.partitions() == LOCAL.partitions()
    for of in LOCAL.partitions():
        for topic_id in (of.topic_id, None):
            expected = LOCAL.segments(of.topic, of.partition, topic_id)
            found = tier.segments(of.topic, of.partition, topic_id)
            assert len(found) == len(expected) > 0
            for one, other in zip(found, expected, strict=True):
                assert one.of == other.of == of
                assert_same(one, other, rng)


@pytest.mark.parametrize("seed", range(6))
def test_any_prefix_chunk_size_and_key(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    prefix = rng.choice(["", "pre/", "pre-", "a/b/c/", "x/backups-2024-01-01-productionx/", "data-7/pre."])
    key = RsaKey.new("the key", rng.choice([2048, 2056])) if seed % 2 else None
    topic_id = random_id()
    sources = LOCAL.segments("two", 0)
    for segment in sources:
        size = rng.choice([1000, 4096, 65536, 1 << 22])
        compressed = rng.random() < 0.5
        write(tmp_path, segment, topic_id, segment.base_offset + 100, Style(prefix, size, compressed, key))
    pem = tmp_path / "key.pem"
    # Whatever the label says.
    pem.write_bytes(b"\n" + (key.pem if key is not None else b"").replace(b" PRIVATE KEY", b" ANY KEY"))
    tier = Tier([str(tmp_path)], {"the key": pem})
    (of,) = tier.partitions()
    assert (of.topic, of.topic_id, of.partition) == ("two", topic_id, 0)
    for asked in (topic_id, None):
        found = tier.segments("two", 0, asked)
        assert [segment.end_offset for segment in found] == [segment.base_offset + 100 for segment in sources]
        for one, other in zip(found, sources, strict=True):
            assert_same(one, other, rng)
    assert tier.segments("two", 0, random_id()) == tier.segments("wo", 0) == tier.segments("two", 1) == []


def test_a_path_may_be_any_directory_of_the_tier() -> None:
    place = TIERS / "tier-aiven"
    (manifest,) = place.rglob("two-*/0/*00249-*.rsm-manifest")
    while True:
        manifest = manifest.parent
        assert len(Tier([str(manifest)]).segments("two", 0)) == 4
        if manifest == place:
            break


def test_manifests_before_they_had_metadata(tmp_path: Path) -> None:
    (segment,) = (segment for segment in LOCAL.segments("two", 0) if segment.base_offset == 249)
    write(tmp_path, segment, random_id(), 496, Style(with_metadata=False))
    (found,) = Tier([str(tmp_path)]).segments("two", 0)
    assert found.end_offset is None
    assert_same(found, segment, random.Random(1))


def test_plain_segments_of_a_partition() -> None:
    directory = TIERS / "log" / "keep-0"
    remote = LOCAL.segments("keep", 0)
    for place in (directory, TIERS / "log"):
        plain = Tier([str(place)]).segments("keep", 0, "any id")
        assert [segment.base_offset for segment in plain] == [0, 239, 471, 719, 957, 1200]
        assert [segment.end_offset for segment in plain] == [238, 470, 718, 956, 1199, None]
        for one, other in zip(plain, remote, strict=False):
            assert one.segment_id is None
            assert one.segment_epochs == other.segment_epochs
            files = {name: file for name, file in files_of(other).items() if name != "epochs"}
            for name, file in files.items():
                assert bytes(files_of(one)[name].whole()) == bytes(file.whole()), name


def test_parts_in_two_places_are_one_segment(tmp_path: Path) -> None:
    # A key prefix that was changed: the custom metadata say where the .log is.
    one, other = tmp_path / "one", tmp_path / "other"
    shutil.copytree(TIERS / "tier-aiven", one)
    for path in (one, *one.rglob("*")):
        path.chmod(0o755)
    for log in one.rglob("*.log"):
        target = other / log.relative_to(one)
        target.parent.mkdir(parents=True, exist_ok=True)
        log.rename(target)
    assert not any(segment.is_complete for segment in Tier([str(one)]).segments("two", 0))
    expected = LOCAL.segments("two", 0)
    for places in ([tmp_path], [one, other], [other, one], [one, TIERS / "tier-local"]):
        found = Tier(list(map(str, places))).segments("two", 0)
        assert len(found) == 4
        for segment, same in zip(found, expected, strict=True):
            assert_same(segment, same, random.Random(1))


def test_nothing_is_changed_and_no_link_is_followed(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    shutil.copytree(TIERS / "tier-local", tier)
    for path in (tier, *tier.rglob("*")):
        path.chmod(0o755)
    (directory,) = tier.glob("two-0-*")
    secret = tmp_path / "secret"
    log = next(directory.glob("*.log"))
    log.rename(secret)
    log.symlink_to(secret)
    directory.rename(tmp_path / directory.name)
    (tier / directory.name).symlink_to(tmp_path / directory.name)
    paths = sorted(tmp_path.rglob("*"))  # which changes access times itself
    before = {path: path.lstat() for path in paths}
    assert Tier([str(tier)]).segments("two", 0) == []
    inside = Tier([str(tmp_path / directory.name)]).segments("two", 0)
    assert [segment.part(FileKind.LOG) is None for segment in inside].count(True) == 1
    for of in Tier([str(tier)]).partitions():
        for segment in Tier([str(tier)]).segments(of.topic, of.partition):
            for file in files_of(segment).values():
                file.read(0, file.size)
    assert {path: path.lstat() for path in before} == before


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TierUnavailable, match="is not in the tier"):
        Tier([str(tmp_path / "none")]).segments("two", 0)
    with pytest.raises(TierUnavailable):
        Tier(["nosuchscheme://bucket"]).partitions()
    assert Tier([str(tmp_path)]).partitions() == []


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        ("00000000", []),
        ("0000000100000007", [7]),
        ("00000003 0000000a 01 000a 0000001e", [10, 20, 30]),
        ("00000003 00000100 02 0000 0101 00000001", [256, 513, 1]),
        ("00000002 0000000a 05 00 00000000 0000001e", None),
        ("00000002 0000000a 01 00 0000001e 00", None),
        ("7fffffff 0000000a 01 00 0000001e", None),
        ("0000", None),
        ("", None),
    ],
)
def test_lists_of_chunk_sizes(data: str, sizes: list[int] | None) -> None:
    found = decode_sizes(bytes.fromhex(data))
    assert (None if found is None else found.tolist()) == sizes
