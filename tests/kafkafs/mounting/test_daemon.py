"""Forking: the parent knows when the child is ready, or why it is not. Each case in a process of its own."""

import signal
import subprocess
import sys
import textwrap

import pytest

from kafkafs.mounting.last_word import watch_outcome
from tests.support.fixtures import ROOT

PROGRAM = """
import os, signal, sys
from kafkafs.mounting import daemon
from kafkafs.mounting.mountpoint import MountError

class Shown:
    def begin(self, what, total):
        print("begin", what, total)
    def advance(self, amount):
        print("advance", amount)
    def end(self):
        print("end")

def work(listener):
    ready = listener.ready
{work}

try:
    daemon.start(work, say=print, progress=Shown())
    print("ready")
except MountError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def run(work):
    """`work` as the body of the function that the child runs; exit code and output of the parent."""
    program = PROGRAM.format(work=textwrap.indent(textwrap.dedent(work), "    "))
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    return result.returncode, result.stdout


def test_descriptors_are_not_inherited():
    assert run(
        """
        left = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                and os.path.exists(f"/proc/self/fd/{fd}")]
        raise MountError(repr([name for name in left if not name.startswith(("pipe:", "/dev/null", "/proc"))]))
        """
    ) == (4, "[]\n")


ENDED = "the process that should serve ended"


@pytest.mark.parametrize(
    ("work", "code", "words"),
    [
        ("raise MountError('größer\\nzwei', 2)", 2, "größer\nzwei"),
        ("raise MountError('held', 3)", 3, "held"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 4, f"{ENDED} by signal 9 before it was ready"),
        ("os._exit(7)", 4, f"{ENDED} with exit code 7 before it was ready"),
        # Nothing of the parent's runs in the child.
        ("sys.exit(0)", 4, "SystemExit: 0"),
        ("raise KeyboardInterrupt", 4, "KeyboardInterrupt"),
        ("1 / 0", 4, "ZeroDivisionError: division by zero"),
    ],
)
def test_its_error_is_the_parents(work, code, words):
    """A bug with its traceback."""
    exit_code, output = run(work)
    assert exit_code == code
    assert output == f"{words}\n" or (output.startswith("Traceback") and output.endswith(f"\n{words}\n\n"))


def test_what_it_says_and_how_far_it_is_is_shown():
    lines = ["begin recovery 70", "advance 7", "größer: " + "x" * 100_000, "end", "ready", ""]
    assert run(
        """
        listener.progress.begin("recovery", 70)
        listener.progress.advance(7)
        listener.say("größer: " + "x" * 100_000)
        listener.progress.end()
        ready(os.open(os.devnull, os.O_WRONLY))
        listener.progress.begin("too late", 1)
        listener.progress.advance(1)
        listener.say("too late")
        """
    ) == (0, "\n".join(lines))


# What is heard of a process that has ended: how it ended, or that it could not say so


SERVER = """
import sys
from kafkafs.mounting import last_word
with last_word.record_outcome():
    print("ready", flush=True)
    order = sys.stdin.readline().strip()
    if order:
        raise ValueError(order)
"""


@pytest.mark.parametrize(
    ("order", "word"),
    [("", ""), ("kaputt: ü", "kaputt: ü"), ("x" * 100_000, "x" * (64 << 10)), (None, None)],
    ids=["well", "with an error", "with a long one", "killed"],
)
def test_how_it_ended(order, word):
    command = [sys.executable, "-c", SERVER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout.readline() == "ready\n"
        with watch_outcome(server.pid) as outcome:
            if order is None:
                server.send_signal(signal.SIGKILL)
            server.communicate(order and order + "\n", timeout=120)
            assert outcome() == word


def test_a_process_that_leaves_no_word_behind():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other, watch_outcome(other.pid) as outcome:
        other.communicate()
        assert outcome() == ""
    with watch_outcome(other.pid) as outcome:  # it has ended
        assert outcome() == ""
