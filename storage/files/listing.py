"""Directory listings that do not change the access time, if that is permitted: reading a log directory must not change
anything in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.files.log_file import open_quietly

_FLAGS = os.O_RDONLY | os.O_DIRECTORY


@contextmanager
def scan_quietly(directory: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
    """os.scandir(directory), except that the `path` of an entry is only its name. OSError when it cannot be listed."""
    fd = open_quietly(directory, _FLAGS)
    try:
        with os.scandir(fd) as entries:
            yield entries
    finally:
        os.close(fd)


def paths_in(directory: Path) -> list[Path]:
    """The paths of a directory's entries, ascending. OSError when it cannot be listed."""
    with scan_quietly(directory) as entries:
        return [directory / name for name in sorted(entry.name for entry in entries)]
