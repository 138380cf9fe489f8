"""Creates, removes and describes the directories of partitions, crash-safe.

Unfinished directories have Kafka's `-delete` names, so that a broker that finds one removes it, as opening does here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from storage.files import leader_epochs, names, partition_metadata, topic_properties
from storage.files.disk import opened, replace_file
from storage.files.disk_protocol import Disk
from storage.files.leader_epochs import EpochEntry
from storage.files.listing import paths_in
from storage.files.names import FileKind
from storage.files.opening import exists, open_directory
from storage.files.small_files import read_whole
from storage.types import TopicPartition

_SEGMENT_KINDS = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)


def create(
    disk: Disk,
    log_dir: Path,
    partitions: Mapping[TopicPartition, int | None],
    topic_id: str,
    overrides: Mapping[str, str],
) -> None:
    """Creates partitions, each complete. `partitions`: their start offsets; None: 0, led by us from there on (epoch 0),
    whereas with an offset a leader's epochs come with its batches.

    1. build each in `<topic>-<p>.<hex>-delete`, and sync it → removed on opening
    2. rename each, ascending                               → those that have their names are complete
    3. sync the log directory                               → all exist, also after a power failure
    FileExistsError when one exists already; OSError: those that had been renamed by then stay.
    """
    for tp in partitions:
        if exists(log_dir / tp.dir_name):
            raise FileExistsError(17, "partition exists already", str(log_dir / tp.dir_name))
    built: dict[TopicPartition, Path] = {}
    try:
        for tp, start in sorted(partitions.items()):
            directory = built[tp] = log_dir / names.deleted_dir(tp)
            disk.mkdir(directory)
            for name, content in _first_files(start, topic_id, overrides).items():
                with opened(disk, directory / name, create=True) as file:
                    if content:
                        file.write_at(0, content)
                    file.sync()
            disk.sync_dir(directory)
        for tp in list(built):
            disk.rename(built[tp], log_dir / tp.dir_name)
            del built[tp]
    except OSError:
        for directory in built.values():
            if exists(directory):
                remove(disk, directory)
        raise
    disk.sync_dir(log_dir)


def set_aside(disk: Disk, log_dir: Path, partitions: Iterable[TopicPartition]) -> list[Path]:
    """Renames partitions to `-delete` names, the highest first, and syncs: they no longer count, but are not removed
    yet."""
    renamed = []
    for tp in sorted(partitions, reverse=True):
        target = log_dir / names.deleted_dir(tp)
        disk.rename(log_dir / tp.dir_name, target)
        renamed.append(target)
    disk.sync_dir(log_dir)
    return renamed


def remove(disk: Disk, directory: Path) -> None:
    """Removes a directory and the files in it; of a link, only the link. OSError, also when the directory has a
    subdirectory, which no partition has."""
    if directory.is_symlink():
        disk.unlink(directory)
        return
    for path in paths_in(directory):
        disk.unlink(path)
    disk.rmdir(directory)


@contextlib.contextmanager
def watched(directory: Path) -> Iterator[Callable[[], bool]]:
    """Provides a function that returns whether the path still names the directory that it named when the block began.

    The directory stays open meanwhile: otherwise another directory could get its inode number. OSError.
    """
    fd = open_directory(directory, os.O_PATH)
    try:
        began = os.fstat(fd)

        def is_there() -> bool:
            try:
                now = os.stat(directory)  # noqa: PTH116
            except (FileNotFoundError, NotADirectoryError):
                return False
            return (now.st_dev, now.st_ino) == (began.st_dev, began.st_ino)

        yield is_there
    finally:
        os.close(fd)


def is_gone(directory: Path) -> bool:
    """True when there is no such directory; False also when that is not certain."""
    try:
        os.stat(directory)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def write_overrides(disk: Disk, directories: Sequence[Path], overrides: Mapping[str, str]) -> None:
    """Replaces topic.properties in each partition's directory, in the order of the partitions.

    The first one counts for the topic: a crash or an error in between leaves the new configuration in force. After an
    error the others are corrected by the close, after a crash when their logs are next opened.
    """
    content = topic_properties.encode(overrides)
    for directory in directories:
        if read_whole(directory / names.TOPIC_PROPERTIES) != content:
            replace_file(disk, directory / names.TOPIC_PROPERTIES, content)


def _first_files(start: int | None, topic_id: str, overrides: Mapping[str, str]) -> dict[str, bytes]:
    epochs = (EpochEntry(0, 0),) if start is None else ()
    return {
        names.PARTITION_METADATA: partition_metadata.encode(topic_id),
        names.TOPIC_PROPERTIES: topic_properties.encode(overrides),
        names.LEADER_EPOCH_CHECKPOINT: leader_epochs.encode(epochs),
        **{names.segment_file(start or 0, kind): b"" for kind in _SEGMENT_KINDS},
    }
