"""The quick way of plain lines and the general way leave the same files, and so does a follower of either."""

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.writing import destinations
from kafkafs.writing.destinations import open_target
from kafkafs.writing.line_parsers import parse_txt
from kafkafs.writing.line_writer import LineWriter
from storage.append.partitioner import Partitioner
from storage.config import BrokerConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.format.batches import BatchTable, scan
from storage.types import TopicPartition
from tests.support.owned_dirs import HastyDisk, StandingClock, close_clean, tree_of

CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "compression.type": st.sampled_from(["producer", "uncompressed", "lz4", "snappy"]),
        "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
        "message.format.version": st.sampled_from(["0.9.0", "0.10.2", "3.0"]),
        "cleanup.policy": st.sampled_from(["delete", "compact"]),
        "segment.bytes": st.sampled_from(["300", "1000", "5000"]),
        "segment.ms": st.sampled_from(["1", "50", "5000"]),
        "segment.index.bytes": st.sampled_from(["8", "24", "60", "1000"]),
        "index.interval.bytes": st.sampled_from(["0", "100", "1000"]),
        "max.message.bytes": st.sampled_from(["90", "400", "5000"]),
        "flush.messages": st.sampled_from(["1", "3"]),
        "preallocate": st.just("true"),
    },
)
WRITES = st.lists(
    st.tuples(
        st.sampled_from([b"", b"a", b"x" * 100, b"y" * 700])
        .flatmap(lambda part: st.lists(st.sampled_from([part, b"", b"line"]), max_size=8))
        .flatmap(lambda parts: st.sampled_from([b"\n".join(parts), b"".join(part + b"\n" for part in parts)])),
        st.sampled_from([0, 1, 100]),  # milliseconds that pass then
    ),
    max_size=12,
)


class Unknown:
    """A destination that a writer does not know, so that it parses every line for it."""

    def __init__(self, target):
        self.append, self.sync = target.append, target.sync
        self.longest_line = target.longest_line


def owned_dir(path, config, partitions):
    clock = StandingClock()
    broker_config = BrokerConfig.from_values({})
    owned = OwnedDir.open(path, Opening(create=True), config=broker_config, disk=HastyDisk(), clock=clock)
    owned.create_topic("t", partitions, config)
    return owned, clock


def files_of(path):
    """A topic's id is chance."""
    return {name: content for name, content in tree_of(path, ("partition.metadata",)).items() if name.startswith("t-")}


def written(path, config, partitions, writes, *, quick):
    """The files that these writes leave, what each answered and refused, and how many took the quick way.

    One partition is written to by itself, several by way of their topic.
    """
    owned, clock = owned_dir(path, config, partitions)
    target = open_target(owned, TopicPartition("t", 0) if partitions == 1 else "t")
    append_lines, quickly = target.append_lines, []

    def noting(*arguments):
        done = append_lines(*arguments)
        if done is not None:
            quickly.append(done)
        return done

    target.append_lines = noting
    answers = []
    destination = target if quick else Unknown(target)
    writer = LineWriter(destination, parse_txt, lambda line, error: answers.append((line, str(error))))
    for data, passing_ms in writes:
        try:
            answers.append(writer.write(data))
        except Exception as error:  # noqa: BLE001 - whatever it is, both ways must give it
            answers.append(str(error))
        clock.time_ms += passing_ms
    close_clean(owned)
    return files_of(path), answers, len(quickly)


def follow(path, config, leader):
    """The files of a follower that gets the leader's batches one by one."""
    owned, _ = owned_dir(path, config, 1)
    log = owned.log(TopicPartition("t", 0))
    for name in sorted(leader):
        if name.endswith(".log"):
            data = memoryview(leader[name])
            table = BatchTable.empty(1000)
            scan(data, 0, table)
            for start, end in zip(table.position.tolist(), table.end.tolist(), strict=True):
                log.append_batches(data[start:end])
    close_clean(owned)
    return files_of(path)


@given(config=CONFIGS, partitions=st.sampled_from([1, 1, 3]), writes=WRITES)
def test_all_ways_leave_the_same_files(config, partitions, writes):
    def chosen(_count):
        """The same chance in both ways; one of the partitions is not here."""
        return Partitioner(partitions + 1, sticky_bytes=300, chance=random.Random(7))

    with tempfile.TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patch:
        patch.setattr(destinations, "Partitioner", chosen)
        root = Path(temporary)
        files, answers, quick = written(root / "quick", config, partitions, writes, quick=True)
        general, general_answers, _ = written(root / "general", config, partitions, writes, quick=False)
        assert answers == general_answers
        assert files == general
        plain = {"compression.type", "message.format.version", "cleanup.policy", "max.message.bytes", "segment.bytes"}
        if not plain & set(config):
            # With the line begun, each write that ends a line takes the quick way.
            assert quick == sum(b"\n" in data for data, _ in writes)
        # Older formats give several batches a write.
        if partitions == 1 and config.get("message.format.version", "3.0") == "3.0":
            assert follow(root / "follower", config, files) == files
