"""Commands on log directories in which a file is replaced by something else: what they read, change and print.

A process of its own runs many of them, because it may have to be killed, and may be that of another user:

    python -m tests.support.replaced_files WORK SEED COUNT UID    COUNT cases (0: all) in the directory WORK

It prints each case before it begins, and after it what is wrong with it.
"""

from __future__ import annotations

import codecs
import os
import random
import shutil
import socket
import stat
import sys
import warnings
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Final, NamedTuple

from click.testing import CliRunner

import kafkafs
import storage
from kafkafs.cli import main
from storage.files.names import FileKind, parse_segment_file
from storage.format.block import Record
from storage.format.record_batch import encode_batch
from tests.support.every_command import placed, runs, sample_beside, sample_log_dir

SECRET: Final = "SECRET-of-somebody-else"
STRANGER: Final = 54321
KINDS: Final = ("link to a file", "link to a directory", "fifo", "device", "directory", "socket")


class Case(NamedTuple):
    """A file or directory of the sample that is replaced, and a run of a command. `owner`: of the log directory."""

    name: str
    kind: str
    words: list[str]
    owner: int


def replace_by(place: Path, kind: str, outside: Path) -> None:
    """Puts something else in place of a file or directory, if it is there. `outside` is made by `make_outside`."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link to a file":
        target = outside / f"secret-{place.name}"
        target.write_bytes(_plausible(place.name))
        target.chmod(0o600)
        place.symlink_to(target)
    elif kind == "link to a directory":
        place.symlink_to(outside / "home")
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "device":
        os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    elif kind == "directory":
        place.mkdir()
        (place / "inner").write_text("inner")
    else:
        before = Path.cwd()
        os.chdir(place.parent)  # a path of a socket has at most 108 bytes
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(place.name)
        os.chdir(before)


def make_outside(path: Path) -> None:
    """A directory of somebody else: a home with a partition's files in it."""
    home = path / "home"
    home.mkdir(parents=True)
    for name in (f"{0:020d}.log", "topic.properties", "leader-epoch-checkpoint", "partition.metadata", "thesis.tmp"):
        (home / name).write_bytes(_plausible(name))
        (home / name).chmod(0o600)
    (home / "empty").mkdir()
    home.chmod(0o700)


def state_of(path: Path) -> dict[str, tuple[object, ...]]:
    """Names, contents, modes, owners and times of everything below a directory. Links are not followed."""
    found: dict[str, tuple[object, ...]] = {}
    for one in (path, *path.rglob("*")):
        status = one.lstat()
        content = one.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(one)] = (content, status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_nlink)
    return found


def _plausible(name: str) -> bytes:
    """A content that tells the secret if it is taken for that file's."""
    parsed = parse_segment_file(name)
    if parsed is not None and parsed.kind is FileKind.LOG:
        return encode_batch([Record(SECRET.encode(), SECRET.encode(), (), 1)], base_offset=parsed.offset)
    texts = {
        "meta.properties": f"version=1\ncluster.id={SECRET}\nnode.id=1\n",
        "topic.properties": f"cleanup.policy=compact\n{SECRET}={SECRET}\n",
        "partition.metadata": f"version: 0\ntopic_id: {SECRET}\n",
        "leader-epoch-checkpoint": f"0\n1\n0 {SECRET}\n",
        "kafkafs-commits": f'{{"version":1,"{SECRET}":"{SECRET}"}}',
    }
    return texts.get(name, f"0\n1\n{SECRET} 0 5\n").encode()


def names_in(log_dir: Path) -> list[str]:
    """The names of all files and directories of the sample, and of those that only writing makes."""
    made = [
        ".kafka_cleanshutdown.tmp",
        "meta.properties",
        "kafkafs-commits.tmp",
        "cleaner-offset-checkpoint.tmp",
        "log-start-offset-checkpoint.tmp",
        "replication-offset-checkpoint.tmp",
        "new-0",
        f"orders-0/{0:020d}.log.cleaned",
        f"orders-0/{0:020d}.index.cleaned",
        f"orders-0/{0:020d}.timeindex.cleaned",
        f"orders-0/{0:020d}.log.swap",
        f"orders-0/{0:020d}.log.deleted",
        f"orders-0/{0:020d}.snapshot",
        f"orders-0/{0:020d}.timeindex.tmp",
        f"orders-0/{69:020d}.log",
        f"orders-0/{69:020d}.snapshot",
        "orders-0/partition.metadata.tmp",
        "orders-2",
    ]
    return sorted({*made, *(str(path.relative_to(log_dir)) for path in log_dir.rglob("*"))})


def cases(sample: Path, seed: int, count: int) -> list[Case]:
    """Some cases, or with a count of 0 all."""
    dice = random.Random(seed)
    kinds = KINDS if os.geteuid() == 0 else tuple(kind for kind in KINDS if kind != "device")
    names = names_in(sample)
    owners = (0, STRANGER) if os.geteuid() == 0 else (os.geteuid(),)
    if not count:
        return [Case(name, kind, words, dice.choice(owners)) for name in names for kind in kinds for words in runs()]
    # Every name and every run come up before one comes up again.
    chosen = []
    while len(chosen) < count:
        dice.shuffle(names)
        for name, words in zip(names, dice.choices(runs(), k=len(names)), strict=True):
            chosen.append(Case(name, dice.choice(kinds), words, dice.choice(owners)))
    return chosen[:count]


def faults_of(case: Case, sample: Path, place: Path) -> list[str]:
    """What is wrong with a case, carried out in an empty directory."""
    outside, beside, log_dir = place / "outside", place / "beside", place / "log"
    make_outside(outside)
    shutil.copytree(sample, log_dir, symlinks=True)
    replace_by(log_dir / case.name, case.kind, outside)
    beside.mkdir()
    sample_beside(beside)
    if os.geteuid() == 0:
        for path in (log_dir, *log_dir.rglob("*")):
            os.lchown(path, case.owner, case.owner)
    before = state_of(outside)
    result = CliRunner().invoke(main, placed(case.words, log_dir, beside), input=b"key:one\n")
    faults = []
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        faults.append(f"raises {result.exception!r}")
    elif result.exit_code not in (0, 1, 2, 3, 4):  # 2: what was named is not of the kind that the command needs
        faults.append(f"ends with {result.exit_code}: {result.output}")
    after = state_of(outside)
    if after != before:
        changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
        faults.append(f"changes {changed}")
    secret = SECRET.encode()
    if secret in result.stdout_bytes or secret in result.stderr_bytes:
        faults.append(f"prints the secret: {result.output}")
    copied = [path for path in beside.rglob("*") if path.is_file() and secret in path.read_bytes()]
    return [*faults, *(f"copies the secret to {path.relative_to(place)}" for path in copied)]


def say(*words: object) -> None:
    """Prints a line at once: the process may be killed."""
    sys.stdout.write(" ".join(map(str, words)).replace("\n", " ") + "\n")
    sys.stdout.flush()


def _main(work: Path, seed: int, count: int, uid: int) -> None:
    # Another user may not be able to read the code, nor Python's.
    for encoding in ("utf-8-sig", "utf-16-be"):
        codecs.lookup(encoding)
    for package in (kafkafs, storage):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("kafkafs.spark") and "__main__" not in module.name:
                import_module(module.name)
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    os.umask(0o022)
    samples = [sample_log_dir(work / f"sample-{clean}", clean=clean) for clean in (True, False)]
    dice = random.Random(seed)
    for number, case in enumerate(cases(samples[0], seed, count)):
        place = work / str(number)
        place.mkdir()
        say("CASE", *case)
        for fault in faults_of(case, dice.choice(samples), place):
            say("FAULT", fault)
        shutil.rmtree(place)
    say("DONE")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
