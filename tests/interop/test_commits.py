"""A real broker on what a commit wrote, and on what one left that was killed: of each partition's share it serves all
or nothing, it is not disturbed by what waits, and what it did not get it gets when we open the directory again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.clock import SystemClock
from storage.directory.owned_dir import Opening, OwnedDir
from storage.files import commit_ledger, names
from storage.files.commit_ledger import StagedBatchFile, WriteId
from storage.files.disk import RealDisk
from storage.files.disk_protocol import Disk
from storage.format.block import Record, RecordColumns
from storage.log.log_dir import LogDir
from storage.staged_writes import commit
from storage.staged_writes.staging import StagedFileWriter
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.interop.adoption import adopted_as_it_is, dumps_without_a_finding, told_since
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka
from tests.support.faults import Crash, FaultyDisk

pytestmark = [requires_kafka]

SMALL = TopicPartition("written", 0)
LARGE = TopicPartition("written", 1)  # its share takes several segments
QUERY = "0a8e7a3b-9d1b-4f0e-8c3d-2b1a0f9e8d7c"
SHARES = {SMALL: 30, LARGE: 400}


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Broker]:
    """A broker with a topic of two partitions, a message in each; stopped."""
    broker = Broker(tmp_path / "broker")
    try:
        client = Client(broker.start().address)
        client.create_topic("written", 2, {"internal.segment.bytes": 20_000, "index.interval.bytes": 500})
        for partition in range(2):
            client.produce("written", [Message(b"theirs")], partition)
        broker.stop()
        yield broker
        assert broker.complaints() == []
    finally:
        broker.kill()


def values(batch: int, tp: TopicPartition) -> list[bytes]:
    return [b"batch %d message %04d %s" % (batch, n, b"." * 100) for n in range(SHARES[tp])]


def stage(path: Path, batch: int, disk: Disk | None = None) -> list[StagedBatchFile]:
    config = LogDir.open_read_only(path).topic_info("written").config
    files = []
    for tp in SHARES:
        writer = StagedFileWriter(
            disk or RealDisk(), path, tp, WriteId(QUERY, batch), config=config, clock=SystemClock()
        )
        share = values(batch, tp)
        for first in range(0, len(share), 15):
            writer.append(RecordColumns.from_records([Record(b"k", value) for value in share[first : first + 15]]))
        staged = writer.finish()
        assert staged is not None
        files.append(staged)
    return files


def test_a_broker_serves_what_was_committed(stopped: Broker) -> None:
    """It finds nothing to repair, also not in segments that were created at once."""
    owned = OwnedDir.open(stopped.log_dir)
    assert commit.commit(owned, WriteId(QUERY, 0), stage(stopped.log_dir, 0)).appended
    assert len(owned.log(LARGE).snapshot().segments) > 2
    assert owned.close().clean
    dumps_without_a_finding([stopped.log_dir / tp.dir_name for tp in SHARES])
    said = len(stopped.log_text())
    client = Client(stopped.start().address)
    for tp in SHARES:
        found = [record.value for record in client.consume(tp.topic, tp.partition)]
        assert found == [b"theirs", *values(0, tp)]
        client.produce(tp.topic, [Message(b"after")], tp.partition)
    adopted_as_it_is(told_since(stopped, said))
    stopped.stop()
    assert commit_ledger.read(stopped.log_dir).queries[QUERY].batch == 0
    assert not verify_log_dir(stopped.log_dir, list(SHARES))


def test_a_broker_where_a_commit_was_killed(stopped: Broker) -> None:
    """Before anything was appended; with a share whose first batch has no length yet; with new segments of which some
    are ready; with all of them ready and none in its place."""
    moments: list[tuple[Callable[[str], bool], dict[TopicPartition, bool]]] = [
        (lambda what: what.startswith("write") and what.endswith(".log"), {SMALL: False, LARGE: False}),
        (lambda what: what.startswith("sync") and what.endswith(".log"), {SMALL: False, LARGE: False}),
        (lambda what: what.startswith("rename") and what.endswith(".log.swap"), {SMALL: True, LARGE: False}),
        (lambda what: what.startswith("rename") and what.endswith(".log"), {SMALL: True, LARGE: True}),
    ]
    expected = {tp: [b"theirs"] for tp in SHARES}
    for batch, (moment, there) in enumerate(moments):
        _killed(stopped.log_dir, batch, moment)
        client = Client(stopped.start().address)
        for tp, share in SHARES.items():
            found = [record.value for record in client.consume(tp.topic, tp.partition)]
            wanted = [*expected[tp], *(values(batch, tp) if there[tp] else [])]
            assert found == wanted, f"moment {batch}, {tp}: {len(found)} of {share} more"
            client.produce(tp.topic, [Message(b"theirs again")], tp.partition)
            expected[tp] = [*wanted, b"theirs again", *([] if there[tp] else values(batch, tp))]
        stopped.stop()
        owned = OwnedDir.open(stopped.log_dir)
        assert not owned.unfinished
        assert not commit.commit(owned, WriteId(QUERY, batch), stage(stopped.log_dir, batch)).appended
        assert owned.close().clean
        assert not verify_log_dir(stopped.log_dir, list(SHARES))
        assert not list(stopped.log_dir.rglob("*" + names.STAGED_SUFFIX))
    client = Client(stopped.start().address)
    for tp in SHARES:
        assert [record.value for record in client.consume(tp.topic, tp.partition)] == expected[tp]
    stopped.stop()


def _killed(path: Path, batch: int, moment: Callable[[str], bool]) -> None:
    """Leaves the directory as a commit that was killed at a moment after its intent was recorded."""
    disk = FaultyDisk(path)
    owned = OwnedDir.open(path, Opening(), disk=disk)
    files = stage(path, batch, disk)
    begun = False

    def stop(what: str, _path: Path) -> int | None:
        nonlocal begun
        if begun and moment(what):
            disk.stopped = True
            raise Crash(what)
        begun = begun or what.startswith(f"sync {names.COMMITS}")
        return None

    disk.fail = stop
    with pytest.raises(Crash):
        commit.commit(owned, WriteId(QUERY, batch), files)
    owned._logs.abandon()
    with pytest.raises(Crash):
        owned._dir_lock.release()
    if not commit_ledger.read(path).pending:
        pytest.fail("the write was not pending")
