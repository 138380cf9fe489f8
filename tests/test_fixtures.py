"""The archives of the fixtures: packed in the same way everywhere, unpacked once, completely, and read-only."""

from __future__ import annotations

import importlib.util
import lzma
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.fixtures import ARCHIVES, FIXTURES, unpacked


@pytest.fixture(scope="module")
def packing() -> ModuleType:
    """`tests/fixtures/pack.py`, which is a script outside of any package."""
    spec = importlib.util.spec_from_file_location("pack", ARCHIVES / "pack.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    """A directory with one small archive in it."""
    (tmp_path / "archives").mkdir()
    shutil.copy(ARCHIVES / "groups.tar.xz", tmp_path / "archives")
    return tmp_path / "archives"


def test_there_is_a_fixture_for_each_archive() -> None:
    names = {path.name.removesuffix(".tar.xz") for path in ARCHIVES.glob("*.tar.xz")}
    assert names <= {path.name for path in FIXTURES.iterdir() if path.is_dir()}
    assert {"codecs", "recovery", "transactions"} <= names


def test_packing_what_was_unpacked_gives_the_same_archive(packing: ModuleType, archives: Path, tmp_path: Path) -> None:
    """Names, contents, modes and times are preserved; the compressed bytes may differ between versions of liblzma."""
    tree = unpacked(archives, tmp_path / "cache")
    assert {path.stat().st_mode & 0o777 for path in (tree, *tree.rglob("*"))} == {0o444, 0o555}
    packing.pack(tree / "groups", tmp_path / "again.tar.xz")
    original, again = (archives / "groups.tar.xz").read_bytes(), (tmp_path / "again.tar.xz").read_bytes()
    assert lzma.decompress(again) == lzma.decompress(original)
