"""Export on Spark: equal to the golden files, incremental, and complete whatever fails."""

import json
import shutil

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from kafkafs.reading.split_reader import Split
from kafkafs.spark.jobs.commits import CommitList, committed_sets
from kafkafs.spark.jobs.export import ExportOptions, ExportTask, export, export_splits
from storage.append.appender import Appender
from storage.errors import CorruptBatch, NotPermitted, OffsetOutOfRange, StorageError
from storage.format.block import Record
from storage.types import Isolation, TopicPartition
from storage.verify.verify import verify_log_dir
from tests.spark.jobs.exported import CallingDisk, LethalDisk, read_quarantine, read_table
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many
from tests.support.commands import run
from tests.support.damaged_bytes import flip, overwrite
from tests.support.fixtures import READ_COMMITTED, golden_cases, requires_fixtures
from tests.support.owned_dirs import opened

TP = TopicPartition("t", 0)


def values(rows):
    return [(row.offset, row.key, row.value) for row in rows]


def built_values(built):
    return [(record.offset, record.key, record.value) for record in built.records]


def a_log(path, segments=4):
    """A partition of a few segments, each of a few batches, with small indexes between them."""
    items = []
    for _ in range(segments):
        items += [Batch(many(50, keys=7)) for _ in range(4)] + [ROLL]
    return build_log_dir(path, {"t": [Partition(items[:-1], index_interval_bytes=512)]})


def test_exports_of_another_form_are_refused(spark, tmp_path):
    """In a mixture, readers see the column or not by chance; the refused export writes nothing."""
    built = a_log(tmp_path / "log", 1)
    out = tmp_path / "out"
    first = export(spark, built.path, out, options=ExportOptions(headers=True))
    append = opened(built.path)
    assert Appender(append.log(TP), clock=append.clock).append([Record(None, b"more")]).error is None
    append.close()
    files = sorted(out.rglob("*"))
    for other in (ExportOptions(), ExportOptions(headers=True, isolation=Isolation.READ_COMMITTED)):
        with pytest.raises(NotPermitted, match="expected with headers, read_uncommitted, found"):
            export(spark, built.path, out, options=other)
        assert sorted(out.rglob("*")) == files
    refused = run("spark", "export", str(built.path), str(out))
    assert refused.exit_code == 4
    assert "found without headers" in refused.stderr
    again = export(spark, built.path, out, options=ExportOptions(headers=True, compression="zstd"))
    assert (first.messages, again.messages) == (200, 1)
    # Sets of older versions do not store the form: the next set does.
    (book,) = [path for path in sorted((out / "_export" / "sets").iterdir()) if path.name.endswith("2.json")]
    document = json.loads(book.read_text())
    del document["form"]
    book.write_text(json.dumps(document))
    export(spark, built.path, out)


@requires_fixtures
def test_a_fixture_equals_its_golden_file(spark, tmp_path):
    """All the others: tests/kafkafs/arrow, which reads with the same code."""
    cases = [case for case in golden_cases() if (case.fixture, case.isolation) == ("transactions", READ_COMMITTED)]
    options = ExportOptions(isolation=Isolation.READ_COMMITTED, headers=True)
    chosen = [TopicPartition(case.topic, case.partition) for case in cases]
    done = export(spark, cases[0].log_dir, tmp_path, chosen, options)
    table = read_table(tmp_path)
    for case, tp in zip(cases, chosen, strict=True):
        golden = [
            (*record[:2], 0, *record[3:5], [(name.decode(), value) for name, value in record.headers] or None)
            for record in case.records()
        ]
        assert [tuple(row[:6]) for row in table.get(tp, [])] == golden, case
    assert done.messages == sum(len(rows) for rows in table.values())


def test_read_back_with_spark(spark, tmp_path):
    day = 86_400_000
    records = [Record(b"k", b"%d" % n, (), stamp) for n, stamp in enumerate([day, -1, 2 * day, day + 1])]
    build_log_dir(tmp_path / "log", {"a": [[Batch(records)]], "b": [[Batch(records)], [Batch(records)]]})
    export(spark, tmp_path / "log", tmp_path / "out")
    table = spark.read.parquet(str(tmp_path / "out"))
    assert [(field.name, field.dataType.simpleString()) for field in table.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("topic", "string"),
        ("day", "date"),
    ]
    rows = table.selectExpr("topic", "partition", "offset", "string(value)", "unix_millis(timestamp)", "string(day)")
    expected = [
        (topic, partition, n, str(n), stamp, {-1: None}.get(stamp, f"1970-01-0{stamp // day + 1}"))
        for topic, partition in (("a", 0), ("b", 0), ("b", 1))
        for n, stamp in enumerate([day, -1, 2 * day, day + 1])
    ]
    assert sorted(tuple(row) for row in rows.collect()) == sorted(expected, key=lambda row: row[:3])


def test_incremental(spark, tmp_path):
    """Each run exports the new messages, and none twice."""
    log, out = tmp_path / "log", tmp_path / "out"
    tps = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
    owned = opened(log)
    owned.create_topic("t", 2)
    owned.create_topic("u", 1)
    expected = {tp: [] for tp in tps}

    def append(tp, count):
        added = [b"%d" % (len(expected[tp]) + n) for n in range(count)]
        result = Appender(owned.appendable(tp), clock=owned.clock).append([Record(None, value) for value in added])
        assert result.error is None
        expected[tp] += added

    for counts in ((5, 0, 3), (0, 0, 0), (1, 4, 0), (2, 2, 2)):
        for tp, count in zip(tps, counts, strict=True):
            append(tp, count)
        done = export(spark, log, out)
        assert done.messages == sum(counts)
        assert done.sets == (1 if sum(counts) else 0)
        table = read_table(out)
        assert {tp: [row.value for row in rows] for tp, rows in table.items()} == {
            tp: values for tp, values in expected.items() if values
        }
        assert done.positions == {tp: len(values) for tp, values in expected.items() if values}
    owned.close()
    assert len(committed_sets(out)) == 3
    assert verify_log_dir(log) == []


def test_damage_fails_or_is_quarantined(spark, tmp_path):
    built = a_log(tmp_path / "log")
    partition = built["t", 0]
    bad = partition.batches[5]
    path = partition.path / f"{bad.segment:020}.log"
    flip(path, bad.position + 100)
    with pytest.raises(CorruptBatch, match="checksum"):
        export(spark, tmp_path / "log", tmp_path / "out")
    assert read_table(tmp_path / "out") == {}
    assert not committed_sets(tmp_path / "out")

    done = export(spark, tmp_path / "log", tmp_path / "out", options=ExportOptions(keep_damage=True))
    lost = range(bad.stored.base_offset, bad.stored.last_offset + 1)
    intact = [row for row in built_values(partition) if row[0] not in lost]
    assert values(read_table(tmp_path / "out")[TP]) == intact
    (row,) = read_quarantine(tmp_path / "out")
    assert row["raw"] == path.read_bytes()[bad.position : bad.position + bad.size]
    assert (row["file"], row["position"], row["size"]) == (str(path), bad.position, bad.size)
    assert (row["partition"], row["firstOffset"], row["lastOffset"]) == (0, lost[0], lost[-1])
    assert "batch checksum differs" in row["error"]
    (told,) = done.quarantined
    assert (told.first_offset, told.last_offset) == (lost[0], lost[-1])
    table = spark.read.parquet(str(tmp_path / "out" / "_quarantine"))
    assert [tuple(found) for found in table.select("topic", "firstOffset").collect()] == [("t", lost[0])]
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(intact)


def test_garbage_between_batches_is_quarantined(spark, tmp_path):
    """Bytes that are not a batch, found by the tasks on both sides of a split: one row with all bytes."""
    built = a_log(tmp_path / "log", 1)
    partition = built["t", 0]
    bad = partition.batches[1]
    path = partition.log()
    overwrite(path, bad.position, bytes(bad.size))
    options = ExportOptions(keep_damage=True, task_bytes=1000)
    done = export(spark, tmp_path / "log", tmp_path / "out", options=options)
    lost = range(bad.stored.base_offset, bad.stored.last_offset + 1)
    assert values(read_table(tmp_path / "out")[TP]) == [row for row in built_values(partition) if row[0] not in lost]
    (row,) = read_quarantine(tmp_path / "out")
    assert (row["position"], row["raw"]) == (bad.position, bytes(bad.size))
    assert (row["firstOffset"], row["lastOffset"]) == (lost[0], lost[-1])
    assert len(done.quarantined) == 1


def test_retention_while_a_task_reads(tmp_path):
    """Segments are removed between two writes of a task: what was read is exported, the loss is reported or fails."""
    built = a_log(tmp_path / "log")
    shutil.copytree(built.path, tmp_path / "copy")
    partition = built["t", 0]
    staging = tmp_path / "staging"
    staging.mkdir()

    def retain(_path):
        for base in partition.segments[1:3]:
            for file in partition.path.glob(f"{base:020}.*"):
                file.rename(file.with_name(file.name + ".deleted"))
                file.with_name(file.name + ".deleted").unlink()
        for file in partition.path.glob(f"{partition.segments[0]:020}.*"):
            file.unlink()

    def task(options):
        return ExportTask(
            built.path, staging, (Split(TP, 0, partition.log_end_offset, 0),), options, CallingDisk(retain)
        )

    # The first write comes before anything is read from the second segment: a row group of few bytes.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kafkafs.spark.jobs.parquet_files.ROW_GROUP_BYTES", 1)
        with pytest.raises(OffsetOutOfRange, match="were removed before they were exported"):
            export_splits(task(ExportOptions()))
        shutil.rmtree(built.path)
        shutil.copytree(tmp_path / "copy", built.path)
        outcome = export_splits(task(ExportOptions(allow_loss=True)))
    (lost,) = outcome.lost
    assert lost.tp == TP
    assert lost.offsets.start == partition.segments[1]
    assert lost.offsets.end == partition.segments[3]
    assert sum(file.rows for file in outcome.files) == len(partition.records) - 400


def test_retention_between_runs(spark, tmp_path):
    built = a_log(tmp_path / "log")
    partition = built["t", 0]
    whole = built_values(partition)
    chosen = [TP]
    export(spark, tmp_path / "log", tmp_path / "out", chosen)
    # A longer log of the same topic, whose first segments were removed meanwhile.
    shutil.rmtree(partition.path)
    longer = a_log(tmp_path / "longer", 8)["t", 0]
    for base in longer.segments[:6]:
        for file in longer.path.glob(f"{base:020}.*"):
            file.unlink()
    longer.path.rename(partition.path)
    with pytest.raises(OffsetOutOfRange, match="were removed before they were exported"):
        export(spark, tmp_path / "log", tmp_path / "out", chosen)
    done = export(spark, tmp_path / "log", tmp_path / "out", chosen, ExportOptions(allow_loss=True))
    rest = [row for row in built_values(longer) if row[0] >= longer.segments[6]]
    assert values(read_table(tmp_path / "out")[TP]) == whole + rest
    (lost,) = done.lost
    assert (lost.offsets.start, lost.offsets.end) == (partition.log_end_offset, longer.segments[6])
    assert [part.lost for part in committed_sets(tmp_path / "out")[-1].ranges] == [(lost.offsets,)]


@pytest.mark.parametrize("at", [1, 3, 8])
def test_a_worker_dies(spark, tmp_path, at):
    """Killed at a write: Spark repeats the task, and files staged by the first attempt never become visible."""
    built = a_log(tmp_path / "log")
    (tmp_path / "marks").mkdir()
    disk = LethalDisk(tmp_path / "marks", at)
    export(spark, tmp_path / "log", tmp_path / "out", options=ExportOptions(task_bytes=4000), disk=disk)
    assert len(list((tmp_path / "marks").iterdir())) == 1
    assert values(read_table(tmp_path / "out")[TP]) == built_values(built["t", 0])
    assert not list((tmp_path / "out/_export/staging").iterdir())


def test_refusals(spark, tmp_path, monkeypatch):
    log, out = tmp_path / "log", tmp_path / "out"
    build_log_dir(log, {"t": [[Batch(many(5))]], "__internal": [[Batch(many(5))]]})
    with pytest.raises(NotPermitted, match="inside the log directory"):
        export(spark, log, log / "out")
    assert not (log / "out").exists()
    assert export(spark, log, out).positions == {TP: 5}
    shutil.rmtree(log)
    build_log_dir(log, {"t": [[Batch(many(3))]]})
    with pytest.raises(OffsetOutOfRange, match="ends before the last exported message"):
        export(spark, log, out)
    shutil.rmtree(log)
    owned = opened(log)
    owned.create_topic("t", 1)
    owned.close()
    with pytest.raises(StorageError, match="deleted and created again"):
        export(spark, log, out)
    with pytest.raises(ValueError, match="unknown compression 'lzo'"):
        ExportOptions(compression="lzo")


def test_timestamps_beyond_all_dates(spark, tmp_path):
    """Microseconds cannot express them: null, and reported; the other messages are unchanged, in order."""
    stamps = [2**62, 1_700_000_000_000, -1, 2**63 - 1, 10**15, (2**63 - 1) // 1000]
    batches = [Batch([Record(None, b"%d" % n, (), stamp)]) for n, stamp in enumerate(stamps)]
    build_log_dir(tmp_path / "log", {"t": [batches]})
    done = export(spark, tmp_path / "log", tmp_path / "out")
    assert done.messages == len(stamps)
    assert done.undated == {TP: 2}
    rows = spark.read.parquet(str(tmp_path / "out")).selectExpr("offset", "unix_millis(timestamp)", "string(day)")
    micros = (2**63 - 1) // 1000
    assert sorted(map(tuple, rows.collect())) == [
        (0, None, None),
        (1, 1_700_000_000_000, "2023-11-14"),
        (2, -1, None),
        (3, None, None),
        (4, 10**15, None),
        (5, micros, None),
    ]
    (undated,) = (tmp_path / "out" / "topic=t").glob("day=__HIVE*/*.parquet")
    assert parquet.read_table(undated, partitioning=None)["offset"].to_pylist() == [0, 2, 3, 4, 5]
    result = run("spark", "export", tmp_path / "log", tmp_path / "again")
    assert "t/0: 2 messages have a timestamp outside the range of dates" in result.stderr


def test_topics_that_are_numbers(spark, tmp_path):
    """Read with a schema, as the example does, they keep their names."""
    build_log_dir(tmp_path / "log", {"007": [[b"x"]], "12": [[b"y"]]})
    export(spark, tmp_path / "log", tmp_path / "out")
    table = spark.read.schema("topic string, day date, value binary").parquet(str(tmp_path / "out"))
    assert sorted((row.topic, bytes(row.value)) for row in table.collect()) == [("007", b"x"), ("12", b"y")]
    schema = pa.schema([("topic", pa.string()), ("day", pa.string())])
    found = dataset.dataset(tmp_path / "out", partitioning=dataset.partitioning(schema, flavor="hive")).to_table()
    assert sorted(found["topic"].to_pylist()) == ["007", "12"]


def test_the_command(spark, tmp_path):
    """Runs in the existing session; exit codes, and messages about damage."""
    built = a_log(tmp_path / "log", 2)
    bad = built["t", 0].batches[5]
    flip(built["t", 0].path / f"{bad.segment:020}.log", bad.position + 100)
    failed = run("spark", "export", tmp_path / "log", tmp_path / "out")
    assert failed.exit_code == 4
    assert "batch checksum differs" in failed.stderr
    done = run("spark", "export", tmp_path / "log", tmp_path / "out", "t/0", "--damage", "quarantine", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["messages"], document["positions"][0]["next_offset"]) == (350, 400)
    (told,) = document["quarantined"]
    assert (told["position"], told["first_offset"], told["last_offset"]) == (bad.position, 250, 299)
    again = run("spark", "export", tmp_path / "log", tmp_path / "out")
    assert again.stdout.startswith("0 messages in 0 files")
    held = CommitList(tmp_path / "out")
    assert run("spark", "export", tmp_path / "log", tmp_path / "out").exit_code == 3
    held.close()
    assert run("spark", "export", tmp_path / "log", tmp_path / "out", "--conf", "wrong").exit_code == 2
    assert run("spark", "export", tmp_path / "log", tmp_path / "out", "nothing").exit_code == 4
