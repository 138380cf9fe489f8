"""spark.read.format("kafkafs"): it reads what real consumers read, as the options say."""

from pathlib import Path

import pytest

from kafkafs.arrow import rows
from kafkafs.spark.options import COLUMNS
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.spark.logs import append, two_partitions
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


def records(frame):
    """The rows, in their order, as a consumer's golden file has them."""
    columns = ("offset", "unix_millis(timestamp) AS ms", "timestampType", "key", "value", "headers")
    return [
        Golden(
            row["offset"],
            row["ms"],
            KINDS[row["timestampType"]],
            row["key"],
            row["value"],
            tuple((header["key"].encode(), header["value"]) for header in row["headers"] or ()),
        )
        for row in frame.selectExpr(*columns).toArrow().to_pylist()
    ]


@requires_fixtures
def test_a_fixture_reads_as_its_golden_file(spark):
    """All the others: tests/kafkafs/arrow, which reads with the same code."""
    case = next(case for case in golden_cases() if case.fixture == "codecs" and "zstd" in case.topic)
    frame = read(spark, case.log_dir, assign=f'{{"{case.topic}":[{case.partition}]}}', includeHeaders=True)
    assert records(frame) == case.records()


@requires_fixtures
@pytest.mark.parametrize("topic", sorted(DAMAGED))
def test_a_corrupt_batch_fails_the_query_or_is_skipped(spark, topic):
    (case,) = (case for case in golden_cases() if case.topic == topic and case.isolation == READ_UNCOMMITTED)
    error = r"storage.errors.(UnsupportedFormat|CorruptBatch): .*\.log: .* at position"
    with pytest.raises(PythonException, match=error):
        read(spark, case.log_dir, subscribe=topic).toArrow()
    frame = read(spark, case.log_dir, subscribe=topic, onCorruptBatch="skip", includeHeaders=True)
    found = records(frame)
    seen = case.records()
    assert found[: len(seen)] == seen
    assert len(found) > len(seen)


@pytest.fixture
def built(tmp_path):
    """Two partitions of `t`; `other` has transactions."""
    transactions = [Batch(many(3), producer_id=7, transactional=True), abort(7), Batch(many(2))]
    return two_partitions(tmp_path / "log", other=[transactions])


def offsets(frame):
    """The offsets by partition, in the order of the rows."""
    found = {}
    for partition, offset in frame.select("partition", "offset").collect():
        found.setdefault(partition, []).append(offset)
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
    append(built, TopicPartition("t", 1))
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
    append(built, TopicPartition("t", 1))
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
