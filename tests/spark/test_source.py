"""spark.read.format("kafkafs"): it reads what real consumers read, as the options say."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from kafkafs.arrow import rows
from kafkafs.spark.options import COLUMNS
from storage.append.appender import Appender
from storage.clock import SystemClock
from storage.directory.owned_dir import OwnedDir
from storage.format.block import Record
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.support.builders import ROLL, START_MS, STEP_MS, Batch, abort, build_log_dir, many
from tests.support.fixtures import READ_COMMITTED, READ_UNCOMMITTED, Golden, golden_cases, requires_fixtures

spark_partition_id = pytest.importorskip("pyspark.sql.functions").spark_partition_id
PythonException = pytest.importorskip("pyspark.errors").PythonException
cloudpickle = pytest.importorskip("pyspark.cloudpickle")
data_source_for = pytest.importorskip("kafkafs.spark.data_source").data_source_for


DAMAGED = {"rec-c4-flip-magic", "rec-m-flip-below-recovery-point"}  # the consumer fails there, and so do we
KINDS = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}


def read(spark, path, **options):
    """`options`: with _ for the dots."""
    texts = {name.replace("_", "."): str(value) for name, value in options.items()}
    return spark.read.format("kafkafs").options(**texts).load(str(path))


def records(table):
    """The rows by partition, in the order of the table."""
    found = defaultdict(list)
    columns = table.set_column(5, "timestamp", table.column("timestamp").cast("int64")).to_pydict()
    headers = columns.pop("headers")
    for row, values in enumerate(zip(*columns.values(), strict=True)):
        key, value, topic, partition, offset, timestamp, kind = values
        pairs = tuple((header["key"].encode(), header["value"]) for header in headers[row] or ())
        assert headers[row] is None or pairs
        assert timestamp % 1000 == 0
        found[TopicPartition(topic, partition)].append(
            Golden(offset, timestamp // 1000, KINDS[kind], key, value, pairs)
        )
    return found


# Every codec, transactions, the oldest format. All the others: tests/kafkafs/arrow, which reads with the same code.
SOME = ("codecs", "transactions", "v0")


def by_fixture():
    cases = defaultdict(list)
    for case in golden_cases():
        if case.fixture in SOME:
            cases[case.fixture, case.isolation].append(case)
    for (fixture, isolation), several in cases.items():
        yield pytest.param(several, id=f"{fixture}-{isolation}")


def assigned(partitions):
    topics = defaultdict(list)
    for tp in partitions:
        topics[tp.topic].append(tp.partition)
    return json.dumps(topics)


@pytest.mark.parametrize("cases", list(by_fixture()))
def test_fixtures_read_as_their_golden_files(spark, cases):
    wanted = {TopicPartition(case.topic, case.partition): case for case in cases}
    frame = read(
        spark, cases[0].log_dir, assign=assigned(wanted), includeHeaders=True, kafka_isolation_level=cases[0].isolation
    )
    found = records(frame.toArrow())
    assert found.keys() <= wanted.keys()
    for tp, case in wanted.items():
        assert found.get(tp, []) == case.records(), tp


@requires_fixtures
@pytest.mark.parametrize("topic", sorted(DAMAGED))
def test_a_corrupt_batch_fails_the_query_or_is_skipped(spark, topic):
    (case,) = (case for case in golden_cases() if case.topic == topic and case.isolation == READ_UNCOMMITTED)
    error = r"storage.errors.(UnsupportedFormat|CorruptBatch): .*\.log: .* at position"
    with pytest.raises(PythonException, match=error):
        read(spark, case.log_dir, subscribe=topic).toArrow()
    frame = read(spark, case.log_dir, subscribe=topic, onCorruptBatch="skip", includeHeaders=True)
    (found,) = records(frame.toArrow()).values()
    seen = case.records()
    assert found[: len(seen)] == seen
    assert len(found) > len(seen)


@pytest.fixture
def built(tmp_path):
    """Two partitions of 30 and 10 messages in segments of 10; `other` has transactions."""
    items = [Batch(many(10)), ROLL, Batch(many(10)), ROLL, Batch(many(10))]
    transactions = [Batch(many(3), producer_id=7, transactional=True), abort(7), Batch(many(2))]
    return build_log_dir(tmp_path / "log", {"t": [items, [Batch(many(10))]], "other": [transactions]}, broker=False)


def offsets(frame):
    """The offsets by partition, in the order of the rows."""
    found = defaultdict(list)
    for partition, offset in frame.select("partition", "offset").collect():
        found[partition].append(offset)
    return found


def test_filters_of_one_frame_do_not_meet(spark, built):
    """This fails if filters are pushed to a Python source (pyspark 4.2, 4.3): a filter stays for the next query."""
    frame = read(spark, built.path, subscribe="t")
    first, second = frame.filter("partition = 0 and offset < 5"), frame.filter("partition = 1")
    assert (first.count(), frame.count(), second.count()) == (5, 40, 10)
    assert first.union(second).count() == 15
    assert frame.count() == 40


def test_a_frame_is_a_snapshot_from_its_first_action_on(spark, built):
    frame, later = (read(spark, built.path, subscribe="t") for _ in range(2))
    narrow = frame.filter("partition = 1")
    assert frame.count() == 40
    owned = OwnedDir.open(built.path)
    Appender(owned.log(TopicPartition("t", 1)), clock=SystemClock()).append([Record(None, b"more")])
    owned.close()
    assert (frame.count(), narrow.count(), frame.select("offset").count()) == (40, 10, 40)
    assert (later.count(), later.filter("partition = 1").count()) == (41, 11)
    assert not verify_log_dir(built.path)


@pytest.fixture
def catalog(spark):
    """The name of a table in the session's catalog; `readers` is the name of a view, dropped with it."""
    spark.sql("CREATE TABLE messages USING kafkafs")
    yield "messages"
    spark.sql("DROP VIEW IF EXISTS readers")
    spark.sql("DROP TABLE messages")


def test_a_view_of_a_table_is_planned_anew_for_each_query(spark, built, catalog):
    spark.sql(f"CREATE TEMPORARY VIEW readers AS SELECT * FROM {catalog} WITH (path '{built.path}', subscribe 't')")
    assert spark.table("readers").count() == 40
    owned = OwnedDir.open(built.path)
    Appender(owned.log(TopicPartition("t", 1)), clock=SystemClock()).append([Record(None, b"more")])
    owned.close()
    assert spark.sql("SELECT count(*) FROM readers").collect() == [(41,)]
    log = built["t", 0]
    for path in log.path.glob(f"{log.log(0).stem}.*"):
        path.unlink()
    assert spark.sql("SELECT min(offset), count(*) FROM readers WHERE partition = 0").collect() == [(10, 20)]
    assert not verify_log_dir(built.path)


def test_a_table_without_its_options(spark, built, catalog):
    with pytest.raises(Exception, match=r"no log directory: .*in WITH \(path 'LOGDIR'"):
        spark.sql(f"SELECT * FROM {catalog}").collect()
    with pytest.raises(Exception, match="expected columns value, found key, value, topic"):
        spark.sql(f"SELECT * FROM {catalog} WITH (path '{built.path}', subscribe 't', columns 'value')").collect()
    with pytest.raises(Exception, match="Spark does not keep the options of a table"):
        spark.sql(f"CREATE TABLE other USING kafkafs OPTIONS (path '{built.path}', subscribe 't')")


def test_columns_and_the_schema(spark, built):
    frame = read(spark, built.path, subscribe="t", columns="offset,value")
    assert frame.columns == ["offset", "value"]
    assert frame.agg({"offset": "sum"}).collect() == [(30 * 29 // 2 + 45,)]
    assert tuple(read(spark, built.path, subscribe="t").columns) == COLUMNS[:-1]
    with pytest.raises(Exception, match="the schema is given by the source"):
        spark.read.format("kafkafs").schema("value STRING").option("subscribe", "t").load(str(built.path)).count()


def test_ranges(spark, built):
    span = {"startingOffsets": '{"t":{"0":10,"1":-2}}', "endingOffsets": '{"t":{"0":20,"1":3}}'}
    assert offsets(read(spark, built.path, subscribe="t", **span)) == {0: list(range(10, 20)), 1: [0, 1, 2]}
    times = {"startingTimestamp": START_MS + 7 * STEP_MS, "endingTimestamp": START_MS + 9 * STEP_MS}
    assert offsets(read(spark, built.path, subscribe="t", **times)) == {0: [7, 8], 1: [7, 8]}
    committed = read(spark, built.path, subscribe="other", isolation_level=READ_COMMITTED)
    assert offsets(committed) == {0: [4, 5]}
    nothing = read(spark, built.path, subscribePattern="nothing.*")
    assert (nothing.count(), nothing.rdd.getNumPartitions()) == (0, 1)


def test_tasks(spark, built):
    whole = read(spark, built.path, subscribe="t")
    assert whole.rdd.getNumPartitions() == 2, "a partition each, for the session has as many cores"
    many_tasks = read(spark, built.path, subscribe="t", minPartitions=4)
    assert many_tasks.rdd.getNumPartitions() == 4
    short = read(spark, built.path, subscribe="t", maxRecordsPerPartition=7)
    assert max(row[1] for row in short.groupBy(spark_partition_id()).count().collect()) == 7
    assert offsets(whole) == offsets(many_tasks) == offsets(short) == {0: list(range(30)), 1: list(range(10))}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"subscribe": "t", "startingOffset": "latest"}, "unknown option 'startingoffset': did you mean startingOf"),
        ({"subscribe": "t", "startingOffsets": "latest"}, "startingOffsets of a batch query cannot be latest"),
        ({"subscribe": "t", "endingOffsets": '{"t":{"0":-2,"1":5}}'}, "cannot be earliest"),
        ({"subscribe": "t,u"}, "subscribe: u is not in"),
        ({"assign": '{"t":[0,9],"v":[0]}'}, "assign: t/9, v/0 are not in"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":1}}'}, "must name every partition .*: t/1 is missing"),
        ({"subscribe": "other", "startingOffsets": '{"other":{"0":1,"1":1}}'}, "names other/1, which the query does"),
        ({"subscribe": "other", "startingTimestamp": str(START_MS * 2)}, "no message of other/0 has a timestamp of"),
        ({"subscribe": "other", "startingOffsets": '{"other":{"0":7}}'}, "begins at 7 and ends at 6"),
        ({"subscribe": "other", "endingOffsets": '{"other":{"0":9}}'}, "no messages 6 to 8: the log ends at 6"),
    ],
)
def test_wrong_options(spark, built, options, error):
    with pytest.raises(Exception, match=error):
        read(spark, built.path, **options).count()


@pytest.fixture
def long(tmp_path):
    """Six segments, each larger than an Arrow batch and than the buffers of the sockets between Python and Spark."""
    items = [item for _ in range(6) for item in (Batch(many(rows.MOST_ROWS, 150)), ROLL)]
    return build_log_dir(tmp_path / "log", {"t": [items]}, broker=False)


@pytest.mark.parametrize("fail", [True, False])
def test_retention_during_a_read(spark, long, fail):
    log = long["t", 0]
    removed = [str(path) for index in range(5) for path in log.path.glob(f"{log.log(index).stem}.*")]

    def retain(found):
        for row in found:
            for path in removed:
                Path(path).unlink(missing_ok=True)
            removed.clear()
            yield row["offset"]

    left = read(spark, long.path, subscribe="t", columns="value,offset", failOnDataLoss=fail).rdd.mapPartitions(retain)
    if fail:
        # Raised by the running task, or by another, or by a second attempt, whose range is missing completely.
        error = r"DataLoss: messages [0-9]0* to [0-9]9999 of t/0 are missing: .* load the DataFrame or .* anew"
        with pytest.raises(Exception, match=error):
            left.collect()
        return
    found = left.collect()
    assert found == sorted(found)
    assert len(found) < 6 * rows.MOST_ROWS
    assert found[-rows.MOST_ROWS :] == list(range(5 * rows.MOST_ROWS, 6 * rows.MOST_ROWS))
    assert not verify_log_dir(long.path)


def test_the_number_of_cores_travels_with_the_data_source(spark):
    """The processes that plan have no Spark context that knows it."""
    registered = data_source_for(spark)
    assert registered.cores == spark.sparkContext.defaultParallelism == 2
    assert b"cores" in cloudpickle.dumps(registered)
