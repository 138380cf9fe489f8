"""`kafkafs transactions` on a running broker's directory, beside what the broker tells `kafka-transactions.sh`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.interop.client import Client
from tests.interop.kafka import Broker, requires_kafka, run_tool
from tests.support.commands import output_of
from tests.support.waiting import wait_for

pytestmark = requires_kafka


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(
        tmp_path / "broker",
        {"transaction.state.log.num.partitions": "3", "transaction.state.log.replication.factor": "1"},
    )
    try:
        Client(running.start().address).create_topic("t", 2)
        yield running
    finally:
        running.kill()


def rows_of(printed: str) -> list[list[str]]:
    """The cells of a table of Kafka's tools, without its headings."""
    lines = [line for line in printed.splitlines() if "\t" in line]
    return [line.split() for line in lines[1:]]


def told(log_dir: Path, *arguments: object) -> Any:
    return json.loads(output_of("transactions", log_dir, *arguments, "--json"))


def test_as_the_broker_tells_it(own_broker: Broker) -> None:
    address, log_dir = own_broker.address, own_broker.log_dir

    def tool(*arguments: str) -> list[list[str]]:
        return rows_of(
            run_tool("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", address, *arguments)
        )

    def markers_are_written() -> bool:
        """The broker answers a commit before it writes the markers, and writes that it is complete after them."""
        return not any(row[3].startswith("Prepare") for row in tool("list"))

    def compare(open_partition: int | None) -> None:
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

    async def run() -> None:
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
