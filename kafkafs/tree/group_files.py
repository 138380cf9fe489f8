"""`@groups/<group>/<topic>/<partition>`: committed offsets, readable and, on a writable mount, writable.

Kafka has neither empty groups nor empty files: a directory or file made by mkdir or open is remembered here until an
offset is committed, it is removed, or the mount ends. Removing a file deletes the committed offset.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Final

from kafkafs.file_names import encoded_name
from kafkafs.reading.handle import BytesHandle, Handle, SyncHandle, WriteHandle
from kafkafs.tree.generated import Make
from kafkafs.tree.node import DIRECTORY_MODE, FILE_MODE, Attributes, Directory, Entry, File, NodeKind, View
from kafkafs.tree.paths import MAX_NAME_BYTES, STATE_FILE, GroupDir, GroupOffset, Groups, GroupTopic, NoSuchPath
from kafkafs.writing.line_writer import Refused, RefusedLines
from storage.coordinators import groups
from storage.coordinators.group_commits import GroupCommitter
from storage.coordinators.groups import CommittedOffset, GroupOffsets, state_of
from storage.directory.owned_dir import OwnedDir
from storage.errors import InvalidRecord, NotPermitted, ReadOnlyLogDir
from storage.files.names import topic_name_problem
from storage.log.log_dir import LogDir
from storage.types import MAX_OFFSET

GroupNode = Groups | GroupDir | GroupTopic | GroupOffset

_WRITABLE_DIRECTORY: Final = 0o755
_WRITABLE_FILE: Final = 0o644
_MAX_NUMBER_BYTES: Final = 64  # including blanks around it


class GroupTree:
    """Everything below `@groups`. Thread-safe."""

    def __init__(self, log_dir: LogDir, owned: OwnedDir | None, refused: RefusedLines) -> None:
        # constant after construction
        self._log_dir = log_dir
        self._refused = refused
        # have their own locking
        self.offsets = GroupOffsets(log_dir)
        self.committer = None if owned is None else GroupCommitter(owned, self.offsets)
        # guarded by the lock
        self._lock = Lock()
        self._made: set[GroupDir | GroupTopic | GroupOffset] = set()

    def view(self, node: GroupNode) -> View:
        """NoSuchPath where there is none; StorageError or OSError when the partition that would hold it is
        unreadable."""
        if isinstance(node, GroupOffset):
            committed = self.committed(node)
            if committed is None and not self._is_made(node):
                raise NoSuchPath(str(node))
            return OffsetFile(self, node, committed)
        group = self._group(node)
        if not self._exists(node, group):
            raise NoSuchPath(str(node))
        return GroupDirectory(self, node, group)

    # Making and removing. ReadOnlyLogDir where nothing may be written.

    def make_directory(self, node: GroupNode) -> None:
        """FileExistsError, NoSuchPath without the parent directory, NotPermitted for a path that is a file's."""
        self._committing()
        if isinstance(node, GroupOffset):
            raise NotPermitted("a group's directories are topics, and their partitions are files")
        if self._exists(node, self._group(node)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._check_above(node)
        self._make(node)

    def remove_directory(self, node: GroupNode) -> None:
        """OSError (ENOTEMPTY) while it holds committed offsets. Removing a group removes it for Kafka too."""
        committer = self._committing()
        if isinstance(node, Groups):
            raise NotPermitted("@groups cannot be removed")
        if isinstance(node, GroupOffset):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        group = self._group(node)
        if not self._exists(node, group):
            raise NoSuchPath(str(node))
        if isinstance(node, GroupDir):
            if group is not None and group.offsets:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
            with self._refused.noting(_path_of(node)):
                committer.delete(node.group)
            with self._lock:  # with the directories of topics without an offset, which Kafka does not have
                self._made = {made for made in self._made if made.group != node.group}
            return
        if any(True for _ in self.entries(node, group)):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        with self._lock:
            self._made.discard(node)

    def make_file(self, node: GroupNode) -> None:
        """Makes a file without an offset, to be opened for writing next. Raises what would prevent writing to it."""
        self._committing()
        if not isinstance(node, GroupOffset):
            raise NotPermitted("a file in @groups is a partition: @groups/GROUP/TOPIC/0")
        self._check_above(node)
        self.check(node)
        self._make(node)

    def remove_file(self, node: GroupNode) -> None:
        """Deletes the committed offset. The directories stay until they are removed."""
        committer = self._committing()
        if not isinstance(node, GroupOffset):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if self.committed(node) is not None:
            with self._lock:
                self._made |= {GroupDir(node.group), GroupTopic(node.group, node.tp.topic)}
            committer.forget(node.group, [node.tp])
        elif not self._is_made(node):
            raise NoSuchPath(str(node))
        with self._lock:
            self._made.discard(node)

    def check(self, node: GroupOffset) -> None:
        """Raises what prevents an offset from being committed there, see GroupCommitter.check. It is logged."""
        with self._refused.noting(_path_of(node)):
            self._committing().check(node.group, [node.tp])

    def refused(self, node: GroupOffset) -> Refused:
        """To be told of a number that is refused."""
        return self._refused.at(_path_of(node))

    # Looking up.

    def committed(self, node: GroupOffset) -> CommittedOffset | None:
        """The committed offset; None if the file was only made."""
        group = self.offsets.group(node.group)
        return None if group is None else group.offsets.get(node.tp.topic, {}).get(node.tp.partition)

    def state_text(self, name: str) -> Make:
        """Makes the content of a group's `@state.json`. NoSuchPath without such a group; errors as `view`."""
        group = self.offsets.group(name)
        if group is None:
            if not self._is_made(GroupDir(name)):
                raise NoSuchPath(name)
            group = groups.ConsumerGroup(name, -1)
        text = json.dumps(state_of(group, self._log_dir.topics_by_id), indent=2).encode() + b"\n"
        return lambda: (text, self.mtime_ns(group.commit_timestamp))

    def entries(self, node: Groups | GroupDir | GroupTopic, group: groups.ConsumerGroup | None) -> Iterator[Entry]:
        """The entries of a directory of `group` (None: a group that was only made, or `@groups` itself)."""
        with self._lock:
            made = set(self._made)
        match node:
            case Groups():
                names = set(self.offsets.groups())
                names |= {other.group for other in made if isinstance(other, GroupDir)}
                for name in sorted(map(encoded_name, names)):
                    if len(name.encode()) <= MAX_NAME_BYTES:  # system calls refuse longer names
                        yield Entry(name, NodeKind.DIRECTORY)
            case GroupDir():
                topics = {other.topic for other in made if isinstance(other, GroupTopic) and other.group == node.group}
                topics |= set() if group is None else group.offsets.keys()
                valid = (topic for topic in sorted(topics) if topic_name_problem(topic) is None)
                yield Entry(STATE_FILE, NodeKind.FILE)
                yield from (Entry(topic, NodeKind.DIRECTORY) for topic in valid)
            case GroupTopic():
                numbers = {
                    other.tp.partition
                    for other in made
                    if isinstance(other, GroupOffset) and (other.group, other.tp.topic) == (node.group, node.topic)
                }
                numbers |= set() if group is None else group.offsets.get(node.topic, {}).keys()
                yield from (Entry(str(number), NodeKind.FILE) for number in sorted(numbers) if number >= 0)

    def mtime_ns(self, commit_timestamp: int) -> int:
        """A commit timestamp as an mtime; the log directory's own if there is none (-1)."""
        return commit_timestamp * 1_000_000 if commit_timestamp >= 0 else self._log_dir.mtime_ns

    def _group(self, node: Groups | GroupDir | GroupTopic) -> groups.ConsumerGroup | None:
        """The group that a directory belongs to."""
        return None if isinstance(node, Groups) else self.offsets.group(node.group)

    def _exists(self, node: Groups | GroupDir | GroupTopic, group: groups.ConsumerGroup | None) -> bool:
        if isinstance(node, Groups) or self._is_made(node):
            return True
        return group is not None and (isinstance(node, GroupDir) or node.topic in group.offsets)

    def _check_above(self, node: GroupNode) -> None:
        above: Groups | GroupDir | GroupTopic = Groups()
        if isinstance(node, GroupTopic):
            above = GroupDir(node.group)
        elif isinstance(node, GroupOffset):
            above = GroupTopic(node.group, node.tp.topic)
        if not self._exists(above, self._group(above)):
            raise NoSuchPath(str(above))

    def _make(self, node: GroupNode) -> None:
        if not isinstance(node, Groups):
            with self._lock:
                self._made.add(node)

    def _is_made(self, node: GroupDir | GroupTopic | GroupOffset) -> bool:
        with self._lock:
            return node in self._made

    def _committing(self) -> GroupCommitter:
        if self.committer is None:
            raise ReadOnlyLogDir("mounted read-only")
        return self.committer


class GroupDirectory(Directory):
    """`@groups`, a group, or a topic of a group. `group` None: nothing is committed there."""

    def __init__(
        self, tree: GroupTree, node: Groups | GroupDir | GroupTopic, group: groups.ConsumerGroup | None
    ) -> None:
        self._tree = tree
        self._node = node
        self._group = group

    def attributes(self) -> Attributes:
        group = self._group
        stamp, below = -1, 0
        if group is not None and isinstance(self._node, GroupTopic):
            stamp = max((one.commit_timestamp for one in group.offsets.get(self._node.topic, {}).values()), default=-1)
        elif group is not None:
            stamp, below = group.commit_timestamp, len(group.offsets)
        mode = DIRECTORY_MODE if self._tree.committer is None else _WRITABLE_DIRECTORY
        return Attributes(NodeKind.DIRECTORY, 0, self._tree.mtime_ns(stamp), mode, 2 + below)

    def list(self) -> Iterable[Entry]:
        return self._tree.entries(self._node, self._group)


class OffsetFile(File):
    """A committed offset. `committed` None: the file was made and has no offset yet."""

    def __init__(self, tree: GroupTree, node: GroupOffset, committed: CommittedOffset | None) -> None:
        self._tree = tree
        self._node = node
        self._committed = committed

    def attributes(self) -> Attributes:
        stamp = -1 if self._committed is None else self._committed.commit_timestamp
        mode = FILE_MODE if self._tree.committer is None else _WRITABLE_FILE
        return Attributes(NodeKind.FILE, len(self._content()), self._tree.mtime_ns(stamp), mode)

    def open(self) -> Handle:
        committer = self._tree.committer
        if committer is None:
            return BytesHandle(self._content())
        return SyncHandle(self._content(), lambda: committer.sync(self._node.group))

    def open_to_write(self) -> WriteHandle:
        if self._tree.committer is None:
            return super().open_to_write()
        self._tree.check(self._node)
        return CommitHandle(self._tree, self._tree.committer, self._node, self._content())

    def _content(self) -> bytes:
        return b"" if self._committed is None else b"%d\n" % self._committed.offset


class CommitHandle(BytesHandle):
    """An open file to which offsets are written. Each write commits the last number that it ends with, with or without
    a newline, so that the writer gets the error; a number written in two pieces is committed twice."""

    def __init__(self, tree: GroupTree, committer: GroupCommitter, node: GroupOffset, content: bytes) -> None:
        super().__init__(content)
        self._tree = tree
        self._committer = committer
        self._node = node
        # guarded by the lock: processes may share a descriptor
        self._lock = Lock()
        self._begun = b""

    def write(self, data: bytes | memoryview, offset: int | None = None, *, durable: bool = False) -> int:
        with self._lock:
            before, self._begun = self._begun, b""
            *lines, begun = (before + bytes(data)).split(b"\n")
            numbers = []
            for count, line in enumerate((*lines, begun), 1):
                try:
                    number = _number(line)
                except InvalidRecord as error:
                    self._tree.refused(self._node)(count, error)
                    raise
                numbers += [] if number is None else [number]
            if numbers:
                self._tree.check(self._node)
                self._committer.commit(self._node.group, {self._node.tp: numbers[-1]})
                if durable:
                    self.sync()
            self._begun = begun
            return len(data)

    def sync(self) -> None:
        self._committer.sync(self._node.group)


def _path_of(node: GroupDir | GroupOffset) -> str:
    below = f"/{node.tp}" if isinstance(node, GroupOffset) else ""
    return f"@groups/{encoded_name(node.group)}{below}"


def _number(line: bytes) -> int | None:
    """The offset in a line; None for a blank one. InvalidRecord."""
    text = line.strip()
    if not text and len(line) <= _MAX_NUMBER_BYTES:
        return None
    if len(line) > _MAX_NUMBER_BYTES or not text.isdigit() or int(text) > MAX_OFFSET:
        raise InvalidRecord("offset to commit", expected=f"0 to {MAX_OFFSET}", found=ascii(text[:_MAX_NUMBER_BYTES]))
    return int(text)
