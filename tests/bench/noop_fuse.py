"""The floor: the best filesystem that fusepy can be, doing no work. What a real one takes longer is its own doing.

It serves three files of `--bytes` bytes each: `direct` (direct_io), `buffered` (the page cache, dropped at each open)
and `cached` (page cache kept). All reads are answered from one buffer made beforehand. What is written to `sink`
(direct_io) is gone; with `--lean` it is not even copied out of libfuse's buffer, and threads keep their Python state,
as in kafkafs itself.

    python -m tests.bench.noop_fuse MNT [--bytes N] [--one-thread] [--lean]  serve in the foreground until unmounted
    python -m tests.bench.noop_fuse --measure [--bytes N] [--runs 5]         mount in a temporary directory, cat, print

With `--shape FILE` it shows other names: those in FILE, as `find . -printf '%y %P\\n'` prints them, all files empty.

As a library: `noop_mount(size)` mounts in a child process for the time of a `with`, `cat_seconds(path)` times `cat`.
"""

from __future__ import annotations

import argparse
import errno
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafkafs.mounting.operations import (
    fuse,  # type: ignore[attr-defined]  # fusepy or mfusepy
    thread_states,
)

DEFAULT_BYTES = 505_000_000  # 5,000,000 messages of 100 bytes, and their newlines
FILES = ("direct", "buffered", "cached")
SINK = "sink"
SUBTYPE = "kafkafs-noop"
_READ_BYTES = 128 << 10
_TIME_NS = 1_795_046_400_000_000_000


class Noop(fuse.Operations):  # type: ignore[misc]
    """Three files to read and one to write, no work."""

    use_ns = True
    flush = None  # unanswered once, never asked again
    flag_nullpath_ok = True
    flag_nopath = True

    def __init__(self, size: int) -> None:
        self._size = size
        self._block = bytes(range(256)) * (_READ_BYTES // 256)

    def getattr(self, path: str | None, info: object = None) -> dict[str, int]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2}
        if path == f"/{SINK}":
            return {"st_mode": stat.S_IFREG | 0o222, "st_nlink": 1, "st_size": 0, "st_blksize": _READ_BYTES}
        if info is None and (path or "")[1:] not in FILES:  # an open file comes without its path
            raise fuse.FuseOSError(errno.ENOENT)
        return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": self._size, "st_blksize": _READ_BYTES}

    def readdir(self, _path: str, _fh: int) -> list[str]:
        return [".", "..", *FILES, SINK]

    def open(self, path: str, info: Any) -> int:
        info.direct_io = path in ("/direct", f"/{SINK}")
        info.keep_cache = path == "/cached"
        return 0

    def read(self, _path: str, size: int, offset: int, _info: Any) -> bytes:
        left = self._size - offset
        if size == _READ_BYTES and left >= size:
            return self._block
        return self._block[: max(0, min(size, left))]

    def write(self, _path: str, data: bytes, _offset: int, _info: Any) -> int:
        return len(data)

    def truncate(self, _path: str | None, _length: int, _info: Any = None) -> int:
        return 0


class NoopTree(fuse.Operations):  # type: ignore[misc]
    """Names and nothing in them: what a stat and a listing cost at the least."""

    use_ns = True
    flush = None

    def __init__(self, shape: Path) -> None:
        self._attributes: dict[str, dict[str, int]] = {}
        self._entries: dict[str, list[tuple[str, dict[str, int], int]]] = {}
        for number, line in enumerate(shape.read_text().splitlines(), 1):
            kind, path = line[0], "/" + line[2:]
            mode = stat.S_IFDIR | 0o555 if kind == "d" else stat.S_IFREG | 0o444
            self._attributes[path] = {
                "st_mode": mode, "st_ino": number, "st_nlink": 1, "st_uid": 0, "st_gid": 0, "st_size": 0,
                "st_blocks": 0, "st_blksize": 4096, "st_atime": _TIME_NS, "st_mtime": _TIME_NS, "st_ctime": _TIME_NS,
            }  # fmt: skip
            above, _, name = path.rpartition("/")
            if name:
                self._entries.setdefault(above or "/", []).append((name, {"st_mode": mode, "st_ino": number}, 0))

    def getattr(self, path: str, info: object = None) -> dict[str, int]:
        found = self._attributes.get(path)
        if found is None:
            raise fuse.FuseOSError(errno.ENOENT)
        return found

    def readdir(self, path: str, _fh: int) -> list[object]:
        return [".", "..", *self._entries.get(path, ())]

    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        raise fuse.FuseOSError(errno.ENOTSUP)


class Lean(fuse.FUSE):  # type: ignore[misc]
    """As little of fusepy as kafkafs has."""

    @staticmethod
    def _wrapper(operation: Callable[..., int], *arguments: object) -> int:
        thread_states.keep()
        try:
            return operation(*arguments) or 0
        except OSError as error:
            return -(error.errno or errno.EIO)

    def write(self, _path: object, _buffer: object, size: int, _offset: int, _info: object) -> int:
        return size


def serve(mountpoint: Path, size: int, *, threads: bool = True, lean: bool = False, shape: Path | None = None) -> None:
    """Serves in the foreground until unmounted."""
    session = Lean if lean else fuse.FUSE
    session(
        Noop(size) if shape is None else NoopTree(shape),
        str(mountpoint),
        raw_fi=True,
        foreground=True,
        nothreads=not threads,
        attr_timeout=0,
        **({} if fuse.__name__ == "mfusepy" else {"big_writes": True}),
        fsname="noop",
        subtype=SUBTYPE,
    )


@contextmanager
def noop_mount(
    size: int = DEFAULT_BYTES, *, threads: bool = True, lean: bool = False, shape: Path | None = None
) -> Iterator[Path]:
    """The mountpoint of a no-op filesystem in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="kafkafs-noop-") as directory:
        mountpoint = Path(directory)
        command = [sys.executable, "-m", "tests.bench.noop_fuse", directory, "--bytes", str(size)]
        command += ["--lean"] * lean + ["--one-thread"] * (not threads)
        command += [] if shape is None else ["--shape", str(shape)]
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


def cat_seconds(path: Path) -> float:
    """The time that `cat path >/dev/null` takes, the process's start included."""
    start = time.perf_counter()
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def _measure(size: int, runs: int) -> Iterator[str]:
    for threads in (True, False):
        with noop_mount(size, threads=threads) as mountpoint:
            for name in FILES:
                times = [cat_seconds(mountpoint / name) for _ in range(runs)]
                yield (
                    f"{name:9} {'threads' if threads else 'one thread':11} median {statistics.median(times):.3f} s,"
                    f" least {min(times):.3f}, {size / statistics.median(times) / 1e9:.2f} GB/s"
                )


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(description="a FUSE filesystem that does no work")
    parser.add_argument("mountpoint", nargs="?", type=Path)
    parser.add_argument("--bytes", type=int, default=DEFAULT_BYTES)
    parser.add_argument("--one-thread", action="store_true")
    parser.add_argument("--lean", action="store_true")
    parser.add_argument("--shape", type=Path)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.measure:
        for line in _measure(arguments.bytes, arguments.runs):
            sys.stdout.write(line + "\n")
    elif arguments.mountpoint:
        serve(
            arguments.mountpoint.resolve(),
            arguments.bytes,
            threads=not arguments.one_thread,
            lean=arguments.lean,
            shape=arguments.shape,
        )
    else:
        parser.error("MNT or --measure")


if __name__ == "__main__":
    main()
