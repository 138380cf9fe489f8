"""Directories of more partitions than the process may have descriptors: opened, written to, recovered, closed."""

import errno
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.directory.owned_dir import Opening
from storage.errors import PartitionOffline
from storage.files import descriptors, names
from storage.files.commit_ledger import WriteId
from storage.files.descriptors import HeldFiles
from storage.files.dir_lock import holder
from storage.files.disk import RealDisk
from storage.format.block import Record, RecordColumns
from storage.log.log_dir import LogDir
from storage.staged_writes.staging import StagedFileWriter
from storage.types import TopicPartition
from tests.storage.files.test_descriptors import open_paths
from tests.support.faults import FaultyDisk
from tests.support.fixtures import ROOT
from tests.support.mounts import KAFKAFS, mounted, requires_fuse, run_kafkafs
from tests.support.owned_dirs import NOW_MS, StandingClock, append, close_clean, killed, opened, read

TP, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
PARTITIONS = 300
# Three descriptors for each partition would be more than three times as many.
LIMIT = 256


@pytest.fixture(autouse=True)
def own_files(monkeypatch):
    """Not those that tests before have left open."""
    monkeypatch.setattr(descriptors, "held_files", HeldFiles())


def many(path, partitions=PARTITIONS):
    """A topic with a message in each partition, as a killed process leaves it."""
    owned = opened(path)
    owned.create_topic("t", partitions)
    for number in range(partitions):
        append(owned.log(TopicPartition("t", number)), [b"before"])
    killed(owned)


@contextmanager
def no_descriptors():
    """Nothing can be opened in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def append_to_all(path):
    owned = opened(path, Opening())
    tps = owned.partitions()
    assert len(tps) == PARTITIONS
    assert not owned.failures()
    for turn in (tps, reversed(tps), tps):
        for tp in turn:
            append(owned.log(tp), [b"one", b"two"])
            assert len(list(Path("/proc/self/fd").iterdir())) < LIMIT // 2 + 40
    assert all(read(owned, tp.topic, tp.partition) == [b"before", *[b"one", b"two"] * 3] for tp in tps)
    for tp in tps[::7]:
        owned.log(tp).flush()
    owned.checkpoint()
    close_clean(owned)


def stage(path):
    """What one task of a write does that has messages for each partition."""
    config = LogDir.open_read_only(path).topic_info("t").config
    write = WriteId("0" * 32, None)
    writers = [
        StagedFileWriter(RealDisk(), path, TopicPartition("t", number), write, config=config, clock=StandingClock())
        for number in range(PARTITIONS)
    ]
    for turn in range(2):
        for writer in writers:
            writer.append(RecordColumns.from_records([Record(None, b"%d" % turn, (), NOW_MS)]))
    staged = [writer.finish() for writer in writers]
    assert all(file is not None and file.records == 2 for file in staged)


@pytest.mark.parametrize("work", ["append_to_all", "stage"])
def test_all_partitions_are_written_to_with_few_descriptors(tmp_path, work):
    many(tmp_path / "dir")
    code = f"import sys, pathlib; from {__name__} import {work}; {work}(pathlib.Path(sys.argv[1]))"
    limited = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", sys.executable, "-c", code, str(tmp_path / "dir")]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    owned = opened(tmp_path / "dir", Opening())
    assert read(owned, "t", 299) == [b"before", *[b"one", b"two"] * (3 if work == "append_to_all" else 0)]
    assert owned.close().clean


@requires_fuse
def test_a_mount_of_many_partitions(tmp_path, monkeypatch):
    """It raises its soft limit to the hard one; and where that is low, too, it makes do with what there is."""
    many(tmp_path / "dir")
    low = ("sh", "-c", f'ulimit -n {LIMIT}; ulimit -Sn 100; exec "$@"', "sh", *KAFKAFS)
    monkeypatch.setattr("tests.support.mounts.KAFKAFS", low)
    with mounted(tmp_path / "dir", tmp_path / "mnt", write=True) as mount:
        limits = Path(f"/proc/{mount.pid}/limits").read_text()
        assert f"Max open files            {LIMIT}                  {LIMIT}" in limits
        for number in range(PARTITIONS):
            with (mount.path / "t" / str(number) / "@append").open("ab", buffering=0) as file:
                file.write(b"%d\n" % number)
        for number in reversed(range(PARTITIONS)):
            assert (mount.path / "t" / str(number) / "messages.txt").read_bytes() == b"before\n%d\n" % number
        monkeypatch.setattr("tests.support.mounts.KAFKAFS", KAFKAFS)
    assert (tmp_path / "dir" / names.CLEAN_SHUTDOWN).exists()
    assert run_kafkafs("verify", tmp_path / "dir").returncode == 0


def test_closing_without_descriptors_raises_nothing_and_lets_go(tmp_path):
    many(tmp_path / "dir", 3)
    disk = FaultyDisk(tmp_path / "dir")
    disk.fail = lambda what, place: errno.ENOSPC if place.parent.name == "t-1" and what.startswith("write") else None
    owned = opened(tmp_path / "dir", Opening(), disk=disk)  # t-1 may yet be recovered when it is closed
    append(owned.log(TP), [b"more"])
    with no_descriptors():
        closing = owned.close()
    assert not closing.clean
    assert {tp.partition for tp in closing.errors} >= {0, 1}
    assert not (tmp_path / "dir" / names.LOCK).exists()
    assert not (tmp_path / "dir" / names.CLEAN_SHUTDOWN).exists()
    assert holder(tmp_path / "dir") is None
    owned = opened(tmp_path / "dir", Opening())
    assert (read(owned, "t"), read(owned, "t", 1)) == ([b"before", b"more"], [b"before"])
    close_clean(owned)


def test_a_lock_file_that_cannot_be_removed_is_told_and_held_by_nobody(tmp_path):
    opened(tmp_path / "dir").close()
    disk = FaultyDisk(tmp_path / "dir")
    owned = opened(tmp_path / "dir", disk=disk)
    owned.create_topic("t", 1)
    disk.fail = lambda what, _place: errno.EIO if what == f"unlink {names.LOCK}" else None
    closing = owned.close()
    assert closing.clean
    assert isinstance(closing.failure, OSError)
    assert closing.failure.errno == errno.EIO
    assert holder(tmp_path / "dir") is None
    close_clean(opened(tmp_path / "dir"))


def test_a_failed_opening_lets_go_whatever_fails_on_the_way(tmp_path, monkeypatch):
    many(tmp_path / "dir", 1)

    def fails(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("storage.directory.owned_dir.commit.finish_pending", fails)
    monkeypatch.setattr("storage.append.partition_log.PartitionLog.abandon", fails)
    with pytest.raises(OSError, match="Input/output"):
        opened(tmp_path / "dir")
    monkeypatch.undo()
    assert holder(tmp_path / "dir") is None
    close_clean(opened(tmp_path / "dir"))


def let_go_of_all(path):
    """Takes the descriptors of all files below a directory."""
    while any(name.startswith(f"{path}/t-") for name in open_paths()):
        assert descriptors.held_files.give_back()


def test_what_is_lost_with_a_descriptor_takes_the_log_offline_at_its_flush(tmp_path):
    """A sync that fails once and is not asked again: the flush must not say that all is on disk."""
    opened(tmp_path / "dir").close()
    disk = FaultyDisk(tmp_path / "dir")
    owned = opened(tmp_path / "dir", disk=disk)
    owned.create_topic("t", 2)
    for tp in (TP, SECOND):
        append(owned.log(tp), [b"acknowledged"])
    disk.fail = lambda what, place: errno.EIO if place.parent.name == "t-0" and what.endswith(".log") else None
    let_go_of_all(tmp_path / "dir")
    disk.fail = lambda _what, _place: None
    log = owned.log(TP)
    with pytest.raises(OSError, match="Input/output"):
        log.flush()
    assert log.recovery_point == 0
    with pytest.raises(PartitionOffline):
        append(log, [b"x"])
    owned.log(SECOND).flush()
    assert owned.log(SECOND).recovery_point == 1
    closing = owned.close()
    assert list(closing.errors) == [TP]
    assert not closing.clean
    owned = opened(tmp_path / "dir")
    assert read(owned, "t") == [b"acknowledged"]
    close_clean(owned)


def test_a_log_whose_file_was_replaced_meanwhile_goes_offline(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 2)
    log = owned.log(TP)
    append(log, [b"mine"])
    let_go_of_all(tmp_path)
    path = tmp_path / "t-0" / names.segment_file(0, names.FileKind.LOG)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)  # which may have got the inode, too
    os.utime(path, ns=(0, 0))
    with pytest.raises(OSError, match="no longer the file") as caught:
        append(log, [b"more"])
    assert caught.value.errno == errno.ESTALE
    with pytest.raises(PartitionOffline):
        append(log, [b"more"])
    assert list(owned.close().errors) == [TP]
    close_clean(opened(tmp_path))


def test_logs_go_on_after_their_descriptors_went(tmp_path):
    """Whatever is done next: append, roll, retain, restart, close."""
    owned = opened(tmp_path)
    owned.create_topic("t", 2)
    log, other = owned.log(TP), owned.log(SECOND)
    for turn in range(3):
        append(log, [b"%d" % turn, b"x"])
        let_go_of_all(tmp_path)
        log.roll()
        let_go_of_all(tmp_path)
    log.flush()
    append(log, [b"after"])
    let_go_of_all(tmp_path)
    for path in log.remove_segments(log.snapshot().segments[:1]):
        path.unlink()
    left = [b"1", b"x", b"2", b"x", b"after"]
    assert read(owned, "t") == left
    for step in (lambda: other.restart_at(7), lambda: append(other, [b"seven"])):
        let_go_of_all(tmp_path)
        step()
    let_go_of_all(tmp_path)
    close_clean(owned)
    owned = opened(tmp_path)
    assert read(owned, "t") == left
    assert owned.log(SECOND).log_end_offset == 8
    close_clean(owned)
