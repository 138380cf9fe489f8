"""Small files read in one go: checkpoints, snapshots, properties."""

from __future__ import annotations

from pathlib import Path

from storage.files.log_file import open_quietly


def read_whole(path: Path) -> bytes | None:
    """The bytes of a file, None when there is none; OSError when it cannot be read. Leaves the access time alone."""
    try:
        return read_existing(path)
    except FileNotFoundError:
        return None


def read_existing(path: Path) -> bytes:
    """The same of a file that must be there: FileNotFoundError when it is not."""
    with open(path, "rb", buffering=0, opener=open_quietly) as file:
        return file.readall()
