"""Commands that only read, and mounts, do not change a log directory, not even access times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.commands import process
from tests.support.every_command import placed, runs, sample_beside, sample_log_dir
from tests.support.mounts import requires_fuse
from tests.support.serving_processes import watched

LONG_AGO_NS = 10**18  # so that a file system mounted `relatime` records any access


def writes(words):
    return (
        words[0] in ("append", "reindex")
        or (words[0] in ("compact", "recover", "retain") and "--dry-run" not in words)
        or (words[0] == "topics" and words[1] in ("alter", "create", "delete"))
        or "--reset-to" in words
        or words[:3] == ["mirror", "SOURCE", "LOGS"]
    )


class Logs:
    """A log directory as after a crash, and what was done to its files."""

    def __init__(self, path):
        self.path = sample_log_dir(path, clean=False)
        self.paths = [path, *sorted(path.rglob("*"))]
        for file in self.paths:
            os.utime(file, ns=(LONG_AGO_NS, LONG_AGO_NS))

    def touched(self):
        """Files and directories that were read or written."""
        times = {file: (file.stat().st_atime_ns, file.stat().st_mtime_ns) for file in self.paths}
        return [str(file.relative_to(self.path)) for file in self.paths if times[file] != (LONG_AGO_NS, LONG_AGO_NS)]


@pytest.fixture
def logs(tmp_path):
    return Logs(tmp_path / "logs")


@pytest.mark.parametrize("words", [words for words in runs() if not writes(words)], ids=" ".join)
def test_a_look_changes_nothing(logs, tmp_path, words):
    sample_beside(tmp_path)
    with process(*placed(words, logs.path, tmp_path)) as running:
        _, messages = running.communicate(timeout=120)
    # `doctor` has findings, `dump` shows the torn tail, and there is no group `readers`.
    expected = {"doctor": 1, "dump": 4, "groups": 4 if "readers" in words else 0}.get(words[0], 0)
    assert running.returncode == expected, messages
    assert logs.touched() == []


@requires_fuse
def test_a_read_only_mount_changes_nothing(logs, tmp_path):
    with watched(logs.path, tmp_path / "mnt") as mount:
        for folder, _, files in os.walk(mount.path):
            for name in files:
                Path(folder, name).read_bytes()
        assert (mount.path / "orders/0/time/2020--.log").read_bytes()
    assert logs.touched() == []
