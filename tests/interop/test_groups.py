"""Committed offsets and transactions: what a real broker tells of them, and where its consumers go on."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as ClientPartition

from storage.coordinators.groups import GroupOffsets
from storage.log.log_dir import LogDir
from tests.interop.adoption import faults
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, on_broker, requires_kafka, run_tool
from tests.storage.coordinators.test_group_offsets import plain
from tests.support.commands import output_of
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.waiting import wait_for

pytestmark = on_broker

# Committed offsets and a real broker: we read what consumers commit, and a group continues where we reset it.

ONE, TWO = ClientPartition("read", 0), ClientPartition("read", 1)
GROUPS = ("billing", "größe-групп", "🐘 with blanks", "a/b%c", ".dot")
COMMITTED = {ONE: 33, TWO: 50}


@pytest.fixture
def own_broker(tmp_path):
    """A separate broker, with two partitions of a hundred messages; seven partitions of committed offsets."""
    running = Broker(tmp_path / "broker", {"offsets.topic.num.partitions": "7"})
    try:
        client = Client(running.start().address)
        client.create_topic("read", 2)
        for partition in range(2):
            client.produce("read", [Message(b"%d" % n) for n in range(100)], partition)
        yield running
        assert running.complaints() == []
    finally:
        running.kill()


def commit(address, group, offsets):
    async def run():
        consumer = AIOKafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign(list(offsets))
            await consumer.commit(dict(offsets))
        finally:
            await consumer.stop()

    asyncio.run(run())


def commit_in_transactions(address, group, rounds):
    """Offsets of partition 0, each committed within a transaction that is committed or aborted."""

    async def run():
        async with AIOKafkaProducer(bootstrap_servers=address, transactional_id="tx") as producer:
            for offset, keep in rounds:
                await producer.begin_transaction()
                await producer.send_and_wait("read", b"x", partition=1)
                await producer.send_offsets_to_transaction({ONE: offset}, group)
                await (producer.commit_transaction() if keep else producer.abort_transaction())

    asyncio.run(run())


def known_to_the_broker(address, group):
    """The committed offset that the broker returns to a consumer of that group."""

    async def run():
        consumer = AIOKafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            return {tp: await consumer.committed(tp) for tp in (ONE, TWO)}
        finally:
            await consumer.stop()

    return asyncio.run(run())


def started_again(broker, partitions):
    """Starts the broker, and waits until its group coordinator has read all commits."""
    said = len(broker.log_text())
    address = broker.start().address
    deadline = time.monotonic() + 120
    while broker.log_text()[said:].count("Finished loading of metadata from __consumer_offsets-") < partitions:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return address


def console_consumer(address, group, count, *more):
    """Kafka's own consumer in that group: the values of the first `count` messages that it gets, in any order."""
    output = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", address, "--topic", "read",
        "--group", group, "--max-messages", str(count), "--timeout-ms", "60000",
        *(more or ("--consumer-property", "auto.offset.reset=none")),
    )  # fmt: skip
    return output.split()


def seen_by_us(log_dir):
    offsets = GroupOffsets(LogDir.open_read_only(log_dir))
    found = plain(offsets.groups())
    assert offsets.problems() == []
    return found


@requires_kafka
@requires_fuse
def test_what_consumers_commit_and_where_we_let_them_go_on(own_broker, tmp_path):
    for number, group in enumerate(GROUPS):
        commit(own_broker.address, group, {tp: offset + number for tp, offset in COMMITTED.items()})
    commit_in_transactions(own_broker.address, "in transactions", [(10, True), (20, False)])
    expected = {group: {"read": {0: 33 + number, 1: 50 + number}} for number, group in enumerate(GROUPS)}
    expected["in transactions"] = {"read": {0: 10}}
    assert seen_by_us(own_broker.log_dir) == expected  # while the broker runs
    with mounted(own_broker.log_dir, tmp_path / "live") as live:
        assert (live.path / "@groups/a%2Fb%25c/read/0").read_text() == "36\n"
        commit(own_broker.address, "a/b%c", {ONE: 37})
        assert (live.path / "@groups/a%2Fb%25c/read/0").read_text() == "37\n"
    own_broker.stop()
    expected["a/b%c"]["read"][0] = 37
    assert seen_by_us(own_broker.log_dir) == expected

    resets = (("größe-групп", "90", "read/0"), ("🐘 with blanks", "7", "read/1"), ("new", "98", "read"))
    for group, offset, where in resets:
        run_kafkafs("groups", own_broker.log_dir, group, "--reset-to", offset, "--topic", where)
    run_kafkafs("groups", own_broker.log_dir, "billing", "--reset-to", "earliest", "--topic", "read/0")
    run_kafkafs("groups", own_broker.log_dir, "billing", "--reset-to", "latest", "--topic", "read/1")
    end = json.loads(run_kafkafs("groups", own_broker.log_dir, "billing", "--json").stdout)["offsets"][1]["offset"]
    assert not faults(own_broker.log_dir)

    address = started_again(own_broker, 7)
    assert known_to_the_broker(address, "billing") == {ONE: 0, TWO: end}
    assert known_to_the_broker(address, "größe-групп") == {ONE: 90, TWO: 51}
    assert known_to_the_broker(address, "🐘 with blanks") == {ONE: 35, TWO: 7}
    assert known_to_the_broker(address, "a/b%c") == {ONE: 37, TWO: 53}
    assert known_to_the_broker(address, "in transactions") == {ONE: 10, TWO: None}
    got = console_consumer(address, "new", 4)
    assert sorted(got, key=len)[-2:] != got  # two per partition, and the transactions' in the second
    assert got.count("98") == 2
    assert got.count("99") == 2
    described = run_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "--bootstrap-server", address, "--describe", "--group", "größe-групп",
    )  # fmt: skip
    assert [line.split()[1:5] for line in described.splitlines() if "read" in line] == [
        ["read", "0", "90", "100"],
        ["read", "1", "51", str(end)],
    ]
    own_broker.stop()
    assert seen_by_us(own_broker.log_dir)["new"]["read"][0] == 100


# `kafkafs transactions` on a running broker's directory, beside what the broker tells `kafka-transactions.sh`.


@pytest.fixture
def transactions_own_broker(tmp_path):
    running = Broker(
        tmp_path / "broker",
        {"transaction.state.log.num.partitions": "3", "transaction.state.log.replication.factor": "1"},
    )
    try:
        Client(running.start().address).create_topic("t", 2)
        yield running
    finally:
        running.kill()


def rows_of(printed):
    """The cells of a table of Kafka's tools, without its headings."""
    lines = [line for line in printed.splitlines() if "\t" in line]
    return [line.split() for line in lines[1:]]


def told(log_dir, *arguments):
    return json.loads(output_of("transactions", log_dir, *arguments, "--json"))


@pytest.mark.nightly
@requires_kafka
def test_as_the_broker_tells_it(transactions_own_broker):
    address, log_dir = transactions_own_broker.address, transactions_own_broker.log_dir

    def tool(*arguments):
        return rows_of(
            run_tool("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", address, *arguments)
        )

    def markers_are_written():
        """The broker answers a commit before it writes the markers, and writes that it is complete after them."""
        return not any(row[3].startswith("Prepare") for row in tool("list"))

    def compare(open_partition):
        wait_for("the markers of ended transactions", markers_are_written)
        for partition in (0, 1):
            (ours,) = told(log_dir, f"t/{partition}")["partitions"]
            theirs = tool("describe-producers", "--topic", "t", "--partition", str(partition))
            assert sorted(
                [
                    str(one["producer_id"]),
                    str(one["producer_epoch"]),
                    str(one["coordinator_epoch"]),
                    str(one["last_sequence"]),
                    str(one["last_timestamp"]),
                    "None" if one["transaction"] is None else str(one["transaction"]["first_offset"]),
                ]
                for one in ours["producers"]
            ) == sorted(theirs)
            open_ones = [one["transaction"] for one in ours["producers"] if one["transaction"] is not None]
            assert [one["holds_last_stable_offset"] for one in open_ones] == [True] * (partition == open_partition)
        assert tool("find-hanging", "--topic", "t", "--max-transaction-timeout", "0") == []
        hanging = [
            one["transaction"]["hanging"]
            for partition in told(log_dir, "t", "--timeout", 0)["partitions"]
            for one in partition["producers"]
            if one["transaction"] is not None
        ]
        assert hanging == [False] * (open_partition is not None)
        listed = {row[0]: row for row in tool("list")}
        ours = {one["transactional_id"]: one for one in told(log_dir)["transactional_ids"]}
        assert {name: (row[2], row[3]) for name, row in listed.items()} == {
            name: (str(one["producer_id"]), one["state"]) for name, one in ours.items()
        }

    async def run():
        async with AIOKafkaProducer(bootstrap_servers=address, transactional_id="done") as producer:
            for ends in (producer.commit_transaction, producer.abort_transaction):
                await producer.begin_transaction()
                for partition in (0, 1):
                    await producer.send_and_wait("t", b"x" * 40, partition=partition)
                await ends()
        await asyncio.to_thread(compare, None)
        async with AIOKafkaProducer(bootstrap_servers=address, transactional_id="open") as producer:
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"not yet", partition=1)
            await producer.send_and_wait("t", b"not yet", partition=1)
            await asyncio.to_thread(compare, 1)
            await producer.commit_transaction()

    asyncio.run(run())
