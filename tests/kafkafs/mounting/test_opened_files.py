"""What a mount does to the files of a log directory, according to the kernel: none is opened through a link, and a
mount that only reads changes nothing."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.every_command import sample_log_dir
from tests.support.mounted_logs import sample, state_of
from tests.support.mounts import mounted, requires_fuse
from tests.support.serving_processes import killed_after, watched
from tests.support.system_calls import calls, objections, requires_strace, traced
from tests.support.waiting import wait_for

pytestmark = requires_fuse

# Background work begins at once, and goes on without a pause.
CONFIG = """
log.initial.task.delay.ms=1
log.retention.check.interval.ms=50
log.cleaner.backoff.ms=50
log.cleaner.min.cleanable.ratio=0.01
log.segment.delete.delay.ms=1
log.flush.offset.checkpoint.interval.ms=50
log.flush.start.offset.checkpoint.interval.ms=50
"""


def look_at_everything(mnt):
    """Reads every file in the tree, and their extended attributes; returns how many there were."""
    count = 0
    for folder, _, files in os.walk(mnt):
        for name in (".", *files):
            path = Path(folder, name)
            for attribute in os.listxattr(path):
                os.getxattr(path, attribute)
            if name != "." and not name.startswith("@append"):
                path.read_bytes()
                count += 1
    for partition in mnt.glob("*/[0-9]*"):
        for name in ("time/2000--.log", "offsets/last-7.jsonl", "messages.log", "messages.jsonl", "latest.jsonl"):
            (partition / name).read_bytes()
    return count


@requires_strace
@pytest.mark.parametrize("clean", [True, False])
def test_a_mount_that_only_reads(tmp_path, clean):
    log_dir = sample_log_dir(tmp_path / "log", clean=clean, broker=True)
    output, before = tmp_path / "calls", state_of(log_dir)
    with mounted(log_dir, tmp_path / "mnt", runner=traced([], output)) as mount, killed_after(mount.process):
        assert look_at_everything(mount.path) > 50
        assert (mount.path / "decoded/0/messages.decoded.jsonl").read_bytes().count(b'"value":"text"') == 1
    assert list(calls(output, log_dir))
    assert not objections(output, log_dir)
    assert state_of(log_dir) == before


@requires_strace
@pytest.mark.parametrize("clean", [True, False])
def test_a_mount_that_writes(tmp_path, clean):
    """Messages, topics, configurations; compaction, retention, deletion; recovery."""
    log_dir = sample_log_dir(tmp_path / "log", clean=clean)
    config, output = tmp_path / "config", tmp_path / "calls"
    config.write_text(CONFIG)
    with (
        mounted(log_dir, tmp_path / "mnt", "-o", f"config={config}", write=True, runner=traced([], output)) as mount,
        killed_after(mount.process),
    ):
        mnt = mount.path
        (mnt / "new").mkdir()
        (mnt / "new/@append").write_text("one\ntwo\n")
        (mnt / "new/0/@append.jsonl").write_text('{"key":"k","value":"three"}\n')
        (mnt / "new/@config").write_text("cleanup.policy=compact\nsegment.bytes=1000\n")
        for number in range(40):
            with (mnt / "new/@append.jsonl").open("a") as file:
                file.write(f'{{"key":"k{number % 3}","value":"{"x" * 100}"}}\n')
        wait_for("compaction", lambda: b"\nnew 0 " in (log_dir / "cleaner-offset-checkpoint").read_bytes())
        wait_for("removal", lambda: not list(log_dir.glob("*-0/*.deleted")))
        assert look_at_everything(mnt) > 50
        (mnt / "short").mkdir()
        (mnt / "short").rmdir()
        wait_for("removal of the topic", lambda: not list(log_dir.glob("short-*")))
    named = [call.name for call in calls(output, log_dir)]
    assert {"openat", "renameat", "unlinkat", "mkdirat"} <= set(named)
    assert not objections(output, log_dir)


def by_modes(log_dir):
    """Modes alone, which say little to root."""
    for path in (log_dir, *log_dir.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return ["chmod", "-R", "u+w", log_dir]


def by_the_file_system(log_dir):
    bind = subprocess.run(["mount", "--bind", log_dir, log_dir], capture_output=True, check=False)
    if bind.returncode != 0:
        pytest.skip(f"cannot make a read-only filesystem here: {bind.stderr.decode().strip()}")
    subprocess.run(["mount", "-o", "remount,ro,bind", log_dir], check=True)
    return ["umount", log_dir]


@pytest.mark.parametrize("protect", [by_modes, by_the_file_system])
def test_where_nothing_may_be_written(tmp_path, protect):
    log_dir = sample(tmp_path / "logs").path
    undo = protect(log_dir)
    try:
        before = state_of(log_dir)
        with watched(log_dir, tmp_path / "mnt") as mount:
            assert look_at_everything(mount.path) > 50
            assert not list(mount.path.rglob("@append*"))
        assert state_of(log_dir) == before
    finally:
        subprocess.run(undo, check=True)
