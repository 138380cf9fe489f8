"""Partitions that the cluster has and a directory lacks; several directories read as one."""

import shutil

import pytest

from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.spark.session import run_to_end
from tests.support.builders import Batch, build_log_dir, many, metadata_records
from tests.support.commands import run

PySparkException = pytest.importorskip("pyspark.errors").PySparkException


NAMED = "t/1, t/2 are known to the cluster and not in"


@pytest.fixture
def parted(tmp_path):
    """Two log directories of one broker: of topic `t` the first has partition 0, the second 1 and 2; the metadata are
    in the first."""
    records = metadata_records("t", 3, replicas=[1])
    partitions = [[Batch(many(number))] for number in (5, 7, 9)]
    first = build_log_dir(tmp_path / "first", {"t": partitions, "__cluster_metadata": [records]}).path
    second = build_log_dir(tmp_path / "second", {"t": partitions}).path
    for number in (1, 2):
        shutil.rmtree(first / f"t-{number}")
    shutil.rmtree(second / "t-0")
    return first, second


def count(spark, paths, **options):
    frame = spark.read.format("kafkafs").options(**options).load(paths if isinstance(paths, list) else str(paths))
    return {row[0]: row[1] for row in frame.groupBy("partition").count().collect()}


@pytest.mark.parametrize("chosen", [{"subscribe": "t"}, {"subscribePattern": "^t"}])
def test_partitions_that_are_not_here_are_named(spark, parted, chosen, tmp_path):
    first, second = parted
    with pytest.raises(PySparkException, match=f"DataLoss: {NAMED}"):
        count(spark, first, **chosen)
    assert count(spark, first, failOnDataLoss="false", **chosen) == {0: 5}
    # Without metadata, absent partitions are found by their numbers.
    with pytest.raises(PySparkException, match="DataLoss: t/0 is known to the cluster and not in"):
        count(spark, second, **chosen)
    assert count(spark, first, assign='{"t":[0]}') == {0: 5}, "nobody asked for more"
    with pytest.raises(PySparkException, match=r"assign: t/1 is not in .*failOnDataLoss=false reads the others"):
        count(spark, first, assign='{"t":[0,1]}')
    assert count(spark, first, assign='{"t":[0,1]}', failOnDataLoss="false") == {0: 5}
    with pytest.raises(PySparkException, match=r"assign: u/0 is not in"):
        count(spark, first, assign='{"t":[0],"u":[0]}', failOnDataLoss="false")

    def stream(**options):
        frame = spark.readStream.format("kafkafs").options(**chosen, **options).load(str(first))
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_to_end(query.trigger(availableNow=True).start, 120)

    with pytest.raises(PySparkException, match=f"DataLoss: {NAMED}"):
        stream(startingOffsets="earliest")


def test_several_directories_are_read_as_one(spark, parted):
    paths = [str(path) for path in parted]
    assert count(spark, paths, subscribe="t") == {0: 5, 1: 7, 2: 9}
    assert count(spark, [f"file:{path}" for path in reversed(paths)], subscribe="t") == {0: 5, 1: 7, 2: 9}
    span = '{"t":{"0":4,"1":0,"2":8}}'
    assert count(spark, paths, subscribe="t", startingOffsets=span, minPartitions="4") == {0: 1, 1: 7, 2: 1}


@pytest.mark.parametrize(
    ("epochs", "read"),
    [((b"0\n1\n0 0\n", b"0\n1\n0 0\n"), 9), ((b"0\n2\n0 0\n4 3\n", b"0\n1\n0 0\n"), 5)],
    ids=["the longest", "the highest epoch"],
)
def test_of_replicas_one_is_read(spark, tmp_path, epochs, read):
    """A shorter replica from a later leader is read: the end of the other one would be truncated."""
    paths = []
    for name, messages, checkpoint in zip("ab", (5, 9), epochs, strict=True):
        built = build_log_dir(tmp_path / name, {"t": [[Batch(many(messages))]]})
        (built.path / "t-0" / "leader-epoch-checkpoint").write_bytes(checkpoint)
        paths.append(str(built.path))
    assert count(spark, paths, subscribe="t") == {0: read}
    assert count(spark, paths[::-1], subscribe="t") == {0: read}


def test_what_does_not_belong_together_is_refused(spark, tmp_path):
    one = build_log_dir(tmp_path / "one", {"t": [[Batch(many(3))]]}).path
    other = build_log_dir(tmp_path / "other", {"t": [[Batch(many(3))]]}).path
    properties = other / "meta.properties"
    as_it_was = properties.read_text()
    properties.write_text("node.id=1\nversion=1\ncluster.id=another\n")
    with pytest.raises(PySparkException, match="log directories of different clusters"):
        count(spark, [str(one), str(other)], subscribe="t")
    properties.write_text(as_it_was)
    (other / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    with pytest.raises(PySparkException, match="topic t is not the same in all log directories"):
        count(spark, [str(one), str(other)], subscribe="t")


@pytest.mark.usefixtures("spark")
def test_the_command_says_it_too(parted, tmp_path):
    first, _ = parted
    refused = run("spark", "export", first, tmp_path / "out")
    assert refused.exit_code == 4
    assert NAMED.removesuffix(" in") in refused.output
    assert not (tmp_path / "out").exists()
    allowed = run("spark", "export", first, tmp_path / "out", "--allow-data-loss")
    assert allowed.exit_code == 0, allowed.output
    assert "t/2 is known to the cluster and not in this directory" in allowed.output
    assert allowed.output.startswith("5 messages in 1 files")
    only_one = run("spark", "export", first, tmp_path / "one", "t/0")
    assert only_one.exit_code == 0, only_one.output
    found = [one for one in verify_log_dir(first) if one.name == "partition-absent"]
    assert [(one.path.name, one.severity) for one in found] == [("t-1", Severity.NOTE), ("t-2", Severity.NOTE)]
