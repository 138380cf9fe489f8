"""Log directories that a test owns: a clock that it controls, small appends, the content of a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from storage.append.appender import Appender
from storage.append.partition_log import PartitionLog
from storage.config import BrokerConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.files.disk import RealDisk, RealFile
from storage.files.disk_protocol import Disk
from storage.format.block import Record
from storage.log.reader import read_range
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition
from storage.verify.findings import FaultKind
from storage.verify.verify import verify_log_dir

NOW_MS = 1_763_700_000_000
ONE_THREAD = BrokerConfig.from_values({"num.recovery.threads.per.data.dir": "1"})


class StandingClock:
    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms


class _HastyFile(RealFile):
    __slots__ = ()

    def sync(self) -> None:
        pass


class HastyDisk(RealDisk):
    """The real disk without syncs, which would take most of a test's time."""

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        return _HastyFile(path, file.fileno())

    def sync_dir(self, path: Path) -> None:
        pass


_MADE_IF_MISSING = Opening(create=True)


def opened(
    path: Path, opening: Opening = _MADE_IF_MISSING, *, disk: Disk | None = None, config: BrokerConfig = ONE_THREAD
) -> OwnedDir:
    return OwnedDir.open(path, opening, config=config, disk=disk or HastyDisk(), clock=StandingClock())


def append(log: PartitionLog, values: Iterable[bytes | None]) -> None:
    """Appends one batch of messages with these values. Raises the error that refuses them."""
    outcome = Appender(log, clock=StandingClock()).append([Record(None, value) for value in values])
    if outcome.error is not None:
        raise outcome.error


def append_keyed(path: Path, *batches: Sequence[bytes]) -> None:
    """Appends a batch of messages with each of these lists of keys to t/0, a compacted topic, and begins a segment."""
    owned, tp = opened(path), TopicPartition("t", 0)
    if not owned.log_dir.topics():
        owned.create_topic("t", 1, {"cleanup.policy": "compact"})
    for keys in batches:
        records = [Record(key, b"value of " + key) for key in keys]
        assert Appender(owned.log(tp), clock=owned.clock).append(records).error is None
    owned.log(tp).roll()
    owned.close()


def values_of(snapshot: LogSnapshot) -> list[bytes | None]:
    """The values of all messages, in order; offsets must ascend and nothing may be damaged."""
    found: list[bytes | None] = []
    last = -1
    for block in read_range(snapshot, snapshot.log_start_offset):
        assert block.damage is None, block.damage
        for row in range(len(block)):
            assert int(block.offset[row]) > last
            last = int(block.offset[row])
            found.append(block.value(row))
    return found


def read(owned: OwnedDir, topic: str, partition: int = 0) -> list[bytes | None]:
    return values_of(owned.log(TopicPartition(topic, partition)).snapshot())


def tree_of(path: Path, without: Sequence[str] = ()) -> dict[str, bytes]:
    """All files below a directory, by relative name, except .lock: reading and closing it would release the lock."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in (".lock", *without)
    }


def killed(owned: OwnedDir) -> None:
    """As the end of its process does it: nothing is written any more, and the lock is free."""
    owned._logs.abandon()
    owned._dir_lock.release()


def close_clean(owned: OwnedDir, what: object = "") -> None:
    """Closes in order; afterwards every file of the directory must be sound. Offsets that no segment has are accepted,
    as a broker accepts them: a power loss may take the end of a segment that was not synced, and leave the next one."""
    partitions = owned.partitions()
    closing = owned.close()
    assert closing.clean, f"{what}: {closing}"
    findings = [one for one in verify_log_dir(owned.path, partitions) if one.kind is not FaultKind.SEGMENT_GAP]
    assert not findings, f"{what}: {findings}"
