"""The tree of a small log, in which files fail in every way. `python -m … MNT` serves it until unmounted."""

import errno
import os
import sys
import threading
from pathlib import Path

from kafkafs.mounting import operations
from kafkafs.tree.node import Attributes, File, NodeKind
from kafkafs.tree.tree import Tree, TreeOptions
from storage import errors
from storage.log.log_dir import LogDir
from tests.support.builders import build_log_dir

CONTENT = [b"x" * 1000] * 500

FAILURES = {
    "out-of-range": (errors.OffsetOutOfRange("no such offset", offset=7), errno.ERANGE),
    "unknown-format": (errors.UnsupportedFormat("magic 9"), errno.EPROTO),
    "bug": (ZeroDivisionError("a bug"), errno.EIO),
    "exit": (SystemExit(3), errno.EIO),
    "interrupt": (KeyboardInterrupt(), errno.EIO),
    "no-memory": (MemoryError(), errno.EIO),
}


class Failing(File):
    """A file, and its handle, that opens but cannot be read."""

    size, direct_io, keep_cache = 100, True, False

    def __init__(self, error):
        self.error = error

    def attributes(self):
        return Attributes(NodeKind.FILE, self.size, 0, 0o444)

    def open(self):
        return self

    def read_into(self, address, offset, size):
        raise self.error

    def close(self):
        pass


class Disconnecting(Failing):
    """Once opened, whoever reads from /dev/fuse reads from /dev/null."""

    def open(self):
        with Path(os.devnull).open("rb") as nothing:
            for fd in Path("/proc/self/fd").iterdir():
                if fd.is_symlink() and str(fd.readlink()) == "/dev/fuse":
                    os.dup2(nothing.fileno(), int(fd.name))
        return self


class FailingTree(Tree):
    def lookup(self, path):
        name = path.removeprefix("/")
        if name == "lookup-bug":
            raise AssertionError("a bug in lookup")
        if name == "disconnecting":
            return Disconnecting(None)
        return Failing(FAILURES[name][0]) if name in FAILURES else super().lookup(path)


def main(mountpoint):
    """Serves until unmounted; ends with exit code 1 if libfuse's is not 0."""
    built = build_log_dir(mountpoint.with_name("log"), {"t": [CONTENT]})
    (built.path / "t-0" / "not-\udcff-utf8").touch()
    for number in range(5_000):
        (built.path / "t-0" / f"file-{number:06}").touch()
    stopped = threading.Event()
    serving = operations.Serving(mountpoint, Path("/"), os.getuid(), os.getgid(), {"ro": True, "fsname": "fake"})
    tree = FailingTree(LogDir.open_read_only(built.path), TreeOptions(index_bytes=0))
    served = operations.Operations(tree, serving, operations.Traffic(), lambda: None, stopped.set)
    code = operations.serve(served, serving)
    assert stopped.is_set()
    sys.exit(code != 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
