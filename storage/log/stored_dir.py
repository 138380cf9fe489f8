"""A backup in an object store as a log directory that is only read.

The manifest is laid out as the small files of a log directory (checkpoints, ids, configurations, leader epochs) in the
user's cache directory; the logs are read in the store (`stored_log`). So every reader of log directories can read a
backup. It stays the backup whose manifest was read at the opening, even if the store has a newer one by now. A
directory is kept for as long as a process uses it, and removed by a later opening.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PosixPath
from threading import Lock
from typing import Final

from storage.errors import CorruptCheckpoint, TierUnavailable
from storage.files import checkpoints, manifest, names, partition_metadata, topic_properties
from storage.files.cache_files import cache_directory, is_private
from storage.files.listing import paths_in
from storage.files.manifest import Manifest, ManifestPartition
from storage.files.small_files import MOST_ENTRIES_BYTES
from storage.log.places import STORED_MANIFEST
from storage.log.stored_log import Backup, StoredLog, ranges_of_segments
from storage.tier.blocks import RemoteBlockCache
from storage.tier.object_places import Place, open_place
from storage.types import MAX_OFFSET, TopicPartition

_URL: Final = "url"
_UNUSED_S: Final = 3600.0
_SHA256: Final = re.compile("[0-9a-f]{64}")
_OF_THE_DIRECTORY: Final = (names.BOOTSTRAP_CHECKPOINT,)
_OF_A_PARTITION: Final = (names.LEADER_EPOCH_CHECKPOINT,)
_CLEAN: Final = b'{"version":0,"brokerEpoch":-1}'

_lock: Final = Lock()
_opened: Final[dict[Path, Backup]] = {}  # guarded by the lock
_used: Final[dict[tuple[int, Path], int]] = {}  # locked descriptors of the directories that a process uses


class StoredDir(PosixPath):
    """A directory of `open_stored`. A process that gets it from another one opens the backup itself."""

    def __reduce__(self) -> tuple[Callable[[str], StoredDir], tuple[str]]:
        return open_stored, (_url_of(self),)


def read_manifest(place: Place) -> Manifest | None:
    """The manifest of the last finished backup in a place; None if there is none. TierUnavailable; CorruptCheckpoint
    for a manifest that no mirror writes there."""
    if (data := _manifest_in(place)) is None:
        return None
    return _checked(data, place)


def open_stored(url: str, *, anew: bool = False) -> StoredDir:
    """The log directory for the last finished backup at a URL. `anew`: this process reads all objects in the store, and
    keeps none in the cache directory. TierUnavailable, also if there is no backup; CorruptCheckpoint,
    UnsupportedFormat; OSError if the cache directory cannot be written."""
    place = open_place(url)
    data = _manifest_in(place)
    if data is None:
        advice = "`kafkafs mirror LOGDIR URL` makes one"
        raise TierUnavailable("there is no backup", path=place.object_name(STORED_MANIFEST), advice=advice)
    root = cache_directory("store")
    if not is_private(root):
        raise TierUnavailable("other users can write there", path=root, advice="Set XDG_CACHE_HOME to another place")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = StoredDir(root) / hashlib.sha256(url.encode("utf-8", "surrogateescape") + b"\0" + data).hexdigest()[:32]
    if not path.is_dir():
        listed = _checked(data, place)
        _remove_unused(root)
        unfinished = root / f"{path.name}.{os.getpid()}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        _lay_out(unfinished, listed)
        (unfinished / _URL).write_text(url, "utf-8", "surrogateescape")
        (unfinished / STORED_MANIFEST).write_bytes(data)
        with suppress(OSError):  # another process was faster
            unfinished.rename(path)
        shutil.rmtree(unfinished, ignore_errors=True)
    keep(path)
    if anew:
        with _lock:
            _opened[path] = _backup(path, RemoteBlockCache(disk_bytes=0))
    return path


def keep(path: Path) -> None:
    """Keep a directory of `open_stored` for as long as this process lives."""
    if (os.getpid(), path) not in _used:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        os.utime(path)
        _used[os.getpid(), path] = fd


def backup_at(path: Path) -> Backup:
    """The backup of a directory of `open_stored`."""
    with _lock:
        if path not in _opened:
            _opened[path] = _backup(path, RemoteBlockCache())
        return _opened[path]


def _backup(path: Path, cache: RemoteBlockCache) -> Backup:
    return Backup(open_place(_url_of(path)), manifest.parse((path / STORED_MANIFEST).read_bytes()), cache)


def _url_of(path: Path) -> str:
    return (path / _URL).read_text("utf-8", "surrogateescape")


def stored_log(tp: TopicPartition, path: Path) -> StoredLog:
    """A log of the directory `path` of `open_stored`."""
    return StoredLog(tp, path / tp.dir_name, backup_at(path))


def _manifest_in(place: Place) -> bytes | None:
    try:
        data = place.read(STORED_MANIFEST, 0, MOST_ENTRIES_BYTES + 1)
    except TierUnavailable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    if len(data) > MOST_ENTRIES_BYTES:
        expected = f"at most {MOST_ENTRIES_BYTES} bytes"
        raise CorruptCheckpoint("is too large", path=place.object_name(STORED_MANIFEST), expected=expected)
    return data


def _checked(data: bytes, place: Place) -> Manifest:
    """The parsed manifest, after checks that its names stay within the backup and its sizes fit together."""
    name = place.object_name(STORED_MANIFEST)
    read = manifest.parse(data, name)
    try:
        for topic, of in read.topics.items():
            if (problem := names.topic_name_problem(topic)) is not None:
                raise ValueError(f"{topic[:80]!r}: {problem}")
            if not all(isinstance(text, str) for pair in of.configs.items() for text in pair):
                raise ValueError(f"a configuration of {topic} that is not a text")
            if of.topic_id is not None:
                partition_metadata.parse(partition_metadata.encode(of.topic_id))
        if len(read.partitions) > names.MAX_PARTITIONS:
            raise ValueError(f"{len(read.partitions)} partitions")
        for tp, listed in read.partitions.items():
            if tp.topic not in read.topics or not 0 <= tp.partition < names.MAX_PARTITIONS:
                raise ValueError(f"{tp} is a partition of no topic")
            _check_partition(tp, listed)
        allowed = {
            *_OF_THE_DIRECTORY,
            *(f"{tp.dir_name}/{file_name}" for tp in read.partitions for file_name in _OF_A_PARTITION),
        }
        directories = {tp.dir_name for tp in read.partitions}
        for path, file in read.files.items():
            directory, _, last = path.rpartition("/")
            is_of_segment = directory in directories and names.parse_segment_file(last) is not None
            if not is_of_segment and (path not in allowed or file.content is None):
                raise ValueError(f"the file {path[:300]!r}")
            _check_digest(path, file.size_bytes, file.sha256)
            if file.content is not None and hashlib.sha256(b64decode(file.content)).hexdigest() != file.sha256:
                raise ValueError(f"{path} does not have the SHA-256 that is listed")
        for key in read.superseded:  # the next mirror removes them
            if not manifest.is_object_key(key):
                raise ValueError(f"the superseded object {key[:300]!r}")
    except (ValueError, CorruptCheckpoint) as error:
        raise CorruptCheckpoint("is not the manifest of a backup in a store", path=name, found=error) from None
    return read


def _check_partition(tp: TopicPartition, listed: ManifestPartition) -> None:
    bases = [segment.base_offset for segment in listed.segments]
    offsets = [
        listed.log_start_offset,
        *bases,
        *(batch_range.first_offset for batch_range in listed.ranges),
        listed.log_end_offset,
    ]
    if not all(0 <= offset <= MAX_OFFSET for offset in offsets) or bases != sorted(set(bases)):
        raise ValueError(f"offsets of {tp} do not ascend")
    for batch_range in listed.ranges:
        _check_digest(str(tp), batch_range.size_bytes - 1, batch_range.sha256)
    ranges_of_segments(listed)


def _check_digest(what: str, size: int, sha256: str) -> None:
    if not 0 <= size <= MAX_OFFSET or _SHA256.fullmatch(sha256) is None:
        raise ValueError(f"a size or SHA-256 of {what}")


def _lay_out(root: Path, read: Manifest) -> None:
    """Write the small files of the log directory."""
    starts = {tp: listed.log_start_offset for tp, listed in read.partitions.items()}
    ends = {tp: listed.log_end_offset for tp, listed in read.partitions.items()}
    for name, offsets in (
        (names.LOG_START_CHECKPOINT, starts),
        (names.RECOVERY_POINT_CHECKPOINT, ends),
        (names.REPLICATION_CHECKPOINT, ends),
    ):
        (root / name).write_bytes(checkpoints.encode(offsets))
    (root / names.CLEAN_SHUTDOWN).write_bytes(_CLEAN)
    for tp in read.partitions:
        directory, topic = root / tp.dir_name, read.topics[tp.topic]
        directory.mkdir(mode=0o700)
        if topic.topic_id is not None:
            (directory / names.PARTITION_METADATA).write_bytes(partition_metadata.encode(topic.topic_id))
        if topic.configs:
            (directory / names.TOPIC_PROPERTIES).write_bytes(topic_properties.encode(topic.configs))
    for path, file in read.files.items():
        if file.content is not None and names.parse_segment_file(path.rpartition("/")[2]) is None:
            (root / path).write_bytes(b64decode(file.content))


def _remove_unused(root: Path) -> None:
    for path in _unused(root):
        shutil.rmtree(path, ignore_errors=True)


def _unused(root: Path) -> Iterator[Path]:
    """The directories that no process has used for a while."""
    for path in paths_in(root):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime < _UNUSED_S:
                continue
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            finally:
                os.close(fd)
