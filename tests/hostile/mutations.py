"""What somebody may do to a log directory: links, devices, damage, names, modes, giants."""

import errno
import os
import random
import shutil
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from storage.format.batches import MOST_BATCH_BYTES
from tests.hostile.replaced_files import plausible
from tests.support.large_batches import large_batch

_GIANT_BYTES = 1 << 40
_MOST_COPIED_BYTES = 64 << 20  # a giant that was cut is still one
_ESCAPE = "\x1b]0;evil\x07\x1b[2J"
_NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30, "9" * 5000)
_CHECKPOINTS = (
    "recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)  # fmt: skip
# Names that no broker would give.
_NAMES = (
    b"\xff\xfe-0", _ESCAPE.encode() + b"-0", b"x" * 249 + b"-0", b"t-2147483647", b"t-99999999999", b"-0", b"t-",
    b"t-0." + b"a" * 32 + b"-delete", b"t-0." + b"b" * 32 + b"-future", b"t-00", b"..-0", b"t-0\n",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A log directory that is mutated, the tree outside of it that must stay as it is, and the dice."""

    log_dir: Path
    outside: Path
    dice: random.Random

    def file(self):
        """Any file, of the directory itself or of a partition."""
        return self.dice.choice(sorted(path for path in self.log_dir.rglob("*") if stat.S_ISREG(path.lstat().st_mode)))

    def partition(self):
        """Any partition's directory."""
        directories = sorted(path for path in self.log_dir.iterdir() if stat.S_ISDIR(path.lstat().st_mode))
        return self.dice.choice(directories or [self.log_dir])

    def content(self):
        """The path and the bytes of any file."""
        path = self.file()
        if path.stat().st_size > _MOST_COPIED_BYTES:
            raise OSError(errno.EFBIG, "an earlier mutation has made it a giant", os.fspath(path))
        return path, bytearray(path.read_bytes())


def _bit(place):
    path, data = place.content()
    data[place.dice.randrange(len(data))] ^= 1 << place.dice.randrange(8)
    path.write_bytes(data)


def _garbage(place):
    place.file().write_bytes(place.dice.randbytes(place.dice.choice((0, 1, 13, 61, 5000))))


def _cut(place):
    path = place.file()
    os.truncate(path, place.dice.randrange(path.stat().st_size + 1))


def _overwritten(place):
    """Random bytes within a file."""
    path, data = place.content()
    at = place.dice.randrange(len(data) + 1)
    data[at : at + 8] = place.dice.choice((bytes(8), b"\xff" * 8, b"\x7f" + b"\xff" * 7, place.dice.randbytes(8)))
    path.write_bytes(data)


def _giant(place):
    os.truncate(place.file(), _GIANT_BYTES)


def _large_batch(place):
    """A batch with a right CRC, of up to 2 GiB in a hole, at the end of a .log."""
    path = place.dice.choice(sorted(place.log_dir.rglob("*.log")))
    with path.open("ab") as file:
        start, size = file.tell(), place.dice.choice((MOST_BATCH_BYTES, MOST_BATCH_BYTES + 1, 2**31 - 1))
        file.write(large_batch(place.dice.choice((0, 10_000)), size, place.dice.choice((0, 2, 3))))
        file.truncate(start + size)


def _linked_file(place):
    path = place.file()
    alike = place.outside / path.name  # what it has could be that file's
    targets = alike, place.outside / "secret", place.outside, Path("/dev/zero"), path, Path("/nowhere"), place.file()
    target = place.dice.choice(targets)
    if target == alike:
        alike.write_bytes(plausible(path.name))
        alike.chmod(0o600)
    path.unlink()
    path.symlink_to(target)


def _linked_directory(place):
    path = place.partition()
    if path != place.log_dir:
        shutil.rmtree(path)
        path.symlink_to(place.dice.choice((place.outside, place.outside / path.name, path, place.log_dir)))


def _fifo(place):
    path = place.file()
    path.unlink()
    os.mkfifo(path)


def _socket(place):
    path = place.file()
    path.unlink()
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"/proc/self/fd/{directory}/{path.name}")  # a socket's path is short
    finally:
        os.close(directory)


def _directory(place):
    path = place.file()
    path.unlink()
    path.mkdir()


def _mode(place):
    place.dice.choice((place.file(), place.partition())).chmod(place.dice.choice((0, 0o200, 0o400, 0o444)))


def _owner(place):
    os.chown(place.file(), place.dice.choice((0, 1, 65533)), 0)


def _link(place, path, *targets):
    """A link where nothing is."""
    if not os.path.lexists(path):
        path.symlink_to(place.dice.choice(targets))


def _added(place):
    path = place.log_dir / os.fsdecode(place.dice.choice(_NAMES))
    if place.dice.random() < 0.3:
        _link(place, path, place.outside)
    elif not os.path.lexists(path):
        shutil.copytree(place.partition(), path, symlinks=True, copy_function=_copied)


def _copied(source, target):
    if stat.S_ISREG(os.lstat(source).st_mode) and os.lstat(source).st_size <= _MOST_COPIED_BYTES:
        shutil.copyfile(source, target)


def _temporary(place):
    """A link where something is written first, or cleaned up later."""
    path, suffix = place.file(), place.dice.choice((".tmp", ".deleted", ".cleaned", ".swap"))
    _link(place, path.with_name(path.name + suffix), place.outside / "secret", place.outside / "new")


def _set_aside(place):
    suffix = place.dice.choice(("-delete", "-stray", "-future"))
    _link(place, place.log_dir / f"t-0.{'c' * 32}{suffix}", place.outside)


def _numbers(place):
    """A checkpoint with a number that cannot be."""
    path = place.log_dir / place.dice.choice(_CHECKPOINTS)
    topic, _, number = place.partition().name.rpartition("-")
    path.unlink(missing_ok=True)
    path.write_text(f"0\n1\n{topic or 't'} {number or 0} {place.dice.choice(_NUMBERS)}\n")


def _text(place):
    """A small file with escapes, or with text that does not end."""
    path = place.dice.choice((place.log_dir / "meta.properties", place.partition() / "topic.properties"))
    if path.is_symlink() or path.is_dir():
        return
    path.unlink(missing_ok=True)
    lines = [f"cluster.id={_ESCAPE}", f"{_ESCAPE}=x", f"retention.ms={'1' * 6000}", "node.id=-1", "version=1", "\\u1"]
    path.write_text("\n".join(place.dice.sample(lines, 3)) + "\n")


MUTATIONS = (
    _bit, _bit, _bit, _garbage, _cut, _overwritten, _overwritten, _giant, _large_batch, _linked_file,
    _linked_directory, _fifo, _socket, _directory, _mode, _owner, _added, _temporary, _set_aside, _numbers, _text,
)  # fmt: skip


def mutate(place):
    """Makes one to four mutations; returns their names."""
    names = []
    for _ in range(place.dice.choice((1, 1, 2, 3, 4))):
        mutation = place.dice.choice(MUTATIONS)
        try:
            mutation(place)
        except (ValueError, IndexError, OSError):
            continue  # nothing of that kind is left, or what is there has been made something else
        names.append(mutation.__name__.lstrip("_"))
    return names
