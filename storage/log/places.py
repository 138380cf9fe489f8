"""Which directory is a log directory, and where nothing may be created: kafkafs/CONTRACT.md, "Log directories"."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from storage.errors import BadDestination, NotALogDir
from storage.files import names
from storage.files.cache_files import cache_directory
from storage.files.listing import scan_quietly
from storage.files.names import DirKind
from storage.files.opening import real_place

# A broker or kafkafs writes one of these files into every log directory that it has opened and closed.
_MARKS: Final = (
    names.META_PROPERTIES,
    names.BOOTSTRAP_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
    names.CLEANER_CHECKPOINT,
    names.CLEAN_SHUTDOWN,
    names.COMMITS,
)
_PARTITION_MARKS: Final = frozenset(
    (names.PARTITION_METADATA, names.LEADER_EPOCH_CHECKPOINT, names.TOPIC_PROPERTIES, names.QUORUM_STATE)
)
_SET_ASIDE: Final = (DirKind.DELETED, DirKind.STRAY, DirKind.FUTURE)
_EXPECTED: Final = "meta.properties, a checkpoint file, or directories of partitions such as orders-0"
_SHOWN: Final = 3
STORED_MANIFEST: Final = (
    "manifest.json"  # of a backup in an object store: its key in the store, and its name in the cache
)


def is_stored(path: Path) -> bool:
    """Whether a directory has the small files of a backup in an object store, which storage.log.stored_dir writes into
    the user's cache directory."""
    return os.path.lexists(path / STORED_MANIFEST) and _real(path.parent) == _real(cache_directory("store"))


def is_log_dir(path: Path) -> bool:
    """Whether a directory is a log directory. OSError if it cannot be listed."""
    return is_marked(path) or os.path.lexists(path / names.LOCK) or _has_partition(path)


def check_log_dir(path: Path, *, create: bool = False) -> None:
    """Raise NotALogDir for anything but a log directory, with the one that is probably meant. With `create`, a missing
    or empty directory will do, unless it lies in a log directory (BadDestination). OSError."""
    if create:
        check_destination(path)
    path = real_place(path)
    if is_marked(path):
        return  # the usual case, without listing the directory
    try:
        with scan_quietly(path) as entries:
            is_empty = next(entries, None) is None
    except FileNotFoundError:
        if create:
            return
        raise
    except NotADirectoryError:
        raise _not_a_log_dir(path, "is not a directory") from None
    if is_empty and not create:
        advice = "`kafkafs mount --create` and `kafkafs topics create` make a log directory of it"
        raise NotALogDir("not a log directory", path=path, found="an empty directory", advice=advice)
    if not is_empty and not is_log_dir(path):
        error = _not_a_log_dir(path)
        if create and error.advice is None:
            error.advice = "Name a new or an empty directory"
        raise error


def check_destination(path: Path, *sources: Path) -> None:
    """Raise BadDestination if no file or directory may be created at `path`: in a log directory or a partition's
    directory, also through links, and in one of `sources`, which are only read. `path` need not exist."""
    place = _real(path)
    given = [_real(source) for source in sources]
    if place in given:
        raise BadDestination("is the source itself, which is only read", path=path, advice="Name another place")
    # Some files are created next to the path and renamed, which replaces a link at the path.
    link = place if path.name == ".." else _real(path.parent) / path.name
    for above in (*place.parents, *link.parents):
        if _is_partition(above):
            inside = f"{above}, the directory of a partition"
        elif above in given or is_marked(above):
            inside = f"the log directory {above}"
        else:
            continue
        advice = "Name a place outside: a broker does not start on a log directory with other directories in it"
        raise BadDestination(f"is inside {inside}", path=path, advice=advice)


def _not_a_log_dir(path: Path, what: str = "not a log directory") -> NotALogDir:
    """The error, with the log directory that is probably meant: the one that contains the path, or those in it."""
    place = _real(path)
    for above in (place, *place.parents):
        if _is_partition(above):
            found = "the directory of a partition" if above == place else f"a part of the partition {above.name}"
            return NotALogDir(what, path=path, found=found, advice=f"The log directory is {above.parent}")
        if above != place and is_marked(above):
            return NotALogDir(what, path=path, advice=f"The log directory is {above}")
    below = _log_dirs_below(place)
    if not below:
        return NotALogDir(what, path=path, expected=_EXPECTED)
    listed = ", ".join(map(str, below[:_SHOWN])) + (" …" if len(below) > _SHOWN else "")
    count = "There is one in it" if len(below) == 1 else f"There are {len(below)} in it"
    return NotALogDir(what, path=path, advice=f"{count}: {listed}")


def is_marked(path: Path) -> bool:
    """Whether a broker or kafkafs has left its files. A lock file alone does not count, any program may have made
    it."""
    # A crash may have left only the temporary form of such a file.
    if any(os.path.lexists(path / (name + end)) for name in _MARKS for end in ("", names.TEMPORARY_SUFFIX)):
        return True
    with suppress(OSError):
        return os.path.lexists(path / names.LOCK) and _has_partition(path)
    return False


def _has_partition(path: Path) -> bool:
    """Whether the directory contains a partition's directory, live or not. OSError."""
    with scan_quietly(path) as entries:
        return any(_is_partition(path / entry.name) for entry in entries)


def _is_partition(path: Path) -> bool:
    """Whether the path is a partition's directory, by its name and its files: other programs have names such as dbus-1.
    Names with a suffix of Kafka's belong to no other program, and a crash may have left such a directory empty."""
    parsed = names.parse_dir(path.name)
    if parsed.partition is None:
        return False
    if parsed.kind in _SET_ASIDE and path.is_dir():
        return True
    with suppress(OSError), scan_quietly(path) as entries:
        return any(
            names.parse_segment_file(entry.name) is not None or entry.name in _PARTITION_MARKS for entry in entries
        )
    return False


def _log_dirs_below(path: Path) -> list[Path]:
    """The log directories directly in a directory, by name."""
    log_dirs = []
    with suppress(OSError), scan_quietly(path) as entries:
        for name in sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False)):
            with suppress(OSError):
                if name.isprintable() and is_log_dir(path / name):
                    log_dirs.append(path / name)
    return log_dirs


def _real(path: Path) -> Path:
    # Not Path.resolve, which raises RuntimeError for links in a circle.
    return Path(os.path.realpath(path))
