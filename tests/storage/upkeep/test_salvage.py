"""Salvage keeps every record whose batch is intact, whatever was done to the others, and says what is lost."""

from __future__ import annotations

import random
import shutil

import pytest

from storage.errors import InvalidRecord
from storage.log import reader
from storage.log.log_dir import LogDir
from storage.log.scanning import scan_batches
from storage.types import TopicPartition
from storage.upkeep.salvage import salvage
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.owned_dirs import close_clean, opened
from tests.support.random_damages import batch_of, hurt, last_offset
from tests.support.record_headers import batches

# A record as far as it matters here: offset, timestamp, key, value.
Record = tuple[int, int, bytes | None, bytes | None]
# One partition of each format and codec, and of transactions and compaction.
PARTITIONS = [
    "transactions/log/tx-aborts-0",
    "codecs/log/c-none-0",
    "codecs/log/c-lz4-1",
    "compaction-after/log/cmp-plain-0",
    "v0/log/v0-none-0",
    "v0/log/v0-gzip-0",
    "v1/log/v1-none-0",
    "v1/log/v1-snappy-1",
    "v0/log/v0-v1-v2-0",
]


def records_of(log_dir, tp):
    """All records of a log, control records too."""
    snapshot = LogDir.open_read_only(log_dir).log(tp).snapshot()
    found = []
    for segment in snapshot.segments:
        for window in scan_batches(snapshot, segment, 0):
            assert window.damage is None
            for row in range(window.table.rows):
                with reader.batch_records(snapshot, segment, int(window.table.position[row])) as block:
                    found += [
                        (int(block.offset[i]), int(block.timestamp[i]), block.key(i), block.value(i))
                        for i in range(len(block))
                    ]
    return found


def salvaged(source, target, tp):
    """Into a directory of kafkafs's own, which is sound afterwards."""
    log_dir = LogDir.open_read_only(source)
    owned = opened(target)
    owned.create_topic(tp.topic, tp.partition + 1, {"retention.ms": "-1"})
    result = salvage(log_dir.log(tp).snapshot(), owned.log(tp), compacted=tp.topic.startswith("cmp"))
    close_clean(owned)
    return result


def copied(path, partition):
    logs = path / "logs"
    logs.mkdir()
    source = FIXTURES / partition
    shutil.copytree(source, logs / source.name)
    for file in logs.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)
    topic, _, number = source.name.rpartition("-")
    return logs, TopicPartition(topic, int(number))


@requires_fixtures
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("seed", range(3))
def test_ten_random_damages(tmp_path, partition, seed):
    logs, tp = copied(tmp_path, partition)
    records = records_of(logs, tp)
    files = sorted((logs / tp.dir_name).glob("*.log"))
    lasts = [last_offset(part) for log in files for part in batches(log.read_bytes())]
    gone = hurt(files, random.Random(f"{partition} {seed}"))
    expected = [one for one in records if batch_of(lasts, one[0]) not in gone]
    before = {file: file.read_bytes() for file in files}
    result = salvaged(logs, tmp_path / "rescued", tp)
    kept = records_of(tmp_path / "rescued", tp)
    # A batch whose offset alone was changed, to one that nothing speaks against, is as good as intact.
    assert set(expected) <= set(kept)
    assert {one[2:] for one in kept} <= {one[2:] for one in records}
    assert [one[0] for one in kept] == sorted({one[0] for one in kept})
    missing = {one[0] for one in records} - {one[0] for one in kept}
    if tp.topic.startswith("cmp"):  # in a compacted log a gap is nothing by itself
        missing = {offset for offset in missing if gone[batch_of(lasts, offset)]}
    assert missing <= {offset for lost in result.lost for offset in offsets_of(lost, lasts[-1])}
    assert {file: file.read_bytes() for file in files} == before


def offsets_of(lost, log_end):
    if lost.first_offset is None:
        return range(0)
    return range(lost.first_offset, (log_end if lost.last_offset is None else lost.last_offset) + 1)


@requires_fixtures
def test_a_sound_log_is_copied_byte_for_byte(tmp_path):
    logs, tp = copied(tmp_path, "transactions/log/tx-aborts-0")
    result = salvaged(logs, tmp_path / "rescued", tp)
    assert result.lost == []
    whole = b"".join(file.read_bytes() for file in sorted((logs / tp.dir_name).glob("*.log")))
    copy = b"".join(file.read_bytes() for file in sorted((tmp_path / "rescued" / tp.dir_name).glob("*.log")))
    assert copy == whole
    assert (result.size_bytes, result.log_end_offset) == (len(whole), 324)


@requires_fixtures
def test_the_damages_of_the_recovery_fixtures(tmp_path):
    """Nothing but the one damaged batch is lost: Kafka's recovery loses all that comes after it."""
    lost = {}
    before = FIXTURES / "recovery" / "before"
    for name in (
        "c2-flip-older",
        "c3-flip-length",
        "c4-flip-magic",
        "a-truncated-tail",
        "k2-older-missing",
        "undamaged",
    ):
        tp = TopicPartition(f"rec-{name}", 0)
        result = salvaged(before, tmp_path / name, tp)
        lost[name] = [(one.first_offset, one.last_offset) for one in result.lost]
        assert result.repaired == (name == "c4-flip-magic")
    assert lost == {
        "c2-flip-older": [(73, 76)],
        "c3-flip-length": [(98, 100)],
        "c4-flip-magic": [],
        "a-truncated-tail": [(108, None)],
        "k2-older-missing": [(62, 83)],
        "undamaged": [],
    }


def test_up_to_an_offset_only_whole_batches_are_salvaged(tmp_path):
    build_log_dir(tmp_path / "damaged", {"t": [Partition([Batch(many(10)) for _ in range(3)])]})
    tp = TopicPartition("t", 0)
    snapshot = LogDir.open_read_only(tmp_path / "damaged").log(tp).snapshot()
    for end_offset, expected in ((0, 0), (9, 0), (10, 10), (25, 20), (30, 30), (99, 30)):
        owned = opened(tmp_path / str(end_offset))
        owned.create_topic("t", 1)
        result = salvage(snapshot, owned.log(tp), compacted=False, end_offset=end_offset)
        assert (result.batches, result.log_end_offset) == (expected // 10, expected)
        close_clean(owned)
        assert [record[0] for record in records_of(tmp_path / str(end_offset), tp)] == [*range(expected)]


def test_into_a_log_with_messages_nothing_is_salvaged(tmp_path):
    build_log_dir(tmp_path / "damaged", {"t": [Partition([b"a", b"b"])]})
    tp = TopicPartition("t", 0)
    snapshot = LogDir.open_read_only(tmp_path / "damaged").log(tp).snapshot()
    owned = opened(tmp_path / "rescued")
    owned.create_topic("t", 1)
    assert salvage(snapshot, owned.log(tp), compacted=False).batches == 2
    with pytest.raises(InvalidRecord, match="holds messages"):
        salvage(snapshot, owned.log(tp), compacted=False)
    close_clean(owned)
