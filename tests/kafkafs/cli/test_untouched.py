"""Commands that only read do not change a log directory, not even access times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.builders import ROLL, Batch, Partition, abort, build_log_dir, many
from tests.support.commands import process
from tests.support.mounts import requires_fuse
from tests.support.serving_processes import watched

LONG_AGO_NS = 10**18  # so that a file system mounted `relatime` records any access

COMMANDS = {
    "topics list": ["topics", "list", "LOGS"],
    "topics describe": ["topics", "describe", "LOGS"],
    "cat": ["cat", "LOGS", "t"],
    "cat log": ["cat", "LOGS", "t/0", "--format", "log"],
    "cat committed": ["cat", "LOGS", "t/0", "--isolation", "read_committed", "--time", "2020--"],
    "count": ["count", "LOGS", "--isolation", "read_committed"],
    "groups": ["groups", "LOGS"],
    "verify": ["verify", "LOGS"],
    "recover": ["recover", "LOGS", "--dry-run"],
    "compact": ["compact", "LOGS", "t", "--dry-run"],
    "retain": ["retain", "LOGS", "t", "--dry-run"],
    "fetch": ["fetch", "LOGS", "t/0", "--offset", "3", "--max-bytes", "1000"],
    "histogram": ["histogram", "LOGS", "t"],
    "mirror": ["mirror", "LOGS", "ELSEWHERE"],
    "mirror until": ["mirror", "LOGS", "ELSEWHERE", "--until", "2023-11-14T22:14", "--manifest", "ELSEWHERE.json"],
    "digest": ["digest", "LOGS", "t", "--by", "10"],
    "diff": ["diff", "LOGS", "LOGS", "t"],
    "salvage": ["salvage", "LOGS", "t/0", "--to", "ELSEWHERE"],
    "revive": ["revive", "LOGS", "--to", "ELSEWHERE"],
    "revive a partition": ["revive", "LOGS/t-0", "--to", "ELSEWHERE", "--until", "2024-01-01"],
    "doctor": ["doctor", "LOGS"],
    "dump files": ["dump", "FILES"],
    "dump a directory": ["dump", "LOGS/t-0", "LOGS"],
}


class Logs:
    """A log directory, and what was done to its files."""

    def __init__(self, path):
        self.path = path
        self.paths = [path, *sorted(path.rglob("*"))]
        for one in self.paths:
            os.utime(one, ns=(LONG_AGO_NS, LONG_AGO_NS))

    def touched(self):
        """Files and directories that were read or written."""
        times = {one: (one.stat().st_atime_ns, one.stat().st_mtime_ns) for one in self.paths}
        return [str(one.relative_to(self.path)) for one in self.paths if times[one] != (LONG_AGO_NS, LONG_AGO_NS)]


@pytest.fixture
def logs(tmp_path):
    """Two segments, with a transaction, and a torn tail after the recovery point."""
    transaction = [Batch(many(5), producer_id=7, transactional=True), abort(7)]
    items = [Batch(many(30)), *transaction, ROLL, Batch(many(30))]
    built = build_log_dir(
        tmp_path / "logs",
        {"t": [Partition(items, recovery_point=10, tail=b"\0\0\0torn"), [b"one"]], "__consumer_offsets": [[]]},
        clean=False,
        extra={"t-0/topic.properties": b"cleanup.policy=compact\n"},
    )
    return Logs(built.path)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_look_changes_nothing(logs, tmp_path, command):
    words = []
    for word in COMMANDS[command]:
        if word == "FILES":
            words += [str(path) for path in logs.paths if path.suffix or "checkpoint" in path.name if path.is_file()]
        else:
            words.append(word.replace("LOGS", str(logs.path)).replace("ELSEWHERE", str(tmp_path / "elsewhere")))
    found = process(*words)
    _, messages = found.communicate(timeout=120)
    # `verify` and `doctor` have findings, and `dump` shows the torn tail.
    assert found.returncode == {"verify": 1, "doctor": 1, "dump": 4}.get(words[0], 0), messages
    assert logs.touched() == []


@requires_fuse
def test_a_read_only_mount_changes_nothing(logs, tmp_path):
    with watched(logs.path, tmp_path / "mnt") as mount:
        for folder, _, files in os.walk(mount.path):
            for name in files:
                Path(folder, name).read_bytes()
        assert (mount.path / "t/0/time/2020--.log").read_bytes()
    assert logs.touched() == []
