"""Writable mounts that end: by umount, signal, kill -9 under writers; and disks that are full or may not be written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from storage.append.appender import Appender
from storage.clock import SystemClock
from storage.directory.owned_dir import Opening, OwnedDir
from storage.files import names
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.support.mounts import KAFKAFS, detach, kafkafs_mounts, mounted, requires_fuse, run_kafkafs
from tests.support.owned_dirs import killed
from tests.support.serving_processes import fails_with, killed_after
from tests.support.waiting import wait_for

pytestmark = requires_fuse

# Seconds after which something hangs, on a machine that may be busy with more than this.
PATIENCE = 120

KILLS = 3

WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY)
number = 0
while True:
    lines = b"".join(b"%s:%d\\n" % (sys.argv[2].encode(), number + n) for n in range(1 + number % 7))
    try:
        assert os.write(fd, lines + b"half") == len(lines) + 4
    except OSError:
        break
    number += 1 + number % 7
    print(number, flush=True)
    try:
        os.write(fd, b"\\n")
    except OSError:
        break
"""


def values(log_dir, topic="t"):
    """Of partition 0, without a mount, of a directory in which nothing is wrong."""
    assert verify_log_dir(log_dir) == []
    snapshot = LogDir.open_read_only(log_dir).log(TopicPartition(topic, 0)).snapshot()
    return [block.value(row) for block in read_range(snapshot, 0) for row in range(len(block))]


def make(log_dir):
    owned = OwnedDir.open(log_dir, Opening(create=True))
    owned.create_topic("t", 1)
    owned.close()


def test_a_last_line_is_a_message_after_umount(tmp_path):
    with mounted(tmp_path / "logs", tmp_path / "mnt", "--create", write=True) as mount:
        (mount.path / "t").mkdir()
        (mount.path / "t" / "@append").write_bytes(b"one\ntwo")
    assert values(tmp_path / "logs") == [b"one", b"two"]
    assert (tmp_path / "logs" / names.CLEAN_SHUTDOWN).exists()
    assert not (tmp_path / "logs" / ".lock").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it_in_order(tmp_path, number):
    with writable(tmp_path) as process:
        fd = os.open(tmp_path / "mnt" / "t" / "@append", os.O_WRONLY)
        try:
            os.write(fd, b"one\nhalf")
            process.send_signal(number)
            assert process.wait(timeout=PATIENCE) == 0
        finally:
            with contextlib.suppress(OSError):
                os.close(fd)
    assert values(tmp_path / "logs") == [b"one", b"half"]
    assert (tmp_path / "logs" / names.CLEAN_SHUTDOWN).exists()


@pytest.mark.timeout(60 + 30 * KILLS)
def test_kill_9_under_writers_loses_no_complete_line(tmp_path):
    make(tmp_path / "logs")
    written = {}
    for number in range(KILLS):
        with writable(tmp_path) as process:
            writing = [f"{number}.{writer}" for writer in range(8)]
            writers = [start_writer(tmp_path, name) for name in writing]
            wait_for("the writers", lambda w=writing: all((tmp_path / name).stat().st_size for name in w))
            process.kill()
            process.wait()
            detach(tmp_path / "mnt")
            for name, writer in zip(writing, writers, strict=True):
                assert writer.wait(timeout=PATIENCE) == 0, f"{name} had a short write"
                written[name] = int((tmp_path / name).read_bytes().splitlines()[-1])
    assert all(written.values())
    with writable(tmp_path):
        found = (tmp_path / "mnt" / "t" / "0" / "messages.txt").read_bytes().splitlines()
    assert verify_log_dir(tmp_path / "logs") == []
    for name, count in written.items():
        lines = [line for line in found if line.startswith(b"%s:" % name.encode())]
        assert lines == [b"%s:%d" % (name.encode(), line) for line in range(len(lines))]  # in order, each once
        assert len(lines) >= count
    assert all(line == b"half" or line.split(b":")[0].decode() in written for line in found)


@pytest.fixture
def tmpfs(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk(tmpfs, tmp_path):
    make(tmpfs / "logs")
    line = b"x" * 999 + b"\n"
    with mounted(tmpfs / "logs", tmp_path / "mnt", write=True) as mount, killed_after(mount.process):
        append = mount.path / "t" / "@append"
        command = ["bash", "-c", 'yes "$1" > "$2"', "bash", "y" * 999, append]
        result = subprocess.run(command, capture_output=True, check=False)
        assert b"No space left on device" in result.stderr
        with append.open("wb", buffering=0) as file:
            with fails_with(errno.ENOSPC):
                while file.write(line):
                    pass
            before = (mount.path / "t" / "0" / "messages.txt").read_bytes()
            subprocess.run(["mount", "-o", "remount,size=8m", tmpfs], check=True)
            assert file.write(line) == len(line)
        assert (mount.path / "t" / "0" / "messages.txt").read_bytes() == before + line
    assert len(values(tmpfs / "logs")) == before.count(b"\n") + 1
    assert run_kafkafs("recover", tmpfs / "logs").returncode == 0
    assert len(values(tmpfs / "logs")) == before.count(b"\n") + 1


def test_a_disk_that_is_full_when_a_partition_is_first_opened(tmpfs, tmp_path):
    """It is told as that, to readers and writers, and the first use that finds room works."""
    make(tmpfs / "logs")
    before = values(tmpfs / "logs")
    (tmpfs / "logs" / names.CLEAN_SHUTDOWN).unlink()
    for index in (tmpfs / "logs" / "t-0").glob("*index"):
        index.unlink()
    with contextlib.suppress(OSError), (tmpfs / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    with mounted(tmpfs / "logs", tmp_path / "mnt", write=True) as mount, killed_after(mount.process):
        partition = mount.path / "t" / "0"
        for _ in range(2):
            with fails_with(errno.ENOSPC), (partition / "@append").open("ab", buffering=0) as file:
                file.write(b"no room\n")
            with fails_with(errno.ENOSPC):
                (partition / "messages.txt").read_bytes()
        told = json.loads((mount.path / "@status.json").read_bytes())["partitions"]["t/0"]
        assert told["state"] == "failed"
        assert "No space left" in told["error"]
        (tmpfs / "filler").unlink()
        deadline = time.monotonic() + PATIENCE
        while True:  # no sooner than after as long as the last try took
            with contextlib.suppress(OSError), (partition / "@append").open("ab", buffering=0) as file:
                file.write(b"room\n")
                break
            assert time.monotonic() < deadline
        assert (partition / "messages.txt").read_bytes() == b"room\n"
    assert values(tmpfs / "logs") == [*before, b"room"]
    assert (tmpfs / "logs" / names.CLEAN_SHUTDOWN).exists()


def test_a_disk_that_starts_to_fail(tmp_path):
    """It refuses to let a file grow, with an error that nobody expects: that partition is offline, the others go on."""
    make(tmp_path / "logs")
    with writable(tmp_path) as process:
        (tmp_path / "mnt" / "good").mkdir()
        bad, good = (tmp_path / "mnt" / topic / "@append" for topic in ("t", "good"))
        bad.write_bytes(b"x" * 100_000 + b"\n")
        subprocess.run(["prlimit", f"--pid={process.pid}", "--fsize=50000:"], check=True)
        command = ["bash", "-c", 'seq 1000 > "$1"', "bash", bad]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "Input/output error" in said.stderr
        good.write_bytes(b"while it fails\n")
        subprocess.run(["prlimit", f"--pid={process.pid}", "--fsize=unlimited:"], check=True)
        with fails_with(errno.EIO):
            bad.write_bytes(b"still offline\n")
        assert (tmp_path / "mnt" / "t" / "0" / "messages.txt").read_bytes() == b"x" * 100_000 + b"\n"
        good.write_bytes(b"after it\n")
        status = json.loads((tmp_path / "mnt" / "@status.json").read_bytes())
        assert [tp for tp, partition in status["partitions"].items() if partition["state"] == "failed"] == ["t/0"]
        assert status["errors"]["bugs"] == 0
        umount = run_kafkafs("umount", tmp_path / "mnt", check=False)
        assert (umount.returncode, process.wait(timeout=PATIENCE)) == (4, 4)
        assert b"kafkafs: t/0: " in umount.stderr
        assert b"good" not in umount.stderr
    assert not (tmp_path / "logs" / names.CLEAN_SHUTDOWN).exists()
    with writable(tmp_path):
        bad.write_bytes(b"works again\n")
    assert values(tmp_path / "logs") == [b"x" * 100_000, b"works again"]
    assert values(tmp_path / "logs", "good") == [b"while it fails", b"after it"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user, and only root can become one")
def test_after_a_kill_nobody_writes_into_the_directory_below(tmp_path):
    """Except root, whom no mode stops. The next mount gives the permission back when it ends."""
    mnt = tmp_path / "mnt"
    mnt.mkdir()
    mnt.chmod(0o777)

    def other_user_makes_a_directory():
        command = ["setpriv", "--reuid=65534", "--clear-groups", "mkdir", "x"]
        return subprocess.run(command, cwd=mnt, check=False).returncode

    with writable(tmp_path) as process:
        (mnt / "@help").read_bytes()  # it is mounted before it serves
        process.kill()
        process.wait()
        detach(mnt)
        assert mnt not in kafkafs_mounts()
        assert other_user_makes_a_directory() != 0
        assert list(mnt.iterdir()) == []
    with writable(tmp_path):
        pass
    assert other_user_makes_a_directory() == 0


@pytest.mark.parametrize("background", [False, True])
def test_umount_fails_where_not_everything_could_be_written(tmp_path, background):
    """The disk fails after the last write and before the final flush, so that nobody else is told."""
    make(tmp_path / "logs")
    log_file, mnt = tmp_path / "log", tmp_path / "mnt"
    mnt.mkdir()
    mode = mnt.stat().st_mode
    command = [*KAFKAFS, "mount", "--write", str(tmp_path / "logs"), str(mnt), "-o", f"log={log_file}"]
    process = subprocess.Popen([*command, *([] if background else ["-f"])], stdin=subprocess.DEVNULL)
    try:
        if background:
            assert process.wait(timeout=PATIENCE) == 0
        wait_for("the mount", lambda: mnt in kafkafs_mounts())
        (mnt / "t" / "@append").write_bytes(b"one\n")
        (tmp_path / "logs").rename(tmp_path / "gone")
        umount = run_kafkafs("umount", mnt, check=False)
        assert umount.returncode == 4
        said = umount.stderr.decode()
        assert f"{mnt} is unmounted, but its process failed at the end" in said
        assert "kafkafs: t/0: " in said
        assert background or process.wait(timeout=PATIENCE) == 4
        assert mnt not in kafkafs_mounts()
        assert mnt.stat().st_mode == mode
        assert not (tmp_path / "gone" / names.CLEAN_SHUTDOWN).exists()
    finally:
        if mnt in kafkafs_mounts():
            detach(mnt)
        if process.poll() is None:
            process.kill()
            process.wait()


def test_a_directory_that_may_not_be_written(tmpfs, tmp_path):
    make(tmpfs / "logs")
    before = {path: path.read_bytes() for path in (tmpfs / "logs").rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,ro", tmpfs], check=True)
    (tmp_path / "mnt").mkdir()
    refused = run_kafkafs("mount", "--write", tmpfs / "logs", tmp_path / "mnt", check=False)
    assert refused.returncode == 4
    assert b"Read-only file system; try without --write" in refused.stderr
    refused = run_kafkafs("topics", "create", tmpfs / "logs", "new", check=False)
    assert refused.returncode == 4
    with mounted(tmpfs / "logs", tmp_path / "mnt") as mount:
        assert (mount.path / "t" / "0" / "messages.txt").read_bytes() == b""
        with fails_with(errno.EROFS):
            (mount.path / "new").mkdir()
    assert {path: path.read_bytes() for path in (tmpfs / "logs").rglob("*") if path.is_file()} == before


def test_what_recovery_finds_is_told_where_the_mount_starts(tmp_path):
    """Torn tails are cut and told; damage before intact messages takes its partition offline, with what may help."""
    owned = OwnedDir.open(tmp_path / "logs", Opening(create=True))
    owned.create_topic("torn", 1)
    owned.create_topic("bad", 12)
    for tp in owned.partitions():
        for value in (b"one", b"two"):
            assert Appender(owned.log(tp), clock=SystemClock()).append([Record(None, value)]).error is None
    killed(owned)
    for tp in owned.partitions():
        log = tmp_path / "logs" / tp.dir_name / f"{0:020}.log"
        data = bytearray(log.read_bytes())
        data[70] ^= tp.topic == "bad"
        log.write_bytes(data[: len(data) - 3 * (tp.topic == "torn")])
    (tmp_path / "mnt").mkdir()
    log_file = tmp_path / "log"
    result = run_kafkafs("mount", "--write", tmp_path / "logs", tmp_path / "mnt", "-o", f"log={log_file}")
    try:
        said = result.stderr.decode().splitlines()
        assert len(said) == 11
        assert said[0].startswith("kafkafs: bad/0 is offline: ")
        assert "kafkafs recover" in said[0]
        assert "salvage" in said[0]
        assert said[10] == "kafkafs: … and 3 more, see @status.json"
        assert "torn/0 was recovered: cuts 00000000000000000000.log at position" in log_file.read_text()
        status = json.loads((tmp_path / "mnt" / "@status.json").read_bytes())
        assert status["partitions"]["bad/7"]["state"] == "failed"
        assert list(status["recovery"]["changes"]) == ["torn/0"]
        assert (tmp_path / "mnt" / "torn" / "0" / "messages.txt").read_bytes() == b"one\n"
        with fails_with(errno.EIO):
            os.open(tmp_path / "mnt" / "bad" / "0" / "@append", os.O_WRONLY)
    finally:
        run_kafkafs("umount", tmp_path / "mnt")
    assert run_kafkafs("recover", tmp_path / "logs").returncode == 0
    assert verify_log_dir(tmp_path / "logs") == []


def start_writer(tmp_path, name):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "mnt" / "t" / "0" / "@append"), name]
    with (tmp_path / name).open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)


@contextmanager
def writable(tmp_path):
    """A mount of `logs` at `mnt` that a test may end as it likes."""
    logs, mnt = tmp_path / "logs", tmp_path / "mnt"
    mnt.mkdir(exist_ok=True)
    if not logs.exists():
        make(logs)
    command = [*KAFKAFS, "mount", "--write", str(logs), str(mnt), "-f"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + PATIENCE
        while mnt not in kafkafs_mounts():
            assert process.poll() is None, process.communicate()[1].decode()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with killed_after(process):
            yield process
        if process.poll() is None:
            run_kafkafs("umount", mnt)
            assert process.wait(timeout=PATIENCE) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        for _ in range(3):
            if mnt in kafkafs_mounts():
                detach(mnt)
