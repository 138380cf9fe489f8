"""df.write.format("kafkafs"): by the rules of Spark's Kafka sink, into partitions as Kafka's producer chooses them."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import psutil
import pytest

from kafkafs.arrow.invalid_option import InvalidOption
from storage.directory.owned_dir import Opening, OwnedDir
from storage.files import names
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.staged_writes import commit
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.spark.session import wait_for_tasks
from tests.support.builders import START_MS, build_log_dir, metadata_records
from tests.support.crash_points import kill_commit
from tests.support.mounts import mounted, requires_fuse
from tests.support.partitions import partition_for_key
from tests.support.readers import read_all
from tests.support.waiting import wait_for

expr, udf = (getattr(pytest.importorskip("pyspark.sql.functions"), name) for name in ("expr", "udf"))
PySparkException = pytest.importorskip("pyspark.errors").PySparkException
batch_writer, parse = (getattr(pytest.importorskip("kafkafs.spark.sink"), name) for name in ("batch_writer", "parse"))


@pytest.fixture
def logs(tmp_path):
    """A log directory with the topics t (three partitions) and u; at the end it must be sound, without staged files."""
    path = tmp_path / "logs"
    owned = OwnedDir.open(path, Opening(create=True))
    owned.create_topic("t", 3)
    owned.create_topic("u", 1, {"cleanup.policy": "compact"})
    assert owned.close().clean
    yield path
    assert not verify_log_dir(path)
    assert not staged_files(path)
    assert not (path / ".lock").exists()


def staged_files(path):
    return list(path.rglob("*" + names.STAGED_SUFFIX))


def messages(path, topic, partition):
    snapshot = LogDir.open_read_only(path).log(TopicPartition(topic, partition)).snapshot()
    return [(record.key, record.value, list(record.headers)) for record in read_all(snapshot)]


def every_message(path):
    return [message for partition in range(3) for message in messages(path, "t", partition)]


def write(frame, path, **options):
    texts = {name: str(value) for name, value in options.items()}
    frame.write.format("kafkafs").mode("append").options(**texts).save(str(path))


def test_columns_and_partitions(spark, logs):
    rows = [(f"k{n}", f"v{n}".encode(), None if n % 2 else [("h", b"x"), ("n", None)]) for n in range(200)]
    frame = spark.createDataFrame(rows, "key string, value binary, headers array<struct<key: string, value: binary>>")
    write(frame.repartition(3), logs, topic="t")
    for partition in range(3):
        wanted = [
            (key.encode(), value, [] if headers is None else [(b"h", b"x"), (b"n", None)])
            for key, value, headers in rows
            if partition_for_key(key.encode(), 3) == partition
        ]
        assert sorted(messages(logs, "t", partition)) == sorted(wanted)
        assert wanted


def test_order_within_a_task_and_topics_and_partitions_by_row(spark, logs):
    rows = [("t" if n % 3 else "u", n % 2 if n % 3 else None, "k", f"{n:05d}") for n in range(300)]
    frame = spark.createDataFrame(rows, "topic string, partition int, key string, value string").coalesce(1)
    write(frame.selectExpr("*", "1 AS ignored", "current_timestamp() AS timestamp"), logs)
    for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
        wanted = [row[3].encode() for row in rows if row[0] == topic and (row[1] or 0) == partition]
        assert [value for _, value, _ in messages(logs, topic, partition)] == wanted


def test_a_column_of_timestamps(spark, logs):
    """A copied topic keeps its timestamps; a message without one gets the current time."""
    rows = [(f"v{n}", None if n == 3 else START_MS + n) for n in range(8)]
    frame = spark.createDataFrame(rows, "value string, ms bigint").coalesce(1)
    frame = frame.selectExpr("value", "timestamp_millis(ms) AS timestamp")
    began = time.time() * 1000
    write(frame.selectExpr("value", "cast(substr(value, 2) AS int) % 2 AS partition", "timestamp"), logs, topic="t")
    found = {}
    for partition in range(2):
        snapshot = LogDir.open_read_only(logs).log(TopicPartition("t", partition)).snapshot()
        found |= {record.value.decode(): record.timestamp for record in read_all(snapshot)}
    assert found.pop("v3") >= int(began)
    assert found == {value: ms for value, ms in rows if ms is not None}


@pytest.mark.parametrize(("given", "found"), [({}, 0), ({"kafka.compression.type": "zstd"}, 4)])
def test_compression_as_a_producer_would(spark, logs, given, found):
    """The option counts if the topic leaves the codec to producers; otherwise the topic's codec does."""
    owned = OwnedDir.open(logs)
    owned.create_topic("gzipped", 1, {"compression.type": "gzip"})
    owned.close()
    frame = spark.range(1000).selectExpr("'k' AS key", "'the same again and again' AS value").coalesce(1)
    for topic, codec in (("t", found), ("gzipped", 1)):
        write(frame, logs, topic=topic, **given)
        partition = partition_for_key(b"k", 3) if topic == "t" else 0
        snapshot = LogDir.open_read_only(logs).log(TopicPartition(topic, partition)).snapshot()
        (block, *_) = read_range(snapshot, 0)
        assert int(block.table.codec[0]) == codec


# Expressions of the columns, options, error.
REFUSED = [
    (["'x' AS value"], {}, "topic option required when no 'topic' attribute"),
    (["'x' AS key"], {"topic": "t"}, "Required attribute 'value' not found"),
    (
        ["id AS value"],
        {"topic": "t"},
        r"attribute unsupported type bigint. value must be a\(n\) string or binary",
    ),
    (["'x' AS value", "id AS partition"], {"topic": "t"}, r"type bigint. partition must be a\(n\) int"),
    (
        ["'x' AS value", "array('a') AS headers"],
        {"topic": "t"},
        r"headers attribute unsupported type array<string>. headers must be a\(n\) array<struct<key:string,value:bin",
    ),
    (["'x' AS value", "cast(null AS string) AS topic"], {}, "null topic present in the data"),
    (["'x' AS value"], {"topic": "no"}, "topics create"),
    (["'x' AS value", "9 AS partition"], {"topic": "t"}, "no partition t/9"),
    (["'x' AS value", "-2 AS partition"], {"topic": "t"}, "below 0; found -2"),
    (["'x' AS value"], {"topic": "u"}, "without a key"),
    (["repeat('x', 2000000) AS value"], {"topic": "t"}, "max.message.bytes"),
    (["'x' AS value"], {"topik": "t"}, "did you mean topic"),
]


@pytest.mark.parametrize(("columns", "options", "error"), REFUSED)
def test_what_is_refused(spark, logs, columns, options, error):
    """Nothing is written, not even the messages that other tasks had staged."""
    with pytest.raises(PySparkException, match=error):
        write(spark.range(1).selectExpr(*columns), logs, **options)
    assert not every_message(logs)


def test_only_appending(spark, logs):
    frame = spark.range(1).selectExpr("'x' AS value")
    with pytest.raises(PySparkException, match="use mode append"):
        frame.write.format("kafkafs").mode("overwrite").option("topic", "t").save(str(logs))
    with pytest.raises(PySparkException, match="no log directory"):
        write(frame, logs / "none", topic="t")


@requires_fuse
def test_a_directory_that_a_mount_serves_is_refused_by_name(spark, logs, tmp_path):
    """A mount that may write holds the lock as long as it runs; a read-only mount does not."""
    frame = spark.range(1).selectExpr("'x' AS value")
    with mounted(logs, tmp_path / "mnt", write=True) as mount:
        with pytest.raises(PySparkException, match=rf"held by .*kafkafs mount .*\(process {mount.pid}\)"):
            write(frame, logs, topic="t", lockTimeoutMs=100)
        assert not staged_files(logs)
        (mount.path / "t" / "0" / "@append").write_bytes(b"a line\n")
    with mounted(logs, tmp_path / "mnt") as mount:
        write(frame, logs, topic="t")
        texts = [(mount.path / "t" / str(number) / "messages.txt").read_bytes() for number in range(3)]
    assert sorted(b"".join(texts).splitlines()) == [b"a line", b"x"]


def test_partitions_with_replicas_take_force(spark, tmp_path):
    """A leader elsewhere would truncate what is appended to a stopped broker's log."""
    records = metadata_records("t", 2, replicas=[1, 2, 3])
    path = build_log_dir(tmp_path / "logs", {"t": [[b"old"], [b"old"]], "__cluster_metadata": [records]}).path
    frame = spark.range(20).selectExpr("cast(id AS string) AS key", "'new' AS value")
    with pytest.raises(PySparkException, match="t has 3 replicas: a leader elsewhere would truncate"):
        write(frame, path, topic="t")
    assert [len(messages(path, "t", number)) for number in range(2)] == [1, 1]
    assert not staged_files(path)
    write(frame, path, topic="t", force=True)
    found = [value for number in range(2) for _, value, _ in messages(path, "t", number)]
    assert sorted(found) == [b"new"] * 20 + [b"old"] * 2
    assert not verify_log_dir(path)


def test_one_task_of_two_that_fails(spark, logs):
    """The other task has staged its messages, or still does so when Spark gives up the write: what it stages after that
    remains, and is never committed."""
    frame = spark.range(0, 40_000, 1, 2).selectExpr(
        "cast(id AS string) AS value", "if(id = 39000, raise_error('broken'), 'k') AS key"
    )
    with pytest.raises(PySparkException, match="broken"):
        write(frame, logs, topic="t")
    wait_for_tasks(spark)
    write(spark.range(10).selectExpr("'k' AS key", "'sound' AS value"), logs, topic="t")
    assert [value for _, value, _ in every_message(logs)] == [b"sound"] * 10
    late = [names.parse_staged(file.name) for file in staged_files(logs)]
    assert len({name.write if name else None for name in late}) <= 1
    assert None not in late
    for file in staged_files(logs):
        file.unlink()


def test_a_worker_lost_in_the_middle_of_a_write(spark, logs, tmp_path):
    """Spark repeats the task; what the lost attempt had staged is never committed, and is removed after a week."""
    killed = str(tmp_path / "killed")

    @udf("string")
    def waiting(number):  # Spark tells UDFs of pandas by type hints
        """The key. Each task waits for the kill after it has written some of its messages."""
        if number % 100_000 == 90_000:
            wait_for("a worker is killed", Path(killed).exists)
        return "k"

    frame = spark.range(0, 200_000, 1, 2).select(
        expr("lpad(cast(id AS string), 100, '0')").alias("value"), waiting("id").alias("key")
    )
    ended = Event()
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(_kill_one_that_stages, _written_by_workers(), Path(killed), ended)
        try:
            write(frame, logs, topic="t")
        finally:
            ended.set()
            killing.result()
    assert Path(killed).exists(), "the write was too quick to be disturbed"
    orphans = staged_files(logs)
    assert orphans
    assert sorted(value for _, value, _ in every_message(logs)) == [b"%0100d" % number for number in range(200_000)]
    for orphan in orphans:
        assert names.parse_staged(orphan.name)
        orphan.unlink()


def _written_by_workers():
    """The bytes that each worker has written, by its process: to files and to the JVM."""
    written = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name().startswith("python"):
                written[process] = process.io_counters().write_chars
    return written


def _kill_one_that_stages(before, killed, ended):
    """Kills a worker that has written megabytes since, which only the sink's do, and then makes the file `killed`."""
    while not ended.wait(0.02):
        for process, written in _written_by_workers().items():
            if written - before.get(process, 0) > 2 << 20:
                process.kill()
                killed.touch()
                return


def test_a_write_that_comes_again_under_its_version(spark, logs):
    """It is written once, as by Delta; versions ascend, separately for each application; other rows are an error."""
    frame = spark.range(20).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")

    for version, wanted in ((0, 20), (0, 20), (7, 40), (7, 40), (0, 40)):
        write(frame.repartition(version + 1), logs, topic="t", txnAppId="daily", txnVersion=version)
        assert len(every_message(logs)) == wanted
    write(frame, logs, topic="t", txnAppId="another job, with blanks", txnVersion=0)
    write(frame, logs, topic="t", txnAppId="another job, with blanks", txnVersion=0)
    assert len(every_message(logs)) == 60
    with pytest.raises(PySparkException, match="expected 20 rows, found 19 rows"):
        write(frame.where("key != '3'"), logs, topic="t", txnAppId="daily", txnVersion=7)
    write(frame.where("key != '3'"), logs, topic="t", txnAppId="daily", txnVersion=7, onChangedReplay="drop")
    assert len(every_message(logs)) == 60
    assert not staged_files(logs)


def test_a_write_that_was_killed_in_its_commit_and_is_run_again(spark, logs, caplog):
    """The next opening completes it: with a version messages are written once, without one twice, with a warning."""
    frame = spark.range(10).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value").coalesce(1)
    for again, options in ((10, {"txnAppId": "job", "txnVersion": "1"}), (30, {})):
        batch = frame.toArrow().combine_chunks().to_batches()[0]
        writer = batch_writer({"path": str(logs), "topic": "t", **options}, frame.schema, overwrite=False)
        told = writer.write(iter([batch]))
        kill_commit(logs, lambda owned, _: commit.commit(owned, told.write, told.files, content=told.content))  # noqa: B023
        caplog.clear()
        batch_writer({"path": str(logs), "topic": "t"}, frame.schema, overwrite=False)
        assert ("its messages will be written twice" in caplog.text) == (not options)
        write(frame, logs, topic="t", **options)
        assert len(every_message(logs)) == again


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "no log directory"),
        ({"path": "/x", "force": "perhaps"}, "true or false"),
        ({"path": "/x", "txnVersion": "3"}, "go together"),
        ({"path": "/x", "txnAppId": "a", "txnVersion": "x"}, "txnVersion takes a number"),
        ({"path": "/x", "lockTimeoutMs": "soon"}, "milliseconds"),
    ],
)
def test_options_are_checked(options, error):
    with pytest.raises(InvalidOption, match=error):
        parse(options)
    assert parse({"path": "/x", "kafka.acks": "all", "TOPIC": "t"}).topic == "t"
