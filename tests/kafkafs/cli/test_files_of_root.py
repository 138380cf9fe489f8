"""What root makes in the log directory of another user belongs to that user, who goes on with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import traceback
from pathlib import Path

import pytest

from storage.files import names
from storage.types import TopicPartition
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, process, run
from tests.support.every_command import sample_log_dir
from tests.support.mounts import mounted, requires_fuse
from tests.support.owned_dirs import append, opened

OWNER = 4001
TP = TopicPartition("t", 0)
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes other users")


def succeeds_as(uid, attempt):
    """Whether an attempt of another user, in a process of its own, raises nothing."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            attempt()
            code = 0
        except BaseException:  # noqa: BLE001 - the parent tells
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def log_dir(tmp_path):
    """A crashed directory of OWNER's alone, without indexes and checkpoints."""
    for above in (tmp_path, *tmp_path.parents[:-1]):
        if not above.stat().st_mode & 0o001:
            above.chmod(0o711)
    messages = [Batch(many(30, keys=3)), ROLL, Batch(many(5))]
    compacted = Partition(messages, extra={"topic.properties": b"cleanup.policy=compact\n"})
    topics = {"t": [Partition(messages), [b"x"]], "u": [[b"y"]], "c": [compacted]}
    path = build_log_dir(tmp_path / "logs", topics, broker=False).path
    for name in (names.CLEAN_SHUTDOWN, names.RECOVERY_POINT_CHECKPOINT):
        (path / name).unlink(missing_ok=True)
    for made in path.rglob("*.*index"):
        made.unlink()
    for place in (path, *path.rglob("*")):
        os.chown(place, OWNER, OWNER)
        place.chmod(0o700 if place.is_dir() else 0o600)
    return path


COMMANDS = [
    ["recover", "{}"],
    ["append", "{}", "t/0"],
    ["reindex", "{}", "t"],
    ["retain", "{}"],
    ["compact", "{}", "c"],
    ["topics", "create", "{}", "new", "--partitions", "2"],
    ["topics", "alter", "{}", "t", "--config", "segment.bytes=5000"],
    ["topics", "delete", "{}", "u"],
    ["mirror", "{}/../source", "{}"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]).replace(" {}", ""))
def test_the_owner_goes_on(log_dir, command):
    build_log_dir(log_dir.parent / "source", {"copied": [[b"a", b"b"]]}, broker=False)
    with process(*(word.format(log_dir) for word in command), stdin=subprocess.PIPE) as running:
        _, told = running.communicate(b"more\n", timeout=120)
    assert running.returncode == 0, told
    made = [log_dir, *log_dir.rglob("*")]
    assert [path for path in made if (path.stat().st_uid, path.stat().st_gid) != (OWNER, OWNER)] == []
    assert [path for path in made if path.stat().st_mode & 0o077] == []
    (log_dir / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)

    def go_on(path):
        output_of("recover", path)
        owned = opened(path)
        append(owned.log(TP), [b"again"])
        owned.close()

    # Once here: the other user may not be able to read the modules of Python that this imports.
    go_on(Path(shutil.copytree(log_dir, log_dir.parent / "copy")))
    assert succeeds_as(OWNER, lambda: go_on(log_dir))
    assert output_of("cat", log_dir, "t/0").endswith(b"\nagain\n")


DESTINATIONS = [
    ["salvage", "{}", "orders", "--to", "{}/../homes/new"],
    ["revive", "{}", "--to", "{}/../homes/new"],
    ["mirror", "{}", "{}/../homes/new"],
    ["schemas", "{}", "--to", "{}/../homes/new"],
]


@pytest.mark.parametrize("command", DESTINATIONS, ids=lambda command: command[0])
def test_a_destination_belongs_to_whom_it_is_below(tmp_path, command):
    log_dir, homes = sample_log_dir(tmp_path / "logs", clean=True), tmp_path / "homes"
    homes.mkdir(mode=0o700)
    os.chown(homes, OWNER, OWNER)
    result = run(*(word.format(log_dir) for word in command))
    assert result.exit_code == 0, result.output
    made = list((homes / "new").rglob("*"))
    assert made
    assert [path for path in (homes / "new", *made) if (path.stat().st_uid, path.stat().st_gid) != (OWNER, OWNER)] == []
    assert [path for path in (homes / "new", *made) if path.stat().st_mode & 0o077] == []


@requires_fuse
def test_a_writable_mount_of_root(log_dir, tmp_path):
    with mounted(log_dir, tmp_path / "mnt", write=True) as tree:
        (tree.path / "t" / "0" / "@append").write_bytes(b"more\n")
        (tree.path / "made").mkdir()
        (tree.path / "made" / "0" / "@append").write_bytes(b"first\n")
        (tree.path / "made" / "@config").write_bytes(b"retention.ms=-1\n")
    output_of("groups", log_dir, "g", "--reset-to", "earliest", "--topic", "t")
    made = [log_dir, *log_dir.rglob("*")]
    assert len(list(log_dir.glob("__consumer_offsets-*"))) == 50
    assert [path for path in made if (path.stat().st_uid, path.stat().st_gid) != (OWNER, OWNER)] == []
    assert [path for path in made if path.stat().st_mode & 0o077] == []
