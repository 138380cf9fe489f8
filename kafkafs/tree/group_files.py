"""`@groups/<group>/<topic>/<partition>` and `@groups/<group>/@state.json`: committed offsets and members, read-only.

`kafkafs groups --reset-to` commits offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from kafkafs.file_names import encoded_name
from kafkafs.reading.handle import BytesHandle, Handle, WriteHandle
from kafkafs.tree.generated import Make
from kafkafs.tree.node import DIRECTORY_MODE, FILE_MODE, Attributes, Directory, Entry, File, NodeKind, View
from kafkafs.tree.paths import MAX_NAME_BYTES, STATE_FILE, GroupDir, GroupOffset, Groups, GroupTopic, NoSuchPath
from kafkafs.writing.refused_lines import RefusedLines
from storage.coordinators import groups
from storage.coordinators.group_state import state_of
from storage.coordinators.groups import GroupOffsets
from storage.coordinators.offset_records import CommittedOffset
from storage.errors import NotPermitted
from storage.files.names import topic_name_problem
from storage.log.log_dir import LogDir

GroupNode = Groups | GroupDir | GroupTopic | GroupOffset


class GroupTree:
    """Everything below `@groups`. Thread-safe."""

    def __init__(self, log_dir: LogDir, refused: RefusedLines) -> None:
        self._log_dir = log_dir
        self.refused = refused
        self.offsets = GroupOffsets(log_dir)  # has its own locking

    def view(self, node: GroupNode) -> View:
        """The view of a node. NoSuchPath if the group or offset does not exist; StorageError or OSError if the
        partition of __consumer_offsets that has the group is unreadable."""
        group = None if isinstance(node, Groups) else self.offsets.group(node.group)
        if isinstance(node, Groups):
            return GroupDirectory(self, node, group)
        if group is not None:
            if isinstance(node, GroupOffset):
                committed = group.offsets.get(node.tp.topic, {}).get(node.tp.partition)
                if committed is not None:
                    return OffsetFile(self, node, committed)
            elif isinstance(node, GroupDir) or node.topic in group.offsets:
                return GroupDirectory(self, node, group)
        raise NoSuchPath(str(node))

    def state_text(self, name: str) -> Make:
        """A function that returns the content of a group's `@state.json` and its mtime in ns. Errors as `view`."""
        group = self.offsets.group(name)
        if group is None:
            raise NoSuchPath(name)
        text = json.dumps(state_of(group, self._log_dir.topics_by_id), indent=2).encode() + b"\n"
        return lambda: (text, self.mtime_ns(group.commit_timestamp))

    def entries(self, node: Groups | GroupDir | GroupTopic, group: groups.ConsumerGroup | None) -> Iterator[Entry]:
        """The entries of a directory of `group` (None: `@groups` itself)."""
        offsets = {} if group is None else group.offsets
        match node:
            case Groups():
                for name in sorted(map(encoded_name, self.offsets.groups())):
                    if len(name.encode()) <= MAX_NAME_BYTES:  # system calls refuse longer names
                        yield Entry(name, NodeKind.DIRECTORY)
            case GroupDir():
                yield Entry(STATE_FILE, NodeKind.FILE)
                valid = (topic for topic in sorted(offsets) if topic_name_problem(topic) is None)
                yield from (Entry(topic, NodeKind.DIRECTORY) for topic in valid)
            case GroupTopic():
                numbers = sorted(number for number in offsets.get(node.topic, {}) if number >= 0)
                yield from (Entry(str(number), NodeKind.FILE) for number in numbers)

    def mtime_ns(self, commit_timestamp: int) -> int:
        """A commit timestamp as an mtime; the log directory's own if there is none (-1)."""
        return commit_timestamp * 1_000_000 if commit_timestamp >= 0 else self._log_dir.mtime_ns


class GroupDirectory(Directory):
    """`@groups` (`group` None), a group, or a topic of a group."""

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
            stamp = max(
                (commit.commit_timestamp for commit in group.offsets.get(self._node.topic, {}).values()), default=-1
            )
        elif group is not None:
            stamp, below = group.commit_timestamp, len(group.offsets)
        return Attributes(NodeKind.DIRECTORY, 0, self._tree.mtime_ns(stamp), DIRECTORY_MODE, 2 + below)

    def list(self) -> Iterable[Entry]:
        return self._tree.entries(self._node, self._group)


class OffsetFile(File):
    """A committed offset."""

    def __init__(self, tree: GroupTree, node: GroupOffset, committed: CommittedOffset) -> None:
        self._refused = tree.refused
        self._node = node
        self._content = b"%d\n" % committed.offset
        self._mtime_ns = tree.mtime_ns(committed.commit_timestamp)

    def attributes(self) -> Attributes:
        return Attributes(NodeKind.FILE, len(self._content), self._mtime_ns, FILE_MODE)

    def open(self) -> Handle:
        return BytesHandle(self._content)

    def open_to_write(self) -> WriteHandle:
        self._refused.add(f"@groups/{encoded_name(self._node.group)}/{self._node.tp}", None, read_only())
        return super().open_to_write()


def read_only() -> NotPermitted:
    """The error for changes in `@groups`."""
    return NotPermitted(
        "@groups is read-only",
        advice="`kafkafs groups LOGDIR GROUP --reset-to OFFSET --topic TOPIC` commits offsets, once unmounted",
    )
