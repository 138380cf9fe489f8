"""`decoded.jsonl` of Kafka's own topics: in the tree and by `cat` as Kafka's own classes print the records."""

import json

import pytest

from storage.format.block import Record
from tests.support.builders import build_log_dir
from tests.support.commands import output_of, run
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.own_topics import PARTITIONS, golden, tp_of, without_name
from tests.support.reference_views import content, parsed, tree_of

PLAIN = ("topic", "partition", "offset", "timestamp", "timestampType", "headers")


def records(fixture, partition):
    return [line for line in golden(fixture, partition) if "control" not in line]


@requires_fixtures
@pytest.mark.parametrize(("fixture", "partition"), PARTITIONS)
def test_the_view_shows_what_kafkas_classes_print(fixture, partition):
    logs, tp = FIXTURES / fixture / "log", tp_of(partition)
    tree, directory = tree_of(logs), f"/{tp.topic}/{tp.partition}"
    view = content(tree, f"{directory}/messages.decoded.jsonl")
    shown = parsed(view)
    plain = parsed(content(tree, f"{directory}/messages.jsonl"))
    wanted = records(fixture, partition)
    found = [{"offset": one["offset"], "key": without_name(one["key"]), "value": one["value"]} for one in shown]
    assert found == wanted
    for line, other in zip(shown, plain, strict=True):
        assert {name: line[name] for name in PLAIN} == {name: other[name] for name in PLAIN}
        assert (line["keySchema"], line["valueSchema"], "error" in line) == (None, None, False)
    middle = wanted[len(wanted) // 2]["offset"] if wanted else 0
    part = content(tree, f"{directory}/offsets/{middle}-.decoded.jsonl")
    assert part == b"".join(line for line in view.splitlines(True) if json.loads(line)["offset"] >= middle)


@requires_fixtures
def test_latest_is_the_state_of_all_groups():
    tree = tree_of(FIXTURES / "internal" / "log")
    state = {}
    for number in (0, 1):
        for line in records("internal", f"__consumer_offsets-{number}"):
            state[json.dumps(line["key"])] = line["value"]
    shown = parsed(content(tree, "/__consumer_offsets/latest.decoded.jsonl"))
    found = {json.dumps(without_name(line["key"])): line["value"] for line in shown}
    assert {key: value for key, value in found.items() if value is not None} == {
        key: value for key, value in state.items() if value is not None
    }


@requires_fixtures
def test_cat_needs_no_schemas_and_prints_the_views_bytes():
    logs = FIXTURES / "internal" / "log"
    tree = tree_of(logs)
    assert output_of("cat", logs, "__share_group_state", "--format", "decoded") == b"".join(
        content(tree, f"/__share_group_state/{number}/messages.decoded.jsonl") for number in (0, 1)
    )
    assert run("cat", logs, "orders", "--format", "decoded").exit_code == 2


def test_what_cannot_be_read_is_as_in_jsonl_with_the_reason(tmp_path):
    good = b"\0\1\0\1g\0\1t\0\0\0\3"
    rows = [(good, b"\0\7"), (b"\0\x63", b"x"), (None, b"x"), (good, None), (good, b"\0\3cut")]
    build_log_dir(tmp_path, {"__consumer_offsets": [[Record(*row, (), 5) for row in rows]]})
    tree = tree_of(tmp_path)
    shown = parsed(content(tree, "/__consumer_offsets/0/messages.decoded.jsonl"))
    plain = parsed(content(tree, "/__consumer_offsets/0/messages.jsonl"))
    assert [line.get("error") for line in shown] == [
        "value: version 7 is not known to this version of kafkafs, at byte 2",
        "key: type 99 is not known to this version of kafkafs, at byte 2",
        "key: cut off, at byte 0",
        None,
        "value: cut off in field offset, at byte 2",
    ]
    assert [line["value"] for line in shown] == [line["value"] for line in plain]
    key = {"type": 1, "name": "OffsetCommit", "data": {"group": "g", "topic": "t", "partition": 3}}
    assert [line["key"] for line in shown] == [key, plain[1]["key"], None, key, key]
