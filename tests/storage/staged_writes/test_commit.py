"""Staged batches and their commit: what was staged is in the log, once, wherever the commit was stopped."""

import contextlib
import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import CorruptBatch, CorruptCheckpoint, InvalidRecord, PartitionOffline, RecordTooLarge
from storage.files import commit_ledger, names
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
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.staged_writes import commit, staging
from storage.staged_writes.commit import CommitUnfinished, ReplayDiffers
from storage.staged_writes.pending_writes import Share, give_up, pending_writes
from storage.staged_writes.staging import StagedFileWriter, staged_spans
from storage.types import TopicPartition
from storage.verify.findings import FaultKind
from storage.verify.verify import verify_log_dir
from tests.support.crash_points import Sessions, every_crash, kill_commit
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import NOW_MS, HastyDisk, StandingClock, append, opened, read, values_of

# Each is another state that a power loss at the same moment may leave.
POWER_LOSSES = int(os.environ.get("KAFKAFS_POWER_LOSSES", "1"))
QUERY = "0a8e7a3b-9d1b-4f0e-8c3d-2b1a0f9e8d7c"
JOB = WriteId("job", None)
TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
SMALL = {"segment.bytes": "600", "index.interval.bytes": "100"}


def stage(path, write, shares, disk=None, *, key=None, batches=1, attempt=""):
    """What one task of a write does: `batches` batches of its messages in each partition."""
    log_dir = LogDir.open_read_only(path)
    files = []
    for tp, values in shares.items():
        writer = StagedFileWriter(
            disk or HastyDisk(), path, tp, write,
            config=log_dir.topic_info(tp.topic).config, clock=StandingClock(), attempt=attempt,
        )  # fmt: skip
        size = -(-len(values) // batches)
        for first in range(0, len(values), size):
            records = [Record(key, value) for value in values[first : first + size]]
            writer.append(RecordColumns.from_records(records))
        files.append(writer.finish())
    return files


def messages(what, count):
    return [b"%s %04d" % (what.encode(), n) for n in range(count)]


def staged_paths(path, partition="*"):
    return sorted(path.glob(f"t-{partition}/*{names.STAGED_SUFFIX}"), key=lambda file: file.name)


def has_staged(path, *files):
    return [file.name for file in staged_paths(path)] == sorted(getattr(file, "name", file) for file in files)


def close_sound(owned, what=""):
    """Closes in order; then nothing is wrong with any file, but that some may be staged by tasks that died."""
    assert owned.close().clean, str(what)
    findings = [finding for finding in verify_log_dir(owned.path) if finding.kind is not FaultKind.STAGED_ORPHAN]
    assert not findings, f"{what}: {findings}"


@pytest.fixture
def before(tmp_path):
    path = tmp_path / "before"
    owned = opened(path)
    owned.create_topic("t", 2, SMALL)
    append(owned.log(OTHER), [b"first"])
    close_sound(owned)
    return path


def test_a_write_is_appended_in_the_order_of_its_tasks(before):
    files = [
        *stage(before, JOB, {TP: messages("a", 3), OTHER: messages("b", 2)}),
        *stage(before, JOB, {TP: messages("c", 2)}),
    ]
    assert values_of(LogDir.open_read_only(before).log(TP).snapshot()) == []
    owned = opened(before)
    assert commit.commit(owned, JOB, files) == (True, {TP: 5, OTHER: 2})
    assert read(owned, "t") == messages("a", 3) + messages("c", 2)
    assert read(owned, "t", 1) == [b"first", *messages("b", 2)]
    assert owned.log(TP).recovery_point == 5
    close_sound(owned)
    assert has_staged(before)
    assert commit_ledger.read(before) == Ledger()


@pytest.mark.parametrize(
    ("version", "codec", "kind"),
    [
        *((version, codec, "CreateTime") for version in ("0.9.0", "0.10.2", "3.0") for codec in
          ("uncompressed", "gzip", "snappy", "lz4", "zstd" if version == "3.0" else "producer")),
        *((version, "gzip", "LogAppendTime") for version in ("0.10.2", "3.0")),
    ],
)  # fmt: skip
def test_formats_codecs_and_times(tmp_path, version, codec, kind):
    config = {"compression.type": codec, "message.format.version": version, "message.timestamp.type": kind}
    owned = opened(tmp_path)
    owned.create_topic("t", 1, {**config, "segment.bytes": "5000"})
    append(owned.log(TP), [b"before"])
    files = stage(tmp_path, WriteId(QUERY, 0), {TP: messages("value", 40)}, key=b"k", batches=4)
    owned.clock.time_ms += 1000
    commit.commit(owned, WriteId(QUERY, 0), files)
    assert read(owned, "t") == [b"before", *messages("value", 40)]
    timestamp = -1 if version == "0.9.0" else NOW_MS
    for block in read_range(owned.log(TP).snapshot(), 1):
        assert set(block.timestamp.tolist()) == {timestamp}
        assert {block.key(row) for row in range(len(block))} == {b"k"}
    close_sound(owned)


def test_what_a_topic_does_not_take(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 1, {"cleanup.policy": "compact"})
    owned.create_topic("small", 1, {"max.message.bytes": "200"})
    small = TopicPartition("small", 0)
    with pytest.raises(InvalidRecord, match="without a key"):
        stage(tmp_path, JOB, {TP: [b"x"]})
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes = 200"):
        stage(tmp_path, JOB, {small: [b"x" * 300]})
    with pytest.raises(ValueError, match="cannot name"):
        stage(tmp_path, WriteId("../job", None), {TP: [b"x"]}, key=b"k")
    commit.commit(owned, JOB, stage(tmp_path, JOB, {small: [b"x" * 100] * 5}))
    assert read(owned, "small") == [b"x" * 100] * 5
    owned.close()


def test_a_share_above_a_segment_comes_as_several(before):
    """Logs with messages, without, and without any but above offset 0."""
    owned = opened(before)
    owned.create_topic("late", 1, SMALL, start_offsets={0: 70})
    late = TopicPartition("late", 0)
    shares = {tp: messages(str(tp), 60) for tp in (TP, OTHER, late)}
    commit.commit(owned, JOB, stage(before, JOB, shares, batches=12))
    assert read(owned, "t") == shares[TP]
    assert read(owned, "t", 1) == [b"first", *shares[OTHER]]
    assert read(owned, "late") == shares[late]
    sizes = [segment.size for segment in owned.log(TP).snapshot().segments]
    assert max(sizes) <= 600
    assert len(sizes) > 2
    assert owned.log(late).snapshot().segments[0].base_offset == 70
    append(owned.log(TP), [b"after"])
    close_sound(owned)
    owned = opened(before)
    assert read(owned, "t") == [*shares[TP], b"after"]
    close_sound(owned)


@dataclass
class Notes:
    """How many of the writes had been committed, and are so for good."""

    committed: int = 0


WRITES = (
    {TP: messages("a", 2), OTHER: messages("b", 2)},
    {TP: messages("c", 4), OTHER: messages("d", 32)},
)


def write_batch(owned, disk, number):
    write = WriteId(QUERY, number)
    halves = [
        {tp: values[: len(values) // 2] for tp, values in WRITES[number].items()},
        {tp: values[len(values) // 2 :] for tp, values in WRITES[number].items()},
    ]
    files = [file for half in halves for file in stage(owned.path, write, half, disk, batches=3)]
    commit.commit(owned, write, files)


def expected(tp, writes):
    return [*([b"first"] if tp == OTHER else []), *(value for number in range(writes) for value in WRITES[number][tp])]


def seen(path):
    """What a reader sees who changes nothing."""
    log_dir = LogDir.open_read_only(path)
    return {tp: values_of(log_dir.log(tp).snapshot()) for tp in (TP, OTHER)}


def two_writes(sessions, notes):
    for number in range(len(WRITES)):
        owned = sessions.open()
        write_batch(owned, sessions.disk, number)
        notes.committed += 1
        owned.close()


def finish_the_second(sessions, notes):
    """Carrying out a pending write may itself be interrupted anywhere."""
    owned = sessions.open()
    notes.committed = 2
    owned.close()


@pytest.mark.parametrize(("work", "committed"), [(two_writes, 0), (finish_the_second, 1)])
def test_stopped_at_every_operation(tmp_path, before, work, committed):
    """What was begun is carried out at the next opening, and a query that starts again writes nothing twice."""
    if committed:
        owned = opened(before)
        write_batch(owned, None, 0)
        close_sound(owned)
        stop_with_write_pending(before, 1)
    stopped = None
    for stopped, notes in every_crash(tmp_path, before, work, lambda: Notes(committed), power_losses=POWER_LOSSES):
        for tp, values in seen(stopped.path).items() if not stopped.lost_power else ():
            assert values == expected(tp, len(WRITES))[: len(values)], f"{stopped}: {tp} {values}"
            assert len(values) >= len(expected(tp, notes.committed)), str(stopped)
        owned = opened(stopped.path, Opening(gentle=not stopped.lost_power))
        assert not owned.failures(), f"{stopped}: {owned.failures()}"
        assert not owned.unfinished, str(stopped)
        state = owned.commits.state
        assert state.pending == (), str(stopped)
        done = state.queries[QUERY].batch + 1 if QUERY in state.queries else 0
        assert done >= notes.committed
        for tp in (TP, OTHER):
            assert read(owned, tp.topic, tp.partition) == expected(tp, done), str(stopped)
        for number in range(max(0, done - 1), len(WRITES)):
            write_batch(owned, None, number)
        for tp in (TP, OTHER):
            assert read(owned, tp.topic, tp.partition) == expected(tp, len(WRITES)), str(stopped)
            append(owned.log(tp), [b"after"])
        close_sound(owned, stopped)
    assert stopped.stop_at > (20 if committed else 100)


def stop_with_write_pending(path, number=0, work=write_batch, *, appended=0):
    """Stops a commit that has begun, written to a log as often as `appended` says, and then done one thing more."""
    writes, others = [], []

    def is_moment(what, place):
        if len(writes) == appended:
            others.append(what)
        elif what.startswith("write") and place.match("t-?/*.log"):
            writes.append(what)
        return len(others) == 2

    kill_commit(path, lambda owned, disk: work(owned, disk, number), is_moment)


def test_a_pending_write_moves_behind_what_others_appended(tmp_path, before):
    """A broker (which knows nothing of ours) ran in between. Stopped anywhere, the write is there once."""
    stop_with_write_pending(before)
    ledger = before / names.COMMITS
    content = ledger.read_bytes()
    ledger.unlink()
    owned = opened(before)
    append(owned.log(TP), [b"broker's"])
    close_sound(owned)
    ledger.write_bytes(content)
    for stopped, _ in every_crash(tmp_path, before, lambda sessions, _notes: sessions.open().close(), Notes):
        owned = opened(stopped.path)
        assert read(owned, "t") == [b"broker's", *WRITES[0][TP]], str(stopped)
        assert read(owned, "t", 1) == expected(OTHER, 1), str(stopped)
        close_sound(owned, stopped)


@pytest.mark.parametrize(("version", "appended"), [("3.0", 1), ("3.0", 3), ("0.10.2", 2), ("0.9.0", 2)])
def test_a_share_that_is_half_written_goes_on_behind_what_others_appended(tmp_path, version, appended):
    """Each staged batch of a few messages is appended once, also where its first half, then others' messages, and its
    other half come to the log, and others again."""
    before, write = tmp_path / "before", WriteId(QUERY, 0)
    codec = {"compression.type": "gzip", "message.format.version": version}
    owned = opened(before)
    owned.create_topic("t", 2, {**SMALL, **codec})
    append(owned.log(OTHER), [b"first"])
    close_sound(owned)
    share = messages("mine", 12)

    def work(owned, disk, _number):
        shares = [share[first : first + 3] for first in range(0, len(share), 3)]
        files = [file for part in shares for file in stage(owned.path, write, {OTHER: part}, disk, batches=2)]
        commit.commit(owned, write, files)

    stop_with_write_pending(before, work=work, appended=appended)
    theirs = without_the_ledger(before, b"broker's")
    prefix = seen(before)[OTHER]
    assert theirs == prefix[-1:]
    assert prefix[1:-1] == share[: len(prefix) - 2]
    for stopped, _ in every_crash(tmp_path, before, lambda sessions, _notes: sessions.open().close(), Notes):
        # Where it was stopped, others append once more.
        again = without_the_ledger(stopped.path, b"broker's again")
        owned = opened(stopped.path)
        assert [value for value in read(owned, "t", 1) if value.startswith(b"mine")] == share, str(stopped)
        assert [value for value in read(owned, "t", 1) if value not in share] == [b"first", *theirs, *again]
        assert owned.commits.state.is_done(write)
        close_sound(owned, stopped)


def without_the_ledger(path, value):
    """Others append, who know nothing of our writes: a broker."""
    ledger = path / names.COMMITS
    content = ledger.read_bytes()
    ledger.unlink()
    owned = opened(path)
    append(owned.log(OTHER), [value])
    close_sound(owned)
    ledger.write_bytes(content)
    return [value]


MINE = [messages(f"mine {n}", 3) for n in range(3)]


def overtaken(sessions, notes):
    """A commit while another thread appends to the partition before the second and the third batch."""
    owned = sessions.open()
    log = owned.log(TP)
    files = [file for share in MINE for file in stage(owned.path, WriteId(QUERY, 0), {TP: share}, sessions.disk)]
    appending, others = log.append, [None, b"other 1", None, b"other 2"]

    def after_another(place):
        if others and (other := others.pop(0)) is not None:
            append(log, [other])
        return appending(place)

    log.append = after_another
    commit.commit(owned, WriteId(QUERY, 0), files)
    notes.committed += 1
    owned.close()


def test_others_may_append_during_a_commit(tmp_path, before):
    """The messages stay in order, and each comes once; also when the power is lost after it was noted how many came
    before the others."""
    for stopped, notes in every_crash(tmp_path, before, overtaken, Notes, power_losses=POWER_LOSSES):
        owned = opened(stopped.path)
        shown = read(owned, "t")
        mine = [value for value in shown if value.startswith(b"mine")]
        begun = owned.commits.state.is_done(WriteId(QUERY, 0))
        assert mine == ([value for share in MINE for value in share] if begun else []), str(stopped)
        assert begun or not notes.committed
        if stopped.what is None:
            assert shown == [*MINE[0], b"other 1", *MINE[1], b"other 2", *MINE[2]]
        close_sound(owned, stopped)


@pytest.mark.parametrize("step", ["create", "sync_dir"])
def test_a_write_that_cannot_begin_is_not_said_to_have_begun(before, step):
    """Whatever became of a partition meanwhile: who is told that a write will be finished later does not repeat it."""
    disk = FaultyDisk(before)
    owned = opened(before, disk=disk)
    files = stage(before, WriteId(QUERY, 0), WRITES[0], disk)
    failures = []  # one, so that the write can be withdrawn

    def fails(what, path):
        if what.startswith("write 0"):
            return errno.EIO
        names_ledger = path.name.startswith("kafkafs-commits") if step == "create" else path == Path()
        if not (what.startswith(step) and names_ledger) or failures:
            return None
        failures.append(what)
        with contextlib.suppress(OSError):
            append(owned.log(TP), [b"takes the partition offline"])
        return errno.EMFILE

    disk.fail = fails
    with pytest.raises(OSError, match="Too many open files"):
        commit.commit(owned, WriteId(QUERY, 0), files)
    disk.fail = lambda _what, _path: None
    assert list(owned.failures()) == [TP]
    assert owned.commits.state == commit_ledger.read(before) == Ledger()
    assert seen(before) == {TP: [], OTHER: [b"first"]}


@pytest.mark.parametrize(
    ("place", "nth", "error"),
    [
        (names.COMMITS + ".tmp", 1, OSError),
        ("t-0/*.log", 1, OSError),
        ("t-1/*.log*", 1, CommitUnfinished),
        (names.COMMITS + ".tmp", 2, CommitUnfinished),
    ],
)
def test_a_full_disk_in_a_commit(before, place, nth, error):
    """Nothing was written, or the write is finished later: in the end each share is there once."""
    disk = FaultyDisk(before)
    owned = opened(before, disk=disk)
    write, writes = WriteId(QUERY, 0), []
    files = stage(before, write, WRITES[1], disk, batches=5)

    def fails(what, path):
        if not (what.startswith("write") and path.match(place)):
            return None
        writes.append(what)
        return errno.ENOSPC if len(writes) >= nth else None

    disk.fail = fails
    with pytest.raises(error) as raised:
        commit.commit(owned, write, files)
    disk.fail = lambda _what, _path: None
    assert type(raised.value) is error
    assert bool(commit_ledger.read(before).pending) is (error is CommitUnfinished)
    nothing = {TP: [], OTHER: [b"first"]}
    shares = {tp: nothing[tp] + WRITES[1][tp] for tp in (TP, OTHER)}
    assert error is CommitUnfinished or seen(before) == nothing
    assert owned.close().clean
    owned = opened(before)
    commit.commit(owned, write, stage(before, write, WRITES[1], batches=5))
    assert seen(before) == shares
    close_sound(owned)


def test_a_sync_that_fails_in_a_commit_may_have_lost_what_was_before(tmp_path):
    """A full disk is told to the first who syncs: the next sync of the same file would say that all is well."""
    disk = FaultyDisk(tmp_path)
    sessions = Sessions(tmp_path, disk)
    owned = sessions.open()
    owned.create_topic("t", 1)
    log = owned.log(TP)
    append(log, [b"before"])
    files = stage(tmp_path, JOB, {TP: [b"share"]}, disk)
    disk.fail = lambda what, _path: (
        errno.ENOSPC if what == f"sync {names.segment_file(0, names.FileKind.LOG)}" else None
    )
    with pytest.raises(CommitUnfinished):
        commit.commit(owned, JOB, files)
    disk.fail = lambda _what, _path: None
    with pytest.raises(PartitionOffline):
        log.flush()
    assert log.recovery_point == 0
    disk.stopped = True
    sessions.end()
    owned = opened(tmp_path)
    assert read(owned, "t") == [b"before", b"share"]
    close_sound(owned)


def test_a_spoilt_or_missing_staged_file_is_refused(before):
    owned = opened(before)
    (file,) = stage(before, JOB, {TP: messages("a", 5)})
    place = before / TP.dir_name / file.name
    whole = place.read_bytes()
    for content in (whole[:-3], whole[:70] + b"x" + whole[71:], b""):
        place.write_bytes(content)
        with pytest.raises(CorruptBatch, match="staged file"):
            commit.commit(owned, JOB, [file])
    place.unlink()
    with pytest.raises(FileNotFoundError):
        commit.commit(owned, JOB, [file])
    assert owned.commits.state == Ledger()
    assert read(owned, "t") == []
    close_sound(owned)


def lose(path, tp):
    for file in staged_paths(path, tp.partition):
        file.unlink()


def pending(path):
    (write,) = pending_writes(LogDir.open_read_only(path), commit_ledger.read(path))
    return write


def test_what_stays_pending_until_it_is_given_up(before):
    """A partition whose staged file went cannot get its share; the others do, and the directory is usable."""
    stop_with_write_pending(before)
    lose(before, OTHER)
    owned = opened(before)
    assert list(owned.unfinished) == [OTHER]
    (finding,) = verify_log_dir(before)
    assert (finding.kind, finding.repair) == (FaultKind.WRITE_STUCK, "kafkafs recover --drop-lost-writes")
    assert read(owned, "t") == WRITES[0][TP]
    append(owned.log(OTHER), [b"more"])
    with pytest.raises(CommitUnfinished, match="t/1"):
        write_batch(owned, None, 1)
    another = WriteId("another", 0)
    assert commit.commit(owned, another, stage(before, another, {TP: [b"x"]})).appended
    give_up(owned, pending(before))
    assert commit_ledger.read(before).pending == ()
    write_batch(owned, None, 0)
    assert read(owned, "t") == [*WRITES[0][TP], b"x", *WRITES[0][TP]]
    assert read(owned, "t", 1) == [b"first", b"more", *WRITES[0][OTHER]]
    close_sound(owned)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: os.truncate(path, 70), lambda path: os.truncate(path, 0)])
def test_a_share_is_lost_when_a_staged_file_is_gone_or_spoilt(before, spoil):
    stop_with_write_pending(before)
    spoil(staged_paths(before, 0)[0])
    assert [share for _, share in pending(before).shares] == [Share.LOST, Share.WAITING]
    shutil.rmtree(before / "t-0")
    assert [share for _, share in pending(before).shares] == [Share.NONE, Share.WAITING]
    owned = opened(before)  # what belongs to a partition that was deleted is passed over
    assert read(owned, "t", 1) == expected(OTHER, 1)
    assert owned.commits.state.pending == ()
    owned.close()


@pytest.mark.leaves_damage("writes-corrupt")
def test_a_ledger_that_does_not_parse_stops_commits_only(before):
    files = stage(before, WriteId(QUERY, 0), {TP: [b"x"]})
    old = b'{"version": 1, "queries": {}, "pending": [{"write": "of an older version"}]}'
    for content in (b"", b"{}", b'{"version": 3}', b'{"version": 1, "queries": [], "pending": 0}', old):
        (before / names.COMMITS).write_bytes(content)
        owned = opened(before)
        append(owned.log(TP), [b"mine"])
        with pytest.raises(CorruptCheckpoint, match=names.COMMITS):
            commit.commit(owned, WriteId(QUERY, 0), files)
        with pytest.raises(CorruptCheckpoint):
            commit.abort(HastyDisk(), before, WriteId(QUERY, 0), files)
        assert owned.close().clean
        assert has_staged(before, *files)
        assert (before / names.COMMITS).read_bytes() == content


def test_the_ledger_is_bounded():
    ledger = Ledger()
    for number in range(commit_ledger.QUERIES_KEPT + 5):
        ledger = ledger.done(WriteId(f"query-{number}", number), number)
    assert len(ledger.queries) == commit_ledger.QUERIES_KEPT
    assert "query-4" not in ledger.queries
    assert commit_ledger.parse(commit_ledger.encode(ledger)) == ledger
    assert ledger.done(JOB, 0) == ledger


def test_orphans_go(before):
    """Files of another attempt at a batch that was committed, and of writes that died a week ago; no others."""
    owned = opened(before)
    stage(before, WriteId(QUERY, 7), {TP: [b"zombie"]})
    ahead = stage(before, WriteId(QUERY, 8), {TP: [b"to come"]})
    job = stage(before, JOB, {TP: [b"job"]})
    commit.commit(owned, WriteId(QUERY, 7), stage(before, WriteId(QUERY, 7), {TP: [b"x"]}))
    (finding, *_) = verify_log_dir(before)
    assert (finding.kind, finding.recovery) == (FaultKind.STAGED_ORPHAN, "removes it")
    owned.close()
    directory = before / TP.dir_name
    owned = opened(before)
    owned.log(TP)
    owned.close()
    assert has_staged(before, *ahead, *job)
    week_ms = (directory / job[0].name).stat().st_mtime_ns // 1_000_000 + 7 * 24 * 3600 * 1000
    assert staging.remove_orphans(HastyDisk(), directory, Ledger(), week_ms - 60_000) == []
    assert len(staging.remove_orphans(HastyDisk(), directory, Ledger(), week_ms + 60_000)) == 2


@pytest.mark.parametrize("write", [JOB, WriteId(QUERY, 5)])
def test_abort_removes_all_of_a_write(before, write):
    """What killed tasks left goes with what was told of; another write's files, and another batch's, do not. While the
    directory is held, a restarted query may be about to commit the batch: only what was told of goes."""
    files = stage(before, write, WRITES[0])
    by_others = stage(before, write, WRITES[1])
    other = stage(before, WriteId("other", write.batch), WRITES[0])
    another_batch = stage(before, WriteId(write.id, 6), WRITES[0])
    if write.batch is not None:
        owned = opened(before)
        commit.abort(HastyDisk(), before, write, files)
        assert has_staged(before, *by_others, *other, *another_batch)
        close_sound(owned)
    for _ in range(2):
        commit.abort(HastyDisk(), before, write, files)
        assert has_staged(before, *other, *another_batch)
    commit.abort(HastyDisk(), before, WriteId(write.id, 6))
    assert has_staged(before, *other)
    close_sound(opened(before))


@pytest.mark.parametrize("write", [JOB, WriteId(QUERY, 0)])
def test_abort_leaves_a_pending_write_alone(before, write):
    """What it consists of stays, whether the directory is held or not; a lost task's file goes."""
    disk = FaultyDisk(before)
    owned = opened(before, disk=disk)
    files = stage(before, write, WRITES[0], disk)
    disk.fail = lambda what, path: errno.ENOSPC if what.startswith("write") and path.match("t-1/*.log") else None
    with pytest.raises(CommitUnfinished):
        commit.commit(owned, write, files)
    commit.abort(HastyDisk(), before, write, files)
    assert has_staged(before, *files)
    owned.close()
    commit.abort(HastyDisk(), before, write, stage(before, write, {TP: [b"x"]}))
    assert has_staged(before, *files)
    owned = opened(before)
    assert read(owned, "t", 1) == expected(OTHER, 1)
    close_sound(owned)


def test_what_earlier_attempts_staged_goes(before):
    """All of the query up to this batch, whichever its partitions; but nothing pending, nobody else's, and nothing of
    the same attempt."""

    def staged(attempt, batch, query=QUERY):
        (file,) = stage(before, WriteId(query, batch), {TP: [b"v"]}, key=b"k", attempt=attempt)
        return file.name

    for attempt, batch in (("run 1", 5), ("run 2", 5), ("run 1", 4), ("", 5)):
        staged(attempt, batch)
    kept = [staged("run 3", 5), staged("run 1", 6), staged("run 1", 5, "another-query")]
    begun = staged("run 1", 3)
    part = PendingPart(TP, 0, 0, (StagedBatchFile(TP, begun, 10, 1),))
    ledger = Ledger().begun(PendingCommit(WriteId(QUERY, 3), (part,)))
    (before / names.COMMITS).write_bytes(commit_ledger.encode(ledger))
    lock = DirLock(HastyDisk(), before)
    assert not commit.clear_earlier_attempts(HastyDisk(), before, WriteId(QUERY, 5), "run 3")
    assert len(staged_paths(before)) == 8, "a commit may be about to begin"
    lock.release()
    for _ in range(2):
        assert commit.clear_earlier_attempts(HastyDisk(), before, WriteId(QUERY, 5), "run 3")
        assert has_staged(before, *kept, begun)
    unowned = staging.unowned(before, [TP, OTHER], ledger)
    assert sorted(path.name for path in unowned) == sorted(kept)
    (before / names.COMMITS).unlink()


def test_a_batch_that_comes_again_with_other_rows_is_an_error(before):
    """Its rows are nowhere; those that come as they were are dropped, however far back they lie."""
    owned = OwnedDir.open(before, clock=StandingClock())

    def again(batch, content):
        write = WriteId(QUERY, batch)
        return commit.commit(owned, write, stage(before, write, {TP: [b"x"]}, key=b"k"), content=content).appended

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
    lose(before, TP)
    close_sound(owned)


def test_contents_are_remembered_from_when_they_were_first_told(before):
    """A replay of a batch from before is dropped, as it was then; of a write that is finished later they are known."""
    (before / names.COMMITS).write_text(json.dumps({"version": 1, "queries": {QUERY: [3, NOW_MS]}, "pending": []}))
    owned = OwnedDir.open(before, clock=StandingClock())
    for batch, is_new in ((3, False), (4, True)):
        files = stage(before, WriteId(QUERY, batch), {TP: [b"x"]})
        assert commit.commit(owned, WriteId(QUERY, batch), files, content=ContentSum(1, 1)).appended is is_new
    assert commit_ledger.read(before).content_of(WriteId(QUERY, 4)) == ContentSum(1, 1)
    close_sound(owned)
    write = WriteId(QUERY, 7)
    (file,) = stage(before, write, {TP: [b"y"]})
    begun = Ledger().begun(PendingCommit(write, (PendingPart(TP, 1, 0, (file,)),), ContentSum(1, 2**64 - 1)))
    (before / names.COMMITS).write_bytes(commit_ledger.encode(begun))
    owned = OwnedDir.open(before, clock=StandingClock())
    assert values_of(owned.log(TP).snapshot()) == [b"x", b"y"]
    assert commit_ledger.read(before).content_of(write) == ContentSum(1, 2**64 - 1)
    close_sound(owned)


# One batch each.
BATCHES = [[b"a"], [b"b", b"c"], [b"d" * 3000], [b"e"] * 50, [b"f"], [b"g"]]


def test_a_staged_file_that_is_cut_or_changed_anywhere_is_refused(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 1, {})
    config = owned.topic_info("t").config
    owned.close()
    writer = StagedFileWriter(HastyDisk(), tmp_path, TP, JOB, config=config, clock=StandingClock())
    for batch in BATCHES:
        writer.append(RecordColumns.from_records([Record(None, value) for value in batch]))
    file = writer.finish()
    path = staging.path_of(tmp_path, file)
    whole = path.read_bytes()
    # Of each batch, since what lies before its checksum may be anything.
    ends = [end for span in staged_spans(tmp_path, file) for end in span.table.end.tolist()]
    assert len(ends) == len(BATCHES)
    spoilt = [whole[:kept] for kept in range(0, len(whole), 61)]
    spoilt += [whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:] for end in ends]
    for content in spoilt:
        path.write_bytes(content)
        with pytest.raises(CorruptBatch, match="staged file"):
            list(staged_spans(tmp_path, file))
