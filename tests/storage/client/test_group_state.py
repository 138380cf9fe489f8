"""`@state.json` of every type of group, from a broker's `__consumer_offsets`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from storage.coordinators.groups import GroupOffsets, state_of
from storage.format.block import Record
from storage.log.log_dir import LogDir
from tests.support.builders import Batch, build_log_dir
from tests.support.commands import output_of
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.own_topics import golden
from tests.support.reference_views import content, tree_of

LOGS = FIXTURES / "internal" / "log"


def states(path: Path) -> dict[str, dict[str, Any]]:
    log_dir = LogDir.open_read_only(path)
    return {name: state_of(group, log_dir.topics_by_id) for name, group in GroupOffsets(log_dir).groups().items()}


@requires_fixtures
def test_groups_of_every_type() -> None:
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
    assert [(one["topic"], one["partitions"]) for one in member["assignment"]] == [
        ("orders", [0, 1, 2]),
        ("payments", [0, 1, 2, 3]),
    ]
    assert sorted(member["assignment"], key=str) == sorted(member["target_assignment"], key=str)
    assert member["member_epoch"] == found["k848"]["assignment_epoch"] == found["k848"]["epoch"]
    assert [one["topic"] for one in found["shared"]["initialized_partitions"]] == ["jobs"]
    assert [one["subtopology"] for one in found["streams-live"]["members"][0]["assignment"]["active"]] == ["0", "1"]
    assert found["streams-live"]["topology"]["subtopologies"]


@requires_fixtures
def test_the_last_records_of_a_group_are_what_is_shown() -> None:
    """By the golden lines: the last value of each key of the group's members."""
    last: dict[str, Any] = {}
    for number in (0, 1):
        for line in golden("internal", f"__consumer_offsets-{number}"):
            if line.get("key", {"data": {}})["data"].get("groupId") == "k848":
                last[json.dumps(line["key"])] = line["key"], line["value"]
    current = [value["data"] for key, value in last.values() if key["type"] == 8 and value is not None]
    shown = states(LOGS)["k848"]["members"]
    assert [one["member_epoch"] for one in shown] == [one["memberEpoch"] for one in current]


@requires_fixtures
def test_the_file_the_command_and_the_tree_agree() -> None:
    for name, state in states(LOGS).items():
        assert json.loads(content(tree_of(LOGS), f"/@groups/{name}/@state.json")) == state
        printed = json.loads(output_of("groups", LOGS, name, "--json"))
        assert {key: printed[key] for key in state} == state
    lines = output_of("groups", LOGS, "billing").decode().splitlines()
    assert lines[-1].split()[-2:] == ["3", "orders(0,1,2)"]


def test_what_other_protocols_send_and_what_cannot_be_read_stays_base64(tmp_path: Path) -> None:
    def joined(group: str, protocol_type: bytes, subscription: bytes) -> Record:
        key = b"\0\2" + len(group).to_bytes(2, "big") + group.encode()
        text = len(protocol_type).to_bytes(2, "big") + protocol_type
        member = b"\0\1m\xff\xff\0\1c\0\1h" + b"\0\0\0\1" * 2
        member += len(subscription).to_bytes(4, "big") + subscription + b"\0\0\0\0"
        return Record(key, b"\0\3" + text + b"\0\0\0\1\0\1p\0\1m" + bytes(8) + b"\0\0\0\1" + member, (), 5)

    records = [joined("connect", b"connect", b"abc"), joined("broken", b"consumer", b"abc")]
    records.append(Record(b"\0\2\0\4gone", b"\0\3cut", (), 5))
    build_log_dir(tmp_path, {"__consumer_offsets": [[Batch(records)]]})
    found = states(tmp_path)
    for name in ("connect", "broken"):
        (member,) = found[name]["members"]
        assert (member["subscription"], member["group_instance_id"]) == ("YWJj", None)
    assert found["connect"]["members"][0]["assignment"] == ""
    assert found["broken"]["members"][0]["assignment"] == []
    assert found["gone"]["state"] == "Empty"


def test_records_that_cannot_be_read_leave_their_part_out(tmp_path: Path) -> None:
    records = [
        Record(b"\0\x10\0\1g\0\1r", b"\0\0\0"),  # ConsumerGroupRegularExpression
        Record(b"\0\x0f\0\1s", b"\0\0\0"),  # ShareGroupStatePartitionMetadata
    ]
    build_log_dir(tmp_path / "log", {"__consumer_offsets": [[Batch(records)]]})
    found = states(tmp_path / "log")
    assert found["g"]["regular_expressions"] == {"r": None}
    assert found["s"]["initialized_partitions"] == []
