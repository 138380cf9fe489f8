"""The view index: kept between mounts, never believed blindly, never in the way."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from kafkafs.formats.format import MOST_LINE_BYTES
from kafkafs.reading import store, workers
from kafkafs.reading.blocks import CRC, FILE_END, NO_CRC, POSITION, RECORDS
from kafkafs.reading.store import default_directory
from kafkafs.tree import services
from kafkafs.tree.tree import Tree, TreeOptions
from storage.format.compression import Codec
from storage.log.log_dir import LogDir
from storage.tier.blocks import RemoteBlockCache
from storage.tier.object_places import DirectoryPlace
from storage.tier.tier import Tier
from tests.kafkafs.reading.kept_files import damaged, hostile, with_arrays, with_checksum
from tests.kafkafs.reading.test_damage import batches
from tests.support.fixtures import requires_fixtures
from tests.support.live_log import LiveLog
from tests.support.reference_views import PATH, content, read_all, readable, scanned_bytes, tree_of
from tests.support.tiers import KEYS, TIERS, copied


@pytest.fixture
def live(tmp_path):
    """Two segments above the size from which their index is kept, and an active one."""
    log = LiveLog(tmp_path / "log")
    for _ in range(2):
        log.write(1500, size=1000, batch=100)
        log.roll()
    log.write(10)
    return log


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def tree(live, cache, **options):
    return tree_of(live.path.parent, index_dir=cache, **{"index_bytes": 1 << 20, **options})


def files(cache):
    return sorted(cache.glob("*.npz"))


def sizes(live):
    return [live.log(base).stat().st_size for base in live.segments]


def test_sealed_segments_are_measured_once_in_their_life(live, cache):
    first, second = tree(live, cache), tree(live, cache)
    assert content(first, PATH) == live.text()
    assert scanned_bytes(first) == sum(sizes(live))
    assert len(files(cache)) == 2
    assert content(second, PATH) == live.text()
    assert scanned_bytes(second) == sizes(live)[-1]
    assert content(second, "/t/0/offsets/700-1800.txt") == live.text(lambda offset, _: 700 <= offset <= 1800)
    lines = content(second, "/t/0/messages.jsonl")  # another rendition is another measure
    assert len(files(cache)) == 2
    third = tree(live, cache)
    assert content(third, PATH) == live.text()
    assert content(third, "/t/0/messages.jsonl") == lines
    assert scanned_bytes(third) == 2 * sizes(live)[-1]
    assert {path.stat().st_mode & 0o777 for path in files(cache)} == {0o600}
    assert cache.stat().st_mode & 0o777 == 0o700


def test_the_last_segment_is_kept_when_the_mount_ends(live, cache):
    live.write(1500, size=1000, batch=100)
    first = tree(live, cache)
    content(first, PATH)
    assert len(files(cache)) == 2
    first.stop()
    assert len(files(cache)) == 3
    second = tree(live, cache)
    assert content(second, PATH) == live.text()
    assert scanned_bytes(second) == 0
    live.write(10)
    third = tree(live, cache)
    assert content(third, PATH) == live.text()
    assert scanned_bytes(third) > 0


def rewritten(path, change, times=None):
    """Changes a file's bytes and sets its times: as before, or others."""
    status = path.stat()
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, ns=times or (status.st_atime_ns, status.st_mtime_ns))


def with_other_checksum(position):
    """Another CRC in the header of the batch at a position: a batch of another log."""
    return lambda data: data[: position + 17] + b"\0\1\2\3" + data[position + 21 :]


@pytest.mark.parametrize("change", ["touch", "replace", "shrink", "first batch", "last batches"])
def test_a_changed_file_is_measured_again(live, cache, change):
    """Also where name, size, times and inode are the same, as of a topic that was made again."""
    content(tree(live, cache), PATH)
    path = live.log(0)
    if change == "touch":
        os.utime(path, ns=(1, 1))
    elif change == "replace":
        status = path.stat()
        path.with_suffix(".new").write_bytes(path.read_bytes())
        path.with_suffix(".new").replace(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "shrink":
        rewritten(path, lambda data: data[: len(data) // 2])
    else:
        for start, _ in batches(path)[:1] if change == "first batch" else batches(path)[1:]:
            rewritten(path, with_other_checksum(start))
    again = tree(live, cache)
    again.lookup(PATH).open().close()
    assert scanned_bytes(again) >= path.stat().st_size


@pytest.mark.parametrize("which", [slice(1), slice(1, None)], ids=["first", "others"])
def test_what_was_measured_of_other_messages_is_not_kept(live, cache, which):
    live.write(1500, size=1000, batch=100)
    first, path = tree(live, cache), live.log(live.segments[-1])
    content(first, PATH)
    for start, _ in batches(path)[which]:
        rewritten(path, with_other_checksum(start))
    first.stop()
    assert len(files(cache)) == 2


def measured_again(live, cache):
    """Whether a mount takes nothing of the cache; the one after it takes what it has made."""
    again, third = tree(live, cache), tree(live, cache)
    assert content(again, PATH) == live.text()
    assert content(third, PATH) == live.text()
    assert scanned_bytes(third) == sizes(live)[-1]
    return scanned_bytes(again) == sum(sizes(live))


@pytest.mark.parametrize("damage", [*damaged(bytes(100)), "a directory"])
def test_damaged_cache_files_are_as_if_they_were_not_there(live, cache, damage):
    content(tree(live, cache), PATH)
    for path in files(cache):
        if damage == "a directory":
            path.unlink()
            path.mkdir()
        else:
            path.write_bytes(damaged(path.read_bytes())[damage])
    again = tree(live, cache)
    assert content(again, PATH) == live.text()
    assert scanned_bytes(again) == sum(sizes(live))


ROW, SIZE, SKIP = range(3)  # of the sizes of a rendition


@pytest.mark.parametrize(
    "cells",
    [
        [("sizes_0", SIZE, slice(None), 2**55)],
        [("sizes_0", SIZE, slice(None), 65 << 20)],
        [("sizes_0", SIZE, 1, 2**60)],
        [("sizes_0", SIZE, 1, 0)],
        [("sizes_0", SIZE, 1, -1)],
        [("sizes_0", ROW, 1, 2**40)],
        [("sizes_0", ROW, 1, -1)],
        [("sizes_0", ROW, 1, 0)],
        [("sizes_0", ROW, 0, 2)],
        [("sizes_0", SKIP, 1, -5)],
        [("sizes_0", SKIP, 1, 2**40)],
        [("blocks", POSITION, 1, -(2**60))],
        [("blocks", POSITION, 1, 1)],
        [("blocks", POSITION, 1, 2**60)],
        [("blocks", FILE_END, 1, 2**62)],
        [("blocks", FILE_END, -1, 2**62)],
        [("blocks", CRC, 1, NO_CRC)],
        [("blocks", RECORDS, 1, -1)],
    ],
)
def test_numbers_that_cannot_be_are_not_believed(live, cache, cells):
    """As somebody may have written them, with a right checksum: nothing takes memory or fails."""

    def change(arrays):
        for name, row, column, value in cells:
            arrays[name][row, column] = value

    content(tree(live, cache), PATH)
    for path in files(cache):
        path.write_bytes(with_arrays(path, change))
    assert measured_again(live, cache)


def test_archives_that_somebody_has_made_are_not_believed(live, cache):
    """None is unpickled or inflated, and none takes memory that it does not have."""
    content(tree(live, cache), PATH)
    good = {path: path.read_bytes() for path in files(cache)}
    kinds = hostile(files(cache)[0])
    for kind in kinds:
        for path in good:
            path.write_bytes(with_checksum(hostile(path)[kind]))
        assert scanned_bytes(opened_again(live, cache)) == sum(sizes(live)), kind
        for path, data in good.items():
            path.write_bytes(data)


def opened_again(live, cache):
    """A mount that has opened everything."""
    again = tree(live, cache)
    assert content(again, PATH) == live.text()
    return again


@pytest.mark.parametrize("name", ["messages.txt", "messages.jsonl"])
def test_parts_of_a_large_batch_are_kept(live, cache, name):
    live.write(1500, size=1000, batch=100)
    live.codec = Codec.ZSTD
    live.append(b"a", b"x" * (MOST_LINE_BYTES // 2), b"y" * (MOST_LINE_BYTES // 2), b"z" * MOST_LINE_BYTES)
    live.write_segments(10, 1)
    expected = readable(tree(live, cache).lookup(f"/t/0/{name}"), step=128 << 20)
    again = tree(live, cache)
    found = readable(again.lookup(f"/t/0/{name}"), step=128 << 20)
    assert found[0] == expected[0]
    assert [error.offset for error in found[1]] == [4513]
    assert scanned_bytes(again) == sizes(live)[-1]


def test_a_cache_that_cannot_be_written_is_no_error(live, tmp_path):
    (tmp_path / "file").write_bytes(b"no directory")
    one = tree(live, tmp_path / "file" / "cache")
    assert content(one, PATH) == live.text()
    one.stop()


def test_the_cache_is_bounded_and_the_longest_unused_goes(live, cache):
    content(tree(live, cache), PATH)
    one = files(cache)[0].stat().st_size
    for path in files(cache):
        path.unlink()
    cache.joinpath("old.npz").write_bytes(b"x" * one)
    os.utime(cache / "old.npz", ns=(1, 1))
    kept = tree(live, cache, index_bytes=3 * one + 200)
    content(kept, PATH)
    assert (cache / "old.npz").exists()
    content(kept, "/t/0/messages.jsonl")
    assert not (cache / "old.npz").exists()
    assert sum(path.stat().st_size for path in files(cache)) <= 3 * one + 200


def test_the_cache_lies_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "kafkafs" / "views"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification: ignore it
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_directory() == tmp_path / "home" / ".cache" / "kafkafs" / "views"


OPENED = {
    "group": lambda cache, used: used.chmod(0o770),
    "everybody": lambda cache, used: used.chmod(0o777),
    "above": lambda cache, used: cache.chmod(0o777),
    "owner": lambda cache, used: os.chown(used, 4001, 4001),
}


@pytest.mark.parametrize("through_a_link", [False, True])
@pytest.mark.parametrize("how", OPENED)
def test_a_cache_that_others_can_write_is_not_used(live, cache, how, through_a_link):
    """A right checksum says nothing about who has written a file."""
    if how == "owner" and os.geteuid() != 0:
        pytest.skip("takes another user")
    used = cache / "views"
    for _ in range(2):
        top = tree(live, used)
        content(top, PATH)
    assert scanned_bytes(top) == sizes(live)[-1]
    OPENED[how](cache, used)
    before = {path: path.stat().st_mtime_ns for path in files(used)}
    (cache.parent / "link").symlink_to(used)
    unused = tree(live, cache.parent / "link" if through_a_link else used)
    content(unused, PATH)
    assert scanned_bytes(unused) == sum(sizes(live))
    assert {path: path.stat().st_mtime_ns for path in files(used)} == before


def test_lookups_leave_a_bounded_number_of_entries(live, cache, monkeypatch):
    monkeypatch.setattr(services, "KEPT_STATES", 20)
    top = tree(live, cache)
    handles = [top.lookup(f"/t/0/offsets/{n}-{n + 1}.txt").open() for n in range(50)]
    for handle in handles:  # an open file keeps its state
        assert read_all(handle)
    assert top.status()["views"]["known"] == 50
    for handle in handles:
        handle.close()
    for n in range(100):
        content(top, f"/t/0/offsets/{n}-{n + 2}.txt")
    assert top.status()["views"] == {"known": 20, "open": 0, "handles": 0}


@pytest.mark.parametrize("entries", ["right", "within batches", "some of each"])
def test_a_large_segment_is_measured_in_parts_that_meet(tmp_path, monkeypatch, entries):
    """Parts begin where the offset index says; entries that lie cost time and nothing else."""
    monkeypatch.setattr(workers, "PART_BYTES", 20_000)
    live = LiveLog(tmp_path / "log")
    live.write(6000, batch=7)
    live.roll()
    ends = [end for _, end in batches(live.log(0))]
    hints = {
        "right": ends[::40],
        "within batches": [end + 1 for end in ends[::40]],
        "some of each": ends[5:9] + [end + 3 for end in ends[100:200:9]],
    }[entries]
    index = b"".join((7 * n + 7).to_bytes(4, "big") + hint.to_bytes(4, "big") for n, hint in enumerate(hints))
    live.log(0).with_suffix(".index").write_bytes(index)
    top = tree_of(live.path.parent)
    top.start()
    try:
        assert content(top, PATH) == live.text()
        assert content(top, "/t/0/offsets/700-5000.txt") == live.text(lambda offset, _: 700 <= offset <= 5000)
        assert scanned_bytes(top) >= sizes(live)[0]
    finally:
        top.stop()


@requires_fixtures
def test_in_a_far_tier_a_later_mount_reads_only_where_the_log_begins(cache, monkeypatch, tmp_path):
    """And an object that is another one than before: by its time here, by its ETag in a bucket."""
    asked = []
    make, read = DirectoryPlace.__init__, DirectoryPlace.read

    def far(place, name):
        make(place, name)
        place.is_local = False

    def noted(place, key, position, size):
        if key.endswith(".log"):
            asked.append(key)
        return read(place, key, position, size)

    monkeypatch.setattr(store, "LEAST_BYTES", 1)
    monkeypatch.setattr(DirectoryPlace, "__init__", far)
    monkeypatch.setattr(DirectoryPlace, "read", noted)
    place = copied(TIERS / "tier-aiven-enc", tmp_path / "tier")

    def look(blocks):
        """The size of the file, and which segments were read for it."""
        asked.clear()
        tier = Tier([str(place)], KEYS, RemoteBlockCache(directory=tmp_path / blocks))
        options = TreeOptions(index_bytes=1 << 20, index_dir=cache)
        tree = Tree(LogDir.open_read_only(TIERS / "log", tier=tier), options)
        tree.start()
        try:
            with closing(tree.lookup("/gone/0/messages.txt").open()) as handle:
                return handle.size, sorted({int(Path(key).name[:20]) for key in asked})
        finally:
            tree.stop()

    size, bases = look("first")
    assert bases == [0, 233, 482, 719, 967, 1006, 1243]
    assert look("second") == (size, [0])
    (other,) = place.rglob("gone-*/0/00000000000000000719-*.log")
    os.utime(other, ns=(1, 1))
    assert look("third") == (size, [0, 719])
