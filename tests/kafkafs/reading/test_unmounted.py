"""PartitionReader while retention and compaction take files away under it."""

import pytest

from kafkafs.reading.range_names import parse_offset_spec
from kafkafs.reading.selection import Question
from kafkafs.reading.unmounted import PartitionReader
from storage.errors import OffsetOutOfRange, SegmentGone
from storage.format.decoder import Decoder
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, START_MS, Batch, Partition, build_log_dir, many
from tests.support.live_log import LiveLog


@pytest.fixture
def built(tmp_path):
    """Four segments of five messages."""
    items = [item for _ in range(4) for item in (Batch(many(5)), ROLL)][:-1]
    return build_log_dir(tmp_path, {"t": [Partition(items)]})["t", 0]


def reader(built, notes=None, **wanted):
    log = LogDir.open_read_only(built.path.parent).log(TopicPartition("t", 0))
    note = None if notes is None else notes.append
    return PartitionReader(log, Question(**wanted), START_MS, Decoder(), follow=notes is not None, note=note)


def offsets(reading):
    return [offset for block in reading.blocks() for offset in block.offset.tolist()]


def test_retention_under_a_reader(built):
    reading = reader(built)
    blocks = reading.blocks()
    assert next(blocks).offset.tolist() == [0, 1, 2, 3, 4]
    for index in (0, 1, 2):
        built.log(index).unlink()
    with pytest.raises(OffsetOutOfRange, match="5 to 14 of t/0 were removed unread"):
        next(blocks)


def test_retention_under_a_follower_is_told(built):
    notes = []
    reading = reader(built, notes)
    blocks = reading.blocks()
    assert next(blocks).offset.tolist() == [0, 1, 2, 3, 4]
    for index in (0, 1, 2):
        built.log(index).unlink()
    assert [block.offset.tolist() for block in blocks] == [[15, 16, 17, 18, 19]]
    assert notes == ["messages 5 to 14 of t/0 were removed unread"]
    assert not reading.done


def test_compaction_under_a_reader(built):
    """A segment is replaced by another file of its name: what comes next is read from that."""
    reading = reader(built)
    blocks = reading.blocks()
    assert next(blocks).offset.tolist() == [0, 1, 2, 3, 4]
    for index in (1, 2):
        data = built.log(index).read_bytes()
        built.log(index).unlink()
        built.log(index).write_bytes(data)
    assert [block.offset.tolist() for block in blocks] == [[5, 6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]


def test_raw_bytes_are_never_given_twice(built):
    reading = reader(built)
    parts = reading.raw()
    assert bytes(next(parts)) == built.log(0).read_bytes()
    built.log(1).unlink()
    with pytest.raises(SegmentGone):
        next(parts)


def test_a_truncation_below_where_a_follower_began(tmp_path):
    """What is written in place of the cut messages is not in the range until the log has come to it again."""
    live = LiveLog(tmp_path)
    live.write(60)
    notes = []
    log = LogDir.open_read_only(tmp_path).log(TopicPartition("t", 0))
    wanted = Question(offsets=parse_offset_spec("45-"))
    reading = PartitionReader(log, wanted, START_MS, Decoder(), follow=True, note=notes.append)
    assert offsets(reading) == list(range(45, 60))
    live.truncate(30)
    assert offsets(reading) == []
    assert offsets(reading) == []
    live.write(20, size=70)
    assert offsets(reading) == [45, 46, 47, 48, 49]
    assert notes == ["t/0 was truncated to 30"]
