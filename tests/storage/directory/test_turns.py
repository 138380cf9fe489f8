"""Topics that are removed, made again and described while others open their logs: each order of events that hurt.

One thread is stopped in the middle of what it does; another then goes on until it has done its work or waits for a
turn; then the first goes on.
"""

import errno
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from storage.append.partition_log import PartitionLog
from storage.compaction.partition_compaction import compact_partition
from storage.directory import owned_logs
from storage.directory.owned_dir import OwnedDir
from storage.errors import PartitionOffline, UnknownTopicOrPartition
from storage.files import checkpoints, names
from storage.format.block import Record
from storage.format.record_batch import encode_batch
from storage.recovery.recovery import Recovery
from storage.types import TopicPartition
from tests.support.owned_dirs import NOW_MS, append, close_clean, opened, read

TP = TopicPartition("t", 0)
SECOND = TopicPartition("t", 1)
BOUND_S = 60


class Stopped:
    """A call that waits, when it is first made, until `go_on`: before it begins or after it is through."""

    def __init__(self, call, *, before):
        self._call = call
        self._before = before
        self._reached, self._go_on = threading.Event(), threading.Event()
        self._first = threading.Lock()

    def __call__(self, *arguments):
        if not self._first.acquire(blocking=False):
            return self._call(*arguments)
        result = None if self._before else self._call(*arguments)
        self._reached.set()
        assert self._go_on.wait(BOUND_S)
        return self._call(*arguments) if self._before else result

    def __get__(self, instance, owner):
        return lambda *arguments: self(instance, *arguments)

    def reached(self):
        assert self._reached.wait(BOUND_S)

    def go_on(self):
        self._go_on.set()


@contextmanager
def stopped(monkeypatch, owner, name, *, before=False):
    hook = Stopped(getattr(owner, name), before=before)
    monkeypatch.setattr(owner, name, hook)
    try:
        yield hook
    finally:
        hook.go_on()


@pytest.fixture
def doing():
    """Starts work in another thread: a future."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def cleanly_shut_down(path, values=5):
    owned = opened(path)
    owned.create_topic("t", 2, {"cleanup.policy": "delete"})
    for tp in (TP, SECOND):
        append(owned.log(tp), [b"old"] * values)
    close_clean(owned)


def test_the_cleaners_line_is_of_the_log_that_was_cleaned(tmp_path, monkeypatch, doing):
    """A pass that ends when its topic is another says nothing of that one."""
    owned = opened(tmp_path)
    owned.create_topic("t", 1, {"cleanup.policy": "compact"})
    log = owned.log(TP)
    records = [Record(b"k", b"%d" % number, (), NOW_MS) for number in range(9)]
    log.append_batches(memoryview(bytearray(encode_batch(records))))
    log.roll()
    with stopped(monkeypatch, PartitionLog, "replace_segments") as replaced:
        cleaning = doing(compact_partition, owned, TP)
        replaced.reached()
        owned.delete_topic("t")
        owned.create_topic("t", 1, {"cleanup.policy": "compact"})
        replaced.go_on()
        cleaning.result(BOUND_S)
    assert owned.checkpoints.cleaner_offset(TP) is None
    path = tmp_path / names.CLEANER_CHECKPOINT
    assert not path.exists() or TP not in checkpoints.read(path)
    close_clean(owned)


def test_a_message_that_comes_while_an_empty_topic_is_removed_keeps_it(tmp_path, monkeypatch, doing):
    owned = opened(tmp_path)
    owned.create_topic("t", 2)
    with stopped(monkeypatch, OwnedDir, "is_empty") as looked:
        removing = doing(owned.delete_topic, "t", only_empty=True)
        looked.reached()
        append(owned.log(SECOND), [b"new"])
        looked.go_on()
        error = removing.exception(BOUND_S)
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOTEMPTY
    assert read(owned, "t", 1) == [b"new"]
    close_clean(owned)


@pytest.mark.parametrize("instead", ["nothing", "another"])
def test_a_directory_that_somebody_takes_away_while_it_is_opened(tmp_path, monkeypatch, doing, instead):
    """What was opened is not what is there: it does not count, and keeps nothing from being clean."""
    cleanly_shut_down(tmp_path / "dir", values=2)
    shutil.copytree(tmp_path / "dir" / "t-0", tmp_path / "other")
    owned = opened(tmp_path / "dir")
    append(owned.log(TP), [b"old"] * 3)
    close_clean(owned)
    owned = opened(tmp_path / "dir")
    with stopped(monkeypatch, Recovery, "run") as recovery:
        looking = doing(owned.log, TP)
        recovery.reached()
        (tmp_path / "dir" / "t-0").rename(tmp_path / "aside")
        if instead == "another":
            (tmp_path / "other").rename(tmp_path / "dir" / "t-0")
        recovery.go_on()
        error = looking.exception(BOUND_S)
    if instead == "another":
        assert isinstance(error, PartitionOffline)
        assert read(owned, "t") == [b"old"] * 2
    else:
        assert isinstance(error, UnknownTopicOrPartition)
        with pytest.raises(UnknownTopicOrPartition):
            owned.log(TP)
    assert not owned.failures()
    assert read(owned, "t", 1) == [b"old"] * 2
    close_clean(owned)


def test_two_who_want_it_rebuilt_and_opened_get_one_log(tmp_path, monkeypatch, doing):
    """An index is rebuilt while somebody asks for the log: one opening at a time."""
    waiting = threading.Event()

    class Turn:
        """A lock that tells when somebody waits for it."""

        def __init__(self):
            self._lock = threading.RLock()

        def __enter__(self):
            if not self._lock.acquire(blocking=False):
                waiting.set()
                self._lock.acquire()

        def __exit__(self, *_):
            self._lock.release()

    cleanly_shut_down(tmp_path)
    monkeypatch.setattr(owned_logs, "RLock", Turn)
    owned = opened(tmp_path)
    with stopped(monkeypatch, Recovery, "run") as recovery:
        rebuilding = doing(owned.reindex, TP)
        recovery.reached()
        looking = doing(owned.log, TP)
        looking.add_done_callback(lambda _: waiting.set())
        assert waiting.wait(BOUND_S)
        recovery.go_on()
        rebuilding.result(BOUND_S)
        log = looking.result(BOUND_S)
    assert owned.log(TP) is log
    append(log, [b"new"])
    assert read(owned, "t") == [b"old"] * 5 + [b"new"]
    close_clean(owned)


@pytest.mark.parametrize("tp", [TP, SECOND])
def test_a_configuration_that_is_being_written_while_a_log_is_opened(tmp_path, monkeypatch, doing, tp):
    """Recovery removes temporary files of a change that was never made, but not one that is about to get its name."""
    cleanly_shut_down(tmp_path)
    left = tmp_path / tp.dir_name / "topic.properties.tmp"
    left.write_bytes(b"half")
    owned = opened(tmp_path)
    owned.log(tp)
    assert not left.exists()
    close_clean(owned)
    owned = opened(tmp_path)
    with stopped(monkeypatch, owned.disk, "rename", before=True) as rename:
        changing = doing(owned.alter_config, "t", {"segment.bytes": "2000"})
        rename.reached()
        with stopped(monkeypatch, Recovery, "run") as recovery:
            opening = doing(owned.log, tp)
            recovery.reached()  # it is through
            rename.go_on()
            changing.result(BOUND_S)
            recovery.go_on()
            opening.result(BOUND_S)
    assert not owned.failures()
    assert owned.log(tp).config.segment_bytes == 2000
    close_clean(owned)
