"""`.lock` against other processes and against a second opening in the same one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import LogLocked
from storage.files.dir_lock import DirLock, holder
from storage.files.disk import RealDisk

_HOLD = """
import sys
from pathlib import Path
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
lock = DirLock(RealDisk(), Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""

_PROBE = """
import sys
from pathlib import Path
from storage.files.dir_lock import holder
print(holder(Path(sys.argv[1])))
"""


def _hold_elsewhere(directory: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_another_process_is_refused_and_named(tmp_path: Path) -> None:
    with _hold_elsewhere(tmp_path) as process:
        assert holder(tmp_path) == process.pid
        with pytest.raises(LogLocked, match=f"process {process.pid}"):
            DirLock(RealDisk(), tmp_path)
        process.communicate("")
    lock = DirLock(RealDisk(), tmp_path)
    assert holder(tmp_path) == os.getpid()
    lock.release()


def test_a_killed_holder_leaves_a_file_but_no_lock(tmp_path: Path) -> None:
    with _hold_elsewhere(tmp_path) as process:
        process.kill()
    assert (tmp_path / ".lock").exists()
    assert holder(tmp_path) is None
    DirLock(RealDisk(), tmp_path).release()


def test_the_same_process_is_refused_and_keeps_its_lock(tmp_path: Path) -> None:
    lock = DirLock(RealDisk(), tmp_path)
    with pytest.raises(LogLocked, match=f"process {os.getpid()}"):
        DirLock(RealDisk(), tmp_path)
    seen = subprocess.run([sys.executable, "-c", _PROBE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == str(os.getpid())
    lock.release()


def test_release_removes_the_file_and_may_be_repeated(tmp_path: Path) -> None:
    lock = DirLock(RealDisk(), tmp_path)
    lock.release()
    assert not (tmp_path / ".lock").exists()
    lock.release()
    again = DirLock(RealDisk(), tmp_path)
    lock.release()  # must not take away the lock of the new owner
    assert holder(tmp_path) == os.getpid()
    again.release()


def test_a_file_unlinked_while_we_waited_is_not_mistaken_for_the_lock(tmp_path: Path) -> None:
    lock = DirLock(RealDisk(), tmp_path)
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").touch()
    lock.release()
    assert (tmp_path / ".lock").exists(), "a file that is not ours must stay"
