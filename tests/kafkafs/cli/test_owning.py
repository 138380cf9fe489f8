"""topics create, alter, delete; recover; reindex; mirror: their output and exit codes."""

from __future__ import annotations

import errno
import json
import os
import signal
import time

import pytest

from storage.directory.owned_dir import OwnedDir
from storage.files import commit_ledger, names
from storage.files.commit_ledger import Ledger, PendingCommit, PendingPart, StagedBatchFile, WriteId
from storage.log.log_dir import LogDir
from storage.log.reader import find_batch
from storage.types import TopicPartition
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, process, run
from tests.support.owned_dirs import append, opened, read, tree_of, values_of

TP = TopicPartition("t", 0)


@pytest.fixture
def logdir(tmp_path):
    """A directory with the topic t and ten messages."""
    path = tmp_path / "logs"
    owned = opened(path)
    owned.create_topic("t", 2, {"index.interval.bytes": "50"})
    for n in range(10):
        append(owned.log(TP), [b"value %d" % n])
    owned.close()
    return path


def unclean(logdir, tail=b"torn"):
    """As after a crash."""
    (logdir / names.CLEAN_SHUTDOWN).unlink()
    (logdir / names.RECOVERY_POINT_CHECKPOINT).unlink()
    with (logdir / "t-0" / f"{0:020d}.log").open("ab") as file:
        file.write(tail)


def test_a_topics_life(tmp_path):
    path = tmp_path / "new" / "logs"
    assert output_of("topics", "create", path, "orders", "--partitions", 2, "--config", "segment.bytes=5000") == b""
    assert LogDir.open_read_only(path).topic_info("orders").overrides == {"retention.ms": "-1", "segment.bytes": "5000"}
    output_of("topics", "alter", path, "orders", "--config", "retention.ms=7", "--unset", "segment.bytes")
    output_of("topics", "alter", path, "orders", "--partitions", 3)
    looked = LogDir.open_read_only(path)
    assert looked.partitions("orders") == [0, 1, 2]
    assert looked.topic_info("orders").overrides == {"retention.ms": "7"}
    output_of("topics", "delete", path, "orders")
    assert LogDir.open_read_only(path).topics() == []
    assert (path / names.CLEAN_SHUTDOWN).exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("create", "{}", "t"), 4, "already"),
        (("create", "{}", "a b"), 2, "invalid"),
        (("create", "{}", "u", "--config", "retention.mss=1"), 2, "Did you mean 'retention.ms'"),
        (("create", "{}", "u", "--config", "retention"), 2, "K=V"),
        (("create", "{}", "u", "--partitions", "0"), 2, "--partitions"),
        (("create", "{}", "__consumer_offsets"), 4, "internal to Kafka"),
        (("create", "{}", "__transaction_state", "--partitions", "3"), 4, "internal to Kafka"),
        (("create", "{}", "__cluster_metadata"), 4, "only they create it"),
        (("alter", "{}", "t"), 2, "nothing to alter"),
        (("alter", "{}", "u", "--config", "retention.ms=1"), 4, "no topic 'u'"),
        (("alter", "{}", "t", "--partitions", "1"), 4, "cannot be removed"),
        (("alter", "{}", "t", "--config", "segment.bytes=x"), 2, "segment.bytes"),
        (("delete", "{}", "u"), 4, "no topic 'u'"),
        (("delete", "{}/nowhere", "u"), 4, "No such"),
    ],
)
def test_what_topics_refuses(logdir, arguments, code, says):
    before = tree_of(logdir)
    result = run("topics", *(argument.format(logdir) for argument in arguments))
    assert result.exit_code == code, result.output
    assert says.lower() in result.output.lower()
    assert tree_of(logdir) == before


def test_a_held_directory(logdir, tmp_path):
    other = build_log_dir(tmp_path / "other", {"t": [[b"one"]]}).path
    owned = opened(logdir)
    for command in (
        ("topics", "create", logdir, "u"),
        ("topics", "delete", logdir, "t"),
        ("recover", logdir),
        ("recover", logdir, "--dry-run"),
        ("reindex", logdir, "t"),
        ("mirror", other, logdir),
    ):
        result = run(*command)
        assert result.exit_code == 3, result.output
        assert "in use" in result.output
    owned.close()


def test_the_partitions_of_kafkas_own_topics_stay(logdir):
    """Their number says where a group's offsets are."""
    output_of("groups", logdir, "g", "--reset-to", "latest", "--topic", "t")
    before = tree_of(logdir)
    result = run("topics", "alter", logdir, "__consumer_offsets", "--partitions", 60)
    assert (result.exit_code, "internal to Kafka" in result.stderr) == (4, True)
    assert tree_of(logdir) == before


WAITING = {
    "append": ("append", "LOGDIR", "t/0"),
    "compact": ("compact", "LOGDIR", "t"),
    "groups": ("groups", "LOGDIR", "g", "--reset-to", "latest", "--topic", "t"),
    "mirror": ("mirror", "OTHER", "LOGDIR"),
    "recover": ("recover", "LOGDIR"),
    "reindex": ("reindex", "LOGDIR", "t"),
    "retain": ("retain", "LOGDIR"),
    "salvage": ("salvage", "OTHER", "t", "--to", "LOGDIR"),
    "create": ("topics", "create", "LOGDIR", "u"),
    "alter": ("topics", "alter", "LOGDIR", "t", "--config", "retention.ms=7"),
    "delete": ("topics", "delete", "LOGDIR", "t"),
}


@pytest.mark.parametrize("name", WAITING)
def test_waiting_for_the_lock(logdir, tmp_path, monkeypatch, name):
    """Each command that takes the lock waits for it as long as it is told to, and no longer."""
    places = {"LOGDIR": logdir, "OTHER": tmp_path / "other"}
    build_log_dir(places["OTHER"], {"t": [[b"one"]]})
    words = [places.get(word, word) for word in WAITING[name]]
    owned = opened(logdir)
    for limit in ([], ["--wait", "0"], ["--wait", "0.01"]):
        assert run(*words, *limit).exit_code == 3
    monkeypatch.setattr("storage.files.dir_lock.time.sleep", lambda _seconds: owned.close())
    result = run(*words, "--wait", "600")  # may fail afterwards: t is not compacted, for example
    assert result.exit_code != 3, result.output
    assert "in use" not in result.output


def test_topics_leaves_an_unclean_directory_unclean(logdir):
    unclean(logdir)
    output_of("topics", "alter", logdir, "t", "--config", "retention.ms=7")
    assert not (logdir / names.CLEAN_SHUTDOWN).exists()
    assert (logdir / "t-0" / f"{0:020d}.log").read_bytes().endswith(b"torn")


def test_a_brokers_topics_are_the_brokers(tmp_path):
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(3))])]})
    for command in (("create", tmp_path, "u"), ("delete", tmp_path, "t"), ("alter", tmp_path, "t", "--partitions", 3)):
        result = run("topics", *command)
        assert result.exit_code == 4
        assert "broker" in result.output
    output_of("topics", "alter", tmp_path, "t", "--config", "retention.ms=7")
    assert LogDir.open_read_only(tmp_path).topic_info("t").config.retention_ms == 7


def test_recover(logdir):
    unclean(logdir)
    before = tree_of(logdir)
    told = json.loads(output_of("recover", logdir, "--dry-run", "--json"))
    assert tree_of(logdir) == before
    assert told["dry_run"] is True
    done = json.loads(output_of("recover", logdir, "--json"))
    assert done["clean_shutdown"] is True
    assert told["partitions"] == done["partitions"]
    assert done["partitions"][0]["cut"]["lost_bytes"] == 4
    assert (done["partitions"][0]["log_start_offset"], done["partitions"][0]["log_end_offset"]) == (0, 10)
    assert (logdir / names.CLEAN_SHUTDOWN).exists()
    text = output_of("recover", logdir).decode()
    assert "t/0: 0 to 10, 1 segment(s) checked, nothing to repair" in text


def test_recover_tells_a_person_what_it_did(logdir):
    unclean(logdir, b"x" * 100)
    text = output_of("recover", logdir, "--dry-run").decode()
    assert "cuts 00000000000000000000.log" in text
    assert "100 bytes are removed" in text
    assert output_of("recover", logdir).decode() == text


@pytest.mark.parametrize(
    "command", ["recover LOGDIR", "reindex LOGDIR t", "topics alter LOGDIR t --config retention.ms=7"]
)
def test_a_full_disk(logdir, monkeypatch, command):
    """It says which file, and what to do."""
    unclean(logdir)

    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    result = run(*(logdir if word == "LOGDIR" else word for word in command.split()))
    assert result.exit_code == 4
    assert f"{logdir}/t-0/" in result.stderr
    assert "No space left on device" in result.stderr
    assert "Free some space" in result.stderr


def test_recovering_a_part_does_not_mark_the_directory(logdir):
    told = json.loads(output_of("recover", logdir, "t/1", "--json"))
    assert told["clean_shutdown"] is False
    assert [part["partition"] for part in told["partitions"]] == [1]
    assert not (logdir / names.CLEAN_SHUTDOWN).exists()
    output_of("recover", logdir)
    assert (logdir / names.CLEAN_SHUTDOWN).exists()


@pytest.mark.leaves_damage("writes-corrupt")
def test_recover_gives_up_writes_that_cannot_be_finished(logdir):
    """The staged file of one write is missing; the other write is in the log."""
    stuck, done = (
        PendingCommit(
            WriteId(name, 3),
            0,
            (PendingPart(TP, base, base, crc, (StagedBatchFile(TP, f"{name}.3.{'0' * 32}.staged", 9, 1),)),),
        )
        for name, base, crc in (("stuck", 10, 0), ("done", 9, _crc(logdir, 9)))
    )
    (logdir / names.COMMITS).write_bytes(commit_ledger.encode(Ledger(pending=(stuck, done))))
    before = tree_of(logdir)
    result = run("verify", logdir, "--notes")
    assert result.exit_code == 1
    assert "finding write-stuck" in result.output
    assert "repaired by: kafkafs recover --drop-lost-writes" in result.output
    assert "note write-pending" in result.output
    told = output_of("recover", logdir, "--dry-run").decode()
    line = "write stuck, micro-batch 3: t/0 1 messages lost"
    assert f"{line}: cannot be finished (--drop-lost-writes gives it up)" in told
    assert "write done, micro-batch 3: t/0 1 messages written: to be finished" in told
    assert f"{line}: would be given up" in output_of("recover", logdir, "--dry-run", "--drop-lost-writes").decode()
    assert tree_of(logdir) == before
    (write,) = json.loads(output_of("recover", logdir, "--json"))["writes"]
    share = {"topic": "t", "partition": 0, "state": "lost"}
    assert write == {"write": "stuck", "batch": 3, "shares": [share], "given_up": False}
    assert f"{line}: given up" in output_of("recover", logdir, "--drop-lost-writes").decode()
    assert output_of("verify", logdir) == b"nothing wrong\n"
    assert commit_ledger.read(logdir).queries.keys() == {"done"}
    (logdir / names.COMMITS).write_bytes(b"{")
    for arguments in (("--dry-run",), ()):
        result = run("recover", logdir, *arguments)
        assert result.exit_code == 0
        assert "kafkafs-commits: does not parse" in result.stderr


def _crc(logdir, offset):
    found = find_batch(LogDir.open_read_only(logdir).log(TP).snapshot(), offset)
    assert found is not None
    batch = found.segment.batch_at(found.position, found.segment.size)
    assert batch is not None
    return int(batch.crc[0])


def test_reindex(logdir):
    expected = tree_of(logdir)
    for index in (logdir / "t-0").glob("*index"):
        index.write_bytes(b"\1" * 48)
    text = output_of("reindex", logdir, "t/0").decode()
    assert text.startswith("t/0: 0 to 10, 1 segment(s) checked")
    assert tree_of(logdir) == expected


def test_what_mirror_refuses(logdir, tmp_path):
    assert run("mirror", logdir, logdir).exit_code == 2
    assert run("mirror", logdir, tmp_path / "copy", "nothing").exit_code == 4


def test_mirror_follows_until_it_is_told_to_stop(logdir, tmp_path):
    target = tmp_path / "copy"
    source = opened(logdir)
    with process("mirror", logdir, target, "--follow", "--json") as follower:
        for n in range(3):
            append(source.log(TP), [b"new %d" % n])
            _wait_for(target, 11 + n)
        source.create_topic("later", 1)
        append(source.log(TopicPartition("later", 0)), [b"x"])
        _wait_for(target, 1, TopicPartition("later", 0))
        follower.send_signal(signal.SIGTERM)
        out, err = follower.communicate(timeout=120)
    assert follower.returncode == 0, err
    assert {p["topic"] for p in json.loads(out)["partitions"]} == {"t", "later"}
    source.close()
    copy = OwnedDir.open(target)
    assert read(copy, "t")[-3:] == [b"new 0", b"new 1", b"new 2"]
    assert copy.close().clean


def _wait_for(target, end, tp=TP):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (target / tp.dir_name).is_dir():
            looked = LogDir.open_read_only(target)
            if looked.log(tp).snapshot().log_end_offset == end:
                assert len(values_of(looked.log(tp).snapshot())) == end
                return
        time.sleep(0.02)
    raise AssertionError(f"{tp} did not reach {end}")
