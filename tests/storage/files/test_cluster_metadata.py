"""KRaft's metadata, against what a real broker's Admin client and DumpLogSegments said of it (data/README.md)."""

import dataclasses
import gzip
import json
import shutil
import struct
from pathlib import Path

import pytest

from storage.errors import CorruptBatch, CorruptCheckpoint, StorageError, TooManyKeys, UnsupportedFormat
from storage.files.cluster_metadata import ClusterMetadataReader
from storage.files.log_file import LogFile
from storage.files.metadata_checkpoint import cluster_records
from storage.files.metadata_records import FeatureLevelRecord, MetadataRecord, decode_block
from storage.files.metadata_replay import ClusterMetadata, MetadataReplay
from storage.files.names import CLUSTER_METADATA_TOPIC
from storage.format.batches import MOST_BATCH_BYTES
from storage.format.block import Record
from storage.format.decoder import Decoder
from storage.format.messages import held_by_all
from storage.format.record_batch import encode_batch
from tests.support.builders import Batch, build_log_dir
from tests.support.damaged_bytes import flip
from tests.support.large_batches import large_batch
from tests.support.readers import table_of

DATA = Path(__file__).parent / "data" / "cluster-metadata"
LOG = "__cluster_metadata-0/00000000000000000000.log"
SNAPSHOT = "__cluster_metadata-0/00000000000000000120-0000000003.checkpoint"


@pytest.fixture(params=["log-only", "snapshot-and-log"])
def original(request):
    return DATA / request.param


@pytest.fixture
def log_only(tmp_path):
    return shutil.copytree(DATA / "log-only", tmp_path / "log-only")


@pytest.fixture
def with_snapshot(tmp_path):
    return shutil.copytree(DATA / "snapshot-and-log", tmp_path / "snapshot-and-log")


def refreshed(directory):
    return ClusterMetadataReader(directory).refresh()


def values_of(file):
    """(offset, value) of every record in a file of batches."""
    data = file.read_bytes()
    block = Decoder().decode(data, table_of(data), origin=0)
    return [(offset, block.value(row)) for row, offset in enumerate(block.offset.tolist())]


def decode(value):
    """One record, as the log has it."""
    data = encode_batch([Record(None, value)], base_offset=0)
    (record,) = decode_block(Decoder().decode(data, table_of(data), origin=0))
    if isinstance(record, StorageError):
        raise record
    return record


def check(metadata, directory):
    """The metadata is what the Admin client said before the broker stopped."""
    assert metadata.problem is None
    expected = json.loads((directory / "expected.json").read_text())
    found = {
        name: {
            "topic_id": topic.topic_id,
            "partitions": len(topic.partitions),
            # The stopped broker leads no more, and has nobody to hand over to.
            "leader": 1 if topic.partitions[0].leader == -1 else "another",
            "replicas": list(topic.partitions[0].replicas),
            "configs": dict(topic.configs),
        }
        for name, topic in metadata.topics.items()
    }
    assert found == expected["topics"]
    assert all(topic.name == name for name, topic in metadata.topics.items())
    assert dict(metadata.broker_defaults) == expected["broker_defaults"]
    assert {number: dict(values) for number, values in metadata.brokers.items()} == {1: expected["broker_1"]}
    assert metadata.broker_values(1) == {**expected["broker_defaults"], **expected["broker_1"]}
    assert metadata.broker_values(2) == metadata.broker_values(None) == expected["broker_defaults"]


def test_replay(original):
    reader = ClusterMetadataReader(original)
    metadata = reader.refresh()
    check(metadata, original)
    assert metadata.end_offset == (64 if original.name == "log-only" else 133)
    assert reader.refresh() is metadata


@pytest.mark.parametrize(
    ("directory", "file"), [("log-only", LOG), ("snapshot-and-log", LOG), ("snapshot-and-log", SNAPSHOT)]
)
def test_records_are_those_that_kafka_reads(directory, file):
    dumped = DATA / directory / f"{Path(file).name}.json.gz"
    with gzip.open(dumped, "rt", encoding="utf-8") as text:
        expected = {record["offset"]: record for record in json.load(text)}
    kinds = set()
    for offset, value in values_of(DATA / directory / file):
        shown = expected.pop(offset)
        kinds.add(shown["type"])
        assert decode(value) == (shown["type"], shown["data"], value)
    assert not expected
    assert {"TOPIC_RECORD", "PARTITION_RECORD", "CONFIG_RECORD"} <= kinds


def partitions_of(metadata):
    return {
        name: {number: dataclasses.astuple(partition)[:4] for number, partition in topic.partitions.items()}
        for name, topic in metadata.topics.items()
    }


def drop_log_before_snapshot(directory):
    """As a broker cleans the metadata log: what the snapshot holds goes, by whole batches."""
    log = directory / LOG
    data = log.read_bytes()
    table = table_of(data)
    row = next(row for row in range(table.rows) if table.last_offset[row] >= 120)
    base = int(table.base_offset[row])
    assert base <= 120
    rest = log.with_name(f"{base:020d}.log")
    rest.write_bytes(data[int(table.position[row]) :])
    log.unlink()
    return rest


def test_snapshot_is_needed_once_the_log_is_cleaned(with_snapshot):
    rest = drop_log_before_snapshot(with_snapshot)
    check(refreshed(with_snapshot), with_snapshot)
    (with_snapshot / SNAPSHOT).unlink()
    metadata = refreshed(with_snapshot)
    assert metadata.topics == {}
    assert isinstance(metadata.problem, CorruptCheckpoint)
    assert metadata.problem.what == "metadata log has a gap"
    assert metadata.problem.path == rest


def test_cut_snapshot_is_not_used(with_snapshot):
    whole = (with_snapshot / SNAPSHOT).read_bytes()
    sizes = (0, 1, 100, 1000, 2537)
    for size in sizes:
        (with_snapshot / SNAPSHOT).write_bytes(whole[:size])
        # The log is whole: it, after the empty first snapshot, tells all.
        check(refreshed(with_snapshot), with_snapshot)
    drop_log_before_snapshot(with_snapshot)
    for size in sizes:
        (with_snapshot / SNAPSHOT).write_bytes(whole[:size])
        metadata = refreshed(with_snapshot)
        assert metadata.topics == {}
        assert isinstance(metadata.problem, CorruptCheckpoint | CorruptBatch)


def test_damaged_snapshots_say_so(with_snapshot):
    for snapshot in with_snapshot.glob("__cluster_metadata-0/*.checkpoint"):
        flip(snapshot, -1)
    drop_log_before_snapshot(with_snapshot)
    metadata = refreshed(with_snapshot)
    assert isinstance(metadata.problem, CorruptBatch)
    assert metadata.problem.path == with_snapshot / SNAPSHOT


def test_no_metadata(tmp_path):
    assert refreshed(tmp_path) is None
    (tmp_path / "__cluster_metadata-0").write_text("a file")
    assert refreshed(tmp_path) is None
    (tmp_path / "__cluster_metadata-0").unlink()
    (tmp_path / "__cluster_metadata-0").mkdir()
    assert refreshed(tmp_path) == ClusterMetadata()


def test_follows_a_growing_log(original, tmp_path):
    whole = (original / LOG).read_bytes()
    directory = shutil.copytree(original, tmp_path / original.name)
    for snapshot in directory.glob("__cluster_metadata-0/*.checkpoint"):
        snapshot.unlink()
    log = directory / LOG
    log.write_bytes(b"")
    reader = ClusterMetadataReader(directory)
    ends = []
    with log.open("ab", buffering=0) as file:
        for start in range(0, len(whole), 97):
            file.write(whole[start : start + 97])
            metadata = reader.refresh()
            assert metadata.problem is None
            ends.append(metadata.end_offset)
    check(reader.refresh(), original)
    assert ends == sorted(ends)
    assert len(set(ends)) > 10


@pytest.mark.parametrize("size", [MOST_BATCH_BYTES + 1, 2**31 - 1])
def test_a_batch_above_the_bound_is_not_read(log_only, monkeypatch, size):
    expected = refreshed(log_only)
    assert expected is not None
    with (log_only / LOG).open("ab") as file:
        start = file.tell()
        file.write(large_batch(10_000, size))
        file.truncate(start + size)
    wanted, read = [], LogFile.read

    def recorded(file, position, size, into=None):
        wanted.append(size)
        return read(file, position, size, into)

    monkeypatch.setattr(LogFile, "read", recorded)
    found = refreshed(log_only)
    assert max(wanted) < 1 << 24
    assert isinstance(found.problem, CorruptBatch)
    assert (found.problem.position, found.problem.found) == (start, size)
    assert (found.topics, found.end_offset) == (expected.topics, expected.end_offset)


def test_follows_into_a_new_segment(log_only):
    whole = (log_only / LOG).read_bytes()
    table = table_of(whole)
    middle = table.rows // 2
    (log_only / LOG).write_bytes(whole[: int(table.position[middle])])
    reader = ClusterMetadataReader(log_only)
    first = reader.refresh()
    assert first.end_offset == int(table.base_offset[middle])
    (log_only / LOG).with_name(f"{first.end_offset:020d}.log").write_bytes(whole[int(table.position[middle]) :])
    check(reader.refresh(), log_only)
    (log_only / LOG).unlink()  # cleaned away: the state is kept
    check(reader.refresh(), log_only)


def test_begins_anew_when_the_log_was_replaced(with_snapshot):
    reader = ClusterMetadataReader(with_snapshot)
    check(reader.refresh(), with_snapshot)
    for file in (with_snapshot / "__cluster_metadata-0").iterdir():
        file.unlink()
    for file in (DATA / "log-only" / "__cluster_metadata-0").iterdir():
        shutil.copy(file, with_snapshot / "__cluster_metadata-0")
    check(reader.refresh(), DATA / "log-only")
    (with_snapshot / LOG).write_bytes((with_snapshot / LOG).read_bytes()[:-1])  # cut: the last batch is gone
    cut = reader.refresh()
    assert cut.end_offset < 64


def test_begins_anew_when_the_log_was_truncated_and_written_on(log_only):
    """A quorum's follower gives up what was not committed; the file and its inode stay."""
    log = log_only / LOG
    whole = log.read_bytes()
    table = table_of(whole)
    cut = int(table.position[table.rows // 2])
    reader = ClusterMetadataReader(log_only)
    # Other batches, which make no topics, stand there first.
    offsets = table.base_offset[table.rows // 2 :].tolist()
    other = whole[:cut] + b"".join(encode_batch([Record(None, None)], base_offset=offset) for offset in offsets)
    with log.open("r+b") as file:
        file.truncate(0)
        file.write(other)
    before = reader.refresh()
    with log.open("r+b") as file:
        file.write(whole)
    after = reader.refresh()
    assert before != after
    check(after, DATA / "log-only")


def test_unchanged_topics_are_shared(with_snapshot):
    log = with_snapshot / LOG
    whole = log.read_bytes()
    table = table_of(whole)
    created = next(row for row in range(table.rows) if table.base_offset[row] >= 120)
    log.write_bytes(whole[: int(table.position[created])])
    reader = ClusterMetadataReader(with_snapshot)
    before = reader.refresh()
    with log.open("ab") as file:
        file.write(whole[int(table.position[created]) : int(table.end[created])])
    after = reader.refresh()
    assert after.end_offset > before.end_offset
    same = [name for name in before.topics if after.topics.get(name) is before.topics[name]]
    assert set(before.topics) - set(same) == {"after.snapshot"}  # which the batch is about
    assert len(same) == 4


def test_every_byte_of_the_log_damaged_gives_a_prefix(log_only):
    log = log_only / LOG
    whole = log.read_bytes()
    states = {}
    table = table_of(whole)
    for row in range(table.rows + 1):
        log.write_bytes(whole[: int(table.position[row]) if row < table.rows else len(whole)])
        metadata = refreshed(log_only)
        states[metadata.end_offset] = partitions_of(metadata)
    for position in range(0, len(whole), 23):
        data = bytearray(whole)
        data[position] ^= 0xFF
        log.write_bytes(data)
        metadata = refreshed(log_only)
        assert states[metadata.end_offset] == partitions_of(metadata)


ID_A, ID_B = bytes(range(16)), bytes(range(16, 32))


def text(value):
    return bytes([len(value) + 1]) + value.encode()


def frame(api_key, body, version=0, tags=b"\0"):
    return bytes([1, api_key, version]) + body + tags


TOPIC_A = frame(2, text("a") + ID_A)
BEGIN, END, ABORT = frame(23, b""), frame(24, b""), frame(25, b"")
CONFIG_A = frame(4, b"\x02" + text("a") + text("retention.ms") + text("5"))


def int32s(*values):
    return bytes([len(values) + 1]) + struct.pack(f">{len(values)}i", *values)


PARTITION_A = frame(3, bytes(4) + ID_A + int32s(1, 2) + int32s(1) + int32s() + int32s() + struct.pack(">iii", 1, 7, 0))


def change_a(tags):
    return frame(5, bytes(4) + ID_A, tags=tags)


def replay(*values):
    state = MetadataReplay()
    for value in values:
        state.apply(decode(value))
    return state.show(0, None)


def test_partition_changes():
    new_leader = b"\x01\x01\x04" + struct.pack(">i", 2)
    new_isr = b"\x01\x00\x09" + int32s(2, 1)
    new_replicas = b"\x01\x02\x05" + int32s(3)
    base = (TOPIC_A, PARTITION_A)
    assert partitions_of(replay(*base)) == {"a": {0: ((1, 2), (1,), 1, 7)}}
    assert partitions_of(replay(*base, change_a(new_leader))) == {"a": {0: ((1, 2), (1,), 2, 8)}}
    assert partitions_of(replay(*base, change_a(new_isr))) == {"a": {0: ((1, 2), (2, 1), 1, 7)}}
    assert partitions_of(replay(*base, change_a(new_replicas))) == {"a": {0: ((3,), (1,), 1, 7)}}
    unknown_tag = b"\x01\x63\x02ab"
    assert partitions_of(replay(*base, change_a(unknown_tag))) == partitions_of(replay(*base))


def test_the_state_that_records_lead_to():
    assert list(replay(BEGIN, TOPIC_A, END).topics) == ["a"]
    assert list(replay(BEGIN, TOPIC_A).topics) == []
    assert list(replay(BEGIN, TOPIC_A, ABORT).topics) == []
    assert list(replay(BEGIN, TOPIC_A, ABORT, BEGIN, TOPIC_A, END, CONFIG_A).topics) == ["a"]
    removed, again = frame(9, ID_A), frame(2, text("a") + ID_B)
    assert dict(replay(TOPIC_A, CONFIG_A).topics["a"].configs) == {"retention.ms": "5"}
    assert replay(TOPIC_A, CONFIG_A, removed).topics == {}
    assert dict(replay(TOPIC_A, CONFIG_A, removed, again).topics["a"].configs) == {}
    unset = frame(4, b"\x02" + text("a") + text("retention.ms") + b"\0")
    assert dict(replay(TOPIC_A, CONFIG_A, unset).topics["a"].configs) == {}
    for values in ((PARTITION_A,), (removed,), (TOPIC_A, change_a(b"\0"))):
        with pytest.raises(CorruptCheckpoint, match="which is not there"):
            replay(*values)


def test_the_records_of_a_cluster_without_producers():
    assert cluster_records(ClusterMetadata(features={"a": 1, "metadata.version": 21})) == [
        FeatureLevelRecord("metadata.version", 21),
        FeatureLevelRecord("a", 1),
    ]


def test_broken_records():
    for value, error, what in (
        (b"", CorruptCheckpoint, "cut off"),
        (b"\x02\x02\x00", UnsupportedFormat, "frame 2 is not known"),
        (frame(2, text("a") + ID_A, version=1), UnsupportedFormat, "version 1 is not known"),
        (TOPIC_A[:-1], CorruptCheckpoint, "cut off"),
        (TOPIC_A + b"x", CorruptCheckpoint, "bytes are left over"),
        (frame(2, b"\x00" + ID_A), CorruptCheckpoint, "null where it must not be"),
        (frame(2, b"\xff\xff\xff\xff\x0f" + ID_A), CorruptCheckpoint, "cut off"),
        (frame(2, b"\xff\xff\xff\xff\x7f" + ID_A), CorruptCheckpoint, "overlong varint"),
    ):
        with pytest.raises(error, match=what):
            decode(value)


def test_more_topics_than_memory_is_allowed_for(tmp_path, monkeypatch):
    topics = [Record(None, frame(2, text(f"t{n}") + n.to_bytes(16, "big"))) for n in range(20000)]
    build_log_dir(tmp_path, {CLUSTER_METADATA_TOPIC: [[Batch(topics[at : at + 4000]) for at in range(0, 20000, 4000)]]})
    monkeypatch.setattr("storage.format.messages.MOST_HELD", held_by_all() + (8 << 20))
    reader = ClusterMetadataReader(tmp_path)
    metadata = reader.refresh()
    assert isinstance(metadata.problem, TooManyKeys)
    assert metadata.problem.offset == metadata.end_offset == len(metadata.topics)
    assert 4000 <= metadata.end_offset < 20000
    assert reader.refresh() is metadata


def test_records_of_a_transaction_count_too(monkeypatch):
    state = MetadataReplay()
    state.apply(MetadataRecord("BEGIN_TRANSACTION_RECORD", {}, b""))
    state.apply(MetadataRecord("CONFIG_RECORD", {"value": "x" * (1 << 20)}, b""))
    monkeypatch.setattr("storage.format.messages.MOST_HELD", held_by_all() + (256 << 10))
    with pytest.raises(TooManyKeys):
        state.held.add(1000, 0)


def test_a_record_without_sense_ends_the_replay_for_good(log_only):
    with (log_only / LOG).open("ab") as log:
        for offset, value in enumerate((TOPIC_A, frame(9, ID_B), CONFIG_A), 64):  # ID_B is no topic
            log.write(encode_batch([Record(None, value)], base_offset=offset))
    reader = ClusterMetadataReader(log_only)
    metadata = reader.refresh()
    assert isinstance(metadata.problem, CorruptCheckpoint)
    assert metadata.problem.path == log_only / LOG
    assert metadata.problem.offset == metadata.end_offset == 65
    assert dict(metadata.topics["a"].configs) == {}
    assert reader.refresh() is metadata
