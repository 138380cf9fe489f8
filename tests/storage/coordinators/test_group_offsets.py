"""`__consumer_offsets` read: groups of every type, transactions, and a log that changes while it is followed."""

import gc
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.coordinators.group_commits import GroupCommitter
from storage.coordinators.group_state import state_of
from storage.coordinators.groups import GroupOffsets, GroupReplay
from storage.coordinators.offset_records import CommittedOffset, OffsetKey, encode_commit, encode_offset_key
from storage.errors import PartitionOffline
from storage.files.names import CONSUMER_OFFSETS_TOPIC, FileKind, segment_file
from storage.format import messages
from storage.format.block import Record
from storage.format.record_batch import encode_batch
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, Batch, abort, build_log_dir, commit
from tests.support.commands import output_of
from tests.support.damaged_bytes import flip
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.own_topics import golden
from tests.support.owned_dirs import opened
from tests.support.reference_views import content, tree_of

OFFSETS_TP = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)


def committed(group, offset, partition=0, topic="t"):
    """A commit; None takes it away."""
    value = None if offset is None else encode_commit(CommittedOffset(offset, commit_timestamp=5))
    return Record(encode_offset_key(OffsetKey(group, topic, partition)), value)


def built(path, *items):
    """A directory of kafkafs's own whose `__consumer_offsets` has one partition."""
    build_log_dir(path, {CONSUMER_OFFSETS_TOPIC: [items]}, broker=False)
    return LogDir.open_read_only(path)


def plain(groups):
    """ConsumerGroup → topic → partition → offset."""
    return {
        name: {topic: {number: one.offset for number, one in of.items()} for topic, of in group.offsets.items()}
        for name, group in groups.items()
    }


def offsets_in(log_dir):
    return plain(GroupOffsets(log_dir).groups())


@pytest.fixture
def reads(monkeypatch):
    """At which offset each reading of a log begins."""
    starts, read = [], GroupReplay.read

    def noted(replay, snapshot):
        starts.append(replay.next_offset)
        return read(replay, snapshot)

    monkeypatch.setattr(GroupReplay, "read", noted)
    return starts


@requires_fixtures
def test_the_fixtures_groups():
    expected = json.loads((FIXTURES / "groups" / "golden" / "expected-group-offsets.json").read_text())
    offsets = GroupOffsets(LogDir.open_read_only(FIXTURES / "groups" / "log"))
    found = {
        name: [
            {
                "leader_epoch": None if one.leader_epoch < 0 else one.leader_epoch,
                "metadata": one.metadata,
                "offset": one.offset,
                "partition": partition,
                "topic": topic,
            }
            for topic, partitions in sorted(group.offsets.items())
            for partition, one in sorted(partitions.items())
        ]
        for name, group in offsets.groups().items()
    }
    assert found == expected
    assert offsets.problems() == []
    members = offsets.group("größe-групп").metadata["members"]
    assert [one["clientHost"] for one in members] == ["/127.0.0.1"]
    assert offsets.group("simple-committer").metadata is None
    assert offsets.group("to-be-deleted") is None
    # Nobody here knows how many partitions the topic has, but where these groups are can be seen.
    assert {name: offsets.place(name) for name in expected} == {name: offsets.group(name).log for name in expected}
    assert offsets.place("new") is None


JOINED = Record(b"\0\2\0\1a", b"\0\3" + b"\0\0" + b"\0\0\0\1" + b"\xff\xff" * 2 + bytes(8) + b"\0\0\0\0")


def sent(group, offset, producer):
    return Batch([committed(group, offset)], producer_id=producer, transactional=True)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (
            [
                Batch([committed("a", 1), committed("a", 2, 1), committed("b", 9)]),
                Batch([committed("a", 3), committed("b", None), committed("c", None), committed("a", 4, 0, "u")]),
            ],
            {"a": {"t": {0: 3, 1: 2}, "u": {0: 4}}},
        ),
        # Without commits they are groups while they have metadata.
        ([Batch([JOINED, committed("a", 1)]), Batch([committed("a", None)])], {"a": {}}),
        ([Batch([JOINED, committed("a", 1)]), Batch([committed("a", None), JOINED._replace(value=None)])], {}),
        (
            [
                sent("done", 1, 7),
                sent("aborted", 1, 8),
                sent("open", 1, 9),
                Batch([committed("overtaken", 1), committed("aborted", 5)]),
                sent("overtaken", 2, 7),
                Batch([committed("overtaken", 3)]),  # after the transaction's commit of it: that is the older one
                sent("removed", 4, 7),
                Batch([committed("removed", None)]),
                commit(7),
                abort(8),
                sent("done", 2, 7),  # again open
            ],
            {"done": {"t": {0: 1}}, "overtaken": {"t": {0: 3}}, "aborted": {"t": {0: 5}}},
        ),
    ],
    ids=["the latest counts", "joined", "gone", "transactions"],
)
def test_what_counts(tmp_path, items, expected):
    offsets = GroupOffsets(built(tmp_path, *items))
    assert plain(offsets.groups()) == expected
    assert offsets.problems() == []


def test_what_does_not_parse_is_passed_over_and_told(tmp_path):
    key = encode_offset_key(OffsetKey("a", "t", 0))
    strange = [
        Record(key, b"\0\3short"),
        Record(key, b"\0\7" + bytes(30)),  # a version of the future
        Record(None, b"x"),
        Record(b"\0", b"x"),
        Record(b"\0\3\0\1c", b"\0\0"),  # of another kind, and cut off
        Record(b"\0\x63\0\1a", b"\0\0"),  # a kind that nobody knows
        Record(b"\0\1\xff", b"x"),
    ]
    offsets = GroupOffsets(built(tmp_path, Batch([committed("a", 1), *strange]), Batch([committed("b", 2)])))
    assert plain(offsets.groups()) == {"a": {"t": {0: 1}}, "b": {"t": {0: 2}}, "c": {}}
    problems = offsets.problems()
    assert all(CONSUMER_OFFSETS_TOPIC in problem for problem in problems)
    assert [f"offset {n}" in problem for n, problem in zip((1, 2, 3, 4, 5, 7), problems, strict=True)] == [True] * 6


def test_a_damaged_batch_is_told_and_the_rest_is_read(tmp_path):
    log_dir = built(tmp_path, Batch([committed("a", 1)]), Batch([committed("a", 2)]), ROLL, Batch([committed("b", 3)]))
    flip(tmp_path / OFFSETS_TP.dir_name / segment_file(0, FileKind.LOG), -3)
    offsets = GroupOffsets(log_dir)
    assert plain(offsets.groups()) == {"a": {"t": {0: 1}}, "b": {"t": {0: 3}}}
    assert "checksum" in offsets.problems()[0]


maybe_bytes = st.none() | st.binary(max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(maybe_bytes, maybe_bytes), max_size=8), st.randoms())
def test_any_records_are_read(tmp_path_factory, records, dice):
    head = [b"\0\0", b"\0\1", b"\0\2", b"\0\3", b""]
    made = [
        Record(None if key is None else dice.choice(head) + key, None if value is None else dice.choice(head) + value)
        for key, value in records
    ]
    log_dir = built(tmp_path_factory.mktemp("any"), Batch([*made, committed("a", 1)]))
    assert offsets_in(log_dir)["a"] == {"t": {0: 1}}


class LiveOffsets:
    """A partition of `__consumer_offsets` that a test writes as a broker would, while it is read."""

    def __init__(self, path):
        self.path = path / OFFSETS_TP.dir_name
        self.path.mkdir(parents=True)
        self.next_offset = 0
        self.base = 0
        self.log.touch()
        self.offsets = GroupOffsets(LogDir.open_read_only(path))

    @property
    def log(self):
        return self.path / segment_file(self.base, FileKind.LOG)

    def append(self, *records):
        with self.log.open("ab") as file:
            file.write(encode_batch(records, base_offset=self.next_offset))
        self.next_offset += len(records)

    def roll(self):
        self.base = self.next_offset
        self.log.touch()

    def groups(self):
        return {name: of.get("t") for name, of in plain(self.offsets.groups()).items()}


def test_following_reads_what_is_new_and_no_more(tmp_path, reads):
    live = LiveOffsets(tmp_path)
    assert live.groups() == {}
    reads.clear()
    live.append(committed("a", 1), committed("b", 1))
    before = live.offsets.groups()
    assert plain(before) == {"a": {"t": {0: 1}}, "b": {"t": {0: 1}}}
    live.append(committed("a", 2))
    after = live.offsets.groups()
    assert plain(after) == {"a": {"t": {0: 2}}, "b": {"t": {0: 1}}}
    assert after["b"] is before["b"]
    assert plain(before)["a"] == {"t": {0: 1}}
    live.roll()
    live.append(committed("b", None))
    assert live.groups() == {"a": {0: 2}}
    assert live.offsets.group("b") is None
    assert reads == [0, 2, 3]


def test_following_a_compacted_log(tmp_path):
    """A tombstone that came and went between two looks is noticed, for the segments that were read have gone."""
    live = LiveOffsets(tmp_path)
    live.append(committed("a", 1), committed("b", 1))
    live.roll()
    assert live.groups() == {"a": {0: 1}, "b": {0: 1}}
    old = live.path / segment_file(0, FileKind.LOG)
    live.append(committed("a", None))
    live.roll()
    # What the cleaner leaves of both segments, in the place of the first.
    cleaned = live.path / (old.name + ".cleaned")
    cleaned.write_bytes(encode_batch([committed("b", 1)], base_offset=1))
    cleaned.rename(old)
    (live.path / segment_file(2, FileKind.LOG)).unlink()
    assert live.groups() == {"b": {0: 1}}


def test_following_a_truncated_and_a_remade_log(tmp_path):
    live = LiveOffsets(tmp_path)
    live.append(committed("a", 1))
    size = live.log.stat().st_size
    live.append(committed("a", 2), committed("b", 2))
    assert live.groups() == {"a": {0: 2}, "b": {0: 2}}
    os.truncate(live.log, size)
    live.next_offset = 1
    assert live.groups() == {"a": {0: 1}}
    live.append(committed("c", 3))
    assert live.groups() == {"a": {0: 1}, "c": {0: 3}}
    live.log.rename(live.log.with_suffix(".elsewhere"))
    live.next_offset = 0
    live.append(committed("d", 4))
    assert live.groups() == {"d": {0: 4}}


def test_a_partition_that_cannot_be_read(tmp_path):
    """Its groups fail when they are asked for; the others are there."""
    owned = opened(tmp_path)
    offsets = GroupOffsets(owned.log_dir)
    for group in "ab":
        GroupCommitter(owned, offsets, partitions=2).commit(group, {TopicPartition("t", 0): 1})
    places = {name: offsets.place(name) for name in "ab"}
    assert sorted(places.values()) == [0, 1]
    assert owned.close().clean
    broken = LogDir.open_read_only(tmp_path)
    good = broken.log

    def log(tp):
        if tp.partition == places["a"]:
            raise PartitionOffline(f"{tp} is offline")
        return good(tp)

    broken.log = log
    offsets = GroupOffsets(broken)
    with pytest.raises(PartitionOffline):
        offsets.group("a")
    assert offsets.group("b") is not None
    assert list(offsets.groups()) == ["b"]
    (problem,) = offsets.problems()
    assert "offline" in problem


def test_more_groups_than_memory_is_allowed_for(tmp_path, monkeypatch, reads):
    groups = [[Batch([committed("a", 1)])], [Batch([committed(f"g{n}", 1) for n in range(5000)])]]
    build_log_dir(tmp_path, {CONSUMER_OFFSETS_TOPIC: groups}, broker=False)
    gc.collect()  # states of earlier tests are in memory until then
    monkeypatch.setattr(messages, "MOST_HELD", messages.held_by_all() + (256 << 10))
    offsets = GroupOffsets(LogDir.open_read_only(tmp_path))
    for _ in range(2):
        assert plain(offsets.groups()) == {"a": {"t": {0: 1}}}
    (problem,) = offsets.problems()
    assert "take too much memory; expected at most" in problem
    assert f"{CONSUMER_OFFSETS_TOPIC}-1" in problem
    assert len(reads) == 2  # what failed is not read again before it changes
    monkeypatch.setattr(messages, "MOST_HELD", 64 << 20)
    with (tmp_path / f"{CONSUMER_OFFSETS_TOPIC}-1" / segment_file(0, FileKind.LOG)).open("ab") as file:
        file.write(encode_batch([committed("b", 2)], base_offset=5000))
    assert len(offsets.groups()) == 5002


def test_commits_that_replace_others_take_no_memory(tmp_path, monkeypatch):
    log_dir = built(tmp_path, *(Batch([committed("a", n, n % 3) for n in range(1000)]) for _ in range(12)))
    gc.collect()  # states of earlier tests are in memory until then
    monkeypatch.setattr(messages, "MOST_HELD", messages.held_by_all() + (16 << 20))
    assert offsets_in(log_dir) == {"a": {"t": {0: 999, 1: 997, 2: 998}}}


LOGS = FIXTURES / "internal" / "log"


def states(path):
    log_dir = LogDir.open_read_only(path)
    return {name: state_of(group, log_dir.topics_by_id) for name, group in GroupOffsets(log_dir).groups().items()}


@requires_fixtures
def test_groups_of_every_type():
    found = states(LOGS)
    types = {name: (state["type"], state["state"], len(state["members"])) for name, state in found.items()}
    assert types == {
        "again-tx-group": ("classic", "Empty", 0),
        "billing": ("classic", "Stable", 1),
        "k848": ("consumer", "Stable", 1),
        "shared": ("share", "Stable", 1),
        "streams-live": ("streams", "Reconciling", 1),
        **{name: kind for name, kind in types.items() if kind == ("classic", "Empty", 0)},
    }
    (member,) = found["billing"]["members"]
    assert member["subscribed_topics"] == ["orders"]
    assert member["assignment"] == [{"topic": "orders", "partitions": [0, 1, 2]}]
    assert (found["billing"]["protocol"], found["billing"]["leader"]) == ("range", member["member_id"])
    (member,) = found["k848"]["members"]
    assigned = [("orders", [0, 1, 2]), ("payments", [0, 1, 2, 3])]
    assert [(one["topic"], one["partitions"]) for one in member["assignment"]] == assigned
    assert sorted(member["assignment"], key=str) == sorted(member["target_assignment"], key=str)
    assert member["member_epoch"] == found["k848"]["assignment_epoch"] == found["k848"]["epoch"]
    assert [one["topic"] for one in found["shared"]["initialized_partitions"]] == ["jobs"]
    assert [one["subtopology"] for one in found["streams-live"]["members"][0]["assignment"]["active"]] == ["0", "1"]
    assert found["streams-live"]["topology"]["subtopologies"]
    # By the golden lines: the last value of each key of the group's members.
    last = {}
    for number in (0, 1):
        for line in golden("internal", f"__consumer_offsets-{number}"):
            if line.get("key", {"data": {}})["data"].get("groupId") == "k848":
                last[json.dumps(line["key"])] = line["key"], line["value"]
    current = [value["data"] for key, value in last.values() if key["type"] == 8 and value is not None]
    assert [member["member_epoch"]] == [one["memberEpoch"] for one in current]


@requires_fixtures
def test_the_file_the_command_and_the_tree_agree():
    for name, state in states(LOGS).items():
        assert json.loads(content(tree_of(LOGS), f"/@groups/{name}/@state.json")) == state
        printed = json.loads(output_of("groups", LOGS, name, "--json"))
        assert {key: printed[key] for key in state} == state
    lines = output_of("groups", LOGS, "billing").decode().splitlines()
    assert lines[-1].split()[-2:] == ["3", "orders(0,1,2)"]


def test_what_other_protocols_send_and_what_cannot_be_read(tmp_path):
    """The members' bytes stay base64; records that cannot be read leave their part out."""

    def joined(group, protocol_type, subscription):
        key = b"\0\2" + len(group).to_bytes(2, "big") + group.encode()
        text = len(protocol_type).to_bytes(2, "big") + protocol_type
        member = b"\0\1m\xff\xff\0\1c\0\1h" + b"\0\0\0\1" * 2
        member += len(subscription).to_bytes(4, "big") + subscription + b"\0\0\0\0"
        return Record(key, b"\0\3" + text + b"\0\0\0\1\0\1p\0\1m" + bytes(8) + b"\0\0\0\1" + member, (), 5)

    records = [
        joined("connect", b"connect", b"abc"),
        joined("broken", b"consumer", b"abc"),
        Record(b"\0\2\0\4gone", b"\0\3cut", (), 5),
        Record(b"\0\x10\0\1g\0\1r", b"\0\0\0", (), 5),  # ConsumerGroupRegularExpression
        Record(b"\0\x0f\0\1s", b"\0\0\0", (), 5),  # ShareGroupStatePartitionMetadata
    ]
    build_log_dir(tmp_path, {"__consumer_offsets": [[Batch(records)]]})
    found = states(tmp_path)
    for name, assignment in (("connect", ""), ("broken", [])):
        (member,) = found[name]["members"]
        assert (member["subscription"], member["group_instance_id"]) == ("YWJj", None)
        assert member["assignment"] == assignment
    assert found["gone"]["state"] == "Empty"
    assert found["g"]["regular_expressions"] == {"r": None}
    assert found["s"]["initialized_partitions"] == []
