"""Mountpoints: which mounts exist, whether a path can be mounted on, unmounting, who keeps a mount busy.

Reads /proc/self/mountinfo (proc(5)) and /proc/PID; uses at most one stat of a filesystem, whose server may be dead.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from kafkafs.mounting.last_word import watch_outcome
from storage.errors import LogLocked, NotALogDir

FS_TYPE = "fuse.kafkafs"
_OCTAL = re.compile(rb"\\([0-7]{3})")

_POLL_S = 0.01
# How long a mount may be in other places after its unmount: a container that starts has, for a moment, a copy of every
# mount of its machine.
_COPIES_S = 2.0
_ANYBODY_WRITES = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH

USAGE = 2
LOCKED = 3
FAILED = 4


class MountError(Exception):
    """Mounting or unmounting failed; the message says why and what to do. `exit_code` is the command's."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo. `source`: for a kafkafs mount its log directory. A mount and its bind
    mounts have the same `device`, and no other mount has it."""

    path: Path
    fs_type: str
    source: str
    read_only: bool
    device: str


def mounts(process: int | str = "self") -> list[Mount]:
    """All mounts that a process sees, later ones on top of earlier ones. OSError if this user may not read them."""
    listed = []
    for line in Path("/proc", str(process), "mountinfo").read_bytes().splitlines():
        fields = line.split(b" ")
        after = fields.index(b"-")
        path, (fs_type, source), device = fields[4], fields[after + 1 : after + 3], fields[2]
        read_only = b"ro" in fields[5].split(b",")
        listed.append(Mount(Path(_unescape(path)), _unescape(fs_type), _unescape(source), read_only, device.decode()))
    return listed


def mount_at(path: Path) -> Mount | None:
    """The mount at exactly this absolute path: the topmost mount if there are several."""
    at = [mount for mount in mounts() if mount.path == path]
    return at[-1] if at else None


def tree_around(path: Path) -> Mount | None:
    """The kafkafs mount that this absolute path lies in, or that is mounted at it; None if there is no such mount."""
    around = [mount for mount in mounts() if path.is_relative_to(mount.path)]
    deepest = max(around, key=lambda mount: len(mount.path.parts), default=None)
    return deepest if deepest is not None and deepest.fs_type == FS_TYPE else None


def naming_the_mount(error: LogLocked) -> LogLocked:
    """The error; if a visible mount holds the lock, with advice on how to unmount it and its bind mounts."""
    log_dir = None if error.path is None else str(absolute(error.path))
    holding = [mount for mount in mounts() if mount.fs_type == FS_TYPE and mount.source == log_dir]
    places = [mount.path for mount in holding if not mount.read_only]
    if places:
        commands = " and ".join(f"`kafkafs umount {path}`" for path in places)
        releases = "release" if len(places) > 1 else "releases"
        error.advice = f"It is mounted at {' and '.join(map(str, places))}: {commands} {releases} it"
    return error


def naming_the_tree(error: NotALogDir) -> NotALogDir:
    """The error; if its directory is in the tree of a mount, an error that names the log directory of that mount."""
    tree = None if error.path is None else tree_around(absolute(error.path))
    if tree is None:
        return error
    found, advice = f"the tree of one at {tree.path}", f"The log directory is {tree.source}"
    return NotALogDir("not a log directory", path=error.path, found=found, advice=advice)


def absolute(path: Path) -> Path:
    """The path, absolute and without symbolic links. Unlike Path.resolve, works for a dead mountpoint too."""
    return Path(os.path.realpath(path))


def check_mountpoint(mountpoint: Path) -> str | None:
    """Checks that this absolute path can be mounted on; raises MountError if not.

    A dead kafkafs mount (its server was killed) is unmounted first: then returns a line that says so.
    """
    mounted = mount_at(mountpoint)
    cleaned = None
    if _is_dead(mountpoint):
        cleaned = _clean_dead(mountpoint, mounted)
    elif mounted is not None and mounted.fs_type == FS_TYPE:
        raise MountError(f"{mountpoint}: {mounted.source} is mounted there; kafkafs umount {mountpoint} unmounts it")
    try:
        status = mountpoint.stat()
    except FileNotFoundError:
        raise MountError(f"{mountpoint}: no such directory; make it first: mkdir {mountpoint}") from None
    except OSError as error:
        raise MountError(f"{mountpoint}: {error.strerror}") from None
    if not os.path.isdir(mountpoint):  # noqa: PTH112 - errors are handled above
        raise MountError(f"{mountpoint} is not a directory (its mode is {status.st_mode:o}); mount onto an empty one")
    try:
        occupied = any(mountpoint.iterdir())
    except PermissionError as error:
        raise MountError(f"{mountpoint}: {error.strerror}") from None
    if occupied:
        raise MountError(
            f"{mountpoint} is not empty: its files would be hidden. Were they written while nothing was mounted there? "
            "Move them away, or mount onto an empty directory"
        )
    return cleaned


# The mode of a mountpoint while a writable mount has made the directory below unwritable: kept as an extended attribute
# of that directory, so that the next mount can restore it after a kill.
_MODE_ATTRIBUTE = "user.kafkafs.mode"


@contextlib.contextmanager
def write_protected(mountpoint: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that makes the directory below a mount unwritable until the end; call it once something is
    mounted.

    If the server is killed, the directory stays unwritable: programs that go on writing fail, instead of making files
    that no topic ever gets. The next mount restores the mode when it ends. A mode does not stop root, see CONTRACT.md,
    "Mount options".
    """
    try:
        # Opened before the mount, it remains the directory below.
        directory = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield lambda: None
        return
    try:
        status = os.fstat(directory)
        mode_at_start = mode = stat.S_IMODE(status.st_mode)
        if not mode & _ANYBODY_WRITES:  # a killed server left it so, or the owner meant it so
            mode |= _kept_mode(directory) & _ANYBODY_WRITES
            if os.geteuid() == status.st_uid != 0:
                mode |= stat.S_IWUSR  # fusermount wants a directory that its user may write to
                _change_mode(directory, mode)
        is_protected = False

        def protect() -> None:
            nonlocal is_protected
            is_protected = True
            if mode & _ANYBODY_WRITES:
                _keep_mode(directory, mode)
                _change_mode(directory, mode & ~_ANYBODY_WRITES)

        try:
            yield protect
        except BaseException:
            if not is_protected:  # it was never mounted: a killed server's protection stays
                mode = mode_at_start
            raise
        finally:
            _change_mode(directory, mode)
            if mode & _ANYBODY_WRITES:
                _forget_mode(directory)
    finally:
        os.close(directory)


def _kept_mode(directory: int) -> int:
    """The mode that a killed server has left for us to restore, or 0."""
    with contextlib.suppress(OSError, ValueError):
        return int(os.getxattr(directory, _MODE_ATTRIBUTE), 8)
    return 0


def _keep_mode(directory: int, mode: int) -> None:
    with contextlib.suppress(OSError):  # a filesystem without extended attributes, or another user's directory
        os.setxattr(directory, _MODE_ATTRIBUTE, b"%o" % mode)


def _forget_mode(directory: int) -> None:
    with contextlib.suppress(OSError):
        os.removexattr(directory, _MODE_ATTRIBUTE)


def _change_mode(directory: int, mode: int) -> None:
    """Changes the mode, unless the directory has another owner, is immutable, or is on a read-only disk."""
    with contextlib.suppress(OSError):
        if stat.S_IMODE(os.fstat(directory).st_mode) != mode:
            os.fchmod(directory, mode)


def check_nesting(log_dir: Path, mountpoint: Path) -> None:
    """Refuses a mountpoint within the log directory and vice versa, also through links and bind mounts."""
    if is_within(mountpoint, log_dir):
        raise MountError(f"the mountpoint {mountpoint} is within the log directory {log_dir}", USAGE)
    if is_within(log_dir, mountpoint):
        raise MountError(f"the log directory {log_dir} is within the mountpoint {mountpoint}", USAGE)


def unmount(mountpoint: Path, *, timeout_s: float = 30.0) -> str | None:
    """Unmounts the kafkafs at this absolute path and waits until its process has ended.

    A bind mount of a kafkafs is unmounted alone: then returns a line that says where the tree is still mounted. Raises
    MountError if it cannot be unmounted; and after it was unmounted, if the process could not write everything, or goes
    on because of bind mounts.
    """
    mounted = mount_at(mountpoint)
    if mounted is None:
        raise MountError(f"{mountpoint}: nothing is mounted there")
    if mounted.fs_type != FS_TYPE:
        raise MountError(f"{mountpoint}: that is a mount of type {mounted.fs_type}, not of kafkafs; see umount(8)")
    serving = None if _is_dead(mountpoint) else _server_of(mountpoint)
    if serving is None:
        _unmount(mountpoint)
        return None
    server, first_mountpoint = serving
    with watch_outcome(server.pid) as outcome:
        _unmount(mountpoint, server.pid)
        deadline = time.monotonic() + _COPIES_S
        while places := _places(mounted):
            if mountpoint != first_mountpoint:
                return f"{mountpoint} is unmounted; {mounted.source} is still mounted at {', '.join(places)}"
            if time.monotonic() > deadline:
                raise MountError(
                    f"{mountpoint} is unmounted, but its process {server.pid} goes on, because {mounted.source} is "
                    f"still mounted at {', '.join(places)}. Unmount it there too"
                )
            time.sleep(_POLL_S)
        _wait_for(server, mountpoint, timeout_s)
        message = outcome()
    if message is None:
        raise MountError(
            f"{mountpoint} is unmounted, but its process ended before it had closed the log directory: it was killed, "
            "or has crashed. The next mount, or `kafkafs recover`, repairs what it left"
        )
    if message:
        raise MountError(f"{mountpoint} is unmounted, but its process failed at the end. {message}")
    return None


def _places(mounted: Mount) -> list[str]:
    """Where a mount is (still) mounted: for this process, and in other mount namespaces that this user may look at."""
    own_namespace = Path("/proc/self/ns/mnt").readlink()
    places = [str(mount.path) for mount in mounts() if (mount.device, mount.fs_type) == (mounted.device, FS_TYPE)]
    namespaces = {own_namespace}
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(OSError):
            namespace = Path("/proc", str(process.pid), "ns/mnt").readlink()
            if namespace not in namespaces:
                namespaces.add(namespace)
                where = f"in the mount namespace (a container, say) of {process.info['name']} (process {process.pid})"
                places += [
                    f"{mount.path} {where}"
                    for mount in mounts(process.pid)
                    if (mount.device, mount.fs_type) == (mounted.device, FS_TYPE)
                ]
    return places


def _unmount(mountpoint: Path, server: int | None = None) -> None:
    failure = _fusermount(mountpoint)
    if failure is not None:
        users = list(holders(mountpoint, server))
        if users or "busy" in failure.lower():
            who = "; ".join(users) or "processes that you may not see"
            raise MountError(f"{mountpoint} is busy: {who}. End them, or detach it: fusermount -u -z {mountpoint}")
        raise MountError(f"{mountpoint}: {failure}")


def _wait_for(server: psutil.Process, mountpoint: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while _runs(server):
        if time.monotonic() > deadline:
            raise MountError(
                f"{mountpoint} is unmounted, but after {timeout_s:.0f} s its process {server.pid} still runs: a mount "
                f"namespace that you may not look at (a container, say) has it too, or a request does not end. `ls -l "
                f"/proc/*/ns/mnt` as root shows the namespaces; `kill {server.pid}` ends it everywhere"
            )
        time.sleep(_POLL_S)


def holders(mountpoint: Path, server: int | None = None) -> Iterator[str]:
    """The users of files below the mountpoint, among visible processes: `less (process 12) has /mnt/t/0/messages.txt
    open`. Leaves out the process `server`, which has the directory below the mount open."""
    prefix = f"{mountpoint}/"
    for mount in mounts():
        if str(mount.path).startswith(prefix):
            yield f"{mount.source} is mounted at {mount.path}"
    for process in psutil.process_iter(["name"]):
        for use, path in _uses(process.pid) if process.pid != server else ():
            if path == str(mountpoint) or path.startswith(prefix):
                yield f"{process.info['name']} (process {process.pid}) {use.format(path)}"
                break


def _uses(pid: int) -> Iterator[tuple[str, str]]:
    """The paths that a process uses. Reads only links: a stat would call the filesystem, which may hang."""
    process = Path("/proc", str(pid))
    for name, use in (("cwd", "has {} as its working directory"), ("root", "has {} as its root"), ("exe", "runs {}")):
        with contextlib.suppress(OSError):
            yield use, str((process / name).readlink())
    with contextlib.suppress(OSError):
        for fd in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield "has {} open", str(fd.readlink())


def _is_dead(mountpoint: Path) -> bool:
    try:
        mountpoint.stat()
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _clean_dead(mountpoint: Path, mounted: Mount | None) -> str:
    kind = mounted.fs_type if mounted else "unknown"
    if mounted is None or kind != FS_TYPE:
        raise MountError(
            f"{mountpoint} is the mountpoint of a {kind} filesystem whose process has died; "
            f"unmount it first: fusermount -u -z {mountpoint}"
        )
    failure = _fusermount(mountpoint, lazy=True)
    if failure is not None:
        raise MountError(
            f"{mountpoint} is a stale mountpoint: the kafkafs that served it has died; unmounting it failed: {failure}"
        )
    return f"{mountpoint} was a stale mountpoint: the kafkafs that served it has died. Unmounted it"


def _server_of(mountpoint: Path) -> tuple[psutil.Process, Path] | None:
    """The process that serves a mount and where it has mounted, from its @status.json; None if that cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, psutil.Error):
        status = json.loads((mountpoint / "@status.json").read_bytes())
        return psutil.Process(int(status["process"]["pid"])), Path(status["mountpoint"])
    return None


def _runs(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie does not: it may stay for long if it is not reaped (Process.wait would wait)."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def fusermount() -> str | None:
    """The program that mounts for users, and unmounts: that of libfuse 2, or that of libfuse 3; None without either."""
    return shutil.which("fusermount") or shutil.which("fusermount3")


def _fusermount(mountpoint: Path, *, lazy: bool = False) -> str | None:
    """Unmounts; returns what went wrong, or None."""
    tool = fusermount()
    if tool is not None:
        command = [tool, "-u", *(["-z"] if lazy else [])]
    else:
        command = [shutil.which("umount") or "/bin/umount", *(["-l"] if lazy else [])]
    try:
        result = subprocess.run(
            [*command, str(mountpoint.absolute())], cwd="/", capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "neither fusermount nor umount is installed"
    return None if result.returncode == 0 else " ".join(result.stderr.split()) or f"exit code {result.returncode}"


def is_within(path: Path, directory: Path) -> bool:
    """Whether an absolute path is `directory` or below it, by name or by identity. The path itself may be missing."""
    try:
        directory_stat = directory.stat()
    except OSError:
        return path == directory or directory in path.parents
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            if os.path.samestat(place.stat(), directory_stat):
                return True
    return False


def _unescape(field: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field))
