"""Topics that are removed, made again and described while others open their logs: each order of events that hurt.

One thread is stopped in the middle of what it does; another then goes on until it has done its work or waits for a
turn; then the first goes on.
"""

from __future__ import annotations

import errno
import shutil
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from storage.append.partition_log import PartitionLog
from storage.compaction.cleaner import compact_partition
from storage.errors import PartitionOffline, UnknownTopicOrPartition
from storage.files import checkpoints, names
from storage.recovery.recovery import Recovery
from storage.types import TopicPartition
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import append, close_clean, opened, read

TP = TopicPartition("t", 0)
SECOND = TopicPartition("t", 1)
_BOUND_S = 60


class Stopped:
    """A call that waits in its middle until it is told to go on, whoever makes it first."""

    def __init__(self, call, *, before):
        self._call = call
        self._before = before
        self._reached = threading.Event()
        self._go_on = threading.Event()
        self._first = threading.Lock()

    def __call__(self, *arguments):
        if not self._first.acquire(blocking=False):
            return self._call(*arguments)
        result = None if self._before else self._call(*arguments)
        self._reached.set()
        assert self._go_on.wait(_BOUND_S)
        return self._call(*arguments) if self._before else result

    def __get__(self, instance, owner):
        return lambda *arguments: self(instance, *arguments)

    def reached(self):
        assert self._reached.wait(_BOUND_S)

    def go_on(self):
        self._go_on.set()


class Doing(threading.Thread):
    """Work in another thread: its result, or what it raised."""

    def __init__(self, work):
        super().__init__()
        self._work = work
        self.result = None
        self.error = None
        self.start()

    def run(self):
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def until_done_or_waiting(self):
        """Returns when the work is done, or waits for somebody's turn to end."""
        deadline = time.monotonic() + _BOUND_S
        while self.is_alive() and not self._waits():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def _waits(self):
        frame = sys._current_frames().get(self.ident or 0)
        while frame is not None:
            if frame.f_code.co_name in ("alone", "forget"):
                return True
            frame = frame.f_back
        return False

    def done(self):
        self.join(_BOUND_S)
        assert not self.is_alive()
        return self.result


@contextmanager
def stopped(monkeypatch, owner, name, *, before):
    """The first call of it waits, before it begins or after it is through, until `go_on`."""
    hook = Stopped(getattr(owner, name), before=before)
    monkeypatch.setattr(owner, name, hook)
    try:
        yield hook
    finally:
        hook.go_on()


def cleanly_shut_down(path, values=5):
    owned = opened(path)
    owned.create_topic("t", 2, {"cleanup.policy": "delete"})
    for number in range(2):
        append(owned.log(TopicPartition("t", number)), [b"old"] * values)
    close_clean(owned)


def test_the_cleaners_line_is_of_the_log_that_was_cleaned(tmp_path, monkeypatch):
    """A pass that ends when its topic is another says nothing of that one."""
    owned = opened(tmp_path)
    owned.create_topic("t", 1, {"cleanup.policy": "compact"})
    log = owned.log(TP)
    log.append_batches(_keyed())
    log.roll()
    with stopped(monkeypatch, PartitionLog, "replace_segments", before=False) as replaced:
        cleaning = Doing(lambda: compact_partition(owned, TP))
        replaced.reached()
        owned.delete_topic("t")
        owned.create_topic("t", 1, {"cleanup.policy": "compact"})
        replaced.go_on()
        cleaning.done()
    assert cleaning.error is None
    assert owned.checkpoints.cleaner_offset(TP) is None
    assert TP not in (
        checkpoints.read(tmp_path / names.CLEANER_CHECKPOINT) if (tmp_path / names.CLEANER_CHECKPOINT).exists() else {}
    )
    close_clean(owned)


def _keyed():
    from storage.format.block import Record
    from storage.format.record_batch import encode_batch
    from tests.support.owned_dirs import NOW_MS

    return memoryview(bytearray(encode_batch([Record(b"k", b"%d" % number, (), NOW_MS) for number in range(9)])))


@pytest.mark.parametrize("instead", ["nothing", "another"])
def test_a_directory_that_somebody_takes_away_while_it_is_opened(tmp_path, monkeypatch, instead):
    """What was opened is not what is there: it does not count, and keeps nothing from being clean."""
    cleanly_shut_down(tmp_path / "dir", values=2)
    shutil.copytree(tmp_path / "dir" / "t-0", tmp_path / "other")
    owned = opened(tmp_path / "dir")
    append(owned.log(TP), [b"old"] * 3)
    close_clean(owned)
    owned = opened(tmp_path / "dir")
    with stopped(monkeypatch, Recovery, "run", before=False) as recovery:
        looking = Doing(lambda: owned.log(TP))
        recovery.reached()
        (tmp_path / "dir" / "t-0").rename(tmp_path / "aside")
        if instead == "another":
            (tmp_path / "other").rename(tmp_path / "dir" / "t-0")
        recovery.go_on()
        looking.done()
    assert isinstance(looking.error, UnknownTopicOrPartition if instead == "nothing" else PartitionOffline)
    if instead == "another":
        assert read(owned, "t") == [b"old"] * 2
    else:
        with pytest.raises(UnknownTopicOrPartition):
            owned.log(TP)
    assert not owned.failures()
    assert read(owned, "t", 1) == [b"old"] * 2
    close_clean(owned)


# Configurations


def test_a_configuration_that_could_be_written_in_part_is_in_force_where_it_says_so(tmp_path):
    """The first partition's file counts: logs go by it although the second's could not be written."""
    cleanly_shut_down(tmp_path / "dir")
    disk = FaultyDisk(tmp_path / "dir")
    owned = opened(tmp_path / "dir", disk=disk)
    log = owned.log(TP)
    disk.fail = lambda what, place: errno.ENOSPC if what.startswith("write") and place.parent.name == "t-1" else None
    with pytest.raises(OSError, match="No space"):
        owned.alter_config("t", {"max.message.bytes": "100"})
    disk.fail = lambda _what, _place: None
    assert owned.topic_info("t").config.max_message_bytes == 100
    assert log.config.max_message_bytes == 100
    assert owned.log(SECOND).config.max_message_bytes == 100  # which mends its file
    close_clean(owned)
    told = {path.parent.name: path.read_bytes() for path in (tmp_path / "dir").glob("t-*/topic.properties")}
    assert told["t-0"] == told["t-1"]


def test_two_who_want_it_rebuilt_and_opened_get_one_log(tmp_path, monkeypatch):
    """An index is rebuilt while somebody asks for the log: one opening at a time."""
    cleanly_shut_down(tmp_path)
    owned = opened(tmp_path)
    with stopped(monkeypatch, Recovery, "run", before=False) as recovery:
        rebuilding = Doing(lambda: owned.reindex(TP))
        recovery.reached()
        looking = Doing(lambda: owned.log(TP))
        looking.until_done_or_waiting()
        recovery.go_on()
        rebuilding.done()
        log = looking.done()
    assert rebuilding.error is None
    assert owned.log(TP) is log
    append(log, [b"new"])
    assert read(owned, "t") == [b"old"] * 5 + [b"new"]
    close_clean(owned)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_configuration_that_is_being_written_while_a_log_is_opened(tmp_path, monkeypatch, partition):
    """Recovery removes temporary files; the one that is about to get its name is not among them."""
    cleanly_shut_down(tmp_path)
    owned = opened(tmp_path)
    tp = TopicPartition("t", partition)
    with stopped(monkeypatch, owned.disk, "rename", before=True) as rename:
        changing = Doing(lambda: owned.alter_config("t", {"segment.bytes": "2000"}))
        rename.reached()
        with stopped(monkeypatch, Recovery, "run", before=False) as recovery:
            opening = Doing(lambda: owned.log(tp))
            recovery.reached()  # it is through
            rename.go_on()
            changing.done()
            recovery.go_on()
            opening.done()
    assert (changing.error, opening.error) == (None, None)
    assert not owned.failures()
    assert owned.log(tp).config.segment_bytes == 2000
    close_clean(owned)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_configuration_that_was_never_renamed_goes(tmp_path, partition):
    cleanly_shut_down(tmp_path)
    tp = TopicPartition("t", partition)
    left = tmp_path / tp.dir_name / "topic.properties.tmp"
    left.write_bytes(b"half")
    owned = opened(tmp_path)
    owned.log(tp)
    assert not left.exists()
    close_clean(owned)
