"""Threads that append: through one file that stays open, with tools, as jsonl, by key; or as a broker's producers."""

from __future__ import annotations

import json
import os
import random
import subprocess
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from threading import Thread

from tests.soak.ledger import Ledger, line_of

_SECONDS = 120  # a tool that takes longer counts as failed


class Writer(Thread, ABC):
    """Writes some lines, waits, and again; each batch is noted before and after in the ledger.

    `IS_FOLLOWED`: its messages are read all the time. On a busy machine it waits for that.
    """

    IS_FOLLOWED = True

    def __init__(self, number, ledger, stop, per_second):
        super().__init__(name=f"writer {number}")
        self.number = number
        self.failed = 0
        self.bug = None
        self._ledger = ledger
        self._stop_now = stop
        self._per_second = per_second
        self._dice = random.Random(number)

    def run(self):
        try:
            while not self._stop_now.is_set():
                if self.IS_FOLLOWED and self._ledger.is_behind():
                    self._stop_now.wait(0.2)
                    continue
                count = self._dice.choice((1, 3, 10, 40))
                self._write_some(count)
                self._stop_now.wait(count / self._per_second)
        except BaseException as error:  # noqa: BLE001 - the soak reports it
            self.bug = error
        finally:
            self.close()

    def _write_some(self, count):
        messages = self._ledger.begin(self.number, count)
        lines = [line_of(message, self._dice) for message in messages]
        done = 0
        try:
            done = self.write(lines, messages)
        except (OSError, subprocess.SubprocessError):
            self.failed += 1
        self._ledger.acknowledge(messages[:done])
        self._ledger.doubt(messages[done:])

    @abstractmethod
    def write(self, lines, messages):
        """Returns how many lines were acknowledged, the first ones; of the others nothing is known."""

    def close(self):
        """After the last write."""


class MountWriter(Writer):
    """Appends to a file of the tree while the mount is there."""

    def __init__(self, number, ledger, stop, per_second, lives, file):
        super().__init__(number, ledger, stop, per_second)
        self._lives = lives
        self._path = lives.path / file
        self._jsonl = file.endswith(".jsonl")
        self._fd = -1

    def write(self, lines, messages):
        if not self._lives.serving.wait(1):
            return 0
        parts = [self.format(line, message) for line, message in zip(lines, messages, strict=True)]
        try:
            return self._append(parts)
        except OSError:
            self.close()
            raise

    def format(self, line, _message):
        """What is written for a line."""
        return json.dumps({"value": line.decode()}).encode() + b"\n" if self._jsonl else line + b"\n"

    def _append(self, parts):
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        data, taken = b"".join(parts), 0
        while taken < len(data):
            taken += os.write(self._fd, data[taken:])
        if self._dice.random() < 0.05:
            os.fsync(self._fd)
        if self._dice.random() < 0.02:
            self.close()
        return len(parts)

    def close(self):
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1


class ToolWriter(MountWriter):
    """Appends with `tee` and with bash's `>>`."""

    def _append(self, parts):
        command = self._dice.choice((["tee", str(self._path)], ["bash", "-c", 'cat >> "$0"', str(self._path)]))
        done = subprocess.run(
            command, input=b"".join(parts), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise OSError(f"{command[0]}: exit code {done.returncode}")
        return len(parts)


class KeyWriter(MountWriter):
    """Updates its own keys of a compacted topic. What the ledger forgets of it, `latest` keeps."""

    IS_FOLLOWED = False
    KEYS = 20

    def __init__(self, number, stop, per_second, lives, file, latest):
        super().__init__(number, Ledger(), stop, per_second, lives, file)
        self._latest = latest

    def key(self, message):
        return b"w%d-k%d" % (self.number, message.number % self.KEYS)

    def format(self, line, message):
        return json.dumps({"key": self.key(message).decode(), "value": line.decode()}).encode() + b"\n"

    def write(self, lines, messages):
        done = 0
        try:
            done = super().write(lines, messages)
        finally:
            for number, message in enumerate(messages):
                self._latest.write(self.key(message), message, acknowledged=number < done)
        return done


class Producer(Writer):
    """Produces to a broker with kcat."""

    def __init__(self, number, ledger, stop, per_second, address, topic, partition):
        super().__init__(number, ledger, stop, per_second)
        self._command = [
            "kcat", "-P", "-b", address, "-t", topic, "-p", str(partition), "-X", "enable.idempotence=true",
        ]  # fmt: skip

    def write(self, lines, messages):
        subprocess.run(
            self._command, input=b"".join(line + b"\n" for line in lines),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_SECONDS, check=True,
        )  # fmt: skip
        return len(lines)


class KeyProducer(Producer):
    """Updates its own keys of a compacted topic of a broker."""

    IS_FOLLOWED = False

    def __init__(
        self, number, stop, per_second, address, topic, partition,
        latest):  # fmt: skip
        super().__init__(number, Ledger(), stop, per_second, address, topic, partition)
        self._command += ["-K", "|"]
        self._latest = latest

    def write(self, lines, messages):
        keys = [b"w%d-k%d" % (self.number, message.number % KeyWriter.KEYS) for message in messages]
        done = 0
        try:
            done = super().write([key + b"|" + line for key, line in zip(keys, lines, strict=True)], messages)
        finally:
            for number, (key, message) in enumerate(zip(keys, messages, strict=True)):
                self._latest.write(key, message, acknowledged=number < done)
        return done


def file_of(topic, partition, *, jsonl=False):
    """An append file's path in the tree."""
    name = "@append.jsonl" if jsonl else "@append"
    return str(Path(topic, name) if partition is None else Path(topic, str(partition), name))
