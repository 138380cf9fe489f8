"""The adapter between FUSE and the tree. Nothing is decided here: paths go to the tree, errors to `errnos`.

The only module that imports fuse (fusepy 3.0.1 over libfuse 2.9). What that asks for:

- `raw_fi`, so that `open` can choose direct_io or the page cache for each file;
- attr_timeout=0: sizes grow, and the exact size of a view is known from its first open on. Names may stay in the
  kernel's cache for a second: every stat and every open of one asks us anyway;
- `flag_nopath`: libfuse need not build the path of a file that is open, its handle says enough;
- reads go straight into libfuse's buffer, past fusepy's copy;
- no `default_permissions` unless others may write: all modes let everyone read who gets here at all, and to check
  them with attr_timeout=0 the kernel would ask for every directory of a path anew (open: 114 µs instead of 47);
- `flush` is not asked for: shells flush before they write, so it is no end of anything.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from ctypes import addressof, c_int, c_ssize_t, c_void_p, memset, py_object, pythonapi, sizeof, string_at
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn, Protocol

import fuse

from kafkafs.mounting.errnos import answer
from kafkafs.selection.range_names import plain_offsets_name
from kafkafs.tree.node import Directory, NodeKind, View
from kafkafs.views.handle import Handle, HasHoles, Syncs, WriteHandle
from storage.errors import StorageError

_log = logging.getLogger(__name__)

_TYPE = {NodeKind.DIRECTORY: stat.S_IFDIR, NodeKind.FILE: stat.S_IFREG}

# How much tools read at a time if they ask: as much as one FUSE request carries.
_BLOCK_BYTES = 128 << 10
_MAX_NAME_BYTES = 255
_STAT_BYTES = sizeof(fuse.c_stat)
# From this size on what is written is not copied out of libfuse's buffer before it is looked at.
_LARGE_BYTES = 4 << 10


class Lookup(Protocol):
    """What is asked of a tree."""

    def lookup(self, path: str) -> View:
        """The view at a path (`/` is the mountpoint). Raises NoSuchPath, StorageError, OSError."""


class WritableTree(Protocol):
    """Making and removing in a tree that can be written to: topics, groups and their offsets."""

    def make_directory(self, path: str) -> None:
        """StorageError, OSError."""

    def remove_directory(self, path: str) -> None:
        """StorageError, OSError."""

    def make_file(self, path: str) -> None:
        """A file that is to be opened next. StorageError, OSError."""

    def remove_file(self, path: str) -> None:
        """StorageError, OSError."""


@dataclass(slots=True)
class Traffic:
    """What was asked of the mount so far. Counted without a lock: figures for people, exact to a few."""

    opens: int = 0
    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    open_files: int = 0


@dataclass(frozen=True, slots=True)
class Serving:
    """How a tree is served. `disk` is the directory that statfs speaks of; `options` are libfuse's."""

    mountpoint: Path
    disk: Path
    uid: int
    gid: int
    options: dict[str, str | bool] = field(default_factory=dict)


class Operations(fuse.Operations):  # type: ignore[misc]
    """FUSE's calls on a tree. Raises whatever the tree raises: `answer` stands around it.

    `writable`: None on a read-only mount.
    `start` is called once the mount is there, from a thread of FUSE's and after all forking; `stop` when it has gone.
    """

    use_ns = True
    flag_nullpath_ok = True
    flag_nopath = True
    # Refused once (ENOSYS), never sent again: a close costs one request less.
    flush = None

    def __init__(
        self,
        tree: Lookup,
        serving: Serving,
        traffic: Traffic,
        start: Callable[[], None],
        stop: Callable[[], None],
        writable: WritableTree | None = None,
    ) -> None:
        self._tree = tree
        self._writable_tree = writable
        self._serving = serving
        self._start = start
        self._stop = stop
        self._numbers = itertools.count(1)
        self._paths: dict[int, str] = {}  # of open files and directories, by FUSE's handle number
        self.handles: dict[int, Handle] = {}
        self._writing: dict[int, WriteHandle] = {}  # those of them that were opened for writing
        self.traffic = traffic
        self.failure: BaseException | None = None

    def init(self, path: str) -> None:
        try:
            self._start()
        except BaseException as error:  # noqa: BLE001 - `serve` raises it once libfuse has let go
            self.failure = error
            fuse.fuse_exit()

    def destroy(self, path: str) -> None:
        # The kernel need not have told of every file that was closed before the umount.
        for number in list(self._writing):
            self._close_writer(self._writing.pop(number))
        self._stop()

    def stat_into(self, path: str | None, number: int | None, status: Any) -> int:
        """Fills in a zeroed c_stat for a path, or without one for the open file or directory of this number."""
        if path is None:
            assert number is not None, "libfuse leaves the path out only for what is open"
            path = self._paths[number]
        attributes = self._tree.lookup(path).attributes()
        size = attributes.size
        # Asked with a handle (lseek(2) to the end; fstat(2) comes without), it is the open file's size that counts.
        handle = None if number is None or number in self._writing else self.handles.get(number)
        if handle is not None:
            size = handle.size
        seconds, nanos = divmod(attributes.mtime_ns, 1_000_000_000)
        status.st_mode = _TYPE[attributes.kind] | attributes.mode
        status.st_ino = inode(path)
        status.st_nlink = attributes.nlink
        status.st_uid = self._serving.uid
        status.st_gid = self._serving.gid
        status.st_size = size
        status.st_blocks = -(-size // 512)
        status.st_blksize = _BLOCK_BYTES
        for times in (status.st_atimespec, status.st_mtimespec, status.st_ctimespec):
            times.tv_sec, times.tv_nsec = seconds, nanos
        return 0

    def opendir(self, path: str) -> int:
        if not isinstance(self._tree.lookup(path), Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return self._number(path)

    def entries(self, number: int) -> Iterator[tuple[bytes, int, int]]:
        """What is in an open directory: name, type (as in st_mode) and inode. The type saves `find` its stats."""
        path = self._paths[number]
        for dots in (b".", b".."):
            yield dots, stat.S_IFDIR, inode(path)
        above = path.rstrip("/")
        for name, kind in self._tree.lookup(path).list():
            try:
                encoded = name.encode()
            except UnicodeEncodeError:
                continue  # None of Kafka's files has such a name, and fusepy decodes paths before we see them.
            yield encoded, _TYPE[kind], inode(f"{above}/{name}")

    def releasedir(self, path: None, number: int) -> int:
        del self._paths[number]
        return 0

    def open(self, path: str, info: Any) -> int:
        writer: WriteHandle | None = None
        handle: Handle
        if info.flags & (os.O_ACCMODE | os.O_TRUNC):
            self._writable()
            handle = writer = self._tree.lookup(path).open_to_write()
        else:
            handle = self._tree.lookup(path).open()
        info.direct_io, info.keep_cache = handle.direct_io, handle.keep_cache
        info.fh = number = self._number(path)
        self.handles[number] = handle
        if writer is not None:
            self._writing[number] = writer
        self.traffic.opens += 1
        self.traffic.open_files = len(self.handles)
        return 0

    def read_into(self, number: int, address: int, offset: int, size: int) -> int:
        """Up to `size` bytes from `offset` of an open file to `address`; returns how many. Never waits for more."""
        count = self.handles[number].read_into(address, offset, size)
        traffic = self.traffic
        traffic.reads += 1
        traffic.read_bytes += count
        return count

    def release(self, path: None, info: Any) -> int:
        number = info.fh
        del self._paths[number]
        handle = self.handles.pop(number)
        self.traffic.open_files = len(self.handles)
        writer = self._writing.pop(number, None)
        if writer is None:
            handle.close()
        else:
            self._close_writer(writer)
        return 0

    def write_from(self, number: int, data: bytes | memoryview, offset: int | None = None) -> int:
        """Takes what is written to an open file; returns how many bytes. `offset`: see WriteHandle."""
        count = self._writing[number].write(data, offset)
        traffic = self.traffic
        traffic.writes += 1
        traffic.written_bytes += count
        return count

    def fsync(self, path: None, datasync: int, info: Any) -> int:
        handle = self.handles[info.fh]
        if isinstance(handle, Syncs):
            handle.sync()
        return 0

    @staticmethod
    def _close_writer(writer: WriteHandle) -> None:
        try:
            writer.close()
        except (StorageError, OSError) as error:
            # Nobody is told what release answers (fuse-facts 3).
            _log.error("a file was closed before its last line could be appended, and is not told of it: %s", error)

    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        if not name.startswith("user."):
            # Not ENODATA: at this answer `ls -l` stops asking for system.* and security.* of each file.
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        value = self._tree.lookup(path).xattrs().get(name)
        if value is None:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return value

    def listxattr(self, path: str) -> list[str]:
        return list(self._tree.lookup(path).xattrs())

    def statfs(self, path: str) -> dict[str, int]:
        disk = os.statvfs(self._serving.disk)
        names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail")
        return {name: getattr(disk, name) for name in names} | {"f_namemax": _MAX_NAME_BYTES}

    def mkdir(self, path: str, mode: int) -> int:
        self._writable().make_directory(path)
        return 0

    def rmdir(self, path: str) -> int:
        self._writable().remove_directory(path)
        return 0

    def create(self, path: str, mode: int, info: Any) -> int:
        self._writable().make_file(path)
        return self.open(path, info)

    def unlink(self, path: str) -> int:
        self._writable().remove_file(path)
        return 0

    def truncate(self, path: str | None, length: int, info: Any = None) -> int:
        writer = None if info is None else self._writing.get(info.fh)
        if isinstance(writer, HasHoles):
            writer.extend(length)
        return self._accept(self._paths[info.fh] if path is None else path)

    def _accept(self, path: str, *arguments: object) -> int:
        """What tools do to files that they write to. It means nothing here."""
        self._writable()
        attributes = self._tree.lookup(path).attributes()
        if attributes.kind is not NodeKind.FILE or not attributes.mode & 0o222:
            self._refuse()
        return 0

    chmod = chown = utimens = _accept

    def setxattr(self, path: str, *arguments: object) -> int:
        self._accept(path)
        # So `cp --preserve=mode` goes on with chmod.
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    removexattr = setxattr

    def _writable(self) -> WritableTree:
        if self._writable_tree is None:
            self._refuse()
        return self._writable_tree

    def _refuse(self, *arguments: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def _not_here(self, *arguments: object) -> NoReturn:
        number = errno.EROFS if self._writable_tree is None else errno.EPERM
        raise OSError(number, os.strerror(number))

    # A mount that says `ro` is asked for none of these; `mount -o remount,rw` would make the kernel ask.
    mknod = symlink = rename = link = _not_here
    write = _refuse

    def _number(self, path: str) -> int:
        number = next(self._numbers)
        self._paths[number] = path
        return number


def asking_thread() -> int:
    """The id of the thread whose request is being answered; 0 when it lives in another pid namespace."""
    return int(fuse.fuse_get_context()[2])


class ThreadStates:
    """Keeps Python's state of libfuse's threads from one call to the next.

    By default ctypes makes one for each callback and throws it away after: 11 µs of the 35 that a read may take. One
    reference more than it takes back keeps it. A thread that ends leaves its state behind (16 KiB), so only the first
    ones get this: libfuse keeps ten idle threads, and starts more when all are busy.
    """

    _MOST = 64

    def __init__(self) -> None:
        self._left = self._MOST
        self._here = threading.local()  # part of that state: forgotten with it

    def keep(self) -> None:
        """Keeps the calling thread's state, unless it is kept already or too many are."""
        if not hasattr(self._here, "kept") and self._left > 0:
            self._left -= 1
            pythonapi.PyGILState_Ensure()
            self._here.kept = True


thread_states = ThreadStates()

_PYBUF_READ = 0x100
_view = pythonapi.PyMemoryView_FromMemory
_view.argtypes = (c_void_p, c_ssize_t, c_int)
_view.restype = py_object


class _Session(fuse.FUSE):  # type: ignore[misc]
    """fusepy's callbacks, with our errors around them and a read that does not copy twice."""

    operations: Operations

    @staticmethod
    def _wrapper(operation: Callable[..., int], *arguments: object) -> int:
        thread_states.keep()
        return answer(operation, *arguments)

    # fusepy's own stat and listing take 15 µs more for each entry: they go through a dict and look every name of it up.

    def getattr(self, path: bytes, buffer: Any) -> int:
        return self.fgetattr(path, buffer, None)

    def fgetattr(self, path: bytes | None, buffer: Any, info: Any) -> int:
        memset(buffer, 0, _STAT_BYTES)
        number = info.contents.fh if info else None
        return self.operations.stat_into(None if path is None else path.decode(self.encoding), number, buffer.contents)

    def readdir(self, path: None, buffer: Any, filler: Callable[..., int], offset: int, info: Any) -> int:
        status = fuse.c_stat()
        for name, status.st_mode, status.st_ino in self.operations.entries(info.contents.fh):
            if filler(buffer, name, status, 0):  # Offset 0 always: others make libfuse loop for ever.
                break
        return 0

    def read(self, path: None, buffer: Any, size: int, offset: int, info: Any) -> int:
        return self.operations.read_into(info.contents.fh, addressof(buffer.contents), offset, size)

    def open(self, path: bytes, info: Any) -> int:
        return self.operations.open(path.decode(self.encoding), info.contents)

    def release(self, path: None, info: Any) -> int:
        return self.operations.release(None, info.contents)

    def write(self, path: None, buffer: Any, size: int, offset: int, info: Any) -> int:
        data = string_at(buffer, size) if size < _LARGE_BYTES else _view(addressof(buffer.contents), size, _PYBUF_READ)
        opened = info.contents
        return self.operations.write_from(opened.fh, data, None if opened.flags & os.O_APPEND else offset)

    def ioctl(self, *arguments: object) -> int:
        return -errno.ENOTTY  # fusepy's fails without a path


def serve(operations: Operations, serving: Serving) -> int:
    """Mounts and serves, in this process and thread, until unmounted or signalled. Returns libfuse's exit code.

    0 is a clean end. Otherwise libfuse has written to stderr why. Raises what `start` raised.
    """
    options: dict[str, str | bool] = {
        "attr_timeout": "0",
        "entry_timeout": "1",
        "use_ino": True,
        "big_writes": True,
        "subtype": "kafkafs",
        **serving.options,
    }
    code = 0
    try:
        _Session(operations, os.fspath(serving.mountpoint), raw_fi=True, foreground=True, **options)
    except RuntimeError as error:  # how fusepy reports libfuse's exit code
        code = int(error.args[0])
    if operations.failure is not None:
        raise operations.failure
    return code


def libfuse_version() -> str:
    """`2.9`: major and minor, which is all that libfuse tells."""
    number = int(fuse._libfuse.fuse_version())
    return f"{number // 10}.{number % 10}"


@lru_cache(maxsize=4096)  # A listing asks three times for each entry, one after the other.
def inode(path: str) -> int:
    """A number for `path` that stays the same from mount to mount. Leading zeros in an offset range mean nothing."""
    folder, slash, name = path.rpartition("/")
    if folder.endswith("/offsets"):
        path = folder + slash + plain_offsets_name(name)
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little") >> 1 or 1

