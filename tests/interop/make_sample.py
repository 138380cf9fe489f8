"""Makes examples/sample-log, the log directory that examples/quickstart.sh shows, with a real broker.

    python -m tests.interop.make_sample DIRECTORY

A shop on two days of November 2026: `orders` (two partitions, several segments), `clicks` (lz4, headers), `accounts`
(compacted: the latest state per key, one deleted), `payments` (transactions, one of them aborted), and the offsets that
the consumer group `billing` committed. Values are the same each time; what the broker adds (ids, epochs) is not.
"""

import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.interop.client import Client, Message
from tests.interop.kafka import Broker
from tests.support.waiting import wait_for

START_MS = 1_795_046_400_000  # 2026-11-19T00:00:00Z
DAY_MS = 86_400_000
ITEMS = ("tea", "coffee", "mug", "kettle", "spoon", "sugar", "größe-L filter", "biscuits")
KEEP = {"retention.ms": -1, "message.timestamp.after.max.ms": 2**63 - 1}


def orders(count, seed):
    rng = random.Random(seed)
    messages = []
    for number in range(count):
        timestamp = START_MS + number * 2 * DAY_MS // count + rng.randrange(60_000)
        value = {
            "order": seed * 10_000 + number,
            "customer": f"c-{rng.randrange(40):02}",
            "item": rng.choice(ITEMS),
            "quantity": rng.randrange(1, 5),
            "price": round(rng.uniform(2, 60), 2),
        }
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        messages.append(Message(text.encode(), str(value["customer"]).encode(), (), timestamp))
    return messages


def clicks(count):
    rng = random.Random(7)
    pages = ("/", "/tea", "/coffee", "/basket", "/checkout", "/about")
    messages = []
    for number in range(count):
        timestamp = START_MS + DAY_MS + number * DAY_MS // count
        headers = (("agent", rng.choice((b"firefox", b"chrome", b"curl"))), ("trace", rng.randbytes(4)))
        messages.append(Message(f"GET {rng.choice(pages)} 200".encode(), None, headers, timestamp))
    return messages


def accounts():
    rng = random.Random(11)
    messages = []
    for number in range(120):
        customer = number % 12
        value = json.dumps({"customer": f"c-{customer:02}", "balance": rng.randrange(500)}).encode()
        messages.append(Message(value, f"c-{customer:02}".encode(), (), START_MS + number * 600_000))
    messages.append(Message(None, b"c-03", (), START_MS + DAY_MS))
    messages.append(Message(b'{"customer": "c-11", "balance": 0}', b"c-11", (), START_MS + DAY_MS + 1000))
    return messages


def payments():
    def paid(number):
        return Message(f"order {number} paid".encode(), str(number).encode(), (), START_MS + number * 3_600_000)

    return [(True, [paid(1), paid(2)]), (False, [paid(3), paid(4)]), (True, [paid(5)])]


def fill(client, log_dir):
    client.create_topic("orders", 2, {**KEEP, "internal.segment.bytes": 16_000, "index.interval.bytes": 2048})
    client.create_topic("clicks", 1, {**KEEP, "compression.type": "lz4"})
    client.create_topic("payments", 1, KEEP)
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "internal.segment.bytes": 2_000}
    client.create_topic("accounts", 1, {**KEEP, **compacted})
    client.produce("orders", orders(500, 1), 0, batch=20)
    client.produce("orders", orders(200, 2), 1, batch=20)
    client.produce("clicks", clicks(600), batch=100)
    client.transactions("payments", payments())
    client.produce("accounts", accounts(), batch=10)
    client.commit("billing", {("orders", 0): 420, ("orders", 1): 200})
    wait_for("the cleaner", lambda: len(client.consume("accounts")) <= 60)
    wait_for("the deletion of what it replaced", lambda: not list(log_dir.glob("*/*.deleted")))


def main(destination):
    with tempfile.TemporaryDirectory() as temporary:
        broker = Broker(Path(temporary), {"log.index.size.max.bytes": "65536"})
        try:
            fill(Client(broker.start().address), broker.log_dir)
            broker.stop()
        finally:
            broker.kill()
        shutil.copytree(broker.log_dir, destination)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
