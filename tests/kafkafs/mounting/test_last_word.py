"""What is heard of a process that has ended: how it ended, or that it could not say so."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from kafkafs.mounting.mountpoint import listening

SERVER = """
import sys
from kafkafs.mounting import last_word
with last_word.left_behind():
    print("ready", flush=True)
    order = sys.stdin.readline().strip()
    if order:
        raise ValueError(order)
"""


def heard_after(order: bytes | None) -> str | None:
    """The last word of a process that ends well (b""), with an error (its text), or is killed (None)."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        with listening(server.pid) as said:
            if order is None:
                server.send_signal(signal.SIGKILL)
            server.communicate(order and order + b"\n", timeout=120)
            return said()


@pytest.mark.parametrize(("order", "word"), [(b"", ""), ("kaputt: ü".encode(), "kaputt: ü"), (None, None)])
def test_how_it_ended(order: bytes | None, word: str | None) -> None:
    assert heard_after(order) == word


def test_a_long_message_is_cut() -> None:
    word = heard_after(b"x" * 100_000)
    assert word == "x" * (64 << 10)


def test_a_process_that_leaves_no_word_behind() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other, listening(other.pid) as said:
        other.communicate()
        assert said() == ""
    with listening(other.pid) as said:  # it has ended
        assert said() == ""
