"""Commands that write: held directories, full disks, mirrors that follow or fail, writes that were stopped. See also
transcripts/owning.txt, backup.txt, retain.txt and compact.txt."""

import errno
import json
import os
import signal

import pytest

from kafkafs.mounting.errnos import errno_of
from kafkafs.tree.tree import Tree
from storage.append.partition_log import PartitionLog
from storage.directory.owned_dir import OwnedDir
from storage.errors import NotPermitted
from storage.files import names
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.storage.staged_writes.test_pending_writes import FIRST, SECOND, SHARE, World
from tests.support.builders import Batch, Partition, build_log_dir, many, metadata_records
from tests.support.commands import output_of, process, run
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.owned_dirs import append, close_clean, opened, read, values_of
from tests.support.waiting import wait_for

TP = TopicPartition("t", 0)


@pytest.fixture
def logdir(tmp_path):
    """A directory with the topic t and ten messages."""
    owned = opened(tmp_path / "logs")
    owned.create_topic("t", 2)
    append(owned.log(TP), [b"value"] * 10)
    owned.close()
    return owned.path


WAITING = [
    "append LOGDIR t/0",
    "compact LOGDIR t",
    "groups LOGDIR g --reset-to latest --topic t",
    "mirror OTHER LOGDIR",
    "recover LOGDIR",
    "recover LOGDIR --dry-run",
    "reindex LOGDIR t",
    "retain LOGDIR",
    "salvage OTHER t --to LOGDIR",
    "topics create LOGDIR u",
    "topics alter LOGDIR t --config retention.ms=7",
    "topics delete LOGDIR t",
]


@pytest.mark.parametrize("command", WAITING)
def test_waiting_for_the_lock(logdir, tmp_path, monkeypatch, command):
    """Each command that needs the lock to be free waits for it as long as it is told to, and no longer."""
    places = {"LOGDIR": logdir, "OTHER": build_log_dir(tmp_path / "other", {"t": [[b"one"]]}).path}
    words = [places.get(word, word) for word in command.split()]
    owned = opened(logdir)
    for limit in ([], ["--wait", "0"], ["--wait", "0.01"]):
        result = run(*words, *limit)
        assert (result.exit_code, "in use" in result.stderr) == (3, True)
    monkeypatch.setattr("storage.files.dir_lock.time.sleep", lambda _seconds: owned.close())
    result = run(*words, "--wait", "600")  # may fail afterwards: t is not compacted, for example
    assert result.exit_code != 3, result.output
    assert "in use" not in result.output


def test_a_directory_that_is_held_is_verified_all_the_same(tmp_path):
    """Its writer may be about to complete the last batch."""
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(5))], tail=b"\0" * 7)]})
    assert run("verify", tmp_path).exit_code == 1
    (tmp_path / names.LOCK).touch()
    lock = DirLock(RealDisk(), tmp_path)
    try:
        assert output_of("verify", tmp_path) == b"nothing wrong; 1 note: 1 log-cut-off\n"
        assert run("recover", tmp_path, "--dry-run").exit_code == 3
    finally:
        lock.release()


@requires_fuse
def test_a_mount_that_holds_the_lock_is_named(tmp_path):
    logs, mnt = build_log_dir(tmp_path / "logs", {"t": [[b"one"]]}, broker=False).path, tmp_path / "mnt"
    with mounted(logs, mnt, write=True), mounted(logs, tmp_path / "reading"):
        for words in (["topics", "delete", logs, "t"], ["recover", logs], ["recover", logs, "--dry-run"]):
            result = run(*words)
            assert result.exit_code == 3
            assert f"kafkafs mount {logs} {mnt} (process " in result.stderr
            assert result.stderr.endswith(f"It is mounted at {mnt}: `kafkafs umount {mnt}` releases it\n")
        (tmp_path / "third").mkdir()
        mount = run_kafkafs("mount", "--write", logs, tmp_path / "third", check=False)
        assert mount.returncode == 3
        said = f"`kafkafs umount {mnt}` releases it. Or mount it read-only, without --write\n"
        assert mount.stderr.decode().endswith(said)


@pytest.mark.parametrize(
    "command", ["recover LOGDIR", "reindex LOGDIR t", "topics alter LOGDIR t --config retention.ms=7"]
)
def test_a_full_disk(logdir, monkeypatch, command):
    """It says which file, and what to do."""
    (logdir / names.CLEAN_SHUTDOWN).unlink()
    (logdir / names.RECOVERY_POINT_CHECKPOINT).unlink()
    with (logdir / "t-0" / f"{0:020d}.log").open("ab") as file:
        file.write(b"torn")

    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    result = run(*(logdir if word == "LOGDIR" else word for word in command.split()))
    assert result.exit_code == 4
    assert f"{logdir}/t-0/" in result.stderr
    assert "No space left on device" in result.stderr
    assert "Free some space" in result.stderr


def test_what_is_appended_to_a_topic_with_replicas_would_be_truncated_by_its_leader(tmp_path):
    """So @append refuses it, as `kafkafs append` does without --force."""
    records = metadata_records("t", 1, replicas=[1, 2, 3])
    owned = opened(build_log_dir(tmp_path / "logs", {"t": [[b"old"]], "__cluster_metadata": [records]}).path)
    tree = Tree(owned.log_dir, owned=owned)
    for path in ("/t/@append", "/t/0/@append", "/t/@append.jsonl"):
        with pytest.raises(NotPermitted, match="3 replicas") as caught:
            tree.lookup(path).open_to_write().write(b'{"value":"new"}\n')
        assert errno_of(caught.value) == errno.EPERM
    assert read(owned, "t") == [b"old"]
    close_clean(owned)


def test_mirror_follows_until_it_is_told_to_stop(logdir, tmp_path):
    target = tmp_path / "copy"
    source = opened(logdir)

    def has(tp, values):
        def copied():
            return (target / tp.dir_name).is_dir() and (
                LogDir.open_read_only(target).log(tp).snapshot().log_end_offset == values
            )

        wait_for(f"{values} messages of {tp}", copied)

    with process("mirror", logdir, target, "--follow", "--json") as follower:
        for n in range(3):
            append(source.log(TP), [b"new %d" % n])
            has(TP, 11 + n)
        later = TopicPartition("later", 0)
        source.create_topic("later", 1)
        append(source.log(later), [b"x"])
        has(later, 1)
        follower.send_signal(signal.SIGTERM)
        out, err = follower.communicate(timeout=120)
    assert follower.returncode == 0, err
    ends = {(row["topic"], row["log_end_offset"]) for row in json.loads(out)["partitions"]}
    assert ends == {("t", 13), ("t", 0), ("later", 1)}
    source.close()
    copy = OwnedDir.open(target)
    assert read(copy, "t")[-3:] == [b"new 0", b"new 1", b"new 2"]
    assert copy.close().clean


def test_a_killed_mirror_leaves_no_manifest(tmp_path):
    source, copy, manifest = opened(tmp_path / "source"), tmp_path / "copy", tmp_path / "m.json"
    source.create_topic("t", 1)
    append(source.log(TP), [b"one"] * 10)
    with process("mirror", source.path, copy, "--follow", "--manifest", manifest) as follower:
        wait_for("the copy's topic", (copy / "t-0").is_dir)
        wait_for("its messages", lambda: LogDir.open_read_only(copy).log(TP).snapshot().log_end_offset == 10)
        follower.kill()
    append(source.log(TP), [b"two"] * 5)
    assert not manifest.exists()
    assert not (copy / names.CLEAN_SHUTDOWN).exists()
    result = run("mirror", source.path, copy, "--manifest", manifest, "--json")
    assert result.exit_code == 0
    assert "was not closed in order; this run continued" in result.stderr
    assert json.loads(result.stdout)["partitions"][0]["added_to_manifest"] == [0, 9]
    assert output_of("verify", copy, "--manifest", manifest) == b"nothing wrong\n"
    assert output_of("count", copy, "t/0") == b"15\n"
    source.close()


def test_no_manifest_of_what_may_not_be_on_the_disk(tmp_path, monkeypatch):
    """The last sync of a partition fails, after everything was copied."""
    source = build_log_dir(tmp_path / "source", {"t": [[b"one"], [b"two"]]}).path
    close = PartitionLog.close

    def failing(log):
        close(log)
        if log.tp.partition == 1:
            raise OSError(errno.EIO, "the disk failed")

    monkeypatch.setattr(PartitionLog, "close", failing)
    result = run("mirror", source, tmp_path / "copy", "--manifest", tmp_path / "m.json", "--json")
    assert result.exit_code == 4
    assert ["disk failed" in str(row["error"]) for row in json.loads(result.stdout)["partitions"]] == [False, True]
    assert "the disk failed" in result.stderr
    assert not (tmp_path / "m.json").exists()


@pytest.mark.parametrize("command", ["retain", "compact"])
def test_a_write_that_was_stopped_is_finished_first(tmp_path, command):
    """Then its messages are like others, and none is there twice."""
    world = World(tmp_path / "dir", retention_ms="1000", cleanup_policy="compact,delete")
    world.stop_between_shares()
    (report,) = json.loads(output_of(command, world.path, "t/0", "--json"))["partitions"]
    assert report["removed_bytes"] > 0
    log_dir = LogDir.open_read_only(world.path)
    assert not set(values_of(log_dir.log(FIRST).snapshot())) & set(SHARE)
    assert values_of(log_dir.log(SECOND).snapshot()) == SHARE
    end_offset = world.base + len(SHARE) + 10
    assert log_dir.log(FIRST).snapshot().log_end_offset == end_offset
    world.check_finished(end_offset)
