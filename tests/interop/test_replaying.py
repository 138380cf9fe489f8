"""`kafkafs replay` into a real broker: every message as it was, groups that continue, a run that is killed."""

import json
import random
import shutil
import signal
import time

import pytest

from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, on_broker, requires_kafka
from tests.support.commands import process, run
from tests.support.waiting import wait_for

pytest.importorskip("confluent_kafka", reason="replay needs kafkafs[replay]")
pytestmark = [requires_kafka, on_broker]


def random_messages(count, seed):
    rng, now = random.Random(seed), int(time.time() * 1000)
    messages = []
    for number in range(count):
        key, value = rng.choice([b"", b"\0\xff%d" % (number % 7), b"k"]), rng.randbytes(rng.randrange(300))
        headers = rng.choice([(), (("h", b"\xff\0"), ("h", None), ("", b"")), (("ü", b"x"),)])
        key, value = rng.choice([(key, value), (None, value), (key, None), (key, b"")])
        messages.append(Message(value, key, headers, now - rng.randrange(10**6)))
    return messages


def contents(client, topic, partition=0, **options):
    return [message[1:] for message in client.consume(topic, partition, **options)]


def replay(log_dir, broker, *arguments):
    result = run("replay", log_dir, *arguments, "--to", broker.address)
    assert result.exit_code == 0, result.output
    return result


def copy_of(broker, path):
    shutil.copytree(broker.log_dir, path, ignore=shutil.ignore_patterns("*.lock", ".lock"))
    return path


def test_messages_and_groups(broker, client, tmp_path):
    client.create_topic("rp-plain", 2)
    client.create_topic("rp-tx", 1, {"cleanup.policy": "compact"})
    for partition in range(2):
        client.produce("rp-plain", random_messages(200, partition), partition)
    rounds = [Message(b"%d" % number, b"k%d" % number) for number in range(30)]
    client.transactions("rp-tx", [(True, rounds[:10]), (False, rounds[10:20]), (True, rounds[20:])], id="rp")
    client.commit("rp-group", {("rp-plain", 0): 33, ("rp-plain", 1): 200, ("rp-tx", 0): 15})
    log_dir = copy_of(broker, tmp_path / "log")
    renamed = ("--topic", "rp-plain=rp-plain2", "--topic", "rp-tx=rp-tx2")
    replay(log_dir, broker, "rp-*", *renamed, "--create", "--group", "rp-group", "--map", tmp_path / "map")
    for topic, partition in (("rp-plain", 0), ("rp-plain", 1), ("rp-tx", 0)):
        expected = contents(client, topic, partition, committed=True)
        assert contents(client, f"{topic}2", partition) == expected
    assert client.topic_config("rp-tx2")["cleanup.policy"] == "compact"
    places = [("rp-plain2", 0), ("rp-plain2", 1), ("rp-tx2", 0)]
    assert client.committed("rp-group", *places) == dict(zip(places, (33, 200, 10), strict=True))
    # A consumer of the group goes on where it would have gone on.
    (first,) = client.consume("rp-plain2", 0, start=33, end=34)
    assert first[1:] == contents(client, "rp-plain", 0)[33]


def test_a_message_that_the_broker_refuses(tmp_path):
    with Broker(tmp_path / "broker") as broker:  # of its own: it logs an error
        refusals(broker.start(), Client(broker.address), tmp_path)


def refusals(broker, client, tmp_path):
    messages = [Message(b"%d" % number) for number in range(100)]
    for number in (30, 31, 70):
        messages[number] = Message(random.Random(number).randbytes(60_000))
    client.create_topic("rp-large")
    client.create_topic("rp-small", 1, {"max.message.bytes": "50000"})
    client.produce("rp-large", messages)
    log_dir = copy_of(broker, tmp_path / "log")
    arguments = ("rp-large", "--topic", "rp-large=rp-small", "--map", tmp_path / "map")
    result = run("replay", log_dir, *arguments, "--to", broker.address)
    assert result.exit_code == 4
    assert "rp-small does not take the message" in result.stderr
    assert "at offset 30" in result.stderr
    assert client.offsets("rp-small")[1] == 30
    replay(log_dir, broker, *arguments, "--skip-too-large")
    lines = [json.loads(line) for line in (tmp_path / "map").read_text().splitlines()[1:]]
    skipped = [(line["offset"], line["messages"]) for line in lines if line["target_offset"] is None]
    assert [offset + number for offset, messages in skipped for number in range(messages)] == [30, 31, 70]
    small = [content for content in contents(client, "rp-large") if len(content[3]) < 50_000]
    assert contents(client, "rp-small") == small


def killed_and_continued(broker, client, tmp_path, kills):
    """Kills after the map has grown; a run may end before it is killed."""
    count = 60_000
    messages = [Message(b"%d" % number, None, (), int(time.time() * 1000)) for number in range(count)]
    client.create_topic("rp-killed")
    client.create_topic("rp-again")
    client.produce("rp-killed", messages, batch=5000)
    log_dir, file = copy_of(broker, tmp_path / "log"), tmp_path / "map"
    arguments = ("rp-killed", "--topic", "rp-killed=rp-again", "--map", file)
    slow = tmp_path / "client.properties"
    slow.write_text("linger.ms=0\n")
    for _ in range(kills):
        end = client.offsets("rp-again")[1]
        with process("replay", log_dir, *arguments, "--to", broker.address, "--command-config", slow) as running:
            wait_for("more arrives", lambda end=end, running=running: arrived(client, end, running))
            running.send_signal(signal.SIGKILL)
    replay(log_dir, broker, *arguments)
    assert contents(client, "rp-again") == contents(client, "rp-killed")


def arrived(client, end, running):
    return client.offsets("rp-again")[1] > end or running.poll() is not None


def test_a_killed_run(broker, client, tmp_path):
    killed_and_continued(broker, client, tmp_path, 1)


@pytest.mark.nightly
def test_ten_killed_runs(own_broker, tmp_path):
    own_broker.start()
    killed_and_continued(own_broker, Client(own_broker.address), tmp_path, 10)


SETTINGS = {}
