"""Path to node, and names as file names."""

from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.file_names import decoded_name, encoded_name
from kafkafs.reading.range_names import OffsetsBetween, OffsetsFrom, TimeBetween
from kafkafs.tree import paths
from kafkafs.tree.paths import NoSuchPath, key_from_name, key_name, parse
from storage.types import TopicPartition

TP = TopicPartition("my.topic-1", 12)
AT = "/my.topic-1/12"


@pytest.mark.parametrize(
    ("path", "node"),
    [
        ("/", paths.Root()),
        ("/@groups/a%2Fb/t", paths.GroupTopic("a/b", "t")),
        ("/@groups/%/t/3", paths.GroupOffset("", TopicPartition("t", 3))),
        ("/__consumer_offsets", paths.TopicPath("__consumer_offsets")),
        ("/t/@append", paths.Append("t", jsonl=False)),
        (f"{AT}/@append.jsonl", paths.Append(TP, jsonl=True)),
        (f"{AT}/messages.jsonl", paths.RangePath(TP, None, "jsonl")),
        (f"{AT}/offsets/5-7.txt", paths.RangePath(TP, OffsetsBetween(5, 7), "txt")),
        (f"{AT}/offsets/5-.log", paths.RangePath(TP, OffsetsFrom(5), "log")),
        (f"{AT}/time/1970-01-01T00:00:01.5--.log", paths.RangePath(TP, TimeBetween(1500, None), "log")),
        ("/t/keys/a%2Fb.jsonl", paths.TopicKey("t", b"a/b", "jsonl")),
        (f"{AT}/keys/a.b.txt", paths.RangePath(TP, None, "txt", b"a.b")),
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


def encoded_bytes(key, digits):
    """Any byte of a key may be encoded."""
    return "".join(f"%{byte:{digits}}" for byte in key) or "%"


@given(st.binary(max_size=30))
def test_names_of_keys_go_there_and_back(key):
    name = key_name(key)
    assert name
    assert "/" not in name
    assert not name.startswith(".")
    assert name.isprintable() or any(ord(char) >= 0xA0 for char in name)
    for spelling in {name, encoded_bytes(key, "02x"), encoded_bytes(key, "02X")}:
        assert key_from_name(spelling) == key
        for ext in paths.RENDERED:
            assert parse(f"/t/keys/{spelling}.{ext}") == paths.TopicKey("t", key, ext)
            assert parse(f"{AT}/keys/{spelling}.{ext}") == paths.RangePath(TP, None, ext, key)


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
