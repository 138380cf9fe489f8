"""Committed offsets: we read what consumers commit, and a group continues on a real broker where we reset it."""

import json
import re

from aiokafka import TopicPartition as ClientPartition

from storage.coordinators.groups import GroupOffsets
from storage.log.log_dir import LogDir
from tests.interop.adoption import faults
from tests.interop.client import Client, Message
from tests.interop.kafka import on_broker, requires_kafka, run_tool
from tests.storage.coordinators.test_group_offsets import plain
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.waiting import wait_for

pytestmark = [requires_kafka, on_broker]

TOOLS = "org.apache.kafka.tools"
ONE, TWO = ("read", 0), ("read", 1)
GROUPS = ("billing", "größe-групп", "🐘 with blanks", "a/b%c", ".dot")
SETTINGS = {"offsets.topic.num.partitions": "7"}


def seen_by_us(log_dir):
    offsets = GroupOffsets(LogDir.open_read_only(log_dir))
    found = plain(offsets.groups())
    assert offsets.problems() == []
    return found


@requires_fuse
def test_what_consumers_commit_and_where_we_let_them_go_on(own_broker, tmp_path):
    log_dir = own_broker.log_dir
    client = Client(own_broker.start().address)
    client.create_topic("read", 2)
    for place in (ONE, TWO):
        client.produce("read", [Message(b"%d" % n) for n in range(100)], place[1])
    for number, group in enumerate(GROUPS):
        client.commit(group, {ONE: 33 + number, TWO: 50 + number})

    async def commit_in_transactions(producer):
        for offset, end in ((10, producer.commit_transaction), (20, producer.abort_transaction)):
            await producer.begin_transaction()
            await producer.send_and_wait("read", b"x", partition=1)
            await producer.send_offsets_to_transaction({ClientPartition(*ONE): offset}, "in transactions")
            await end()

    client.with_producer(commit_in_transactions, transactional_id="tx")
    expected = {group: {"read": {0: 33 + number, 1: 50 + number}} for number, group in enumerate(GROUPS)}
    expected["in transactions"] = {"read": {0: 10}}
    assert seen_by_us(log_dir) == expected  # while the broker runs
    with mounted(log_dir, tmp_path / "live") as live:
        assert (live.path / "@groups/a%2Fb%25c/read/0").read_text() == "36\n"
        client.commit("a/b%c", {ONE: 37})
        assert (live.path / "@groups/a%2Fb%25c/read/0").read_text() == "37\n"
    own_broker.stop()
    expected["a/b%c"]["read"][0] = 37
    assert seen_by_us(log_dir) == expected

    for group, offset, where in (
        ("größe-групп", "90", "read/0"),
        ("🐘 with blanks", "7", "read/1"),
        ("new", "98", "read"),
        ("billing", "earliest", "read/0"),
        ("billing", "latest", "read/1"),
    ):
        run_kafkafs("groups", log_dir, group, "--reset-to", offset, "--topic", where)
    end = json.loads(run_kafkafs("groups", log_dir, "billing", "--json").stdout)["offsets"][1]["offset"]
    assert not faults(log_dir)

    client = Client(own_broker.start().address)
    # Its group coordinator reads all commits first.
    loaded = re.compile("Finished loading .*from __consumer_offsets-")
    wait_for("the groups", lambda: len(loaded.findall(own_broker.log_since_start())) == 7)
    assert client.offsets(*TWO)[1] == end
    for group, offsets in {
        "billing": (0, end),
        "größe-групп": (90, 51),
        "🐘 with blanks": (35, 7),
        "a/b%c": (37, 53),
        "in transactions": (10, None),
    }.items():
        assert client.committed(group, ONE, TWO) == dict(zip((ONE, TWO), offsets, strict=True)), group
    # Kafka's own consumer gets two messages of each partition; those of transactions are after them.
    got = run_tool(
        f"{TOOLS}.consumer.ConsoleConsumer", "--bootstrap-server", client.address, "--topic", "read", "--group", "new",
        "--max-messages", "4", "--timeout-ms", "60000", "--command-property", "auto.offset.reset=none",
    )  # fmt: skip
    assert sorted(got.split()) == ["98", "98", "99", "99"]
    own_broker.stop()
    assert seen_by_us(log_dir)["new"]["read"][0] == 100
