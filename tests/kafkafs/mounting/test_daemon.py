"""Forking: the parent knows when the child is ready, or why it is not. Each case in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from kafkafs.mounting.mountpoint import listening
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
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_child_goes_on_by_itself(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result = run(
        f"""
        ready(os.open(os.devnull, os.O_WRONLY))
        with open({str(pipe)!r}, "w") as out:  # waits for the test, which reads when the parent has ended
            links = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in (0, 1, 2)]
            print(os.getsid(0) == os.getpid(), os.getcwd(), *links, file=out)
        """
    )
    assert (result.stdout, result.stderr, result.returncode) == ("ready\n", "", 0)
    assert pipe.read_text().split() == ["True", "/", "/dev/null", "/dev/null", "/dev/null"]


def test_descriptors_are_not_inherited():
    result = run(
        """
        left = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                and os.path.exists(f"/proc/self/fd/{fd}")]
        raise MountError(repr([name for name in left if not name.startswith(("pipe:", "/dev/null", "/proc"))]))
        """
    )
    assert (result.stdout, result.returncode) == ("[]\n", 4)


@pytest.mark.parametrize("code", [2, 3, 4])
def test_its_error_is_the_parents(code):
    result = run(f"raise MountError('größer\\nzwei', {code})")
    assert (result.stdout, result.returncode) == ("größer\nzwei\n", code)


def test_a_bug_is_told_with_its_traceback():
    result = run("1 / 0")
    assert result.returncode == 4
    assert result.stdout.startswith("Traceback")
    assert "ZeroDivisionError" in result.stdout


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise KeyboardInterrupt"])
def test_nothing_of_the_parents_runs_in_the_child(end):
    result = run(end)
    assert result.returncode == 4
    assert "ready" not in result.stdout.splitlines()


def test_a_child_that_dies():
    result = run("os.kill(os.getpid(), signal.SIGKILL)")
    assert (result.stdout, result.returncode) == (
        "the process that should serve ended by signal 9 before it was ready\n",
        4,
    )
    result = run("os._exit(7)")
    assert "exit code 7" in result.stdout


def test_what_it_says_and_how_far_it_is_is_shown():
    result = run(
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
    )
    lines = result.stdout.splitlines()
    assert lines == ["begin recovery 70", "advance 7", "größer: " + "x" * 100_000, "end", "ready"]


# What is heard of a process that has ended: how it ended, or that it could not say so


SERVER = """
import sys
from kafkafs.mounting import mountpoint
with mountpoint.left_behind():
    print("ready", flush=True)
    order = sys.stdin.readline().strip()
    if order:
        raise ValueError(order)
"""


def heard_after(order):
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
def test_how_it_ended(order, word):
    assert heard_after(order) == word


def test_a_long_message_is_cut():
    word = heard_after(b"x" * 100_000)
    assert word == "x" * (64 << 10)


def test_a_process_that_leaves_no_word_behind():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other, listening(other.pid) as said:
        other.communicate()
        assert said() == ""
    with listening(other.pid) as said:  # it has ended
        assert said() == ""
