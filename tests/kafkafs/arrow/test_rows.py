"""Blocks become Arrow batches that hold the same records, within their bounds."""

import pyarrow as pa
import pytest

from kafkafs.arrow import rows
from kafkafs.arrow.rows import TYPES, arrow_batches, arrow_schema
from storage.format.block import Record
from storage.format.compression import Codec
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import TopicPartition
from tests.support.builders import Batch, build_log_dir, many

ALL = list(TYPES)
TP = TopicPartition("t", 0)


def parts(path, **read):
    log_dir = LogDir.open_read_only(path)
    for topic in log_dir.topics():
        for partition in log_dir.partitions(topic):
            tp = TopicPartition(topic, partition)
            snapshot = log_dir.log(tp).snapshot()
            for block in read_range(snapshot, snapshot.log_start_offset, **read):
                yield tp, block


def expected(tp, records):
    names = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    rows = []
    for record in records:
        headers = [{"key": name.decode(errors="replace"), "value": value} for name, value in record.headers]
        facts = (
            record.key,
            record.value,
            tp.topic,
            tp.partition,
            record.offset,
            record.timestamp * 1000,
            0,
            headers or None,
        )
        rows.append(dict(zip(names, facts, strict=True)))
    return rows


def as_rows(batches):
    table = pa.Table.from_batches(batches, arrow_schema(ALL))
    stamps = table.column("timestamp").cast(pa.int64())
    return table.set_column(table.schema.get_field_index("timestamp"), "timestamp", stamps).to_pylist()


ODD = [
    Record(None, None),
    Record(b"", b""),
    Record(b"k", None, ((b"h", b"x"), (b"h", None), (b"", b""))),
    Record(None, b"v", ((b"\xff\xfe", b"\xff"),)),
    Record(b"a" * 300, b"b" * 70_000, tuple((b"n%d" % number, b"x" * number) for number in range(150))),
    Record(b"split", b"", (("é".encode()[:1], b"1"), ("é".encode()[1:], b"2"))),
    Record(b"last", b"one", (("ключ".encode(), "é".encode()),)),
]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_all_columns(tmp_path, codec):
    items = [Batch(ODD, codec=codec), Batch(many(50, headers=((b"h", b"1"),)), codec=codec), Batch(many(9))]
    built = build_log_dir(tmp_path, {"t": [items, [b"one"]], "u": [[], [b"two"]]})
    batches = list(arrow_batches(parts(tmp_path), ALL))
    wanted = []
    for (topic, partition), log in built.partitions.items():
        wanted += expected(TopicPartition(topic, partition), log.records)
    assert as_rows(batches) == wanted
    assert len(batches) == 1
    batches[0].validate(full=True)


def test_large_rows_make_short_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "LEAST_BYTES", 100_000)
    monkeypatch.setattr(rows, "MOST_BYTES", 120_000)
    sizes = [10, 50_000, 60_000, 60_000, 1, 500_000, 1, 1, 119_998, 3, 99_999]
    built = build_log_dir(tmp_path, {"t": [[Batch([Record(None, b"v" * size, ((b"h", b""),)) for size in sizes])]]})
    batches = list(arrow_batches(parts(tmp_path), ALL))
    assert as_rows(batches) == expected(TP, built["t", 0].records)
    assert [batch.column("value").to_pylist() for batch in batches] == [
        [b"v" * size for size in part]
        for part in ([10, 50_000, 60_000], [60_000, 1], [500_000], [1, 1], [119_998], [3, 99_999])
    ]


def test_batches_own_their_memory(tmp_path):
    """Each batch is complete when it is yielded, and does not change while others are built."""
    build_log_dir(tmp_path, {"t": [[Batch(many(15_000, 64), codec=Codec.ZSTD) for _ in range(4)]]})
    batches, copies = [], []
    for batch in arrow_batches(parts(tmp_path), ALL):
        batches.append(batch)
        copies.append(pa.ipc.read_record_batch(batch.serialize(), batch.schema))
    assert len(batches) == 4
    assert batches == copies


def test_a_timestamp_that_does_not_fit(tmp_path):
    far = 2**63 // 1000 + 1
    build_log_dir(tmp_path, {"t": [[Batch([Record(None, b"", (), 5), Record(None, b"", (), far)])]]})
    with pytest.raises(OverflowError, match=f"timestamp {far} of offset 1 in t/0"):
        list(arrow_batches(parts(tmp_path), ALL))
    (batch,) = arrow_batches(parts(tmp_path), ["offset"])
    assert batch.column(0).to_pylist() == [0, 1]
