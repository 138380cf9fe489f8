"""Every golden decoded line of the fixture `schemas` through the tree: whole partitions, ranges, times."""

import json
from functools import cache

import pytest

from tests.kafkafs.reading.decoded_golden import agrees, golden_lines, partitions
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.reference_views import content, parsed, read_all, tree_of

pytestmark = requires_fixtures


@cache
def tree():
    return tree_of(FIXTURES / "schemas" / "log")


def base(partition):
    topic, _, number = partition.rpartition("-")
    return f"/{topic}/{number}"


@pytest.mark.parametrize("partition", partitions())
def test_whole_partition(partition):
    decoded = parsed(content(tree(), f"{base(partition)}/messages.decoded.jsonl", step=1000))
    plain = parsed(content(tree(), f"{base(partition)}/messages.jsonl"))
    for line, golden, jsonl in zip(decoded, golden_lines(partition), plain, strict=True):
        assert line["offset"] == golden["offset"]
        assert not agrees(line, golden, jsonl), (golden.get("kind"), line)


@pytest.mark.parametrize("partition", partitions())
def test_what_is_rendered_while_it_is_measured(partition):
    path = f"{base(partition)}/messages.decoded.jsonl"
    expected = content(tree(), path)
    for cache_bytes in (0, 1 << 20):
        large = tree_of(FIXTURES / "schemas" / "log", exact_below=1, cache_bytes=cache_bytes)
        assert read_all(large.lookup(path).open(), 1000) == expected
        assert content(large, path) == expected


@pytest.mark.parametrize("partition", partitions())
def test_ranges(partition):
    whole = content(tree(), f"{base(partition)}/messages.decoded.jsonl").splitlines(keepends=True)
    offsets = [json.loads(line)["offset"] for line in whole]
    middle = len(whole) // 2
    first, last = offsets[middle // 2], offsets[middle]

    def lines(name):
        return content(tree(), f"{base(partition)}/{name}.decoded.jsonl").splitlines(keepends=True)

    assert lines(f"offsets/{first}-{last}") == whole[middle // 2 : middle + 1]
    assert lines(f"offsets/{first}-") == whole[middle // 2 :]
    assert lines("offsets/last-3") == whole[-3:]
    assert lines(f"offsets/{last}") == whole[middle : middle + 1]
    stamp = json.loads(whole[middle])["timestamp"]
    expected = [line for line in whole if json.loads(line)["timestamp"] >= stamp]
    assert lines(f"time/{stamp}--") == expected
