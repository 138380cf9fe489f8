"""PartitionReader while retention and compaction take files away under it."""

import pytest

from kafkafs.reading.range_names import parse_offset_spec
from kafkafs.reading.selection import Question
from kafkafs.reading.unmounted import PartitionReader
from storage.errors import LogTruncated, OffsetOutOfRange, SegmentGone
from storage.format.decoder import Decoder
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, START_MS, Batch, Partition, build_log_dir, many
from tests.support.replicas import Replica


@pytest.fixture
def built(tmp_path):
    """Four segments of five messages."""
    items = [item for _ in range(4) for item in (Batch(many(5)), ROLL)][:-1]
    return build_log_dir(tmp_path, {"t": [Partition(items)]})["t", 0]


def reader(log_dir, notes=None, **wanted):
    """Reads t/0; follows it if there is a list of notes."""
    log = LogDir.open_read_only(log_dir).log(TopicPartition("t", 0))
    note = None if notes is None else notes.append
    return PartitionReader(log, Question(**wanted), START_MS, Decoder(), follow=notes is not None, note=note)


def offsets(reading):
    return [offset for block in reading.blocks() for offset in block.offset.tolist()]


def test_retention_under_a_reader(built):
    reading = reader(built.path.parent)
    blocks = reading.blocks()
    assert next(blocks).offset.tolist() == [0, 1, 2, 3, 4]
    for index in (0, 1, 2):
        built.log(index).unlink()
    with pytest.raises(OffsetOutOfRange, match="5 to 14 of t/0 were removed unread"):
        next(blocks)


def test_retention_under_a_follower_is_told(built):
    notes = []
    reading = reader(built.path.parent, notes)
    blocks = reading.blocks()
    assert next(blocks).offset.tolist() == [0, 1, 2, 3, 4]
    for index in (0, 1, 2):
        built.log(index).unlink()
    assert [block.offset.tolist() for block in blocks] == [[15, 16, 17, 18, 19]]
    assert notes == ["messages 5 to 14 of t/0 were removed unread"]
    assert not reading.done


def test_compaction_under_a_reader(built):
    """A segment is replaced by another file of its name: what comes next is read from that."""
    reading = reader(built.path.parent)
    blocks = reading.blocks()
    assert next(blocks).offset.tolist() == [0, 1, 2, 3, 4]
    for index in (1, 2):
        data = built.log(index).read_bytes()
        built.log(index).unlink()
        built.log(index).write_bytes(data)
    assert [block.offset.tolist() for block in blocks] == [[5, 6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]


def test_raw_bytes_are_never_given_twice(built):
    reading = reader(built.path.parent)
    parts = reading.raw()
    assert bytes(next(parts)) == built.log(0).read_bytes()
    built.log(1).unlink()
    with pytest.raises(SegmentGone):
        next(parts)


def test_a_truncation_below_where_a_follower_began(tmp_path):
    """What is written in place of the cut messages is not in the range until the log has come to it again."""
    replica = Replica(tmp_path)
    replica.append(60)
    notes = []
    reading = reader(tmp_path, notes, offsets=parse_offset_spec("45-"))
    assert offsets(reading) == list(range(45, 60))
    replica.truncate(30)
    assert offsets(reading) == []
    assert offsets(reading) == []
    replica.append(20)
    assert offsets(reading) == [45, 46, 47, 48, 49]
    assert notes == ["t/0 was truncated to 30: going on at 45"]


def test_a_follower_waits_until_it_is_known_who_wrote_a_replica_that_is_made_anew(tmp_path):
    replica = Replica(tmp_path)
    replica.append(10)
    notes = []
    reading = reader(tmp_path, notes)
    assert offsets(reading) == list(range(10))
    replica.truncate(0)
    assert offsets(reading) == []
    replica.append(20)
    assert offsets(reading) == list(range(20))
    assert notes == ["t/0 was truncated to 0: going on at 0"]


@pytest.mark.parametrize("follow", [False, True])
def test_a_truncation_that_leader_epochs_do_not_explain_ends_reading(tmp_path, follow):
    """So does any truncation of what was read for a reader that does not follow the log."""
    replica = Replica(tmp_path, checkpoint=not follow)
    replica.append(20)
    replica.roll()
    replica.append(20)
    reading = reader(tmp_path, [] if follow else None)
    blocks = reading.blocks()
    if follow:
        assert len(list(blocks)) == 2
    else:
        next(blocks)
    replica.truncate(10)
    replica.append(50)
    with pytest.raises(LogTruncated):
        list(reading.blocks() if follow else blocks)
