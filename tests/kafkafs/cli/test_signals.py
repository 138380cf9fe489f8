"""^C reaches a command wherever it comes."""

from __future__ import annotations

import subprocess
import sys

# Between fork(2) and its return Python runs functions whose exceptions it drops.
_INTERRUPTED_IN_A_FORK = """
import os, signal
import click
from kafkafs.cli.process import interrupts_kept

os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    with interrupts_kept(click.Context(click.Command("x"), obj="process")):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        print("dropped")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_while_python_forks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IN_A_FORK], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "dropped\ninterrupted\n", done.stderr
