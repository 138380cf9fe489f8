"""The view index: kept between mounts, never believed blindly, never in the way."""

from __future__ import annotations

import os
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from kafkafs.formats import by_name
from kafkafs.reading import index, store
from kafkafs.reading import workers as parts
from kafkafs.reading.extent import Extent
from kafkafs.reading.index import ViewIndex
from kafkafs.reading.pieces import (
    CRC,
    END,
    FILE_END,
    NO_CRC,
    PIECE_BYTES,
    POSITION,
    RECORDS,
    SIZE,
    SKIP,
    SPLIT_BYTES,
    Piece,
    PieceBuilder,
    Pieces,
)
from kafkafs.reading.store import Store, default_directory
from kafkafs.reading.workbench import Rendition
from kafkafs.reading.workers import Workers
from kafkafs.tree import services
from kafkafs.tree.tree import Tree, TreeOptions
from storage.format.checksum import crc32c
from storage.format.compression import Codec
from storage.log.log_dir import LogDir
from storage.tier.blocks import BlockCache
from storage.tier.object_places import Directory
from storage.tier.tier import Tier
from storage.types import Isolation, TopicPartition
from tests.kafkafs.reading.test_damage import batches
from tests.support.fixtures import requires_fixtures
from tests.support.live_log import LiveLog
from tests.support.reference_views import content, read_all, tree_of
from tests.support.tiers import KEYS, TIERS, copied

PATH = "/t/0/messages.txt"
TP = TopicPartition("t", 0)
TXT = Rendition(by_name("txt", TP), Isolation.READ_UNCOMMITTED)


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


def scanned(tree):
    count = tree.status()["view_index"]["scanned_bytes"]
    assert isinstance(count, int)
    return count


def files(cache):
    return sorted(cache.glob("*.view"))


def test_sealed_segments_are_measured_once_in_their_life(live, cache):
    first = tree(live, cache)
    expected = live.text()
    assert content(first, PATH) == expected
    whole = scanned(first)
    assert whole == sum(live.log(base).stat().st_size for base in live.segments)
    assert len(files(cache)) == 2
    second = tree(live, cache)
    assert content(second, PATH) == expected
    assert scanned(second) == live.log(live.segments[-1]).stat().st_size
    assert content(second, "/t/0/offsets/700-1800.txt") == live.text(lambda offset, _: 700 <= offset <= 1800)
    # Another rendition is another measure.
    content(second, "/t/0/messages.jsonl")
    assert len(files(cache)) == 4


def test_the_last_segment_is_kept_when_the_mount_ends(live, cache):
    live.write(1500, size=1000, batch=100)
    first = tree(live, cache)
    content(first, PATH)
    assert len(files(cache)) == 2
    first.stop()
    assert len(files(cache)) == 3
    second = tree(live, cache)
    assert content(second, PATH) == live.text()
    assert scanned(second) == 0
    live.write(10)
    third = tree(live, cache)
    assert content(third, PATH) == live.text()
    assert scanned(third) > 0


@pytest.mark.parametrize("change", ["touch", "replace", "grow", "other bytes"])
def test_a_changed_file_is_measured_again(live, cache, change):
    content(tree(live, cache), PATH)
    path = live.log(0)
    data = path.read_bytes()
    status = path.stat()
    if change == "touch":
        os.utime(path, ns=(1, 1))
    elif change == "replace":
        path.rename(path.with_suffix(".old"))
        path.write_bytes(data)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "grow":
        path.write_bytes(data[: len(data) // 2])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        path.write_bytes(data[:18] + b"!" + data[19:])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = tree(live, cache)
    again.lookup(PATH).open().close()
    assert scanned(again) >= path.stat().st_size


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "garbage", "version", "directory"])
def test_damaged_cache_files_are_as_if_they_were_not_there(live, cache, damage):
    content(tree(live, cache), PATH)
    for path in files(cache):
        data = path.read_bytes()
        if damage == "directory":
            path.unlink()
            path.mkdir()
            continue
        path.write_bytes(
            {
                "truncate": data[: len(data) - 9],
                "flip": data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
                "empty": b"",
                "garbage": os.urandom(len(data)),
                "version": data[:7] + b"\xff" + data[8:],
            }[damage]
        )
    again = tree(live, cache)
    assert content(again, PATH) == live.text()
    assert scanned(again) > 2 * 1500 * 1000


def _with(column, value, row=1):
    """The pieces with another number in a row of a column, or in all rows."""

    def change(pieces):
        columns = pieces.columns.copy()
        columns[column, slice(None) if row is None else row] = value
        return Pieces(columns, pieces.start, pieces.file_end)

    return change


def _all_of_size(size):
    """The pieces with this size, and the ends that follow from it."""

    def change(pieces):
        columns = pieces.columns.copy()
        columns[SIZE] = size
        columns[END] = np.arange(1, len(pieces) + 1) * size
        return Pieces(columns, pieces.start, pieces.file_end)

    return change


_IMPOSSIBLE = {
    "all sizes 2^55": _with(SIZE, 2**55, None),
    "sizes and ends": _all_of_size(2**55),
    "small sizes with their ends": _all_of_size(5 << 20),
    "size": _with(SIZE, 2**60),
    "another size": _with(SIZE, 10),
    "end": _with(END, 2**60),
    "position": _with(POSITION, -(2**60)),
    "overlapping": _with(POSITION, 1),
    "behind its end": _with(POSITION, 2**60),
    "file end": _with(FILE_END, 2**62),
    "skip": _with(SKIP, -5),
    "skip of no part": _with(SKIP, 2**40),
    "damage": _with(CRC, NO_CRC),
    "records": _with(RECORDS, 2**60),
    "negative records": _with(RECORDS, -1),
    "start": lambda pieces: Pieces(pieces.columns, 1, pieces.file_end),
    "end of the file": lambda pieces: Pieces(pieces.columns, pieces.start, pieces.file_end + 1),
}


@pytest.mark.parametrize("how", [*_IMPOSSIBLE, "odd length", "count"])
def test_numbers_that_cannot_be_are_not_believed(live, cache, how):
    """As somebody may have written them, with a right checksum: nothing takes memory or fails, and the file is made
    again."""
    first = tree(live, cache)
    content(first, PATH)
    for path in files(cache):
        data = path.read_bytes()
        (length,) = struct.unpack_from("<I", data, 12)
        key = data[16 : 16 + length]
        found = store._decode(data, key)
        assert found is not None
        if how == "odd length":
            data += b"!"
        elif how == "count":
            data = data[: 16 + length + 16] + struct.pack("<q", 2**61) + data[16 + length + 24 :]
        else:
            data = store._encode(key, _IMPOSSIBLE[how](found[0]), found[1])
        path.write_bytes(data[:8] + struct.pack("<I", crc32c(data[12:])) + data[12:])
    again = tree(live, cache)
    assert content(again, PATH) == live.text()
    assert scanned(again) == scanned(first)
    third = tree(live, cache)
    assert content(third, PATH) == live.text()
    assert scanned(third) < scanned(first)


@pytest.mark.parametrize("name", ["messages.txt", "messages.jsonl"])
def test_parts_of_a_huge_batch_are_kept(live, cache, name):
    live.append(b"a", b"x" * (2 * SPLIT_BYTES), b"y" * SPLIT_BYTES, b"z")
    live.write(10)
    live.append(b"x" * (2 * SPLIT_BYTES))
    live.append(b"x" * (2 * SPLIT_BYTES))
    live.roll()
    live.write(1)
    path = PATH.replace("messages.txt", name)
    expected = content(tree(live, cache), path)
    again = tree(live, cache)
    assert content(again, path) == expected
    assert scanned(again) == live.log(live.segments[-1]).stat().st_size


def test_a_cache_that_cannot_be_written_is_no_error(live, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_bytes(b"no directory")
    one = tree(live, blocked / "cache")
    assert content(one, PATH) == live.text()
    one.stop()


def test_the_cache_is_bounded_and_the_longest_unused_goes(live, cache):
    content(tree(live, cache), PATH)
    one = files(cache)[0].stat().st_size
    for path in files(cache):
        path.unlink()
    cache.joinpath("old.view").write_bytes(b"x" * one)
    os.utime(cache / "old.view", ns=(1, 1))
    kept = tree(live, cache, index_bytes=3 * one)
    content(kept, PATH)
    assert (cache / "old.view").exists()
    content(kept, "/t/0/messages.jsonl")
    assert not (cache / "old.view").exists()
    assert sum(path.stat().st_size for path in files(cache)) <= 3 * one


def test_the_cache_lies_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "kafkafs" / "views"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification: ignore it
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_directory() == tmp_path / "home" / ".cache" / "kafkafs" / "views"


def test_pieces_of_other_messages_are_neither_kept_nor_believed(tmp_path, live):
    """Segments of a topic that was made again may have the same names, sizes and inode numbers."""
    snapshot = LogDir.open_read_only(live.path.parent).log(TP).snapshot()
    segment = snapshot.segments[0]
    extent = ViewIndex(Workers(0), None).whole(snapshot, segment, TXT, segment.size)
    path = live.log(0)
    own = path.read_bytes()
    kept = Store(tmp_path / "kept", 1 << 20)
    assert kept.save(segment, TXT.name, extent.pieces)
    (file,) = files(tmp_path / "kept")

    def again(first_byte, times):
        """Another CRC in the header of the batch that begins there."""
        with path.open("r+b") as log:
            log.write(own)
            log.seek(first_byte + 17)
            log.write(b"\0\1\2\3")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return LogDir.open_read_only(live.path.parent).log(TP).snapshot().segments[0]

    times = path.stat()
    last = int(extent.pieces.columns[POSITION, -1])
    assert last > 0
    # Even where all that the file is told by is the same: the last piece tells.
    other = again(last, times)
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert kept.load(other, TXT.name) is None
    file.unlink()
    for position in (0, last):
        kept.save(again(position, times), TXT.name, extent.pieces)
        assert files(tmp_path / "kept") == []


def test_cache_files_are_private(live, cache):
    content(tree(live, cache), PATH)
    assert {path.stat().st_mode & 0o777 for path in files(cache)} == {0o600}
    assert cache.stat().st_mode & 0o777 == 0o700


_OTHER_UID = 4001


@pytest.mark.parametrize("how", ["group", "everybody", "above", "link", "owner"])
def test_a_cache_that_others_can_write_is_not_used(live, cache, how):
    """A right checksum says nothing about who has written a file."""
    if how == "owner" and os.geteuid() != 0:
        pytest.skip("takes another user")
    top = tree(live, cache / "views")
    content(top, PATH)
    again = tree(live, cache / "views")
    content(again, PATH)
    assert scanned(again) < scanned(top)
    used = cache / "views"
    if how == "group":
        used.chmod(0o770)
    elif how == "everybody":
        used.chmod(0o777)
    elif how == "above":
        cache.chmod(0o777)
    elif how == "link":
        used = cache.parent / "link"
        used.symlink_to(cache / "views")
        (cache / "views").chmod(0o777)
    else:
        os.chown(used, _OTHER_UID, _OTHER_UID)
    before = {path: path.stat().st_mtime_ns for path in files(cache / "views")}
    unused = tree(live, used)
    content(unused, PATH)
    assert scanned(unused) == scanned(top)
    assert {path: path.stat().st_mtime_ns for path in files(cache / "views")} == before


def test_lookups_leave_a_bounded_number_of_entries(live, cache, monkeypatch):
    monkeypatch.setattr(services, "KEPT_STATES", 20)
    monkeypatch.setattr(index, "KEPT_STRETCHES", 10)
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
    assert len(top._services.index._stretches) == 10


def test_a_large_segment_is_measured_in_parts_that_meet(tmp_path, monkeypatch):
    """Parts begin where the offset index says; entries that lie cost time and nothing else."""
    monkeypatch.setattr(parts, "_PART_BYTES", 20_000)
    live = LiveLog(tmp_path / "log", Codec.NONE)
    live.write(6000, batch=7)
    live.roll()
    snapshot = LogDir.open_read_only(live.path.parent).log(TP).snapshot()
    segment = snapshot.segments[0]
    ends = [end for _, end in batches(live.log(0))]
    plain = Extent(segment, TXT, None, 0)
    plain.extend(snapshot, segment.size, Workers(0), lambda _: None)
    workers = Workers(2)
    workers.start()
    try:
        for hints in (ends[::40], [end + 1 for end in ends[::40]], ends[5:9] + [end + 3 for end in ends[100:200:9]]):
            entries = b"".join(
                (7 * place + 7).to_bytes(4, "big") + hint.to_bytes(4, "big") for place, hint in enumerate(hints)
            )
            live.log(0).with_suffix(".index").write_bytes(entries)
            fresh = LogDir.open_read_only(live.path.parent).log(TP).snapshot()
            extent = Extent(fresh.segments[0], TXT, None, 0)
            done = []
            extent.extend(fresh, segment.size, workers, done.append)
            assert extent.pieces.size == plain.pieces.size == len(live.text())
            assert extent.pieces.file_end == segment.size
            assert sum(done) >= segment.size
            positions = extent.pieces.columns[2].tolist()
            assert set(positions) <= {0, *ends}
    finally:
        workers.stop()


def test_pieces_grow_behind_their_end_only():
    def piece(position, size):
        return Piece(0, size, position, position + 100, -1, position, 1, 5, 6, 3)

    builder = PieceBuilder(Pieces.none(0))
    builder.add(piece(0, PIECE_BYTES - 10))
    builder.add(piece(100, 0))
    builder.add(piece(200, 10))
    builder.add(piece(300, 11))
    first = builder.build(400)
    assert [(row.start, row.end, row.position, row.file_end) for row in map(first.piece, range(len(first)))] == [
        (0, PIECE_BYTES, 0, 300),
        (PIECE_BYTES, PIECE_BYTES + 11, 300, 400),
    ]
    more = PieceBuilder(first)
    more.add(piece(400, 20))
    second = more.build(500)
    assert (len(first), first.size, first.file_end) == (2, PIECE_BYTES + 11, 400)
    assert second.piece(1) == first.piece(1)._replace(end=PIECE_BYTES + 31, size=31, file_end=500, records=6)
    assert [second.row_at(place) for place in (0, PIECE_BYTES - 1, PIECE_BYTES, second.size)] == [0, 0, 1, 2]


@requires_fixtures
def test_in_a_far_tier_a_later_mount_reads_only_where_the_log_begins(cache, monkeypatch, tmp_path):
    """And an object that is another one than before: by its time here, by its ETag in a bucket."""
    asked = []
    make, read = Directory.__init__, Directory.read

    def far(place, name):
        make(place, name)
        place.is_local = False

    def noted(place, key, position, size):
        if key.endswith(".log"):
            asked.append(key)
        return read(place, key, position, size)

    monkeypatch.setattr(store, "LEAST_BYTES", 1)
    monkeypatch.setattr(Directory, "__init__", far)
    monkeypatch.setattr(Directory, "read", noted)
    place = copied(TIERS / "tier-aiven-enc", tmp_path / "tier")

    def size(blocks):
        tier = Tier([str(place)], KEYS, BlockCache(directory=tmp_path / blocks))
        options = TreeOptions(index_bytes=1 << 20, index_dir=cache)
        tree = Tree(LogDir.open_read_only(TIERS / "log", tier=tier), options)
        tree.start()
        try:
            with closing(tree.lookup("/gone/0/messages.txt").open()) as handle:
                assert handle.size is not None
                return handle.size
        finally:
            tree.stop()

    def bases():
        found = sorted({int(Path(key).name[:20]) for key in asked})
        asked.clear()
        return found

    first = size("first")
    assert bases() == [0, 233, 482, 719, 967, 1006, 1243]
    assert size("second") == first
    assert bases() == [0]
    (other,) = place.rglob("gone-*/0/00000000000000000719-*.log")
    os.utime(other, ns=(1, 1))
    assert size("third") == first
    assert bases() == [0, 719]
