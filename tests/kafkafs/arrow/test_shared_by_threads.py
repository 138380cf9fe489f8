"""Threads share a log, its topics, partitions and scans: whatever others do meanwhile, each sees a state that existed.

All orders are tried in which one thread is interrupted once (`tests.support.interleaving`).
"""

from functools import partial

import pytest

import kafkafs
from storage.errors import OffsetOutOfRange
from tests.simulation.locks import simulated_locks
from tests.support.builders import Batch, build_log_dir, many
from tests.support.interleaving import interrupted, points

pytest.importorskip("pyarrow")

MODULES = ("kafkafs.arrow.log_dirs", "kafkafs.arrow.opened_log", "storage.log.log_dir")
SCANS = (*MODULES, "kafkafs.arrow.scan", "kafkafs.reading.split_reader")

# What a thread does with the topic that the threads share.
USES = {
    "the topics": lambda log, _: sorted(log.topics),
    "the partitions": lambda _, topic: list(topic.partitions),
    "the offsets of a topic": lambda _, topic: topic.offsets,
    "the offsets of a partition": lambda _, topic: topic[1].offsets,
    "the configuration": lambda _, topic: topic.config,
    "a scan": lambda _, topic: topic.scan().offsets,
    "a scan of a partition": lambda _, topic: topic[1].scan().offsets,
    "the latest messages": lambda _, topic: topic.scan(latest=True).offsets,
    "messages": lambda _, topic: [(message.partition, message.offset) for message in topic.messages()],
}
READ = ("messages",)  # after the scan was made: messages may be gone meanwhile


class Shared:
    """Two log directories, and what the threads share of them. Another thread finds that a partition was moved."""

    def __init__(self, path, partitions, source, target):
        made = build_log_dir(path / "a", {"t": [[Batch(many(n + 3))] for n in range(2)], "u": [[b"x"]]}, broker=False)
        if partitions == 1:
            (made.path / "t-0").rename(path / "t-0")
        build_log_dir(path / "b", {"u": [[b"x"]]}, broker=False)
        self._path, self._source, self._target = path, path / source, path / target
        self.log = self._opened()
        self.topic = self.log["t"]

    def _opened(self):
        return kafkafs.open([self._path / "a", self._path / "b"])

    def restore(self):
        """As it was, and opened anew."""
        if self._target.exists():
            self._target.rename(self._source)
        self.log = self._opened()
        self.topic = self.log["t"]

    def change(self):
        if self._source.exists():
            self._source.rename(self._target)
        assert "u" in self.log.topics

    def outcome(self, use):
        try:
            return use(self.log, self.topic)
        except KeyError:
            return KeyError
        except OffsetOutOfRange:
            return OffsetOutOfRange


CHANGES = {
    "the only partition is removed": (1, "a/t-1", "gone"),
    "a partition is removed": (2, "a/t-1", "gone"),
    "a partition is moved to another directory": (2, "a/t-1", "b/t-1"),
}


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory):
    """All modules that a use imports: only the locks of those that are there can be simulated."""
    path = build_log_dir(tmp_path_factory.mktemp("log"), {"t": [[Batch(many(2))]] * 2}, broker=False).path
    log = kafkafs.open(path)
    for use in USES.values():
        use(log, log["t"])
    log["t"].scan().to_arrow()


@pytest.fixture(params=CHANGES)
def shared(request, tmp_path):
    with simulated_locks():
        yield Shared(tmp_path, *CHANGES[request.param])


@pytest.mark.parametrize("name", USES)
def test_what_a_thread_sees_while_another_finds_a_change(shared, name):
    look = partial(shared.outcome, USES[name])
    allowed = [look()]
    shared.change()
    allowed.append(look())
    if name in READ:
        allowed.append(OffsetOutOfRange)
    shared.restore()
    modules = SCANS if name in READ else MODULES
    for point in points(look, modules):
        shared.restore()
        assert interrupted(look, modules, point, shared.change) in allowed, point


@pytest.mark.parametrize("name", USES)
def test_what_a_thread_sees_of_a_change_that_another_is_finding(shared, name):
    look = partial(shared.outcome, USES[name])
    allowed = [look()]
    shared.change()
    allowed += [look(), *([OffsetOutOfRange] if name in READ else ())]
    shared.restore()
    for point in points(shared.change, MODULES):
        shared.restore()
        seen = []
        interrupted(shared.change, MODULES, point, partial(note, seen, look))
        assert not seen or seen[0] in allowed, point


def note(seen, look):
    seen.append(look())


def test_passes_over_one_scan(tmp_path):
    """Each has all the messages, and what they read is added up."""
    path = build_log_dir(tmp_path, {"t": [[Batch(many(5))], [Batch(many(7))]]}, broker=False).path
    with simulated_locks():
        shared = kafkafs.open(path)["t"].scan(columns="offset")
        alone, once = shared.to_arrow(), shared.bytes_read
        for point in points(shared.to_arrow, SCANS):
            shared = kafkafs.open(path)["t"].scan(columns="offset")
            tables = []
            tables.append(interrupted(shared.to_arrow, SCANS, point, partial(note, tables, shared.to_arrow)))
            assert all(table.equals(alone) for table in tables), point
            assert len(tables) == 1 or shared.bytes_read == 2 * once, point
