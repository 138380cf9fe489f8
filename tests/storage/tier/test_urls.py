"""Tiers behind URLs: fsspec's file system in memory stands for a bucket."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from storage.errors import CorruptData, TierUnavailable
from storage.files.names import FileKind
from storage.tier.blocks import BlockCache
from storage.tier.object_places import Url
from storage.tier.tier import Tier
from tests.support.fixtures import requires_fixtures
from tests.support.tiers import KEYS, TIERS

pytestmark = requires_fixtures

URL = "memory://bucket/some/prefix"


class Requests:
    """What is asked of URLs: (key, position, size), and keys that are listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[tuple[str, int, int]] = []
        self.listed: list[str] = []
        read, entries = Url.read, Url.entries

        def noted_read(url: Url, key: str, position: int, size: int) -> bytes:
            self.read.append((key, position, size))
            return read(url, key, position, size)

        def noted_entries(url: Url, key: str) -> Any:
            self.listed.append(key)
            return entries(url, key)

        monkeypatch.setattr(Url, "read", noted_read)
        monkeypatch.setattr(Url, "entries", noted_entries)


@pytest.fixture
def bucket() -> Any:
    import fsspec

    system = fsspec.filesystem("memory")
    for layout in ("tier-local", "tier-aiven-enc"):
        for path in (TIERS / layout).rglob("*"):
            if path.is_file():
                name = f"/bucket/some/prefix/{layout}/{path.relative_to(TIERS / layout)}"
                system.pipe_file(name, path.read_bytes())
    yield system
    system.rm("/bucket", recursive=True)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


def tier(layout: str, cache: Path) -> Tier:
    return Tier([f"{URL}/{layout}"], KEYS, BlockCache(directory=cache))


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("layout", ["tier-local", "tier-aiven-enc"])
def test_the_same_bytes_and_few_requests(layout: str, requests: Requests, tmp_path: Path) -> None:
    expected = Tier([str(TIERS / "tier-local")]).segments("two", 0)
    found = tier(layout, tmp_path).segments("two", 0, expected[0].of.topic_id)
    assert all("two-" in key for key in requests.listed if "-" in key.partition("/")[2])
    assert requests.read == []
    for one, other in zip(found, expected, strict=True):
        log = other.content.parts[FileKind.LOG].read(0, 1 << 20)
        got = one.content.parts[FileKind.LOG]
        assert b"".join(got.read(at, 1000) for at in range(0, got.size, 1000)) == log
        assert one.epochs == other.epochs
    # One request for a manifest, at most three for a .log, one for the epochs.
    assert len(requests.read) <= 5 * len(found)
    read = len(requests.read)
    for one in found:
        one.content.parts[FileKind.LOG].read(0, 1 << 20)
    assert len(requests.read) == read


@pytest.mark.usefixtures("bucket")
def test_what_was_read_is_kept_as_it_is_in_the_tier(requests: Requests, tmp_path: Path) -> None:
    def contents() -> list[bytes]:
        return [
            bytes(segment.content.parts[FileKind.LOG].read(0, 1 << 20))
            for segment in tier("tier-aiven-enc", tmp_path / "cache").segments("two", 0)
        ]

    first, read = contents(), len(requests.read)
    kept = sorted((tmp_path / "cache").iterdir())
    assert kept
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    objects = b"".join(path.read_bytes() for path in (TIERS / "tier-aiven-enc").rglob("two*/**/*") if path.is_file())
    assert all(path.read_bytes()[:-4] in objects for path in kept)
    assert contents() == first
    assert len(requests.read) == read
    for path in kept:  # damaged ones are read again
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert contents() == first
    assert len(requests.read) > read
    (tmp_path / "cache").chmod(0o777)  # anybody could write there
    read = len(requests.read)
    assert contents() == first
    assert len(requests.read) > read


def test_an_object_that_was_replaced_is_not_read_from_the_cache(bucket: Any, tmp_path: Path) -> None:
    def log() -> bytes:
        return bytes(tier("tier-local", tmp_path).segments("two", 0)[0].content.parts[FileKind.LOG].read(0, 100))

    before = log()
    (name,) = bucket.glob("/bucket/some/prefix/tier-local/two-0-*/00000000000000000000-*.log")
    bucket.pipe_file(name, bytes(1000))
    assert log() == bytes(100) != before


def test_errors_name_the_object(bucket: Any, tmp_path: Path) -> None:
    segment = tier("tier-aiven-enc", tmp_path).segments("two", 0)[0]
    log = segment.content.parts[FileKind.LOG]
    (name,) = bucket.glob("/bucket/some/prefix/tier-aiven-enc/**/two-*/0/00000000000000000000-*.log")
    data = bucket.cat_file(name)
    bucket.pipe_file(name, data[:-1])
    with pytest.raises(CorruptData, match=rf"{URL}/.*\.log: object is cut off"):
        log.read(0, 1 << 20)
    bucket.rm(name)
    with pytest.raises(TierUnavailable, match=rf"{URL}/.*\.log: is not in the tier"):
        log.read(0, 1 << 20)


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(TierUnavailable, match=r"memory:// is not installed.*kafkafs\[tier\]"):
        tier("tier-local", tmp_path).segments("two", 0)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    (segment, *_) = Tier([str(TIERS / "tier-aiven-enc")], KEYS).segments("two", 0)
    with pytest.raises(TierUnavailable, match=r"cryptography is missing.*kafkafs\[tier\]"):
        segment.content.parts[FileKind.LOG].read(0, 1)
