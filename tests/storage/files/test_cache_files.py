"""The limit of the cache's files, which all processes of a user share."""

import os

import pytest

from storage.files.cache_files import CacheFiles

SIZE = 1000
MOST = 20 * SIZE


@pytest.fixture
def caches(tmp_path):
    """Two processes' views of one directory."""
    return [CacheFiles(tmp_path / "cache", ".view", MOST) for _ in range(2)]


def held(cache):
    return sum(path.stat().st_size for path in cache.directory.glob("*.view"))


def test_the_limit_counts_what_other_processes_have_written(caches):
    for number in range(60):
        caches[number % 2].write(b"%d" % number, bytes(SIZE))
        assert held(caches[0]) <= MOST
    assert [cache.used_bytes() for cache in caches][1] == held(caches[0])
    assert caches[0].read(b"59") == bytes(SIZE)
    assert caches[0].read(b"0") is None


def test_what_is_used_stays(caches):
    first, second = caches
    for number in range(40):
        first.write(b"%d" % number, bytes(SIZE))
        os.utime(first.path(b"%d" % number), (number, number))
        second.used(b"0")
    assert second.read(b"0") == bytes(SIZE)


def test_a_file_that_is_written_again_counts_once(caches):
    first, second = caches
    first.write(b"other", bytes(SIZE))
    for number in range(100):
        caches[number % 2].write(b"same", bytes([number]) * SIZE)
    assert second.used_bytes() == held(second) == 2 * SIZE
    assert first.read(b"other") == bytes(SIZE)


def test_what_has_not_changed_is_not_written_again(caches):
    first, second = caches
    first.write(b"same", b"data")
    before = first.path(b"same").stat()
    os.utime(first.path(b"same"), (1, 1))
    second.write(b"same", b"data")
    after = first.path(b"same").stat()
    assert after.st_ino == before.st_ino
    assert after.st_mtime > 1  # it was used


def test_files_that_somebody_removed_do_not_count(caches):
    first, second = caches
    for number in range(20):
        first.write(b"%d" % number, bytes(SIZE))
    for path in first.directory.iterdir():
        path.unlink()
    for number in range(20):
        second.write(b"%d" % number, bytes(SIZE))
        assert second.read(b"0") == bytes(SIZE)
    assert held(second) == second.used_bytes() == MOST


@pytest.mark.parametrize("damage", [b"", b"no number", b"-5", b"9" * 40])
def test_a_damaged_total_is_counted_again(caches, damage):
    first, second = caches
    first.write(b"0", bytes(SIZE))
    for path in first.directory.iterdir():
        if path.suffix != ".view":
            path.write_bytes(damage)
    for number in range(60):
        second.write(b"%d" % number, bytes(SIZE))
        assert held(second) <= MOST
