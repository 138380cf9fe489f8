"""Retention and compaction beside writes that have begun and are not through: in the end each share came once."""

import errno

import pytest

from storage.append.appender import Appender
from storage.compaction import partition_compaction
from storage.files import commit_ledger, names
from storage.files.commit_ledger import Ledger, PendingCommit, PendingPart, StagedBatchFile, WriteId
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.staged_writes import commit, ledger
from storage.staged_writes.commit import CommitUnfinished
from storage.staged_writes.pending_writes import Share, pending_writes
from storage.types import TopicPartition
from storage.upkeep import partition_retention
from storage.upkeep.retention import HIGH_WATERMARK
from tests.storage.staged_writes.test_commit import close_sound, lose, stage
from tests.support.crash_points import Sessions
from tests.support.faults import Crash, FaultyDisk
from tests.support.owned_dirs import NOW_MS, StandingClock, opened, read, values_of

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
WRITE = WriteId("0a8e7a3b-9d1b-4f0e-8c3d-2b1a0f9e8d7c", 0)
SHARE = [b"share %04d" % n for n in range(30)]
LATER_MS = 60_000
LIMITS = {
    "retention": {"retention_ms": "1000"},
    "compaction": {"cleanup_policy": "compact"},
    "deletion": {"retention_ms": "-1"},
}


class World:
    """Two partitions of a topic; the first has older messages, and newer ones, all with one key."""

    def __init__(self, path, **config):
        self.path = path
        overrides = {"segment.bytes": "600", **{key.replace("_", "."): value for key, value in config.items()}}
        owned = opened(path)
        owned.create_topic("t", 2, overrides)
        self.put(owned, 10)
        close_sound(owned)
        self.disk = FaultyDisk(path)
        self.sessions = Sessions(path, self.disk)
        self.owned = self.sessions.open()
        self.files = stage(path, WRITE, {FIRST: SHARE, SECOND: SHARE}, self.disk, key=b"k", batches=3)
        self.base = self.owned.log(FIRST).log_end_offset

    def put(self, owned, count):
        for n in range(count):
            record = Record(b"k", b"single %04d " % n + b"x" * 100)
            assert Appender(owned.log(FIRST), clock=StandingClock()).append([record]).error is None

    def stop_between_shares(self, do=lambda: None):
        """Commits the write; when the first partition has its share, others append there, `do` is done, and then the
        process ends."""

        def stop(_place):
            self.put(self.owned, 10)
            self.owned.log(FIRST).roll()
            do()
            self.disk.stopped = True
            raise Crash("between the shares")

        self.owned.log(SECOND).append = stop
        with pytest.raises(Crash):
            commit.commit(self.owned, WRITE, self.files)
        self.sessions.end()

    def fail_between_shares(self, failing=lambda _what, _path: False):
        """Commits the write: the second partition's disk is full. `failing`: what else is."""

        def fail(what, path):
            second = what.startswith("write") and path.match("t-1/*.log*")
            return errno.ENOSPC if second or failing(what, path) else None

        self.disk.fail = fail
        with pytest.raises(CommitUnfinished):
            commit.commit(self.owned, WRITE, self.files)
        self.disk.fail = lambda _what, _path: None
        self.put(self.owned, 10)
        self.owned.log(FIRST).roll()

    def check_finished(self, end_offset):
        """The next opening finishes the write: nothing comes to the first partition, and the second has its share."""
        owned = opened(self.path)
        assert owned.unfinished == {}
        assert owned.commits.state.pending == ()
        assert owned.log(FIRST).log_end_offset == end_offset
        assert read(owned, "t", 1) == SHARE
        assert not commit.commit(owned, WRITE, stage(self.path, WRITE, {FIRST: SHARE}, key=b"k")).appended
        close_sound(owned)


def retained(owned, *, before=None):
    owned.clock.time_ms = NOW_MS + LATER_MS
    result = partition_retention.retain_partition(owned, FIRST, free_bytes=lambda: 1 << 40, before=before)
    owned.clock.time_ms = NOW_MS
    return without_files(owned, result)


def compacted(owned):
    return without_files(owned, partition_compaction.compact_partition(owned, FIRST))


def without_files(owned, result):
    for path in result.files:
        owned.disk.unlink(path)
    return result


@pytest.mark.parametrize("before", [None, HIGH_WATERMARK, 35], ids=["expired", "all deleted", "deleted into the share"])
def test_retention_between_the_shares(tmp_path, before):
    """All has expired, or was deleted: what lies below the share goes, the share's segments stay until it is known
    that the write is through."""
    world = World(tmp_path / "dir", retention_ms="1000" if before is None else "-1")
    results = []
    world.stop_between_shares(lambda: results.append(retained(world.owned, before=before)))
    (result,) = results
    assert 0 < result.segments[-1].next_offset <= world.base
    left = LogDir.open_read_only(world.path).log(FIRST).snapshot()
    assert left.segments[0].base_offset == result.segments[-1].next_offset
    world.check_finished(result.log_end_offset)
    owned = opened(world.path)
    assert retained(owned, before=before).segments, "afterwards nothing keeps them"
    assert owned.log(FIRST).snapshot().segments[0].base_offset > world.base
    close_sound(owned)


def test_compaction_between_the_shares(tmp_path):
    """Every message of the share has a later one of its key. What lies below it is compacted, it is not."""
    world = World(tmp_path / "dir", cleanup_policy="compact")
    results = []
    world.stop_between_shares(lambda: results.append(compacted(world.owned)))
    (result,) = results
    assert result.counts.records_gone > 0
    assert result.first_uncleanable <= world.base
    end_offset = world.base + len(SHARE) + 10
    shown = values_of(LogDir.open_read_only(world.path).log(FIRST).snapshot())
    assert [value for value in shown if value in SHARE] == SHARE
    world.check_finished(end_offset)
    owned = opened(world.path)
    owned.log(FIRST).roll()
    assert compacted(owned).counts.records_gone >= len(SHARE)
    assert not set(read(owned, "t")) & set(SHARE)
    assert owned.log(FIRST).log_end_offset == end_offset
    close_sound(owned)


@pytest.mark.parametrize("how", LIMITS)
@pytest.mark.parametrize("noted", [True, False])
def test_a_share_that_is_noted_as_written_holds_up_nothing_and_another_stays(tmp_path, how, noted):
    """A write that cannot be finished for long: what it did write is messages like others, once the ledger says so."""
    world = World(tmp_path / "dir", **LIMITS[how])
    begun = []

    def no_note(what, _path):
        if what == f"write {names.COMMITS}.tmp":
            begun.append(what)
        return not noted and what.startswith("write ") and names.COMMITS in what and len(begun) > 1

    world.fail_between_shares(no_note)
    (pending,) = commit_ledger.read(world.path).pending
    assert [(part.tp, part.is_written) for part in pending.parts] == [(FIRST, noted), (SECOND, False)]
    if how == "compaction":
        compacted(world.owned)
    else:
        retained(world.owned, before=HIGH_WATERMARK if how == "deletion" else None)
        first_segment = world.owned.log(FIRST).snapshot().segments[0]
        assert (first_segment.base_offset > world.base) is noted
    # What is deleted is no more read.
    assert (set(SHARE) <= set(read(world.owned, "t"))) is (not noted and how != "deletion")
    end_offset = world.owned.log(FIRST).log_end_offset
    assert world.owned.close().clean
    world.check_finished(end_offset)


@pytest.mark.leaves_damage("writes-corrupt")
def test_a_dry_run_tells_the_same(tmp_path):
    world = World(tmp_path / "dir", retention_ms="1000", cleanup_policy="compact,delete")
    world.stop_between_shares()
    log_dir = LogDir.open_read_only(world.path, clock=StandingClock(NOW_MS + LATER_MS))
    told = partition_retention.preview_partition(log_dir, FIRST, free_bytes=lambda: 1 << 40)
    assert 0 < told.segments[-1].next_offset <= world.base
    assert 0 < partition_compaction.preview_partition(log_dir, FIRST).first_uncleanable <= world.base
    (world.path / names.COMMITS).write_bytes(b"{")  # tells of no write: none can be finished
    told = partition_retention.preview_partition(log_dir, FIRST, free_bytes=lambda: 1 << 40)
    assert told.segments[-1].next_offset > world.base


def test_where_a_share_will_come_nothing_goes_and_without_its_files_it_keeps_nothing(tmp_path):
    world = World(tmp_path / "dir", retention_ms="1000")
    kept = []

    def look(_place):
        world.put(world.owned, 10)
        kept.append(ledger.kept_from(world.owned.commits.state, world.path, FIRST))
        raise Crash("before the shares")

    world.owned.log(FIRST).append = look
    with pytest.raises(Crash):
        commit.commit(world.owned, WRITE, world.files)
    assert world.owned.commits.state.pending
    assert kept == [world.base]
    world.disk.stopped = True
    world.sessions.end()
    (file,) = [file for file in world.files if file.tp == FIRST]
    staged = world.path / FIRST.dir_name / file.name
    staged.rename(tmp_path / "away")
    assert ledger.kept_from(commit_ledger.read(world.path), world.path, FIRST) is None
    (tmp_path / "away").rename(staged)
    world.check_finished(world.base + 10 + len(SHARE))


@pytest.mark.leaves_damage("write-stuck")
def test_an_opening_notes_what_it_found_written(tmp_path):
    """What is left of the write can never be finished: the share that is there is not in the way of retention, nor
    missed when it has gone, nor appended again."""
    world = World(tmp_path / "dir", retention_ms="1000")
    world.stop_between_shares()
    lose(world.path, SECOND)
    owned = opened(world.path)
    assert list(owned.unfinished) == [SECOND]
    retained(owned)
    assert owned.log(FIRST).is_empty
    end_offset = owned.log(FIRST).log_end_offset
    assert owned.close().clean
    lose(world.path, FIRST)
    (pending,) = pending_writes(LogDir.open_read_only(world.path), commit_ledger.read(world.path))
    assert [share for _, share in pending.shares] == [Share.WRITTEN, Share.LOST]
    owned = opened(world.path)
    assert list(owned.unfinished) == [SECOND]
    assert owned.log(FIRST).log_end_offset == end_offset
    assert owned.close().clean


def test_the_ledger_keeps_what_is_done():
    file = StagedBatchFile(FIRST, f"job.0.{'0' * 32}.staged", 9, 7)
    part, other = PendingPart(FIRST, 5, 3, (file,)), PendingPart(SECOND, 5, 0, (file._replace(tp=SECOND),))
    ledger = Ledger(pending=(PendingCommit(WRITE, (part, other)), PendingCommit(WriteId("other", 1), (part,))))
    noted = ledger.written(WRITE, [FIRST])
    assert [[part.is_written for part in commit.parts] for commit in noted.pending] == [[True, False], [False]]
    for content in (noted, ledger):
        assert commit_ledger.parse(commit_ledger.encode(content)) == content
