"""A file that a command writes: complete under its name, or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp
from typing import BinaryIO

from storage.errors import BadDestination


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A stream that becomes the file at the end of the block. If the block fails, a previous file stays as it was.
    FIFOs and devices are written to directly. BadDestination for a symbolic link; OSError."""
    before = None
    with suppress(FileNotFoundError):
        before = path.lstat()
    if before is not None and stat.S_ISLNK(before.st_mode):
        what = f"is a symbolic link to {path.readlink()}"
        raise BadDestination(what, path=path, advice="Name another file; without -o the output goes to stdout")
    if before is not None and not stat.S_ISREG(before.st_mode):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOFOLLOW), "wb") as file:
            yield file
        return
    if before is not None and not os.access(path, os.W_OK):
        path.open("r+b").close()  # says why
    try:
        fd, name = mkstemp(prefix=".kafkafs-", dir=path.absolute().parent)
    except OSError as error:
        error.filename = os.fspath(path.parent)
        raise
    partial = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            _take_owner(fd, before)
            yield file
            file.flush()
            os.fsync(fd)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def _take_owner(fd: int, before: os.stat_result | None) -> None:
    """Gives a new file the owner and mode of the one that it replaces, or the mode of any new file."""
    if before is None:
        mask = os.umask(0o077)
        os.umask(mask)
        os.fchmod(fd, 0o666 & ~mask)
        return
    with suppress(PermissionError):
        os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, stat.S_IMODE(before.st_mode))
