"""`keys/<key>.EXT`: what a filter over `messages.jsonl` gives, whatever happens to the log and to its index."""

import json
import random
from collections import defaultdict

import pytest

from kafkafs.reading import blocks, collector, selection
from kafkafs.tree.paths import NameTooLong, NoSuchPath, key_name
from storage.append.partitioner import in_order_for_key
from storage.errors import UnknownTopicOrPartition
from storage.format.compression import Codec
from tests.kafkafs.reading.test_golden import SOUND
from tests.support.builders import ROLL, Batch, Partition, abort, build_log_dir, commit, many
from tests.support.fixtures import case_params
from tests.support.live_log import LiveLog
from tests.support.reference_views import content, jsonl_objects, parsed, readable, tree_of, txt
from tests.support.uncompiled import uncompiled

KEYS = 7


def path_of(key, ext="txt", place="t/0"):
    return f"/{place}/keys/{key_name(key)}.{ext}"


def listed(tree, place="t/0"):
    return [entry.name for entry in tree.lookup(f"/{place}/keys").list()]


def absent(tree, path):
    """Neither a stat nor an open finds the file."""
    with pytest.raises(NoSuchPath):
        tree.lookup(path).attributes()
    with pytest.raises(NoSuchPath):
        tree.lookup(path).open()
    return True


@pytest.fixture(params=["as they are", "small"])
def block_bytes(request, monkeypatch):
    """Blocks as they are, and so small that the short logs of tests have many of them; these by the kernel's source."""
    if request.param == "small":
        monkeypatch.setattr(blocks, "BLOCK_BYTES", 600)
        for module in (blocks, collector, selection):
            monkeypatch.setattr(module, "block_kernel", uncompiled("kafkafs.reading.block_kernel"))


def key_of(offset):
    return None if offset % 11 == 0 else b"key-%d" % (offset * offset % KEYS)


@pytest.fixture(params=[Codec.NONE, Codec.LZ4], ids=["none", "lz4"])
def live(tmp_path, request, block_bytes):
    return LiveLog(tmp_path / "log", request.param, key_of)


def expected(live, key):
    return b"".join(value + b"\n" for offset, _, value in live.messages if live.key_of(offset) == key)


def check_all(tree, live):
    keys = {key for offset, _, _ in live.messages if (key := live.key_of(offset)) is not None}
    for key in keys:
        assert content(tree, path_of(key)) == expected(live, key), key
    assert listed(tree) == [f"{key.decode()}.txt" for key in sorted(keys)]
    assert absent(tree, path_of(b"key-none"))


@pytest.mark.parametrize("case", case_params(SOUND[::9]))
def test_keys_of_the_fixtures(case, block_bytes):
    """Looked up in an index of its own, and in one that the view of all messages has left."""
    records = case.records()
    by_key = defaultdict(list)
    for record in records:
        if record.key is not None:
            by_key[record.key].append(record)
    first, second = tree_of(case.log_dir, case.isolation), tree_of(case.log_dir, case.isolation)
    place = f"{case.topic}/{case.partition}"
    content(second, f"/{place}/messages.txt")
    for key, wanted in list(by_key.items())[:: 1 + len(by_key) // 20]:
        assert content(first, path_of(key, "txt", place)) == txt(wanted), key
        lines = content(second, path_of(key, "jsonl", place))
        assert parsed(lines) == jsonl_objects(case.topic, case.partition, wanted), key
    for tree in (first, second):
        assert absent(tree, path_of(b"no such key", place=place))
        names = [f"{key_name(key)}.txt" for key in sorted(by_key) if len(key_name(key)) <= 251]
        assert listed(tree, place) == (names if len(by_key) <= blocks.MOST_NAMES else [])


def test_off(live):
    """Without an index everything is read, and no key is listed."""
    live.write_segments(100, 5)
    tree = tree_of(live.path.parent, keys=False)
    for key in {live.key_of(offset) for offset in range(105)} - {None}:
        assert content(tree, path_of(key)) == expected(live, key)
    assert absent(tree, path_of(b"other"))
    assert listed(tree) == []
    assert tree.status()["key_index"] is None


def test_a_log_that_lives(tmp_path, block_bytes):
    """Appended to, rolled, compacted, retained and truncated at random, with one tree all the time."""
    rng = random.Random(17)
    live = LiveLog(tmp_path / "log", Codec.LZ4, key_of)
    live.write(40)
    tree = tree_of(live.path.parent)
    check_all(tree, live)
    for _ in range(40):
        match rng.randrange(6):
            case 0 | 1:
                live.write(rng.randint(1, 80), batch=rng.choice((1, 7, 30)))
            case 2:
                live.roll()
                live.write(3)
            case 3 if len(live.segments) > 2:
                live.retain()
            case 4 if len(live.segments) > 2:
                keep = {offset for offset, _, _ in live.messages if rng.random() < 0.7}
                live.compact(lambda offset, keep=keep: offset in keep)
            case 5 if live.next_offset > live.segments[0] + 20:
                live.truncate(rng.randint(live.segments[0] + 10, live.next_offset))
                live.write(5)
        if rng.random() < 0.5:
            check_all(tree, live)
    check_all(tree, live)


def test_keys_of_any_bytes(tmp_path, block_bytes):
    keys = [b"", b"a/b", b"100%", b".hidden", b"a.txt", b"\xff\xfe", "é".encode(), b"\n", b" ", b"x" * 251, b"y" * 300]
    records = [record._replace(key=keys[i % len(keys)], value=b"%d" % i) for i, record in enumerate(many(500))]
    built = build_log_dir(tmp_path / "log", {"t": [[Batch(records[:400]), ROLL, Batch(records[400:])]]})
    tree = tree_of(built.path)
    for key in keys[:-1]:
        wanted = b"".join(b"%s\n" % record.value for record in records if record.key == key and record.value)
        assert content(tree, path_of(key)) == wanted, key
    spelled = "".join(f"%{byte:02x}" for byte in b"a/b")
    assert content(tree, f"/t/0/keys/{spelled}.txt") == content(tree, path_of(b"a/b"))
    assert listed(tree) == [f"{key_name(key)}.txt" for key in sorted(keys[:-1])]
    with pytest.raises(NameTooLong):
        tree.lookup(path_of(keys[-1]))
    for name in ("", "%zz.txt", "%2.txt", ".txt", "a", "a.log", "a.TXT"):
        with pytest.raises(NoSuchPath):
            tree.lookup(f"/t/0/keys/{name}").attributes() if name else tree.lookup("/t/0/keys/.jsonl")


def test_many_keys_are_not_listed(tmp_path):
    few, more = many(blocks.MOST_NAMES, keys=blocks.MOST_NAMES), many(1100, keys=1100)
    built = build_log_dir(tmp_path / "log", {"few": [[Batch(few), ROLL, Batch(few[:3])]], "more": [[Batch(more)]]})
    tree = tree_of(built.path)
    assert len(listed(tree, "few/0")) == len(listed(tree, "few")) == blocks.MOST_NAMES
    assert listed(tree, "more/0") == listed(tree, "more") == []
    assert content(tree, "/more/0/keys/key-01099.txt")


def test_what_is_not_shown_has_no_file(tmp_path, block_bytes):
    """Keys below the log start, of aborted and of open transactions, and of control records."""

    def keyed(name, producer=-1):
        records = [record._replace(key=name) for record in many(20)]
        return Batch(records, producer_id=producer, transactional=producer >= 0)

    items = [keyed(b"old"), keyed(b"first"), keyed(b"aborted", 1), abort(1), ROLL, keyed(b"committed", 2), commit(2)]
    items += [keyed(b"plain"), ROLL, keyed(b"open", 3), keyed(b"behind")]
    built = build_log_dir(tmp_path / "log", {"t": [Partition(items, log_start_offset=20)]})
    shown = {
        "read_uncommitted": ["aborted", "behind", "committed", "first", "open", "plain"],
        "read_committed": ["committed", "first", "plain"],
    }
    for isolation, names in shown.items():
        for scan_first in (True, False):
            tree = tree_of(built.path, isolation)
            if scan_first:
                content(tree, "/t/0/messages.txt")
            assert listed(tree) == [f"{name}.txt" for name in names]
            log = built["t", 0]
            records = log.records if isolation == "read_uncommitted" else log.read_committed
            for name in (b"old", b"first", b"aborted", b"committed", b"plain", b"open", b"behind"):
                wanted = b"".join((r.value or b"") + b"\n" for r in records if r.key == name)
                if name.decode() in names:
                    assert content(tree, path_of(name)) == wanted
                else:
                    assert absent(tree, path_of(name))


def test_damage_may_hide_any_key(tmp_path, block_bytes):
    """Nothing is missing without an error: each key's file has the damage."""
    live = LiveLog(tmp_path / "log", key_of=key_of)
    live.write_segments(200, 50)
    path = live.log(0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    tree = tree_of(live.path.parent)
    whole, errors = readable(tree.lookup("/t/0/messages.jsonl"))
    assert errors
    lines = [json.loads(line) for part in whole for line in part.splitlines() if line.startswith(b"{")]
    for key in (b"key-1", b"key-2", b"no such key"):
        stretches, found = readable(tree.lookup(path_of(key, "jsonl")))
        assert len(found) == len(errors)
        shown = [json.loads(line) for part in stretches for line in part.splitlines()]
        assert shown == [line for line in lines if line["key"] == key.decode()]


def test_a_topic_has_the_keys_of_its_partitions(tmp_path, block_bytes):
    logs = [LiveLog(tmp_path / "log", key_of=key_of, partition=number) for number in range(3)]
    for number, log in enumerate(logs):
        log.write(30 + number)
        log.roll()
        log.write(5, size=20 + number)
    tree = tree_of(tmp_path / "log")
    orders = set()
    for key in {key_of(offset) for offset in range(38)} - {None}:
        order = in_order_for_key(key, [0, 1, 2], 3)
        assert order[1:] == sorted({0, 1, 2} - {order[0]})
        orders.add(tuple(order))
        assert content(tree, path_of(key, "txt", "t")) == b"".join(expected(logs[p], key) for p in order)
    assert len(orders) > 1
    assert listed(tree, "t") == listed(tree, "t/0")
    assert absent(tree, path_of(b"no such key", place="t"))


def test_a_partition_that_is_added_is_in_an_open_file_of_the_topic(tmp_path):
    first = LiveLog(tmp_path, key_of=lambda _offset: b"k")
    first.append(b"one", b"two")
    tree = tree_of(tmp_path)
    handle = tree.lookup("/t/keys/k.txt").open()
    assert handle.read(0, 100) == b"one\ntwo\n"
    second = LiveLog(tmp_path, key_of=lambda _offset: b"k", partition=1)
    assert handle.read(8, 100) == b""
    second.append(b"of another")
    first.append(b"three")
    assert sorted(handle.read(8, 100).splitlines()) == [b"of another", b"three"]
    handle.close()


def test_no_view_stays_open_where_an_open_fails(tmp_path):
    LiveLog(tmp_path, key_of=lambda _offset: b"k").append(b"one")
    tree = tree_of(tmp_path)
    other = tree.lookup("/t/keys/other.txt")
    second = LiveLog(tmp_path, key_of=lambda _offset: b"k", partition=1)  # is looked into, too
    second.append(b"two")
    with pytest.raises(NoSuchPath):
        other.open()
    assert tree.status()["views"]["handles"] == 0
    for path in ("/t/keys/k.txt", "/t/latest.txt"):
        file = tree.lookup(path)
        second.path.rename(tmp_path / "away")
        with pytest.raises(UnknownTopicOrPartition):
            file.open()
        assert tree.status()["views"]["handles"] == 0
        (tmp_path / "away").rename(second.path)
