"""The simulated disk: its operations are switch points and may fail, and it keeps what a loss of power leaves."""

import errno
import os
import sys
from pathlib import Path

from storage.types import TopicPartition
from tests.simulation.contents import Anomaly, messages_of
from tests.simulation.scheduler import Killed, current
from tests.support.faults import FaultyDisk, FaultyFile

FAILURES = {
    "ENOSPC": (errno.ENOSPC, ("write", "create", "mkdir")),
    "EIO": (errno.EIO, ("write", "sync", "rename", "sync_dir", "truncate", "unlink")),
    "EMFILE": (errno.EMFILE, ("open",)),
    "slow": (0, ("write", "sync", "sync_dir", "rename")),
}


class SimulatedFile(FaultyFile):
    """A FaultyFile whose failed sync loses what it should have written, as Linux does: the process's next sync does not
    bring it back, although everybody still reads it."""

    def sync(self):
        writes = list(self._inode.pending)
        try:
            super().sync()
        except OSError:
            self._disk.lost.append((self._inode, writes))
            self._inode.pending.clear()
            raise
        for inode, lost in self._disk.lost:
            if inode is self._inode:
                lost[:] = _left_of(lost, writes)


def _left_of(lost, writes):
    """What later writes, which did reach the disk, leave of earlier ones that did not."""
    for position, data in writes:
        end = sys.maxsize if data is None else position + len(data)
        left = []
        for at, earlier in lost:
            if earlier is None:
                left += [(at, None)] if end <= at else []
                continue
            before, behind = earlier[: max(0, position - at)], earlier[max(0, end - at) :]
            left += [(at, before)] if before else []
            left += [(at + len(earlier) - len(behind), behind)] if behind else []
        lost = left
    return lost


class SimulatedDisk(FaultyDisk):
    """A FaultyDisk whose operations are switch points, and which notes what was in the segments that are removed."""

    file_type = SimulatedFile
    any_order = True

    def __init__(self, root, world):
        super().__init__(root, seed=world.stream("disk").randrange(1 << 32))
        self._world = world
        self.fail = self._failure
        self.left = -1  # operations until the process is killed in one of them; negative: it is not
        self.left_renames = -1  # the same of renames of segments' files
        self.was_killed = world.lost_power  # the process, at least once
        self.lost = []  # what failed syncs did not write

    def repair(self):
        """Before a mount is started again the disk is repaired, and what its cache held is written."""
        for inode, writes in reversed(self.lost):
            inode.pending[:0] = writes
        self.lost.clear()

    def operation(self, what, path):
        scheduler = current()
        if scheduler is not None:
            scheduler.switch(what)
            self.left -= 1
            self.left_renames -= what.startswith("rename 0")
            if not self.left or not self.left_renames:
                scheduler.kill()
                raise Killed
        super().operation(what, path)

    def open(self, path, *, create=False):
        path = self._relative(path)
        number = self._failure("open", path)
        if number is not None:
            raise OSError(number, os.strerror(number), str(path))
        existed = path.exists()
        file = super().open(path, create=create)
        if not existed:
            self._world.inodes.of(os.fstat(file.fileno()).st_ino)
            self._stamp(path, path.parent)
        return file

    def changed(self, path):
        self._stamp(path)

    def mkdir(self, path):
        super().mkdir(path)
        self._world.inodes.of(path.stat().st_ino)
        self._stamp(path, path.parent)

    def rmdir(self, path):
        number = path.stat().st_ino
        super().rmdir(path)
        self._world.inodes.freed(number)
        self._stamp(path.parent)

    def rename(self, source, target):
        number = target.stat().st_ino if target.is_file() else None
        super().rename(source, target)
        if number is not None:
            self._world.inodes.freed(number)
        self._stamp(source.parent, target.parent)
        if target.is_dir() and not self._world.lost_power:  # a loss of power keeps any of the names
            check_partitions(target.parent)  # it may be killed now
        if target.name.endswith(".log.deleted"):
            self._note_removed(target)

    def unlink(self, path):
        path = self._relative(path)
        number = path.stat().st_ino
        is_source = path.name.endswith(".log") and any(path.parent.glob("*.log.swap"))
        removed = list(messages_of(path.read_bytes())) if is_source else []
        super().unlink(path)
        # Recovery finishes a replacement of the cleaner: its sources are removed at once, under their own names.
        self._note(path, removed)
        self._world.inodes.freed(number)
        self._stamp(path.parent)

    def durable_bytes(self, topic):
        """What a power loss now would surely leave of a topic's segments."""
        durable = []
        for directory, inodes_by_name in self._durable.items():
            if directory.name.rpartition("-")[0] == topic:
                inodes = [inode for name, inode in inodes_by_name.items() if ".log" in name]
                durable += [inode.durable for inode in inodes if inode is not None]
        return b"".join(durable)

    def durable_file(self, path):
        """What a power loss now would surely leave of a file; None: perhaps nothing."""
        inode = self._durable.get(path.parent, {}).get(path.name)
        return None if inode is None else inode.durable

    def has_unsynced_names(self, directory, ending):
        """Whether files of a directory with this ending were renamed, and it was not synced since."""
        paths = [path for change in self._pending if change.directory == directory for path in change.paths()]
        return any(path.name.endswith(ending) for path in paths)

    def _stamp(self, *paths):
        for path in paths:
            self._world.clock.stamp(path)

    @staticmethod
    def _relative(path):
        """The lock of a directory is opened by its absolute path."""
        return path.relative_to(Path.cwd()) if path.is_absolute() else path

    def _note_removed(self, path):
        """A segment is removed in order once it has its `.deleted` name: it need not be on disk for that."""
        world, messages = self._world, list(messages_of(path.read_bytes()))
        tp = self._note(path, messages)
        if tp is None or not messages or messages[-1].offset < world.deleted.get(tp, 0):
            return
        age_ms = world.clock.latest_ms - max(message.timestamp for message in messages)
        if age_ms <= world.settings["retention.ms"].get(tp.topic, -1 << 62):
            raise Anomaly(f"lost write: retention takes {tp} {messages[-1].offset}, which is {age_ms} ms old")
        limit = world.settings["retention.bytes"].get(tp.topic)
        left = sum(other.stat().st_size for other in path.parent.glob("*.log"))
        if limit is not None and left < limit:
            raise Anomaly(f"lost write: retention leaves {left} bytes of {tp}, {limit} were to be kept")

    def _note(self, path, messages):
        """Notes messages that a segment held; None in the directory of a topic that is being deleted."""
        topic, _, partition = path.parent.name.rpartition("-")
        if not partition.isdecimal():
            return None
        tp = TopicPartition(topic, int(partition))
        self._world.removed |= {(tp, message.offset): message for message in messages}
        return tp

    def _failure(self, what, _path):
        world = self._world
        kind = what.split(" ")[0]
        for name, (number, kinds) in FAILURES.items():
            rate = world.failing.get(name, 0.0)
            if rate and kind in kinds and (rate >= 1 or world.trouble.random() < rate):
                world.faults[name] += 1
                if name == "slow":
                    world.clock.time_ms += world.trouble.randrange(1, 60)
                    continue
                world.had_errors |= name == "EIO"
                return number
        return None


def check_partitions(log_dir):
    """A topic that was made or removed in part has its first partitions."""
    numbers = {}
    for directory in log_dir.iterdir():
        topic, _, number = directory.name.rpartition("-")
        if directory.is_dir() and number.isdecimal():
            numbers.setdefault(topic, set()).add(int(number))
    for topic, present in numbers.items():
        if present != set(range(len(present))):
            raise Anomaly(f"partitions of {topic} in part: {sorted(present)}")
