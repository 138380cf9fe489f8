"""Threads that append: through one file that stays open, with tools, as jsonl, by key; or as a broker's producers."""

import json
import os
import random
import subprocess
from contextlib import suppress
from threading import Thread

from tests.soak.ledger import key_of, line_of

KEYS = 20  # of each writer that has keys
_SECONDS = 120  # a tool that takes longer counts as failed


class Writer(Thread):
    """Writes some lines, waits, and again; each batch is noted before and after in the ledger. `write` returns how many
    lines were acknowledged, the first ones; of the others nothing is known.

    Messages without keys are read all the time: on a busy machine their writers wait for that.
    """

    def __init__(self, number, ledger, stop, per_second, *, keyed=False):
        super().__init__(name=f"writer {number}")
        self.bug = None
        self.keyed = keyed
        self._number = number
        self._ledger = ledger
        self._stop_now = stop
        self._per_second = per_second
        self._dice = random.Random(number)

    def run(self):
        try:
            while not self._stop_now.is_set():
                if not self.keyed and self._ledger.is_behind():
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
        messages = self._ledger.begin(self._number, count)
        lines = [self.format(line_of(message, self._dice), key_of(message, KEYS)) for message in messages]
        done = 0
        try:
            done = self.write(lines)
        except (OSError, subprocess.SubprocessError):
            self.close()
        finally:
            self._ledger.end(messages, done)

    def close(self):
        """After the last write, and one that failed."""


class MountWriter(Writer):
    """Appends to a file of the tree while the mount is there."""

    def __init__(self, *arguments, lives, file, keyed=False):
        super().__init__(*arguments, keyed=keyed)
        self._lives = lives
        self._path = lives.path / file
        self._fd = -1

    def format(self, line, key):
        if self._path.suffix != ".jsonl":
            return line + b"\n"
        fields = {"value": line.decode()} | ({"key": key.decode()} if self.keyed else {})
        return json.dumps(fields).encode() + b"\n"

    def write(self, lines):
        return self._append(b"".join(lines), len(lines)) if self._lives.serving.wait(1) else 0

    def _append(self, data, count):
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        while data:
            data = data[os.write(self._fd, data) :]
        if self._dice.random() < 0.05:
            os.fsync(self._fd)
        if self._dice.random() < 0.02:
            self.close()
        return count

    def close(self):
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1


class ToolWriter(MountWriter):
    """Appends with `tee` and with bash's `>>`."""

    def _append(self, data, count):
        command = self._dice.choice((["tee", str(self._path)], ["bash", "-c", 'cat >> "$0"', str(self._path)]))
        subprocess.run(command, input=data, capture_output=True, timeout=_SECONDS, check=True)
        return count


class Producer(Writer):
    """Produces to a broker with kcat."""

    def __init__(self, *arguments, address, topic, partition, keyed=False):
        super().__init__(*arguments, keyed=keyed)
        self._command = [
            "kcat",
            "-P",
            "-b",
            address,
            "-t",
            topic,
            "-p",
            str(partition),
            "-X",
            "enable.idempotence=true",
        ]
        self._command += ["-K", "|"] if keyed else []

    def format(self, line, key):
        return (key + b"|" if self.keyed else b"") + line + b"\n"

    def write(self, lines):
        subprocess.run(self._command, input=b"".join(lines), capture_output=True, timeout=_SECONDS, check=True)
        return len(lines)
