"""`kafkafs cat --merge` against SQL and plain sorting. See also transcripts/cat.txt."""

import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.cli.merge import Due, Merge
from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.record_batch import encode_batch
from tests.kafkafs.cli.test_cat import Follower
from tests.support.blocks import Row, block_of
from tests.support.builders import ROLL, Batch, Partition, build_log_dir
from tests.support.commands import output_of, run
from tests.support.damaged_bytes import flip

FORM = "%T %t %p %o\n"


def a_log(path, seed, *, going_back):
    """Three partitions of `a`, one of `b`: of several blocks each, with equal timestamps and none."""
    rng = random.Random(seed)

    def partition(batches):
        time, items = 1_700_000_000_000, []
        for number in range(batches):
            records = []
            for _ in range(rng.choice((1, 50, 200))):
                time += rng.choice((0, 0, 1, 3, 1000 if rng.random() < 0.01 else 2))
                back = rng.choice((0, 0, 5, 10_000)) if going_back else 0
                stamp = -1 if going_back and rng.random() < 0.01 else time - back
                records.append(Record(b"k%d" % rng.randrange(3), bytes(rng.choice((0, 10, 10_000))), (), stamp))
            items += [Batch(records, codec=Codec.ZSTD if number % 2 else Codec.NONE), *([ROLL] if number == 7 else [])]
        return Partition(items)

    return build_log_dir(path, {"a": [partition(n) for n in (20, 3, 12)], "b": [partition(15)], "empty": [[]]}).path


def lines(*arguments):
    return output_of("cat", *arguments).decode().splitlines()


QUERY = """
SELECT epoch_ms(timestamp) || ' ' || topic || ' ' || partition || ' ' || offset AS line FROM (
  SELECT *, max(timestamp) OVER (PARTITION BY topic, partition ORDER BY "offset") AS latest
  FROM (SELECT * FROM a UNION ALL SELECT * FROM b)
) ORDER BY {order}topic, partition, "offset"
"""


@pytest.mark.parametrize("going_back", [False, True])
def test_sql_has_the_same_order(tmp_path, going_back):
    pytest.importorskip("duckdb")
    logs = a_log(tmp_path / "logs", 1, going_back=going_back)
    query = QUERY.format(order="latest, " if going_back else "timestamp, ")
    rows = output_of("sql", logs, query, "--format", "jsonl").splitlines()
    assert lines(logs, "*", "--merge", "--format", FORM) == [json.loads(row)["line"] for row in rows]


@pytest.mark.parametrize("options", [(), ("--key", "k1"), ("--offsets", "last-300"), ("--where", "offset % 7 = 3")])
def test_what_else_chooses_messages(tmp_path, options):
    """The merge has the lines that `cat` has, in the order of the times that are printed."""
    if "--where" in options:
        pytest.importorskip("duckdb")
    logs = a_log(tmp_path / "logs", 2, going_back=True)
    by_partition, latest = [], {}
    for line in lines(logs, "*", *options, "--format", FORM):
        time, place = int(line.split()[0]), tuple(line.split()[1:3])
        latest[place] = max(latest.get(place, -1), time)
        by_partition.append((latest[place], line))
    expected = [line for _, line in sorted(by_partition, key=lambda pair: (pair[0], place_of(pair[1])))]
    merged = lines(logs, "*", *options, "--merge", "--format", FORM)
    assert sorted(merged) == sorted(expected)
    if "--key" not in options:  # otherwise the partition of the key comes first
        assert merged == expected
    assert lines(logs, "*", *options, "--merge", "-n", "10", "--format", FORM) == merged[:10]


def place_of(line):
    _, topic, partition, offset = line.split()
    return topic, int(partition), int(offset)


def test_damage_ends_its_partition_alone(tmp_path):
    batches = [Batch([Record(None, b"%d" % n, (), 10 * n)]) for n in range(5)]
    built = build_log_dir(tmp_path / "logs", {"t": [batches, batches]})
    flip(tmp_path / "logs" / "t-0" / f"{0:020}.log", built["t", 0].batches[3].position + 65)
    result = run("cat", tmp_path / "logs", "t", "--merge", "--format", "%p:%s ")
    assert result.stdout == "0:0 1:0 0:1 1:1 0:2 1:2 1:3 1:4 "
    assert result.exit_code == 4
    assert "checksum" in result.stderr


def test_followed_partitions_are_merged_as_they_grow(tmp_path):
    logs = build_log_dir(tmp_path / "logs", {"t": [[b"zero"], [b"one"]]}).path
    follower = Follower(logs, "t", "--merge", "--window", "1s", "-n", "5", "--format", "%s\n")
    try:
        assert [follower.line() for _ in range(2)] == [b"zero\n", b"one\n"]
        for number, value in enumerate((b"two", b"three", b"four")):
            partition, offset = number % 2, 1 + number // 2
            with (logs / f"t-{partition}" / f"{0:020}.log").open("ab") as log:
                log.write(encode_batch([Record(None, value, (), 2_000_000_000_000 + number)], base_offset=offset))
            assert follower.line() == value + b"\n"
        assert follower.rest() == (b"", b"", 0)
    finally:
        follower.stop()


# The merge itself: blocks that come one after the other, and a clock.


class Growing:
    """A source whose passes have these blocks: lists of timestamps."""

    def __init__(self, *passes):
        self.passes = list(passes)
        self.offset = 0

    def read(self):
        return self.blocks(self.passes.pop(0)) if self.passes else None

    def blocks(self, blocks):
        for times in blocks:
            first, self.offset = self.offset, self.offset + len(times)
            yield block_of([Row(first + number, time) for number, time in enumerate(times)])


def merged(merge, due=None):
    return [
        (name, offset, time)
        for name, block in merge.parts(due)
        for offset, time in zip(block.offset.tolist(), block.timestamp.tolist(), strict=True)
    ]


TIMES = st.lists(st.lists(st.integers(-1, 20), max_size=6), max_size=4)


@given(st.lists(TIMES, max_size=4))
def test_against_plain_sorting(partitions):
    """However a partition is divided into blocks."""
    merge = Merge(lambda: 0)
    rows = []
    for name, blocks in enumerate(partitions):
        merge.add(name, Growing(blocks).read)
        times = [time for block in blocks for time in block]
        latest = itertools.accumulate(times, max)
        rows += [(key, name, offset, time) for offset, (key, time) in enumerate(zip(latest, times, strict=True))]
    assert merged(merge) == [row[1:] for row in sorted(rows)]
    assert merged(merge) == []
    assert merge.is_empty


def test_a_message_waits_until_it_is_due():
    now = 0.0
    merge = Merge(lambda: now)
    merge.add("a", Growing([[10, 20, 90]], [], [[95]]).read)
    merge.add("b", Growing([[15]], [[19, 40]], [[300]]).read)
    assert merged(merge, Due(16, -1)) == [("a", 0, 10), ("b", 0, 15)]
    assert merged(merge, Due(30, -1)) == [("b", 1, 19), ("a", 1, 20)]
    now = 5.0
    # The block of `a` was read long ago: its timestamp of the future need not come, and what precedes it is due.
    assert merged(merge, Due(30, 0)) == [("b", 2, 40), ("a", 2, 90)]
    assert merged(merge, Due(100, 1)) == []
    assert merged(merge, Due(100, 1)) == [("a", 3, 95)]
    assert not merge.is_empty
    assert merged(merge, Due(100, 5)) == [("b", 3, 300)]
    assert merged(merge, Due(100, 5)) == []
    assert merge.is_empty
