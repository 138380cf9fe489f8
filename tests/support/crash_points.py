"""Crashes at the disk operations of some work, once as a kill and once as a power loss.

Nightly at every single operation; before a merge at every fourth, each test beginning at another one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from storage.directory.owned_dir import OwnedDir
from storage.files import commit_ledger, names
from tests.support.faults import Crash, FaultyDisk
from tests.support.nightly import rounds
from tests.support.owned_dirs import opened

T = TypeVar("T")

_MEMORY = Path("/dev/shm")


@dataclass
class Stopped:
    """A world that was stopped before operation `stop_at`. `what` it was, None when the work came to its end."""

    path: Path
    stop_at: int
    what: str | None
    lost_power: bool

    def __str__(self) -> str:
        return f"{'power loss' if self.lost_power else 'kill'} at operation {self.stop_at}: {self.what}"


class Sessions:
    """Opens directories on a failing disk, and releases what a simulated crash leaves open in this process."""

    def __init__(self, path: Path, disk: FaultyDisk) -> None:
        self.path = path
        self.disk = disk
        self._all: list[OwnedDir] = []

    def open(self, **kwargs: object) -> OwnedDir:
        owned = opened(self.path, disk=self.disk, **kwargs)  # type: ignore[arg-type]
        self._all.append(owned)
        return owned

    def end(self) -> None:
        """As the end of the process does: descriptors and locks go, nothing is written."""
        for owned in self._all:
            owned._logs.abandon()
            with contextlib.suppress(Crash):
                owned._dir_lock.release()


def kill_commit(
    path: Path,
    commit: Callable[[OwnedDir, FaultyDisk], object],
    is_moment: Callable[[str, Path], bool] = lambda _what, _path: True,
) -> None:
    """Kill a commit before the first operation after its intent was recorded for which `is_moment` says so."""
    disk = FaultyDisk(path)
    sessions = Sessions(path, disk)
    begun = False

    def stop(what: str, place: Path) -> None:
        nonlocal begun
        if begun and is_moment(what, place):
            disk.stopped = True
            raise Crash(what)
        begun = begun or what == f"rename {names.COMMITS}.tmp {names.COMMITS}"

    disk.fail = stop
    with contextlib.suppress(Crash):
        commit(sessions.open(), disk)
    assert disk.stopped
    sessions.end()
    assert commit_ledger.read(path).pending


def every_crash(
    tmp_path: Path,
    before: Path,
    work: Callable[[Sessions, T], None],
    notes: Callable[[], T],
    *,
    power_losses: int = 1,
    any_order: bool = False,
) -> Iterator[tuple[Stopped, T]]:
    """Do `work` on copies of `before`, crashing before its operations in turn. Yield what each crash left, and the
    notes that the work took. The last pair is from the completed work. `any_order`: see FaultyDisk."""
    with _quick_place(tmp_path) as place:
        yield from _crashes(place / "world", before, work, notes, power_losses, any_order=any_order)


@contextlib.contextmanager
def _quick_place(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is such a file system, because thousands of small files are written."""
    if not _MEMORY.is_dir():
        yield tmp_path
        return
    place = Path(tempfile.mkdtemp(prefix="kafkafs-tests-", dir=_MEMORY))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _crashes(
    path: Path,
    before: Path,
    work: Callable[[Sessions, T], None],
    notes: Callable[[], T],
    power_losses: int,
    *,
    any_order: bool,
) -> Iterator[tuple[Stopped, T]]:
    step = rounds(usual=4, nightly=1)
    stop_at = zlib.crc32(os.environ["PYTEST_CURRENT_TEST"].encode()) % step
    while True:
        ended = False
        for loss in range(power_losses + 1):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(before, path)
            disk = FaultyDisk(path, stop_at=stop_at, seed=stop_at * 31 + loss)
            disk.any_order = any_order
            taken = notes()
            sessions = Sessions(path, disk)
            what: str | None = None
            try:
                work(sessions, taken)
                ended = True
            except Crash as crash:
                what = str(crash)
            finally:
                disk.stopped = True
                sessions.end()
            if loss:
                disk.power_loss()
            yield Stopped(path, stop_at, what, bool(loss)), taken
        if ended:
            return
        stop_at += step
