"""A broker on a directory that `kafkafs revive` made, with the server.properties in it, and what it must serve."""

import asyncio
import json
import re
import shutil

from aiokafka import AIOKafkaProducer, TopicPartition

from tests.interop.adoption import adopted_as_it_is
from tests.interop.client import Message
from tests.interop.kafka import Broker, free_ports, run_tool
from tests.support.commands import output_of

TOOLS = "org.apache.kafka.tools"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class RevivedBroker(Broker):
    """A broker with the server.properties of `log_dir`, unchanged but for settings that make it quicker."""

    def __init__(self, directory, log_dir, port, config=None):
        super().__init__(directory)
        self.log_dir = log_dir
        self.address = f"127.0.0.1:{port}"
        more = {"group.initial.rebalance.delay.ms": "0", "initial.broker.registration.timeout.ms": "170000"}
        lines = "".join(f"{key}={value}\n" for key, value in {**more, **(config or {})}.items())
        self.properties.write_text((log_dir / "server.properties").read_text() + lines)


def port_pair():
    """A free port whose successor is free too."""
    while True:
        first, second = free_ports(2)
        if second == first + 1:
            return first


def revived(directory, sources, *options, config=None):
    """Runs `kafkafs revive` and returns a broker for the result, not started yet, and the command's report."""
    port = port_pair()
    target = directory / "revived"
    told = output_of("revive", *sources, *options, "--to", target, "--listener", f"127.0.0.1:{port}", "--json")
    return RevivedBroker(directory / "broker", target, port, config), json.loads(told)


def without_metadata(source, target):
    """A copy of a log directory without its metadata log."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__cluster_metadata-0", "bootstrap.checkpoint"))
    return target


def served(client, place):
    """Where a partition's log begins and ends, and what consumers get of it, in both isolations."""
    return client.offsets(*place), client.consume(*place), client.consume(*place, committed=True)


def served_as_expected(client, expected):
    """Every record at its offset, with timestamp, key, value and headers, in both isolations; log start and end."""
    for place, before in expected.items():
        assert served(client, place) == before, place


def group_continues(client, group, topic, partition, offset):
    """The group's committed offset is there, and a member that joins is given the message at it first."""
    tp = TopicPartition(topic, partition)

    async def first_of(consumer):
        consumer.subscribe([topic])
        while True:
            got = await consumer.getmany(tp, timeout_ms=1000, max_records=1)
            if got.get(tp):
                return await consumer.committed(tp), got[tp][0].offset

    first = client.with_consumer(first_of, group_id=group, auto_offset_reset="none")
    assert first == (offset, offset)


def read_by_java(client, group, topic, count, protocol="classic"):
    """The offsets of the next `count` messages that a Java consumer of a group is given, which then commits. Unlike
    aiokafka it commits the leader's epoch too, and takes no messages from a leader with an older one. `protocol`:
    classic, or consumer (KIP-848)."""
    return _read(
        "ConsoleConsumer", client.address, group, topic, count,
        "--command-property", "auto.offset.reset=earliest", "--command-property", f"group.protocol={protocol}",
    )  # fmt: skip


def read_by_share_group(address, group, topic, count):
    """The offsets of the next `count` messages that a member of a share group is given, which are then done."""
    return _read("ConsoleShareConsumer", address, group, topic, count)


def _read(tool, address, group, topic, count, *options):
    said = run_tool(
        f"{TOOLS}.consumer.{tool}", "--bootstrap-server", address, "--topic", topic, "--group", group,
        "--max-messages", str(count), "--timeout-ms", "110000", *options,
        "--formatter-property", "print.offset=true", "--formatter-property", "print.value=false",
    )  # fmt: skip
    return [int(offset) for offset in re.findall(r"^Offset:(\d+)$", said, re.MULTILINE)]


def producers_write_on(client, topic, partition, transactional_id):
    """A plain, an idempotent and a transactional producer append, and what they wrote is there, in order."""
    _, end = client.offsets(topic, partition)
    client.produce(topic, [Message(b"plain")], partition)
    client.produce(topic, [Message(b"idempotent 1"), Message(b"idempotent 2")], partition, enable_idempotence=True)
    client.transactions(topic, [(True, [Message(b"committed")])], partition, id=transactional_id)
    values = [record.value for record in client.consume(topic, partition, start=end)]
    assert values == [b"plain", b"idempotent 1", b"idempotent 2", b"committed"]


def second_start_is_clean(broker):
    """The broker stops without a complaint, starts again without repairs or strays, and stops."""
    broker.stop()
    assert broker.complaints() == [], broker.complaints()[:5]
    broker.start()
    adopted_as_it_is(broker)
    broker.stop()
    assert broker.complaints() == [], broker.complaints()[:5]


def left_open(client, topic, messages, partition, id):
    """A transaction whose producer disappears without ending it."""

    async def run():
        producer = AIOKafkaProducer(
            bootstrap_servers=client.address, transactional_id=id, transaction_timeout_ms=900_000
        )
        await producer.start()
        await producer.begin_transaction()
        for message in messages:
            await producer.send_and_wait(topic, message.value, key=message.key, partition=partition)
        await producer.client.close()  # not stop(), which would abort it
        producer._closed = True
        producer._sender._sender_task.cancel()

    asyncio.run(run())


def configured(address, group, share_group, topic):
    """Everything that the metadata hold besides topics: an ACL, a user, quotas, dynamic configurations."""
    where = ("--bootstrap-server", address)
    alter = ("kafka.admin.ConfigCommand", *where, "--alter")
    run_tool(
        f"{TOOLS}.AclCommand", *where, "--add", "--allow-principal", "User:alice", "--operation", "Read",
        "--topic", topic,
    )  # fmt: skip
    for config_given, *entity in (
        ("SCRAM-SHA-256=[password=secret]", "--entity-type", "users", "--entity-name", "alice"),
        ("consumer_byte_rate=12345", "--entity-type", "users", "--entity-name", "alice"),
        ("producer_byte_rate=777", "--entity-type", "clients", "--entity-default"),
        ("log.cleaner.threads=2", "--entity-type", "brokers", "--entity-default"),
        ("consumer.session.timeout.ms=50000", "--entity-type", "groups", "--entity-name", group),
        ("share.auto.offset.reset=earliest", "--entity-type", "groups", "--entity-name", share_group),
        ("interval.ms=60000", "--entity-type", "client-metrics", "--entity-name", "m"),
    ):
        run_tool(*alter, "--add-config", config_given, *entity)


def asked(address):
    """What Kafka's tools say of everything in the metadata besides topics."""
    where = ("--bootstrap-server", address)
    configs = ("kafka.admin.ConfigCommand", *where, "--describe")
    answers = {
        "acls": run_tool(f"{TOOLS}.AclCommand", *where, "--list"),
        "users": run_tool(*configs, "--entity-type", "users"),
        "clients": run_tool(*configs, "--entity-type", "clients", "--entity-default"),
        "brokers": run_tool(*configs, "--entity-type", "brokers", "--entity-default"),
        "groups": run_tool(*configs, "--entity-type", "groups"),
        "metrics": run_tool(*configs, "--entity-type", "client-metrics", "--entity-name", "m"),
        "features": run_tool(f"{TOOLS}.FeatureCommand", *where, "describe"),
    }
    # Groups that nothing is set for are named too. Of a feature its level; the epoch is that of the metadata log. The
    # quorum is a new one, with a version of its own.
    return {
        name: sorted(
            re.sub(r"\s*Epoch: \d+", "", line.strip())
            for line in said.splitlines()
            if line.strip() and not line.startswith("Dynamic configs for group") and "kraft.version" not in line
        )
        for name, said in answers.items()
    }


def topic_ids(address):
    """The ids of all topics, by name."""
    said = run_tool(f"{TOOLS}.TopicCommand", "--bootstrap-server", address, "--describe")
    return dict(re.findall(r"Topic: (\S+)\s+TopicId: (\S+)", said))


def transacted(address, count, topic, id):
    """A Java producer, whose records in `__transaction_state` name the transaction version, writes `count` messages."""
    run_tool(
        f"{TOOLS}.ProducerPerformance", "--bootstrap-server", address, "--topic", topic, "--num-records", str(count),
        "--record-size", "10", "--throughput", "-1", "--transactional-id", id,
        "--transaction-duration-ms", "1000",
    )  # fmt: skip
