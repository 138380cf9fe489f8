"""Tiers that are damaged, or made to do harm: a clear error, and nothing else."""

from __future__ import annotations

import base64
import json
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest

from storage.errors import CorruptData, InvalidConfig, StorageError, TierUnavailable, UnsupportedFormat
from storage.files.names import FileKind
from storage.tier.remote_segments import RemoteSegment
from storage.tier.tier import Tier
from tests.support.aiven_objects import RsaKey, Style, random_id, sizes_text, write
from tests.support.fixtures import FIXTURES, requires_fixtures

pytestmark = requires_fixtures

Manifest = dict[str, Any]
TOPIC_ID = random_id()


@pytest.fixture(scope="module")
def key() -> RsaKey:
    return RsaKey.new("k1")


@pytest.fixture(scope="module")
def made(key: RsaKey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One segment, compressed and encrypted, and its key."""
    place = tmp_path_factory.mktemp("made")
    source = Tier([str(FIXTURES / "tiers" / "tier-local")]).segments("txn", 0)[3]
    write(place / "tier", source, TOPIC_ID, source.base_offset + 248, Style("", 4096, True, key))
    (place / "k1.pem").write_bytes(key.pem)
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def segment_of(place: Path, **keys: Path) -> RemoteSegment:
    (segment,) = Tier([str(place / "tier")], keys or {"k1": place / "k1.pem"}).segments("txn", 0, TOPIC_ID)
    return segment


def read_all(segment: RemoteSegment) -> None:
    for file in [*segment.content.parts.values(), segment.content.epochs_file]:
        if file is not None:
            for position in range(0, file.size, 10_000):
                file.read(position, 10_000)


def object_of(place: Path, suffix: str) -> Path:
    return next((place / "tier").rglob(f"*{suffix}"))


def change(place: Path, edit: Callable[[Manifest], None]) -> None:
    path = object_of(place, ".rsm-manifest")
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))


def test_what_was_made_can_be_read(place: Path) -> None:
    read_all(segment_of(place))


def test_keys(place: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(RsaKey.new("k1").pem)
    with pytest.raises(TierUnavailable, match=r"was not encrypted with the private key .*other\.pem.*--tier-key"):
        read_all(segment_of(place, k1=other))
    with pytest.raises(TierUnavailable, match=r"the private key 'k1' was not given; found keys: k2"):
        read_all(segment_of(place, k2=place / "k1.pem"))
    with pytest.raises(TierUnavailable, match="cannot be read; found No such file"):
        read_all(segment_of(place, k1=tmp_path / "none.pem"))
    for text in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", os.urandom(100_000)):
        other.write_bytes(text)
        with pytest.raises(InvalidConfig, match="is no private RSA key"):
            read_all(segment_of(place, k1=other))


def test_what_is_not_encrypted_needs_no_key(place: Path) -> None:
    segment = segment_of(place, k2=place / "none")
    assert segment.end_offset == segment.base_offset + 248
    assert segment.log_size == 65151


@pytest.mark.parametrize("suffix", [".log", ".indexes", ".rsm-manifest"])
@pytest.mark.parametrize("left", [0, 1, -1])
def test_objects_that_are_cut_off(place: Path, suffix: str, left: int) -> None:
    path = object_of(place, suffix)
    data = path.read_bytes()
    path.write_bytes(data[:left])
    with pytest.raises(CorruptData) as found:
        read_all(segment_of(place))
    assert str(path) in str(found.value)


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
def test_objects_that_shrink_after_they_were_listed(place: Path, suffix: str) -> None:
    segment = segment_of(place)
    assert segment.log_size
    path = object_of(place, suffix)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CorruptData, match="object is cut off"):
        read_all(segment)
    path.unlink()
    with pytest.raises(TierUnavailable, match="is not in the tier"):
        read_all(segment_of(place) if suffix == "" else segment)


def test_a_changed_byte_is_noticed(place: Path) -> None:
    for suffix in (".log", ".indexes"):
        path = object_of(place, suffix)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptData, match="cannot be decrypted") as found:
            read_all(segment_of(place))
        assert "rsm-manifest" in str(found.value)
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def test_without_a_manifest(place: Path) -> None:
    object_of(place, ".rsm-manifest").unlink()
    segment = segment_of(place)
    assert not segment.is_complete
    with pytest.raises(TierUnavailable, match="has no manifest"):
        read_all(segment)


def _set(*path: str, value: object) -> Callable[[Manifest], None]:
    def edit(manifest: Manifest) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return edit


def _bomb(size: int) -> str:
    return base64.b64encode(bytes(cramjam.zstd.compress(bytes(size)))).decode()


_METADATA = "remoteLogSegmentMetadata"


@pytest.mark.parametrize(
    "edit",
    [
        _set("version", value="2"),
        _set("version", value=1),
        _set("chunkIndex", value=None),
        _set("chunkIndex", value=[]),
        _set("chunkIndex", "type", value="other"),
        _set("chunkIndex", "type", value="fixed"),
        _set("chunkIndex", "originalFileSize", value=2**31),
        _set("chunkIndex", "originalFileSize", value=-1),
        _set("chunkIndex", "originalFileSize", value=2**31 - 1),
        _set("chunkIndex", "originalFileSize", value=1e300),
        _set("chunkIndex", "originalFileSize", value=True),
        _set("chunkIndex", "originalChunkSize", value=0),
        _set("chunkIndex", "originalChunkSize", value=1),
        _set("chunkIndex", "originalChunkSize", value=2**31 - 1),
        _set("chunkIndex", "transformedChunks", value="!"),
        _set("chunkIndex", "transformedChunks", value=_bomb(1 << 30)),
        _set("chunkIndex", "transformedChunks", value=_bomb(4)),
        _set("chunkIndex", "transformedChunks", value=sizes_text([1 << 30] * 16)),
        _set("chunkIndex", "transformedChunks", value=sizes_text([1000] * 15 + [0x7FFFFFFF])),
        _set("segmentIndexes", "offset", "size", value=2**31 - 1),
        _set("segmentIndexes", "offset", "size", value=27),
        _set("segmentIndexes", "offset", "position", value=2**31 - 1),
        _set("segmentIndexes", "timestamp", "position", value=-1),
        _set("segmentIndexes", "timestamp", "position", value=3),
        _set("compression", value="yes"),
        _set("compression", value=False),
        _set("encryption", value={"dataKey": "k1", "aad": ""}),
        _set("encryption", value={"dataKey": "k1:AAAA", "aad": ""}),
        _set("encryption", value={"dataKey": "k1:" + "A" * 342 + "==", "aad": ""}),
        _set("encryption", value={"dataKey": 7, "aad": ""}),
        _set("encryption", "aad", value="AAAA"),
        _set("encryption", value=None),
        _set(_METADATA, "startOffset", value=0),
        _set(_METADATA, "endOffset", value=0),
        _set(_METADATA, "endOffset", value=2**63),
        _set(_METADATA, "segmentLeaderEpochs", value={"-1": 0}),
        _set(_METADATA, "segmentLeaderEpochs", value={"1" * 5000: 0}),
        _set(_METADATA, "segmentLeaderEpochs", value={"1": "x"}),
        _set(_METADATA, "remoteLogSegmentId", "id", value="../../../../etc/passwd"),
        _set(_METADATA, "remoteLogSegmentId", "topicIdPartition", "topicId", value=random_id()),
        _set(_METADATA, "remoteLogSegmentId", "topicIdPartition", "topicPartition", "partition", value=1),
    ],
)
def test_hostile_manifests(place: Path, edit: Callable[[Manifest], None]) -> None:
    change(place, edit)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StorageError) as found:
        read_all(segment_of(place))
        # An index that is only garbage is for its reader to find out; a log is not.
    assert str(place) in str(found.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # KiB


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"x"', "[" * 100_000, '{"version":"1"}', "9" * 10_000, '{"version":"1","x":' + "9" * 9999],
)
def test_manifests_that_are_none(place: Path, text: str) -> None:
    object_of(place, ".rsm-manifest").write_text(text)
    with pytest.raises(CorruptData, match="manifest does not parse"):
        read_all(segment_of(place))


def test_a_manifest_is_not_read_beyond_its_limit(place: Path) -> None:
    os.truncate(object_of(place, ".rsm-manifest"), 1 << 40)
    with pytest.raises(CorruptData, match="manifest is too large"):
        read_all(segment_of(place))


def test_a_chunk_that_decompresses_to_more_or_less(place: Path) -> None:
    # What the manifest says of sizes is right, and so is the tag; only the content is not.
    source = Tier([str(FIXTURES / "tiers" / "tier-local")]).segments("txn", 0)[3]
    shutil.rmtree(place / "tier")
    for real, said in ((4096, 4095), (4096, 4097)):
        manifest = write(place / "tier", source, TOPIC_ID, 2000, Style("", real, True, None))
        found = json.loads(manifest.read_text())
        count = -(-found["chunkIndex"]["originalFileSize"] // real)
        found["chunkIndex"] |= {"originalChunkSize": said, "originalFileSize": said * count}
        manifest.write_text(json.dumps(found))
        with pytest.raises(CorruptData, match="chunk"):
            read_all(segment_of(place))


@pytest.mark.parametrize("seed", range(20))
def test_random_damages(place: Path, seed: int) -> None:
    """Of random bytes in random objects nothing but a StorageError comes, or the bytes as they were."""
    rng = random.Random(seed)
    expected = bytes(segment_of(place).content.parts[FileKind.LOG].read(0, 1 << 20))
    originals = {suffix: object_of(place, suffix).read_bytes() for suffix in (".log", ".indexes", ".rsm-manifest")}
    for _ in range(15):
        for suffix, data in originals.items():
            damaged = bytearray(data)
            if rng.random() < (0.9 if suffix == ".rsm-manifest" else 0.3):
                for _ in range(rng.choice([1, 1, 1, 5])):
                    at = rng.randrange(len(damaged))
                    choice = rng.randrange(4)
                    if choice == 0:
                        del damaged[at : at + rng.randrange(1, 50)]
                    elif choice == 1:
                        damaged[at:at] = rng.choice([b"0", b"9" * 20, b"}", b'"', b"-", os.urandom(8), b"null"])
                    else:
                        damaged[at] = rng.choice(b'0123456789,:{}[]"truefalsn\x00\xff')
            object_of(place, suffix).write_bytes(damaged)
        try:
            segment = segment_of(place)
            log = segment.content.parts[FileKind.LOG]
            read_all(segment)
        except (StorageError, KeyError):
            continue
        assert bytes(log.read(0, 1 << 20)) == expected


def test_names_that_lead_elsewhere(tmp_path: Path) -> None:
    # Names of files are matched against what backends write, and never joined from what an object says.
    place = tmp_path / f"t-{TOPIC_ID}" / "0"
    place.mkdir(parents=True)
    segment_id = random_id()
    for name in (
        f"{2**63:020d}-{segment_id}.log",
        f"{'9' * 20}-{segment_id}.rsm-manifest",
        f"x{'0' * 20}-{segment_id}.log",
    ):
        (place / name).write_bytes(b"x")
    os.mkfifo(place / f"{0:020d}-{segment_id}.log")
    (place / f"{0:020d}-{segment_id}.indexes").mkdir()
    assert Tier([str(tmp_path)]).segments("t", 0) == []


def test_a_version_of_the_future_is_told(place: Path) -> None:
    change(place, _set("version", value="2"))
    with pytest.raises(UnsupportedFormat, match="unknown version"):
        read_all(segment_of(place))
