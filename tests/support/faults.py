"""A failing Disk: it stops at a chosen operation, and shows what a crash there would leave.

`FaultyDisk` passes every operation to the real file system below one directory and numbers it. At operation
`stop_at` it raises `Crash` instead (or, for a write, tears it) and refuses everything from then on. Afterwards
the directory is what a **kill** leaves. `power_loss(random)` rewrites it into what a **power loss** may leave:

- a file's bytes are those of its last sync, plus any prefix of what was written since, or zeros or garbage there
  (a size that reached the disk before its data); overwritten synced bytes are old or new, sector by sector;
- the names in a directory are those of its last sync_dir, plus some of the changes since: any prefix of all of them, as
  a journal leaves; with `any_order` also any of them whatever became of the others, as POSIX allows; with
  `lost_renames` all but the renames of these names. Only changes of the same name keep their order then.

It also fails with an OSError on request (`fail`), as a full or failing disk does. `fail` gets the path below `root`, so
that no test can mistake a name above the directory for a name in it.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from storage.files.disk import RealDisk, RealFile
from storage.files.disk_protocol import Buffer


class Crash(BaseException):
    """The simulated crash. Not an Exception, so that no handler of the engine catches it."""


_SECTOR = 512


@dataclass
class _Inode:
    """A file's durable content, and the writes since its last sync: (position, bytes), None a truncate."""

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)


@dataclass
class _Name:
    """A change to the names of a directory that no sync_dir has covered yet."""

    directory: Path
    name: str
    inode: _Inode | None
    is_dir: bool = False

    def paths(self) -> tuple[Path, ...]:
        """What it gives a name to, or takes one from."""
        return (self.directory / self.name,)


class FaultyFile:
    """A DiskFile that reports every operation to its FaultyDisk."""

    def __init__(self, disk: FaultyDisk, file: RealFile, inode: _Inode) -> None:
        self.path = file.path
        self._disk = disk
        self._file = file
        self._inode = inode

    def fileno(self) -> int:
        return self._file.fileno()

    def size(self) -> int:
        return self._file.size()

    def write_at(self, position: int, *buffers: Buffer) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        try:
            self._disk.operation(f"write {self.path.name}", self.path)
        except (Crash, OSError):
            # What was stopped, fails or fills up may have taken a part of the write.
            torn = data[: self._disk.random.randrange(len(data) + 1)]
            self._inode.pending.append((position, torn))
            self._file.write_at(position, torn)
            raise
        self._inode.pending.append((position, data))
        end = self._file.write_at(position, data)
        self._disk.changed(self.path)
        return end

    def truncate(self, size_bytes: int) -> None:
        self._disk.operation(f"truncate {self.path.name}", self.path)
        self._inode.pending.append((size_bytes, None))
        self._file.truncate(size_bytes)
        self._disk.changed(self.path)

    def sync(self) -> None:
        self._disk.operation(f"sync {self.path.name}", self.path)
        self._inode.durable = _applied(self._inode.durable, self._inode.pending)
        self._inode.pending.clear()

    def close(self) -> None:
        self._file.close()


class FaultyDisk:
    """A Disk over a real directory `root` that counts, fails and stops. `stop_at` counts from 0; None never stops."""

    file_type = FaultyFile
    any_order = False
    lost_renames: Collection[str] = ()

    def __init__(self, root: Path, *, stop_at: int | None = None, seed: int = 0) -> None:
        self.root = root
        self.stop_at = stop_at
        self.random = random.Random(seed)
        self.operations: list[str] = []
        self.stopped = False
        self.fail: Callable[[str, Path], int | None] = lambda _what, _path: None
        self._real = RealDisk()
        self._durable: dict[Path, dict[str, _Inode | None]] = {}
        self._volatile: dict[Path, dict[str, _Inode | None]] = {}
        self._pending: list[_Name] = []
        self._moved: dict[Path, Path] = {}  # directories, from where they were to where their contents are kept now
        for directory, subdirectories, files in os.walk(root):
            names: dict[str, _Inode | None] = dict.fromkeys(subdirectories)
            names |= {name: _Inode((Path(directory) / name).read_bytes()) for name in files}
            self._durable[Path(directory)] = dict(names)
            self._volatile[Path(directory)] = dict(names)

    def operation(self, what: str, path: Path) -> None:
        """Numbers one operation; raises Crash or an OSError where the test has asked for it."""
        if self.stopped:
            raise Crash(f"after the stop: {what}")
        if len(self.operations) == self.stop_at:
            self.stopped = True
            raise Crash(what)
        self.operations.append(what)
        number = self.fail(what, path.relative_to(self.root))
        if number is not None:
            raise OSError(number, os.strerror(number), str(path))

    def changed(self, path: Path) -> None:
        """A file has another content or size."""

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        exists = path.exists()
        if create and not exists:
            self.operation(f"create {path.name}", path)
        file = self._real.open(path, create=create)
        if create and not exists:
            self._change(path, _Inode())
        inode = self._volatile[path.parent][path.name]
        assert inode is not None
        return self.file_type(self, file, inode)

    def mkdir(self, path: Path) -> None:
        self.operation(f"mkdir {path.name}", path)
        self._real.mkdir(path)
        self._volatile[path] = {}
        self._durable.setdefault(path, {})
        self._change(path, None, is_dir=True)

    def rmdir(self, path: Path) -> None:
        self.operation(f"rmdir {path.name}", path)
        self._real.rmdir(path)
        self._remove(path)

    def rename(self, source: Path, target: Path) -> None:
        self.operation(f"rename {source.name} {target.name}", source)
        self._real.rename(source, target)
        inode = self._volatile[source.parent][source.name]
        if inode is None:
            self._moved[source] = target
            for tree in (self._volatile, self._durable):
                for directory in [d for d in tree if d == source or source in d.parents]:
                    tree[target / directory.relative_to(source)] = tree.pop(directory)
            for change in self._pending:
                if change.directory == source:
                    change.directory = target
        # Both names change in one step, as in a journal: a crash never shows both or neither.
        del self._volatile[source.parent][source.name]
        self._volatile[target.parent][target.name] = inode
        self._pending.append(_Rename(target.parent, target.name, inode, inode is None, source))

    def unlink(self, path: Path) -> None:
        self.operation(f"unlink {path.name}", path)
        self._real.unlink(path)
        self._remove(path)

    def link(self, source: Path, target: Path) -> None:
        self.operation(f"link {source.name} {target.name}", target)
        self._real.link(source, target)
        self._change(target, _Inode(source.read_bytes()))

    def copy(self, source_fd: int, target: Path, size_bytes: int) -> int:
        file = self.open(target, create=True)
        try:
            return file.write_at(0, os.pread(source_fd, size_bytes, 0))
        finally:
            file.close()

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        self.operation(f"set_mtime {path.name}", path)
        self._real.set_mtime(path, mtime_ns)

    def sync_dir(self, path: Path) -> None:
        self.operation(f"sync_dir {path.name}", path)
        waiting = self._pending
        self._pending = []
        for change in waiting:
            if _touches(change, path):
                self._make_durable(change)
            else:
                self._pending.append(change)

    def power_loss(self) -> None:
        """Rewrites the directory to one state that a power loss at this moment may leave."""
        count = self.random.randrange(len(self._pending) + 1)
        for change in self._survivors(count):
            self._make_durable(change)
        shutil.rmtree(self.root)
        self._write_tree(self.root)

    def unsynced_renames(self) -> list[str]:
        """The former names of what was renamed and may have its former name again after a power loss."""
        return [change.source.name for change in self._unsynced_renames()]

    def _unsynced_renames(self) -> list[_Rename]:
        return [change for change in self._pending if isinstance(change, _Rename)]

    def _survivors(self, count: int) -> list[_Name]:
        """The changes of names that reached the disk: the first `count`; about as many, here and there; or all but one
        (and what depends on it)."""
        apart = random.Random(f"{count} {len(self.operations)}")
        kind = apart.random()
        renames = self._unsynced_renames()
        left_out: list[_Name] = [change for change in renames if change.source.name in self.lost_renames]
        if not self.lost_renames:
            if not self.any_order or not self._pending or kind < 0.5:
                return self._pending[:count]
            left_out = [apart.choice(renames or self._pending)] if kind < 0.8 else []
        chosen, lost = [], set[Path]()
        for change in self._pending:
            survives = change not in left_out if left_out else apart.randrange(len(self._pending)) < count
            if lost.isdisjoint(change.paths()) and survives:
                chosen.append(change)
            else:
                lost.update(change.paths())
        return chosen

    def _write_tree(self, directory: Path) -> None:
        directory.mkdir()
        # A rename that did not become durable leaves the old name, with the whole content of the directory.
        kept = directory
        while kept not in self._durable and kept in self._moved:
            kept = self._moved[kept]
        for name, inode in self._durable.get(kept, {}).items():
            if inode is None:
                self._write_tree(directory / name)
            else:
                (directory / name).write_bytes(self._torn(inode))

    def _torn(self, inode: _Inode) -> bytes:
        """One possible content: some prefix of the pending writes, the last of them cut or damaged."""
        count = self.random.randrange(len(inode.pending) + 1)
        content = _applied(inode.durable, inode.pending[:count])
        if count < len(inode.pending):
            position, data = inode.pending[count]
            if data and position + len(data) <= len(inode.durable):
                # Over bytes that are on the disk already: each sector has its old content or its new one.
                first = (position // _SECTOR + 1) * _SECTOR
                ends = [end - position for end in range(first, position + len(data), _SECTOR)]
                content = _applied(content, [(position, data[: self.random.choice([0, *ends])])])
            elif data:
                cut = self.random.randrange(len(data) + 1)
                rest = self.random.choice([b"", bytes(len(data) - cut), self.random.randbytes(len(data) - cut)])
                content = _applied(content, [(position, data[:cut] + rest)])
        return content

    def _change(self, path: Path, inode: _Inode | None, *, is_dir: bool = False) -> None:
        self._volatile[path.parent][path.name] = inode
        self._pending.append(_Name(path.parent, path.name, inode, is_dir))

    def _remove(self, path: Path) -> None:
        del self._volatile[path.parent][path.name]
        self._pending.append(_Removal(path.parent, path.name, None))

    def _make_durable(self, change: _Name) -> None:
        if isinstance(change, _Rename):
            self._durable.get(change.source.parent, {}).pop(change.source.name, None)
        names = self._durable.setdefault(change.directory, {})
        if isinstance(change, _Removal):
            names.pop(change.name, None)
        else:
            names[change.name] = change.inode


@dataclass
class _Removal(_Name):
    pass


@dataclass
class _Rename(_Name):
    source: Path = Path()

    def paths(self) -> tuple[Path, ...]:
        return (self.directory / self.name, self.source)


def _touches(change: _Name, directory: Path) -> bool:
    return change.directory == directory or (isinstance(change, _Rename) and change.source.parent == directory)


def _applied(content: bytes, writes: list[tuple[int, bytes | None]]) -> bytes:
    result = bytearray(content)
    for position, data in writes:
        if data is None:
            del result[position:]
            result.extend(bytes(position - len(result)))
            continue
        if not data:
            continue
        result.extend(bytes(max(0, position - len(result))))
        result[position : position + len(data)] = data
    return bytes(result)


def full_disk(limit: int) -> Callable[[str, Path], int | None]:
    """A `fail` under which every write from the `limit`-th on finds the disk full."""
    writes = 0

    def fail(what: str, _path: Path) -> int | None:
        nonlocal writes
        if not what.startswith("write "):
            return None
        writes += 1
        return errno.ENOSPC if writes > limit else None

    return fail
