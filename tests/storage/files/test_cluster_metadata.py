"""KRaft's metadata, against what a real broker's Admin client and DumpLogSegments said of it (data/README.md)."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptBatch, CorruptCheckpoint, StorageError, TooManyKeys, UnsupportedFormat
from storage.files.cluster_metadata import (
    ClusterMetadata,
    ClusterMetadataReader,
    MetadataRecord,
    MetadataReplay,
    decode_block,
)
from storage.files.log_file import LogFile
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
DIRECTORIES = ["log-only", "snapshot-and-log"]


@pytest.fixture(params=DIRECTORIES)
def original(request):
    return DATA / str(request.param)


def copy_of(name, to):
    copied = to / name
    shutil.copytree(DATA / name, copied)
    return copied


def values_of(file):
    """(offset, value) of every record in a file of batches."""
    data = file.read_bytes()
    table = table_of(data)
    block = Decoder().decode(data, table, origin=0)
    for row, offset in enumerate(block.offset.tolist()):
        value = block.value(row)
        assert value is not None
        yield offset, value


def decode(value):
    """One record, as the log has it."""
    data = encode_batch([Record(None, value)], base_offset=0)
    (record,) = decode_block(Decoder().decode(data, table_of(data), origin=0))
    if isinstance(record, StorageError):
        raise record
    return record


def check(metadata, directory):
    """The metadata is what the Admin client said before the broker stopped."""
    assert metadata is not None
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
    assert metadata is not None
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
        record = decode(value)
        shown = expected.pop(offset)
        data = shown["data"]
        kinds.add(shown["type"])
        assert record == (shown["type"], data, value)
    assert not expected
    assert {"TOPIC_RECORD", "PARTITION_RECORD", "CONFIG_RECORD"} <= kinds


def partitions_of(metadata):
    assert metadata is not None
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


def test_snapshot_is_needed_once_the_log_is_cleaned(tmp_path):
    directory = copy_of("snapshot-and-log", tmp_path)
    rest = drop_log_before_snapshot(directory)
    check(ClusterMetadataReader(directory).refresh(), directory)
    (directory / SNAPSHOT).unlink()
    metadata = ClusterMetadataReader(directory).refresh()
    assert metadata is not None
    assert metadata.topics == {}
    assert isinstance(metadata.problem, CorruptCheckpoint)
    assert metadata.problem.what == "metadata log has a gap"
    assert metadata.problem.path == rest


@pytest.mark.parametrize("size", [0, 1, 100, 1000, 2537])
def test_cut_snapshot_is_not_used(tmp_path, size):
    directory = copy_of("snapshot-and-log", tmp_path)
    (directory / SNAPSHOT).write_bytes((DATA / "snapshot-and-log" / SNAPSHOT).read_bytes()[:size])
    # The log is whole: it, after the empty first snapshot, tells all.
    check(ClusterMetadataReader(directory).refresh(), directory)
    drop_log_before_snapshot(directory)
    metadata = ClusterMetadataReader(directory).refresh()
    assert metadata is not None
    assert metadata.topics == {}
    assert metadata.problem is not None


def test_damaged_snapshots_say_so(tmp_path):
    directory = copy_of("snapshot-and-log", tmp_path)
    for snapshot in directory.glob("__cluster_metadata-0/*.checkpoint"):
        flip(snapshot, -1)
    drop_log_before_snapshot(directory)
    metadata = ClusterMetadataReader(directory).refresh()
    assert metadata is not None
    assert isinstance(metadata.problem, CorruptBatch)
    assert metadata.problem.path == directory / SNAPSHOT


def test_no_metadata(tmp_path):
    assert ClusterMetadataReader(tmp_path).refresh() is None
    (tmp_path / "__cluster_metadata-0").write_text("a file")
    assert ClusterMetadataReader(tmp_path).refresh() is None


def test_empty_metadata(tmp_path):
    (tmp_path / "__cluster_metadata-0").mkdir()
    metadata = ClusterMetadataReader(tmp_path).refresh()
    assert metadata == ClusterMetadata()


def test_follows_a_growing_log(original, tmp_path):
    whole = (original / LOG).read_bytes()
    directory = copy_of(original.name, tmp_path)
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
            assert metadata is not None
            assert metadata.problem is None
            ends.append(metadata.end_offset)
    check(reader.refresh(), original)
    assert ends == sorted(ends)
    assert len(set(ends)) > 10


@pytest.mark.parametrize("size", [MOST_BATCH_BYTES + 1, 2**31 - 1])
def test_a_batch_above_the_bound_is_not_read(tmp_path, monkeypatch, size):
    directory = copy_of("log-only", tmp_path)
    expected = ClusterMetadataReader(directory).refresh()
    assert expected is not None
    with (directory / LOG).open("ab") as file:
        start = file.tell()
        file.write(large_batch(10_000, size))
        file.truncate(start + size)
    wanted, read = [], LogFile.read

    def recorded(file, position, size, into=None):
        wanted.append(size)
        return read(file, position, size, into)

    monkeypatch.setattr(LogFile, "read", recorded)
    found = ClusterMetadataReader(directory).refresh()
    assert found is not None
    assert max(wanted) < 1 << 24
    assert isinstance(found.problem, CorruptBatch)
    assert (found.problem.position, found.problem.found) == (start, size)
    assert (found.topics, found.end_offset) == (expected.topics, expected.end_offset)


def test_follows_into_a_new_segment(tmp_path):
    directory = copy_of("log-only", tmp_path)
    whole = (directory / LOG).read_bytes()
    table = table_of(whole)
    middle = table.rows // 2
    (directory / LOG).write_bytes(whole[: int(table.position[middle])])
    reader = ClusterMetadataReader(directory)
    first = reader.refresh()
    assert first is not None
    assert first.end_offset == int(table.base_offset[middle])
    (directory / LOG).with_name(f"{first.end_offset:020d}.log").write_bytes(whole[int(table.position[middle]) :])
    check(reader.refresh(), directory)
    (directory / LOG).unlink()  # cleaned away: the state is kept
    check(reader.refresh(), directory)


def test_begins_anew_when_the_log_was_replaced(tmp_path):
    directory = copy_of("snapshot-and-log", tmp_path)
    reader = ClusterMetadataReader(directory)
    check(reader.refresh(), directory)
    for file in (directory / "__cluster_metadata-0").iterdir():
        file.unlink()
    for file in (DATA / "log-only" / "__cluster_metadata-0").iterdir():
        shutil.copy(file, directory / "__cluster_metadata-0")
    check(reader.refresh(), DATA / "log-only")
    (directory / LOG).write_bytes((directory / LOG).read_bytes()[:-1])  # cut: the last batch is gone
    cut = reader.refresh()
    assert cut is not None
    assert cut.end_offset < 64


def test_begins_anew_when_the_log_was_truncated_and_written_on(tmp_path):
    """A quorum's follower gives up what was not committed; the file and its inode stay."""
    directory = copy_of("log-only", tmp_path)
    log = directory / LOG
    whole = log.read_bytes()
    table = table_of(whole)
    cut = int(table.position[table.rows // 2])
    reader = ClusterMetadataReader(directory)
    # Other batches, which make no topics, stand there first.
    other = bytearray(whole[:cut])
    for row in range(table.rows // 2, table.rows):
        batch = encode_batch([Record(None, None)], base_offset=int(table.base_offset[row]))
        other += batch
    with log.open("r+b") as file:
        file.truncate(0)
        file.write(other)
    before = reader.refresh()
    with log.open("r+b") as file:
        file.write(whole)
    after = reader.refresh()
    assert before != after
    check(after, DATA / "log-only")


def test_unchanged_topics_are_shared(tmp_path):
    directory = copy_of("snapshot-and-log", tmp_path)
    log = directory / LOG
    whole = log.read_bytes()
    table = table_of(whole)
    created = next(row for row in range(table.rows) if table.base_offset[row] >= 120)
    log.write_bytes(whole[: int(table.position[created])])
    reader = ClusterMetadataReader(directory)
    before = reader.refresh()
    with log.open("ab") as file:
        file.write(whole[int(table.position[created]) : int(table.end[created])])
    after = reader.refresh()
    assert before is not None
    assert after is not None
    assert after.end_offset > before.end_offset
    same = [name for name in before.topics if after.topics.get(name) is before.topics[name]]
    assert set(before.topics) - set(same) == {"after.snapshot"}  # which the batch is about
    assert len(same) == 4


def test_every_byte_of_the_log_damaged_gives_a_prefix(tmp_path):
    directory = copy_of("log-only", tmp_path)
    log = directory / LOG
    whole = log.read_bytes()
    states = {}
    table = table_of(whole)
    for row in range(table.rows + 1):
        log.write_bytes(whole[: int(table.position[row]) if row < table.rows else len(whole)])
        metadata = ClusterMetadataReader(directory).refresh()
        assert metadata is not None
        states[metadata.end_offset] = partitions_of(metadata)
    for position in range(0, len(whole), 23):
        data = bytearray(whole)
        data[position] ^= 0xFF
        log.write_bytes(data)
        metadata = ClusterMetadataReader(directory).refresh()
        assert metadata is not None
        assert states[metadata.end_offset] == partitions_of(metadata)


VALUES = [value for _, value in values_of(DATA / "log-only" / LOG)]


@given(st.sampled_from(VALUES), st.data())
def test_damaged_records_raise_storage_errors(value, data):
    position = data.draw(st.integers(0, len(value) - 1))
    damaged = bytearray(value)
    damaged[position] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(value)))])
    with contextlib.suppress(CorruptCheckpoint, UnsupportedFormat):
        assert decode(cut) == decode(cut)


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
        record = decode(value)
        assert record is not None
        state.apply(record)
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


def test_transactions():
    assert list(replay(BEGIN, TOPIC_A, END).topics) == ["a"]
    assert list(replay(BEGIN, TOPIC_A).topics) == []
    assert list(replay(BEGIN, TOPIC_A, ABORT).topics) == []
    assert list(replay(BEGIN, TOPIC_A, ABORT, BEGIN, TOPIC_A, END, CONFIG_A).topics) == ["a"]


def test_removal_takes_the_configuration_along():
    removed = frame(9, ID_A)
    again = frame(2, text("a") + ID_B)
    assert dict(replay(TOPIC_A, CONFIG_A).topics["a"].configs) == {"retention.ms": "5"}
    assert replay(TOPIC_A, CONFIG_A, removed).topics == {}
    assert dict(replay(TOPIC_A, CONFIG_A, removed, again).topics["a"].configs) == {}
    unset = frame(4, b"\x02" + text("a") + text("retention.ms") + b"\0")
    assert dict(replay(TOPIC_A, CONFIG_A, unset).topics["a"].configs) == {}


@pytest.mark.parametrize("values", [(PARTITION_A,), (frame(9, ID_A),), (TOPIC_A, change_a(b"\0"))])
def test_contradictions(values):
    with pytest.raises(CorruptCheckpoint, match="which is not there"):
        replay(*values)


@pytest.mark.parametrize(
    ("value", "error", "what"),
    [
        (b"", CorruptCheckpoint, "cut off"),
        (b"\x02\x02\x00", UnsupportedFormat, "frame 2 is not known"),
        (frame(2, text("a") + ID_A, version=1), UnsupportedFormat, "version 1 is not known"),
        (TOPIC_A[:-1], CorruptCheckpoint, "cut off"),
        (TOPIC_A + b"x", CorruptCheckpoint, "bytes are left over"),
        (frame(2, b"\x00" + ID_A), CorruptCheckpoint, "null where it must not be"),
        (frame(2, b"\xff\xff\xff\xff\x0f" + ID_A), CorruptCheckpoint, "cut off"),
        (frame(2, b"\xff\xff\xff\xff\x7f" + ID_A), CorruptCheckpoint, "overlong varint"),
    ],
)
def test_broken_records(value, error, what):
    with pytest.raises(error, match=what):
        decode(value)


def test_more_topics_than_memory_is_allowed_for(tmp_path, monkeypatch):
    topics = [Record(None, frame(2, text(f"t{n}") + n.to_bytes(16, "big"))) for n in range(20000)]
    build_log_dir(tmp_path, {CLUSTER_METADATA_TOPIC: [[Batch(topics[at : at + 4000]) for at in range(0, 20000, 4000)]]})
    monkeypatch.setattr("storage.format.messages.MOST_HELD", held_by_all() + (8 << 20))
    reader = ClusterMetadataReader(tmp_path)
    metadata = reader.refresh()
    assert metadata is not None
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


def test_a_record_without_sense_ends_the_replay_for_good(tmp_path, monkeypatch):
    directory = copy_of("log-only", tmp_path)
    calls = 0
    apply = MetadataReplay.apply

    def failing(self, record):
        nonlocal calls
        calls += 1
        if calls == 20:
            raise UnsupportedFormat("unknown version")
        return apply(self, record)

    monkeypatch.setattr(MetadataReplay, "apply", failing)
    reader = ClusterMetadataReader(directory)
    metadata = reader.refresh()
    assert metadata is not None
    assert isinstance(metadata.problem, UnsupportedFormat)
    assert metadata.problem.path == directory / LOG
    assert metadata.problem.offset == metadata.end_offset
    assert reader.refresh() is metadata
    assert calls == 20
