"""Opens the files and directories of a log directory, and nothing else that its names may lead to.

A log directory may come from a stranger, and who reads it may be root. So every open here goes through the directory
that has the file (openat(2)), and

- no symbolic link is followed (O_NOFOLLOW), with one exception for reading: a partition's directory that an operator
  has moved to another volume. That is a link to a directory of the same name and of the same owner as the link;
- only regular files are opened, and none is waited for: a FIFO or a device blocks or never ends (O_NONBLOCK);
- the file belongs to the owner of the directory, or is readable to that owner: a hard link to a file of somebody else
  shows nothing that the directory's owner could not read. For writing, the file must be the owner's or ours.

The log directory itself is named by a person, who may name a link: see `real_place`.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from storage.files.descriptors import NO_DESCRIPTOR

_PARENT: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_GUARD: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_IS_LINK: Final = (errno.ELOOP, errno.ENOTDIR)

# Directories whose links we have made. Changed and looked at in single steps, which the interpreter's lock guards.
_ours: Final[set[Path]] = set()

Place = str | os.PathLike[str]


def real_place(path: Path) -> Path:
    """The directory or file that a person has named, with links resolved if the name or its directory is a link; else
    the path as it was given."""
    # Not Path.resolve, which raises RuntimeError for links in a circle.
    return Path(os.path.realpath(path)) if path.is_symlink() or path.parent.is_symlink() else path


def open_file(path: Place, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a regular file, with the flags of open(2). OSError: also ELOOP for a link, EINVAL unless it is a
    regular file, EACCES for a file of somebody else."""
    directory, name = os.path.split(os.fspath(path))
    writes = flags & os.O_ACCMODE != os.O_RDONLY
    parent = _open_parent(directory or ".", follow=not writes)
    try:
        try:
            fd = os.open(name, flags | _GUARD, mode, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ELOOP and _is_ours(path):
                return open_file(Path(path).readlink(), flags, mode)
            raise _refused(error, path) from None
        try:
            status, owner = os.fstat(fd), os.fstat(parent)
            _check(status, owner, path, writes=writes)
            if flags & os.O_CREAT and os.geteuid() == 0 == status.st_uid != owner.st_uid:
                # As the owner would have made the file: it permits others what its directory permits them.
                os.fchown(fd, owner.st_uid, owner.st_gid)
                os.fchmod(fd, stat.S_IMODE(owner.st_mode) & 0o666)
        except BaseException:
            os.close(fd)
            raise
        return fd
    finally:
        os.close(parent)


def open_below(root: Place, name: str, flags: int) -> int:
    """A descriptor for reading what lies below a directory that a person has named. `name` is its path from there, and
    none of its parts may be a link. With O_DIRECTORY a directory, else a file as `open_file` opens one. OSError."""
    path = Path(root) / name
    *above, last = [part for part in name.split("/") if part] or ["."]
    if ".." in (*above, last):
        raise OSError(errno.EINVAL, "leads out of its directory", path)
    parent = os.open(os.fspath(root), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in above:
            inner = os.open(part, _PARENT, dir_fd=parent)
            os.close(parent)
            parent = inner
        fd = os.open(last, flags | _GUARD, dir_fd=parent)
        try:
            if not flags & os.O_DIRECTORY:
                _check(os.fstat(fd), os.fstat(parent), path, writes=False)
        except BaseException:
            os.close(fd)
            raise
        return fd
    except OSError as error:
        raise _refused(error, path) from None
    finally:
        os.close(parent)


def make_directory(path: Place) -> None:
    """Makes a directory. As root: with its parent's owner, and no permission bits that the parent lacks. OSError."""
    directory, name = os.path.split(os.fspath(path))
    parent = _open_parent(directory or ".", follow=False)
    try:
        owner = os.fstat(parent)
        is_of_other = os.geteuid() == 0 != owner.st_uid
        os.mkdir(name, stat.S_IMODE(owner.st_mode) & 0o777 if is_of_other else 0o777, dir_fd=parent)
        if is_of_other:
            # Not by its name: the owner may have put something else there by now.
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                os.fchown(fd, owner.st_uid, owner.st_gid)
            finally:
                os.close(fd)
    finally:
        os.close(parent)


def open_directory(path: Place, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a directory, to list or to sync it. OSError: also ENOTDIR for a link that is not followed."""
    directory = os.fspath(path)
    try:
        return os.open(directory, flags | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _IS_LINK or not Path(directory).is_symlink():
            raise
    parent = _followed(directory)
    try:
        return os.open(".", flags | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    finally:
        os.close(parent)


def is_directory(path: Place) -> bool:
    """Whether the path is a directory, or a link to a directory that is followed. False also if that is unknown."""
    try:
        os.close(open_directory(path, os.O_PATH))
    except OSError:
        return False
    return True


def exists(path: Place) -> bool:
    """Whether something has this name, even if only a link. OSError if that is unknown."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def status_of(path: Place) -> os.stat_result:
    """The status of a file, which for a link is the link's own (lstat(2)), except for links of ours. OSError: also
    EINVAL for a FIFO, a socket or a device, whose size of 0 does not mean that it is empty."""
    status = os.lstat(path)
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
    return Path(path).readlink().lstat() if stat.S_ISLNK(status.st_mode) and _is_ours(path) else status


def who_may_read(path: Place) -> str:
    """The advice about a file that this user may not read: to run as its owner, whom it names."""
    owner = -1
    for place in (Path(path), *Path(path).absolute().parents):
        with suppress(OSError):
            owner = place.lstat().st_uid
            break
    if owner in (-1, os.geteuid()):
        return "run as the user that owns it"
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"'#{owner}'"
    return f"run as the user that owns it: sudo -u {name}"


@contextmanager
def links_of_ours(directory: Path) -> Iterator[None]:
    """While the block runs, links in this directory, which we have made, lead to files as if they were these files."""
    _ours.add(directory)
    try:
        yield
    finally:
        _ours.discard(directory)


def _is_ours(path: Place) -> bool:
    return bool(_ours) and Path(path).parent in _ours


@contextmanager
def parent_of(path: Place) -> Iterator[tuple[int | None, str]]:
    """A descriptor of the directory in which a name is to be changed, never a link, and the name in it. None and the
    whole path if no descriptor is left: the remains of a failed write must be removed even then. OSError."""
    directory, name = os.path.split(os.fspath(path))
    try:
        parent = _open_parent(directory or ".", follow=False)
    except OSError as error:
        if error.errno not in NO_DESCRIPTOR or Path(directory).is_symlink():
            raise
        yield None, os.fspath(path)
        return
    try:
        yield parent, name
    finally:
        os.close(parent)


def _open_parent(directory: str, *, follow: bool) -> int:
    try:
        return os.open(directory, _PARENT)
    except OSError as error:
        if error.errno not in _IS_LINK or not Path(directory).is_symlink():
            raise
    if follow:
        return _followed(directory)
    raise OSError(errno.ELOOP, "its directory is a symbolic link, through which nothing is written", directory)


def _followed(directory: str) -> int:
    """The directory that a link leads to, if it may be followed (see the module)."""
    link = os.open(directory, _LINK)
    try:
        target = os.readlink("", dir_fd=link)
        owner = os.fstat(link).st_uid
    finally:
        os.close(link)
    place = Path(directory)
    if Path(target).name == place.name:
        fd = os.open(place.parent / target, _PARENT)
        if os.fstat(fd).st_uid == owner:
            return fd
        os.close(fd)
    raise OSError(
        errno.ELOOP,
        "is a symbolic link, and only one to a directory of the same name and owner is followed",
        directory,
    )


def _refused(error: OSError, path: Place) -> OSError:
    if error.errno == errno.ELOOP:
        return OSError(errno.ELOOP, "is a symbolic link, and none is followed in a log directory", os.fspath(path))
    if error.errno == errno.ENXIO:  # a FIFO opened for writing that nobody reads
        return OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
    return OSError(error.errno, error.strerror, os.fspath(path))


def _check(file: os.stat_result, directory: os.stat_result, path: Place, *, writes: bool) -> None:
    if not stat.S_ISREG(file.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
    if file.st_uid == directory.st_uid or directory.st_uid == 0:
        return
    if writes:
        # A file of ours without a second name was created here.
        if file.st_uid == os.geteuid() and file.st_nlink == 1:
            return
    elif file.st_mode & stat.S_IROTH or (file.st_gid == directory.st_gid and file.st_mode & stat.S_IRGRP):
        return
    raise OSError(
        errno.EACCES,
        f"belongs to user {file.st_uid}, and its directory to user {directory.st_uid}, who may not "
        f"{'write' if writes else 'read'} it",
        os.fspath(path),
    )
