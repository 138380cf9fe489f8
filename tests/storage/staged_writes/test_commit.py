"""Staged batches and their commit: what was staged is in the log, once, each partition's share as a whole."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import (
    CorruptBatch,
    CorruptCheckpoint,
    InvalidRecord,
    PartitionOffline,
    RecordTooLarge,
)
from storage.files import commit_ledger, names
from storage.files import disk as disk_module
from storage.files.commit_ledger import (
    CONTENTS_KEPT,
    ContentSum,
    Ledger,
    PendingCommit,
    PendingPart,
    StagedBatchFile,
    WriteId,
)
from storage.files.dir_lock import DirLock
from storage.format.block import Record, RecordColumns
from storage.format.decoder import Decoder
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.staged_writes import commit, staging
from storage.staged_writes.commit import CommitUnfinished, ReplayDiffers
from storage.staged_writes.pending_writes import Share, give_up, pending_writes
from storage.staged_writes.staging import StagedFileWriter, windows
from storage.types import TimestampType, TopicPartition
from storage.verify.findings import FaultKind, Severity
from storage.verify.verify import verify_log_dir
from tests.support.crash_points import Sessions, Stopped, every_crash
from tests.support.faults import Crash, FaultyDisk
from tests.support.owned_dirs import (
    NOW_MS,
    HastyDisk,
    StandingClock,
    append,
    opened,
    read,
    values_of,
)

# Staged batches and their commit: what was staged is in the log, once, each partition's share as a whole.

# Each is another state that a power loss at the same moment may leave.
POWER_LOSSES = int(os.environ.get("KAFKAFS_POWER_LOSSES", "1"))
QUERY = "0a8e7a3b-9d1b-4f0e-8c3d-2b1a0f9e8d7c"
TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
SMALL = {"segment.bytes": "600", "index.interval.bytes": "100"}
Values = Mapping[TopicPartition, Sequence[bytes]]


def stage(path, write, shares, disk=None, *, key=None, batches=1):
    """What one task of a write does: `batches` batches of its messages in each partition."""
    found = LogDir.open_read_only(path)
    files = []
    for tp, values in shares.items():
        config = found.topic_info(tp.topic).config
        writer = StagedFileWriter(disk or HastyDisk(), path, tp, write, config=config, clock=StandingClock())
        size = -(-len(values) // batches)
        for first in range(0, len(values), size):
            records = [Record(key, value) for value in values[first : first + size]]
            writer.append(RecordColumns.from_records(records))
        staged = writer.finish()
        assert staged is not None
        files.append(staged)
    return files


def messages(what, count):
    return [b"%s %04d" % (what.encode(), n) for n in range(count)]


def staged_files(path):
    return sorted(file.name for file in path.rglob("*" + names.STAGED_SUFFIX))


def close_sound(owned, what=""):
    """Closes in order; then nothing is wrong with any file, but that some may be staged by tasks that died."""
    assert owned.close().clean, str(what)
    findings = [one for one in verify_log_dir(owned.path) if one.kind is not FaultKind.STAGED_ORPHAN]
    assert not findings, f"{what}: {findings}"


@pytest.fixture
def before(tmp_path):
    """A topic with two partitions, a message in one of them."""
    path = tmp_path / "before"
    owned = opened(path)
    owned.create_topic("t", 2, SMALL)
    append(owned.log(OTHER), [b"first"])
    close_sound(owned)
    return path


def test_a_write_is_appended_in_the_order_of_its_tasks(before):
    write = WriteId("job", None)
    files = [
        *stage(before, write, {TP: messages("a", 3), OTHER: messages("b", 2)}),
        *stage(before, write, {TP: messages("c", 2)}),
    ]
    assert values_of(LogDir.open_read_only(before).log(TP).snapshot()) == []
    owned = opened(before)
    outcome = commit.commit(owned, write, files)
    assert outcome == (True, {TP: 5, OTHER: 2})
    assert read(owned, "t") == messages("a", 3) + messages("c", 2)
    assert read(owned, "t", 1) == [b"first", *messages("b", 2)]
    assert owned.log(TP).recovery_point == 5
    close_sound(owned)
    assert staged_files(before) == []
    assert commit_ledger.read(before) == Ledger()


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("version", ["0.9.0", "0.10.2", "3.0"])
def test_formats_and_codecs(tmp_path, codec, version):
    if codec == "zstd" and version != "3.0":
        codec = "producer"
    config = {"compression.type": codec, "message.format.version": version}
    _check_topic(tmp_path, {**config, "segment.bytes": "5000"}, TimestampType.CREATE_TIME)


@pytest.mark.parametrize("version", ["0.10.2", "3.0"])
def test_log_append_time(tmp_path, version):
    config = {"message.timestamp.type": "LogAppendTime", "message.format.version": version, "compression.type": "gzip"}
    _check_topic(tmp_path, config, TimestampType.LOG_APPEND_TIME)


def _check_topic(path, config, timestamps):
    owned = opened(path)
    owned.create_topic("t", 1, config)
    append(owned.log(TP), [b"before"])
    write = WriteId(QUERY, 0)
    values = messages("value", 40)
    files = stage(path, write, {TP: values}, key=b"k", batches=4)
    clock = owned.clock
    assert isinstance(clock, StandingClock)
    clock.time_ms += 1000
    commit.commit(owned, write, files)
    assert read(owned, "t") == [b"before", *values]
    wanted = {TimestampType.CREATE_TIME: NOW_MS, TimestampType.LOG_APPEND_TIME: NOW_MS + 1000}[timestamps]
    if owned.log(TP).config.message_magic == 0:
        wanted = -1
    for block in read_range(owned.log(TP).snapshot(), 1):
        assert set(block.timestamp.tolist()) == {wanted}
        assert {block.key(row) for row in range(len(block))} == {b"k"}
    close_sound(owned)


def test_what_a_topic_does_not_take(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 1, {"cleanup.policy": "compact"})
    owned.create_topic("small", 1, {"max.message.bytes": "200"})
    with pytest.raises(InvalidRecord, match="without a key"):
        stage(tmp_path, WriteId("job", None), {TP: [b"x"]})
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes = 200"):
        stage(tmp_path, WriteId("job", None), {TopicPartition("small", 0): [b"x" * 300]})
    many = stage(tmp_path, WriteId("job", None), {TopicPartition("small", 0): [b"x" * 100] * 5})
    commit.commit(owned, WriteId("job", None), many)
    assert read(owned, "small") == [b"x" * 100] * 5
    with pytest.raises(ValueError, match="cannot name"):
        stage(tmp_path, WriteId("../job", None), {TP: [b"x"]}, key=b"k")
    owned.close()


def test_a_share_above_a_segment_comes_as_several(before):
    """The new segments appear together; logs with messages, without, and without any but above offset 0."""
    owned = opened(before)
    owned.create_topic("late", 1, SMALL, start_offsets={0: 70})
    late = TopicPartition("late", 0)
    write = WriteId(QUERY, 0)
    shares = {tp: messages(str(tp), 60) for tp in (TP, OTHER, late)}
    commit.commit(owned, write, stage(before, write, shares, batches=12))
    assert read(owned, "t") == shares[TP]
    assert read(owned, "t", 1) == [b"first", *shares[OTHER]]
    assert read(owned, "late") == shares[late]
    assert len(owned.log(TP).snapshot().segments) > 2
    assert [segment.size for segment in owned.log(TP).snapshot().segments if segment.size > 600] == []
    assert owned.log(late).snapshot().segments[0].base_offset == 70
    append(owned.log(TP), [b"after"])
    close_sound(owned)
    owned = opened(before)
    assert read(owned, "t") == [*shares[TP], b"after"]
    close_sound(owned)


# Crashes


@dataclass
class Notes:
    """How many of the writes had been committed, and are so for good."""

    committed: int = 0


WRITES = (
    {TP: messages("a", 2), OTHER: messages("b", 2)},
    {TP: messages("c", 4), OTHER: messages("d", 32)},
)


def _write(owned, disk, number):
    """A micro-batch of two tasks."""
    write = WriteId(QUERY, number)
    halves = [
        {tp: values[: len(values) // 2] for tp, values in WRITES[number].items()},
        {tp: values[len(values) // 2 :] for tp, values in WRITES[number].items()},
    ]
    files = [file for half in halves for file in stage(owned.path, write, half, disk, batches=3)]
    commit.commit(owned, write, files)


def _expected(tp, writes):
    return [*([b"first"] if tp == OTHER else []), *(value for number in range(writes) for value in WRITES[number][tp])]


def _seen(path, stopped):
    """What a reader sees who changes nothing."""
    found = LogDir.open_read_only(path)
    return {tp: values_of(found.log(tp).snapshot()) for tp in (TP, OTHER)}


def test_crash_at_every_operation(tmp_path, before):
    def work(sessions, notes):
        for number in range(len(WRITES)):
            owned = sessions.open()
            _write(owned, sessions.disk, number)
            notes.committed += 1
            owned.close()

    stopped = None
    for stopped, notes in every_crash(tmp_path, before, work, Notes, power_losses=POWER_LOSSES):
        for tp, seen in _seen(stopped.path, stopped).items():
            choices = [_expected(tp, writes) for writes in range(notes.committed, len(WRITES) + 1)]
            assert seen in choices, f"{stopped}: {tp} {seen}"
        _finish_and_replay(stopped, notes)
    assert stopped is not None
    assert stopped.stop_at > 100


def _finish_and_replay(stopped, notes):
    """What was begun is carried out at the next opening, and a query that starts again writes nothing twice."""
    owned = opened(stopped.path, Opening(gentle=not stopped.lost_power))
    assert not owned.failures(), f"{stopped}: {owned.failures()}"
    assert not owned.unfinished, str(stopped)
    state = owned.commits.state
    assert state.pending == (), str(stopped)
    done = state.queries[QUERY].batch + 1 if QUERY in state.queries else 0
    assert done >= notes.committed
    for tp in (TP, OTHER):
        assert read(owned, tp.topic, tp.partition) == _expected(tp, done), str(stopped)
    for number in range(max(0, done - 1), len(WRITES)):
        _write(owned, None, number)
    for tp in (TP, OTHER):
        assert read(owned, tp.topic, tp.partition) == _expected(tp, len(WRITES)), str(stopped)
        append(owned.log(tp), [b"after"])
    close_sound(owned, stopped)


def _stop_with_write_pending(path, number=0):
    """Leaves the directory as a kill does behind step 2: the write is pending, nothing appended."""
    disk = FaultyDisk(path)
    sessions = Sessions(path, disk)
    owned = sessions.open()

    def stop(what, _path):
        if what == f"rename {names.COMMITS}.tmp {names.COMMITS}":
            disk.stop_at = len(disk.operations) + 1
        return

    disk.fail = stop
    with pytest.raises(Crash):
        _write(owned, disk, number)
    disk.stopped = True
    sessions.end()
    assert len(commit_ledger.read(path).pending) == 1


def test_recovery_stopped_at_every_operation(tmp_path, before):
    """Carrying out a pending write may itself be interrupted anywhere."""
    owned = opened(before)
    _write(owned, None, 0)
    close_sound(owned)
    _stop_with_write_pending(before, 1)

    def work(sessions, notes):
        owned = sessions.open()
        notes.committed = 2
        owned.close()

    for stopped, notes in every_crash(tmp_path, before, work, lambda: Notes(1), power_losses=POWER_LOSSES):
        for tp, seen in _seen(stopped.path, stopped).items():
            assert seen in [_expected(tp, writes) for writes in range(notes.committed, 3)], f"{stopped}: {tp}"
        _finish_and_replay(stopped, notes)


def test_a_pending_write_moves_behind_what_others_appended(tmp_path, before):
    """A broker (which knows nothing of ours) ran in between. Stopped anywhere, the write is there once."""
    _stop_with_write_pending(before)
    ledger = before / names.COMMITS
    content = ledger.read_bytes()
    ledger.unlink()
    owned = opened(before)
    append(owned.log(TP), [b"broker's"])
    close_sound(owned)
    ledger.write_bytes(content)

    def work(sessions, _notes):
        sessions.open().close()

    for stopped, _ in every_crash(tmp_path, before, work, Notes, power_losses=1):
        owned = opened(stopped.path)
        assert read(owned, "t") == [b"broker's", *WRITES[0][TP]], str(stopped)
        assert read(owned, "t", 1) == _expected(OTHER, 1), str(stopped)
        close_sound(owned, stopped)


# Failures


def _failing(disk, wanted, code=errno.ENOSPC):
    disk.fail = lambda what, path: code if wanted(what, path) else None


@pytest.mark.parametrize("step", ["create", "sync_dir"])
def test_a_write_that_cannot_begin_is_not_said_to_have_begun(before, step):
    """Whatever became of a partition meanwhile: who is told that a write will be finished later does not repeat it."""
    disk = FaultyDisk(before)
    owned = opened(before, disk=disk)
    write = WriteId(QUERY, 0)
    files = stage(before, write, WRITES[0], disk)
    left = 1  # so that the write can be withdrawn

    def fails(what, path):
        nonlocal left
        names_ledger = path.name.startswith("kafkafs-commits") if step == "create" else path == Path()
        if not (what.startswith(step) and names_ledger and left):
            return None
        left -= 1
        owned.log(TP)._health.fail(OSError(errno.EIO, "the disk fails"))
        return errno.EMFILE

    disk.fail = fails
    with pytest.raises(OSError, match="Too many open files"):
        commit.commit(owned, write, files)
    disk.fail = lambda _what, _path: None
    assert left == 0
    assert owned.commits.state == commit_ledger.read(before) == Ledger()
    assert _seen(before, Stopped(before, 0, None, False)) == {TP: [], OTHER: [b"first"]}


def test_a_failing_disk_at_every_operation(tmp_path, before):
    """ENOSPC at any one operation of a commit: each share is seen whole or not at all, and in the end exactly once."""
    number = 0
    while True:
        path = tmp_path / f"world-{number}"
        shutil.copytree(before, path)
        disk = FaultyDisk(path)
        sessions = Sessions(path, disk)
        owned = sessions.open()
        write = WriteId(QUERY, 0)
        files = stage(path, write, WRITES[1], disk, batches=5)
        at = len(disk.operations) + number
        disk.fail = lambda _what, _path, at=at, disk=disk: errno.ENOSPC if len(disk.operations) == at + 1 else None
        failed = None
        try:
            commit.commit(owned, write, files)
        except (CommitUnfinished, PartitionOffline, OSError) as error:
            failed = error
        reached = len(disk.operations) > at
        disk.fail = lambda _what, _path: None
        shares = {TP: WRITES[1][TP], OTHER: [b"first", *WRITES[1][OTHER]]}
        nothing = {TP: [], OTHER: [b"first"]}
        for tp, seen in _seen(path, Stopped(path, at, None, False)).items():
            assert seen in (nothing[tp], shares[tp]), f"{number}: {disk.operations[at:]}"
        if failed is not None and not isinstance(failed, CommitUnfinished):
            assert not commit_ledger.read(path).pending
        disk.stopped = True
        sessions.end()
        owned = opened(path)
        commit.commit(owned, write, stage(path, write, WRITES[1], batches=5))
        assert read(owned, "t") == shares[TP], f"{number}: {failed}"
        assert read(owned, "t", 1) == shares[OTHER], f"{number}: {failed}"
        close_sound(owned)
        shutil.rmtree(path)
        if not reached:
            break
        number += 1
    assert number > 20


def test_a_spoilt_or_missing_staged_file_is_refused(before):
    owned = opened(before)
    write = WriteId("job", None)
    (file,) = stage(before, write, {TP: messages("a", 5)})
    place = before / TP.dir_name / file.name
    whole = place.read_bytes()
    for content in (whole[:-3], whole[:70] + b"x" + whole[71:], b""):
        place.write_bytes(content)
        with pytest.raises(CorruptBatch, match="staged file"):
            commit.commit(owned, write, [file])
    place.unlink()
    with pytest.raises(FileNotFoundError):
        commit.commit(owned, write, [file])
    assert owned.commits.state == Ledger()
    assert read(owned, "t") == []
    close_sound(owned)


@pytest.mark.leaves_damage("write-stuck")
def test_what_stays_pending(before):
    """A partition whose staged file went cannot get its share; the others do, and the directory is usable."""
    _stop_with_write_pending(before)
    for path in (before / "t-1").glob("*" + names.STAGED_SUFFIX):
        path.unlink()
    owned = opened(before)
    assert list(owned.unfinished) == [OTHER]
    assert read(owned, "t") == WRITES[0][TP]
    append(owned.log(OTHER), [b"more"])
    with pytest.raises(CommitUnfinished, match="t/1"):
        _write(owned, None, 1)
    another = WriteId("another", 0)
    assert commit.commit(owned, another, stage(before, another, {TP: [b"x"]})).appended
    assert owned.close().clean


def _lose(path, tp):
    for file in (path / tp.dir_name).glob("*" + names.STAGED_SUFFIX):
        file.unlink()


def _kinds(path):
    return sorted(((one.kind, one.severity) for one in verify_log_dir(path)), key=str)


def _pending(path):
    (write,) = pending_writes(LogDir.open_read_only(path), commit_ledger.read(path))
    return write


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: os.truncate(path, 70), lambda path: os.truncate(path, 0)])
def test_a_share_is_lost_when_a_staged_file_is_gone_or_spoilt(before, spoil):
    _stop_with_write_pending(before)
    spoil(next((before / "t-0").glob("*" + names.STAGED_SUFFIX)))
    assert [share for _, share in _pending(before).shares] == [Share.LOST, Share.WAITING]
    shutil.rmtree(before / "t-0")
    assert [share for _, share in _pending(before).shares] == [Share.NONE, Share.WAITING]
    owned = opened(before)
    assert read(owned, "t", 1) == _expected(OTHER, 1)
    assert owned.commits.state.pending == ()
    owned.close()


@pytest.mark.leaves_damage("write-stuck")
def test_giving_up_stopped_at_every_operation(tmp_path, before):
    """The write is pending or not; when it is not, all that is staged for it goes in time."""
    _stop_with_write_pending(before)
    _lose(before, OTHER)

    def work(sessions, notes):
        owned = sessions.open()
        give_up(owned, _pending(owned.path))
        notes.committed = 1
        owned.close()

    for stopped, notes in every_crash(tmp_path, before, work, Notes, power_losses=POWER_LOSSES):
        pending = commit_ledger.read(stopped.path).pending
        assert not (pending and notes.committed), str(stopped)
        owned = opened(stopped.path)
        assert bool(owned.unfinished) == bool(pending), str(stopped)
        for left in pending_writes(owned.log_dir, owned.commits.state):
            give_up(owned, left)
        _write(owned, None, 0)
        assert read(owned, "t", 1) == _expected(OTHER, 1), str(stopped)
        assert read(owned, "t") == WRITES[0][TP] * 2, str(stopped)
        close_sound(owned, stopped)


def test_what_verify_says_of_writes(before):
    _stop_with_write_pending(before)
    (before / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    zombie = stage(before, WriteId(QUERY, 0), {TP: [b"zombie"]})
    orphan, pending = (FaultKind.STAGED_ORPHAN, Severity.NOTE), (FaultKind.WRITE_PENDING, Severity.NOTE)
    assert _kinds(before) == [orphan, pending]
    _lose(before, OTHER)
    assert _kinds(before) == [orphan, (FaultKind.WRITE_STUCK, Severity.FINDING)]
    (stuck,) = (one for one in verify_log_dir(before) if one.kind is FaultKind.WRITE_STUCK)
    assert stuck.repair == "kafkafs recover --drop-lost-writes"
    owned = opened(before)
    give_up(owned, _pending(before))
    assert _kinds(before) == [orphan]
    assert owned.close().clean
    (found,) = verify_log_dir(before)
    assert (found.path.name, found.severity) == (zombie[0].name, Severity.NOTE)
    (before / names.COMMITS).write_bytes(b"{")
    assert _kinds(before) == [orphan, (FaultKind.WRITES_CORRUPT, Severity.FINDING)]
    (before / names.COMMITS).unlink()
    owned = opened(before)
    _write(owned, None, 0)
    assert owned.close().clean
    (found,) = verify_log_dir(before)
    assert found.recovery == "removes it"
    owned = opened(before)
    owned.log(TP)
    close_sound(owned)
    assert staged_files(before) == []


def test_a_topic_deleted_meanwhile_is_passed_over(before):
    owned = opened(before)
    owned.create_topic("gone", 1)
    gone = TopicPartition("gone", 0)
    write = WriteId(QUERY, 0)
    files = stage(before, write, {gone: [b"x"], TP: [b"y"]})
    close_sound(owned)
    disk = FaultyDisk(before)
    sessions = Sessions(before, disk)
    owned = sessions.open()
    _failing(disk, lambda what, path: what.startswith("write") and path.match("*-0/*.log"), errno.EIO)
    with pytest.raises(CommitUnfinished):
        commit.commit(owned, write, files)
    disk.stopped = True
    sessions.end()
    for path in (before / "gone-0").iterdir():
        path.unlink()
    (before / "gone-0").rmdir()
    owned = opened(before)
    assert read(owned, "t") == [b"y"]
    assert owned.commits.state.pending == ()
    close_sound(owned)


def test_orphans_go(before):
    """Files of another attempt at a batch that was committed, and of writes that died a week ago; no others."""
    owned = opened(before)
    late = stage(before, WriteId(QUERY, 7), {TP: [b"zombie"]})
    ahead = stage(before, WriteId(QUERY, 8), {TP: [b"to come"]})
    job = stage(before, WriteId("job", None), {TP: [b"job"]})
    commit.commit(owned, WriteId(QUERY, 7), stage(before, WriteId(QUERY, 7), {TP: [b"x"]}))
    owned.close()
    directory = before / TP.dir_name
    assert staging.remove_orphans(HastyDisk(), directory, commit_ledger.read(before), NOW_MS) == [late[0].name]
    assert staged_files(before) == sorted([ahead[0].name, job[0].name])
    mtime_ms = (directory / job[0].name).stat().st_mtime_ns // 1_000_000
    week_ms = 7 * 24 * 3600 * 1000
    assert staging.remove_orphans(HastyDisk(), directory, Ledger(), mtime_ms + week_ms - 60_000) == []
    assert len(staging.remove_orphans(HastyDisk(), directory, Ledger(), mtime_ms + week_ms + 60_000)) == 2


@pytest.mark.parametrize("write", [WriteId("job", None), WriteId(QUERY, 5)])
def test_abort_removes_all_of_a_write(before, write):
    """What killed tasks left goes with what was told of; another write's files, and another batch's, do not."""
    files = stage(before, write, WRITES[0])
    stage(before, write, WRITES[1])  # by a task that was killed
    other = stage(before, WriteId("other", write.batch), WRITES[0])
    other += stage(before, WriteId(write.id, 6), WRITES[0])
    commit.abort(HastyDisk(), before, write, files)
    commit.abort(HastyDisk(), before, write, files)
    assert _ignored(before, other)
    commit.abort(HastyDisk(), before, WriteId(write.id, 6))
    assert _ignored(before, other[:2])
    close_sound(opened(before))


@pytest.mark.parametrize("write", [WriteId("job", None), WriteId(QUERY, 0)])
def test_abort_leaves_a_pending_write_alone(before, write):
    """What it consists of stays, whether the directory is held or not; a lost task's file goes."""
    disk = FaultyDisk(before)
    owned = opened(before, disk=disk)
    files = stage(before, write, WRITES[0], disk)
    _failing(disk, lambda what, path: what.startswith("write") and path.match("t-1/*.log"))
    with pytest.raises(CommitUnfinished):
        commit.commit(owned, write, files)
    commit.abort(HastyDisk(), before, write, files)
    assert _ignored(before, files)
    owned.close()
    lost = stage(before, write, {TP: [b"x"]})
    assert not _ignored(before, files)
    commit.abort(HastyDisk(), before, write, lost)
    assert _ignored(before, files)
    owned = opened(before)
    assert read(owned, "t", 1) == _expected(OTHER, 1)
    close_sound(owned)


def test_a_batch_that_comes_again_with_other_rows_is_an_error(before):
    """Its rows are nowhere; those that come as they were are dropped, however far back they lie."""
    owned = OwnedDir.open(before, clock=StandingClock())
    shares = {TP: [b"x"]}

    def again(batch, content, **more):
        write = WriteId(QUERY, batch)
        return commit.commit(owned, write, stage(before, write, shares, key=b"k"), content=content, **more).appended

    for batch in range(5):
        assert again(batch, ContentSum(1, batch))
    assert not again(4, ContentSum(1, 4))
    assert not again(2, ContentSum(1, 2))
    with pytest.raises(ReplayDiffers, match="expected 1 rows, found 2 rows"):
        again(4, ContentSum(2, 4))
    with pytest.raises(ReplayDiffers, match="found 1 rows, other ones"):
        again(3, ContentSum(1, 4))
    assert again(5, ContentSum(1, 5))
    # A batch without rows is one, too.
    assert commit.commit(owned, WriteId(QUERY, 6), (), content=ContentSum()).appended
    with pytest.raises(ReplayDiffers, match="expected 0 rows, found 1 rows"):
        again(6, ContentSum(1, 6))
    assert len(values_of(owned.log(TP).snapshot())) == 6
    for batch in range(7, 7 + CONTENTS_KEPT):
        assert commit.commit(owned, WriteId(QUERY, batch), (), content=ContentSum()).appended
    with pytest.raises(ReplayDiffers, match="no longer known"):
        again(5, ContentSum(1, 5))
    for path in before.rglob("*" + names.STAGED_SUFFIX):
        path.unlink()
    close_sound(owned)


def test_a_batch_that_was_committed_before_contents_were_remembered(before):
    """Its replay is dropped, as it was then; the next one is remembered."""
    (before / names.COMMITS).write_text(json.dumps({"version": 1, "queries": {QUERY: [3, NOW_MS]}, "pending": []}))
    owned = OwnedDir.open(before, clock=StandingClock())
    write = WriteId(QUERY, 3)
    assert not commit.commit(owned, write, stage(before, write, {TP: [b"x"]}), content=ContentSum(1, 1)).appended
    write = WriteId(QUERY, 4)
    assert commit.commit(owned, write, stage(before, write, {TP: [b"x"]}), content=ContentSum(1, 1)).appended
    assert commit_ledger.read(before).content_of(write) == ContentSum(1, 1)
    close_sound(owned)


def test_the_content_of_a_write_that_is_finished_later_is_remembered(before):
    write = WriteId(QUERY, 7)
    (file,) = stage(before, write, {TP: [b"x"]})
    part = PendingPart(TP, 0, 0, 1, (file,))
    begun = Ledger().begun(PendingCommit(write, NOW_MS, (part,), ContentSum(1, 2**64 - 1)))
    (before / names.COMMITS).write_bytes(commit_ledger.encode(begun))
    owned = OwnedDir.open(before, clock=StandingClock())
    assert values_of(owned.log(TP).snapshot()) == [b"x"]
    assert commit_ledger.read(before).content_of(write) == ContentSum(1, 2**64 - 1)
    close_sound(owned)


def test_what_earlier_attempts_staged_goes(before):
    """All of the query up to this batch, whichever its partitions; but nothing pending, nobody else's, and nothing of
    the same attempt."""
    write = WriteId(QUERY, 5)

    def staged(attempt, batch, query=QUERY):
        config = LogDir.open_read_only(before).topic_info("t").config
        of = WriteId(query, batch)
        writer = StagedFileWriter(HastyDisk(), before, TP, of, config=config, clock=StandingClock(), attempt=attempt)
        writer.append(RecordColumns.from_records([Record(b"k", b"v")]))
        file = writer.finish()
        assert file is not None
        return file.name

    gone = [staged("run 1", 5), staged("run 2", 5), staged("run 1", 4), staged("", 5)]
    kept = [staged("run 3", 5), staged("run 1", 6), staged("run 1", 5, "another-query")]
    pending = staged("run 1", 3)
    part = PendingPart(TP, 0, 0, 1, (StagedBatchFile(TP, pending, 10, 1),))
    ledger = Ledger().begun(PendingCommit(WriteId(QUERY, 3), NOW_MS, (part,)))
    (before / names.COMMITS).write_bytes(commit_ledger.encode(ledger))
    lock = DirLock(HastyDisk(), before)
    assert not commit.clear_earlier_attempts(HastyDisk(), before, write, "run 3")
    assert len(staged_files(before)) == 8, "a commit may be about to begin"
    lock.release()
    assert commit.clear_earlier_attempts(HastyDisk(), before, write, "run 3")
    assert staged_files(before) == sorted([*kept, pending])
    assert not set(gone) & set(staged_files(before))
    assert commit.clear_earlier_attempts(HastyDisk(), before, write, "run 3")
    unowned = staging.unowned(before, [TP, OTHER], ledger)
    assert sorted(path.name for path in unowned) == sorted(kept)
    (before / names.COMMITS).unlink()


def test_abort_of_a_micro_batch_while_the_directory_is_held(before):
    """A restarted query may be about to commit it: only what the aborting one's own tasks told of goes."""
    write = WriteId(QUERY, 0)
    files = stage(before, write, WRITES[0])
    again = stage(before, write, WRITES[0])
    owned = opened(before)
    commit.abort(HastyDisk(), before, write, files)
    assert _ignored(before, again)
    assert commit.commit(owned, write, again).appended
    close_sound(owned)


@pytest.mark.leaves_damage("writes-corrupt")
def test_a_ledger_that_does_not_parse_stops_commits_only(before):
    files = stage(before, WriteId(QUERY, 0), {TP: [b"x"]})
    for content in (b"", b"{}", b'{"version": 2}', b'{"version": 1, "queries": [], "pending": 0}'):
        (before / names.COMMITS).write_bytes(content)
        owned = opened(before)
        append(owned.log(TP), [b"mine"])
        with pytest.raises(CorruptCheckpoint, match=names.COMMITS):
            commit.commit(owned, WriteId(QUERY, 0), files)
        with pytest.raises(CorruptCheckpoint):
            commit.abort(HastyDisk(), before, WriteId(QUERY, 0), files)
        assert owned.close().clean
        assert staged_files(before) == [files[0].name]
        assert (before / names.COMMITS).read_bytes() == content


def test_the_ledger_is_bounded():
    ledger = Ledger()
    for number in range(commit_ledger.QUERIES_KEPT + 5):
        ledger = ledger.done(WriteId(f"query-{number}", number), number)
    assert len(ledger.queries) == commit_ledger.QUERIES_KEPT
    assert f"query-{4}" not in ledger.queries
    assert commit_ledger.parse(commit_ledger.encode(ledger)) == ledger
    assert ledger.done(WriteId("job", None), 0) == ledger


def _ignored(path, files):
    return staged_files(path) == sorted(file.name for file in files)


def test_a_sync_that_fails_in_a_whole_append_may_have_lost_what_was_before(tmp_path):
    """A full disk is told to the first who syncs: the next sync of the same file would say that all is well."""
    disk = FaultyDisk(tmp_path)
    sessions = Sessions(tmp_path, disk)
    owned = sessions.open()
    owned.create_topic("t", 1)
    log = owned.log(TopicPartition("t", 0))
    append(log, [b"before"])
    files = stage(tmp_path, WriteId("job", None), {log.tp: [b"share"]}, disk)
    active = names.segment_file(0, names.FileKind.LOG)
    disk.fail = lambda what, _path: errno.ENOSPC if what == f"sync {active}" else None
    with pytest.raises(commit.CommitUnfinished):
        commit.commit(owned, WriteId("job", None), files)
    disk.fail = lambda _what, _path: None
    with pytest.raises(PartitionOffline):
        log.flush()
    assert log.recovery_point == 0
    disk.stopped = True
    sessions.end()
    owned = opened(tmp_path)
    assert read(owned, "t") == [b"before", b"share"]
    close_sound(owned)


def test_what_is_written_goes_to_the_disk_before_the_sync(tmp_path, monkeypatch):
    """So that it waits for less: ranges follow each other from where the file ended, and the rest is left to the
    sync."""
    begun = []

    def begin(fd, start, size, _flags):
        assert os.fstat(fd).st_size >= start.value + size.value
        begun.append((start.value, start.value + size.value))

    monkeypatch.setattr(disk_module, "_WRITEBACK_BYTES", 300)
    monkeypatch.setattr(disk_module, "_sync_file_range", lambda: begin)
    monkeypatch.setattr(staging, "_WINDOW_BYTES", 250)
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    append(owned.log(TP), [b"first"])
    ends = [0, owned.log(TP).snapshot().active_end]
    files = stage(tmp_path, WriteId("job", None), {TP: messages("a", 20)}, batches=10)
    commit.commit(owned, WriteId("job", None), files)
    for end in ends:
        assert begun[0][0] == end
        while begun and begun[0][0] == end:
            end = begun.pop(0)[1]
        assert end > ends[0] + files[0].size_bytes - 300
    assert begun == []
    assert read(owned, "t") == [b"first", *messages("a", 20)]
    close_sound(owned)


# Staged files read back some bytes at a time, wherever a window ends.

# One batch each, the third larger than most windows here.
BATCHES = [[b"a"], [b"b", b"c"], [b"d" * 3000], [b"e"] * 50, [b"f"], [b"g"]]
VALUES = [value for batch in BATCHES for value in batch]


@pytest.fixture
def staged(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 1, {})
    owned.close()
    config = LogDir.open_read_only(tmp_path).topic_info("t").config
    tp = TopicPartition("t", 0)
    writer = StagedFileWriter(HastyDisk(), tmp_path, tp, WriteId("job", None), config=config, clock=StandingClock())
    for batch in BATCHES:
        writer.append(RecordColumns.from_records([Record(None, value) for value in batch]))
    file = writer.finish()
    assert file is not None
    return file


def read_back(path, file):
    values = []
    decoder = Decoder()
    for data, table in windows(path, file):
        row = 0
        while row < table.rows:
            block = decoder.decode(data, table, row, origin=0)
            values += [block.value(number) for number in range(len(block))]
            row = block.next_row
    return values


@pytest.mark.parametrize("rows", [1, 2, 4096])
@pytest.mark.parametrize("size", [1, 69, 100, 257, 1000, 3073, 1 << 20])
def test_windows_of_any_size(tmp_path, staged, size, rows, monkeypatch):
    monkeypatch.setattr(staging, "_WINDOW_BYTES", size)
    monkeypatch.setattr(staging, "_WINDOW_ROWS", rows)
    assert read_back(tmp_path, staged) == VALUES


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_what_is_missing_or_flipped_is_noticed(tmp_path, staged, size, monkeypatch):
    path = staging.path_of(tmp_path, staged)
    whole = path.read_bytes()
    # Of each batch, since what lies before its checksum may be anything.
    (ends,) = [(table.position + table.size).tolist() for _, table in windows(tmp_path, staged)]
    monkeypatch.setattr(staging, "_WINDOW_BYTES", size)
    spoilt = [whole[:kept] for kept in range(0, len(whole), 61)]
    spoilt += [whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:] for end in ends]
    assert len(ends) == len(BATCHES)
    for content in spoilt:
        path.write_bytes(content)
        with pytest.raises(CorruptBatch, match="staged file"):
            read_back(tmp_path, staged)
    path.write_bytes(whole)
    assert read_back(tmp_path, staged) == VALUES
