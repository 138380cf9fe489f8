"""What tells a partition's directory from a later one of the same name."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from storage.files import names, partition_metadata
from storage.files.partition_metadata import DirIdentity


def test_a_directory_is_itself(tmp_path: Path) -> None:
    first = DirIdentity.of(tmp_path)
    (tmp_path / "file").touch()
    assert DirIdentity.of(tmp_path) == first
    assert first.may_be(DirIdentity.of(tmp_path))


def test_birth_is_what_the_system_says(tmp_path: Path) -> None:
    said = int(subprocess.run(["stat", "-c", "%W", tmp_path], capture_output=True, check=True).stdout)
    born_ns = DirIdentity.of(tmp_path).born_ns
    assert (born_ns is None) == (said == 0)
    assert born_ns is None or born_ns // 1_000_000_000 == said


def test_without_birth_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_metadata, "_statx", lambda: None)
    assert DirIdentity.of(tmp_path).born_ns is None
    assert DirIdentity.of(tmp_path).may_be(DirIdentity.of(tmp_path))


@pytest.mark.parametrize("changed", ["device", "inode", "born_ns", "topic_id"])
def test_each_of_the_facts_tells(changed: str) -> None:
    one = DirIdentity(1, 2, 3, "id")
    other = dataclasses.replace(one, **{changed: "another" if changed == "topic_id" else 9})
    assert not one.may_be(other)
    assert one.may_be_seen_elsewhere_as(other) == (changed in ("device", "inode"))
    if changed in ("born_ns", "topic_id"):
        assert one.may_be(dataclasses.replace(one, **{changed: None}))


def test_a_topic_id_that_comes_later(tmp_path: Path) -> None:
    before = DirIdentity.of(tmp_path)
    assert before.topic_id is None
    topic_id = partition_metadata.random_id()
    (tmp_path / names.PARTITION_METADATA).write_bytes(partition_metadata.encode(topic_id))
    now = DirIdentity.of(tmp_path)
    assert before.may_be(now)
    assert before.with_known(now).topic_id == topic_id
    assert now.with_known(before).topic_id == topic_id


def test_an_id_that_does_not_read_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / names.PARTITION_METADATA).write_bytes(b"rubbish")
    assert DirIdentity.of(tmp_path).topic_id is None


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DirIdentity.of(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        DirIdentity.of(tmp_path / "file" / "none")


def test_nothing_is_changed(tmp_path: Path) -> None:
    metadata = tmp_path / names.PARTITION_METADATA
    metadata.write_bytes(partition_metadata.encode(partition_metadata.random_id()))
    os.utime(metadata, ns=(1, 1))
    os.utime(tmp_path, ns=(1, 1))
    DirIdentity.of(tmp_path)
    assert {path.stat().st_atime_ns for path in (metadata, tmp_path)} == {1}
    assert {path.stat().st_mtime_ns for path in (metadata, tmp_path)} == {1}
