"""A tree that is none of a log: files in memory, and every way to fail. `python -m … MNT` serves it until unmounted."""

import errno
import os
import sys
import threading
from pathlib import Path

from kafkafs.mounting import operations
from kafkafs.reading.handle import BytesHandle
from kafkafs.tree.node import Attributes, Directory, Entry, File, NodeKind
from kafkafs.tree.paths import MAX_NAME_BYTES, NameTooLong, NoSuchPath
from storage import errors

MTIME_NS = 1_763_683_200_123_456_789
CONTENT = bytes(range(256)) * 2048  # half a MiB


class MemoryFile(File):
    """A file with a fixed content."""

    def __init__(self, content=CONTENT):
        self.content = content

    def attributes(self):
        return Attributes(NodeKind.FILE, len(self.content), MTIME_NS, 0o444)

    def open(self):
        return BytesHandle(self.content)


class Failing(MemoryFile):
    """Opens, but cannot be read."""

    size, direct_io, keep_cache = len(CONTENT), True, False

    def __init__(self, error):
        super().__init__()
        self._error = error

    def open(self):
        return self

    def read_into(self, address, offset, size):
        raise self._error

    def close(self):
        pass


class Disconnecting(MemoryFile):
    """Once opened, whoever reads from /dev/fuse reads from /dev/null."""

    def open(self):
        with Path(os.devnull).open("rb") as nothing:
            for fd in Path("/proc/self/fd").iterdir():
                if fd.is_symlink() and str(fd.readlink()) == "/dev/fuse":
                    os.dup2(nothing.fileno(), int(fd.name))
        return super().open()


class MemoryDirectory(Directory):
    """A directory of views."""

    def __init__(self, views):
        self.views = views

    def attributes(self):
        return Attributes(NodeKind.DIRECTORY, 0, MTIME_NS, 0o555, 2)

    def list(self):
        return [Entry(name, view.attributes().kind) for name, view in self.views.items()]


FAILURES = {
    "out-of-range": (errors.OffsetOutOfRange("no such offset", offset=7), errno.ERANGE),
    "unknown-format": (errors.UnsupportedFormat("magic 9"), errno.EPROTO),
    "bug": (ZeroDivisionError("a bug"), errno.EIO),
    "exit": (SystemExit(3), errno.EIO),
    "interrupt": (KeyboardInterrupt(), errno.EIO),
    "no-memory": (MemoryError(), errno.EIO),
}


class FakeTree:
    """The whole tree."""

    def __init__(self):
        self.root = MemoryDirectory(
            {
                "file": MemoryFile(),
                "disconnecting": Disconnecting(),
                "deep": MemoryDirectory({"er": MemoryDirectory({"file": MemoryFile(b"deep\n")})}),
                "not-\udcff-utf8": MemoryFile(),
                "größe": MemoryFile(b"umlaut\n"),
                "many": MemoryDirectory({f"file-{number:06}": MemoryFile(b"x") for number in range(20_000)}),
                **{f"fails-{name}": Failing(error) for name, (error, _) in FAILURES.items()},
            }
        )
        self.stopped = threading.Event()

    def lookup(self, path):
        view = self.root
        for name in filter(None, path.split("/")):
            if name == "lookup-bug":
                raise AssertionError("a bug in lookup")
            if len(os.fsencode(name)) > MAX_NAME_BYTES:  # libfuse 2 does not let them come here
                raise NameTooLong(path)
            if name not in view.views:
                raise NoSuchPath(path)
            view = view.views[name]
        return view


def main(mountpoint):
    """Serves until unmounted; ends with exit code 1 if libfuse's is not 0."""
    tree = FakeTree()
    serving = operations.Serving(Path(mountpoint), Path("/"), os.getuid(), os.getgid(), {"ro": True, "fsname": "fake"})
    served = operations.Operations(tree, serving, operations.Traffic(), lambda: None, tree.stopped.set)
    code = operations.serve(served, serving)
    assert tree.stopped.is_set()
    sys.exit(code != 0)


if __name__ == "__main__":
    main(sys.argv[1])
