"""`kafkafs.open`: a scan has what real consumers read, and exactly the messages that its arguments choose."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kafkafs
from kafkafs.arrow import COLUMNS, DECODED
from storage.errors import CorruptBatch, InvalidRecord, OffsetOutOfRange, StorageError, UnsupportedFormat
from storage.format.block import Record
from storage.format.compression import Codec
from storage.types import TimestampType, TopicPartition
from tests.kafkafs.reading.decoded_golden import golden_lines, partitions
from tests.support.builders import ROLL, START_MS, STEP_MS, Batch, abort, build_log_dir, many
from tests.support.fixtures import FIXTURES, READ_UNCOMMITTED, Golden, case_params, golden_cases
from tests.support.live_log import LiveLog
from tests.support.schema_logs import schema_record

encoded = pytest.importorskip("tests.kafkafs.decoding.avro_samples", reason="no fastavro").encoded
pa = pytest.importorskip("pyarrow")

KINDS = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
DAMAGED = {"rec-c4-flip-magic", "rec-m-flip-below-recovery-point"}  # the consumer fails there, and so do we
V1 = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, {"name": "old", "type": "string"}]}
MORE = {"name": "more", "type": ["null", "string"], "default": None}
V2 = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, MORE]}
INTACT = [case for case in golden_cases() if case.topic not in DAMAGED][::6]


def records(table):
    """The rows of a scan of all columns."""
    columns = table.set_column(5, "timestamp", table.column("timestamp").cast("int64")).to_pydict()
    headers = columns.pop("headers")
    found = []
    for row, (key, value, _, _, offset, timestamp, kind) in enumerate(zip(*columns.values(), strict=True)):
        pairs = tuple((header["key"].encode(), header["value"]) for header in headers[row] or ())
        found.append(Golden(offset, timestamp, KINDS[kind], key, value, pairs))
    return found


def of_message(message):
    headers = tuple((name.encode(), value) for name, value in message.headers)
    kind = KINDS[message.timestamp_type]
    return Golden(message.offset, message.timestamp, kind, message.key, message.value, headers)


def offsets(scan):
    """The offsets by partition, in the order of the rows; all ways to read a scan must agree."""
    table = scan.to_arrow()
    assert table.num_rows == scan.count()
    found = {}
    for row in table.select(["partition", "offset"]).to_pylist():
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


@pytest.mark.parametrize("case", case_params(INTACT))
def test_fixtures_read_as_their_golden_files(case):
    partition = kafkafs.open(case.log_dir, isolation=case.isolation)[case.topic][case.partition]
    scan = partition.scan()
    table = scan.to_arrow()
    table.validate(full=True)
    wanted = case.records()
    assert records(table) == wanted
    assert scan.count() == len(wanted)
    assert [of_message(message) for message in partition.messages()] == wanted


@pytest.mark.golden
@pytest.mark.parametrize("topic", sorted(DAMAGED))
def test_damage_is_an_error_with_its_place_or_is_counted(topic):
    (case,) = (case for case in golden_cases() if case.topic == topic and case.isolation == READ_UNCOMMITTED)
    partition = kafkafs.open(case.log_dir)[case.topic][case.partition]
    for read in (partition.scan().to_arrow, partition.scan(key=b"k").count, lambda: list(partition.messages())):
        with pytest.raises((CorruptBatch, UnsupportedFormat), match=r"\.log: .* at position"):
            read()
    scan = partition.scan(on_damage="skip")
    table, seen = scan.to_arrow(), case.records()
    assert records(table)[: len(seen)] == seen
    assert scan.count() == table.num_rows > len(seen)
    (place,) = scan.skipped
    assert place.partition == TopicPartition(topic, case.partition)
    assert place.position is not None
    assert f"position {place.position}" in place.why


def log_of(path):
    """Segments, gaps, late messages, messages without a timestamp, keys, tombstones, transactions."""
    late = [Record(b"k%d" % (n % 3), b"%d" % n, (), START_MS + (40 - n) * STEP_MS) for n in range(12)]
    odd = [Record(None, None, (), -1), Record(b"k1", None), Record(b"", b"", ((b"h", None),)), Record(b"k2", b"\xff")]
    items = [
        Batch(many(10, keys=3)), ROLL, Batch(late, codec=Codec.LZ4), Batch(odd), ROLL, Batch(many(5), base_offset=40),
        Batch(many(3, keys=2), producer_id=7, transactional=True), abort(7), Batch(many(4, keys=2), codec=Codec.ZSTD),
    ]  # fmt: skip
    appended = Batch(many(6, keys=2), log_append_time_ms=START_MS + 20 * STEP_MS)
    return build_log_dir(path, {"t": [items, [], [appended, Batch(many(20))]]}, broker=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return log_of(tmp_path_factory.mktemp("log"))


def seen(built, isolation):
    return {
        number: log.records if isolation == "read_uncommitted" else log.read_committed
        for (_, number), log in built.partitions.items()
    }


def ordered(pair):
    """Not reversed, which is an error."""
    first, end = pair
    return (end, first) if first is not None and end is not None and end < first else pair


OFFSET = st.integers(0, 60) | st.none()
MOMENT = st.integers(-5, 70).map(lambda n: START_MS + n * STEP_MS // 2) | st.none()
KEYS = st.sampled_from([b"k1", b"k2", b"key-00001", b"", b"none"])


@given(
    isolation=st.sampled_from(["read_uncommitted", "read_committed"]),
    partitions=st.none() | st.sets(st.integers(0, 2)),
    span=st.none() | st.tuples(OFFSET, OFFSET).map(ordered),
    times=st.none() | st.tuples(MOMENT, MOMENT).map(ordered),
    key=st.none() | KEYS,
)
def test_a_scan_has_what_a_plain_list_has(built, isolation, partitions, span, times, key):
    def is_wanted(record):
        (start, end), (since, until) = span or (None, None), times or (None, None)
        return (
            (start or 0) <= record.offset < (99 if end is None else end)
            and ((since, until) == (None, None) or record.timestamp != -1)
            and (since is None or since <= record.timestamp)
            and (until is None or record.timestamp < until)
            and (key is None or record.key == key)
        )

    wanted = {
        number: [record.offset for record in log if is_wanted(record)]
        for number, log in seen(built, isolation).items()
        if partitions is None or number in partitions
    }
    topic = kafkafs.open(built.path, isolation=isolation)["t"]
    scan = topic.scan(partitions=partitions, offsets=span, time=times, key=key)
    assert offsets(scan) == {number: found for number, found in wanted.items() if found}
    assert scan.to_arrow().equals(scan.to_arrow()), "a scan can be read again"
    assert not scan.skipped


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_last_message_of_each_key(built, isolation):
    topic = kafkafs.open(built.path, isolation=isolation)["t"]
    wanted = {}
    for number, log in seen(built, isolation).items():
        last = {record.key: record for record in log if record.key is not None}
        wanted[number] = sorted(record.offset for record in last.values() if record.value is not None)
    assert offsets(topic.scan(latest=True)) == {number: found for number, found in wanted.items() if found}
    one = topic.scan(latest=True, key=b"k2").to_arrow()
    assert one.column("key").to_pylist() == [b"k2"]


def test_an_offset_that_is_not_in_the_log(built):
    with pytest.raises(OffsetOutOfRange, match="out of the range of t/0 at offset 99"):
        kafkafs.open(built.path)["t"][0].scan(offsets="99-")


def test_schemas_that_are_no_directory(built):
    os.mkfifo(built.path / "_schemas-0")
    with pytest.raises(StorageError, match=r"the schemas cannot be read: .*_schemas-0"):
        kafkafs.open(built.path)["t"].scan(decode=True)


def test_topics_and_partitions(built, tmp_path):
    log = kafkafs.open(built.path)
    assert list(log) == list(log.topics) == ["t"]
    assert log["t"].offsets == {0: (0, 53), 1: (0, 0), 2: (0, 26)}
    assert [partition.tp.partition for partition in log["t"]] == [0, 1, 2]
    assert log["t"].config == {}
    with pytest.raises(StorageError, match="not a log directory"):
        kafkafs.open(tmp_path)


def test_messages(built):
    topic = kafkafs.open(built.path)["t"]
    first, *_ = topic[0].messages()
    assert (first.topic, first.partition, first.offset, first.key) == ("t", 0, 0, b"key-00000")
    assert first.time == datetime.fromtimestamp(START_MS / 1000, UTC)
    assert first.timestamp_type is TimestampType.CREATE_TIME
    nothing, _, empty, _ = topic[0].messages(offsets=(22, 26))
    assert (nothing.key, nothing.value, nothing.time, nothing.headers) == (None, None, None, ())
    assert (empty.key, empty.value, empty.headers) == (b"", b"", (("h", None),))
    assert [message.offset for message in topic[0].messages(key="k1", offsets=(0, 20))] == [11, 14, 17]


def test_columns_and_types(built):
    topic = kafkafs.open(built.path)["t"]
    scan = topic.scan()
    assert tuple(scan.schema.names) == COLUMNS
    assert scan.schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert scan.schema.field("headers").type == pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    assert (scan.schema.field("key").type, scan.schema.field("value").type) == (pa.binary(), pa.binary())
    for columns in (("offset",), ("timestamp", "key")):
        chosen = topic.scan(columns=columns)
        assert chosen.schema == scan.to_arrow().select(columns).schema
        assert chosen.to_arrow().equals(scan.to_arrow().select(columns))
    assert scan.to_reader().read_all().equals(scan.to_arrow())
    assert pa.table(scan).equals(scan.to_arrow()), "the C stream interface"
    assert topic.scan(partitions=1).to_arrow().num_rows == 0


def test_text(tmp_path):
    texts = [Record("ключ".encode(), b"one"), Record(None, None), Record(b"", "é".encode())]
    split = [Record(b"k", "é".encode()[:1]), Record(b"k", "é".encode()[1:])]
    log = kafkafs.open(build_log_dir(tmp_path, {"t": [[Batch(texts), Batch(split)]]}).path)["t"]
    scan = log.scan(text=True, offsets=(0, 3), columns=("key", "value"))
    assert scan.schema.types == [pa.string(), pa.string()]
    assert scan.to_arrow().to_pydict() == {"key": ["ключ", None, ""], "value": ["one", None, "é"]}
    with pytest.raises(InvalidRecord, match=r"value of t/0 is not UTF-8: .* at offset 3"):
        log.scan(text=True).to_arrow()
    assert log.scan(text="replace", columns="value").to_arrow().column(0).to_pylist()[-2:] == ["\ufffd", "\ufffd"]
    assert log.scan(text=True, columns="key").to_arrow().num_rows == 5


def test_messages_that_are_gone_are_an_error_or_counted(tmp_path):
    items = [Batch(many(10)), ROLL, Batch(many(10)), ROLL, Batch(many(10))]
    built = build_log_dir(tmp_path, {"t": [items]}, broker=False)
    topic = kafkafs.open(built.path)["t"]
    scan, lenient = topic.scan(), topic.scan(on_damage="skip")
    for path in (built.path / "t-0").glob("00000000000000000000.*"):
        path.unlink()
    for read in (scan.to_arrow, scan.count):
        with pytest.raises(OffsetOutOfRange, match="messages 0 to 9 of t/0 are missing: the log begins at 10"):
            read()
    assert offsets(lenient) == {0: list(range(10, 30))}
    (place,) = lenient.skipped
    assert place.offsets is not None
    assert (place.offsets.start, place.offsets.end) == (0, 10)
    with pytest.raises(OffsetOutOfRange, match="messages 5 to 9 of t/0 are missing"):
        topic.scan(offsets=(5, 12))
    assert offsets(topic.scan(offsets=(None, 12))) == {0: [10, 11]}
    assert offsets(topic.scan(offsets=(5, 12), on_damage="skip")) == {0: [10, 11]}
    shutil.rmtree(built.path / "t-0")
    with pytest.raises(OffsetOutOfRange, match="the partition was removed"):
        scan.to_arrow()


def test_a_topic_that_was_made_again_is_another(tmp_path):
    path = build_log_dir(tmp_path / "log", {"t": [[Batch(many(10))]]}).path
    scan = kafkafs.open(path)["t"].scan()
    other = build_log_dir(tmp_path / "other", {"t": [[Batch(many(10))]]}).path
    (other / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    shutil.rmtree(path / "t-0")
    shutil.copytree(other / "t-0", path / "t-0")
    for read in (scan.to_arrow, scan.count):
        with pytest.raises(OffsetOutOfRange, match="deleted and created again"):
            read()


def test_several_directories_and_partitions_that_none_has(tmp_path):
    whole = build_log_dir(tmp_path / "whole", {"t": [[Batch(many(n))] for n in (5, 7, 9)]}).path
    parts = []
    for name, numbers in (("a", (0, 2)), ("b", (0, 1))):
        shutil.copytree(whole, tmp_path / name)
        for number in {0, 1, 2} - set(numbers):
            shutil.rmtree(tmp_path / name / f"t-{number}")
        parts.append(tmp_path / name)
    assert offsets(kafkafs.open(parts)["t"].scan()) == offsets(kafkafs.open(whole)["t"].scan())
    alone = kafkafs.open(parts[0])["t"]
    with pytest.raises(OffsetOutOfRange, match=r"t/1 .*not in .*partitions="):
        alone.scan()
    assert offsets(alone.scan(partitions=[0, 2])).keys() == {0, 2}
    scan = alone.scan(on_damage="skip")
    assert offsets(scan).keys() == {0, 2}
    assert [place.partition for place in scan.skipped] == [TopicPartition("t", 1)]


def test_messages_in_tiered_storage():
    log = kafkafs.open(FIXTURES / "tiered" / "log")
    tiered = []
    for partition in (partition for topic in log for partition in log[topic]):
        scan = partition.scan(on_damage="skip")
        scan.to_arrow()
        if scan.skipped:
            tiered.append(partition)
            with pytest.raises(OffsetOutOfRange, match="in tiered storage"):
                partition.scan()
            assert partition.scan(offsets=(partition.offsets[0], None)).to_arrow().num_rows == scan.count()
    assert tiered


@pytest.mark.golden
@pytest.mark.parametrize("name", partitions())
def test_decoded_texts_and_messages(name):
    topic, _, number = name.rpartition("-")
    partition = kafkafs.open(FIXTURES / "schemas" / "log")[topic][int(number)]
    rows = partition.scan(decode=True).to_arrow().to_pylist()
    assert [row["offset"] for row in rows] == [line["offset"] for line in golden_lines(name)]
    for row, message in zip(rows, partition.messages(), strict=True):
        if row["decode_error"] is None:
            found = [json.loads(row[f"{side}_json"] or "null") for side in ("key", "value")]
            assert [message.decoded_key, message.decoded] == found
        elif row["decode_error"].startswith("value: "):
            with pytest.raises(InvalidRecord, match=f"value of {topic}/{number} cannot be decoded.* at offset"):
                _ = message.decoded


def test_a_last_message_that_compaction_removes_before_it_is_read(tmp_path):
    """Its key has a later message then, which the scan does not have: without an error it would lack the key."""

    def log(name, *batches):
        items = [Batch([Record(b"%d" % offset, b"v") for offset in batch], base_offset=batch[0]) for batch in batches]
        return build_log_dir(tmp_path / name, {"t": [[items[0], ROLL, items[1]]]}, broker=False)["t", 0]

    built = log("log", [0, 1, 2], [3])
    scans = [kafkafs.open(built.path.parent)["t"].scan(latest=True, on_damage=how) for how in ("fail", "skip")]
    compacted = log("compacted", [1, 2], [3]).log(0)
    built.log(0).unlink()
    built.log(0).write_bytes(compacted.read_bytes())
    for scan in scans:
        with pytest.raises(OffsetOutOfRange, match="1 of the latest messages of t/0 were removed unread"):
            scan.to_arrow()


def test_typed_values(tmp_path):
    """As columns where the newest schema is an Avro record, whichever version wrote them."""
    records = [
        Record(b"k", encoded(1, V1, {"id": 7, "old": "x"})),
        Record(None, encoded(2, V2, {"id": 2**40, "more": "m"})),
        Record(None, None),
        Record(None, b"plain"),
    ]
    schemas = [
        schema_record("t-value", number, number, json.dumps(schema)) for number, schema in enumerate((V1, V2), 1)
    ]
    path = build_log_dir(tmp_path, {"_schemas": [schemas], "t": [[Batch(records)]], "other": [[b"x"]]}).path
    log = kafkafs.open(path)
    scan = log["t"].scan(decode=True)
    assert tuple(scan.schema.names) == (*COLUMNS, *DECODED, "value_bytes")
    assert scan.schema.field("value").type == pa.struct([("id", pa.int64()), ("more", pa.string())])
    found = scan.to_arrow().to_pydict()
    assert found["value"] == [{"id": 7, "more": None}, {"id": 2**40, "more": "m"}, None, None]
    assert found["value_json"] == ['{"id":7,"old":"x"}', f'{{"id":{2**40},"more":"m"}}', None, '"plain"']
    assert found["value_bytes"] == [None, None, None, b"plain"]
    assert found["value_schema_id"] == [1, 2, None, None]
    assert found["decode_error"] == [None, None, None, "it is not in the wire format"]
    for columns in (("value",), ("offset", "value"), ("value_json", "key"), ("decode_error",)):
        chosen = log["t"].scan(decode=True, columns=columns)
        assert chosen.to_arrow().schema == chosen.schema
        assert chosen.to_arrow().select(columns).to_pydict() == {name: found[name] for name in columns}
    assert "value_bytes" not in log["other"].scan(decode=True).schema.names
    assert log["other"].scan(decode=True).to_arrow().column("value_json").to_pylist() == ['"x"']
    assert log["t"].scan(decode=True, text=True, columns=("key", "value")).to_arrow().column(0).to_pylist()[0] == "k"


# A type, a value, the same as a default in JSON, and what a column shows of that.
KINDS_OF_FIELDS = [
    ("null", None, None, None), ("boolean", True, True, True), ("int", -7, -7, -7), ("long", 2**40, 2**40, 2**40),
    ("float", 0.5, 0.5, 0.5), ("double", 2.5, 2.5, 2.5), ("bytes", b"\xff", "\xff", b"\xff"), ("string", "x", "x", "x"),
    ({"type": "fixed", "name": "F", "size": 3}, b"abc", "abc", b"abc"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B", "B"),
    ({"type": "array", "items": "int"}, [1, 2], [1, 2], [1, 2]),
    ({"type": "map", "values": "long"}, {"k": 3}, {"k": 3}, [("k", 3)]),
    (["null", "string"], "y", None, None),
    ({"type": "record", "name": "I", "fields": [{"name": "i", "type": "int"}]}, {"i": 4}, {"i": 4}, {"i": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "default", "shown"), KINDS_OF_FIELDS, ids=str)
def test_fields_that_only_one_version_of_a_schema_has(tmp_path, kind, value, default, shown):
    """The newest version decides: a field that it lacks is passed over, and a field that it adds has its default."""
    ident = {"name": "id", "type": "int"}
    short = {"type": "record", "name": "R", "fields": [ident]}
    long = {**short, "fields": [{"name": "f", "type": kind, "default": default}, ident]}

    def read(name, older, newest, content):
        versions = enumerate((older, newest), 1)
        schemas = [schema_record("t-value", number, number, json.dumps(schema)) for number, schema in versions]
        records = [Record(None, encoded(1, older, content))]
        path = build_log_dir(tmp_path / name, {"_schemas": [schemas], "t": [[Batch(records)]]}).path
        table = kafkafs.open(path)["t"].scan(decode=True, columns=("value", "decode_error")).to_arrow()
        assert table.column("decode_error").to_pylist() == [None]
        return table.column("value")[0].as_py()

    assert read("less", long, short, {"f": value, "id": 9}) == {"id": 9}
    assert read("more", short, long, {"id": 9}) == {"f": shown, "id": 9}


@pytest.mark.golden
def test_kafkas_own_topics_need_no_schemas():
    topic = kafkafs.open(FIXTURES / "groups" / "log")["__consumer_offsets"]
    texts = topic.scan(decode=True, columns=("key_json", "value_json")).to_arrow().to_pylist()
    shown = [json.loads(row["key_json"])["name"] for row in texts]
    assert {"GroupMetadata", "OffsetCommit"} <= set(shown)
    assert [message.decoded_key["name"] for message in topic.messages()] == shown


def test_texts_of_kafkas_own_topics_are_null_where_the_message_is(tmp_path):
    rows = [Record(b"", b""), Record(b"\0\x63", None), Record(None, b"x")]
    topic = kafkafs.open(build_log_dir(tmp_path, {"__consumer_offsets": [rows]}).path)["__consumer_offsets"]
    texts = topic.scan(decode=True, columns=("key_json", "value_json")).to_arrow()
    assert texts.column("value_json").to_pylist() == ['""', None, '"x"']
    assert texts.column("key_json").to_pylist() == ['""', '"\\u0000c"', None]


def test_frames(built):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    scan = kafkafs.open(built.path)["t"].scan()
    frame = scan.to_pandas()
    assert frame["offset"].tolist() == scan.to_arrow().column("offset").to_pylist()
    assert frame["value"].tolist() == scan.to_arrow().column("value").to_pylist()
    assert str(frame["timestamp"].dtype) == "datetime64[ms, UTC]"
    assert isinstance(frame, pandas.DataFrame)
    table = scan.to_polars()
    assert table["headers"].to_list() == scan.to_arrow().column("headers").to_pylist()
    assert polars.DataFrame(scan).equals(table), "the C stream interface"


def test_what_is_not_used_is_not_imported(built):
    """pyarrow only for batches; numpy not even for `import kafkafs`."""
    code = f"""
import sys
def there(): return sorted({{"numpy", "pyarrow", "pandas", "polars", "duckdb", "pyspark"}} & set(sys.modules))
import kafkafs
print(there())
topic = kafkafs.open({str(built.path)!r})["t"]
topic.scan().count(), sum(1 for _ in topic.messages())
print(there())
topic.scan().schema
print(there())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['numpy']", "['numpy', 'pyarrow']"]


def test_without_pyarrow(built):
    """Messages and their number can be had; for batches the error names the extra."""
    code = f"""
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "pyarrow" else found(name, *more)
import kafkafs
topic = kafkafs.open({str(built.path)!r})["t"]
print(topic.scan().count() == sum(1 for _ in topic.messages()))
for read in (lambda: topic.scan().schema, lambda: topic.scan().to_dataset()):
    try:
        read()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    why = "batches and typed columns need pyarrow: pip install 'kafkafs[arrow]'"
    assert done.stdout.splitlines() == ["True", why, why]


def test_the_end_of_a_scan_is_fixed_when_it_is_made(tmp_path):
    live = LiveLog(tmp_path / "log")
    live.write(30)
    log = kafkafs.open(tmp_path / "log")
    scan = log["t"].scan()
    live.write_segments(20, 10)
    assert scan.count() == scan.to_arrow().num_rows == 30
    assert kafkafs.open(tmp_path / "log")["t"].scan().count() == 60
