"""Partitions that the user may not read: they are neither empty nor damaged, and commands say whose they are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many

ADVICE = "Run as the user that owns it"
# Root, which may read everything, without that privilege.
_UNPRIVILEGED = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []

pytestmark = pytest.mark.skipif(
    bool(_UNPRIVILEGED) and shutil.which("setpriv") is None, reason="root may read everything, and there is no setpriv"
)


def run(*words):
    command = [*_UNPRIVILEGED, sys.executable, "-m", "kafkafs", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def logdir(tmp_path):
    items = [Batch(many(5)), ROLL, Batch(many(4))]
    return build_log_dir(tmp_path / "log", {"orders": [Partition(items), [b"a"]]}).path


@pytest.fixture(params=["directory", "first segment", "last segment"])
def unreadable(request, logdir):
    logs = sorted((logdir / "orders-0").glob("*.log"))
    place = {"directory": logdir / "orders-0", "first segment": logs[0], "last segment": logs[-1]}[request.param]
    mode = place.stat().st_mode
    place.chmod(0)
    yield logdir
    place.chmod(mode)


def _of(log_dir, *words):
    command, rest = (words[:2], words[2:]) if words[0] == "topics" else (words[:1], words[1:])
    return run(*command, log_dir, *rest)


@pytest.mark.parametrize("words", ["count --json", "topics describe", "verify", "doctor", "cat orders"])
def test_what_may_not_be_read_is_an_error(unreadable, words):
    said = _of(unreadable, *words.split())
    assert said.returncode == 4, said.stdout + said.stderr
    assert "Permission denied" in said.stderr
    assert ADVICE in said.stderr
    assert "Errno" not in said.stderr + said.stdout
    assert "recover" not in said.stderr + said.stdout


def test_copies(unreadable, tmp_path):
    for words in (["mirror", unreadable, tmp_path / "copy"], ["revive", unreadable, "--to", tmp_path / "new"]):
        said = run(*words)
        assert said.returncode == 4
        assert ADVICE in said.stderr
    assert not (tmp_path / "new").exists()


def test_the_list_of_topics(logdir):
    place = logdir / "orders-0"
    mode = place.stat().st_mode
    (logdir / "lost+found").mkdir()
    (logdir / "lost+found").chmod(0)  # hidden, and always root's: no reason to fail
    assert run("topics", "list", logdir).returncode == 0
    place.chmod(0)
    try:
        text, found = run("topics", "list", logdir), run("topics", "list", logdir, "--json")
    finally:
        place.chmod(mode)
        (logdir / "lost+found").chmod(0o700)
    assert (text.returncode, found.returncode) == (4, 4)
    assert ADVICE in text.stderr
    assert [(one["topic"], one["bytes"]) for one in json.loads(found.stdout)["topics"]] == [("orders", None)]
