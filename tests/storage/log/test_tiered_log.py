"""Logs whose beginning is in tiered storage: which segments make them up, and what brokers' consumers saw."""

import json
import random
import shutil
import struct
from bisect import bisect_right
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.directory.owned_dir import OwnedDir
from storage.errors import OffsetOutOfRange, SegmentGone, TierUnavailable
from storage.files import checkpoints, leader_epochs, names
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.files.partition_metadata import id_bytes
from storage.format.block import Record
from storage.log import tiered_log
from storage.log.lineage import kept_end
from storage.log.log_dir import LogDir
from storage.log.offset_lookup import offset_for_timestamp
from storage.log.reader import find_batch, read_range
from storage.log.remote_lineage import Candidate, Slice, behind_deleted, counted_slices, cover, lineage_of, slices_of
from storage.log.remote_metadata import RemoteMetadata, RemoteState, ascending_epochs, metadata_partition
from storage.log.scanning import scan_batches
from storage.log.tiering import remote_offsets
from storage.tier.object_places import DirectoryPlace
from storage.types import Isolation, OffsetRange, TopicPartition
from storage.upkeep.kept_segments import TIERED
from storage.upkeep.partition_retention import preview_partition, retain_partition
from storage.upkeep.retention import brokers_retention
from tests.support.builders import ROLL, Batch, build_log_dir, topic_id
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.owned_dirs import StandingClock
from tests.support.readers import open_log, read_all, read_past_damage
from tests.support.tiers import ISOLATIONS, LAYOUTS, TIERS, copied, golden_of, opened, partitions

# Logs whose older segments are in a tier, as one: against what a broker's consumers saw.

GONE, LZ, TWO, KEEP = (TopicPartition(topic, 0) for topic in ("gone", "lz", "two", "keep"))


def golden_json(name):
    return json.loads((TIERS / "golden" / name).read_text())


@pytest.fixture
def now(monkeypatch):
    """The time of tiered logs that are opened: what a test sets."""
    time = [0.0]

    class Timed(tiered_log.TieredLog):
        def __init__(self, here, remote):
            super().__init__(here, remote, lambda: time[0])

    monkeypatch.setattr(tiered_log, "TieredLog", Timed)
    return time


@requires_fixtures
@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_record_once_from_every_layout(layout, metadata, tmp_path):
    directory = TIERS / "log" if metadata else copied(TIERS / "log", tmp_path / "log", metadata=False)
    log_dir = opened(directory, TIERS / layout)
    rng, ends = random.Random(layout), golden_json("offsets.json")
    for tp in partitions():
        snapshot = log_dir.log(tp).snapshot()
        assert snapshot.remote_offsets is None
        starts = snapshot.log_start_offset, snapshot.local_log_start_offset, snapshot.log_end_offset
        assert starts == tuple(ends[tp.dir_name][name] for name in ("earliest", "earliest-local", "latest")), tp
        for isolation in ISOLATIONS:
            golden = golden_of(tp, isolation)
            assert read_all(snapshot, isolation=Isolation(isolation)) == golden, (tp, isolation)
            start = rng.randint(snapshot.log_start_offset, snapshot.log_end_offset)
            end = rng.randint(start, snapshot.log_end_offset)
            expected = [record for record in golden if start <= record.offset < end]
            assert read_all(snapshot, start, end, Isolation(isolation), window=4096) == expected, (tp, start, end)


@requires_fixtures
def test_offsets_by_time_are_those_of_the_broker():
    log_dir = opened(TIERS / "log", TIERS / "tier-aiven")
    checked = 0
    for name, answers in golden_json("list-offsets.json").items():
        topic, _, number = name.rpartition("-")
        snapshot = log_dir.log(TopicPartition(topic, int(number))).snapshot()
        for asked, offset, timestamp in answers["for_timestamp"] if topic != "txn" else ():
            found = offset_for_timestamp(snapshot, asked)
            answer = (-1, -1) if found is None else (found.offset, found.timestamp)
            assert answer == (offset, timestamp), (name, asked)
            checked += 1
    assert checked > 50


@requires_fixtures
@pytest.mark.parametrize("metadata", [True, False])
def test_accidents(metadata, tmp_path):
    directory = copied(TIERS / "lost" / "log", tmp_path / "log", metadata=metadata)
    log_dir = opened(directory, TIERS / "lost" / "tier-local")
    for tp in set(partitions()) & set(log_dir.all_partitions()):
        snapshot = log_dir.log(tp).snapshot()
        for isolation in ISOLATIONS:
            records, errors = read_past_damage(snapshot, Isolation(isolation))
            golden = golden_of(tp, isolation)
            if tp == LZ:
                golden = [record for record in golden if not 781 <= record.offset <= 1538]
                assert [type(error) for error in errors] == [TierUnavailable]
                assert ": messages 781 to 1538 are in tiered storage and cannot" in str(errors[0])
            else:
                assert errors == []
                golden = [record for record in golden if record.offset >= snapshot.log_start_offset]
            assert records == golden, (tp, isolation)
    if not metadata:  # a lost lineage is that of the last upload
        (directory / TWO.dir_name / names.LEADER_EPOCH_CHECKPOINT).unlink()
        snapshot = opened(directory, TIERS / "lost" / "tier-local").log(TWO).snapshot()
        assert read_all(snapshot) == golden_of(TWO)


@requires_fixtures
def test_a_tier_that_is_away_is_an_error_for_its_part_and_is_tried_again(now, tmp_path):
    """After five seconds, and not before."""
    away = tmp_path / "tier"
    log = opened(TIERS / "log", away).log(LZ)
    records, errors = read_past_damage(log.snapshot())
    assert records == golden_of(LZ)[-570:]
    assert [type(error) for error in errors] == [TierUnavailable]
    assert str(away) in str(errors[0])
    assert "messages 0 to 2403 are" in str(errors[0])
    shutil.copytree(TIERS / "tier-local", away)
    now[0] = 4.9
    assert [type(error) for error in read_past_damage(log.snapshot())[1]] == [TierUnavailable]
    now[0] = 5.0
    assert read_all(log.snapshot()) == golden_of(LZ)


@requires_fixtures
def test_manifests_are_read_side_by_side(monkeypatch, tmp_path):
    """Without the broker's metadata each is needed: all are asked for before the first is there."""
    directory = copied(TIERS / "log", tmp_path / "log", metadata=False)
    there, read = Barrier(7), DirectoryPlace.read

    def waiting(place, key, position, size):
        if key.endswith(".rsm-manifest"):
            there.wait(30)
        return read(place, key, position, size)

    monkeypatch.setattr(DirectoryPlace, "read", waiting)
    snapshot = opened(directory, TIERS / "tier-aiven").log(GONE).snapshot()
    assert [segment.base_offset for segment in snapshot.segments[:-1]] == [0, 233, 482, 719, 967, 1006, 1243]
    assert not there.broken


@requires_fixtures
@pytest.mark.parametrize("layout", ["tier-local", "tier-aiven-enc"])
def test_the_last_messages_need_the_last_segment_alone(layout, monkeypatch):
    asked, read = [], DirectoryPlace.read

    def noted(place, key, position, size):
        asked.append(Path(key).name[:20])
        return read(place, key, position, size)

    monkeypatch.setattr(DirectoryPlace, "read", noted)
    snapshot = opened(TIERS / "log", TIERS / layout).log(GONE).snapshot()
    blocks = read_range(snapshot, snapshot.log_end_offset - 10)
    assert [offset for block in blocks for offset in block.offset.tolist()] == list(range(1250, 1260))
    assert set(asked) == {f"{1243:020}"}


@requires_fixtures
def test_a_truncated_object_is_an_error_where_it_ends(tmp_path):
    tier = copied(TIERS / "tier-local", tmp_path / "tier")
    log = next(tier.glob("lz-*/*0781-*.log"))
    log.write_bytes(log.read_bytes()[:40_000])
    found, errors = read_past_damage(opened(TIERS / "log", tier).log(LZ).snapshot(), window=4096)
    assert [type(error) for error in errors] == [TierUnavailable]
    kept = {record.offset for record in found}
    assert found == [record for record in golden_of(LZ) if record.offset in kept]
    assert {*range(900), *range(1539, 2974)} <= kept
    assert errors[0].offset == min(set(range(2974)) - kept)


@requires_fixtures
def test_overlapping_segments_are_cut_where_batches_begin(tmp_path):
    directory = copied(TIERS / "lost" / "log", tmp_path / "log", metadata=False)
    tier = copied(TIERS / "lost" / "tier-local", tmp_path / "tier")
    for path in tier.glob(f"gone-0-*/{233:020d}-*"):
        path.unlink()
    snapshot = opened(directory, tier).log(GONE).snapshot()
    # The one from 367 to 612 is read whole, and the one from 482 to 718 from there on.
    assert [segment.base_offset for segment in snapshot.segments[:4]] == [0, 233, 367, 613]
    records, errors = read_past_damage(snapshot)
    assert [str(error).partition(": ")[2][:22] for error in errors] == ["messages 233 to 366 ar"]
    golden = golden_of(GONE)
    assert records == golden[:233] + golden[367:]
    for start in (613, 650, 700):
        assert read_all(snapshot, start, 720) == golden[start:720]
        assert find_batch(snapshot, start).position < snapshot.segments[3].size


@requires_fixtures
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_followers_segments_begin_elsewhere_than_those_in_the_tier(layout, tmp_path):
    directory = copied(TIERS / "log", tmp_path / "log")
    whole = opened(TIERS / "log", TIERS / "tier-local").log(GONE).snapshot()
    part = directory / GONE.dir_name
    for base, end in ((367, 613), (613, 1260)):
        data = b""
        for segment in whole.segments:
            for window in scan_batches(whole, segment, 0):
                rows = (window.table.base_offset >= base) & (window.table.base_offset < end)
                starts, ends = window.table.position[rows] - window.origin, window.table.end[rows] - window.origin
                data += b"".join(bytes(window.buffer[a:b]) for a, b in zip(starts, ends, strict=True))
        (part / f"{base:020d}.log").write_bytes(data)
    log = opened(directory, TIERS / layout).log(GONE)
    before, golden = log.snapshot(), golden_of(GONE)
    assert (before.local_log_start_offset, [one.base_offset for one in before.remote]) == (367, [0, 233])
    assert read_all(before) == golden
    (part / f"{367:020d}.log").unlink()
    with pytest.raises(SegmentGone):
        read_all(before)
    after = log.snapshot()
    assert (log.snapshot() is after, after.generation) == (True, before.generation)
    assert after.segments[-2:] == before.segments[-2:]
    assert after.local_log_start_offset == 613
    assert read_all(after) == golden
    assert read_all(after, 400, 700) == golden[400:700]
    for start in (370, 481, 482, 500, 612):
        assert find_batch(after, start).segment.is_remote


class Elections:
    """Two logs whose first segments are the same; the leader of the other segments of `lost` lost an unclean election,
    after `directory` had them, and that of `won` won it. Of `lost`, two of three segments were uploaded."""

    tp = TopicPartition("t", 0)
    lineage = "0\n2\n0 0\n1 10\n"
    no_lineage = "0\n0\n"

    def __init__(self, room):
        self.directory, self._winner, self._room = room / "log", room / "winner", room
        self.part = self.directory / "t-0"
        self._tier = room / "tier" / f"t-0-{topic_id('t')}"
        self._tier.mkdir(parents=True)
        self.lost, self.won = self._built(self.directory, b"lost", 0), self._built(self._winner, b"won!", 1)
        self._upload(self.directory, 0, "a", "0\n1\n0 0\n")
        self._upload(self.directory, 10, "b", "0\n1\n0 0\n")
        (self.directory / names.LOG_START_CHECKPOINT).write_text("0\n1\nt 0 0\n")
        self.set_epochs("0\n1\n0 0\n")

    def opened(self):
        return opened(self.directory, self._room / "tier").log(self.tp)

    def retain(self):
        """The broker removes what is in the tier too."""
        for base in (0, 10):
            (self.part / f"{base:020}.log").unlink()

    def truncate(self):
        """The broker begins its log anew where the winner's local log begins."""
        (self.part / f"{20:020}.log").unlink()
        (self.part / f"{20:020}.log").touch()

    def follow(self):
        """The broker takes over what the winner has from its third segment on, after `truncate`."""
        (self.part / f"{20:020}.log").write_bytes((self._winner / "t-0" / f"{20:020}.log").read_bytes())

    def upload(self):
        self._upload(self._winner, 10, "c", self.lineage)

    def set_epochs(self, text):
        (self.part / "new").write_text(text)
        (self.part / "new").rename(self.part / names.LEADER_EPOCH_CHECKPOINT)

    def _built(self, place, word, epoch):
        values = [b"%s %d" % (b"kept" if number < 10 else word, number) for number in range(30)]
        items = []
        for first in range(0, 30, 10):
            records = [Record(None, value, (), -1) for value in values[first : first + 10]]
            items += [ROLL] * (first > 0) + [Batch(records, leader_epoch=epoch if first else 0)]
        settings = {"t-0/topic.properties": b"remote.storage.enable=true\n"}
        build_log_dir(place, {"t": [items]}, broker=False, extra=settings)
        return values

    def _upload(self, place, base, letter, epochs):
        name = f"{base:020}-{letter * 21}A"
        shutil.copy(place / "t-0" / f"{base:020}.log", self._tier / f"{name}.log")
        (self._tier / f"{name}.leader_epoch_checkpoint").write_text(epochs)
        (self._tier / f"{name}.snapshot").touch()


@pytest.fixture
def broker(tmp_path):
    return Elections(tmp_path)


def values_of(snapshot):
    return [record.value for record in read_all(snapshot)]


@pytest.mark.parametrize("epochs", ["empty", "missing"])
def test_a_replica_that_is_made_anew_has_no_lineage_yet(broker, epochs):
    """A follower that begins at the tiered end empties its leader epochs before it fetches them: until then nobody
    knows which uploads are its log's, and those of the winner may not even be there. Where no lineage is to be found,
    that of the last upload counts."""
    broker.retain()
    broker.truncate()
    broker.follow()
    broker.set_epochs(broker.no_lineage)
    if epochs == "missing":
        (broker.part / names.LEADER_EPOCH_CHECKPOINT).unlink()
    log = broker.opened()
    found, errors = read_past_damage(log.snapshot())
    assert [one.value for one in found] == (broker.lost[:20] if epochs == "missing" else []) + broker.won[20:]
    told = ["messages 0 to 19 are "] if epochs == "empty" else []
    assert [str(error).partition(": ")[2][:21] for error in errors] == told
    broker.upload()
    broker.set_epochs(broker.lineage)
    assert values_of(log.snapshot()) == broker.won


@pytest.mark.parametrize("looks", range(1 << 6))
def test_whenever_a_replica_is_looked_at_it_shows_nothing_that_was_taken_back(looks, now, broker):
    """`looks` has a bit for each step after which somebody looks. While the file is cut the epochs are the old ones. An
    unclean election takes back messages that were uploaded and are no longer here; the winner uploads others."""
    log = broker.opened()
    steps = [
        broker.retain, broker.truncate, partial(broker.set_epochs, broker.no_lineage),
        partial(broker.set_epochs, broker.lineage), broker.upload, broker.follow,
    ]  # fmt: skip
    assert values_of(log.snapshot()) == broker.lost
    for number, step in enumerate(steps):
        step()
        if looks >> number & 1:
            records, errors = read_past_damage(log.snapshot())
            assert number > 1 or not errors
            allowed = broker.lost if number < 2 else broker.won
            assert [one.value for one in records] == [allowed[one.offset] for one in records], step
    now[0] = 5.0
    assert values_of(log.snapshot()) == broker.won


def test_a_cut_is_told_from_the_epochs_before_there_were_none(broker):
    log = LogDir.open_read_only(broker.directory).log(broker.tp)
    before = log.snapshot()
    broker.retain()
    broker.truncate()
    broker.set_epochs(broker.no_lineage)
    end = before.log_end_offset
    assert kept_end(before, log.snapshot(), end) is None
    broker.set_epochs(broker.lineage)
    broker.follow()
    assert kept_end(before, log.snapshot(), end) == 10


CUT = TopicPartition("cut", 0)


@pytest.fixture
def tiered(tmp_path):
    """A broker's directory, to be written to."""
    return copied(FIXTURES / "tiered" / "log", tmp_path / "log")


def without_metadata(directory):
    shutil.rmtree(directory / "__cluster_metadata-0")
    (directory / names.META_PROPERTIES).unlink()


def set_starts(directory, starts):
    path = directory / names.LOG_START_CHECKPOINT
    path.write_bytes(checkpoints.encode(checkpoints.read(path) | starts))


def ends(directory, tp):
    snapshot = LogDir.open_read_only(directory).log(tp).snapshot()
    return snapshot.remote_offsets, snapshot.log_start_offset, snapshot.log_end_offset


@requires_fixtures
@pytest.mark.parametrize("known", [True, False])
def test_where_a_tiered_log_begins(tiered, known):
    if not known:
        without_metadata(tiered)
    assert ends(tiered, GONE) == (OffsetRange(0, 1260), 1260, 1260)
    assert ends(tiered, CUT) == (OffsetRange(517, 724), 724, 1252)
    # A lost checkpoint leaves the first leader epoch.
    (tiered / names.LOG_START_CHECKPOINT).unlink()
    assert ends(tiered, CUT) == (OffsetRange(517, 724) if known else None, 724, 1252)


@pytest.mark.parametrize(
    ("checkpointed", "first_epoch", "is_tiered", "start"),
    [
        (150, 150, True, 150),
        (150, None, True, 150),
        (150, 150, False, None),  # an old line: segments were removed since
        (150, 300, None, None),  # so is this one: the epochs were moved up with the log start
        (150, None, None, None),
        (150, 0, None, 150),
        (None, 0, True, 0),
        (None, 0, None, None),
        (None, 300, True, None),
        (300, 0, True, None),
        (310, 0, True, None),
    ],
)
def test_the_rule(checkpointed, first_epoch, is_tiered, start):
    epochs = LeaderEpochs(() if first_epoch is None else (EpochEntry(3, first_epoch),))
    found = remote_offsets(300, checkpointed, epochs, lambda: is_tiered)
    assert found == (None if start is None else OffsetRange(start, 300))


@requires_fixtures
def test_lines_of_log_starts(tiered):
    log = LogDir.open_read_only(tiered).log(CUT)
    snapshot = log.snapshot()
    assert log.snapshot() is snapshot
    for offset, is_tiered in ((516, False), (517, True), (723, True), (1253, False)):
        with pytest.raises(OffsetOutOfRange) as raised:
            snapshot.check_offset(offset)
        assert ("in tiered storage" in str(raised.value)) == is_tiered
    snapshot.check_offset(724)
    assert (snapshot.whole_start_offset, snapshot.local_log_start_offset) == (517, 724)
    other = TopicPartition("other", 0)
    shutil.copytree(tiered / "cut-0", tiered / "other-0")
    (tiered / "other-0" / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n1\n0 724\n")
    set_starts(tiered, {other: 100, CUT: 600})
    assert ends(tiered, other) == (None, 724, 1252)
    assert log.snapshot().remote_offsets == OffsetRange(600, 724)
    # All of it is here: it keeps its line, for a broker would take 0 for its start.
    shutil.rmtree(tiered / "other-0")
    set_starts(tiered, {CUT: 724})
    owned = OwnedDir.open(tiered, clock=StandingClock())
    assert owned.log(CUT).snapshot().remote_offsets is None
    owned.close()
    assert checkpoints.read(tiered / names.LOG_START_CHECKPOINT)[CUT] == 724


@requires_fixtures
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_opening_for_writing_keeps_where_the_log_begins(tiered, clean, known):
    if not clean:
        (tiered / names.CLEAN_SHUTDOWN).unlink()
    if not known:
        without_metadata(tiered)
    before = checkpoints.read(tiered / names.LOG_START_CHECKPOINT)
    for _ in range(2):
        owned = OwnedDir.open(tiered, clock=StandingClock())
        for tp in before:
            log = owned.log(tp)
            assert log.snapshot().remote_offsets.start == before[tp]
            assert not log.is_empty
        owned.checkpoint()
        assert not owned.close().errors
    assert checkpoints.read(tiered / names.LOG_START_CHECKPOINT) == before
    for tp in before:
        epochs = leader_epochs.read(tiered / tp.dir_name / names.LEADER_EPOCH_CHECKPOINT)
        assert epochs.entries[0] == EpochEntry(0, before[tp])


@requires_fixtures
def test_retention_leaves_tiered_logs_alone(tiered):
    (tiered / "cut-0" / names.TOPIC_PROPERTIES).write_text("retention.bytes=1\nretention.ms=1\n")
    none_free = {"free_bytes": lambda: 0}
    shown = preview_partition(LogDir.open_read_only(tiered, clock=StandingClock()), CUT, **none_free)
    assert shown.segments == ()
    assert [one.kept_by for one in shown.kept] == [(TIERED,)] * 3
    owned = OwnedDir.open(tiered, clock=StandingClock())
    assert retain_partition(owned, CUT, **none_free).segments == ()
    with pytest.raises(OffsetOutOfRange, match="in tiered storage"):
        retain_partition(owned, CUT, **none_free, before=600)
    # As DeleteRecords beyond the remote part: the log begins here from now on.
    retain_partition(owned, CUT, **none_free, before=1000)
    assert owned.log(CUT).snapshot().remote_offsets is None
    owned.close()
    assert checkpoints.read(tiered / names.LOG_START_CHECKPOINT)[CUT] == 1000


@requires_fixtures
def test_what_a_broker_would_remove_of_the_whole_log_and_of_what_is_here():
    log_dir, part = opened(TIERS / "log", TIERS / "tier-local"), TopicPartition("part", 0)
    snapshot, config = log_dir.log(part).snapshot(), log_dir.topic_info("part").config
    sizes = [snapshot.end_position(segment) for segment in snapshot.segments]
    limited = replace(config, retention_bytes=sum(sizes[2:]), other={**config.other, "local.retention.bytes": "1"})
    found = brokers_retention(snapshot, limited, 0)
    assert [(one.base_offset, one.reason) for one in found.total] == [(0, "retention.bytes"), (247, "retention.bytes")]
    assert [one.base_offset for one in found.local] == [698, 932, 1163]
    assert {one.reason for one in found.local} == {"local.retention.bytes"}
    other = {**config.other, "local.retention.bytes": "-2", "local.retention.ms": "no number"}
    assert brokers_retention(snapshot, replace(limited, other=other), 0).local == ()
    later = replace(snapshot, log_start_offset=snapshot.log_end_offset)
    unlimited = replace(config, retention_bytes=-1, retention_ms=-1, other={})
    assert {one.reason for one in brokers_retention(later, unlimited, 0).local} == {"below the log start offset"}


# Which remote segments make up a log: against histories of leaders that uploaded what they had.

END = 40


def branches(draw):
    """Logs of leaders: each begins as another one did, and goes on with an epoch of its own. The last is the log."""
    found = [((0, 0),)]
    for epoch in range(1, draw(st.integers(1, 6))):
        before = draw(st.sampled_from(found))
        cut = draw(st.integers(0, END - 1))
        found.append((*(entry for entry in before if entry[1] < cut), (epoch, cut)))
    return found


def epoch_at(branch, offset):
    return branch[bisect_right(branch, offset, key=lambda entry: entry[1]) - 1][0]


def upload(branch, start, end, order, *, deleted=False):
    inside = [(epoch, first) for epoch, first in branch if start < first < end]
    epochs = ((epoch_at(branch, start), start), *inside)
    return Candidate(str(order), start, end, 1, epochs, order, None, deleted)


@st.composite
def histories(draw):
    leaders = branches(draw)
    uploads = []
    for order in range(draw(st.integers(0, 12))):
        start = draw(st.integers(0, END - 1))
        branch = draw(st.sampled_from(leaders))
        end = draw(st.integers(start + 1, END))
        uploads.append((branch, upload(branch, start, end, order, deleted=draw(st.integers(0, 9)) == 0)))
    return leaders, uploads


@given(histories(), st.integers(0, END - 1), st.integers(1, END))
def test_every_offset_is_from_a_segment_that_has_it_in_the_logs_epoch(history, start, size):
    leaders, uploads = history
    log, end = leaders[-1], min(start + size, END)
    lineage = LeaderEpochs(tuple(EpochEntry(*entry) for entry in log)).truncate_from_start(start)
    counted = counted_slices((one for _, one in uploads), lineage)
    assert counted == sorted(counted, key=attrgetter("start"))
    found = cover(counted, start, end)
    assert [found[0].start, *(one.end for one in found)] == [*(one.start for one in found), end]
    for one in found:
        for offset in range(one.start, one.end):
            have = [
                candidate
                for branch, candidate in uploads
                if not candidate.deleted
                and candidate.base_offset <= offset < candidate.end_offset
                and epoch_at(branch, offset) == epoch_at(log, offset)
            ]
            assert one.candidate in have or (one.candidate, have) == (None, []), offset


def test_a_loser_that_finished_last_is_read_only_up_to_where_it_lost():
    """Facts of a real broker: it reads on in the loser's segment, beyond the end of the epoch."""
    lineage = LeaderEpochs((EpochEntry(0, 0), EpochEntry(2, 60)))
    right, loser = upload(((0, 0), (2, 60)), 50, 100, 1), upload(((0, 0), (1, 60)), 50, 100, 2)
    assert slices_of(loser, lineage) == [Slice(50, 60, loser)]
    assert cover(counted_slices([right, loser], lineage), 50, 100) == [Slice(50, 60, loser), Slice(60, 100, right)]
    assert lineage_of([upload(((0, 0), (1, 60)), 0, 100, 1), upload(((0, 0), (2, 40)), 0, 90, 2)]) == LeaderEpochs(
        (EpochEntry(0, 0), EpochEntry(2, 40))
    )
    # Without epochs a segment counts as a whole.
    one = Candidate("a", 0, 10, 1, (), 0, None)
    assert slices_of(one, LeaderEpochs((EpochEntry(5, 3),))) == [Slice(0, 10, one)]


def test_the_log_begins_behind_what_retention_removes():
    gone = [upload(((0, 0),), 0, 10, 1, deleted=True), upload(((0, 0),), 10, 20, 2, deleted=True)]
    kept = upload(((0, 0),), 25, 30, 3)
    found = cover(counted_slices([*gone, kept], LeaderEpochs()), 5, 30)
    assert behind_deleted(found, [*gone, kept]) == [Slice(20, 25, None), Slice(25, 30, kept)]


@given(st.lists(st.tuples(st.integers(-5, 2**31), st.integers(-5, 2**63 - 1)), max_size=6))
def test_epochs_ascend_or_count_for_nothing(entries):
    found = ascending_epochs(entries)
    if found is not None:
        assert found == tuple(sorted(entries))
        assert all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(found))


# `__remote_log_metadata`: the states of remote segments, whatever is in the topic.


@requires_fixtures
def test_states_are_those_of_the_broker():
    """Only the partition that has the events is read. Which of three that is a broker has decided, for every one."""
    log_dir = LogDir.open_read_only(TIERS / "log")
    topic = names.REMOTE_LOG_METADATA_TOPIC
    logs = [log_dir.log(TopicPartition(topic, number)) for number in log_dir.partitions(topic)]
    assert log_dir.topic_info(topic).partition_count == len(logs) == 3

    class Unread:
        """A log that must not be looked at."""

        def __init__(self, number):
            self.tp = TopicPartition(topic, number)

    golden, chosen = golden_json("segments.json"), set()
    for one in golden:
        assert one["topic_id"] == log_dir.topic_info(one["topic"]).topic_id
        number = metadata_partition(one["topic_id"], one["partition"], 3)
        alone = [log if log.tp.partition == number else Unread(log.tp.partition) for log in logs]
        for metadata in (log_dir.remote_metadata, RemoteMetadata(partial(list, alone), lambda: 3)):
            found = metadata.segments(one["topic_id"], one["partition"])[one["id"]]
            assert metadata.problem is None
            assert (found.base_offset, found.end_offset - 1, found.size_bytes) == (
                one["start"],
                one["end"],
                one["size"],
            )
            assert found.state == one["states"][-1]
            if found.state is not RemoteState.DELETE_FINISHED:
                assert dict(found.epochs) == {int(epoch): start for epoch, start in one["epochs"].items()}
        chosen.add(number)
    assert len(golden) > 30
    assert len(chosen) > 1
    assert log_dir.remote_metadata.segments("AAAAAAAAAAAAAAAAAAAAAA", 0) is None


@requires_fixtures
def test_events_that_are_added_are_followed(tmp_path):
    directory = copied(TIERS / "log", tmp_path / "log")

    def states_in(log_dir):
        found = log_dir.remote_metadata.segments(log_dir.topic_info("keep").topic_id, KEEP.partition)
        return {name: one.state for name, one in (found or {}).items()}

    whole = states_in(LogDir.open_read_only(directory))
    files = directory.glob(f"{names.REMOTE_LOG_METADATA_TOPIC}-*/*0.log")
    file = next(path for path in files if b"\x05keep" in path.read_bytes())
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    log_dir = LogDir.open_read_only(directory)
    assert states_in(log_dir) != whole
    with file.open("ab") as more:
        more.write(data[len(data) // 2 :])
    assert states_in(log_dir) == whole


def test_transitions_are_kafkas(tmp_path):
    """Random events of 300 segments: only the transitions that Kafka allows happen; impossible events are left out."""
    rng, of = random.Random(3), topic_id("t")

    def event(segment, state, *, first, start, size):
        """RemoteLogSegmentMetadataRecord or RemoteLogSegmentMetadataUpdateRecord, version 0."""
        named = b"\x02t" + id_bytes(of) + struct.pack(">i", 0) + b"\0" + id_bytes(segment) + b"\0"
        one_epoch = b"\x02" + struct.pack(">iq", 0, 5) + b"\0"
        broker = struct.pack(">i", 1)
        described = struct.pack(">qq", start, 9) + broker + bytes(16) + one_epoch + struct.pack(">i", size)
        body = described if first else broker + struct.pack(">q", 0)
        return Record(
            None, (b"\1\0\0" if first else b"\1\1\0") + named + body + b"\0" + struct.pack(">b", state) + b"\0"
        )

    expected, records = {}, []
    for segment in (topic_id(str(number)) for number in range(300)):
        for _ in range(rng.randrange(12)):
            state, first = rng.randrange(-1, 6), rng.random() < 0.4
            start, size = rng.choice([(5, 1), (5, 1), (5, -1), (-1, 1), (10, 1)])
            records.append(event(segment, state, first=first, start=start, size=size))
            if segment not in expected:
                if first and state == 0 and (start, size) == (5, 1):
                    expected[segment] = 0
            elif (expected[segment], state) in {(0, 1), (0, 2), (1, 2), (2, 3)}:
                expected[segment] = state
    built = build_log_dir(tmp_path, {names.REMOTE_LOG_METADATA_TOPIC: [[Batch(records)]]})
    log = open_log(built[names.REMOTE_LOG_METADATA_TOPIC, 0].path)
    found = RemoteMetadata(lambda: [log]).segments(of, 0)
    assert {name: int(one.state) for name, one in found.items()} == expected
    assert set(expected.values()) == {0, 1, 2, 3}


@requires_fixtures
def test_damaged_events_crash_nothing(tmp_path):
    """Bytes of the metadata topic changed anywhere: each message that is shown is one of the log."""
    rng = random.Random(7)
    directory = copied(TIERS / "log", tmp_path / "log")
    files = list(directory.glob(f"{names.REMOTE_LOG_METADATA_TOPIC}-*/*0.log"))
    whole = {path: path.read_bytes() for path in files}
    tps = list(partitions())
    for _ in range(12):
        for path, data in whole.items():
            damaged = bytearray(data)
            for _ in range(rng.randrange(1, 20)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            path.write_bytes(bytes(damaged[: rng.randrange(len(damaged))] if rng.random() < 0.3 else damaged))
        log_dir = opened(directory, TIERS / "tier-local")
        for tp in rng.sample(tps, 2):
            golden = {record.offset: record for record in golden_of(tp)}
            records, _ = read_past_damage(log_dir.log(tp).snapshot())
            assert all(golden.get(record.offset) == record for record in records)
            assert [record.offset for record in records] == sorted({record.offset for record in records})
