"""The floor: the best filesystem that fusepy can be, doing no work. What a real one takes longer is its own doing.

It serves three files of `--bytes` bytes each: `direct` (direct_io), `buffered` (the page cache, dropped at each open)
and `cached` (page cache kept). All reads are answered from one buffer made beforehand. `entries` is a directory of
ENTRIES such files, to list. What is written to `sink` (direct_io) is gone; with `--lean` it is not even copied out of
libfuse's buffer, and threads keep their Python state, as in kafkafs itself. `--keep FILE` appends it to FILE besides:
so much has to be done by a filesystem whose writes survive a kill -9.

    python -m tests.bench.noop_fuse MNT [--bytes N] [--lean] [--keep FILE]  serve in the foreground until unmounted

As a library: `noop_mount(size)` mounts in a child process for the time of a `with`, `cat_seconds(path)` times `cat`.
"""

import argparse
import errno
import os
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from ctypes import addressof, c_char
from pathlib import Path

from kafkafs.mounting.operations import (
    fuse,  # fusepy or mfusepy
    thread_states,
)

DEFAULT_BYTES = 505_000_000  # 5,000,000 messages of 100 bytes, and their newlines
FILES = ("direct", "buffered", "cached")
SINK = "sink"
ENTRIES = 1000
SUBTYPE = "kafkafs-noop"
_READ_BYTES = 128 << 10


class Noop(fuse.Operations):
    """Three files to read and one to write, no work."""

    use_ns = True
    flush = None  # unanswered once, never asked again
    flag_nullpath_ok = True
    flag_nopath = True

    def __init__(self, size):
        self._size = size
        self._block = bytes(range(256)) * (_READ_BYTES // 256)

    def getattr(self, path, info=None):
        if path in ("/", "/entries"):
            return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2}
        if path == f"/{SINK}":
            return {"st_mode": stat.S_IFREG | 0o222, "st_nlink": 1, "st_size": 0, "st_blksize": _READ_BYTES}
        # An open file comes without its path.
        if info is None and (path or "")[1:] not in FILES and not (path or "").startswith("/entries/"):
            raise fuse.FuseOSError(errno.ENOENT)
        return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": self._size, "st_blksize": _READ_BYTES}

    def opendir(self, path):
        return int(path == "/entries")  # a listing comes without its path

    def readdir(self, _path, number):
        return [".", "..", *(map(str, range(ENTRIES)) if number else (*FILES, "entries", SINK))]

    def getxattr(self, _path, _name, _position=0):
        raise fuse.FuseOSError(errno.ENOTSUP)

    def open(self, path, info):
        info.direct_io = path in ("/direct", f"/{SINK}")
        info.keep_cache = path == "/cached"
        return 0

    def read(self, _path, size, offset, _info):
        left = self._size - offset
        if size == _READ_BYTES and left >= size:
            return self._block
        return self._block[: max(0, min(size, left))]

    def write(self, _path, data, _offset, _info):
        return len(data)

    def truncate(self, _path, _length, _info=None):
        return 0


class Lean(fuse.FUSE):
    """As little of fusepy as kafkafs has."""

    @staticmethod
    def _wrapper(operation, *arguments):
        thread_states.keep()
        try:
            return operation(*arguments) or 0
        except OSError as error:
            return -(error.errno or errno.EIO)

    def write(self, _path, _buffer, size, _offset, _info):
        return size


class Keeping(Lean):
    """What is written is in a file when the write returns, as it is."""

    file: int

    def write(self, _path, buffer, size, _offset, _info):
        return os.write(self.file, (c_char * size).from_address(addressof(buffer.contents)))


def serve(mountpoint, size, *, lean=False, keep=None):
    """Serves in the foreground until unmounted."""
    session = Lean if lean else fuse.FUSE
    if keep is not None:
        session = Keeping
        Keeping.file = os.open(keep, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    session(
        Noop(size),
        str(mountpoint),
        raw_fi=True,
        foreground=True,
        attr_timeout=0,
        **({} if fuse.__name__ == "mfusepy" else {"big_writes": True}),
        fsname="noop",
        subtype=SUBTYPE,
    )


@contextmanager
def noop_mount(size=DEFAULT_BYTES, *, lean=False, keep=None):
    """The mountpoint of a no-op filesystem in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="kafkafs-noop-") as directory:
        mountpoint = Path(directory)
        command = [sys.executable, "-m", "tests.bench.noop_fuse", directory, "--bytes", str(size)]
        command += ["--lean"] * lean + ([] if keep is None else ["--keep", str(keep)])
        server = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[2])
        try:
            deadline = time.monotonic() + 30
            while not mountpoint.is_mount():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command}: exit {server.returncode}")
                time.sleep(0.01)
            yield mountpoint
        finally:
            subprocess.run(["fusermount", "-u", "-z", directory], check=False, stderr=subprocess.DEVNULL)
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def cat_seconds(path):
    """The time that `cat path >/dev/null` takes, the process's start included."""
    start = time.perf_counter()
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main():
    """The command line above."""
    parser = argparse.ArgumentParser(description="a FUSE filesystem that does no work")
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--bytes", type=int, default=DEFAULT_BYTES)
    parser.add_argument("--lean", action="store_true")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    serve(arguments.mountpoint.resolve(), arguments.bytes, lean=arguments.lean, keep=arguments.keep)


if __name__ == "__main__":
    main()
