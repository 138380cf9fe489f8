"""Commands on log directories in which a link, a FIFO, a device, a directory or a socket has the name of a file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.fixtures import ROOT
from tests.support.replaced_files import STRANGER

_COUNT = int(os.environ.get("KAFKAFS_REPLACED_FILES", "100"))
_SEED = int(os.environ.get("KAFKAFS_REPLACED_SEED", "1"))
_SECONDS = 300 if _COUNT == 100 else None  # a command that hangs; the last case of the output names it

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory that other users can reach, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="kafkafs-replaced-") as path:
        yield Path(path)


@pytest.mark.timeout(0)  # the child has its own
@pytest.mark.parametrize("uid", [0, pytest.param(STRANGER, marks=as_root)], ids=["as it is", "as another user"])
def test_nothing_else_is_read_changed_or_waited_for(work: Path, uid: int) -> None:
    work.chmod(0o777)
    command = [sys.executable, "-m", "tests.support.replaced_files", work, _SEED, _COUNT, uid]
    try:
        done = subprocess.run(
            list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"a command hangs: {(error.stdout or b'')[-1000:]!r}")
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1:]) == (0, ["DONE"]), (done.stderr, lines[-2:])
    assert not [pair for pair in pairwise(lines) if pair[1].startswith("FAULT")]
