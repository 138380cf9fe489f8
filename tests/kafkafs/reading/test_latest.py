"""`latest.txt` and `latest.jsonl`: the last message of every key, as of an open, against a plain dict."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from kafkafs.tree import latest_file
from kafkafs.tree.tree import Tree, TreeOptions
from storage.compaction.partition_compaction import compact_partition
from storage.errors import CorruptBatch, LogTruncated, SegmentGone, TooManyKeys
from storage.format.block import Record
from storage.format.control_records import ControlType
from storage.format.record_batch import BatchFields
from storage.latest.latest_records import latest_offsets
from storage.types import TopicPartition
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, run
from tests.support.compacted_logs import TP, opened, put, updates
from tests.support.control_batches import marker_batch
from tests.support.damaged_bytes import flip
from tests.support.fixtures import case_params, golden_cases
from tests.support.live_log import LiveLog
from tests.support.owned_dirs import NOW_MS
from tests.support.reference_views import PLAIN, content, jsonl_objects, parsed, read_all, read_anyhow, tree_of, txt


def latest(records):
    """By the plainest rule there is."""
    last = {record.key: record for record in records if record.key is not None}
    return sorted((record for record in last.values() if record.value is not None), key=lambda record: record.offset)


SOUND = [case for case in golden_cases() if not case.topic.startswith(("rec-c4-", "rec-m-"))]


@pytest.mark.golden
@pytest.mark.parametrize("case", case_params(SOUND))
def test_fixtures(case):
    tree, path = tree_of(case.log_dir, case.isolation), f"/{case.topic}/{case.partition}/latest"
    expected = latest(case.records())
    assert content(tree, f"{path}.txt") == txt(expected)
    assert parsed(content(tree, f"{path}.jsonl", step=1000)) == jsonl_objects(case.topic, case.partition, expected)


def test_a_topic_has_its_partitions_one_after_the_other(tmp_path):
    partitions = [Partition([Batch([Record(b"a", b"%d" % n), Record(b"b%d" % n, b"x")])]) for n in range(3)]
    build_log_dir(tmp_path, {"t": [*partitions, Partition([])]})
    tree = tree_of(tmp_path)
    parts = [content(tree, f"/t/{number}/latest.jsonl") for number in range(4)]
    assert content(tree, "/t/latest.jsonl", step=50) == b"".join(parts)
    assert content(tree, "/t/latest.txt") == b"0\nx\n1\nx\n2\nx\n"
    with closing(tree.lookup("/t/latest.jsonl").open()) as handle:
        read_anyhow(handle, b"".join(parts), 1)
    for ext in PLAIN:
        for place in ("t", "t/1"):
            shown = content(tree, f"/{place}/latest.{ext}")
            assert output_of("cat", tmp_path, place, "--latest", "--format", ext) == shown


def test_the_size_before_the_first_open_is_an_estimate(tmp_path):
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(30, keys=3))]), Partition([])]})
    tree = tree_of(tmp_path)
    assert tree.lookup("/t/0/latest.txt").attributes().size > 0
    assert tree.lookup("/t/1/latest.txt").attributes().size == 0
    assert tree.lookup("/t/latest.txt").attributes().size > 0
    size = len(content(tree, "/t/0/latest.txt"))
    assert tree.lookup("/t/0/latest.txt").attributes().size == size


class Compacted:
    """A compacted topic that is written while files of it are open; `tree` serves it from the owner's directory."""

    def __init__(self, path):
        self.owned = opened(path)
        self.tree = Tree(self.owned.log_dir, TreeOptions(index_bytes=0), owned=self.owned)
        self.last = {}
        self.number = 0

    def write(self, *keys):
        pairs = []
        for key in keys:
            self.number += 1
            pairs.append((key, b"%d" % self.number))
            self.last.pop(key, None)
            self.last[key] = pairs[-1][1]
        put(self.owned.log(TP), updates(pairs))

    def text(self):
        return b"".join(value + b"\n" for value in self.last.values())

    def compact(self):
        """The replaced files stay for a while, as `file.delete.delay.ms` has them stay."""
        compact_partition(self.owned, TP)

    def open(self):
        return self.tree.lookup("/t/0/latest.txt").open()

    def content(self):
        with closing(self.open()) as handle:
            data = read_all(handle)
            assert len(data) == handle.size
            return data


def keys(dice, count=40):
    return [b"key-%d" % dice.randrange(50) for _ in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_an_open_file_does_not_change_while_the_log_grows_and_is_compacted(tmp_path, seed):
    dice, log = random.Random(seed), Compacted(tmp_path / "log")
    log.write(*keys(dice))
    held = []
    for step in range(12):
        match dice.randrange(4):
            case 0:
                log.owned.log(TP).roll()
            case 1:
                log.compact()
            case _:
                log.write(*keys(dice, dice.randrange(1, 80)))
        if step % 3 == 0:
            held.append((log.open(), log.text()))
        assert log.content() == log.text()
    for handle, text in held:
        assert handle.size == len(text)
    log.owned.close()


def test_a_tombstone_that_was_aborted_hides_its_key_until_compaction_removes_it(tmp_path):
    """Readers of uncommitted messages see the tombstone; nothing of a file that is open changes when it goes."""
    log, producer = Compacted(tmp_path / "log"), 7
    partition = log.owned.log(TP)
    log.write(b"a")
    partition.roll()
    fields = BatchFields(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
    put(partition, updates([(b"a", None)]), fields=fields)
    marker = marker_batch(ControlType.ABORT, producer, base_offset=partition.log_end_offset, timestamp=NOW_MS)
    partition.append_batches(memoryview(marker))
    partition.roll()
    log.write(b"b")
    held = log.open()
    assert log.content() == b"2\n"
    log.compact()
    assert log.content() == b"1\n2\n"
    assert read_all(held) == b"2\n"
    held.close()
    log.owned.close()


@pytest.fixture
def live(tmp_path):
    """Three segments, each with the key `a` and one of its own, and an empty one."""
    log = LiveLog(tmp_path / "log", key_of=lambda offset: b"b%d" % offset if offset % 2 else b"a")
    for number in range(3):
        log.append(b"a%d" % number, b"b")
        log.roll()
    return log


def test_many_opens_at_once_scan_one_after_the_other(live, monkeypatch):
    """There is one map of keys at a time, and who opens the same file shares what was found."""
    scans, most, running = [], 0, 0

    def counted(*arguments):
        nonlocal most, running
        running += 1
        most = max(most, running)
        scans.append(arguments)
        try:
            return latest_offsets(*arguments)
        finally:
            running -= 1

    monkeypatch.setattr(latest_file, "latest_offsets", counted)
    tree, together = tree_of(live.path.parent), threading.Barrier(50)

    def open_one(number):
        together.wait(60)
        with closing(tree.lookup(f"/t/0/latest.{'txt' if number % 2 else 'jsonl'}").open()) as handle:
            return read_all(handle)

    with ThreadPoolExecutor(50) as pool:
        texts = set(pool.map(open_one, range(50), timeout=120))
    assert len(texts) == 2
    assert most == 1
    assert len(scans) == 2


def test_retention_takes_only_what_is_not_read_yet(live):
    tree = tree_of(live.path.parent)
    handle = tree.lookup("/t/0/latest.txt").open()
    live.retain()
    assert handle.size == 9
    with pytest.raises(SegmentGone):
        handle.read(0, 2)
    assert handle.read(2, 100) == b"b\na2\nb\n"
    handle.close()
    assert content(tree, "/t/0/latest.txt") == b"b\na2\nb\n"


def test_a_truncation_ends_an_open_file(live):
    """What was superseded by messages that are gone is the latest now, and is not in the file."""
    tree = tree_of(live.path.parent)
    handle = tree.lookup("/t/0/latest.txt").open()
    live.truncate(3)
    tree.log_dir.log(TopicPartition("t", 0)).snapshot()
    with pytest.raises(LogTruncated):
        read_all(handle)
    handle.close()
    assert content(tree, "/t/0/latest.txt") == b"a0\nb\n"


def test_damage_is_an_error_of_the_open(live):
    flip(live.log(2), -3)
    with pytest.raises(CorruptBatch):
        tree_of(live.path.parent).lookup("/t/latest.txt").open()
    assert run("cat", live.path.parent, "t", "--latest").exit_code == 4


def test_too_many_keys(tmp_path):
    records = [Record(b"key-%d" % number, b"v") for number in range(5_000)]
    build_log_dir(tmp_path, {"t": [Partition([Batch(records)])]})
    tree = tree_of(tmp_path, latest_bytes=64 << 10)
    with pytest.raises(TooManyKeys, match="latest_memory"):
        tree.lookup("/t/0/latest.txt").open()
    assert content(tree_of(tmp_path), "/t/0/latest.txt") == b"v\n" * 5_000


def test_cat_filters_the_latest(tmp_path):
    records = [Record(b"a", b"1"), Record(b"b", b"2"), Record(b"a", b"3"), Record(b"c", b"4"), Record(b"c", None)]
    build_log_dir(tmp_path, {"t": [Partition([Batch(records)])]})
    assert output_of("cat", tmp_path, "t", "--latest", "--format", "%o %k %s\n") == b"1 b 2\n2 a 3\n"
    assert output_of("cat", tmp_path, "t", "--latest", "--key", "a") == b"3\n"
    assert output_of("cat", tmp_path, "t", "--latest", "--key", "c") == b""
    for wrong in (["--offsets", "1-"], ["--time", "2026"], ["--follow"], ["--format", "log"]):
        assert run("cat", tmp_path, "t", "--latest", *wrong).exit_code == 2
