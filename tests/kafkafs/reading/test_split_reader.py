"""Reading a split when the log has changed since planning."""

import dataclasses
import pickle
import shutil

import pytest

from kafkafs.reading.split_reader import Split, read_split
from kafkafs.spark.tasks import LogRange, plan
from storage.errors import SegmentGone
from storage.files import partition_metadata
from storage.files.log_file import LogFile
from storage.files.names import PARTITION_METADATA
from storage.format.decoder import Decoder
from storage.log.log_dir import LogDir
from storage.types import Isolation, OffsetRange, TopicPartition
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many
from tests.support.replicas import Replica

TP = TopicPartition("t", 0)


@pytest.fixture
def built(tmp_path):
    """Six segments of ten messages, in two batches each."""
    items = [item for _ in range(6) for item in (Batch(many(5)), Batch(many(5)), ROLL)][:-1]
    return build_log_dir(tmp_path, {"t": [items]})["t", 0]


class Reading:
    """Reads a split, and keeps the losses that are reported."""

    def __init__(self, built, split):
        self.lost = []
        self._blocks = read_split(
            LogDir.open_read_only(built.path.parent),
            split,
            Decoder(),
            on_loss=lambda tp, offsets, why: self.lost.append((offsets, why)),
            on_damage=lambda tp, damage: pytest.fail(str(damage)),
            isolation=Isolation.READ_UNCOMMITTED,
        )

    def next(self):
        return next(self._blocks).offset.tolist()

    def rest(self):
        return [offset for block in self._blocks for offset in block.offset.tolist()]


def reading_of(built, start, end):
    return Reading(built, Split(TP, start, end, 0))


def remove(built, *segments):
    for segment in segments:
        for suffix in (".log", ".index", ".timeindex"):
            built.log(segment).with_suffix(suffix).unlink()


def test_a_split(built):
    for start, end in (0, 60), (0, 1), (7, 8), (13, 42), (59, 60), (20, 20):
        reading = reading_of(built, start, end)
        assert reading.rest() == list(range(start, end))
        assert not reading.lost


def test_retention_before_and_during(built):
    remove(built, 0)
    reading = reading_of(built, 5, 60)
    assert reading.next() == list(range(10, 20))
    assert reading.lost == [(OffsetRange(5, 10), "the log begins at 10")]
    remove(built, 1, 2, 3)
    assert reading.rest() == list(range(40, 60))
    assert reading.lost[1:] == [(OffsetRange(20, 40), "the log begins at 40")]


def test_truncation(built):
    remove(built, 3, 4, 5)
    reading = reading_of(built, 25, 55)
    assert reading.rest() == [25, 26, 27, 28, 29]
    assert reading.lost == [(OffsetRange(30, 55), "the log ends at 30")]
    reading = reading_of(built, 45, 55)
    assert reading.rest() == []
    assert reading.lost == [(OffsetRange(45, 55), "the log ends at 30")]


def test_a_log_that_is_truncated_and_grows_again_while_it_is_read(tmp_path):
    """What another leader wrote is no continuation of what was read."""
    replica = Replica(tmp_path)
    for _ in range(3):
        replica.append(10)
        replica.roll()
    reading = Reading(replica, Split(TP, 0, 30, 0))
    assert reading.next() == list(range(10))
    replica.truncate(5)
    for _ in range(3):
        replica.append(10)
        replica.roll()
    assert reading.rest() == []
    assert reading.lost == [(OffsetRange(10, 30), "the log was truncated while it was read")]


@pytest.mark.parametrize("begun", [False, True])
def test_the_topic_was_made_again(built, tmp_path, begun):
    """Messages with the same offsets in a new topic of that name are not the planned ones."""
    snapshot = LogDir.open_read_only(built.path.parent).log(TP).snapshot()
    planned = plan([LogRange(snapshot, 5, 45)], cores=1)[0][0]
    assert planned.identity is not None
    split = dataclasses.replace(pickle.loads(pickle.dumps(planned)), end_offset=45)
    reading = Reading(built, split)
    read = reading.next() if begun else []
    other = Partition(
        [Batch(many(60, 30))], extra={PARTITION_METADATA: partition_metadata.encode(partition_metadata.random_id())}
    )
    again = build_log_dir(tmp_path / "again", {"t": [other]})["t", 0]
    shutil.rmtree(built.path)
    shutil.copytree(again.path, built.path)
    read += reading.rest()
    assert read == list(range(5, 10 if begun else 5))
    assert reading.lost == [(OffsetRange(len(read) + 5, 45), "the topic was deleted and created again after planning")]


def test_the_partition_is_gone(built):
    reading = reading_of(built, 0, 60)
    assert reading.next() == list(range(10))
    built.path.rename(built.path.parent / "t-0.0123456789abcdef0123456789abcdef-delete")
    assert reading.rest() == []
    assert reading.lost == [(OffsetRange(10, 60), "the partition was removed")]


def test_replaced_segments_are_found_again(built):
    reading = reading_of(built, 0, 60)
    assert reading.next() == list(range(10))
    content = built.log(1).read_bytes()
    built.log(1).unlink()
    built.log(1).write_bytes(content)
    assert reading.rest() == list(range(10, 60))
    assert not reading.lost


def test_a_file_that_is_never_there_is_an_error(built, monkeypatch):
    def gone(self, position, size, into=None):
        raise SegmentGone("gone")

    reading = reading_of(built, 0, 60)
    assert reading.next() == list(range(10))
    monkeypatch.setattr(LogFile, "read", gone)
    with pytest.raises(SegmentGone):
        reading.rest()
