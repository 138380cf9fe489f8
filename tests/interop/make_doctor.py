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
from tests.support.waiting import wait_for

PARTITIONS = 14
CONFIG = {
    "log.flush.offset.checkpoint.interval.ms": "3600000",  # so that kill -9 leaves recovery points of 0
    "log.index.size.max.bytes": "4096",  # kill -9 leaves indexes of full size
}


def make_origin(place):
    """`place` gets the directories: after a clean stop, and after kill -9."""
    with Broker(place / "broker", CONFIG) as broker:
        client = Client(broker.start().address)
        client.create_topic("p", PARTITIONS, {"retention.ms": -1, "internal.segment.bytes": 4000})
        for partition in range(PARTITIONS):
            messages = [Message(bytes(100), b"%d" % number) for number in range(60)]
            client.produce("p", messages, partition, batch=5)
        client.transactions("p", [(False, [Message(b"aborted")])], PARTITIONS - 1)
        wait_for("the marker of the transaction", lambda: client.offsets("p", PARTITIONS - 1)[1] == 62)
        broker.kill()
        killed = Path(shutil.copytree(broker.log_dir, place / "killed"))
        broker.start()
        broker.stop()
        assert broker.complaints() == []
        return {"clean": broker.log_dir, "killed": killed}


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
