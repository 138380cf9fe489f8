"""`kafkafs replay` into a real broker: every message as it was, groups that continue, a run that is killed."""

import json
import random
import shutil
import signal
import subprocess
import time

import pytest

from storage.format.block import Record
from tests.interop.client import Client, Message
from tests.interop.clusters import Cluster, partition_state
from tests.interop.kafka import Broker, free_ports, on_broker, requires_kafka
from tests.support.builders import Batch, build_log_dir
from tests.support.commands import process, run
from tests.support.waiting import wait_for

admins = pytest.importorskip("confluent_kafka.admin", reason="replay needs kafkafs[replay]")
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


SECRET = 'p"a\\s=s, w;ö'  # what needs quotes in a JAAS configuration


def certificates(directory):
    """An authority, and keys and certificates of a broker and of a client, each in one file, as Kafka has them."""
    directory.mkdir()

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=directory)

    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(*new, "-x509", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("broker", "client"):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-out", f"{name}.crt")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed)
        both = [(directory / f"{name}.{part}").read_text() for part in ("key", "crt")]
        (directory / f"{name}.pem").write_text("".join(both))
    return directory


def secure(broker, place):
    """Listeners beside the plain one: TLS with certificates of clients, and TLS with SASL; their addresses."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    protocols = ("PLAINTEXT", "CONTROLLER", "SSL", "SASL_SSL")
    places = (broker.address, broker.controller_address, *addresses)
    login = "org.apache.kafka.common.security"
    quoted = SECRET.replace("\\", "\\\\").replace('"', '\\"')
    broker.reconfigure(
        {
            "listeners": ",".join(f"{name}://{address}" for name, address in zip(protocols, places, strict=True)),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": place / "broker.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": place / "ca.pem",
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": escaped(
                f'{login}.plain.PlainLoginModule required user_plain="{quoted}";'
            ),
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
        }
    )
    return addresses, quoted


def escaped(text):
    """As the value of a properties file."""
    return "".join(letter if letter.isascii() else f"\\u{ord(letter):04x}" for letter in text.replace("\\", "\\\\"))


@pytest.mark.nightly
def test_tls_and_sasl(own_broker, tmp_path):
    place = certificates(tmp_path / "pem")
    (by_certificate, by_password), quoted = secure(own_broker, place)
    own_broker.start()
    client = Client(own_broker.address)
    messages = random_messages(300, 5)
    client.create_topic("rp-secure")
    client.produce("rp-secure", messages)
    admin = admins.AdminClient({"bootstrap.servers": own_broker.address})
    mechanism = admins.ScramCredentialInfo(admins.ScramMechanism.SCRAM_SHA_256, 4096)
    created = admins.UserScramCredentialUpsertion("scram", mechanism, SECRET.encode())
    admin.alter_user_scram_credentials([created])["scram"].result(60)
    log_dir = copy_of(own_broker, tmp_path / "log")
    trusted = f"ssl.truststore.type=PEM\nssl.truststore.location={place}/ca.pem\n"
    own = f"ssl.keystore.type=PEM\nssl.keystore.location={place}/client.pem\n"

    def login(kind, mechanism, user, secret):
        module = f'org.apache.kafka.common.security.{kind} required username="{user}" password="{secret}";'
        return f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\nsasl.jaas.config={escaped(module)}\n"

    scram, plain = ("scram.ScramLoginModule", "SCRAM-SHA-256", "scram"), ("plain.PlainLoginModule", "PLAIN", "plain")
    properties = tmp_path / "client.properties"
    for number, (address, text, error) in enumerate(
        [
            (by_certificate, f"security.protocol=SSL\n{trusted}{own}", None),
            (by_password, trusted + login(*scram, quoted), None),
            (by_password, trusted + login(*plain, quoted), None),
            (by_certificate, f"security.protocol=SSL\n{trusted}", "SSL"),
            (by_password, login(*plain, quoted), "certificate verify failed"),
            (by_password, trusted + login(*plain, "wrong"), "uthentication failed"),
            (by_password, trusted + login(*scram, "wrong"), "uthentication failed"),
        ]
    ):
        properties.write_text(text)
        renamed = ("--topic", f"rp-secure=rp-secure{number}", "--create", "--command-config", properties)
        result = run("replay", log_dir, "rp-secure", *renamed, "--to", address)
        if error is None:
            assert result.exit_code == 0, result.output
            assert contents(client, f"rp-secure{number}") == contents(client, "rp-secure")
        else:
            assert result.exit_code == 4
            assert error in result.stderr
            assert SECRET not in result.output


def _lines(file):
    return len(file.read_bytes().splitlines()) if file.exists() else 0


@pytest.mark.nightly
def test_a_node_of_three_is_killed(tmp_path):
    """A leader of some partitions goes while they are replayed, and comes back: nothing is missing or twice."""
    settings = {"default.replication.factor": "3", "min.insync.replicas": "2", "replica.lag.time.max.ms": "4000"}
    settings |= {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1000"}
    now, count = int(time.time() * 1000), 100_000
    records = [Record(b"%d" % (number % 9), b"%d" % number, (), now + number // 100) for number in range(count)]
    batches = [Batch(records[at : at + 500]) for at in range(0, count, 500)]
    log_dir = build_log_dir(tmp_path / "log", {"rp-three": [batches] * 3}).path
    cluster, file = Cluster(tmp_path / "cluster", settings), tmp_path / "map"
    try:
        cluster.start()
        client = Client(cluster.bootstrap)
        properties = tmp_path / "client.properties"
        properties.write_text("linger.ms=0\n")
        arguments = ("rp-three", "--create", "--map", file, "--command-config", properties)
        with process("replay", log_dir, *arguments, "--to", cluster.bootstrap, stderr=subprocess.PIPE) as running:
            wait_for("something arrives", lambda: running.poll() is not None or _lines(file) > 2)
            assert running.poll() is None, running.stderr.read()
            leader, _ = partition_state(cluster.bootstrap, "rp-three")
            cluster.nodes[leader].kill()
            cluster.nodes[leader].start()
            _, said = running.communicate(timeout=300)
        assert running.returncode == 0, said
        for partition in range(3):
            found = contents(client, "rp-three", partition)
            assert [(key, value) for _, _, key, value, *_ in found] == [record[:2] for record in records]
    finally:
        cluster.close()


SETTINGS = {}
