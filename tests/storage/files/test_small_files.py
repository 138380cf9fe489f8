"""The small files of a log directory: round trips, every damage, and what a broker makes of odd ones."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptCheckpoint, UnsupportedFormat
from storage.files import (
    checkpoints,
    leader_epochs,
    manifest,
    meta_properties,
    metadata_checkpoint,
    partition_metadata,
    producer_state,
    topic_properties,
)
from storage.files.cluster_metadata import FeatureLevelRecord, read_bootstrap
from storage.files.disk import RealDisk
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.files.manifest import Manifest, ManifestOffset, ManifestPartition, ManifestTopic
from storage.files.meta_properties import MetaProperties
from storage.files.producer_state import ENTRY_SIZE, ProducerEntry
from storage.format import properties
from storage.format.batches import BatchRange
from storage.format.control_records import ControlType, control_records
from storage.format.decoder import Decoder
from storage.types import MAX_OFFSET, TopicPartition
from tests.storage.format.test_both_forms import INT16, INT32, INT64
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.readers import table_of

# The offset checkpoints and leader epochs: round trips, damage, and what a broker makes of odd files.

partitions = st.builds(
    TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)
)


@given(st.dictionaries(partitions, st.integers(-1, MAX_OFFSET), max_size=20))
def test_round_trip(offsets):
    data = checkpoints.encode(offsets)
    assert checkpoints.parse(data) == offsets
    assert data.startswith(f"0\n{len(offsets)}\n".encode())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"0", {}),
        (b"0\n", {}),
        (b"0\n0\n", {}),
        (b"0\n0", {}),
        (b"0\r\n1\r\nt 0 5\r\n", {TopicPartition("t", 0): 5}),
        (b"0\r1\rt 0 5", {TopicPartition("t", 0): 5}),
        (b"0\n1\nt  \t0 5  \n", {TopicPartition("t", 0): 5}),
        (b"+0\n1\nt +0 -5\n", {TopicPartition("t", 0): -5}),
        (b"0\n2\nt 0 5\nt 0 6\n", {TopicPartition("t", 0): 6}),
    ],
)
def test_accepted(data, expected):
    assert checkpoints.parse(data) == expected


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"1\n0\n", "unknown version"),
        (b"x\n0\n", "malformed line"),
        (b"\n0\n", "malformed line"),
        (b"0\nx\n", "malformed line"),
        (b"0\n\n", "malformed line"),
        (b"0\n1\n", "count does not match"),
        (b"0\n2\nt 0 5\n", "count does not match"),
        (b"0\n0\nt 0 5\n", "count does not match"),
        (b"0\n1\nt 0 5\n\n", "malformed line"),
        (b"0\n1\nt 0\n", "malformed line"),
        (b"0\n1\nt 0 5 6\n", "malformed line"),
        (b"0\n1\n t 0 5\n", "malformed line"),
        (b"0\n1\nt 0 5.0\n", "malformed line"),
        (b"0\n1\nt 0 1_0\n", "malformed line"),
        (b"0\n1\nt 2147483648 5\n", "malformed line"),
        (b"0\n1\nt 0 9223372036854775808\n", "malformed line"),
        (b"0\n99999999999\n", "malformed line"),
        # More digits than Python converts.
        (b"0\n" + b"9" * 5000 + b"\n", "malformed line"),
        (b"0\n1\nt 0 " + b"9" * 5000 + b"\n", "malformed line"),
        (b"0\n1\nt\xff 0 5\n", "not UTF-8"),
    ],
)
def test_refused(tmp_path, data, what):
    path = tmp_path / "checkpoint"
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match=what) as refused:
        checkpoints.read(path)
    assert refused.value.path == path


def test_no_file(tmp_path):
    assert checkpoints.read(tmp_path / "none") == {}
    assert leader_epochs.read(tmp_path / "none") == LeaderEpochs()


@given(st.binary(max_size=60) | st.text("0123456789 \nt-", max_size=40).map(str.encode))
def test_any_bytes(data):
    with contextlib.suppress(CorruptCheckpoint):
        offsets = checkpoints.parse(data)
        assert checkpoints.parse(checkpoints.encode(offsets)) == offsets
    with contextlib.suppress(CorruptCheckpoint):
        epochs = leader_epochs.parse(data)
        assert leader_epochs.parse(leader_epochs.encode(epochs.entries)) == epochs


@requires_fixtures
def test_every_checkpoint_that_a_broker_wrote():
    offsets = epochs = 0
    for path in FIXTURES.rglob("*-checkpoint"):
        if path.name == "leader-epoch-checkpoint":
            found = leader_epochs.read(path)
            assert leader_epochs.encode(found.entries) == path.read_bytes()
            epochs += 1
        else:
            # A broker writes them in the order of its hash map.
            data = path.read_bytes()
            assert sorted(checkpoints.encode(checkpoints.read(path)).splitlines()) == sorted(
                data.splitlines() or [b"0", b"0"]
            )
            offsets += 1
    assert offsets > 20
    assert epochs > 50


EPOCHS = LeaderEpochs((EpochEntry(0, 0), EpochEntry(2, 10), EpochEntry(5, 30)))


def test_latest_epoch():
    assert EPOCHS.latest_epoch == 5
    assert LeaderEpochs().latest_epoch is None


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (6, 40, [(0, 0), (2, 10), (5, 30), (6, 40)]),
        (5, 30, [(0, 0), (2, 10), (5, 30)]),
        (5, 40, [(0, 0), (2, 10), (5, 30)]),  # the first start offset of an epoch counts
        (5, 20, [(0, 0), (2, 10), (5, 20)]),
        (6, 30, [(0, 0), (2, 10), (6, 30)]),
        (1, 40, [(0, 0), (1, 40)]),
        (9, 0, [(9, 0)]),
    ],
)
def test_assign(epoch, start, expected):
    assert EPOCHS.assign(EpochEntry(epoch, start)).entries == tuple(EpochEntry(*entry) for entry in expected)


def test_truncation():
    assert EPOCHS.truncate_from_end(30).entries == EPOCHS.entries[:2]
    assert EPOCHS.truncate_from_end(31) == EPOCHS
    assert EPOCHS.truncate_from_end(0) == LeaderEpochs()
    assert EPOCHS.truncate_from_start(0) == EPOCHS
    assert EPOCHS.truncate_from_start(10).entries == EPOCHS.entries[1:]
    assert EPOCHS.truncate_from_start(29).entries == (EpochEntry(2, 29), EpochEntry(5, 30))
    assert EPOCHS.truncate_from_start(99).entries == (EpochEntry(5, 99),)
    late = LeaderEpochs((EpochEntry(3, 50),))
    assert late.truncate_from_start(40) == late


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=20))
def test_epochs_round_trip(steps):
    entries = tuple(
        EpochEntry(sum(a for a, _ in steps[: n + 1]), sum(b for _, b in steps[: n + 1])) for n in range(len(steps))
    )
    assert leader_epochs.parse(leader_epochs.encode(entries)) == LeaderEpochs(entries)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"0\n1\n-1 0\n", "malformed line"),
        (b"0\n1\n0 -1\n", "malformed line"),
        (b"0\n1\n0\n", "malformed line"),
        (b"0\n1\n2147483648 0\n", "malformed line"),
        (b"2\n0\n", "unknown version"),
    ],
)
def test_refused_epochs(data, what):
    with pytest.raises(CorruptCheckpoint, match=what):
        leader_epochs.parse(data)


def test_contradicting_epochs_are_settled_as_a_broker_does():
    assert leader_epochs.parse(b"0\n3\n0 0\n5 30\n2 10\n").entries == (EpochEntry(0, 0), EpochEntry(2, 10))


# Checkpoints of KRaft records are byte for byte those of a broker, except for their times.

DIRECTORY_ID = "VOLPpBNpQfaPKS6f4L_SkA"


@requires_fixtures
@pytest.mark.golden
def test_as_a_broker_writes_it():
    log_dir = FIXTURES / "groups" / "log"
    golden = (log_dir / "bootstrap.checkpoint").read_bytes()
    metadata = read_bootstrap(log_dir)
    assert metadata is not None
    assert metadata.features["metadata.version"] == 30
    records = [FeatureLevelRecord(name, level) for name, level in metadata.features.items()]
    ours = metadata_checkpoint.bootstrap(records, 0)
    assert len(ours) == len(golden)
    # Of each batch: the checksum, and two times.
    starts = _starts(golden)
    assert starts == _starts(ours)
    different = {at for at, pair in enumerate(zip(golden, ours, strict=True)) if pair[0] != pair[1]}
    allowed = {start + at for start in starts for at in (*range(17, 21), *range(27, 43))}
    assert different <= allowed


def _starts(data):
    table = table_of(data)
    return [int(position) for position in table.position]


def test_voters():
    data = metadata_checkpoint.voters(metadata_checkpoint.Voter(1, DIRECTORY_ID, "CONTROLLER", "localhost", 9093), 5)
    table = table_of(data)
    block = Decoder().decode(data, table, origin=0, control=True)
    assert block.damage is None
    kinds = [record.type for record in control_records(block)]
    assert kinds == [
        ControlType.SNAPSHOT_HEADER, ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS, ControlType.SNAPSHOT_FOOTER,
    ]  # fmt: skip
    assert block.value(1) == b"\0\0\0\1\0"
    assert b"\x0bCONTROLLER\x0alocalhost\x23\x85" in (block.value(2) or b"")


# Producer snapshots: round trip, and every way in which Kafka refuses one.

ENTRIES = [
    ProducerEntry(1, 0, 9, 100, 4, 1_700_000_000_000, 3, 96),
    ProducerEntry(2, 7, -1, -1, 0, -1),
    ProducerEntry(0, 1, 0, 50, 0, 5, 0),
]
DATA = producer_state.encode(ENTRIES)


any_entry = st.builds(ProducerEntry, INT64, INT16, INT32, INT64, INT32, INT64, INT32, INT64)


@given(st.lists(any_entry, max_size=20))
def test_producer_round_trip(entries):
    data = producer_state.encode(entries)
    assert len(data) == 10 + ENTRY_SIZE * len(entries)
    snapshot = producer_state.parse(data)
    assert snapshot.entries() == entries
    assert len(snapshot) == len(entries)


@pytest.mark.parametrize("position", range(len(DATA)))
def test_every_byte_damaged(position):
    for mask in (0x01, 0x80):
        data = bytearray(DATA)
        data[position] ^= mask
        with pytest.raises(CorruptCheckpoint) as refused:
            producer_state.parse(bytes(data))
        expected = (
            {"snapshot has an unknown version"}
            if position < 2
            else {"snapshot fails its CRC", "snapshot's count does not fit its size"}
        )
        assert refused.value.what in expected


@pytest.mark.parametrize("cut", range(len(DATA)))
def test_cut_anywhere(cut):
    with pytest.raises(CorruptCheckpoint) as refused:
        producer_state.parse(DATA[:cut])
    assert refused.value.what == ("snapshot is cut off" if cut < 10 else "snapshot's count does not fit its size")


def test_negative_count():
    data = bytearray(DATA)
    data[6:10] = struct.pack(">i", -1)
    with pytest.raises(CorruptCheckpoint, match="count"):
        producer_state.parse(bytes(data))


def test_read(tmp_path):
    path = tmp_path / "x.snapshot"
    assert producer_state.read(path) is None
    path.write_bytes(DATA)
    snapshot = producer_state.read(path)
    assert snapshot is not None
    assert snapshot.entries() == ENTRIES
    path.write_bytes(DATA[:-1])
    with pytest.raises(CorruptCheckpoint) as refused:
        producer_state.read(path)
    assert refused.value.path == path


# Java properties, against java.util.Properties itself, and the files that are made of them.

PROPERTIES_DATA = Path(__file__).parent / "data"


def test_parse_as_java_does():
    count = 0
    with gzip.open(PROPERTIES_DATA / "java-properties.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            try:
                found = properties.parse(case["text"].encode("utf-8", "surrogatepass"))
            except CorruptCheckpoint:
                found = None
            assert found == case["properties"], repr(case["text"])
            count += 1
    assert count > 2000


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.dictionaries(texts, texts, max_size=8), st.lists(texts, max_size=2))
def test_properties_round_trip(values, comments):
    data = properties.encode(values, comments)
    assert data.isascii()
    assert properties.parse(data) == values
    assert list(properties.parse(data)) == list(values)


def test_encodings():
    assert properties.parse("a=é".encode()) == {"a": "é"}
    assert properties.parse("a=é".encode("latin-1")) == {"a": "é"}
    assert properties.parse("\ufeffa=b".encode()) == {"a": "b"}


@given(st.binary(max_size=80))
def test_properties_any_bytes(data):
    with contextlib.suppress(CorruptCheckpoint):
        found = properties.parse(data)
        assert properties.parse(properties.encode(found)) == found


def test_topic_properties(tmp_path):
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
def test_meta_properties(tmp_path, text, expected):
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
def test_bad_meta_properties(text, what):
    with pytest.raises(CorruptCheckpoint, match=what):
        meta_properties.parse(text.encode(), Path("meta.properties"))


@given(st.binary(min_size=16, max_size=16))
def test_ids(data):
    text = partition_metadata.id_text(data)
    assert len(text) == 22
    assert partition_metadata.id_bytes(text) == data


@pytest.mark.parametrize("text", ["", "a" * 21, "a" * 23, "a" * 21 + "+", "a" * 22 + "=="])
def test_no_ids(text):
    with pytest.raises(ValueError, match="not a Kafka id"):
        partition_metadata.id_bytes(text)


ID = "PuoKfmXMRauUforUTMTlCQ"


def test_partition_metadata(tmp_path):
    path = tmp_path / "partition.metadata"
    assert partition_metadata.read(path) is None
    path.write_bytes(partition_metadata.encode(ID))
    assert path.read_bytes() == f"version: 0\ntopic_id: {ID}".encode()
    assert partition_metadata.read(path) == ID
    with pytest.raises(ValueError, match="not a Kafka id"):
        partition_metadata.encode("x")


@pytest.mark.parametrize("text", [f"version: 0\ntopic_id: {ID}\n", f"version: 1\r\ntopic_id:  {ID}\nmore: x"])
def test_accepted_partition_metadata(text):
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
def test_bad_partition_metadata(text):
    with pytest.raises(CorruptCheckpoint):
        partition_metadata.parse(text.encode("latin-1"))


@given(st.binary(max_size=80))
def test_any_bytes_as_partition_metadata(data):
    try:
        found = partition_metadata.parse(data)
    except CorruptCheckpoint:
        return
    assert len(found) == 22


@requires_fixtures
def test_every_file_that_a_broker_wrote():
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


# The manifest of a backup: what is written is read again, and nothing else is believed.

RANGES = (BatchRange(0, 99, 7, 5000, "ab" * 32, 0), BatchRange(100, 101, 1, 80, "cd" * 32, 0xFFFFFFFF))
SAMPLE = Manifest(
    "cluster",
    1000,
    2000,
    None,
    {"t": ManifestTopic("s", "Zml4dHVyZXMtY2x1c3Rlcg", 2, {"segment.bytes": "1000", "cleanup.policy": "compact"})},
    {TopicPartition("t", 1): ManifestPartition(5, 102, RANGES), TopicPartition("t", 0): ManifestPartition(0, 0)},
    (ManifestOffset("g", "t", 1, 50, -1, "größe"),),
)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "m.json"
    assert manifest.read(path) is None
    manifest.write(RealDisk(), path, SAMPLE)
    assert manifest.read(path) == SAMPLE
    assert [file.name for file in tmp_path.iterdir()] == ["m.json"]


def test_a_changed_byte_is_found():
    """Except in white space, which means nothing."""
    data = manifest.encode(SAMPLE)
    dice = random.Random(7)
    for at in range(len(data)):
        hurt = bytearray(data)
        hurt[at] ^= dice.choice((1, 2, 4, 8, 16, 32, 64, 128))
        try:
            found = manifest.parse(bytes(hurt))
        except (CorruptCheckpoint, UnsupportedFormat):
            continue
        assert found == SAMPLE
        assert data[at : at + 1].isspace()


@pytest.mark.parametrize("size", [0, 1, 100, 1000])
def test_a_part_of_it_is_no_manifest(size):
    with pytest.raises(CorruptCheckpoint):
        manifest.parse(manifest.encode(SAMPLE)[:size])


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"format": "kafkafs-manifest"}', '{"format": 1}', "[" * 100_000]
)
def test_other_files_are_refused(text):
    with pytest.raises(CorruptCheckpoint, match="does not parse"):
        manifest.parse(text.encode(), Path("m.json"))


@pytest.mark.parametrize("value", ["x", 1.5, None, [], {"a": 1}])
@pytest.mark.parametrize(
    "place", [("created_ms",), ("partitions", 1, "log_end_offset"), ("partitions", 1, "ranges", 0, "size_bytes"),
              ("groups", 0, "offset"), ("partitions", 0, "partition")],
)  # fmt: skip
def test_numbers_are_numbers(place, value):
    """Also with a digest that is right: somebody else may have made it."""
    content = json.loads(manifest.encode(SAMPLE))
    inner = content
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    content.pop("sha256")
    content["sha256"] = manifest._digest(content)
    with pytest.raises(CorruptCheckpoint, match="does not parse"):
        manifest.parse(json.dumps(content).encode())


def test_a_later_version_is_named():
    content = {**json.loads(manifest.encode(SAMPLE)), "version": 2}
    with pytest.raises(UnsupportedFormat, match="unknown version"):
        manifest.parse(json.dumps(content).encode())
