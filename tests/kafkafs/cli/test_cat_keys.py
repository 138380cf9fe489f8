"""`kafkafs cat --key`: the bytes of `keys/<key>.EXT`, with the same index."""

from __future__ import annotations

import json

import pytest

from kafkafs.reading import unmounted
from kafkafs.reading.selection import Question
from kafkafs.reading.unmounted import PartitionReader
from storage.format.decoder import Decoder
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.kafkafs.reading.test_keys import path_of
from tests.support.commands import output_of, run
from tests.support.live_log import LiveLog
from tests.support.reference_views import content, tree_of


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kafkafs" / "views"


def key_of(offset):
    return b"k%d" % (offset * 7919 % 500)


@pytest.fixture
def live(tmp_path):
    log = LiveLog(tmp_path / "log", key_of=key_of)
    for _ in range(2):
        log.write(1500, size=1000, batch=50)
        log.roll()
    log.write(100)
    return log


def test_the_index_is_made_kept_and_used(live, cache, monkeypatch):
    log_dir, tree = live.path.parent, tree_of(live.path.parent)
    for key in ("k1", "k499"):
        assert output_of("cat", log_dir, "t", "--key", key) == content(tree, path_of(key.encode()))
    assert len(list(cache.glob("*.keys"))) == 2
    read = []
    real = unmounted.read_blocks

    def counted(*arguments, **options):
        read.append(arguments[3] - arguments[2])
        return real(*arguments, **options)

    monkeypatch.setattr(unmounted, "read_blocks", counted)
    # A filter lets one of a hundred other keys pass, and its block is a third of a segment: not so for three of them.
    sums = []
    for key in ("nobody", "no-one", "none"):
        read.clear()
        assert run("cat", log_dir, "t/0", "--key", key).exit_code == 4
        sums.append(sum(read))
    assert min(sums) < live.log(0).stat().st_size / 3
    mounted = tree_of(log_dir, index_dir=cache, index_bytes=1 << 20)
    assert content(mounted, path_of(b"k1")) == content(tree, path_of(b"k1"))
    assert mounted.status()["key_index"]["scanned_bytes"] < live.log(live.segments[-1]).stat().st_size + 1


def test_with_ranges(live):
    for option, text in (("--offsets", "100-2400"), ("--offsets", "last-500"), ("--offsets", "700+900"),
                         ("--offsets", "2990-"), ("--time", "2023-11-14T22:20--2023-11-14T22:40")):  # fmt: skip
        printed_all = output_of("cat", live.path.parent, "t", option, text, "--format", "jsonl")
        whole = [json.loads(line) for line in printed_all.splitlines()]
        for key in ("k1", "k20"):
            arguments = (live.path.parent, "t", option, text, "--format", "jsonl", "--key", key)
            found = output_of("cat", *arguments).splitlines()
            assert [json.loads(line) for line in found] == [line for line in whole if line["key"] == key]


def test_following_continues_after_the_index(live, cache):
    log = LogDir.open_read_only(live.path.parent).log(TopicPartition("t", 0))
    with unmounted.key_index() as keys:
        reader = PartitionReader(log, Question(key=b"k1"), 0, Decoder(), follow=True, keys=keys)
        found = [int(offset) for block in reader.blocks() for offset in block.offset]
        live.write(600)
        found += [int(offset) for block in reader.blocks() for offset in block.offset]
    assert found == [offset for offset, _, _ in live.messages if key_of(offset) == b"k1"]
