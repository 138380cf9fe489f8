"""Standard streams that are closed or full: a line on stderr and an exit code, and no traceback. A terminal."""

import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from kafkafs.cli.process import DATA_ERROR
from storage.format.block import Record
from tests.support.builders import build_log_dir, metadata_records
from tests.support.commands import output_of
from tests.support.every_command import known_commands
from tests.support.owned_dirs import tree_of

PRINTING = (
    "--help",
    "--version",
    "assign --brokers 1,2 --partitions 2 --replication-factor 1",
    "cat LOGS t",
    "cat LOGS t --format jsonl",
    "cat LOGS t --latest",
    "cat LOGS t --follow",
    "compact LOGS t --dry-run --json",
    "completion bash",
    "count LOGS",
    "count LOGS --json",
    "diff LOGS LOGS t",
    "digest LOGS t",
    "doctor LOGS",
    "dump LOGS/t-0/00000000000000000000.log",
    "fetch LOGS t/0 --offset 0 --max-bytes 1000",
    "groups LOGS",
    "metadata BROKER",
    "mirror LOGS NEW",
    "recover LOGS --dry-run",
    "reindex LOGS t",
    "replay --help",
    "report LOGS --quick",
    "retain LOGS --dry-run",
    "revive LOGS --to NEW",
    "salvage LOGS t --to NEW",
    "schemas SCHEMAS",
    "spark export --help",
    "stats LOGS t",
    "sql LOGS 'SELECT count(*) FROM t'",
    "topics describe LOGS",
    "topics list LOGS",
    "transactions LOGS",
    "verify LOGS",
)
# These print nothing where all is well.
SILENT = {"append", "mount", "umount"}
# A closed pipe ends these as it ends cat(1). The others clean up first.
FILTERS = {
    "cat", "count", "diff", "digest", "doctor", "dump", "fetch", "groups", "metadata", "report", "schemas", "stats",
    "topics",
    "transactions", "verify",
}  # fmt: skip


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "1.avsc").write_text('"string"')
    build_log_dir(tmp_path / "broker", {"__cluster_metadata": [metadata_records("t", 1, [1])]})
    return build_log_dir(tmp_path / "logs", {"t": [[Record(b"key", b"one"), Record(None, b"two")]]}, broker=False).path


def shell(command, redirections, logs, stdout=subprocess.PIPE):
    places = re.compile("LOGS|NEW|SCHEMAS|BROKER")
    command = places.sub(lambda name: shlex.quote(str(logs.parent / name[0].lower())), command)
    line = f"{sys.executable} -m kafkafs {command} {redirections}"
    return subprocess.run(["bash", "-c", line], stdout=stdout, stderr=subprocess.PIPE, timeout=120, check=False)


def test_all_commands_are_here():
    tried = {line.split()[0] for line in PRINTING if line[0] != "-"}
    assert {name.split()[0] for name in known_commands()} == SILENT | tried


@pytest.mark.parametrize(
    ("command", "redirection", "reason"),
    [
        *((command, ">/dev/full", b"No space left") for command in PRINTING),
        *((command, ">&-", b"Bad file descriptor") for command in ("--help", "cat LOGS t", "count LOGS")),
    ],
)
def test_stdout(logs, command, redirection, reason):
    result = shell(command, redirection, logs)
    assert result.returncode == 4, result.stderr
    lines = result.stderr.splitlines()
    assert len([line for line in lines if reason in line]) == 1
    assert all(line.startswith(b"kafkafs: ") for line in lines), result.stderr


@pytest.mark.parametrize("command", PRINTING)
def test_a_pipe_that_nobody_reads(logs, command):
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        result = shell(command, "", logs, write_end)
    finally:
        os.close(write_end)
    assert result.returncode == (-signal.SIGPIPE if command.split()[0] in FILTERS else DATA_ERROR)
    assert result.stderr == b""


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("cat LOGS t", 0),
        ("count LOGS", 0),
        ("cat LOGS none", 4),
        ("cat LOGS", 2),
        ("count LOGS --nothing", 2),
        ("none", 2),
    ],
)
def test_stderr(logs, command, code, redirection):
    result = shell(command, redirection, logs)
    assert result.returncode == code
    assert bool(result.stdout) == (code == 0)


def test_no_stream_at_all(logs):
    assert shell("count LOGS", "<&- >&- 2>&-", logs).returncode == 4
    assert shell("topics create LOGS u", "<&- >&- 2>&-", logs).returncode == 0
    assert shell("topics list LOGS", "", logs).stdout.startswith(b"TOPIC")
    before = tree_of(logs)
    result = shell("append LOGS t", "<&-", logs)
    assert (result.returncode, result.stderr) == (4, b"kafkafs: stdin: Bad file descriptor\n")
    result = shell("append LOGS t", "<<<three >&- 2>&-", logs)
    assert (result.returncode, result.stderr) == (0, b"")
    assert tree_of(logs) != before
    assert output_of("cat", logs, "t") == b"one\ntwo\nthree\n"


def on_a_terminal(command, **streams):
    """The text that a terminal shows while a command runs."""
    first, second = pty.openpty()
    try:
        subprocess.run(command, **{"stdout": second, "stderr": second, **streams}, timeout=120, check=True)
        os.set_blocking(first, False)
        return os.read(first, 1 << 16)
    finally:
        os.close(first)
        os.close(second)


SHOWING_PROGRESS = ("verify LOGS", "count LOGS", "topics describe LOGS", "digest LOGS *", "mirror LOGS NEW")


@pytest.mark.parametrize("words", SHOWING_PROGRESS)
def test_only_a_terminal_shows_progress(logs, words):
    places = {"LOGS": logs, "NEW": logs.with_name("new")}
    line = [sys.executable, "-m", "kafkafs", *(str(places.get(word, word)) for word in words.split())]
    assert b"%" in on_a_terminal(line, stdout=subprocess.DEVNULL)
    shutil.rmtree(places["NEW"], ignore_errors=True)
    assert subprocess.run(line, capture_output=True, timeout=120, check=True).stderr == b""


@pytest.mark.parametrize(("words", "known"), [("count LOGS", b"at most"), ("topics describe LOGS", b"offsets 0 to ")])
def test_what_is_known_at_once_is_said_first(logs, words, known):
    """Beside the bar, while the log is read."""
    text = on_a_terminal([sys.executable, "-m", "kafkafs", *words.replace("LOGS", str(logs)).split()])
    assert known in text
    assert ("describe" in words) == (b"replica" in text[: text.index(known)])
