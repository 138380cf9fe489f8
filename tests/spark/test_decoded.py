"""The option `decode`: the columns of decoded keys and values, in process and through Spark."""

import json

import pytest

from kafkafs.arrow import block_texts, rows
from kafkafs.arrow.block_texts import Decoding
from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.arrow.rows import arrow_batches
from kafkafs.arrow.topic_schemas import schemas_for
from kafkafs.schemas.log_schemas import LogSchemas
from kafkafs.schemas.places import OWN_SCHEMAS
from kafkafs.schemas.sources import schemas_at
from kafkafs.spark.options import COLUMNS, DECODED
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import TopicPartition
from tests.spark.session import run_to_end
from tests.support.builders import Batch, build_log_dir
from tests.support.schema_logs import START_MS, avro_string, framed, schema_record

LONGS = '{"type":"array","items":"long"}'


def test_large_texts_make_short_batches(tmp_path, monkeypatch):
    """A few bytes may decode to a text a thousand times as long."""
    monkeypatch.setattr(rows, "LEAST_BYTES", 100_000)
    monkeypatch.setattr(block_texts, "LARGE_BYTES", 10_000)
    zeros = b"\xd0\x0f" + bytes(1000) + b"\0"  # a block of 1,000 longs, which are 0
    many = [Record(None, framed(1, zeros)) for _ in range(500)]
    build_log_dir(tmp_path, {"_schemas": [[schema_record("t-value", 1, 1, LONGS)]], "t": [[Batch(many)]]})
    log_dir = LogDir.open_read_only(tmp_path)
    tp = TopicPartition("t", 0)
    parts = ((tp, block) for block in read_range(log_dir.log(tp).snapshot(), 0))
    batches = list(arrow_batches(parts, ("value_json",), Decoding(LogSchemas(log_dir))))
    assert sum(len(batch) for batch in batches) == 500
    assert len(batches) >= 8
    assert max(batch.nbytes for batch in batches) < 200_000
    assert json.loads(batches[-1].column(0)[0].as_py()) == [0] * 1000


@pytest.fixture
def logs(tmp_path):
    path = tmp_path / "logs"
    values = [framed(1, avro_string("one")), b"plain", framed(9, b"x"), None]
    topic = [Record(b"k", value, (), START_MS) for value in values]
    build_log_dir(path, {"_schemas": [[schema_record("t-value", 1, 1)]], "t": [[Batch(topic)]]})
    return path


EXPECTED = [
    ('"k"', '"one"', None, 1, False),
    ('"k"', '"plain"', None, None, False),
    ('"k"', '"\\u0000\\u0000\\u0000\\u0000\\tx"', None, 9, True),
    ('"k"', None, None, None, False),
]


def test_in_a_query(spark, logs):
    frame = spark.read.format("kafkafs").options(subscribe="t", decode="true").load(str(logs)).orderBy("offset")
    assert frame.columns == [*COLUMNS[:-1], *DECODED]
    found = [
        (row.key_json, row.value_json, row.key_schema_id, row.value_schema_id, row.decode_error is not None)
        for row in frame.collect()
    ]
    assert found == EXPECTED
    only = spark.read.format("kafkafs").options(subscribe="t", columns="value_json").load(str(logs))
    assert sorted(row.value_json or "" for row in only.collect()) == sorted(row[1] or "" for row in EXPECTED)


def test_schemas_of_another_place(spark, logs, tmp_path):
    bare = tmp_path / "bare"
    build_log_dir(bare, {"t": [[framed(1, avro_string("here"))]]})
    options = {"subscribe": "t", "columns": "value_json"}
    frame = spark.read.format("kafkafs").options(**options, schemas=str(logs)).load(str(bare))
    assert [row.value_json for row in frame.collect()] == ['"here"']
    with pytest.raises(Exception, match="there are no schemas in"):
        spark.read.format("kafkafs").options(**options).load(str(bare)).collect()


def test_files_of_topics(spark, tmp_path):
    build_log_dir(tmp_path / "bare", {"t": [[avro_string("a")]], "u": [[b"\6"]]})
    named = [f"{topic}={tmp_path}/{topic}.avsc" for topic in "tu"]
    (tmp_path / "t.avsc").write_text('"string"')
    (tmp_path / "u.avsc").write_text('"long"')
    options = {"subscribe": "t,u", "columns": "topic,value_json,value_schema_id"}
    for schemas, expected in ((json.dumps(named), ['"a"', "3"]), (named[0], ['"a"', '"\\u0006"'])):
        frame = spark.read.format("kafkafs").options(**options, schemas=schemas).load(str(tmp_path / "bare"))
        assert [row.value_json for row in frame.orderBy("topic").collect()] == expected
        assert {row.value_schema_id for row in frame.collect()} == {None}


def test_several_directories(logs, tmp_path):
    other = tmp_path / "other"
    build_log_dir(other, {"u": [[b"v"]]})
    assert list(schemas_for((other, logs), OWN_SCHEMAS).registry().ids()) == [1]
    assert schemas_at(logs).registry()
    with pytest.raises(InvalidOption, match="decode needs the topic _schemas there"):
        schemas_for((other,), OWN_SCHEMAS)


def test_in_a_stream(spark, logs, tmp_path):
    options = {"subscribe": "t", "startingOffsets": "earliest", "columns": "offset,value_json"}
    frame = spark.readStream.format("kafkafs").options(**options).load(str(logs))
    query = frame.writeStream.format("json").option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_to_end(lambda: query.trigger(availableNow=True).start(str(tmp_path / "out")), 120)
    found = spark.read.schema("offset long, value_json string").json(str(tmp_path / "out")).orderBy("offset").collect()
    assert [row.value_json for row in found] == [row[1] for row in EXPECTED]
