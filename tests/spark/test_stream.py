"""spark.readStream.format("kafkafs"): each message once, in batches that can be replayed; reports of lost ones."""

import json
import shutil

import pytest

from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.spark import offsets_behind_latest
from kafkafs.spark.data_loss import DataLoss
from storage.directory.owned_dir import OwnedDir
from storage.files import partition_metadata
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.spark.logs import append, two_partitions
from tests.spark.session import on_spark, run_to_end
from tests.support.builders import Batch, build_log_dir, commit, many, topic_id
from tests.support.owned_dirs import StandingClock

stream_reader = pytest.importorskip("kafkafs.spark.stream").stream_reader
schema_of = pytest.importorskip("kafkafs.spark.source").schema_of
PySparkException = pytest.importorskip("pyspark.errors").PySparkException

TIMEOUT = 120
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Stopped(Exception):
    """Raised by a test's sink instead of finishing its batch."""


FAILED = (PySparkException, DataLoss, InvalidOption, Stopped)


class Query:
    """A query with its checkpoint, run again and again. `batches`: the (partition, offset) pairs of each, in order."""

    def __init__(self, log_dir, checkpoint, options, spark=None):
        self.log_dir = log_dir
        self.checkpoint = checkpoint
        self.options = {"subscribe": "t", "startingOffsets": "earliest"}
        self.options |= {name: str(value) for name, value in options.items()}
        self.spark = spark
        self.batches = {}
        self.fail_in = None

    def take(self, number, found):
        """The sink."""
        self.batches[number] = sorted(found)
        if number == self.fail_in:
            raise Stopped("Stopped")

    @property
    def rows(self):
        return sorted(row for rows in self.batches.values() for row in rows)


class ReaderQuery(Query):
    """The source alone, called as Spark's micro-batches call it, with the offsets where Spark logs them."""

    def run(self):
        options = {**self.options, "path": str(self.log_dir)}
        reader = stream_reader(options, schema_of(options), cores=2)
        reader.prepareForTriggerAvailableNow()
        for kind in ("offsets", "commits"):
            (self.checkpoint / kind).mkdir(parents=True, exist_ok=True)
        while True:
            number = len(list((self.checkpoint / "commits").iterdir()))
            start = self._logged(number - 1) if number else reader.initialOffset()
            planned = self.checkpoint / "offsets" / str(number)
            if not planned.exists():
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end == start:
                    break
                planned.write_text("v1\n{}\n" + json.dumps(end))
            end = self._logged(number)
            batches = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
            self.take(number, [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()])
            (self.checkpoint / "commits" / str(number)).touch()
            reader.commit(end)
        reader.stop()

    def _logged(self, number):
        return json.loads((self.checkpoint / "offsets" / str(number)).read_text().splitlines()[2])


class SparkQuery(Query):
    def run(self, **trigger):
        frame = self.spark.readStream.format("kafkafs").options(**self.options).load(str(self.log_dir))
        writer = frame.select("partition", "offset").writeStream.option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(**(trigger or {"availableNow": True})).foreachBatch(self._take)
        started = []
        run_to_end(lambda: started.append(writer.start()) or started[-1], TIMEOUT)
        self.progress = started[-1].recentProgress

    def _take(self, frame, number):
        self.take(number, [tuple(row) for row in frame.collect()])


@pytest.fixture(params=["reader", pytest.param("spark", marks=[pytest.mark.nightly, *on_spark])])
def query(request, tmp_path):
    """Makes a query of the topic `t`; nightly in Spark too."""

    def made(built, **options):
        place = (built.path, tmp_path / "checkpoint", options)
        if request.param == "reader":
            return ReaderQuery(*place)
        return SparkQuery(*place, spark=request.getfixturevalue("spark"))

    return made


def in_spark(spark, built, tmp_path, **options):
    return SparkQuery(built.path, tmp_path / "checkpoint", options, spark)


@pytest.fixture
def built(tmp_path):
    return two_partitions(tmp_path / "log")


def pairs(partition, offsets):
    return [(partition, offset) for offset in offsets]


def test_each_message_once_over_restarts(spark, built, tmp_path):
    stream = in_spark(spark, built, tmp_path)
    stream.run()
    assert stream.batches == {0: pairs(0, range(30)) + pairs(1, range(10))}
    stream.run()
    assert list(stream.batches) == [0]
    append(built, T0, 5)
    stream.run()
    assert stream.batches[1] == pairs(0, range(30, 35))
    append(built, T1, 1)
    stream.run(once=True)
    assert stream.batches[2] == pairs(1, [10])
    assert not verify_log_dir(built.path)


def test_batches_are_bounded_and_shared_out(query, built):
    stream = query(built, maxOffsetsPerTrigger=8)
    stream.run()
    assert stream.batches[0] == pairs(0, range(6)) + pairs(1, range(2))
    assert max(map(len, stream.batches.values())) <= 8
    assert stream.rows == pairs(0, range(30)) + pairs(1, range(10))


def test_offsets_behind_latest(spark, built, tmp_path):
    """The metrics of Spark's Kafka source, computed from a progress."""
    stream = in_spark(spark, built, tmp_path, maxOffsetsPerTrigger=8)
    stream.run()
    behind = [offsets_behind_latest(progress.sources[0]) for progress in stream.progress if progress.numInputRows]
    assert behind[0] == {
        "minOffsetsBehindLatest": "8", "maxOffsetsBehindLatest": "24", "avgOffsetsBehindLatest": "16.0"
    }  # fmt: skip
    assert set(behind[-1].values()) == {"0", "0.0"}
    assert offsets_behind_latest({"endOffset": None, "latestOffset": None}) == {}


def test_a_batch_that_was_not_done_is_replayed_as_it_was(spark, built, tmp_path):
    stream = in_spark(spark, built, tmp_path, maxOffsetsPerTrigger=20)
    stream.fail_in = 1
    with pytest.raises(FAILED, match="Stopped"):
        stream.run()
    before = dict(stream.batches)
    append(built, T0, 7)
    stream.fail_in = None
    stream.run()
    assert {number: stream.batches[number] for number in before} == before
    assert stream.rows == pairs(0, range(37)) + pairs(1, range(10))


def goes_on(stream, fail, lost):
    """Whether the query ran to its end; with failOnDataLoss it must say what is lost instead."""
    if fail:
        with pytest.raises(FAILED, match=lost):
            stream.run()
    else:
        stream.run()
    return not fail


def bare(offset):
    """Without what identifies the messages that were read."""
    assert "@read" in offset
    return {name: value for name, value in offset.items() if name != "@read"}


def test_the_beginning_stays_where_it_was(built):
    """A query from the latest offset that is stopped in its first batch: afterwards "latest" is another offset."""
    options = {"path": str(built.path), "subscribe": "t"}
    schema = schema_of(options)
    reader = stream_reader(options, schema, cores=1)
    start = reader.initialOffset()
    assert start == {"t": {"0": 30, "1": 10}}
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    append(built, T0, 3)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    append(built, T0, 2)
    restarted = stream_reader(options, schema, cores=1)
    again = restarted.initialOffset()
    assert again == {"t": {"0": 35, "1": 10}}
    ((split,),) = (task.splits for task in restarted.partitions(again, end))
    assert (split.tp, split.start_offset, split.end_offset) == (T0, 30, 33)
    # Only the end of the first batch has it; later offsets do not.
    following = restarted.latestOffset(end, restarted.getDefaultReadLimit())
    assert bare(following) == {"t": {"0": 35, "1": 10}}
    ((split,),) = (task.splits for task in restarted.partitions(end, following))
    assert (split.start_offset, split.end_offset) == (33, 35)
    assert restarted.latestOffset(following, restarted.getDefaultReadLimit()) == following


def test_too_few_messages_wait_for_more_but_not_for_ever(built):
    options = {"path": str(built.path), "subscribe": "t", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "10s"}
    clock = StandingClock(1_000_000)
    reader = stream_reader(options, schema_of(options), cores=1, clock=clock)
    start = {"t": {"0": 29, "1": 10}}
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(start, limit)
    assert bare(first) == {"t": {"0": 30, "1": 10}}, "the first batch waits for nothing"
    append(built, T0, 4)
    clock.time_ms += 9_999
    assert reader.latestOffset(first, limit) == first
    append(built, T1, 1)
    second = reader.latestOffset(first, limit)
    assert bare(second) == {"t": {"0": 34, "1": 11}}
    append(built, T0, 1)
    assert reader.latestOffset(second, limit) == second
    clock.time_ms += 10_000
    assert bare(reader.latestOffset(second, limit)) == {"t": {"0": 35, "1": 11}}
    # With Trigger.AvailableNow nothing more will arrive.
    append(built, T0, 1)
    reader.prepareForTriggerAvailableNow()
    assert bare(reader.latestOffset({"t": {"0": 35, "1": 11}}, limit)) == {"t": {"0": 36, "1": 11}}


@pytest.mark.parametrize("fail", [True, False])
def test_messages_lost_to_retention(query, built, fail):
    stream = query(built, maxOffsetsPerTrigger=8, failOnDataLoss=fail)
    stream.fail_in = 1
    with pytest.raises(FAILED, match="Stopped"):
        stream.run()
    for suffix in (".log", ".index", ".timeindex"):
        built["t", 0].log(0).with_suffix(suffix).unlink()
    stream.fail_in = None
    if goes_on(stream, fail, "messages 6 to 9 of t/0 are missing: the log begins at 10"):
        assert stream.rows == pairs(0, range(6)) + pairs(0, range(10, 30)) + pairs(1, range(10))


@pytest.mark.parametrize("fail", [True, False])
def test_a_partition_that_went(query, built, tmp_path, fail):
    stream = query(built, failOnDataLoss=fail)
    stream.run()
    (built["t", 1].path).rename(tmp_path / "gone")
    append(built, T0, 1)
    if goes_on(stream, fail, r"missing since the last batch, .*: t/1"):
        assert stream.batches[1] == pairs(0, [30])


def test_a_partition_that_came(query, built):
    stream = query(built, maxOffsetsPerTrigger=100)
    stream.run()
    owned = OwnedDir.open(built.path)
    owned.add_partitions("t", 3)
    owned.close()
    append(built, TopicPartition("t", 2), 4)
    stream.run()
    assert stream.batches[1] == pairs(2, range(4))


def test_committed_messages_only(query, tmp_path):
    transaction = Batch(many(3), producer_id=7, transactional=True)
    built = build_log_dir(tmp_path / "log", {"t": [[transaction, commit(7), transaction]]}, broker=False)
    stream = query(built, **{"kafka.isolation.level": "read_committed"})
    stream.run()
    assert stream.rows == pairs(0, range(3))


def test_the_checkpoint_holds_spark_kafka_offsets(spark, built, tmp_path):
    stream = in_spark(spark, built, tmp_path, maxOffsetsPerTrigger=20)
    stream.run()
    logged = [json.loads((tmp_path / f"checkpoint/offsets/{n}").read_text().splitlines()[2]) for n in (0, 1)]
    read = [one.pop("@read") for one in logged]
    assert read == [{"t": {"id": topic_id("t"), "epochs": {"0": 0, "1": 0}}}] * 2
    assert logged[0] == {"t": {"0": 15, "1": 5}, "@initial": {"t": {"0": 0, "1": 0}}}
    assert logged[1] == {"t": {"0": 30, "1": 10}}


def led(tmp_path, *epochs, name="log", topic="t"):
    """A log of batches of ten messages, each of the leader with this epoch."""
    batches = [Batch(many(10, 10 * epoch), leader_epoch=epoch) for epoch in epochs]
    return build_log_dir(tmp_path / name, {topic: [batches]}, broker=False)


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("more", [0, 1])
def test_what_was_read_is_truncated(query, tmp_path, fail, more):
    """Behind what was kept, another leader's messages have taken the offsets of those that were read, and `more`."""
    built = led(tmp_path, 1, 2, 2)
    stream = query(built, failOnDataLoss=fail)
    stream.run()
    shutil.rmtree(built.path)
    led(tmp_path, 1, 2, 3, *[3] * more)
    if goes_on(stream, fail, "t/0 was read up to 30, and its messages from 20 on have changed"):
        assert stream.batches[1] == pairs(0, range(20, 30 + 10 * more))
        stream.run()
        assert list(stream.batches) == [0, 1]


@pytest.mark.parametrize("fail", [True, False])
def test_another_topic_of_that_name(query, tmp_path, fail):
    built = led(tmp_path, 1)
    stream = query(built, failOnDataLoss=fail)
    stream.run()
    (built["t", 0].path / "partition.metadata").write_bytes(partition_metadata.encode(topic_id("another")))
    if goes_on(stream, fail, "its messages from 0 on have changed"):
        assert stream.batches[1] == pairs(0, range(10))


def test_a_checkpoint_that_does_not_say_what_was_read(query, tmp_path):
    """As earlier versions wrote it."""
    built = led(tmp_path, 1, 2)
    stream = query(built)
    stream.run()
    offsets = tmp_path / "checkpoint/offsets/0"
    lines = offsets.read_text().splitlines()
    logged = json.loads(lines[2])
    del logged["@read"]
    offsets.write_text("\n".join([*lines[:2], json.dumps(logged)]))
    (tmp_path / "checkpoint/offsets/.0.crc").unlink(missing_ok=True)
    stream.run()
    assert list(stream.batches) == [0]
    append(built, T0, 1)
    stream.run()
    assert stream.batches[1] == pairs(0, [20])


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(built, option):
    options = {"path": str(built.path), "subscribe": "t", option: "1" if option == "endingTimestamp" else "latest"}
    with pytest.raises(InvalidOption, match="a streaming query has no end"):
        stream_reader(options, schema_of(options), cores=2)
