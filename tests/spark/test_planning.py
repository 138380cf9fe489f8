"""Dividing logs into tasks: they cover the ranges without gaps, divided at index entries, of similar sizes."""

import pytest

from kafkafs.arrow.log_dirs import open_log_dirs
from kafkafs.reading.split_reader import Split
from kafkafs.spark import tasks
from kafkafs.spark.data_loss import DataLoss
from kafkafs.spark.options import parse
from kafkafs.spark.ranges import batch_ranges
from kafkafs.spark.tasks import LogRange, plan
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many
from tests.support.fixtures import FIXTURES, requires_fixtures


def snapshots(path, *partitions):
    build_log_dir(path, {"t": list(partitions)})
    log_dir = LogDir.open_read_only(path)
    return [log_dir.log(TopicPartition("t", number)).snapshot() for number in range(len(partitions))]


def planned(logs, **options):
    """The tasks for all messages of the logs."""
    return plan([LogRange(log, log.log_start_offset, log.log_end_offset) for log in logs], **options)


def covered(tasks):
    """By partition: (start, end) of its splits in the order of the tasks, adjacent ones joined."""
    found = {}
    for split in (split for task in tasks for split in task):
        assert split.start_offset < split.end_offset
        spans = found.setdefault(split.tp.partition, [])
        if spans and spans[-1][1] == split.start_offset:
            spans[-1] = (spans[-1][0], split.end_offset)
        else:
            spans.append((split.start_offset, split.end_offset))
    return found


@pytest.fixture
def small_tasks(monkeypatch):
    monkeypatch.setattr(tasks, "LEAST_TASK_BYTES", 1)


def indexed(batches):
    return Partition([Batch(many(10, 100)) for _ in range(batches)], index_interval_bytes=1)


def in_segments(*batches, **options):
    """Six segments of such batches."""
    return Partition([item for _ in range(6) for item in (*batches, ROLL)], **options)


def test_a_log_is_a_task_of_its_own_where_there_are_as_many_cores(tmp_path):
    logs = snapshots(tmp_path, [b"one", b"two"], [b"three"], [])
    for cores, partitions in ((2, [[0], [1]]), (1, [[0, 1]])):
        tasks = planned(logs, cores=cores, separate=True)
        assert [[split.tp.partition for split in task] for task in tasks] == partitions


@pytest.mark.usefixtures("small_tasks")
def test_tasks_of_equal_size_cut_behind_batches(tmp_path):
    logs = snapshots(tmp_path, indexed(200), indexed(3), indexed(77))
    tasks = planned(logs, cores=2)
    assert covered(tasks) == {0: [(0, 2000)], 1: [(0, 30)], 2: [(0, 770)]}
    assert all(split.start_offset % 10 == 0 for task in tasks for split in task)
    sizes = [sum(split.size_bytes for split in task) for task in tasks]
    assert len(tasks) == 8
    assert sum(sizes) == sum(log.size_bytes for log in logs)
    batch = logs[1].size_bytes // 3
    assert all(abs(size - sum(sizes) / 8) <= batch for size in sizes[:-1])


@pytest.mark.usefixtures("small_tasks")
def test_segments_are_cut_where_there_is_no_index(tmp_path):
    logs = snapshots(tmp_path, in_segments(Batch(many(10))))
    for path in (tmp_path / "t-0").glob("*.index"):
        path.unlink()
    tasks = planned(logs, cores=1)
    assert covered(tasks) == {0: [(0, 60)]}
    assert [task[0].start_offset for task in tasks] == [0, 20, 40]


@pytest.mark.usefixtures("small_tasks")
def test_part_of_a_log(tmp_path):
    (log,) = snapshots(tmp_path, in_segments(Batch(many(5)), Batch(many(5)), index_interval_bytes=1))
    for span in (0, 60), (7, 8), (15, 42), (20, 40), (59, 60):
        assert covered(plan([LogRange(log, *span)], cores=2)) == {0: [span]}


def test_a_segment_costs_its_own_bytes_only(tmp_path):
    (log,) = snapshots(tmp_path, in_segments(Batch(many(50))))
    ((split,),) = plan([LogRange(log, 100, 150)], cores=2)
    assert split == Split(log.tp, 100, 150, log.segments[2].size)


def test_least_tasks(tmp_path):
    logs = snapshots(tmp_path, [Batch(many(100))], [Batch(many(11))])
    tasks = planned(logs, cores=2, least_tasks=7)
    assert covered(tasks) == {0: [(0, 100)], 1: [(0, 11)]}
    assert 7 <= len(tasks) <= 9
    assert len(planned(logs, cores=2, least_tasks=10_000)) == 111


@pytest.mark.usefixtures("small_tasks")
def test_most_records(tmp_path):
    tasks = planned(snapshots(tmp_path, indexed(40), indexed(3)), cores=1, most_records=33)
    assert covered(tasks) == {0: [(0, 400)], 1: [(0, 30)]}
    assert max(sum(split.end_offset - split.start_offset for split in task) for task in tasks) <= 33


@pytest.mark.usefixtures("small_tasks")
def test_an_index_that_lies_costs_balance_only(tmp_path):
    logs = snapshots(tmp_path, indexed(50))
    index = next((tmp_path / "t-0").glob("*.index"))
    entries = len(index.read_bytes()) // 8
    index.write_bytes(b"".join((i * 1000).to_bytes(4, "big") + (i * 11).to_bytes(4, "big") for i in range(1, entries)))
    assert covered(planned(logs, cores=2)) == {0: [(0, 500)]}


@requires_fixtures
def test_messages_in_tiered_storage_are_lost_unless_that_is_allowed():
    def spans(**options):
        chosen = parse({"path": str(FIXTURES / "tiered" / "log"), "assign": '{"cut":[0]}', **options})
        return [(span.start_offset, span.end_offset) for span in batch_ranges(open_log_dirs(chosen.paths), chosen)]

    with pytest.raises(DataLoss, match=r"517 to 723 .* in tiered storage"):
        spans()
    with pytest.raises(DataLoss, match=r"600 to 723 .* in tiered storage"):
        spans(startingOffsets='{"cut":{"0":600}}')
    assert spans(failOnDataLoss="false") == [(724, 1252)]
    assert spans(startingOffsets='{"cut":{"0":724}}') == [(724, 1252)]
