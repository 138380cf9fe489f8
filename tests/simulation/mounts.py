"""A mount, writable or read-only, as the kernel sees it: FUSE's calls on a tree. Sizes are small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kafkafs.mounting.operations import Operations, Serving, Traffic
from kafkafs.tree.paths import NoSuchPath
from kafkafs.tree.tree import Tree, TreeOptions
from storage.config import BrokerConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import StorageError
from storage.log.log_dir import LogDir
from storage.types import Isolation
from storage.upkeep.maintenance import Maintenance
from tests.simulation.copies import PRODUCER_EXPIRATION_MS
from tests.simulation.scheduler import Scheduler
from tests.simulation.world import World

MAX_MESSAGE_BYTES = 250

CONFIG = BrokerConfig.from_values(
    {
        "num.recovery.threads.per.data.dir": "1",
        "log.initial.task.delay.ms": "0",
        "log.retention.check.interval.ms": "40",
        "log.flush.scheduler.interval.ms": "20",
        "log.flush.offset.checkpoint.interval.ms": "30",
        "log.cleaner.backoff.ms": "30",
        "log.cleaner.dedupe.buffer.size": "131072",
        "producer.id.expiration.ms": str(PRODUCER_EXPIRATION_MS),
    }
)

Problem = (StorageError, OSError, NoSuchPath)


@dataclass
class Opened:
    """fuse_file_info. `number`: of this opening, never the same twice."""

    flags: int = 0
    fh: int = 0
    direct_io: bool = False
    keep_cache: bool = False


class Waiter:
    """Maintenance waits in simulated time: not at all."""

    def wait(self, timeout_ms):
        pass

    def wake(self):
        pass


class SimulatedOperations(Operations):
    """Operations that tell whether the last line of a file was refused at its release, which the kernel does not."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.refused_at_release = None

    def _close_writer(self, writer):
        try:
            writer.close()
        except (StorageError, OSError) as error:
            self.refused_at_release = error


@dataclass
class Process:
    """A mount: what the kernel knows of it. `owned` is None for a follower, which mounts read-only; `owner`: the
    directory as its owner sees it."""

    world: World
    scheduler: Scheduler
    operations: Any
    request_bytes: int
    owner: Callable[[], OwnedDir | None]
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    clamp: bool = False
    owned: OwnedDir | None = None
    maintenance: Maintenance | None = None
    shared: dict[str, tuple[Opened, int]] = field(default_factory=dict)  # open files of several programs, and how many
    working: int = 0  # programs that are not through yet
    close: Callable[[], None] = field(default=lambda: None)


def mount(world, scheduler, of, opened, request_bytes):
    """Opens the directory for writing and makes the tree. `opened` gets the directory before anything can end it."""
    opening = Opening(create=True, gentle=of.gentle, trust_clean=of.trust_clean)
    owned = OwnedDir.open(world.path, opening, config=CONFIG, disk=world.disk, clock=world.clock)
    opened.append(owned)
    options = _options(of)
    tree = Tree(owned.log_dir, options, clock=world.clock, owned=owned)
    serving = Serving(world.path, disk=world.path, uid=0, gid=0)
    operations = SimulatedOperations(tree, serving, Traffic(), lambda: None, lambda: None, tree)
    maintenance = Maintenance(owned, waiter=Waiter(), free_bytes=lambda: 1 << 30)
    return Process(
        world, scheduler, operations, request_bytes, lambda: owned, options.isolation, of.clamp, owned, maintenance
    )


def follow(world, scheduler, of, opened, request_bytes):
    """A read-only mount of the same directory, by somebody else."""
    log_dir = LogDir.open_read_only(world.path, config=CONFIG, clock=world.clock)
    options = _options(of)
    tree = Tree(log_dir, options, clock=world.clock)
    serving = Serving(world.path, disk=world.path, uid=0, gid=0)
    operations = Operations(tree, serving, Traffic(), lambda: None, lambda: None)
    owner = partial(_first, opened)
    return Process(world, scheduler, operations, request_bytes, owner, options.isolation, of.clamp, close=log_dir.close)


def _options(of):
    isolation = Isolation.READ_COMMITTED if of.committed else Isolation.READ_UNCOMMITTED
    return TreeOptions(isolation=isolation, clamp=of.clamp, index_bytes=0, workers=0)


def _first(opened):
    return opened[0] if opened else None
