"""The blocks of a segment are the same for every format, key and time, whoever needs them first."""

import random
from contextlib import closing

import pytest

from kafkafs.formats import format as rendered
from kafkafs.reading import blocks, collector, pieces, store
from storage.format.compression import Codec
from tests.support.live_log import START_MS, LiveLog
from tests.support.reference_views import content, read_all, readable, scanned_bytes, tree_of
from tests.support.uncompiled import uncompiled

KEYS = 23


def key_of(offset):
    return None if offset % 7 == 3 else b"key-%d" % (offset * offset % KEYS)


@pytest.fixture(params=["built", "plain"])
def small(request, monkeypatch):
    """Blocks so small that a short log has many, by both forms of the kernel."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 700)
    monkeypatch.setattr(blocks, "BLOCK_RECORDS", 25)
    monkeypatch.setattr(store, "LEAST_BYTES", 1)
    if request.param == "plain":
        for module in (blocks, collector):
            monkeypatch.setattr(module, "block_kernel", uncompiled("kafkafs.reading.block_kernel"))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("seed", range(3))
def test_views_of_a_log_that_grows(tmp_path, small, codec, seed):
    """Opened in turn, and again by later mounts, which have what earlier ones have kept."""
    rng = random.Random(seed)
    live = LiveLog(tmp_path / "log", codec, key_of)
    live.write(30)
    options = {"index_dir": tmp_path / "cache", "index_bytes": 1 << 20}
    trees = [tree_of(live.path.parent, isolation, **options) for isolation in ("read_uncommitted", "read_committed")]
    aborted = 0

    def text(wanted):
        return b"".join(value + b"\n" for offset, at, value in live.messages if wanted(offset, at))

    for _ in range(60):
        tree = rng.choice(trees)
        match rng.randrange(9):
            case 0 | 1:
                live.write(rng.randint(1, 60), size=rng.choice((5, 100)), batch=rng.choice((1, 7, 30)))
            case 2:
                live.roll()
                live.write(3)
            case 3:
                live.begin(7, b"aborted", b"aborted")
                live.end(7, commit=False)
                aborted += 2
            case 4:
                shown = content(tree, "/t/0/messages.txt")
                assert shown.count(b"aborted\n") == (aborted if tree is trees[0] else 0)
                assert shown.replace(b"aborted\n", b"") == text(lambda *_: True)
            case 5:
                lines = content(tree, "/t/0/messages.jsonl")
                assert lines.count(b"\n") == len(live.messages) + (aborted if tree is trees[0] else 0)
            case 6:
                key = b"key-%d" % rng.randrange(KEYS)
                wanted = text(lambda offset, _, key=key: key_of(offset) == key)
                if wanted:
                    shown = content(tree, f"/t/0/keys/{key.decode()}.txt")
                    assert shown.replace(b"aborted\n", b"") == wanted
            case 7:
                start = START_MS + rng.randrange(1000 * live.next_offset)
                end = start + rng.choice((1, 20_000, 10**6))
                shown = content(tree, f"/t/0/time/{start}--{end}.txt")
                assert shown.replace(b"aborted\n", b"") == text(lambda _, at, start=start, end=end: start <= at < end)
            case 8:
                tree.stop()
                slot = trees.index(tree)
                trees[slot] = tree_of(live.path.parent, ("read_uncommitted", "read_committed")[slot], **options)


@pytest.mark.parametrize("first", ["messages.jsonl", "keys/key-1.txt", "messages.txt"])
def test_a_second_format_has_the_same_blocks(tmp_path, small, first):
    """Nothing is collected again: neither by the next format nor by the next key."""
    live = LiveLog(tmp_path / "log", Codec.NONE, key_of)
    live.write_segments(300, 1)
    tree = tree_of(live.path.parent)
    content(tree, f"/t/0/{first}")
    content(tree, "/t/0/messages.txt")
    known = tree.status()["key_index"]
    content(tree, "/t/0/messages.jsonl")
    content(tree, "/t/0/keys/key-2.txt")
    again = tree.status()["key_index"]
    for name in ("keys", "memory_bytes", "indexed_bytes"):
        assert again[name] == known[name]


def test_what_is_kept_of_a_format_that_is_not_opened_stays_while_the_log_grows(tmp_path, small):
    live = LiveLog(tmp_path / "log", Codec.NONE, key_of)
    live.write(300)
    live.write(1)

    def opened(*names):
        """A mount that opens these files, and again when the log has grown a little; what it has scanned."""
        tree = tree_of(live.path.parent, index_dir=tmp_path / "cache", index_bytes=1 << 20)
        for _ in range(2):
            for name in names:
                content(tree, f"/t/0/{name}")
            live.write(1)
        tree.stop()
        return scanned_bytes(tree)

    opened("messages.txt", "messages.jsonl")
    for _ in range(3):
        opened("messages.txt")
    assert opened("messages.jsonl") < live.log(0).stat().st_size / 4


@pytest.mark.parametrize("later", ["damaged", "repaired"])
def test_a_segment_that_was_changed_in_place_is_read_anew(tmp_path, small, later):
    """By a format that nobody has opened before, too."""
    live = LiveLog(tmp_path / "log", Codec.NONE, key_of)
    live.write(300, batch=5)
    live.roll()
    live.write(1)
    path = live.log(0)
    good = path.read_bytes()
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 0xFF
    path.write_bytes(good if later == "damaged" else bad)
    tree = tree_of(live.path.parent)
    readable(tree.lookup("/t/0/messages.txt"))
    path.write_bytes(bad if later == "damaged" else good)
    for ext in ("jsonl", "txt"):
        parts, errors = readable(tree.lookup(f"/t/0/messages.{ext}"))
        assert bool(errors) == (later == "damaged")
        assert b"".join(parts).count(b"\n") == 301 - 5 * (later == "damaged")


def test_a_block_of_many_long_lines_is_cut_between_them(tmp_path, monkeypatch):
    """Also where it has several batches, and goes on while it is open."""
    for module in (pieces, rendered):
        monkeypatch.setattr(module, "MOST_LINE_BYTES", 5000)
    live = LiveLog(tmp_path / "log", Codec.ZSTD, key_of)
    live.write(20, size=1500, batch=3)
    tree = tree_of(live.path.parent)
    with closing(tree.lookup("/t/0/messages.txt").open()) as handle:
        assert read_all(handle) == live.text()
        live.write(7, size=1500, batch=3)
        assert read_all(handle) == live.text()
        assert content(tree, "/t/0/offsets/4-22.txt") == live.text(lambda offset, _: 4 <= offset <= 22)
