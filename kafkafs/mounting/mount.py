"""A mount from start to stop.

The order in the background: check what can be checked, **fork**, and in the child open the log directory, make the
tree, mount; in FUSE's init, start the threads and notify the parent, which has waited for this. Nothing that a fork
would lose (threads, locks, libfuse) exists before it. In the foreground the same happens without the fork. The end, by
a signal or umount: FUSE's destroy stops the threads, then the log directory is closed.
"""

from __future__ import annotations

import dataclasses
import logging
import logging.handlers
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkafs import compiled_kernels
from kafkafs.file_names import printable
from kafkafs.mounting import daemon
from kafkafs.mounting.allocator import tune_malloc
from kafkafs.mounting.daemon import StartupListener
from kafkafs.mounting.errnos import data_errors
from kafkafs.mounting.last_word import record_outcome
from kafkafs.mounting.mount_options import MountOptions, escaped
from kafkafs.mounting.mountpoint import (
    FAILED,
    LOCKED,
    USAGE,
    MountError,
    check_mountpoint,
    check_nesting,
    fusermount,
    is_within,
    naming_the_mount,
    write_protected,
)
from kafkafs.mounting.recovery_progress import RecoveryProgress
from storage.config import BrokerConfig
from storage.errors import InvalidConfig, LogLocked, StorageError, error_text
from storage.files.cache_files import cache_directory
from storage.log.places import check_log_dir, is_stored
from storage.progress import Progress

if TYPE_CHECKING:
    from kafkafs.schemas.places import SchemaPlaces
    from kafkafs.tree.tree import TreeOptions
    from storage.directory.owned_dir import OwnedDir
    from storage.log.log_dir import LogDir
    from storage.upkeep.maintenance import Maintenance

_log = logging.getLogger(__name__)

FUSE_DEVICE = "/dev/fuse"
_CAP_SYS_ADMIN = 21  # linux/capability.h
_SYSLOG = "/dev/log"
_SAID_LINES = 10
_CONNECTING_S = 1.0  # how long a mount waits for a far tier, so that first reads are faster
_OTHERS = frozenset(("allow_other", "allow_root"))


@dataclass(frozen=True, slots=True)
class MountRequest:
    """A log directory, a mountpoint and the options of the mount. Both paths are absolute: a daemon's working directory
    is `/`."""

    log_dir: Path
    mountpoint: Path
    options: MountOptions = dataclasses.field(default_factory=MountOptions)

    @property
    def source(self) -> str:
        """The source of the mount, as a person names it: the log directory, or the URL of a backup."""
        from storage.log.stored_dir import backup_at

        return backup_at(self.log_dir).place.name if is_stored(self.log_dir) else str(self.log_dir)

    @property
    def mode(self) -> str:
        return "read-write" if self.options.write else "read-only"


def mount(request: MountRequest, *, foreground: bool, say: Callable[[str], None], progress: Progress) -> None:
    """Mounts. Returns when the tree is ready, or in the foreground when it has been unmounted.

    `say` gets lines for a person, `progress` the progress of recovery. Raises NotALogDir, BadDestination; MountError,
    whose `exit_code` is the command's.
    """
    try:
        check_log_dir(request.log_dir, create=request.options.create)
    except FileNotFoundError:
        raise MountError(f"{request.log_dir}: no such log directory") from None
    except OSError as error:
        raise MountError(f"the log directory {request.log_dir}: {error.strerror}") from None
    check_nesting(request.log_dir, request.mountpoint)
    _check_outside(request)
    remarks: list[str] = []
    config = _read_config(request, remarks.append)
    if request.options.schemas:
        _check_schemas(request.options.schemas)
    check_fuse()
    cleaned = check_mountpoint(request.mountpoint)
    if request.options.write is None:
        say("read-only; --write to append")
    for line in filter(None, (cleaned, *remarks)):
        say(line)

    def work(listener: StartupListener) -> None:
        log = _start_logging(request.options, foreground=foreground)
        # A read-only mount has nothing that could be lost.
        with record_outcome() if request.options.write else nullcontext():
            _serve(request, config, log, listener)

    if foreground:
        # The log goes to the same terminal and has the same lines.
        work(StartupListener(lambda _stderr: None, lambda _line: None, progress))
    else:
        daemon.start(work, say=say, progress=progress)


def _check_outside(request: MountRequest) -> None:
    """Refuses a log file, a tier or a cache within the mountpoint: the process would wait for itself."""
    options = request.options
    places = {
        "the log file": [options.log] if options.log else [],
        "the tier": [Path(place) for place in options.tier if "://" not in place],
        "the cache ($XDG_CACHE_HOME)": [cache_directory("views")],
    }
    for what, paths in places.items():
        for path in paths:
            if is_within(path, request.mountpoint):
                raise MountError(f"{what} {path} is within the mountpoint {request.mountpoint}", USAGE)


@dataclass(frozen=True, slots=True)
class _LogTarget:
    """Where the log goes, described for people, and the descriptor that stderr gets while serving."""

    place: str
    stderr: int


def _serve(request: MountRequest, config: BrokerConfig, log: _LogTarget, listener: StartupListener) -> None:
    """Opens, mounts, serves, closes; notifies the listener when the tree is ready."""
    libfuse()
    # Imported here because libfuse may be missing, and because the process that forks should be small.
    from kafkafs.mounting.operations import Operations, serve

    tune_malloc()
    recovery = RecoveryProgress(listener.progress)
    with _explained(), write_protected(request.mountpoint) as protect:
        with _opened(request, config, recovery, listener.say) as (log_dir, owned):
            served = _ServedTree(request, log, listener, recovery, log_dir, owned)

            def start() -> None:
                if owned is not None:
                    protect()
                served.start()

            writable = None if owned is None else served.tree
            operations = Operations(served.tree, served.serving, served.traffic, start, served.stop, writable)
            code = serve(operations, served.serving)
        if code != 0:
            raise MountError(f"libfuse could not mount or serve {request.mountpoint} (its exit code is {code})")
    _log.info("unmounted %s", request.mountpoint)


class _ServedTree:
    """A tree, its maintenance and its report, while a log directory is mounted. `owned`: None on a read-only mount."""

    def __init__(
        self,
        request: MountRequest,
        log: _LogTarget,
        listener: StartupListener,
        recovery: RecoveryProgress,
        log_dir: LogDir,
        owned: OwnedDir | None,
    ) -> None:
        from kafkafs.mounting.modes_below import ModesBelow
        from kafkafs.mounting.operations import Serving, Traffic, asking_thread
        from kafkafs.mounting.status import Report, Sources, help_text
        from kafkafs.reading.state import Processes
        from kafkafs.schemas.sources import schemas_of
        from kafkafs.tree.tree import Tree

        options = request.options
        self.traffic = Traffic()
        self.serving = Serving(
            request.mountpoint,
            disk=request.log_dir,
            uid=os.getuid() if options.uid is None else options.uid,
            gid=os.getgid() if options.gid is None else options.gid,
            options=_libfuse_options(request),
            modes=ModesBelow(log_dir) if options.modes_below else None,
        )
        self._request = request
        self._log = log
        self._listener = listener
        self._recovery = recovery
        self._owned = owned
        self._tier = log_dir.tier
        self._maintenance = None if owned is None else _maintenance(owned)
        report = Report(
            Sources(
                log_dir,
                tree=self._facts,
                requests=lambda: dataclasses.asdict(self.traffic),
                errors=lambda: dataclasses.asdict(data_errors.status()),
                fixed={
                    "mode": request.mode,
                    "log_directory": request.source,
                    "mountpoint": str(request.mountpoint),
                    "isolation": options.isolation.value,
                    "out_of_range": "clamp" if options.clamp else "error",
                    "schemas": str(options.schemas) or None,
                    "log": log.place,
                },
                offline=dict if owned is None else owned.failures,
                versions=libfuse(),
            )
        )
        files = {
            "@help": lambda: help_text(writable=owned is not None),
            "@status.json": report.status_json,
            "@metrics": report.metrics,
        }
        with _explained():
            schemas = schemas_of(log_dir, options.schemas)
        self.tree = Tree(
            log_dir,
            _tree_options(options),
            files=files,
            owned=owned,
            callers=Processes(asking_thread),
            schemas=schemas,
        )

    def start(self) -> None:
        """Starts the threads, and notifies the listener. Called from FUSE's init, after any fork."""
        self.tree.start()
        if self._maintenance is not None:
            self._maintenance.start()
        if self._tier is not None:
            self._tier.wait_until_connected(_CONNECTING_S)
        self._recovery.stop_forwarding()
        slow = compiled_kernels.slowness()
        if slow is not None:
            _log.warning("%s", slow)
            self._listener.say(slow)
        if self._owned is not None and self._request.options.log is None:
            # Only the log says why a line was refused: an errno cannot.
            place = self._log.place
            self._listener.say(f"the log of this mount goes {'to ' * (place == 'syslog')}{place}")
        self._listener.ready(self._log.stderr)
        _log.info("serving %s at %s, %s", self._request.source, self._request.mountpoint, self._request.mode)

    def stop(self) -> None:
        """Stops the threads. Called from FUSE's destroy."""
        self.tree.stop()
        if self._maintenance is not None:
            self._maintenance.stop()

    def _facts(self) -> dict[str, Any]:
        """The part of @status.json about recovery, maintenance and the tree."""
        facts: dict[str, Any] = {}
        if self._owned is not None:
            facts["recovery"] = {**dataclasses.asdict(self._recovery.status()), "changes": _recovered(self._owned)}
        if self._maintenance is not None:
            facts["maintenance"] = dataclasses.asdict(self._maintenance.status())
        return facts | self.tree.status()


@contextmanager
def _opened(
    request: MountRequest, config: BrokerConfig, recovery: Progress, say: Callable[[str], None]
) -> Iterator[tuple[LogDir, OwnedDir | None]]:
    """The log directory, and its owner unless mounted read-only: locked and recovered, and closed properly at the end.

    Logs and says what recovery changed, and which partitions are offline. Raises MountError at the end if something
    could not be written.
    """
    from storage.directory.owned_dir import Opening, OwnedDir
    from storage.log.log_dir import LogDir
    from storage.tier.tier import Tier

    options = request.options
    tier = Tier(options.tier, dict(options.tier_keys)) if options.tier else None
    if tier is not None:
        tier.connect()  # while the directory is opened: it takes longer than the first requests
    if not options.write:
        log_dir = LogDir.open_read_only(request.log_dir, config=config, tier=tier)
        try:
            yield log_dir, None
        finally:
            log_dir.close()
        return
    try:
        opening = Opening(create=request.options.create, gentle=True)
        owned = OwnedDir.open(request.log_dir, opening, config=config, progress=recovery)
    except OSError as error:
        raise MountError(f"{error.filename or request.log_dir}: {error.strerror}; try without --write") from error
    owned.log_dir.use_tier(tier)
    changed = [f"{name} was recovered: {'; '.join(changes)}" for name, changes in _recovered(owned).items()]
    for line in changed:
        _log.warning("%s", line)
    offline = [f"{tp} is offline: {error_text(failure)}" for tp, failure in owned.failures().items()]
    for line in offline:
        _log.error("%s", line)
    for line in _first_of([*offline, *changed], "@status.json"):
        say(line)
    try:
        yield owned.log_dir, owned
    finally:
        served = {log.tp for log in owned.logs()}  # no message is lost in a partition that never was online
        closing = owned.close()
        for tp, failure in closing.errors.items():
            _log.error("%s was not closed properly: %s", tp, error_text(failure))
    lost = [f"{tp}: {failure}" for tp, failure in closing.errors.items() if tp in served]
    if closing.failure is not None:
        lost.append(str(closing.failure))
    if lost:
        what = "not everything could be written to disk, and messages that were accepted may be missing after this"
        raise MountError("\n".join((f"{request.log_dir}: {what}", *_first_of(lost, "the log"))))


def _first_of(lines: list[str], place: str) -> list[str]:
    """The first lines, as many as a person reads; `place` has all of them."""
    more = len(lines) - _SAID_LINES
    return lines if more <= 0 else [*lines[:_SAID_LINES], f"… and {more} more, see {place}"]


def _maintenance(owned: OwnedDir) -> Maintenance:
    # A read-only mount does not need this module.
    from storage.upkeep.maintenance import Maintenance

    return Maintenance(owned)


def _recovered(owned: OwnedDir) -> dict[str, list[str]]:
    """The changes by recovery, by partition."""
    return {str(tp): report.changes for tp, report in owned.reports().items() if report.changes}


def _read_config(request: MountRequest, say: Callable[[str], None]) -> BrokerConfig:
    """The broker-level configuration. Says its warnings."""
    if request.options.config is None:
        return BrokerConfig()
    with _explained():
        config = BrokerConfig.from_file(request.options.config)
    for warning in config.warnings(request.log_dir):
        say(warning)
    return config


def _check_schemas(places: SchemaPlaces) -> None:
    from kafkafs.schemas.sources import schemas_at
    from kafkafs.schemas.topic_files import read_files

    with _explained():
        read_files(places.files)
        if places.directory is not None:
            schemas_at(places.directory)


def _tree_options(options: MountOptions) -> TreeOptions:
    from kafkafs.tree.tree import TreeOptions

    chosen = TreeOptions(isolation=options.isolation, clamp=options.clamp, keys=options.keys)
    if options.cache_bytes is not None:
        chosen = dataclasses.replace(chosen, cache_bytes=options.cache_bytes)
    if options.exact_sizes or options.exact_below is not None:
        chosen = dataclasses.replace(chosen, exact_below=None if options.exact_sizes else options.exact_below)
    if options.latest_bytes is not None:
        chosen = dataclasses.replace(chosen, latest_bytes=options.latest_bytes)
    return chosen


@contextmanager
def _explained() -> Iterator[None]:
    """Turns expected errors into MountErrors; bugs pass unchanged."""
    try:
        yield
    except LogLocked as error:
        raise MountError(f"{naming_the_mount(error)}. Or mount it read-only, without --write", LOCKED) from error
    except InvalidConfig as error:
        raise MountError(str(error), USAGE) from error
    except (StorageError, OSError) as error:
        raise MountError(error_text(error), FAILED) from error


def _libfuse_options(request: MountRequest) -> dict[str, str | bool]:
    options: dict[str, str | bool] = {
        "ro": not request.options.write,
        # The kernel checks modes only with this option: needed if modes differ by user, or if others may write.
        "default_permissions": request.options.modes_below
        or bool(request.options.write and request.options.libfuse & _OTHERS),
        # Otherwise libfuse renames a file that is removed while it is open, or in the moment after its close(2).
        "hard_remove": True,
        "nosuid": True,
        "nodev": True,
        "fsname": escaped(os.fsencode(request.source).decode(errors="replace")),
        **dict.fromkeys(sorted(request.options.libfuse), True),
    }
    if request.options.auto_unmount and fusermount():
        # Unmounts if the server is killed: fusermount stays and watches. Root can mount without that program.
        options["auto_unmount"] = True
    return options


class _Printable(logging.Formatter):
    """Escapes control characters: names and texts from a log directory reach the log, and a terminal that shows it."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), "\n\t")


def _start_logging(options: MountOptions, *, foreground: bool) -> _LogTarget:
    """Sends the log to the named file; without one to stderr in the foreground, to syslog in the background."""
    handler: logging.Handler
    line = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    stderr = 2 if foreground else os.open(os.devnull, os.O_WRONLY)
    if options.log is not None:
        try:
            handler = logging.handlers.WatchedFileHandler(options.log, encoding="utf-8")
            stderr = 2 if foreground else os.open(options.log, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise MountError(f"the log file {options.log}: {error.strerror}") from None
        place = str(options.log)
    elif foreground:
        handler, place = logging.StreamHandler(), "stderr"
    elif Path(_SYSLOG).exists():
        syslog = logging.handlers.SysLogHandler(_SYSLOG)
        syslog.ident = f"kafkafs[{os.getpid()}]: "
        handler, place = syslog, "syslog"
        line = "%(levelname)s %(name)s: %(message)s"
    else:
        handler, place = logging.NullHandler(), "nowhere: there is no syslog here, and no -o log=FILE was given"
    handler.setFormatter(_Printable(line))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("fuse").setLevel(logging.WARNING)
    return _LogTarget(place, stderr)


def check_fuse() -> None:
    """Raise a MountError if this user cannot mount here at all."""
    try:
        os.close(os.open(FUSE_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise MountError(
            f"there is no {FUSE_DEVICE}: modprobe fuse; for a container: --device {FUSE_DEVICE} --cap-add SYS_ADMIN"
        ) from None
    except OSError as error:
        raise MountError(
            f"you may not open {FUSE_DEVICE} ({error.strerror}): ask for permission to read and write it; "
            f"for a container: --device {FUSE_DEVICE} --cap-add SYS_ADMIN"
        ) from None
    if os.geteuid() != 0 and fusermount() is None:
        raise MountError("fusermount is not installed, and only root can mount without; on Debian: apt install fuse3")
    if not _may_mount():
        raise MountError("processes here may not mount (no CAP_SYS_ADMIN); for a container: --cap-add SYS_ADMIN")


def _may_mount() -> bool:
    """Return whether this process, or for a user the fusermount that it starts, can have CAP_SYS_ADMIN.

    capabilities(7): root needs the capability itself. A user's fusermount is set-user-ID root: it gets what the
    bounding set leaves, and nothing under no_new_privs (prctl(2)).
    """
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    is_root = os.geteuid() == 0
    capabilities = int(status["CapEff" if is_root else "CapBnd"], 16)
    return bool(capabilities >> _CAP_SYS_ADMIN & 1) and (is_root or status.get("NoNewPrivs") != "1")


def libfuse() -> dict[str, str]:
    """The versions of libfuse and of the Python package over it. Loads both; MountError if there is no libfuse."""
    try:
        from kafkafs.mounting.operations import versions
    except OSError as error:
        raise MountError(
            f"neither libfuse 2 nor libfuse 3 is installed ({error}); on Debian: apt install fuse3"
        ) from None
    return versions()
