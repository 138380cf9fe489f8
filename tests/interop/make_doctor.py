"""Makes the fixture `doctor`: a log directory after a clean stop of a broker, and the same one after kill -9 before it.

    python -m tests.interop.make_doctor DIRECTORY

DIRECTORY gets `doctor`, which `tests/fixtures/pack.py` packs. `tests/interop/test_doctor.py` breaks copies of both.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from tests.interop.client import Client, Message
from tests.interop.kafka import Broker
from tests.interop.surroundings import surroundings
from tests.support.waiting import wait_for

PARTITIONS = 14
CONFIG = {
    "log.flush.offset.checkpoint.interval.ms": "3600000",  # so that kill -9 leaves recovery points of 0
    "replica.high.watermark.checkpoint.interval.ms": "3600000",  # and, however slow it was, no high watermarks
    "log.index.size.max.bytes": "4096",  # kill -9 leaves indexes of full size
}


TOPIC = {"retention.ms": -1, "internal.segment.bytes": 4000}
OLD_MS = 1_000_000_000_000  # in 2001
YEARS_MS = 20 * 365 * 24 * 3_600_000


def make_origin(place, *, messages=60, keys=1000, old=0, settings=None, later=None, kind=""):
    """`place` gets the directories: after a clean stop, and after kill -9. Each partition gets `messages` with so many
    keys, the first `old` of them with an old timestamp. `settings`: the topic's; `later`: those that it gets in the
    end, which the broker does not obey before it is stopped. `kind`: see surroundings.py; `place`/around gets, by
    state, what is around the directories."""
    config = CONFIG if later is None else {**CONFIG, "log.initial.task.delay.ms": "3600000"}
    around, kept = place / "around-now", {}

    def keep(name):
        kept[name] = Path(shutil.copytree(broker.log_dir, place / name))
        shutil.copytree(around, place / "around" / name)

    broker = Broker(place / "broker", config)
    with surroundings(kind, around) as beside, broker:
        client = Client(broker.reconfigure(beside).start().address)
        client.create_topics({"p": (PARTITIONS, {**TOPIC, **(settings or {})})}, replicas=[1])
        if kind == "nodes":
            client.create_topics({"followed": (2, TOPIC)}, replicas=[3, 1])
        for partition in range(PARTITIONS):
            batch = [
                Message(bytes(100), b"%d" % (number % keys), timestamp=OLD_MS if number < old else None)
                for number in range(messages)
            ]
            client.produce("p", batch, partition, batch=5)
        client.transactions("p", [(False, [Message(b"aborted", b"0")])], PARTITIONS - 1)
        wait_for("the marker of the transaction", lambda: client.offsets("p", PARTITIONS - 1)[1] == messages + 2)
        if "cleanup.policy" in (settings or {}):
            cleaned = broker.log_dir / "cleaner-offset-checkpoint"
            wait_for("the cleaner", lambda: cleaned.exists() and cleaned.read_text().count("\np ") == PARTITIONS)
        if kind == "tiered":
            firsts = [broker.log_dir / f"p-{partition}" / f"{0:020}.log" for partition in range(PARTITIONS)]
            wait_for("the uploads", lambda: not any(path.exists() for path in firsts))
        if later is not None:
            client.alter_topic("p", {**TOPIC, **later})
        broker.kill()
    keep("killed")
    with surroundings(kind, around) as beside, broker:
        broker.reconfigure(beside).start()
        broker.stop()
    assert kind or broker.complaints() == []
    keep("clean")
    return kept


def main(directory):
    with tempfile.TemporaryDirectory() as temporary:
        origin = make_origin(Path(temporary))
        fixture = directory / "doctor"
        fixture.mkdir(parents=True)
        for name, source in origin.items():
            shutil.copytree(source, fixture / name)
            (fixture / name / ".lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
