"""The digest of a micro-batch: it does not depend on how tasks divide the rows, and changes if a row differs."""

import pytest

from storage.files.commit_ledger import ContentSum
from storage.format.block import Record, RecordColumns

content_of = pytest.importorskip("kafkafs.spark.staged_task").content_of

ROWS = [
    Record(b"k1", b"v1"),
    Record(b"k1", b"v1"),
    Record(None, b"v1"),
    Record(b"", b"v1"),
    Record(b"v1", b"k1"),
    Record(b"k2", None),
    Record(b"k2", b""),
    Record(b"k2", b"x", [(b"h", b"y")]),
    Record(b"k2", b"x", [(b"h", None)]),
    Record(b"k2", b"x" * 1000),
]


def of(rows, topic="t"):
    return content_of(RecordColumns.from_records(rows), topic)


def test_order_shares_and_times_make_no_difference():
    whole = of(ROWS)
    assert whole.records == len(ROWS)
    assert of(ROWS[::-1]) == whole
    assert of(ROWS[:3]).plus(of(ROWS[3:])) == whole
    assert of([row._replace(timestamp=5) for row in ROWS]) == whole
    total = ContentSum()
    for row in ROWS:
        total = total.plus(of([row]))
    assert total == whole


def test_each_difference_shows():
    """Also null and empty, key and value exchanged, and the topic."""
    alone = [of([row]).digest for row in ROWS[1:]]
    assert len(set(alone)) == len(alone)
    assert of(ROWS, "u").digest != of(ROWS, "t").digest
    assert of([Record(None, None)], "u") != of([Record(None, None)], "t")
    assert of([Record(b"a", b"1"), Record(b"b", b"2")]) != of([Record(b"a", b"2"), Record(b"b", b"1")])


def test_the_number_is_always_the_same():
    """The digest is stored on disk."""
    assert of(ROWS) == ContentSum(10, 17989956795884016002)
