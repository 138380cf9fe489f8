"""The examples are run as tests: what the README shows must work."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.mounts import kafkafs_mounts, requires_fuse, run_kafkafs

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "examples" / "sample-log"
STAMP = ROOT / ".venv" / ".kafkafs-installed"

installed = pytest.mark.skipif(
    not STAMP.exists() and os.environ.get("CI", "").lower() not in ("true", "1"),
    reason="not installed by tests/run.sh: the quickstart would install first",
)


def quickstart(*arguments: Path | str) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "examples" / "quickstart.sh")
    return subprocess.run([script, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=280)


@requires_fuse
@installed
def test_quickstart_leaves_nothing_mounted() -> None:
    for _ in range(2):
        done = quickstart()
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert '$ cat orders/0/messages.txt\x1b[0m\n{"order":10000,' in done.stdout
        assert "250 orders/0/time/2026-11-20.txt" in done.stdout
        (mounted,) = re.findall(r" at (\S+), read-only", done.stdout)
        assert Path(mounted) not in kafkafs_mounts()
        assert not Path(mounted).parent.exists()


@requires_fuse
@installed
def test_quickstart_of_a_directory_stays_mounted(tmp_path: Path) -> None:
    point = tmp_path / "mnt"
    try:
        for _ in range(2):
            done = quickstart(SAMPLE, point)
            assert done.returncode == 0, done.stderr
            assert f"kafkafs umount {point}" in done.stdout
            assert kafkafs_mounts().count(point) == 1
        assert (point / "payments/0/messages.txt").read_bytes().splitlines()[0] == b"order 1 paid"
    finally:
        run_kafkafs("umount", point)
    assert point not in kafkafs_mounts()


def test_quickstart_with_wrong_arguments(tmp_path: Path) -> None:
    assert quickstart("only-one").returncode == 2
    assert quickstart(tmp_path / "nowhere", tmp_path / "mnt").returncode != 0
    assert not (tmp_path / "mnt").exists()


def test_the_sample() -> None:
    """What its maker put in (tests/interop/make_sample.py), and nothing of it changed by whoever looked at it."""
    assert run_kafkafs("count", SAMPLE, "orders").stdout.split()[-1] == b"700"
    committed = run_kafkafs("cat", SAMPLE, "payments/0", "--isolation", "read_committed").stdout
    assert committed == b"order 1 paid\norder 2 paid\norder 5 paid\n"
    accounts = run_kafkafs("cat", SAMPLE, "accounts/0", "--format", "%k=%s\n").stdout
    assert accounts.endswith(b'c-03=\nc-11={"customer": "c-11", "balance": 0}\n')
    assert (SAMPLE / ".kafka_cleanshutdown").exists()
    assert not (SAMPLE / ".lock").exists()
