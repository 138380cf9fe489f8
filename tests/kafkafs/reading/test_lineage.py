"""Readers that go on where they stopped while a follower's log is truncated, written to by another leader, rolled,
cleaned and retained. All messages look alike but for a number: what is given is one history of the log, or an error."""

import random
import re
from contextlib import suppress

import pytest

from kafkafs.reading import handle as open_view
from kafkafs.reading.selection import Question
from kafkafs.reading.unmounted import PartitionReader
from kafkafs.tree.paths import NoSuchPath
from storage.errors import SegmentGone
from storage.format.checksum import crc32c
from storage.format.decoder import Decoder
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.live_log import START_MS
from tests.support.readers import records_of
from tests.support.reference_views import tree_of
from tests.support.replicas import Replica

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
    for handle, position in ((behind, len(whole)), (within, place + 50)):
        for _ in range(2):
            with pytest.raises(SegmentGone):
                handle.read(position, 1 << 20)
    now = tree_of(tmp_path).lookup(f"/t/{name}").open().read(0, 1 << 20)
    if name.startswith("keys"):  # of a topic: its positions are of several logs
        with pytest.raises(SegmentGone):
            before.read(100, 1 << 20)
    else:
        assert first + before.read(100, 1 << 20) == now


class _History:
    """Which leader wrote each offset of the log as it is now, and which of them may be missing."""

    def __init__(self, replica, dice):
        self.replica = replica
        self.dice = dice
        self.leaders = {}
        self.removed = set()

    def step(self):
        replica, dice = self.replica, self.dice
        match dice.choice("aaaccclrkde"):
            case "c":
                cut = dice.randint(replica.segments[-1], replica.next_offset)
                if dice.random() < 0.3 and len(replica.segments) > 1:
                    cut = dice.randint(replica.segments[-2], replica.next_offset)
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
                self.removed |= gone
            case "d" if len(replica.segments) > 2:
                replica.retain()
                self.removed |= set(range(replica.segments[0]))
            case "e":
                replica.elect()
            case _:
                self._append()

    def _append(self):
        first = self.replica.next_offset
        self.replica.append(self.dice.randint(1, 5))
        self.leaders |= dict.fromkeys(range(first, self.replica.next_offset), self.replica.epoch)

    def check(self, given, first):
        """These messages, in this order, are the log's from the offset `first` on."""
        for offset, leader in given:
            assert self.leaders.get(offset) == leader, (offset, leader)
            assert all(missed in self.removed for missed in range(first, offset)), (first, offset)
            assert first <= offset
            first = offset + 1


class _Reader:
    """Reads a file on, and opens it again after an error."""

    def __init__(self, path, name):
        self._tree = tree_of(path)
        self._name = name
        self.errors = 0
        self._open()

    def _open(self):
        self._given = b""
        self._handle = None
        with suppress(NoSuchPath):  # a key without messages
            self._handle = self._tree.lookup(f"/t/{self._name}").open()

    def step(self, history, size):
        if self._handle is None:
            self._open()
            return
        try:
            more = self._handle.read(len(self._given), size)
        except SegmentGone:
            given = self._messages()
            lost = any(history.leaders.get(offset) != leader for offset, leader in given)
            following = given[-1][0] + 1 if given else 0
            gone = following in history.removed
            assert lost or gone or self._name.startswith("keys") or self._is_within_a_message(history)
            self.errors += 1
            self._handle.close()
            self._open()
            return
        if more:
            self._given += more
            given = self._messages()
            history.check(given, given[0][0] if given else 0)
            if self._name.endswith(".log"):
                _check_batches(self._given)

    def _messages(self):
        return [(int(offset), int(leader)) for offset, leader in _MESSAGE.findall(self._given)]

    def _is_within_a_message(self, history):
        """Whether it may have been given the head of a message that is gone, up to its number."""
        return not self._given.endswith((b"</>\n", b"}\n")) or self._name.endswith(".log")


def _check_batches(data):
    position = 0
    while position + 12 <= len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if end <= len(data):
            assert crc32c(data[position + 21 : end]) == int.from_bytes(data[position + 17 : position + 21], "big")
        position = end


class _Follower:
    """`cat --follow`: what it has printed, without what it has taken back by a note."""

    def __init__(self, path):
        self.notes = []
        self.given = []
        log = LogDir.open_read_only(path).log(TopicPartition("t", 0))
        self._reader = PartitionReader(log, Question(), START_MS, Decoder(), follow=True, note=self._note)

    def step(self):
        for block in self._reader.blocks():
            for record in records_of(block):
                found = _MESSAGE.match(record.value or b"")
                assert found
                self.given.append((int(found[1]), int(found[2])))

    def _note(self, text):
        self.notes.append(text)
        if found := re.search(r"truncated to (\d+)", text):
            self.given = [message for message in self.given if message[0] < int(found[1])]


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_any_history(tmp_path, seed, checkpoint):
    """Without a checkpoint every step is looked at: what two steps leave cannot always be told from a cleaning."""
    dice = random.Random(seed)
    replica = Replica(tmp_path, checkpoint=checkpoint)
    history = _History(replica, dice)
    history.leaders = dict.fromkeys(range(6), 1)
    replica.append(6)
    readers = [_Reader(tmp_path, name) for name in FILES if "offsets" not in name]
    follower = _Follower(tmp_path)
    for _ in range(60):
        history.step()
        for reader in readers:
            if not checkpoint or dice.random() < 0.6:
                reader.step(history, dice.choice((0, 17, 330, 2000, 1 << 16)) if checkpoint else 1500)
        if not checkpoint or dice.random() < 0.6:
            follower.step()
            history.check(follower.given, 0)
    assert all(reader.errors for reader in readers)
    assert follower.notes
