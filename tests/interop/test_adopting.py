"""A real broker on what we wrote: it serves it, repairs nothing, sets nothing aside, and appends after us."""

import json
import subprocess
import time

import pytest

from storage.clock import SystemClock
from storage.directory.owned_dir import OwnedDir
from storage.files import commit_ledger, names
from storage.files.commit_ledger import WriteId
from storage.files.disk import RealDisk
from storage.format.block import Record, RecordColumns
from storage.log.log_dir import LogDir
from storage.staged_writes import commit
from storage.staged_writes.staging import StagedFileWriter
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.interop.adoption import adopted_as_it_is, dumps_without_a_finding, faults
from tests.interop.client import Client, Message
from tests.interop.kafka import on_broker, requires_kafka
from tests.support.commands import output_of, run
from tests.support.crash_points import kill_commit
from tests.support.mounted_logs import state_of
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.owned_dirs import values_of as shown

pytestmark = [requires_kafka, on_broker]

HOUR_MS = 3_600_000
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
SMALL = {"internal.segment.bytes": 20_000, "index.interval.bytes": 500}


SETTINGS = {"log.initial.task.delay.ms": str(HOUR_MS)}  # its own retention does not run


def bases(log_dir, partition):
    return sorted(int(path.stem) for path in (log_dir / partition).glob("*.log"))


def values_of(records):
    return [record.value for record in records]


@requires_fuse
def test_appended_through_the_mount(own_broker, tmp_path):
    """A stopped broker's directory, mounted for writing: its configuration is followed, and the broker continues."""
    log_dir = own_broker.log_dir
    client = Client(own_broker.start().address)
    client.create_topic("through", 2, SMALL)
    client.create_topic("kept", 1, {**SMALL, "retention.ms": -1})
    client.create_topic("expiring", 1, {**SMALL, "retention.ms": HOUR_MS})
    long_ago = int(time.time() * 1000) - 30 * 24 * HOUR_MS
    old = [Message(b"%04d" % n + b"." * 300, timestamp=long_ago + n) for n in range(300)]
    for topic in ("kept", "expiring"):
        client.produce(topic, old)
    client.produce("through", [Message(b"theirs %d" % n) for n in range(100)], 0)
    for codec in CODECS:
        client.create_topic(codec, 1, {"compression.type": codec})
    client.commit("readers", {("kept", 0): 7})
    refused = run_kafkafs("recover", log_dir, check=False)
    assert refused.returncode == 3
    assert f"held by kafka.Kafka (process {own_broker.pid})" in refused.stderr.decode()
    own_broker.stop()
    brokers_own = {name: state_of(log_dir / name) for name in ("__consumer_offsets-0", "__cluster_metadata-0")}
    kept = bases(log_dir, "kept-0")
    assert len(bases(log_dir, "expiring-0")) > 3
    assert len(kept) > 3
    assert run("verify", log_dir).exit_code == 0
    assert json.loads(output_of("doctor", log_dir, "--json"))["loses_nothing"]

    ours = [b"ours %d" % n for n in range(3000)]
    keyed = [{"key": f"key {n}", "value": f"keyed {n}", "headers": [["h", "x"]]} for n in range(500)]
    with mounted(log_dir, tmp_path / "mnt", write=True) as mount:
        topic = mount.path / "through"
        command = ["tee", topic / "0" / "@append"]
        lines = b"".join(value + b"\n" for value in ours)
        subprocess.run(command, input=lines, stdout=subprocess.DEVNULL, check=True, timeout=120)
        for codec in CODECS:
            (mount.path / codec / "0" / "@append").write_bytes(lines)
        with (topic / "@append.jsonl").open("w") as file:
            file.writelines(json.dumps(line) + "\n" for line in keyed)
        subprocess.run(["bash", "-c", f"echo one line >> {topic}/0/@append"], check=True, timeout=120)
        assert (topic / "0" / "messages.txt").read_bytes().splitlines()[100:3100] == ours
    run_kafkafs("retain", log_dir)
    assert {name: state_of(log_dir / name) for name in brokers_own} == brokers_own
    assert bases(log_dir, "kept-0") == kept
    assert bases(log_dir, "expiring-0")[0] > 0
    assert not faults(log_dir)
    assert len(bases(log_dir, "through-0")) > 2
    dumps_without_a_finding([log_dir / name for name in ("through-0", "through-1", "kept-0", "expiring-0")])

    client = Client(own_broker.start().address)
    consumed = {partition: client.consume("through", partition) for partition in (0, 1)}
    adopted_as_it_is(own_broker)
    keys_of_0 = [record.value for record in consumed[0] if record.key is not None]
    assert values_of(consumed[0]) == [b"theirs %d" % n for n in range(100)] + ours + keys_of_0 + [b"one line"]
    found = sorted((record.key, record.value, record.headers) for p in (0, 1) for record in consumed[p] if record.key)
    assert found == sorted((b"key %d" % n, b"keyed %d" % n, ((b"h", b"x"),)) for n in range(500))
    assert len(consumed[1]) == 500 - len(keys_of_0)
    assert values_of(client.consume("kept")) == values_of(old)
    for codec in CODECS:
        assert values_of(client.consume(codec)) == ours
    # The broker's own partitioner sends a key where ours did.
    place = {record.key: p for p in (0, 1) for record in consumed[p] if record.key}
    client.produce("through", [Message(b"again", key=b"key %d" % n) for n in range(40)], None)
    for p in (0, 1):
        again = client.consume("through", p, start=len(consumed[p]))
        assert all((place[record.key], record.value) == (p, b"again") for record in again)
        consumed[p] += again
    assert len(consumed[0]) + len(consumed[1]) == 100 + 3000 + 500 + 1 + 40
    own_broker.stop()

    with mounted(log_dir, tmp_path / "mnt", write=True) as mount:
        for p in (0, 1):
            lines = (mount.path / "through" / str(p) / "messages.txt").read_bytes().splitlines()
            assert lines == values_of(consumed[p])
        (mount.path / "through" / "1" / "@append").write_bytes(b"and again\n")
    assert not faults(log_dir)
    client = Client(own_broker.start().address)
    last = client.consume("through", 1)[-1]
    assert (last.value, last.offset) == (b"and again", len(consumed[1]))
    adopted_as_it_is(own_broker)
    own_broker.stop()


# A real broker on what a commit wrote, and on what one left that was killed: it serves what each partition has of its
# share, it is not disturbed by what waits, and the rest comes, after what it wrote, when we open the directory again.

FEW = TopicPartition("written", 0)
LARGE = TopicPartition("written", 1)  # its share takes several segments
QUERY = "0a8e7a3b-9d1b-4f0e-8c3d-2b1a0f9e8d7c"
SHARES = {FEW: 30, LARGE: 400}


def share(batch, tp):
    return [b"batch %d message %04d %s" % (batch, n, b"." * 100) for n in range(SHARES[tp])]


def stage(path, batch, disk):
    config = LogDir.open_read_only(path).topic_info("written").config
    files = []
    for tp in SHARES:
        writer = StagedFileWriter(disk, path, tp, WriteId(QUERY, batch), config=config, clock=SystemClock())
        values = share(batch, tp)
        for first in range(0, len(values), 15):
            writer.append(RecordColumns.from_records([Record(b"k", value) for value in values[first : first + 15]]))
        files.append(writer.finish())
    return files


# When a commit is killed: in its first write to a log, when the first share is written, in the second one; never.
IN_THE_SECOND = ("create", ".log")
MOMENTS = [("write", ".log"), ("sync", ".log"), IN_THE_SECOND, None]


@pytest.mark.parametrize("moments", [[IN_THE_SECOND], pytest.param(MOMENTS, marks=pytest.mark.nightly)])
def test_a_broker_where_a_commit_was_killed(own_broker, moments):
    log_dir = own_broker.log_dir
    client = Client(own_broker.start().address)
    client.create_topic("written", 2, SMALL)
    expected = {tp: [] for tp in SHARES}
    for batch, moment in enumerate(moments):
        for tp in SHARES:
            client.produce(tp.topic, [Message(b"theirs")], tp.partition)
            expected[tp].append(b"theirs")
        own_broker.stop()
        if moment is None:
            assert open_and_commit(log_dir, batch).appended
            there = {tp: share(batch, tp) for tp in SHARES}
            dumps_without_a_finding([log_dir / tp.dir_name for tp in SHARES])
        else:
            operation, suffix = moment
            kill_commit(
                log_dir,
                lambda owned, disk: commit.commit(owned, WriteId(QUERY, batch), stage(log_dir, batch, disk)),  # noqa: B023
                lambda what, _: what.startswith(operation) and what.endswith(suffix),  # noqa: B023
            )
            logs = LogDir.open_read_only(log_dir)
            there = {tp: shown(logs.log(tp).snapshot())[len(expected[tp]) :] for tp in SHARES}
            assert (len(there[FEW]) < SHARES[FEW]) is (moment == MOMENTS[0])
            assert (0 < len(there[LARGE]) < SHARES[LARGE]) is (moment == IN_THE_SECOND)
        client = Client(own_broker.start().address)
        for tp in SHARES:
            expected[tp] += there[tp]
            assert values_of(client.consume(tp.topic, tp.partition)) == expected[tp], f"moment {batch}, {tp}"
            if moment is not None:
                client.produce(tp.topic, [Message(b"theirs again")], tp.partition)
                expected[tp].append(b"theirs again")
        if moment is None:
            adopted_as_it_is(own_broker)
        own_broker.stop()
        assert not open_and_commit(log_dir, batch).appended  # opening it has completed the write
        for tp in SHARES:
            expected[tp] += share(batch, tp)[len(there[tp]) :]
        assert commit_ledger.read(log_dir).queries[QUERY].batch == batch
        assert not verify_log_dir(log_dir, list(SHARES))
        assert not list(log_dir.rglob("*" + names.STAGED_SUFFIX))
        client = Client(own_broker.start().address)
    for tp in SHARES:
        assert values_of(client.consume(tp.topic, tp.partition)) == expected[tp]
    own_broker.stop()


def open_and_commit(path, batch):
    owned = OwnedDir.open(path)
    assert not owned.unfinished
    outcome = commit.commit(owned, WriteId(QUERY, batch), stage(path, batch, RealDisk()))
    assert owned.close().clean
    return outcome
