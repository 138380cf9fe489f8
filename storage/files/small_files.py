"""Reads small files as a whole: checkpoints, snapshots, properties."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from storage.files.log_file import open_quietly

# More than any file of lines has: 100,000 partitions with names of 100 characters take 11 MiB in a checkpoint. A sparse
# file may have any size, whatever the disk has room for.
MOST_SMALL_FILE_BYTES: Final = 16 << 20
# For files with an entry for each producer, transaction, commit, or range of batches.
MOST_ENTRIES_BYTES: Final = 64 << 20


def read_whole(path: Path, most_bytes: int = MOST_SMALL_FILE_BYTES) -> bytes | None:
    """The bytes of a file, None when there is none; OSError when it cannot be read, EFBIG when it is larger than
    `most_bytes`. Does not change the access time."""
    try:
        return read_existing(path, most_bytes)
    except FileNotFoundError:
        return None


def read_start(path: Path, size: int) -> bytes:
    """At most `size` bytes from the beginning of a file that must exist; otherwise FileNotFoundError. OSError."""
    with open(path, "rb", buffering=0, opener=open_quietly) as file:
        return file.read(size)


def read_existing(path: Path, most_bytes: int = MOST_SMALL_FILE_BYTES) -> bytes:
    """The bytes of a file that must exist; otherwise FileNotFoundError. OSError as `read_whole`."""
    with open(path, "rb", buffering=0, opener=open_quietly) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"has {size} bytes, and such a file at most {most_bytes}", os.fspath(path))
        return file.readall()
