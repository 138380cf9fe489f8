"""The adapter between FUSE and the tree. It decides nothing: paths go to the tree, errors to `errnos`.

The only module that imports FUSE: fusepy over libfuse 2 if that is installed, otherwise mfusepy over libfuse 3. How it
uses them:

- `raw_fi`, so that `open` can choose direct_io or the page cache for each file;
- attr_timeout=0: sizes grow, and the exact size of a view is known only after its first open. Names may stay in the
  kernel's cache for a second, because every stat and every open of a name is a request anyway;
- `flag_nopath`: libfuse need not build the path of an open file, its handle is enough;
- reads go directly into libfuse's buffer, without fusepy's copy;
- no `default_permissions` unless others may write, or `modes=below`: all modes allow reading to every user who gets
  here, and to check them with attr_timeout=0 the kernel would request every directory of a path again (open: 114 µs
  instead of 47);
- no `flush`: shells flush before they write, so it does not mark the end of anything;
- nothing of libfuse 3 that would change the figures and promises for libfuse 2: see `_Session3`.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from ctypes import addressof, c_char_p, c_int, c_ssize_t, c_void_p, py_object, pythonapi, string_at
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, Protocol

from kafkafs.mounting.errnos import answer
from kafkafs.mounting.inodes import inode
from kafkafs.mounting.modes_below import ModesBelow
from kafkafs.reading.handle import Handle, HasHoles, Syncs, WriteHandle
from kafkafs.tree.node import Directory, NodeKind, View
from kafkafs.tree.paths import MAX_NAME_BYTES
from storage.errors import StorageError, error_text


# Python's state of libfuse's threads.
class ThreadStates:
    """Keeps Python's state of libfuse's threads from one call to the next.

    By default ctypes makes a state for each callback and deletes it afterwards: 11 µs of the 35 that a read may take.
    An additional reference keeps it. A thread that ends leaves its state allocated (16 KiB), so only the first threads
    get this: libfuse keeps ten idle threads, and starts more when all are busy.
    """

    _MOST = 64

    def __init__(self) -> None:
        self._left = self._MOST
        self._here = threading.local()  # part of that state: forgotten with it

    def keep(self) -> None:
        """Keeps the calling thread's state, unless it is kept already or too many are kept."""
        if not hasattr(self._here, "kept") and self._left > 0:
            self._left -= 1
            pythonapi.PyGILState_Ensure()
            self._here.kept = True


thread_states = ThreadStates()


# FUSE_LIBRARY_NAME is mfusepy's own variable: `fuse3` chooses libfuse 3 where both are.
if os.environ.get("FUSE_LIBRARY_NAME") == "fuse3":
    import mfusepy as fuse
else:
    try:
        import fuse
    except OSError:  # there is no libfuse 2
        import mfusepy as fuse


_log = logging.getLogger(__name__)

# The preferred size of a read, for tools that use it: as much as one FUSE request carries.
_BLOCK_BYTES = 128 << 10
_WRITE_BITS = 0o222
_MAJOR = 3 if fuse.__name__ == "mfusepy" else 2


# From this size on, written data is used in libfuse's buffer without a copy.
_LARGE_BYTES = 4 << 10


class Lookup(Protocol):
    """The part of a tree that every mount needs."""

    def lookup(self, path: str) -> View:
        """The view at a path (`/` is the mountpoint). Raises NoSuchPath, StorageError, OSError."""


class WritableTree(Protocol):
    """Making and removing topics in a tree that can be written to."""

    def make_directory(self, path: str) -> None:
        """StorageError, OSError."""

    def remove_directory(self, path: str) -> None:
        """StorageError, OSError."""

    def refuse_file(self, path: str) -> NoReturn:
        """Raises why a file is not made or removed. StorageError."""


@dataclass(slots=True)
class Traffic:
    """The requests so far. Counted without a lock: numbers for people, which may be off by a few."""

    opens: int = 0
    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    open_files: int = 0


@dataclass(frozen=True, slots=True)
class Serving:
    """How a tree is served. `disk`: the directory that statfs describes; `options`: libfuse's; `modes`: None where all
    who get here may read."""

    mountpoint: Path
    disk: Path
    uid: int
    gid: int
    options: dict[str, str | bool] = field(default_factory=dict)
    modes: ModesBelow | None = None


class Operations(fuse.Operations):  # type: ignore[misc]
    """FUSE's calls on a tree. They raise what the tree raises: `answer` makes each call, and answers with the errno.

    `writable`: None on a read-only mount.
    `start` is called once mounted, from one of FUSE's threads and after any fork; `stop` once unmounted.
    """

    use_ns = True
    flag_nullpath_ok = True
    flag_nopath = True
    # Refused once (ENOSYS), these are never sent again: a close takes one request less, and the kernel answers getxattr
    # with ENOTSUP. The base class answers listxattr with an empty list: the tree has no extended attributes.
    flush = None
    getxattr = None

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
        except BaseException as error:  # noqa: BLE001 - `serve` raises it once libfuse has returned
            self.failure = error
            fuse.fuse_exit()

    def destroy(self, path: str) -> None:
        # The kernel may not have reported every file that was closed before the umount.
        for number in list(self._writing):
            self.failure = self._close_writer(self._writing.pop(number)) or self.failure
        self._stop()

    def stat_into(self, path: str | None, number: int | None, status: Any) -> int:
        """Fills in a c_stat for the kernel, for a path, or without a path for the open file or directory of
        this number."""
        if path is None:
            assert number is not None, "libfuse omits the path only for open files and directories"
            path = self._paths[number]
        attributes = self._tree.lookup(path).attributes()
        size = attributes.size
        # A request with a handle (lseek(2) to the end; fstat(2) has none) is about the open file's size.
        handle = None if number is None or number in self._writing else self.handles.get(number)
        if handle is not None:
            size = handle.size
        seconds, nanos = divmod(attributes.mtime_ns, 1_000_000_000)
        uid, gid, mode = self._serving.uid, self._serving.gid, attributes.mode
        if self._serving.modes is not None:
            permitted = self._serving.modes.of(path, attributes.kind)
            uid, gid = permitted.uid, permitted.gid
            mode = permitted.mode & (mode | (_WRITE_BITS if mode & _WRITE_BITS else 0))
        status.st_mode = attributes.kind | mode
        status.st_ino = inode(path)
        status.st_nlink = attributes.nlink
        status.st_uid = uid
        status.st_gid = gid
        status.st_rdev = 0
        status.st_size = size
        status.st_blocks = -(-size // 512)
        status.st_blksize = _BLOCK_BYTES
        status.st_atimespec = status.st_mtimespec = status.st_ctimespec = fuse.c_timespec(seconds, nanos)
        return 0

    def opendir(self, path: str) -> int:
        if not isinstance(self._tree.lookup(path), Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return self._number(path)

    def entries(self, number: int) -> Iterator[tuple[bytes, int, int]]:
        """The entries of an open directory: name, type (as in st_mode) and inode. The type spares `find` its stats."""
        path = self._paths[number]
        for dots in (b".", b".."):
            yield dots, NodeKind.DIRECTORY, inode(path)
        above = path.rstrip("/")
        for name, kind in self._tree.lookup(path).list():
            try:
                encoded = name.encode()
            except UnicodeEncodeError:
                continue  # Kafka has no files of such names, and fusepy decodes paths before we see them.
            yield encoded, kind, inode(f"{above}/{name}")

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
        """Copies up to `size` bytes from `offset` of an open file to `address`; returns how many. Does not wait for
        more to be appended."""
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

    def write_from(
        self, number: int, data: bytes | memoryview, offset: int | None = None, *, durable: bool = False
    ) -> int:
        """Writes to an open file; returns how many bytes were taken. `offset`, `durable`: see WriteHandle."""
        count = self._writing[number].write(data, offset, durable=durable)
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
    def _close_writer(writer: WriteHandle) -> Exception | None:
        """Closes a writer. Logs and returns its error."""
        try:
            writer.close()
        except (StorageError, OSError) as error:
            # The kernel drops release's answer: close(2) has returned long before.
            _log.error("the last line of a file that was closed could not be appended: %s", error_text(error))
            return error
        return None

    def statfs(self, path: str) -> dict[str, int]:
        try:
            disk = os.statvfs(self._serving.disk)
        except OSError:  # it has failed: nothing is known, and df(1) still lists the mount
            return {"f_bsize": _BLOCK_BYTES, "f_frsize": _BLOCK_BYTES, "f_namemax": MAX_NAME_BYTES}
        names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail")
        return {name: getattr(disk, name) for name in names} | {"f_namemax": MAX_NAME_BYTES}

    def mkdir(self, path: str, mode: int) -> int:
        self._writable().make_directory(path)
        return 0

    def rmdir(self, path: str) -> int:
        self._writable().remove_directory(path)
        return 0

    def create(self, path: str, mode: int, info: Any) -> int:
        self._writable().refuse_file(path)

    def unlink(self, path: str) -> int:
        self._writable().refuse_file(path)

    def truncate(self, path: str | None, length: int, info: Any = None) -> int:
        writer = None if info is None else self._writing.get(info.fh)
        if isinstance(writer, HasHoles):
            writer.extend(length)
        return self._accept(self._paths[info.fh] if path is None else path)

    def _accept(self, path: str, *arguments: object) -> int:
        """Accepts, without effect, the calls that tools make on files that they write to. Other files refuse them."""
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

    # The kernel sends none of these to a mount with `ro`, except after `mount -o remount,rw`.
    mknod = symlink = rename = link = _not_here
    # The session answers these. They are named here, because mfusepy registers only the calls that are named here.
    readdir = read = write = ioctl = _refuse

    def _number(self, path: str) -> int:
        number = next(self._numbers)
        self._paths[number] = path
        return number


def asking_thread() -> int:
    """The id of the thread whose request is being answered; 0 when it is in another pid namespace."""
    return int(fuse.fuse_get_context()[2])


_PYBUF_READ = 0x100
_view = pythonapi.PyMemoryView_FromMemory
_view.argtypes = (c_void_p, c_ssize_t, c_int)
_view.restype = py_object


class _Session(fuse.FUSE):  # type: ignore[misc]
    """The callbacks of fusepy or mfusepy, made through `answer`, and with a read that copies only once."""

    operations: Operations

    @staticmethod
    def _wrapper(operation: Callable[..., int], *arguments: object) -> int:
        thread_states.keep()
        return answer(operation, *arguments)

    # fusepy's own stat and listing take 15 µs more for each entry: they use a dict and look up every name in it.

    def fgetattr(self, path: bytes | None, buffer: Any, info: Any) -> int:
        number = info.contents.fh if info else None
        return self.operations.stat_into(None if path is None else path.decode(self.encoding), number, buffer.contents)

    def list_into(self, buffer: Any, filler: Callable[..., int], info: Any, *flags: int) -> int:
        """Fills in the entries of an open directory."""
        status = fuse.c_stat()
        for name, status.st_mode, status.st_ino in self.operations.entries(info.contents.fh):
            if filler(buffer, name, status, 0, *flags):  # Offset 0 always: others make libfuse loop forever.
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
        flags = opened.flags
        # O_DSYNC is a part of O_SYNC. The flags are those of this write: the kernel adds it for RWF_DSYNC and RWF_SYNC,
        # and on a mount with the option `sync` (fuse_write_flags in fs/fuse/file.c).
        durable = bool(flags & os.O_DSYNC)
        return self.operations.write_from(opened.fh, data, None if flags & os.O_APPEND else offset, durable=durable)

    def ioctl(self, *arguments: object) -> int:
        return -errno.ENOTTY  # fusepy's fails without a path


class _Session2(_Session):
    """Over libfuse 2."""

    def getattr(self, path: bytes, buffer: Any) -> int:
        return self.fgetattr(path, buffer, None)

    def readdir(self, path: None, buffer: Any, filler: Callable[..., int], offset: int, info: Any) -> int:
        return self.list_into(buffer, filler, info)


# What libfuse 3 does by default (fuse_common.h).
_AUTO_INVAL_DATA = 1 << 12
_READDIRPLUS = 1 << 13


class _Session3(_Session):
    """Over libfuse 3, whose calls have more arguments. mfusepy wants them under other names.

    Two additions of libfuse 3 are off. With AUTO_INVAL_DATA, each read(2) of a cached file would request the size again
    (3,858 requests for 505 MB instead of 6). READDIRPLUS would send attributes that the kernel, because of
    attr_timeout=0, requests again. Requests have up to 1 MiB, as much as libfuse's buffer holds: with a larger
    `max_write` the kernel answers every read of /dev/fuse with EINVAL.

    After a signal, libfuse 3 returns the exit code of an error. So signals are handled here: Python's handlers cannot
    run while libfuse has the main thread, but they write to a pipe, and a thread that reads it ends libfuse's loop.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        self._looping = threading.get_ident()
        self._lock = threading.Lock()  # guards _session
        self._session: c_void_p | None = None  # libfuse's, while it may be ended
        self._signals, written = os.pipe()
        os.set_blocking(written, False)
        fuse.signal = lambda *_: None  # mfusepy would reset SIGINT, and libfuse handles a signal without a handler
        numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
        before = {
            number: signal.signal(number, lambda *_: None)
            for number in numbers
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        signal.set_wakeup_fd(written)
        try:
            super().__init__(*arguments, **options)
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(written)

    def init_fuse_3(self, connection: Any, configuration: Any) -> None:
        connection.contents.want &= ~(_AUTO_INVAL_DATA | _READDIRPLUS)
        self._session = c_void_p(fuse._libfuse.fuse_get_context().contents.fuse)
        threading.Thread(target=self._end_when_signalled, daemon=True).start()
        super().init_fuse_3(connection, configuration)

    def _end_when_signalled(self) -> None:
        while os.read(self._signals, 1):  # nothing: the mount has ended
            with self._lock:
                session, self._session = self._session, None
                if session is not None:
                    fuse._libfuse.fuse_exit(session)
                    signal.pthread_kill(self._looping, signal.SIGTERM)  # interrupts its wait, so that it sees the end
        os.close(self._signals)

    def destroy(self, data: Any) -> None:
        with self._lock:
            self._session = None
        super().destroy(data)

    def getattr_fuse_3(self, path: bytes | None, buffer: Any, info: Any) -> int:
        return self.fgetattr(path, buffer, info)

    def readdir_fuse_3(
        self, path: None, buffer: Any, filler: Callable[..., int], offset: int, info: Any, flags: int
    ) -> int:
        return self.list_into(buffer, filler, info, 0)

    def truncate_fuse_3(self, path: bytes | None, length: int, info: Any) -> int:
        done: int = self.ftruncate(path, length, info)
        return done


def serve(operations: Operations, serving: Serving) -> int:
    """Mounts and serves, in this process and thread, until unmounted or signalled. Returns libfuse's exit code.

    0 is a clean end. Otherwise libfuse has written to stderr why. Raises what `start` raised.
    """
    options: dict[str, str | bool] = {
        "attr_timeout": "0",
        "entry_timeout": "1",
        "use_ino": True,
        "subtype": "kafkafs",
        **serving.options,
    }
    session: type[_Session] = _Session2
    if _MAJOR == 2:
        options["big_writes"] = True
    else:
        session = _Session3
        options["errors"] = "strict"  # mfusepy's: a name that is not UTF-8 is no path here
        if fuse.fuse_version_minor >= 12:
            # By default ten threads at most, which ten slow requests would keep busy.
            options |= {"max_threads": "1000", "max_idle_threads": "10"}
    code = 0
    try:
        session(operations, os.fspath(serving.mountpoint), raw_fi=True, foreground=True, **options)
    except RuntimeError as error:  # how fusepy and mfusepy report libfuse's exit code
        code = int(error.args[0])
    if operations.failure is not None:
        raise operations.failure
    return code


def versions() -> dict[str, str]:
    """The versions of libfuse (libfuse 2 reports only `2.9`; `3.14.0`) and of the package that uses it."""
    package, library = "fusepy" if _MAJOR == 2 else "mfusepy", fuse._libfuse
    if _MAJOR == 2:
        libfuse = ".".join(str(library.fuse_version()))
    else:
        library.fuse_pkgversion.restype = c_char_p
        libfuse = library.fuse_pkgversion().decode()
    return {"libfuse": libfuse, package: metadata.version(package)}
