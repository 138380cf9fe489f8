"""Who may write to a log directory replaces its files by links while another user walks the tree of root's mount."""

from __future__ import annotations

import os
import random
import shutil
import time
from contextlib import suppress

import pytest

from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many
from tests.support.mounts import mounted, requires_fuse
from tests.support.replaced_files import SECRET, make_outside, replace_by

OWNER, STRANGER = 4001, 4003
_ROUNDS = 300
_SAW_NOTHING, _SAW_A_SECRET = 10, 11
pytestmark = [requires_fuse, pytest.mark.skipif(os.geteuid() != 0, reason="takes other users")]


def _shown(mnt):
    """How many files of a tree could be read, and whether one of them or a name or attribute tells the secret."""
    count, told = 0, False
    for folder, folders, names in os.walk(mnt):
        told = told or SECRET in str((folder, folders, names))
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - fast
            with suppress(OSError):
                told = told or any(SECRET.encode() in os.getxattr(path, one) for one in os.listxattr(path))
                with open(path, "rb") as file:  # noqa: PTH123
                    told = told or SECRET.encode() in file.read(1 << 16)
                count += 1
    return count, told


def _walker(mnt, enough):
    """A process of the stranger that walks until there is a file `enough`."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        most, told = 0, False
        while not told:
            is_last = enough.exists()
            count, told = _shown(mnt)
            most = max(most, count)
            if is_last:
                break
        code = _SAW_A_SECRET if told else 0 if most else _SAW_NOTHING
    finally:
        os._exit(code)


def _replace(dice, place, outside, kept):
    """Puts a link in place of a file or a partition's directory, at once. The original is kept."""
    link = kept / "link" / place.name
    replace_by(link, "link to a directory" if place.is_dir() else "link to a file", outside)
    if place.is_dir():
        target = outside / place.name
        target.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(outside / "home" / f"{0:020d}.log", target)
        link.unlink()
        link.symlink_to(target)
        place.rename(kept / place.name)
    else:
        os.link(place, kept / place.name)
        if dice.random() < 0.3:
            secret = link.readlink()
            link.unlink()
            os.link(secret, link)
    if link.is_symlink():
        os.lchown(link, OWNER, OWNER)
    link.replace(place)


def _put_back(place, kept):
    original = kept / place.name
    if original.is_dir():
        place.unlink()
    original.replace(place)


@pytest.mark.parametrize("options", ["allow_other", "allow_other,modes=below"])
def test_a_stranger_sees_nothing_of_root(tmp_path, options):
    tmp_path.chmod(0o755)
    for above in tmp_path.parents[:-1]:
        if above.stat().st_mode & 0o077 == 0:
            above.chmod(0o711)
    topics = {name: [Partition([Batch(many(30, keys=3)), ROLL, Batch(many(5))]), [b"x"]] for name in ("t", "u")}
    log_dir = build_log_dir(tmp_path / "logs", topics, broker=False).path
    kept, outside = tmp_path / "kept", tmp_path / "outside"
    for name in ("topic.properties", "leader-epoch-checkpoint", "partition.metadata"):
        (log_dir / "t-0" / name).touch()
    for path in (log_dir, *log_dir.rglob("*")):
        os.chown(path, OWNER, OWNER)
    make_outside(outside)
    kept.mkdir()
    mnt, dice = tmp_path / "mnt", random.Random(26)
    places = [path for path in sorted(log_dir.rglob("*")) if not path.name.endswith("index")]
    before = (log_dir / "t-0" / f"{0:020d}.log").read_bytes()
    with mounted(log_dir, mnt, "-o", options):
        walker = _walker(mnt, tmp_path / "enough")
        try:
            for _ in range(_ROUNDS):
                place = dice.choice(places)
                _replace(dice, place, outside, kept)
                time.sleep(dice.choice((0, 0.001, 0.05)))  # so that a walker comes by
                _put_back(place, kept)
        finally:
            (tmp_path / "enough").touch()
            code = os.waitstatus_to_exitcode(os.waitpid(walker, 0)[1])
        assert code == 0
        assert (mnt / "t" / "0" / "segments" / f"{0:020d}.log").read_bytes() == before
        assert (mnt / "u" / "1" / "messages.txt").read_bytes() == b"x\n"
