"""The only module that changes a log directory. It is passed in, so that tests can make any operation fail or tear.

See `disk_protocol` for what each call promises. No OSError is swallowed here.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from storage.files import c_library
from storage.files.disk_protocol import Buffer, Disk, DiskFile
from storage.files.opening import make_directory, open_directory, open_file, parent_of

# Linux takes at most IOV_MAX buffers a call.
_MAX_BUFFERS = 1024
_COPY_BYTES = 8 << 20
_WRITEBACK_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2
# Errors of copy_file_range(2) where the kernel or the file systems cannot do it.
_CANNOT_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


class RealFile:
    """A DiskFile on the real file system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def write_at(self, position: int, *buffers: Buffer) -> int:
        try:
            if len(buffers) == 1:
                # A partial write is rare.
                written = os.pwrite(self._fd, buffers[0], position)
                if written == len(buffers[0]):
                    return position + written
                buffers, position = (buffers[0][written:],), position + written
            views = [memoryview(buffer).cast("B") for buffer in buffers]
            views = [view for view in views if len(view)]
            while views:
                written = os.pwritev(self._fd, views[:_MAX_BUFFERS], position)
                position += written
                while views and written >= len(views[0]):
                    written -= len(views.pop(0))
                if written:
                    views[0] = views[0][written:]
        except OSError as error:
            error.filename = str(self.path)
            raise
        return position

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """A Disk that is the real file system."""

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        return RealFile(path, open_file(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644))

    def mkdir(self, path: Path) -> None:
        make_directory(path)

    def rmdir(self, path: Path) -> None:
        with parent_of(path) as (parent, name):
            os.rmdir(name, dir_fd=parent)

    def rename(self, source: Path, target: Path) -> None:
        with parent_of(source) as (old_parent, old), parent_of(target) as (new_parent, new):
            os.rename(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent)

    def unlink(self, path: Path) -> None:
        with parent_of(path) as (parent, name):
            os.unlink(name, dir_fd=parent)

    def link(self, source: Path, target: Path) -> None:
        with parent_of(source) as (old_parent, old), parent_of(target) as (new_parent, new):
            os.link(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent, follow_symlinks=False)

    def copy(self, source_fd: int, target: Path, size_bytes: int) -> int:
        position = 0
        in_kernel = True
        with opened(self, target, create=True) as file:
            while position < size_bytes:
                piece_bytes = min(size_bytes - position, _COPY_BYTES)
                if in_kernel:
                    try:
                        copied = os.copy_file_range(source_fd, file.fileno(), piece_bytes, position, position)
                    except OSError as error:
                        if error.errno not in _CANNOT_COPY:
                            raise
                        in_kernel = False
                        continue
                else:
                    copied = file.write_at(position, os.pread(source_fd, piece_bytes, position)) - position
                if not copied:
                    break
                position += copied
        return position

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        with parent_of(path) as (parent, name):
            os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)

    def sync_dir(self, path: Path) -> None:
        fd = open_directory(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def opened(disk: Disk, path: Path, *, create: bool = False) -> Iterator[DiskFile]:
    """A file that is closed at the end of the block."""
    file = disk.open(path, create=create)
    try:
        yield file
    finally:
        file.close()


def sync_file(disk: Disk, path: Path) -> None:
    """Makes a file's bytes durable, whoever wrote them."""
    with opened(disk, path) as file:
        file.sync()


def begin_writeback(file: DiskFile, start: int, end: int) -> int:
    """Lets the system begin to write these bytes of a file to the disk, if they are many (sync_file_range(2)): the next
    sync waits for less. Returns the first byte that has not begun, for the next call. Promises nothing."""
    if end - start < _WRITEBACK_BYTES:
        return start
    call = c_library.function("sync_file_range")
    if call is not None:
        call(file.fileno(), ctypes.c_int64(start), ctypes.c_int64(end - start), _SYNC_FILE_RANGE_WRITE)
    return end


def replace_file(disk: Disk, path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replaces a small file as a whole (Kafka's CheckpointFile.write), with these permissions if given. Crash-safe:

    1. write `<path>.tmp` and sync it → old content is in place; recovery ignores `.tmp`
    2. rename it over `path`          → old or new content is in place
    3. sync the directory             → new content is in place, also after a power loss
    """
    temporary = path.with_name(path.name + ".tmp")
    if os.path.lexists(temporary):
        disk.unlink(temporary)  # remains of ours, or a link to something that must not be written
    with opened(disk, temporary, create=True) as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.truncate(0)
        file.write_at(0, content)
        file.sync()
    disk.rename(temporary, path)
    disk.sync_dir(path.parent)


def make_directories(disk: Disk, path: Path) -> None:
    """Creates a directory and those above it that are missing; each stays after a power loss."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process has created it meanwhile
            disk.mkdir(directory)
        disk.sync_dir(directory.parent)
