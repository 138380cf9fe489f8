"""Reads small files as a whole: checkpoints, snapshots, properties."""

from __future__ import annotations

from pathlib import Path

from storage.files.log_file import open_quietly


def read_whole(path: Path) -> bytes | None:
    """The bytes of a file, None when there is none; OSError when it cannot be read. Does not change the access time."""
    try:
        return read_existing(path)
    except FileNotFoundError:
        return None


def read_existing(path: Path) -> bytes:
    """The bytes of a file that must exist; otherwise FileNotFoundError."""
    with open(path, "rb", buffering=0, opener=open_quietly) as file:
        return file.readall()
