"""Directories of more partitions than the process may have descriptors: opened, written to, recovered, closed."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.directory.owned_dir import Opening
from storage.errors import PartitionOffline
from storage.files import descriptors, names
from storage.files.commit_ledger import WriteId
from storage.files.dir_lock import holder
from storage.files.disk import RealDisk
from storage.format.block import Record, RecordColumns
from storage.log.log_dir import LogDir
from storage.staged_writes.staging import StagedFileWriter
from storage.types import TopicPartition
from tests.storage.files.test_descriptors import open_paths, soft_limit
from tests.support.faults import FaultyDisk
from tests.support.fixtures import ROOT
from tests.support.mounts import KAFKAFS, mounted, requires_fuse, run_kafkafs
from tests.support.owned_dirs import NOW_MS, StandingClock, append, close_clean, killed, opened, read

TP, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
PARTITIONS = 300
# Three descriptors for each partition would be more than three times as many.
LIMIT = 256


def many(path, partitions=PARTITIONS):
    """A topic with a message in each partition, as a killed process leaves it."""
    owned = opened(path)
    owned.create_topic("t", partitions)
    for number in range(partitions):
        append(owned.log(TopicPartition("t", number)), [b"before"])
    killed(owned)


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
    with soft_limit(3):
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


def has_files_open(log):
    """Whether this process has descriptors of the log's files."""
    return any(name.startswith(f"{log.path}/") for name in open_paths())


def rest(*logs):
    for log in logs:
        log.rest()
        assert not has_files_open(log)


@pytest.mark.parametrize("command", ["mirror", "recover"])
def test_commands_on_many_partitions(tmp_path, command):
    """A log needs no descriptor before it grows."""
    many(tmp_path / "dir")
    words = (tmp_path / "dir", tmp_path / "copy") if command == "mirror" else (tmp_path / "dir",)
    limited = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *KAFKAFS, command, *map(str, words)]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    owned = opened(words[-1], Opening())
    assert all(read(owned, "t", number) == [b"before"] for number in range(PARTITIONS))
    close_clean(owned)


def test_a_log_opens_its_files_when_it_grows(tmp_path):
    many(tmp_path / "dir", 2)
    owned = opened(tmp_path / "dir", Opening())
    log, other = owned.log(TP), owned.log(SECOND)
    for look in (log.snapshot, log.flush, lambda: log.increment_log_start_offset(0), log.rest, log.active_producers):
        look()
        assert not has_files_open(log)
    append(log, [b"more"])
    assert has_files_open(log)
    assert not has_files_open(other)
    other.roll()
    assert has_files_open(other)
    close_clean(owned)
    assert not has_files_open(log)
    assert not has_files_open(other)


def test_the_log_that_has_its_files_open_for_longest_makes_room(tmp_path, monkeypatch):
    """It is flushed first. One that is written to meanwhile keeps its files, and makes room later."""
    opened(tmp_path / "dir").close()
    disk = FaultyDisk(tmp_path / "dir")
    owned = opened(tmp_path / "dir", disk=disk)
    owned.create_topic("t", 20)
    logs = [owned.log(TopicPartition("t", number)) for number in range(20)]

    def open_now():
        return [log.tp.partition for log in logs if has_files_open(log)]

    def busy(what, place):
        if what.startswith("sync") and place.parent.name == "t-1":
            disk.fail = lambda _what, _place: None
            append(logs[1], [b"meanwhile"])

    monkeypatch.setattr(descriptors, "half_the_limit", lambda: 48)  # 16 logs
    for log in logs[:16]:
        append(log, [b"x"])
    assert open_now() == list(range(16))
    append(logs[3], [b"x"])
    append(logs[16], [b"x"])
    assert (logs[0].recovery_point, logs[3].recovery_point) == (1, 0)
    assert open_now() == list(range(1, 17))
    disk.fail = busy
    append(logs[17], [b"x"])
    assert open_now() == list(range(1, 18))
    append(logs[18], [b"x"])
    assert open_now() == [1, *range(4, 19)]
    for log in [logs[19], logs[0], *logs[2:14]]:
        append(log, [b"y"])
    assert len(open_now()) == 16
    assert 1 not in open_now()
    assert read(owned, "t", 1) == [b"x", b"meanwhile"]
    close_clean(owned)


def test_a_failed_flush_makes_room_and_takes_the_log_offline(tmp_path):
    """The system reports a failed writeback once: the log that made room must not say that all is on disk."""
    opened(tmp_path / "dir").close()
    disk = FaultyDisk(tmp_path / "dir")
    owned = opened(tmp_path / "dir", disk=disk)
    owned.create_topic("t", 2)
    log, other = owned.log(TP), owned.log(SECOND)
    for each in (log, other):
        append(each, [b"acknowledged"])
    disk.fail = lambda what, place: errno.EIO if place.parent.name == "t-0" and what.endswith(".log") else None
    rest(log, other)
    disk.fail = lambda _what, _place: None
    assert (log.recovery_point, other.recovery_point) == (0, 1)
    for use in (log.flush, log.roll, lambda: append(log, [b"x"])):
        with pytest.raises(PartitionOffline):
            use()
    assert list(owned.failures()) == [TP]
    closing = owned.close()
    assert list(closing.errors) == [TP]
    assert not closing.clean
    owned = opened(tmp_path / "dir")
    assert read(owned, "t") == [b"acknowledged"]
    close_clean(owned)


@pytest.mark.parametrize("kind", [names.FileKind.LOG, names.FileKind.OFFSET_INDEX, names.FileKind.TIME_INDEX])
@pytest.mark.parametrize("change", ["another inode", "another size", "another time", "gone"])
def test_a_log_whose_file_was_changed_at_rest_goes_offline(tmp_path, kind, change):
    owned = opened(tmp_path / "dir")
    owned.create_topic("t", 1)
    log = owned.log(TP)
    append(log, [b"mine"])
    rest(log)
    path = tmp_path / "dir" / "t-0" / names.segment_file(0, kind)
    data, status = path.read_bytes(), path.stat()
    if change == "another inode":
        path.rename(tmp_path / "moved")
        path.write_bytes(data)
    elif change == "another size":
        path.write_bytes(data + b"theirs")
    elif change == "gone":
        path.unlink()
    os.utime(path if path.exists() else path.parent, ns=(0, 0 if change == "another time" else status.st_mtime_ns))
    expected = "No such file" if change == "gone" else "no longer the file that was written to"
    with pytest.raises(OSError, match=expected) as caught:
        append(log, [b"more"])
    assert (caught.value.errno, caught.value.filename) == (
        errno.ENOENT if change == "gone" else errno.ESTALE,
        str(path),
    )
    with pytest.raises(PartitionOffline):
        append(log, [b"more"])
    assert change == "gone" or path.read_bytes().startswith(data)
    assert list(owned.close().errors) == [TP]
    assert not has_files_open(log)
    close_clean(opened(tmp_path / "dir"))


def test_an_append_without_descriptors_changes_nothing(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    log = owned.log(TP)
    append(log, [b"before"])
    rest(log)
    with soft_limit(3), pytest.raises(OSError, match="Too many open files"):
        append(log, [b"x"])
    assert not has_files_open(log)
    append(log, [b"after"])
    assert read(owned, "t") == [b"before", b"after"]
    close_clean(owned)


def test_logs_go_on_after_a_rest(tmp_path):
    """Whatever is done next: append, roll, retain, restart, close."""
    owned = opened(tmp_path)
    owned.create_topic("t", 2)
    log, other = owned.log(TP), owned.log(SECOND)
    for turn in range(3):
        append(log, [b"%d" % turn, b"x"])
        rest(log)
        log.roll()
        rest(log)
    append(log, [b"after"])
    rest(log)
    for path in log.remove_segments(log.snapshot().segments[:1]):
        path.unlink()
    left = [b"1", b"x", b"2", b"x", b"after"]
    assert read(owned, "t") == left
    for step in (lambda: other.restart_at(7), lambda: append(other, [b"seven"])):
        rest(other)
        step()
    rest(log, other)
    close_clean(owned)
    rest(log)
    owned = opened(tmp_path)
    assert read(owned, "t") == left
    assert owned.log(SECOND).log_end_offset == 8
    close_clean(owned)
