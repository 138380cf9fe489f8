"""Salvage keeps every record whose batch is intact, whatever was done to the others, and says what is lost."""

import random
from unittest.mock import Mock
from unittest.mock import call as mock_call

import pytest

from storage.append import message_sets
from storage.errors import InvalidRecord, TierUnavailable
from storage.files.log_file import LogFile
from storage.format.block import Record
from storage.format.compression import Codec
from storage.log import reader, segment_check
from storage.log.log_dir import LogDir
from storage.log.scanning import scan_batches
from storage.types import TopicPartition
from storage.upkeep.salvage import salvage
from tests.storage.upkeep.random_damages import batch_of, hurt, last_offset
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.damaged_bytes import flip, overwrite
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.owned_dirs import close_clean, opened
from tests.support.readers import copy_partition
from tests.support.record_headers import batches

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


TP = TopicPartition("t", 0)


def records_of(log_dir, tp=TP):
    """Offset, timestamp, key and value of all records of a log, control records too."""
    snapshot = LogDir.open_read_only(log_dir).log(tp).snapshot()
    for segment in snapshot.segments:
        for window in scan_batches(snapshot, segment, 0):
            assert window.damage is None
            for position in window.table.position[: window.table.rows].tolist():
                with reader.batch_records(snapshot, segment, position) as block:
                    for i in range(len(block)):
                        yield int(block.offset[i]), int(block.timestamp[i]), block.key(i), block.value(i)


def snapshot_of(log_dir, tp=TP):
    return LogDir.open_read_only(log_dir).log(tp).snapshot()


def salvaged(source, target, tp=TP, *, compacted=False, **more):
    owned = opened(target)
    owned.create_topic(tp.topic, tp.partition + 1, {"retention.ms": "-1"})
    result = salvage(snapshot_of(source, tp), owned.log(tp), compacted=compacted, **more)
    close_clean(owned)
    return result


def copied(path, partition):
    source = FIXTURES / partition
    topic, _, number = source.name.rpartition("-")
    copy_partition(source, path / "logs" / source.name)
    return path / "logs", TopicPartition(topic, int(number))


@requires_fixtures
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("seed", range(3))
def test_ten_random_damages(tmp_path, partition, seed):
    logs, tp = copied(tmp_path, partition)
    records = list(records_of(logs, tp))
    files = sorted((logs / tp.dir_name).glob("*.log"))
    lasts = [last_offset(part) for log in files for part in batches(log.read_bytes())]
    gone = hurt(files, random.Random(f"{partition} {seed}"))
    expected = [one for one in records if batch_of(lasts, one[0]) not in gone]
    before = {file: file.read_bytes() for file in files}
    result = salvaged(logs, tmp_path / "rescued", tp, compacted=tp.topic.startswith("cmp"))
    kept = list(records_of(tmp_path / "rescued", tp))
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
    progress = Mock(spec=["begin", "advance", "end"])
    result = salvaged(logs, tmp_path / "rescued", tp, progress=progress)
    assert (result.lost, result.filled, result.repaired) == ([], [], 0)
    whole, copy = (
        b"".join(file.read_bytes() for file in sorted((place / tp.dir_name).glob("*.log")))
        for place in (logs, tmp_path / "rescued")
    )
    assert copy == whole
    assert (result.size_bytes, result.first_offset, result.log_end_offset) == (len(whole), 0, 324)
    begin, *advances, _ = progress.mock_calls
    assert begin == mock_call.begin(f"salvage {tp}", 2 * len(whole))
    assert sum(advance.args[0] for advance in advances) == 2 * len(whole)


@requires_fixtures
@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("c2-flip-older", [(73, 76)]),
        ("c3-flip-length", [(98, 100)]),
        ("c4-flip-magic", []),
        ("a-truncated-tail", [(108, None)]),
        ("k2-older-missing", [(62, 83)]),
        ("undamaged", []),
    ],
)
def test_the_damages_of_the_recovery_fixtures(tmp_path, name, lost):
    """Nothing but the one damaged batch is lost: Kafka's recovery loses all that comes after it."""
    result = salvaged(FIXTURES / "recovery" / "before", tmp_path, TopicPartition(f"rec-{name}", 0))
    assert [(loss.first_offset, loss.last_offset) for loss in result.lost] == lost
    assert result.repaired == (name == "c4-flip-magic")


def test_the_log_begins_where_it_did(tmp_path):
    """And so do its messages."""
    items = [Batch(many(10)) for _ in range(3)]
    build_log_dir(tmp_path / "damaged", {"t": [Partition(items, start_offset=100, log_start_offset=112)]})
    result = salvaged(tmp_path / "damaged", tmp_path / "rescued")
    assert (result.batches, result.first_offset, result.log_end_offset) == (3, 100, 130)
    assert [record[0] for record in records_of(tmp_path / "rescued")] == [*range(100, 130)]
    assert snapshot_of(tmp_path / "rescued").log_start_offset == 112


def test_into_a_log_with_messages_nothing_is_salvaged(tmp_path):
    build_log_dir(tmp_path / "damaged", {"t": [Partition([b"a", b"b"])]})
    owned = opened(tmp_path / "rescued")
    owned.create_topic("t", 1)
    assert salvage(snapshot_of(tmp_path / "damaged"), owned.log(TP), compacted=False).batches == 2
    with pytest.raises(InvalidRecord, match="holds messages"):
        salvage(snapshot_of(tmp_path / "damaged"), owned.log(TP), compacted=False)
    close_clean(owned)


def test_damages_are_named_in_order(tmp_path):
    """A batch that is damaged, and one whose offset contradicts those around it."""
    batches = build_log_dir(tmp_path / "damaged", {"t": [[Batch(many(10)) for _ in range(5)]]})["t", 0].batches
    log = tmp_path / "damaged" / "t-0" / f"{0:020}.log"
    flip(log, batches[1].position + 70)
    overwrite(log, batches[3].position, (3).to_bytes(8, "big"))
    result = salvaged(tmp_path / "damaged", tmp_path / "rescued")
    assert [(loss.first_offset, loss.last_offset) for loss in result.lost] == [(10, 19), (30, 39)]
    damages = [damage for loss in result.lost for damage in loss.damages]
    assert [(damage.path, damage.position, damage.end) for damage in damages] == [
        (log, batches[number].position, batches[number + 1].position) for number in (1, 3)
    ]
    assert damages[1].reason == "offset 3 contradicts those around it"


def test_what_a_tier_does_not_give_begins_after_what_was_read(tmp_path, monkeypatch):
    batches = build_log_dir(tmp_path / "tiered", {"t": [[Batch(many(10)) for _ in range(4)]]})["t", 0].batches
    log, read = tmp_path / "tiered" / "t-0" / f"{0:020}.log", LogFile.read

    def fails(file, position, size, into=None):
        if position >= batches[2].position and file.path == log:
            raise TierUnavailable("object is missing", found="nothing")
        return read(file, position, size, into)

    snapshot = snapshot_of(tmp_path / "tiered")
    monkeypatch.setattr(segment_check, "WINDOW_BYTES", batches[1].position)
    monkeypatch.setattr(LogFile, "read", fails)
    owned = opened(tmp_path / "new")
    owned.create_topic("t", 1)
    result = salvage(snapshot, owned.log(TP), compacted=False)
    monkeypatch.undo()
    (lost,) = result.lost
    (damage,) = lost.damages
    assert (lost.first_offset, lost.last_offset) == (20, None)
    assert (damage.position, damage.end, damage.reason) == (
        batches[2].position, log.stat().st_size, "object is missing: nothing",
    )  # fmt: skip
    close_clean(owned)


@pytest.mark.leaves_damage("compression")
def test_a_compressed_set_that_does_not_decompress_is_copied(tmp_path):
    """Its checksum is right. Only inside it are its first offset, and those of the next set."""
    alike = [Record(None, b"x", (), 1000)] * 3
    sets = [
        message_sets.encode(alike, 1, codec=Codec.GZIP),
        message_sets.message(5, None, b"not gzip", 1, Codec.GZIP),
        message_sets.encode(alike, 1, base_offset=6, codec=Codec.GZIP),
    ]
    build_log_dir(tmp_path / "damaged", {"t": [[]]})
    log = tmp_path / "damaged" / "t-0" / f"{0:020}.log"
    log.write_bytes(b"".join(sets))
    owned = opened(tmp_path / "new")
    owned.create_topic("t", 1)
    result = salvage(snapshot_of(tmp_path / "damaged"), owned.log(TP), compacted=False)
    assert owned.close().clean
    assert (result.batches, result.log_end_offset) == (3, 9)
    assert [(loss.first_offset, loss.last_offset) for loss in result.lost] == [(3, 4)]
    assert (tmp_path / "new" / "t-0" / log.name).read_bytes() == log.read_bytes()
