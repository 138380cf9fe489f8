"""The archives of the fixtures: packed in the same way everywhere, unpacked once, completely, and read-only."""

from __future__ import annotations

import importlib.util
import lzma
import multiprocessing
import os
import shutil
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.fixtures import ARCHIVES, FIXTURES, ROOT, unpacked

PROCESSES = 4


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


def test_packing_does_not_depend_on_owners_modes_or_fractions_of_seconds(packing: ModuleType, tmp_path: Path) -> None:
    for name, mode, mtime_ns in (("one", 0o600, 10**18), ("two", 0o644, 10**18 + 999)):
        directory = tmp_path / name / "fixture"
        directory.mkdir(parents=True)
        (directory / "b").write_bytes(b"second")
        (directory / "a").write_bytes(b"first")
        (directory / "a").chmod(mode)
        for path in (directory / "a", directory / "b", directory):
            os.utime(path, ns=(mtime_ns, mtime_ns))
        packing.pack(directory, tmp_path / f"{name}.tar.xz")
    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()


def test_a_link_is_not_packed(packing: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "fixture").mkdir()
    (tmp_path / "fixture" / "link").symlink_to("elsewhere")
    with pytest.raises(ValueError, match="fixture/link: neither a file nor a directory"):
        packing.pack(tmp_path / "fixture", tmp_path / "archive.tar.xz")


def test_other_archives_are_unpacked_elsewhere(packing: ModuleType, archives: Path, tmp_path: Path) -> None:
    before = unpacked(archives, tmp_path / "cache")
    (tmp_path / "another").mkdir()
    packing.pack(tmp_path / "another", archives / "another.tar.xz")
    after = unpacked(archives, tmp_path / "cache")
    assert after != before
    assert {path.name for path in before.iterdir()} == {"groups"}
    assert {path.name for path in after.iterdir()} == {"groups", "another"}
    assert unpacked(archives, tmp_path / "cache") == after


def test_what_an_interrupted_process_left_is_replaced(archives: Path, tmp_path: Path) -> None:
    whole = unpacked(archives, tmp_path / "cache")
    left = whole.with_suffix(".partial")
    whole.rename(left)
    (left / "groups" / "topics.json").unlink()
    assert unpacked(archives, tmp_path / "cache") == whole
    assert (whole / "groups" / "topics.json").is_file()
    assert not left.exists()


def _unpack_at_once(archives: Path, cache: Path, barrier: Barrier) -> None:
    barrier.wait(60)
    assert (unpacked(archives, cache) / "groups" / "topics.json").is_file()


def test_several_processes_at_once(archives: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    arguments = (archives, tmp_path / "cache", barrier)
    processes = [context.Process(target=_unpack_at_once, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    tree = unpacked(archives, tmp_path / "cache")
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {tree.name, "fixtures.lock"}


def test_without_archives_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no fixtures: expected archives"):
        unpacked(tmp_path, tmp_path / "cache")


def test_the_environment_names_another_place(tmp_path: Path) -> None:
    program = "from tests.support.fixtures import FIXTURES; import sys; sys.stdout.write(str(FIXTURES))"

    def run(place: Path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KAFKAFS_FIXTURES": str(place), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        return subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    assert run(tmp_path).stdout == str(tmp_path)
    assert "which is not a directory" in run(tmp_path / "missing").stderr
    assert not (tmp_path / "cache").exists()
