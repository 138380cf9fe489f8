"""Java properties, against java.util.Properties itself, and the files that are made of them."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptCheckpoint
from storage.files import meta_properties, partition_metadata, topic_properties
from storage.files.meta_properties import MetaProperties
from storage.format import properties
from tests.support.fixtures import FIXTURES, requires_fixtures

DATA = Path(__file__).parent / "data"


def test_parse_as_java_does() -> None:
    count = 0
    with gzip.open(DATA / "java-properties.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            if any(part.strip(" \t\f") == "\\" for part in case["text"].replace("\r", "\n").split("\n")):
                continue  # a line of one backslash alone, which is no property here
            try:
                found = properties.parse(case["text"].encode("utf-8", "surrogatepass"))
            except CorruptCheckpoint:
                found = None
            assert found == case["properties"], repr(case["text"])
            count += 1
    assert count > 1500


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.dictionaries(texts, texts, max_size=8), st.lists(texts, max_size=2))
def test_round_trip(values: dict[str, str], comments: list[str]) -> None:
    data = properties.encode(values, comments)
    assert data.isascii()
    assert properties.parse(data) == values
    assert list(properties.parse(data)) == list(values)


def test_encode() -> None:
    values = {"a b": " x y", "k=:#!": "=:#!", "é": "\U0001f600\t\n\\"}
    assert properties.encode(values, ["note é"]) == (
        b"#note \\u00e9\na\\ b=\\ x y\nk\\=\\:\\#\\!=\\=\\:\\#\\!\n\\u00e9=\\ud83d\\ude00\\t\\n\\\\\n"
    )


def test_encodings() -> None:
    assert properties.parse("a=é".encode()) == {"a": "é"}
    assert properties.parse("a=é".encode("latin-1")) == {"a": "é"}
    assert properties.parse("\ufeffa=b".encode()) == {"a": "b"}


def test_lone_surrogates_do_not_survive() -> None:
    assert properties.parse(b"a=\\uD83D!") == {"a": "\ufffd!"}


@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    with contextlib.suppress(CorruptCheckpoint):
        found = properties.parse(data)
        assert properties.parse(properties.encode(found)) == found


def test_topic_properties(tmp_path: Path) -> None:
    path = tmp_path / "topic.properties"
    assert topic_properties.read(path) is None
    path.write_bytes(topic_properties.encode({"retention.ms": "-1", "cleanup.policy": "compact"}))
    assert path.read_text().splitlines()[1:] == ["cleanup.policy=compact", "retention.ms=-1"]
    assert topic_properties.read(path) == {"retention.ms": "-1", "cleanup.policy": "compact"}
    path.write_bytes(b"a=\\u12")
    with pytest.raises(CorruptCheckpoint) as refused:
        topic_properties.read(path)
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version=1\ncluster.id=c\nnode.id=3\ndirectory.id=d\n", MetaProperties(1, "c", 3, "d")),
        ("#\n#Sat Nov 21 09:30:05 UTC 2026\nbroker.id=1\nversion=0\ncluster.id=c\n", MetaProperties(0, "c", 1, None)),
        ("", MetaProperties(0, None, None, None)),
    ],
)
def test_meta_properties(tmp_path: Path, text: str, expected: MetaProperties) -> None:
    path = tmp_path / "meta.properties"
    assert meta_properties.read(path) is None
    path.write_text(text)
    assert meta_properties.read(path) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("version=2\ncluster.id=c\nnode.id=3\n", "unknown version"),
        ("version=x\n", "version is no number"),
        ("version=1\nnode.id=3\n", "lacks cluster.id"),
        ("version=1\ncluster.id=c\nbroker.id=3\n", "lacks node.id"),
        ("version=1\ncluster.id=c\nnode.id=three\n", "node.id is no number"),
        ("version=\\u1", "escape"),
    ],
)
def test_bad_meta_properties(text: str, what: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=what):
        meta_properties.parse(text.encode(), Path("meta.properties"))


@given(st.binary(min_size=16, max_size=16))
def test_ids(data: bytes) -> None:
    text = partition_metadata.id_text(data)
    assert len(text) == 22
    assert partition_metadata.id_bytes(text) == data


@pytest.mark.parametrize("text", ["", "a" * 21, "a" * 23, "a" * 21 + "+", "a" * 22 + "=="])
def test_no_ids(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kafka id"):
        partition_metadata.id_bytes(text)


def test_random_ids() -> None:
    ids = {partition_metadata.random_id() for _ in range(200)}
    assert len(ids) == 200
    assert not any(each.startswith("-") for each in ids)


ID = "PuoKfmXMRauUforUTMTlCQ"


def test_partition_metadata(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    assert partition_metadata.read(path) is None
    path.write_bytes(partition_metadata.encode(ID))
    assert path.read_bytes() == f"version: 0\ntopic_id: {ID}".encode()
    assert partition_metadata.read(path) == ID
    with pytest.raises(ValueError, match="not a Kafka id"):
        partition_metadata.encode("x")


@pytest.mark.parametrize("text", [f"version: 0\ntopic_id: {ID}\n", f"version: 1\r\ntopic_id:  {ID}\nmore: x"])
def test_accepted_partition_metadata(text: str) -> None:
    assert partition_metadata.parse(text.encode()) == ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: 0",
        f"topic_id: {ID}",
        f"version: -1\ntopic_id: {ID}",
        "version: 0\ntopic_id: x",
        f"version: 0\ntopic_id: {'A' * 22}",
        f"version:0\ntopic_id: {ID}",
        "\xff",
    ],
)
def test_bad_partition_metadata(text: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        partition_metadata.parse(text.encode("latin-1"))


@given(st.binary(max_size=80))
def test_any_bytes_as_partition_metadata(data: bytes) -> None:
    try:
        found = partition_metadata.parse(data)
    except CorruptCheckpoint:
        return
    assert len(found) == 22


@requires_fixtures
def test_every_file_that_a_broker_wrote() -> None:
    count = 0
    for path in FIXTURES.rglob("partition.metadata"):
        topic_id = partition_metadata.read(path)
        assert topic_id is not None
        assert partition_metadata.encode(topic_id) == path.read_bytes()
        count += 1
    assert count > 100
    for path in FIXTURES.rglob("meta.properties"):
        found = meta_properties.read(path)
        assert found is not None
        assert found.node_id == 1
        assert found.version == (0 if found.directory_id is None else 1)
