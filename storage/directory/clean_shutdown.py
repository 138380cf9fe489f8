"""`.kafka_cleanshutdown`: exists while a log directory is closed after an orderly shutdown.

Because of this file an opening does not check what was not flushed: it must be removed before the first change and
written after the last. Source: Kafka's CleanShutdownFileHandler.
"""

from __future__ import annotations

import json
from pathlib import Path

from storage.files import names
from storage.files.disk import replace_file
from storage.files.disk_protocol import Disk
from storage.files.small_files import read_whole

UNKNOWN_BROKER_EPOCH = -1


def read(directory: Path) -> int | None:
    """The broker epoch in the file, -1 where it does not parse; None when there is no file. OSError."""
    data = read_whole(directory / names.CLEAN_SHUTDOWN)
    return None if data is None else parse(data)


def parse(data: bytes) -> int:
    """The broker epoch in the file's bytes, -1 where they do not parse."""
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return UNKNOWN_BROKER_EPOCH
    return epoch if isinstance(epoch, int) else UNKNOWN_BROKER_EPOCH


def encode(broker_epoch: int) -> bytes:
    """The bytes of the file."""
    return b'{"version":0,"brokerEpoch":%d}' % broker_epoch


def remove(disk: Disk, directory: Path) -> None:
    """Removes the file, durably: from now on the directory counts as not cleanly shut down."""
    disk.unlink(directory / names.CLEAN_SHUTDOWN)
    disk.sync_dir(directory)


def write(disk: Disk, directory: Path, broker_epoch: int) -> None:
    """Records, durably, that everything was closed in order."""
    replace_file(disk, directory / names.CLEAN_SHUTDOWN, encode(broker_epoch))
