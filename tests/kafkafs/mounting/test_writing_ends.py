"""Writable mounts that end: by umount, signal, kill -9 under writers; and disks that are full or may not be written."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from storage.directory.owned_dir import Opening, OwnedDir
from storage.files import names
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.support.damaged_bytes import flip
from tests.support.mounts import KAFKAFS, detach, kafkafs_mounts, mounted, requires_fuse, run_kafkafs
from tests.support.owned_dirs import append, killed, values_of
from tests.support.serving_processes import fails_with, killed_after
from tests.support.waiting import wait_for

pytestmark = requires_fuse

# Seconds after which something hangs, on a machine that may be busy with more than this.
PATIENCE = 120
KILLS = 3

# Prints how many lines are complete. Its exit code says whether a write was short.
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
    return values_of(LogDir.open_read_only(log_dir).log(TopicPartition(topic, 0)).snapshot())


def messages(mnt, topic="t"):
    return (mnt / topic / "0" / "messages.txt").read_bytes()


def make(log_dir):
    owned = OwnedDir.open(log_dir, Opening(create=True))
    owned.create_topic("t", 1)
    owned.close()
    return log_dir


@pytest.fixture
def logs(tmp_path):
    return make(tmp_path / "logs")


@pytest.fixture
def mnt(tmp_path):
    path = tmp_path / "mnt"
    path.mkdir()
    return path


@contextmanager
def writable(logs, mnt, *options, background=False):
    """A mount that a test may end as it likes."""
    command = [*KAFKAFS, "mount", "--write", str(logs), str(mnt), *options, *([] if background else ["-f"])]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("the mount", lambda: mnt in kafkafs_mounts() or process.poll() not in (None, 0))
        with killed_after(process):
            yield process
        if process.poll() is None:
            run_kafkafs("umount", mnt)
            assert process.wait(timeout=PATIENCE) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for _ in range(3):
            if mnt in kafkafs_mounts():
                detach(mnt)


def kill(process, mnt):
    process.kill()
    process.wait()
    detach(mnt)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it_in_order(logs, mnt, number):
    with writable(logs, mnt) as process:
        fd = os.open(mnt / "t" / "@append", os.O_WRONLY)
        try:
            os.write(fd, b"one\nhalf")
            process.send_signal(number)
            assert process.wait(timeout=PATIENCE) == 0
        finally:
            with contextlib.suppress(OSError):
                os.close(fd)
    assert mnt not in kafkafs_mounts()
    assert values(logs) == [b"one", b"half"]
    assert (logs / names.CLEAN_SHUTDOWN).exists()
    assert not (logs / ".lock").exists()


@pytest.mark.timeout(60 + 30 * KILLS)
def test_kill_9_under_writers_loses_no_complete_line(logs, mnt, tmp_path):
    written = {}
    for number in range(KILLS):
        with writable(logs, mnt) as process:
            writers = {}
            for name in (f"{number}.{writer}" for writer in range(8)):
                command = [sys.executable, "-c", WRITER, str(mnt / "t" / "0" / "@append"), name]
                with (tmp_path / name).open("wb") as output:
                    writers[name] = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
            wait_for("the writers", lambda w=writers: all((tmp_path / name).stat().st_size for name in w))
            kill(process, mnt)
            for name, writer in writers.items():
                assert writer.wait(timeout=PATIENCE) == 0, f"{name} had a short write"
                written[name] = int((tmp_path / name).read_bytes().splitlines()[-1])
    with writable(logs, mnt):
        appended = messages(mnt).splitlines()
    assert verify_log_dir(logs) == []
    for name, count in written.items():
        lines = [line for line in appended if line.startswith(b"%s:" % name.encode())]
        assert lines == [b"%s:%d" % (name.encode(), line) for line in range(len(lines))]  # in order, each once
        assert len(lines) >= count > 0
    assert all(line == b"half" or line.split(b":")[0].decode() in written for line in appended)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user, and only root can become one")
def test_after_a_kill_nobody_writes_into_the_directory_below(logs, mnt):
    """Except root, whom no mode stops. The next mount gives the permission back when it ends."""
    mnt.chmod(0o777)

    def other_user_makes_a_directory():
        command = ["setpriv", "--reuid=65534", "--clear-groups", "mkdir", "x"]
        return subprocess.run(command, cwd=mnt, check=False).returncode

    with writable(logs, mnt) as process:
        (mnt / "@help").read_bytes()  # it is mounted before it serves
        kill(process, mnt)
        assert mnt not in kafkafs_mounts()
        assert other_user_makes_a_directory() != 0
        assert list(mnt.iterdir()) == []
    with writable(logs, mnt):
        pass
    assert other_user_makes_a_directory() == 0


# Disks


@pytest.fixture
def tmpfs(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        make(disk / "logs")
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk(tmpfs, mnt):
    line = b"x" * 999 + b"\n"
    with mounted(tmpfs / "logs", mnt, write=True) as mount, killed_after(mount.process):
        path = mnt / "t" / "@append"
        command = ["bash", "-c", 'yes "$1" > "$2"', "bash", "y" * 999, path]
        assert b"No space left on device" in subprocess.run(command, capture_output=True, check=False).stderr
        with path.open("wb", buffering=0) as file:
            with fails_with(errno.ENOSPC):
                while file.write(line):
                    pass
            before = messages(mnt)
            told = json.loads((mnt / "@status.json").read_bytes())["refused_lines"]
            assert [entry["reason"] for entry in told] == ["No space left on device"] * 2
            assert told[0]["line"] + told[1]["line"] - 2 == before.count(b"\n")  # those before them were accepted
            subprocess.run(["mount", "-o", "remount,size=8m", tmpfs], check=True)
            with fails_with(errno.ENOSPC):
                file.write(line)
        path.write_bytes(line)
        assert messages(mnt) == before + line
    assert len(values(tmpfs / "logs")) == before.count(b"\n") + 1
    run_kafkafs("recover", tmpfs / "logs")
    assert len(values(tmpfs / "logs")) == before.count(b"\n") + 1


def test_a_disk_that_is_full_when_a_partition_is_first_opened(tmpfs, mnt):
    """It is told as that, to readers and writers, and the first use that finds room works."""
    logs, partition = tmpfs / "logs", mnt / "t" / "0"
    (logs / names.CLEAN_SHUTDOWN).unlink()
    for index in (logs / "t-0").glob("*index"):
        index.unlink()
    with contextlib.suppress(OSError), (tmpfs / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))

    def write(line):
        with (partition / "@append").open("ab", buffering=0) as file:
            file.write(line)

    def is_written():
        with contextlib.suppress(OSError):
            write(b"room\n")
            return True
        return False

    with mounted(logs, mnt, write=True) as mount, killed_after(mount.process):
        for _ in range(2):
            with fails_with(errno.ENOSPC):
                write(b"no room\n")
            with fails_with(errno.ENOSPC):
                messages(mnt)
        told = json.loads((mnt / "@status.json").read_bytes())["partitions"]["t/0"]
        assert told["state"] == "failed"
        assert "No space left" in told["error"]
        (tmpfs / "filler").unlink()
        wait_for("as long as the last try took", is_written)
        assert messages(mnt) == b"room\n"
    assert values(logs) == [b"room"]
    assert (logs / names.CLEAN_SHUTDOWN).exists()


def test_a_directory_that_may_not_be_written(tmpfs, mnt):
    before = {path: path.read_bytes() for path in (tmpfs / "logs").rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,ro", tmpfs], check=True)
    refused = run_kafkafs("mount", "--write", tmpfs / "logs", mnt, check=False)
    assert refused.returncode == 4
    assert b"Read-only file system; try without --write" in refused.stderr
    assert run_kafkafs("topics", "create", tmpfs / "logs", "new", check=False).returncode == 4
    with mounted(tmpfs / "logs", mnt):
        assert messages(mnt) == b""
        with fails_with(errno.EROFS):
            (mnt / "new").mkdir()
    assert {path: path.read_bytes() for path in (tmpfs / "logs").rglob("*") if path.is_file()} == before


def test_a_disk_that_starts_to_fail(logs, mnt):
    """It refuses to let a file grow, with an error that nobody expects: that partition is offline, the others go on."""
    long = b"x" * 100_000
    with writable(logs, mnt) as process:
        (mnt / "good").mkdir()
        bad, good = (mnt / topic / "@append" for topic in ("t", "good"))
        bad.write_bytes(long + b"\n")
        subprocess.run(["prlimit", f"--pid={process.pid}", "--fsize=50000:"], check=True)
        command = ["bash", "-c", 'seq 1000 > "$1"', "bash", bad]
        assert b"Input/output error" in subprocess.run(command, capture_output=True, check=False).stderr
        good.write_bytes(b"while it fails\n")
        subprocess.run(["prlimit", f"--pid={process.pid}", "--fsize=unlimited:"], check=True)
        with fails_with(errno.EIO):
            bad.write_bytes(b"still offline\n")
        assert messages(mnt) == long + b"\n"
        good.write_bytes(b"after it\n")
        status = json.loads((mnt / "@status.json").read_bytes())
        assert [tp for tp, partition in status["partitions"].items() if partition["state"] == "failed"] == ["t/0"]
        assert status["errors"]["bugs"] == 0
        umount = run_kafkafs("umount", mnt, check=False)
        assert (umount.returncode, process.wait(timeout=PATIENCE)) == (4, 4)
        assert b"kafkafs: t/0: " in umount.stderr
        assert b"good" not in umount.stderr
    assert not (logs / names.CLEAN_SHUTDOWN).exists()
    with writable(logs, mnt):
        bad.write_bytes(b"works again\n")
    assert values(logs) == [long, b"works again"]
    assert values(logs, "good") == [b"while it fails", b"after it"]


@pytest.mark.parametrize("background", [False, True])
def test_umount_fails_where_not_everything_could_be_written(logs, mnt, tmp_path, background):
    """The disk fails after the last write and before the final flush, so that nobody else is told."""
    mode = mnt.stat().st_mode
    with writable(logs, mnt, "-o", f"log={tmp_path}/log", background=background) as process:
        assert not background or process.wait(timeout=PATIENCE) == 0
        (mnt / "t" / "@append").write_bytes(b"one\n")
        logs.rename(tmp_path / "gone")
        umount = run_kafkafs("umount", mnt, check=False)
        said = umount.stderr.decode()
        assert umount.returncode == 4
        assert f"{mnt} is unmounted, but its process failed at the end" in said
        assert "kafkafs: t/0: " in said
        assert background or process.wait(timeout=PATIENCE) == 4
        assert mnt not in kafkafs_mounts()
        assert mnt.stat().st_mode == mode
    assert not (tmp_path / "gone" / names.CLEAN_SHUTDOWN).exists()


def test_what_recovery_finds_is_told_where_the_mount_starts(tmp_path, mnt):
    """Torn tails are cut and told; damage before intact messages takes its partition offline, with what may help."""
    logs, log_file = tmp_path / "logs", tmp_path / "log"
    owned = OwnedDir.open(logs, Opening(create=True))
    owned.create_topic("torn", 1)
    owned.create_topic("bad", 12)
    for tp in owned.partitions():
        append(owned.log(tp), [b"one"])
        append(owned.log(tp), [b"two"])
    killed(owned)
    for tp in owned.partitions():
        log = logs / tp.dir_name / f"{0:020}.log"
        if tp.topic == "bad":
            flip(log, 70)
        else:
            os.truncate(log, log.stat().st_size - 3)
    said = run_kafkafs("mount", "--write", logs, mnt, "-o", f"log={log_file}").stderr.decode().splitlines()
    try:
        assert len(said) == 11
        assert said[0].startswith("kafkafs: bad/0 is offline: ")
        assert "kafkafs recover" in said[0]
        assert "salvage" in said[0]
        assert said[10] == "kafkafs: … and 3 more, see @status.json"
        assert "torn/0 was recovered: cuts 00000000000000000000.log at position" in log_file.read_text()
        status = json.loads((mnt / "@status.json").read_bytes())
        assert status["partitions"]["bad/7"]["state"] == "failed"
        assert list(status["recovery"]["changes"]) == ["torn/0"]
        assert messages(mnt, "torn") == b"one\n"
        with fails_with(errno.EIO):
            os.open(mnt / "bad" / "0" / "@append", os.O_WRONLY)
    finally:
        run_kafkafs("umount", mnt)
    run_kafkafs("recover", logs)
    assert verify_log_dir(logs) == []
