"""The files of a log directory that a mount opens, according to the kernel: none is opened through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.every_command import sample_log_dir
from tests.support.mounts import mounted, requires_fuse
from tests.support.serving_processes import killed_after
from tests.support.system_calls import calls, objections, requires_strace, traced
from tests.support.waiting import wait_for

pytestmark = [requires_fuse, requires_strace]

# Background work begins at once, and goes on without a pause.
_CONFIG = """
log.initial.task.delay.ms=1
log.retention.check.interval.ms=50
log.cleaner.backoff.ms=50
log.cleaner.min.cleanable.ratio=0.01
log.segment.delete.delay.ms=1
log.flush.offset.checkpoint.interval.ms=50
log.flush.start.offset.checkpoint.interval.ms=50
"""


def _look_at_everything(mnt):
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
            path = partition / name
            path.read_bytes()
    return count


@pytest.mark.parametrize("clean", [True, False])
def test_a_mount_that_only_reads(tmp_path, clean):
    log_dir = sample_log_dir(tmp_path / "log", clean=clean, broker=True)
    output = tmp_path / "calls"
    with mounted(log_dir, tmp_path / "mnt", runner=traced([], output)) as mount, killed_after(mount.process):
        assert _look_at_everything(mount.path) > 50
        assert (mount.path / "decoded/0/messages.decoded.jsonl").read_bytes().count(b'"value":"text"') == 1
    assert list(calls(output, log_dir))
    assert not objections(output, log_dir)


@pytest.mark.parametrize("clean", [True, False])
def test_a_mount_that_writes(tmp_path, clean):
    """Messages, topics, configurations; compaction, retention, deletion; recovery."""
    log_dir = sample_log_dir(tmp_path / "log", clean=clean)
    config, output = tmp_path / "config", tmp_path / "calls"
    config.write_text(_CONFIG)
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
        assert _look_at_everything(mnt) > 50
        (mnt / "short").mkdir()
        (mnt / "short").rmdir()
        wait_for("removal of the topic", lambda: not list(log_dir.glob("short-*")))
    named = [call.name for call in calls(output, log_dir)]
    assert {"openat", "renameat", "unlinkat", "mkdirat"} <= set(named)
    assert not objections(output, log_dir)
