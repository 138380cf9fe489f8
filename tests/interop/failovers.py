"""Failovers of three brokers under load, while a mount and `cat --follow` read the directory of the one that loses.

    python -m tests.interop.failovers --rounds 20

In each round the leader alone accepts messages while the others are stopped (SIGSTOP), and is killed; another one
becomes the leader and accepts other messages; the first one comes back, truncates its log and leads again. Both readers
must then have exactly what the log holds, by an error or a note wherever they had read something else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

from tests.interop.kafka import Broker, run_tool
from tests.support.mounts import mounted

_SECONDS = 60
CONFIG = {
    "unclean.leader.election.enable": "true",
    "leader.imbalance.check.interval.seconds": "2",
    "leader.imbalance.per.broker.percentage": "0",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    "controller.quorum.election.timeout.ms": "2000",
    "controller.quorum.fetch.timeout.ms": "4000",
    "replica.lag.time.max.ms": "4000",
}


def eventually(condition, what):
    """Waits until the condition holds; what is wrong otherwise."""
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


class Follower:
    """`cat --follow`: its messages, without those that a note has taken back."""

    def __init__(self, directory):
        command = [sys.executable, "-m", "kafkafs", "cat", str(directory), "t", "-f", "--format", r"%o %s\n"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.given = []
        self.notes = 0
        self._thread = Thread(target=self._read)
        self._thread.start()

    def _read(self):
        assert self._process.stdout is not None
        for line in self._process.stdout:
            note = re.search(rb"truncated to (\d+)", line)
            if note:
                self.notes += 1
                self.given = [one for one in self.given if int(one.split()[0]) < int(note[1])]
            else:
                self.given = [*self.given, line]

    def close(self):
        self._process.terminate()
        self._process.wait()
        self._thread.join()


class Reader:
    """Reads a file of a mount on, and from its beginning after an error."""

    def __init__(self, path):
        self._path = path
        self._end = Event()
        self.given = b""
        self.errors = 0
        self._thread = Thread(target=self._read)
        self._thread.start()

    def _read(self):
        while not self._end.is_set():
            try:
                with self._path.open("rb", buffering=0) as file:
                    self.given = b""
                    while not self._end.wait(0.05):
                        self.given += file.read(1 << 16)
            except OSError:
                self.errors += 1

    def close(self):
        self._end.set()
        self._thread.join()


class Failovers:
    """Three brokers and the readers of the first one's directory."""

    def __init__(self, directory):
        self._brokers = [Broker(directory / f"n{number}", CONFIG) for number in (1, 2, 3)]
        voters = ",".join(f"{n}@{broker.controller_address}" for n, broker in enumerate(self._brokers, 1))
        for number, broker in enumerate(self._brokers, 1):
            broker.reconfigure({"node.id": str(number), "controller.quorum.voters": voters})
        self.log_dir = self._brokers[0].log_dir
        self._bootstrap = ",".join(broker.address for broker in self._brokers)
        self.messages = 0

    def begin(self):
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda broker: broker.start(), self._brokers))
        run_tool(
            "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self._brokers[0].address, "--create",
            "--topic", "t", "--replica-assignment", "1:2:3", "--config", "min.insync.replicas=1",
        )  # fmt: skip
        self._wait_for(lambda leader, replicas: leader == 1 and len(replicas) == 3)

    def round(self, number):
        first, *others = self._brokers
        self._write(b"%03d together" % number)
        self._wait_for(lambda leader, replicas: leader == 1 and len(replicas) == 3)
        for broker in others:
            os.kill(broker.pid, signal.SIGSTOP)
        try:
            self._write(b"%03d alone---" % number, to=first.address)
            time.sleep(1)  # the readers may read them
        finally:
            first.kill()
            for broker in others:
                os.kill(broker.pid, signal.SIGCONT)
        self._wait_for(lambda leader, _: leader in (2, 3))
        self._write(b"%03d others--" % number)
        first.start()
        self._write(b"%03d again---" % number)
        self._wait_for(lambda leader, replicas: leader == 1 and len(replicas) == 3)

    def check(self, follower, reader, path):
        """Waits until both readers have what the leader has."""
        command = ["kcat", "-C", "-b", self._brokers[0].address, "-t", "t", "-o", "beginning", "-e", "-q",
                   "-f", r"%o %s\n"]  # fmt: skip

        def agree():
            # Again each time: the leader shows messages only once the others have them.
            there = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=True).stdout
            self.messages = len(there.splitlines())
            values = b"".join(line.split(b" ", 1)[1] for line in there.splitlines(keepends=True))
            return b"".join(follower.given) == there and reader.given == values == path.read_bytes()

        eventually(agree, "the readers have other messages than the leader")

    def _write(self, word, to=None):
        lines = b"".join(b"%s %03d\n" % (word, number) for number in range(100))
        subprocess.run(
            ["kcat", "-P", "-b", to or self._bootstrap, "-t", "t", "-p", "0", "-X", "acks=1"],
            input=lines, capture_output=True, timeout=_SECONDS, check=True,
        )  # fmt: skip

    def _wait_for(self, condition):
        def holds():
            command = ["kcat", "-L", "-J", "-b", self._bootstrap, "-t", "t", "-m", "5"]
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
            partitions = json.loads(done.stdout)["topics"][0]["partitions"] if done.returncode == 0 else []
            return any(condition(one["leader"], [node["id"] for node in one["isrs"]]) for one in partitions)

        eventually(holds, "the partition has not the leader and the replicas that it should have")

    def close(self):
        for broker in self._brokers:
            broker.kill()


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.interop.failovers")
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        failovers = Failovers(Path(temporary))
        try:
            failovers.begin()
            with mounted(failovers.log_dir, Path(temporary) / "mnt") as mount:
                path = mount.path / "t" / "0" / "messages.txt"
                follower, reader = Follower(failovers.log_dir), Reader(path)
                try:
                    for number in range(chosen.rounds):
                        failovers.round(number)
                        failovers.check(follower, reader, path)
                        told = f"{failovers.messages} messages, {follower.notes} notes, {reader.errors} errors"
                        print(f"round {number}: {told}", flush=True)  # noqa: T201
                finally:
                    follower.close()
                    reader.close()
        finally:
            failovers.close()
    print("nothing skipped, doubled or made up")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
