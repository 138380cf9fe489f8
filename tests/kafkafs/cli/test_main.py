"""The program itself: help, versions, completion, interrupts. See also transcripts/habits.txt."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from storage.diagnosis.predictions import Reaction
from tests.support.builders import build_log_dir
from tests.support.commands import output_of, run
from tests.support.every_command import known_commands
from tests.support.fixtures import ROOT


@pytest.mark.parametrize("command", [*known_commands(), "spark", "topics"])
def test_help(command):
    text = output_of(*command.split(), "--help").decode()
    assert text.startswith(f"Usage: main {command}")
    assert output_of(*command.split(), "-h").decode() == text
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("command", [("-m", "kafkafs"), ("__main__.py",)], ids=" ".join)
def test_run_from_within_the_package(command):
    """As spark-submit runs a script: its folder comes first, so that a module there with the name of one of Python's
    own would be imported in its place."""
    package = ROOT / "kafkafs"
    own = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    assert not own & sys.stdlib_module_names - {"__main__"}
    called = [sys.executable, *command, "assign", "--help"]
    done = subprocess.run(called, cwd=package, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--replication-factor" in done.stdout


def test_the_list_of_commands():
    """In five groups, and each once."""
    text = output_of("--help").decode()
    groups = re.findall(r"^([A-Z][a-z ]+):\n((?:  .*\n?)+)", text[text.index("\nRead:") :], re.MULTILINE)
    assert [title for title, _ in groups] == ["Read", "Repair", "Back up", "Topics and groups", "Analyse"]
    listed = [line.split()[0] for _, lines in groups for line in lines.splitlines()]
    assert sorted(listed) == sorted({name.split()[0] for name in known_commands()})


def test_versions():
    lines = output_of("--version").decode().splitlines()
    assert lines[0].startswith("kafkafs 0.")
    assert lines[1] == "kernels: compiled"
    assert lines[2].startswith("system: ")
    assert "numpy" in lines[3]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell):
    assert b"_KAFKAFS_COMPLETE" in output_of("completion", shell)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("kafkafs c", "cat compact completion count"),
        ("kafkafs cat LOGDIR ord", "orders"),
        ("kafkafs cat LOGDIR orders/", "orders/0 orders/1"),
        ("kafkafs topics describe LOGDIR p", "payments"),
        ("kafkafs cat /nowhere/at/all o", ""),
        ("kafkafs ls LOGDIR o", ""),
        ("kafkafs spark e", "export"),
        ("kafkafs spark compact LOGDIR o", ""),
        ("kafkafs topics LOGDIR o", ""),
    ],
)
def test_completing(tmp_path, words, expected):
    build_log_dir(tmp_path, {"orders": [[b"a"], [b"b"]], "payments": [[b"c"]]})
    completing = {
        "_KAFKAFS_COMPLETE": "bash_complete",
        "COMP_WORDS": words.replace("LOGDIR", shlex.quote(str(tmp_path))),
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    command = [sys.executable, "-m", "kafkafs"]
    done = subprocess.run(command, env=os.environ | completing, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"plain,{word}" for word in expected.split()]


def test_start_is_lean(tmp_path):
    """Modules for consumers and for writing are not imported: that would take as long as importing numpy."""
    build_log_dir(tmp_path, {"t": [[b"a"]]})
    script = (
        "import sys\nfrom kafkafs.cli import main\n"
        f"main(['verify', {str(tmp_path)!r}, 't'], standalone_mode=False)\n"
        "needless = {'json', 'psutil', 'rich', 'storage.format.record_batch', 'storage.staged_writes.commit',"
        " 'storage.directory.owned_dir', 'storage.log.read_only_log', 'storage.recovery.recovery'}\n"
        "print(sorted(needless & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_interrupted(tmp_path, monkeypatch):
    def interrupt(*_given):
        raise KeyboardInterrupt

    monkeypatch.setattr("kafkafs.cli.count.expand", interrupt)
    result = run("count", build_log_dir(tmp_path, {"t": [[b"one"]]}).path)
    assert result.exit_code == 130
    assert result.stderr == "kafkafs: interrupted\n"


# Between fork(2) and its return Python runs functions whose exceptions it drops.
INTERRUPTED_IN_A_FORK = """
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


def test_an_interrupt_while_python_forks():
    command = [sys.executable, "-c", INTERRUPTED_IN_A_FORK]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "dropped\ninterrupted\n", done.stderr


def test_the_manual_names_every_reaction_of_doctor():
    page = (ROOT / "kafkafs" / "manual" / "repair.md").read_text()
    assert [reaction for reaction in Reaction if f"| `{reaction.name_in_reports}` |" not in page] == []
