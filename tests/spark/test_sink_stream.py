"""Streaming into a log directory: each message once, whatever is killed and whenever.

The queries run in drivers of their own (`streaming_driver.py`), which are killed with all that they started.
"""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.append.appender import Appender
from storage.directory.owned_dir import Opening, OwnedDir
from storage.files import commit_ledger, names
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.spark.session import new_spark, run_to_end
from tests.spark.streaming_driver import copying
from tests.support.readers import read_all
from tests.support.waiting import wait_for

StreamingQueryException = pytest.importorskip("pyspark.errors").StreamingQueryException


DRIVER = Path(__file__).with_name("streaming_driver.py")
ROOT = Path(__file__).resolve().parents[2]
BATCH = 400  # messages of a micro-batch
BATCHES = 3  # that come each round
PARTITIONS = 3


def made(path, topic, partitions):
    owned = OwnedDir.open(path, Opening(create=True))
    owned.create_topic(topic, partitions, {"segment.bytes": "60000"})
    assert owned.close().clean


def appended(path, first, count):
    """Messages with their numbers as values, to the two partitions of `in`."""
    owned = OwnedDir.open(path)
    for partition in range(2):
        records = [
            Record(b"k%d" % (number % 50), b"%08d" % number)
            for number in range(first, first + count)
            if number % 2 == partition
        ]
        outcome = Appender(owned.appendable(TopicPartition("in", partition)), clock=owned.clock).append(records)
        assert outcome.error is None
    assert owned.close().clean


def values(path):
    """What a reader sees in `out`, in order within each partition; damaged or incomplete batches are an error."""
    return [int(record.value) for partition in range(PARTITIONS) for record in records(path, partition)]


def records(path, partition):
    return read_all(LogDir.open_read_only(path).log(TopicPartition("out", partition)).snapshot())


def _started(place, _batch):
    return b"query started" in (place / "driver.log").read_bytes()


def _planned(place, batch):
    return (place / "checkpoint" / "offsets" / str(batch)).exists()


def _staged(place, batch):
    return _planned(place, batch) and any((place / "sink").rglob("*" + names.STAGED_SUFFIX))


def _committed(place, batch):
    written = commit_ledger.read(place / "sink")
    return any(query.batch >= batch for query in written.queries.values())


# When a driver is killed: what it has done, and in which of the micro-batches that the round brings.
MOMENTS = [(_started, 0), (_planned, 1), (_staged, 1), (_committed, 1)]


@new_spark
@pytest.mark.timeout(480 + 180 * len(MOMENTS))
def test_a_killed_query_writes_each_message_once(tmp_path):
    """Each round adds messages and kills the driver, its JVM and its workers at another moment; the next round
    continues. Meanwhile a reader never sees a message twice."""
    made(tmp_path / "source", "in", 2)
    made(tmp_path / "sink", "out", PARTITIONS)
    total = 0
    for reached, further in MOMENTS:
        appended(tmp_path / "source", total, BATCHES * BATCH)
        total += BATCHES * BATCH
        offsets = tmp_path / "checkpoint" / "offsets"
        batch = further + (sum(path.name.isdigit() for path in offsets.iterdir()) if offsets.exists() else 0)
        with _driver(tmp_path) as driver:
            _wait_for(reached, batch, driver, tmp_path)
        seen = values(tmp_path / "sink")
        assert len(seen) == len(set(seen)), reached
    with _driver(tmp_path) as driver:
        assert driver.wait(timeout=240 + 60 * len(MOMENTS)) == 0, (tmp_path / "driver.log").read_text()
    assert sorted(values(tmp_path / "sink")) == list(range(total))
    for partition in range(PARTITIONS):
        _check_order(tmp_path / "sink", partition)
    assert commit_ledger.read(tmp_path / "sink").pending == ()
    owned = OwnedDir.open(tmp_path / "sink")  # which removes what killed tasks had staged
    for tp in owned.partitions():
        owned.log(tp)
    assert owned.close().clean
    assert not verify_log_dir(tmp_path / "sink")
    assert not list((tmp_path / "sink").rglob("*" + names.STAGED_SUFFIX))


def _check_order(path, partition):
    """Each key's messages are in the order of the source."""
    last = {}
    for record in records(path, partition):
        assert int(record.value) > last.get(record.key, -1)
        last[record.key] = int(record.value)


@contextmanager
def _driver(place):
    """A driver in a new session, which writes its output to `driver.log`. At the end it is killed if it still runs."""
    with (place / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, str(DRIVER), str(place), str(BATCH)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
            cwd=ROOT,
        )
    try:
        yield driver
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def _wait_for(reached, batch, driver, place):
    """Returns when the driver has done that in the micro-batch; fails if the driver ends before."""

    def done():
        assert driver.poll() is None, (place / "driver.log").read_text()
        return reached(place, batch)

    wait_for(f"{reached.__name__} of batch {batch}", done)


def test_a_checkpoint_that_is_put_back_and_plans_other_batches(spark, tmp_path):
    """If the batch were silently dropped, its additional rows would be lost."""
    made(tmp_path / "source", "in", 2)
    made(tmp_path / "sink", "out", PARTITIONS)
    appended(tmp_path / "source", 0, 3 * BATCH)
    _run(spark, tmp_path)
    for kind in ("commits", "offsets"):
        for number in (1, 2):
            (tmp_path / "checkpoint" / kind / str(number)).unlink()
            (tmp_path / "checkpoint" / kind / f".{number}.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match=f"expected {BATCH} rows, found {2 * BATCH} rows"):
        run_to_end(lambda: copying(spark, tmp_path, 3 * BATCH), 120)
    assert sorted(values(tmp_path / "sink")) == list(range(3 * BATCH)), "nothing is written twice"
    assert not list((tmp_path / "sink").rglob("*" + names.STAGED_SUFFIX))
    dropping = copying(spark, tmp_path, 3 * BATCH, onChangedReplay="drop")
    assert dropping.awaitTermination(120)
    assert sorted(values(tmp_path / "sink")) == list(range(3 * BATCH))


def _run(spark, place):
    run_to_end(lambda: copying(spark, place, BATCH), 120)
