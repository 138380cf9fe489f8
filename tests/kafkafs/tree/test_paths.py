"""Path to node."""

from __future__ import annotations

from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.file_names import decoded_name, encoded_name
from kafkafs.reading.range_names import (
    LastDuration,
    LastMessages,
    OffsetsBetween,
    OffsetsFrom,
    SingleOffset,
    TimeBetween,
)
from kafkafs.tree import paths
from kafkafs.tree.paths import NoSuchPath, key_from_name, key_name, parse
from storage.types import TopicPartition

TP = TopicPartition("my.topic-1", 12)
AT = "/my.topic-1/12"


@pytest.mark.parametrize(
    ("path", "node"),
    [
        ("/", paths.Root()),
        ("/@help", paths.RootFile("@help")),
        ("/@status.json", paths.RootFile("@status.json")),
        ("/@metrics", paths.RootFile("@metrics")),
        ("/@groups", paths.Groups()),
        ("/@groups/g", paths.GroupDir("g")),
        ("/@groups/a%2Fb/t", paths.GroupTopic("a/b", "t")),
        ("/@groups/%/t/3", paths.GroupOffset("", TopicPartition("t", 3))),
        ("/my.topic-1", paths.Topic("my.topic-1")),
        ("/__consumer_offsets", paths.Topic("__consumer_offsets")),
        ("/t/@config", paths.TopicConfig("t")),
        ("/t/@append", paths.Append("t", jsonl=False)),
        ("/t/@append.jsonl", paths.Append("t", jsonl=True)),
        (AT, paths.Partition(TP)),
        (f"{AT}/messages.txt", paths.RangePath(TP, None, "txt")),
        (f"{AT}/messages.jsonl", paths.RangePath(TP, None, "jsonl")),
        (f"{AT}/messages.log", paths.RangePath(TP, None, "log")),
        (f"{AT}/@append", paths.Append(TP, jsonl=False)),
        (f"{AT}/@append.jsonl", paths.Append(TP, jsonl=True)),
        (f"{AT}/@info.json", paths.PartitionEntry(TP, "@info.json")),
        (f"{AT}/offsets", paths.PartitionEntry(TP, "offsets")),
        (f"{AT}/offsets/5-7.txt", paths.RangePath(TP, OffsetsBetween(5, 7), "txt")),
        (f"{AT}/offsets/5-.log", paths.RangePath(TP, OffsetsFrom(5), "log")),
        (f"{AT}/offsets/-3.jsonl", paths.RangePath(TP, LastMessages(3), "jsonl")),
        (f"{AT}/offsets/5.txt", paths.RangePath(TP, SingleOffset(5), "txt")),
        (f"{AT}/time", paths.PartitionEntry(TP, "time")),
        (f"{AT}/time/last-2h.txt", paths.RangePath(TP, LastDuration(7_200_000), "txt")),
        (
            f"{AT}/time/1763683200000--1763683200500.txt",
            paths.RangePath(TP, TimeBetween(1763683200000, 1763683200500), "txt"),
        ),
        (f"{AT}/time/1970-01-01T00:00:01.5--.log", paths.RangePath(TP, TimeBetween(1500, None), "log")),
        (f"{AT}/segments", paths.PartitionEntry(TP, "segments")),
        (f"{AT}/keys", paths.Keys(TP)),
        ("/t/keys", paths.Keys("t")),
        ("/t/keys/a%2Fb.jsonl", paths.TopicKey("t", b"a/b", "jsonl")),
        (f"{AT}/keys/a.b.txt", paths.RangePath(TP, None, "txt", b"a.b")),
        (f"{AT}/keys/%.txt", paths.RangePath(TP, None, "txt", b"")),
        (f"{AT}/segments/00000000000000000000.log", paths.SegmentPath(TP, "00000000000000000000.log")),
    ],
)
def test_paths(path, node):
    assert parse(path) == node


NO_PATHS = """
    /@ /@nothing /@help/x /@groups/g/t/1/x /@groups/.x /@groups/g/t/01 /@groups/a%41 /@groups/a%2 /a@b /é /. /..
    /t/x /t/01 /t/-1 /t/2147483648 /t/٣ /t/@nothing /t/@config/x /t/0/messages /t/0/messages.csv
    /t/0/messages.txt/x /t/0/messages.txt.txt /t/0/offsets/5 /t/0/offsets/5.csv /t/0/offsets/.txt
    /t/0/offsets/7-5.txt /t/0/offsets/5-7.txt/x /t/0/offsets/5-7.TXT /t/0/offsets/5-7 /t/0/time/2026-02-30.txt
    /t/0/time/2026 /t/0/time/x.txt /t/0/segments/a/b /t/0/segments/.. /t/0/whatever
"""


@pytest.mark.parametrize("path", [*NO_PATHS.split(), "/a b", "/" + "x" * 250])
def test_no_such_path(path):
    with pytest.raises(NoSuchPath):
        parse(path)


def test_spellings_of_one_range_are_one_node():
    assert len({parse(f"{AT}/time/{name}.txt") for name in ("2026-11-20", "20261120", "2026-11-20--2026-11-21")}) == 1


@given(st.binary(max_size=30))
def test_names_of_keys_go_there_and_back(key):
    name = key_name(key)
    assert name
    assert "/" not in name
    assert not name.startswith(".")
    assert name.isprintable() or any(ord(char) >= 0xA0 for char in name)
    assert key_from_name(name) == key
    for ext in paths.RENDERED:
        assert parse(f"/t/keys/{name}.{ext}") == paths.TopicKey("t", key, ext)
        assert parse(f"{AT}/keys/{name}.{ext}") == paths.RangePath(TP, None, ext, key)


@given(st.binary(min_size=1, max_size=30))
def test_any_byte_of_a_key_may_be_encoded(key):
    assert key_from_name("".join(f"%{byte:02X}" for byte in key)) == key
    assert key_from_name("".join(f"%{byte:02x}" for byte in key)) == key


@given(
    st.lists(
        st.text(max_size=12) | st.sampled_from(["t", "0", "keys", "offsets", "time", "segments", "@groups", "@append"]),
        max_size=5,
    )
)
def test_any_path_is_a_node_or_none(names):
    try:
        node = parse("/" + "/".join(names))
    except NoSuchPath:
        return
    assert isinstance(node, paths.Node)


# Names as file names


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_names_go_there_and_back(text):
    name = encoded_name(text)
    assert name
    assert "/" not in name
    assert not name.startswith(".")
    assert not {category(char) for char in name} & {"Cc", "Cf"}
    assert decoded_name(name) == text


def test_what_a_terminal_obeys_is_encoded():
    assert encoded_name("a\x1b[2J\u202e\x7fü b") == "a%1B[2J%E2%80%AE%7Fü b"


@given(st.text(alphabet="%/2Ff.x@\x1b1Bb", max_size=8))
def test_a_name_has_one_encoded_form(name):
    try:
        text = decoded_name(name)
    except ValueError:
        return
    assert encoded_name(text) == name
