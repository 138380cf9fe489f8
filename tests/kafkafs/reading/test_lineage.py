"""Readers that go on where they stopped while a follower's log is truncated, written to by another leader, rolled,
cleaned and retained. All messages look alike but for a number: what is given is one history of the log, or an error."""

import random
import re
from contextlib import suppress

import pytest

from kafkafs.arrow.log_dirs import open_log_dirs
from kafkafs.reading import handle as open_view
from kafkafs.reading.selection import Question
from kafkafs.reading.unmounted import PartitionReader
from kafkafs.spark.read_marks import end_of_what_was_read, read_marks
from kafkafs.tree.paths import NoSuchPath
from storage.errors import LogTruncated, OffsetOutOfRange, SegmentGone
from storage.format.checksum import crc32c
from storage.format.decoder import Decoder
from storage.log import tail
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import TopicPartition
from tests.simulation.locks import simulated_locks
from tests.simulation.scheduler import Scheduler
from tests.support.live_log import START_MS
from tests.support.readers import records_of
from tests.support.reference_views import tree_of
from tests.support.replicas import Replica

TP = TopicPartition("t", 0)
_MESSAGE = re.compile(rb"<(\d{3}) of (\d{3})>")
FILES = ("0/messages.txt", "0/messages.jsonl", "0/messages.log", "0/keys/k.txt", "keys/k.jsonl", "0/offsets/3-.txt",
         "0/time/2020--.txt")  # fmt: skip


@pytest.fixture(autouse=True)
def _each_read_looks(monkeypatch):
    monkeypatch.setattr(open_view, "LOOK_S", -1.0)


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_others_that_end_alike_are_no_continuation(tmp_path, name, checkpoint):
    replica = Replica(tmp_path, checkpoint=checkpoint)
    replica.append(8)
    tree = tree_of(tmp_path)
    behind, within, before = (tree.lookup(f"/t/{name}").open() for _ in range(3))
    whole = behind.read(0, 1 << 20)
    place = whole.rindex(b"<007")
    within.read(0, place + 50)
    first = before.read(0, 100)
    replica.truncate(5)
    replica.append(6)
    for handle, position in ((behind, len(whole)), (within, place + 50), (before, 100)):
        for _ in range(2):
            with pytest.raises(LogTruncated):
                handle.read(position, 1 << 20)
    now = tree_of(tmp_path).lookup(f"/t/{name}").open().read(0, 1 << 20)
    assert tree.lookup(f"/t/{name}").open().read(0, 1 << 20) == now
    assert now.startswith(first)


def test_a_truncation_while_the_last_segment_is_measured(tmp_path, monkeypatch):
    """The segment as it was known is of the log before. It is not kept for what another leader has written since."""
    replica = Replica(tmp_path)
    replica.append(6)
    log = LogDir.open_read_only(tmp_path).log(TP)
    before = log.snapshot()
    replica.append(1)
    measured = tail.extend

    def extend(*arguments):
        monkeypatch.setattr(tail, "extend", measured)
        replica.truncate(3)
        replica.append(6)
        return measured(*arguments)

    monkeypatch.setattr(tail, "extend", extend)
    now = log.snapshot()
    assert now.generation > before.generation
    assert now.active is not before.active
    given = [message for block in read_range(now, 0) for message in messages_of(block)]
    assert given == [(offset, 1 if offset < 3 else 2) for offset in range(9)]


class _History:
    """Which leader wrote each offset of the log as it is now, and which of them may be missing."""

    def __init__(self, replica, dice):
        self.replica = replica
        self.dice = dice
        self.leaders = {}
        self.removed = set()
        self.cuts = []  # the offset of each truncation
        self.removals = 0  # of files, by retention and compaction
        self.versions = []  # of `leaders`, after each step

    def step(self):
        self._change()
        self.versions.append(self.leaders)

    def _change(self):
        replica, dice = self.replica, self.dice
        match dice.choice("aaaccclrkde"):
            case "c":
                cut = dice.randint(replica.segments[-1], replica.next_offset)
                if dice.random() < 0.3 and len(replica.segments) > 1:
                    cut = dice.randint(replica.segments[-2], replica.next_offset)
                self.cuts.append(cut)
                replica.truncate(cut)
                self.leaders = {offset: leader for offset, leader in self.leaders.items() if offset < cut}
                self.removed = {offset for offset in self.removed if offset < cut}
                if dice.random() < 0.8:
                    self._append()
            case "r" if replica.segments[-1] < replica.next_offset:
                replica.roll()
                self._append()
            case "k" if len(replica.segments) > 1:
                gone = {n for n in range(replica.segments[0], replica.segments[-1]) if dice.random() < 0.2}
                replica.compact(lambda offset: offset not in gone)
                self.removals += 1
                self.removed |= gone
            case "d" if len(replica.segments) > 2:
                replica.retain()
                self.removals += 1
                self.removed |= set(range(replica.segments[0]))
            case "e":
                replica.elect()
            case _:
                self._append()

    def _append(self):
        first = self.replica.next_offset
        self.replica.append(self.dice.randint(1, 5))
        self.leaders = self.leaders | dict.fromkeys(range(first, self.replica.next_offset), self.replica.epoch)

    def check(self, given, first):
        """These messages, in this order, are the log's from the offset `first` on."""
        for offset, leader in given:
            assert self.leaders.get(offset) == leader, (offset, leader)
            assert all(missed in self.removed for missed in range(first, offset)), (first, offset)
            assert first <= offset
            first = offset + 1


class _Reader:
    """Reads a file on, and opens it again after an error, which each truncation is."""

    def __init__(self, path, name, history):
        self._tree = tree_of(path)
        self._name = name
        self._history = history
        self.errors = 0
        self._open()

    def _open(self):
        self._given = b""
        self._handle = None
        with suppress(NoSuchPath):  # a key without messages
            self._handle = self._tree.lookup(f"/t/{self._name}").open()
        self._removals = self._history.removals
        self._looked()

    def _looked(self):
        self._cuts, self._end = len(self._history.cuts), self._history.replica.next_offset

    def step(self, size):
        history = self._history
        if self._handle is None:
            self._open()
            return
        error, cuts = None, history.cuts[self._cuts :]
        try:
            more = self._handle.read(len(self._given), size)
        except (LogTruncated, SegmentGone) as raised:
            error = raised
        if isinstance(error, LogTruncated):
            assert cuts
        else:
            assert not cuts or min(cuts) >= self._end
            assert error is None or history.removals > self._removals
        if error is not None:
            self.errors += 1
            self._handle.close()
            self._open()
            return
        self._looked()
        if more:
            self._given += more
            given = self._messages()
            history.check(given, given[0][0] if given else 0)
            if self._name.endswith(".log"):
                _check_batches(self._given)

    def _messages(self):
        return [(int(offset), int(leader)) for offset, leader in _MESSAGE.findall(self._given)]


def _check_batches(data):
    position = 0
    while position + 12 <= len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if end <= len(data):
            assert crc32c(data[position + 21 : end]) == int.from_bytes(data[position + 17 : position + 21], "big")
        position = end


class _Follower:
    """`cat --follow`: what it has printed, without what it has taken back by a note. Run again where it cannot tell."""

    def __init__(self, path):
        self.notes = []
        self._log = LogDir.open_read_only(path).log(TP)
        self._begin()

    def _begin(self):
        self.given = []
        self._reader = PartitionReader(self._log, Question(), START_MS, Decoder(), follow=True, note=self._note)

    def step(self):
        try:
            for block in self._reader.blocks():
                self.given += messages_of(block)
        except LogTruncated as error:
            self.notes.append(str(error))
            self._begin()

    def _note(self, text):
        self.notes.append(text)
        if found := re.search(r"truncated to (\d+)", text):
            self.given = [message for message in self.given if message[0] < int(found[1])]


class _Stream:
    """A streaming query: what it has processed, without what it has been told that it is lost."""

    def __init__(self, path):
        self.given = []
        self.losses = 0
        self._path = path
        self._end, self._marks = 0, {}

    def step(self):
        log_dirs = open_log_dirs((self._path,))
        snapshot = log_dirs.log(TP).snapshot()
        first = end_of_what_was_read(log_dirs, snapshot, self._end, self._marks)
        first = min(first, snapshot.log_end_offset)
        self.losses += first < self._end
        self.given = [message for message in self.given if message[0] < first]
        for block in read_range(snapshot, max(first, snapshot.log_start_offset)):
            self.given += messages_of(block)
        self._end, self._marks = snapshot.log_end_offset, read_marks(log_dirs, {TP: snapshot.log_end_offset})


def messages_of(block):
    found = [_MESSAGE.match(record.value or b"") for record in records_of(block)]
    return [(int(match[1]), int(match[2])) for match in found]


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_any_history(tmp_path, seed, checkpoint):
    """Without a checkpoint every step is looked at: what two steps leave cannot always be told from a cleaning."""
    dice = random.Random(seed)
    replica = Replica(tmp_path, checkpoint=checkpoint)
    history = _History(replica, dice)
    history.leaders = dict.fromkeys(range(6), 1)
    replica.append(6)
    readers = [_Reader(tmp_path, name, history) for name in FILES if "offsets" not in name]
    followers = [_Follower(tmp_path), *[_Stream(tmp_path)] * checkpoint]
    for _ in range(60):
        history.step()
        for reader in readers:
            if not checkpoint or dice.random() < 0.6:
                reader.step(dice.choice((0, 17, 330, 2000, 1 << 16)) if checkpoint else 1500)
        for follower in followers:
            if not checkpoint or dice.random() < 0.6:
                follower.step()
                history.check(follower.given, 0)
    assert all(reader.errors for reader in readers)
    assert followers[0].notes
    assert all(stream.losses for stream in followers[1:])


@pytest.mark.parametrize("seed", range(20))
def test_a_stranger_who_comes_between_any_two_steps_of_a_reader(tmp_path, seed):
    """Who truncates, and others that grow the log again, before the next step of readers that look and read. What an
    open file has shown is all of one history. `cat --follow` has taken back by its notes what is gone."""
    dice = random.Random(seed)
    replica = Replica(tmp_path, spaces=lambda: dice.randrange(300))
    history = _History(replica, dice)
    for _ in range(5):
        history.step()
    with simulated_locks():
        scheduler = Scheduler(random.Random(seed), switching=0.2)
        trees = {name: tree_of(tmp_path, workers=0) for name in FILES}
        follower, changing = _Follower(tmp_path), [True]

        def change():
            for _ in range(40):
                history.step()
                scheduler.pause("a while")
            changing.clear()

        def follow():
            while changing:
                follower.step()
                scheduler.pause("a while")

        scheduler.spawn("stranger", change)
        scheduler.spawn("follower", follow)
        readers = [_Looks(scheduler, trees[name], name, history, dice, changing) for name in FILES]
        for reader in readers:
            scheduler.spawn("reader", reader)
        scheduler.run()
        while not history.leaders:  # a follower waits for the first epoch of a log that was emptied
            history.step()
        follower.step()
        history.check(follower.given, 0)
        for name in FILES:
            with suppress(OffsetOutOfRange, NoSuchPath):  # a log that begins behind offset 3, or is empty
                fresh, file = (tree.lookup(f"/t/{name}").open() for tree in (tree_of(tmp_path), trees[name]))
                assert file.read(0, 1 << 20) == fresh.read(0, 1 << 20), name
    assert any(reader.truncations for reader in readers)


class _Looks:
    """Opens a file again and again, and reads on in it."""

    def __init__(self, scheduler, tree, name, history, dice, changing):
        self.truncations = 0
        self._scheduler, self._tree, self._name = scheduler, tree, name
        self._history, self._dice, self._changing = history, dice, changing

    def __call__(self):
        while self._changing:
            since = len(self._history.versions) - 1
            # A key without messages; a log that ends before offset 3; one that is truncated while it is opened.
            with suppress(NoSuchPath, OffsetOutOfRange, LogTruncated):
                handle = self._tree.lookup(f"/t/{self._name}").open()
                try:
                    self._read(handle, since)
                except LogTruncated:
                    self.truncations += 1
                finally:
                    handle.close()
            self._scheduler.pause("a while")

    def _read(self, handle, since):
        given = b""
        for _ in range(self._dice.randrange(8)):
            given += handle.read(len(given), self._dice.choice((17, 330, 2000, 1 << 16)))
            messages = [(int(offset), int(leader)) for offset, leader in _MESSAGE.findall(given)]
            versions = self._history.versions[since:]
            assert any(all(known.get(offset) == leader for offset, leader in messages) for known in versions), messages
            self._scheduler.pause("a while")
