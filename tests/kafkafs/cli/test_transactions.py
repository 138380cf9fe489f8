"""`kafkafs transactions`: what it prints of producers, open transactions and transactional ids."""

from __future__ import annotations

import json

import pytest

from storage.coordinators.transactions import TransactionMetadata, TransactionState
from storage.types import TopicPartition
from tests.storage.coordinators.test_transactions import state_topic
from tests.support.builders import START_MS, Batch, Partition, build_log_dir, many
from tests.support.commands import output_of
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.owned_dirs import tree_of


def as_json(*arguments):
    return json.loads(output_of("transactions", *arguments, "--json"))


@pytest.fixture
def logdir(tmp_path):
    """Three open transactions, of which the coordinator will end one."""
    items = [Batch(many(2), producer_id=n, producer_epoch=n, transactional=True) for n in (5, 6, 7)]
    state = TransactionMetadata(
        6, 6, 60_000, TransactionState.PREPARE_COMMIT, (TopicPartition("t", 0),), START_MS + 9, START_MS
    )
    ids = state_topic(("payments", state), ("idle", state._replace(producer_id=9, partitions=())))
    done = Partition([Batch(many(1), producer_id=9)])
    build_log_dir(tmp_path, {"t": [Partition(items), done], "__transaction_state": ids}, broker=False)
    return tmp_path


def test_json(logdir):
    before = tree_of(logdir)
    told = as_json(logdir)
    assert tree_of(logdir) == before
    assert told["transactional_ids_complete"] is True
    assert [one["transactional_id"] for one in told["transactional_ids"]] == ["idle", "payments"]
    payments = told["transactional_ids"][1]
    assert payments["state"] == "PrepareCommit"
    assert payments["partitions"] == [{"topic": "t", "partition": 0}]
    t0 = next(one for one in told["partitions"] if (one["topic"], one["partition"]) == ("t", 0))
    assert (t0["last_stable_offset"], t0["log_end_offset"]) == (0, 6)
    found = {row["producer_id"]: row for row in t0["producers"]}
    assert [found[n]["transaction"]["first_offset"] for n in (5, 6, 7)] == [0, 2, 4]
    assert [found[n]["transaction"]["holds_last_stable_offset"] for n in (5, 6, 7)] == [True, False, False]
    assert [found[n]["transaction"]["hanging"] for n in (5, 6, 7)] == [True, False, True]
    assert [found[n]["transactional_id"] for n in (5, 6, 7)] == [None, "payments", None]
    assert found[5]["transaction"]["first_timestamp"] == START_MS
    assert found[5]["transaction"]["age_ms"] > 10**10


def test_text(logdir):
    lines = output_of("transactions", logdir, "t").decode().splitlines()
    assert lines[0].split("  ")[0] == "PARTITION"
    assert lines[1].startswith("t/0 ")
    assert lines[1].endswith("holds LSO, hanging")
    assert "payments" in lines[2]
    assert lines[3].endswith("hanging")
    assert lines[4].startswith("t/1 ")
    assert lines[5] == ""
    assert lines[6].startswith("TRANSACTIONAL ID")
    assert [line.split()[0] for line in lines[7:]] == ["idle", "payments"]


def test_only_open_ones_and_one_partition(logdir):
    told = as_json(logdir, "t/1", "--open")
    assert told["partitions"][0]["producers"] == []
    assert [one["transactional_id"] for one in as_json(logdir, "t/0", "--open")["transactional_ids"]] == ["payments"]


def test_a_transaction_that_is_not_silent_for_long_is_not_hanging(logdir):
    for row in as_json(logdir, "t/0", "--timeout", 60 * 24 * 36_500)["partitions"][0]["producers"]:
        assert row["transaction"]["hanging"] is False


def test_without_the_coordinators_topic_it_is_not_certain(tmp_path):
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(1), producer_id=1, transactional=True)])]})
    told = as_json(tmp_path)
    assert told["partitions"][0]["producers"][0]["transaction"]["hanging"] is None
    assert "hanging?" in output_of("transactions", tmp_path).decode()


@requires_fixtures
def test_the_open_transaction_of_a_broker():
    told = as_json(FIXTURES / "transactions" / "log", "tx-open", "--open")
    (producer,) = told["partitions"][0]["producers"]
    assert producer["transaction"]["holds_last_stable_offset"] is True
    assert producer["transaction"]["first_offset"] == told["partitions"][0]["last_stable_offset"]
