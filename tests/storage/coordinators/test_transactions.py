"""Producers and open transactions of a log, and the states of transactional ids, against brokers' files."""

import gc
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.coordinators.transaction_records import TransactionMetadata, TransactionState
from storage.coordinators.transactions import partition_producers, recorded_ids, transactional_ids
from storage.errors import CorruptData, UnsupportedFormat
from storage.files import producer_state
from storage.files.producer_state import ProducerEntry
from storage.format.block import Record
from storage.format.messages import held_by_all, messages
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, START_MS, STEP_MS, Batch, Partition, abort, build_log_dir, commit, many
from tests.support.damaged_bytes import overwrite
from tests.support.fixtures import copy_log_dir, log_dir_of, requires_fixtures, topics_of

TP = TopicPartition("t", 0)


def found_in(path, topic="t", partition=0):
    return partition_producers(LogDir.open_read_only(path).log(TopicPartition(topic, partition)))


@requires_fixtures
@pytest.mark.golden
@pytest.mark.parametrize(
    "name", ["tx-aborts-0", "tx-basic-0", "tx-basic-1", "tx-librdkafka-0", "tx-lz4-0", "tx-open-0"]
)
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_equal_to_the_snapshot_that_the_broker_wrote_at_its_stop(tmp_path, name, kept):
    """Also without it: from the snapshot before, or from the batches alone."""
    logs = copy_log_dir(log_dir_of("transactions"), tmp_path / "log")
    snapshots = sorted((logs / name).glob("*.snapshot"))
    stored = producer_state.read(snapshots[-1])
    for path in snapshots[len(snapshots) - 1 if kept == 1 else 0 : len(snapshots) if kept < 2 else 0]:
        path.unlink()
    topic, _, partition = name.rpartition("-")
    found = found_in(logs, topic, int(partition))
    assert list(found.producers) == sorted(stored.entries(), key=lambda entry: entry.producer_id)
    golden = topics_of("transactions")[topic]["golden"][partition]
    assert found.last_stable_offset == golden["last_stable_offset"]
    open_ones = [entry for entry in found.producers if entry.current_txn_first_offset >= 0]
    assert len(open_ones) == (1 if topic == "tx-open" else 0)
    assert all(found.holds_back(entry) and found.begun[entry.producer_id] > 0 for entry in open_ones)


def test_who_holds_the_last_stable_offset(tmp_path):
    items = [
        Batch(many(3)),
        Batch(many(2), producer_id=7, producer_epoch=4, transactional=True),
        Batch(many(2), producer_id=8, transactional=True),
        ROLL,
        Batch(many(2), producer_id=7, producer_epoch=4, transactional=True),
        Batch(many(1), producer_id=9, transactional=True),
        commit(9),
        Batch(many(1), producer_id=10),
    ]
    aborted = [Batch(many(1), producer_id=1, transactional=True), abort(1)]
    build_log_dir(tmp_path, {"t": [items, [Batch(many(3))], []], "a": [aborted]})
    found = found_in(tmp_path)
    by_id = {entry.producer_id: entry for entry in found.producers}
    assert {number: one.current_txn_first_offset for number, one in by_id.items()} == {7: 3, 8: 5, 9: -1, 10: -1}
    assert (by_id[7].epoch, by_id[7].last_offset) == (4, 8)
    assert found.last_stable_offset == 3
    assert [found.holds_back(by_id[n]) for n in (7, 8, 9, 10)] == [True, False, False, False]
    assert found.begun == {7: START_MS + 3 * STEP_MS, 8: START_MS + 5 * STEP_MS}
    assert found_in(tmp_path, "t", 1).producers == found_in(tmp_path, "t", 2).producers == ()
    (entry,) = found_in(tmp_path, "a").producers
    assert (entry.current_txn_first_offset, found_in(tmp_path, "a").last_stable_offset) == (-1, 2)


def test_nothing_says_when_a_transaction_began_whose_first_message_is_gone(tmp_path):
    batch = Batch(many(2), producer_id=7, transactional=True)
    built = build_log_dir(tmp_path, {"t": [Partition([batch, ROLL, batch], log_start_offset=2)]})["t", 0]
    for path in built.path.glob(f"{0:020}.*"):
        path.unlink()
    found = found_in(tmp_path)
    assert [entry.current_txn_first_offset for entry in found.producers] == [0]
    assert found.begun == {7: -1}


def test_damage_is_an_error(tmp_path):
    batch = Batch(many(3), producer_id=1, transactional=True)
    built = build_log_dir(tmp_path, {"t": [[batch, batch, ROLL, Batch(many(1))]]})["t", 0]
    for path in built.path.glob("*.snapshot"):
        path.unlink()
    overwrite(built.log(0), 16, b"\x09")
    with pytest.raises(UnsupportedFormat):
        found_in(tmp_path)


def short(text):
    return struct.pack(">h", len(text.encode())) + text.encode()


def uvarint(number):
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + uvarint(number >> 7)


def key_of(name):
    return struct.pack(">h", 0) + short(name)


def value_of(one, version=1, tags=(), *, null=False):
    """A TransactionLogValue as the schema says."""
    head = struct.pack(">hqhib", version, one.producer_id, one.producer_epoch, one.timeout_ms, one.state)
    topics = {}
    for tp in one.partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    body = b""
    for topic, numbers in topics.items():
        count = len(numbers)
        if version:
            text = topic.encode()
            body += uvarint(len(text) + 1) + text + uvarint(count + 1) + struct.pack(f">{count}i", *numbers) + b"\0"
        else:
            body += short(topic) + struct.pack(f">i{count}i", count, *numbers)
    length = uvarint(0 if null else len(topics) + 1) if version else struct.pack(">i", -1 if null else len(topics))
    end = struct.pack(">qq", one.last_update_timestamp, one.start_timestamp)
    if version:
        end += uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in tags)
    return head + length + body + end


def parsed_value(data):
    _, value = messages("__transaction_state").one(key_of("x"), data)
    return TransactionMetadata.of(value["data"])


ONE = TransactionMetadata(
    7, 4, 60_000, TransactionState.ONGOING, (TP, TopicPartition("t", 3), TopicPartition("u", 1)), START_MS, START_MS - 5
)


def test_values_of_both_versions():
    nothing = ONE._replace(partitions=(), state=TransactionState.PREPARE_ABORT)
    for version in (0, 1):
        assert parsed_value(value_of(ONE, version)) == ONE
        assert parsed_value(value_of(nothing, version)) == nothing
        assert parsed_value(value_of(nothing, version, null=True)) == nothing
    assert [(int(state), state.text) for state in TransactionState][:5] == [
        (0, "Empty"), (1, "Ongoing"), (2, "PrepareCommit"), (3, "PrepareAbort"), (4, "CompleteCommit"),
    ]  # fmt: skip
    tags = ((0, struct.pack(">q", 5)), (1, struct.pack(">q", 9)), (2, struct.pack(">h", 2)), (77, b"later"))
    tagged = ONE._replace(previous_producer_id=5, next_producer_id=9, client_version=2)
    assert parsed_value(value_of(ONE, 1, tags)) == tagged
    data = bytearray(value_of(ONE))
    data[16] = 9
    with pytest.raises(UnsupportedFormat, match="found 9"):
        parsed_value(bytes(data))
    data[1] = 2
    with pytest.raises(UnsupportedFormat, match="version"):
        parsed_value(bytes(data))


@given(st.text(st.characters(blacklist_categories=["Cs"]), max_size=20), st.binary(max_size=80))
def test_any_bytes_parse_or_are_an_error(name, data):
    key, _ = messages("__transaction_state").one(key_of(name), None)
    assert key["data"] == {"transactionalId": name}
    for part in (data, b"\0\0" + data, b"\0\1" + data, value_of(ONE)[: len(data)]):
        with suppress(CorruptData, UnsupportedFormat):
            parsed_value(part)
        with suppress(CorruptData, UnsupportedFormat):
            messages("__transaction_state").one(part, None)


def state_topic(*records):
    return [[Batch([Record(key_of(name), None if one is None else value_of(one))]) for name, one in records]]


def ids_in(path, *partitions):
    build_log_dir(path, {"__transaction_state": partitions}, broker=False)
    return transactional_ids(LogDir.open_read_only(path))


def producing(id, epoch=ONE.producer_epoch):
    """A producer with an open transaction."""
    return ProducerEntry(id, epoch, 0, 0, 0, START_MS, current_txn_first_offset=0)


def test_the_last_state_of_each_id(tmp_path):
    done = ONE._replace(state=TransactionState.COMPLETE_COMMIT, partitions=())
    dead = done._replace(state=TransactionState.DEAD)
    other = ONE._replace(producer_id=1)
    ids = ids_in(tmp_path, *state_topic(("a", ONE), ("b", ONE), ("a", done), ("b", None), ("c", other), ("d", dead)))
    assert (ids.by_id, ids.problems, ids.complete) == ({"a": done, "c": other}, (), True)
    assert (ids.owner(7), ids.owner(1), ids.owner(2)) == ("a", "c", None)
    assert [ids.will_end(TP, producing(id)) for id in (7, 1, 99)] == [False, True, False]
    # The coordinator's state is older than the transaction: partitions refuse its epoch.
    assert not ids.will_end(TP, producing(1, ONE.producer_epoch + 1))


@pytest.mark.parametrize(
    ("state", "version", "ahead", "committed"),
    [
        (TransactionState.PREPARE_COMMIT, 0, 0, True),
        (TransactionState.PREPARE_COMMIT, 2, 1, True),
        (TransactionState.PREPARE_COMMIT, 0, 3, False),
        (TransactionState.PREPARE_ABORT, 0, 0, False),
        (TransactionState.ONGOING, 0, 0, False),
        (TransactionState.COMPLETE_COMMIT, 2, 1, True),
        (TransactionState.COMPLETE_COMMIT, 0, 0, False),  # of another transaction, perhaps
    ],
)
def test_a_commit_that_was_acknowledged(tmp_path, state, version, ahead, committed):
    is_prepared = state is TransactionState.PREPARE_COMMIT
    one = ONE._replace(state=state, partitions=(TP,) if is_prepared else ())
    value = value_of(one, 1, ((2, struct.pack(">h", version)),))
    build_log_dir(tmp_path, {"__transaction_state": [[Batch([Record(key_of("a"), value)])]]}, broker=False)
    ids = recorded_ids([LogDir.open_read_only(tmp_path).log(TopicPartition("__transaction_state", 0)).snapshot()])
    assert ids.has_committed(TP, producing(one.producer_id, one.producer_epoch - ahead)) == committed


def test_what_cannot_be_read_is_named(tmp_path):
    bad = Batch([Record(key_of("a"), b"\0\1short"), Record(b"x", b"y"), Record(b"\0\3", b"y"), Record(None, b"y")])
    ids = ids_in(tmp_path / "some", [bad, *state_topic(("b", ONE))[0]])
    assert ids.by_id == {"b": ONE}
    assert len(ids.problems) == 3  # a type that nobody knows is passed over
    assert "offset 0" in ids.problems[0]
    assert not ids.complete
    assert ids.will_end(TP, producing(99)) is None
    many_problems = ids_in(tmp_path / "many", [Batch([Record(key_of("a"), b"\0\1short")] * 1000)]).problems
    assert len(many_problems) == 20


def test_without_the_topic_nothing_is_certain(tmp_path):
    build_log_dir(tmp_path, {"t": [[]]})
    ids = transactional_ids(LogDir.open_read_only(tmp_path))
    assert (ids.by_id, ids.complete, ids.will_end(TP, producing(1))) == ({}, False, None)


def test_more_ids_than_memory_is_allowed_for(tmp_path, monkeypatch):
    many_ids = [Batch([Record(key_of(f"x{n}"), value_of(ONE)) for n in range(3000)])]
    gc.collect()  # states of earlier tests are in memory until then
    monkeypatch.setattr("storage.format.messages.MOST_HELD", held_by_all() + (256 << 10))
    ids = ids_in(tmp_path, *state_topic(("a", ONE)), many_ids)
    assert (list(ids.by_id), ids.complete, len(ids.problems)) == (["a"], False, 1)
    assert ids.problems[0].startswith(str(tmp_path / "__transaction_state-1"))
    assert "take too much memory" in ids.problems[0]


def test_the_ids_of_all_partitions_count_together(tmp_path, monkeypatch):
    """Any two of the three partitions would fit into memory."""
    parts = [[Batch([Record(key_of(f"{part}-{n}"), value_of(ONE))]) for n in range(200)] for part in range(3)]
    gc.collect()  # states of earlier tests are in memory until then
    monkeypatch.setattr("storage.format.messages.MOST_HELD", held_by_all() + (1200 << 10))
    assert ids_in(tmp_path / "two", *parts[:2]).problems == ()
    (problem,) = ids_in(tmp_path / "all", *parts).problems
    assert problem.startswith(str(tmp_path / "all" / "__transaction_state-2"))
