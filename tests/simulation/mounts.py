"""A mount, writable or read-only, as the kernel sees it: FUSE's calls on a tree. Sizes are small."""

from types import SimpleNamespace

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
from tests.simulation.scheduler import moment

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


_WAITER = SimpleNamespace(wait=lambda _timeout_ms: None, wake=lambda: None)  # in simulated time: not at all


def file_info(flags):
    """fuse_file_info, before a file is opened."""
    return SimpleNamespace(flags=flags, fh=0, direct_io=False, keep_cache=False)


class Process:
    """A mount: what the kernel knows of it. `opened` gets the directory of its owner before anything can end it."""

    def __init__(self, world, scheduler, of, opened, request_bytes):
        self.world = world
        self.scheduler = scheduler
        self.request_bytes = request_bytes
        self.isolation = Isolation.READ_COMMITTED if of.committed else Isolation.READ_UNCOMMITTED
        self.shared = {}  # open files of several programs, and how many have them
        self.working = 0  # programs that are not through yet
        self.owned = self.maintenance = None  # of a mount for writing
        self._opened = opened
        exact_below = 200 if of.committed else 1 << 30  # readers of large views and of small ones
        self._options = TreeOptions(
            isolation=self.isolation, clamp=of.clamp, index_bytes=0, workers=0, exact_below=exact_below
        )

    def mount(self, of):
        """Opens the directory for writing and makes the tree."""
        world, opening = self.world, Opening(create=True, gentle=of.gentle, trust_clean=of.trust_clean)
        self.owned = OwnedDir.open(world.path, opening, config=CONFIG, disk=world.disk, clock=world.clock)
        self._opened.append(self.owned)
        self.tree = Tree(self.owned.log_dir, self._options, clock=world.clock, owned=self.owned)
        self.operations = self._operations(self.tree)
        self.maintenance = Maintenance(self.owned, waiter=_WAITER, free_bytes=lambda: 1 << 30)

    def follow(self):
        """A read-only mount of the same directory, by somebody else; returns what closes it."""
        log_dir = LogDir.open_read_only(self.world.path, config=CONFIG, clock=self.world.clock)
        self.tree = Tree(log_dir, self._options, clock=self.world.clock)
        self.operations = self._operations()
        return log_dir

    def _operations(self, *writable):
        serving = Serving(self.world.path, disk=self.world.path, uid=0, gid=0)
        return Operations(self.tree, serving, Traffic(), lambda: None, lambda: None, *writable)

    def owner(self):
        """The directory as its owner sees it, once it is open."""
        return self._opened[0] if self._opened else None

    def opened_log(self, tp):
        """The log of a partition, if the owner of the directory has opened it."""
        owner = self.owner()
        with moment():
            return None if owner is None else {log.tp: log for log in owner.logs()}.get(tp)

    def release(self, info):
        """Closes an open file. Returns why its last line was refused, which the kernel does not tell."""
        handle, refused = self.operations.handles[info.fh], []
        close = handle.close

        def noting():
            try:
                close()
            except (StorageError, OSError) as error:
                refused.append(error)
                raise

        handle.close = noting
        self.operations.release(None, info)
        return refused[0] if refused else None
