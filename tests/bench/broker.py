"""The peers: kcat and Kafka's console consumer, from a real broker that holds the same messages."""

import subprocess

from tests.bench.data import CACHE, keyed_lines, lines
from tests.bench.measure import Row, run_seconds
from tests.interop.client import Client
from tests.interop.kafka import HAVE_KAFKA, Broker, java

TOPIC = "plain"
KEYED_TOPIC = "keyed"


def serving(messages, topic=TOPIC):
    """A started broker with the messages in one partition, uncompressed; its directory is kept for the next time.
    `topic`: TOPIC, or KEYED_TOPIC for those with keys."""
    keyed = topic == KEYED_TOPIC
    directory = CACHE / f"broker-{'keyed-' if keyed else ''}{messages}"
    broker = Broker(directory, {"log.retention.ms": "-1", "log.segment.bytes": str(1 << 30)}, quick_jvm=False).start()
    client = Client(broker.address)
    if topic not in client.topics():
        client.create_topic(topic)
    if client.offsets(topic)[1] == 0:
        command = ["kcat", "-P", "-b", broker.address, "-t", topic, "-p", "0", "-X", "batch.size=16384"]
        source = ["-K", ":", "-l", str(keyed_lines(messages))] if keyed else ["-l", str(lines(messages))]
        subprocess.run([*command, *source], check=True)
    if client.offsets(topic)[1] != messages:
        broker.kill()
        raise AssertionError(f"{directory} holds {client.offsets(topic)} messages, not {messages}: remove it")
    return broker


def measure(context):
    """The broker's log directory afterwards, it being stopped; None where there is no Kafka."""
    if not HAVE_KAFKA:
        return None
    report, messages, size = context.report, context.messages, context.size
    broker = serving(messages)
    try:
        kcat = ["kcat", "-C", "-b", broker.address, "-t", TOPIC, "-p", "0", "-o", "beginning", "-e", "-q"]
        console = java(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", broker.address,
            "--topic", TOPIC, "--partition", "0", "--offset", "earliest", "--max-messages", str(messages),
            heap="1g",
        )  # fmt: skip
        console = [word for word in console if word != "-XX:TieredStopAtLevel=1"]
        cases = (
            ("kcat", kcat, "kcat -C -b BROKER -t plain -p 0 -o beginning -e -q", ("txt cold", "txt warm")),
            ("kcat -J", [*kcat, "-J"], "kcat -C … -e -q -J", ("jsonl cold", "jsonl warm")),
            ("console consumer", console, "kafka-console-consumer --max-messages N", ("txt cold",)),
        )
        for _ in range(context.runs):
            for name, command, shown, compare in cases:
                row = Row(name, shown, bytes=size if name != "kcat -J" else 0, messages=messages, compare=compare)
                report.add(row, run_seconds(command))
        broker.stop()
    finally:
        broker.kill()
    return broker.log_dir
