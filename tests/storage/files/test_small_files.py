"""The small files of a log directory: round trips, every damage, and what a broker makes of odd ones."""

import contextlib
import gzip
import hashlib
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
from storage.files.cluster_metadata import read_bootstrap
from storage.files.disk import RealDisk
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.files.manifest import Manifest, ManifestFile, ManifestOffset, ManifestPartition, ManifestTopic
from storage.files.meta_properties import MetaProperties
from storage.files.metadata_records import FeatureLevelRecord
from storage.files.producer_state import ENTRY_SIZE, ProducerEntry
from storage.format import properties
from storage.format.control_records import ControlType, control_records
from storage.format.decoder import Decoder
from storage.format.range_digest import BatchRange
from storage.types import MAX_OFFSET, TopicPartition
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.readers import table_of

# Files that are read: what is accepted, and what is refused for which reason.

T0 = TopicPartition("t", 0)
ID = "PuoKfmXMRauUforUTMTlCQ"
PARSERS = {
    "checkpoint": checkpoints.parse,
    "leader epochs": leader_epochs.parse,
    "meta.properties": meta_properties.parse,
    "partition.metadata": partition_metadata.parse,
    "properties": properties.parse,
}


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        *(("checkpoint", data, {}) for data in (b"", b"0", b"0\n", b"0\n0\n", b"0\n0")),
        ("checkpoint", b"0\r\n1\r\nt 0 5\r\n", {T0: 5}),
        ("checkpoint", b"0\r1\rt 0 5", {T0: 5}),
        ("checkpoint", b"0\n1\nt  \t0 5  \n", {T0: 5}),
        ("checkpoint", b"+0\n1\nt +0 -5\n", {T0: -5}),
        ("checkpoint", b"0\n2\nt 0 5\nt 0 6\n", {T0: 6}),
        # Contradicting epochs are settled as a broker does it.
        ("leader epochs", b"0\n3\n0 0\n5 30\n2 10\n", LeaderEpochs((EpochEntry(0, 0), EpochEntry(2, 10)))),
        (
            "meta.properties",
            b"version=1\ncluster.id=c\nnode.id=3\ndirectory.id=d\n",
            MetaProperties(1, "c", 3, "d"),
        ),
        (
            "meta.properties",
            b"#\n#Sat Nov 21 09:30:05 UTC 2026\nbroker.id=1\nversion=0\ncluster.id=c\n",
            MetaProperties(0, "c", 1, None),
        ),
        ("meta.properties", b"", MetaProperties(0, None, None, None)),
        ("partition.metadata", f"version: 0\ntopic_id: {ID}\n".encode(), ID),
        ("partition.metadata", f"version: 1\r\ntopic_id:  {ID}\nmore: x".encode(), ID),
        ("partition.metadata", f"version: 0\ntopic_id:pic_id: {ID}".encode(), ID),  # 4.3.0 loaded it
        ("properties", "a=é".encode(), {"a": "é"}),
        ("properties", "a=é".encode("latin-1"), {"a": "é"}),
        ("properties", "\ufeffa=b".encode(), {"a": "b"}),
    ],
)
def test_accepted(kind, data, expected):
    assert PARSERS[kind](data) == expected


REFUSED = {
    ("checkpoint", "unknown version"): [b"1\n0\n"],
    ("checkpoint", "count does not match"): [b"0\n1\n", b"0\n2\nt 0 5\n", b"0\n0\nt 0 5\n"],
    ("checkpoint", "not UTF-8"): [b"0\n1\nt\xff 0 5\n"],
    ("checkpoint", "malformed line"): [
        *(b"x\n0\n", b"\n0\n", b"0\nx\n", b"0\n\n", b"0\n1\nt 0 5\n\n", b"0\n1\nt 0\n", b"0\n1\nt 0 5 6\n"),
        *(b"0\n1\n t 0 5\n", b"0\n1\nt 0 5.0\n", b"0\n1\nt 0 1_0\n"),
        *(b"0\n1\nt 2147483648 5\n", b"0\n1\nt 0 9223372036854775808\n", b"0\n99999999999\n"),
        # More digits than Python converts.
        b"0\n" + b"9" * 5000 + b"\n",
        b"0\n1\nt 0 " + b"9" * 5000 + b"\n",
    ],
    ("leader epochs", "unknown version"): [b"2\n0\n"],
    ("leader epochs", "malformed line"): [*(b"0\n1\n-1 0\n", b"0\n1\n0 -1\n", b"0\n1\n0\n", b"0\n1\n2147483648 0\n")],
    ("meta.properties", "unknown version"): [b"version=2\ncluster.id=c\nnode.id=3\n"],
    ("meta.properties", "version is no number"): [b"version=x\n"],
    ("meta.properties", "lacks cluster.id"): [b"version=1\nnode.id=3\n"],
    ("meta.properties", "lacks node.id"): [b"version=1\ncluster.id=c\nbroker.id=3\n"],
    ("meta.properties", "node.id is no number"): [b"version=1\ncluster.id=c\nnode.id=three\n"],
    ("meta.properties", "escape"): [b"version=\\u1"],
    ("properties", "escape"): [b"a=\\u12"],
    ("partition.metadata", "partition metadata"): [
        *(b"", b"version: 0", b"\xff", b"version: 0\ntopic_id: x", f"topic_id: {ID}".encode()),
        *(f"version: -1\ntopic_id: {ID}".encode(), f"version:0\ntopic_id: {ID}".encode()),
        f"version: 0\ntopic_id: {'A' * 22}".encode(),
        f"version: 0\ntopic_id: pic_id: {ID}".encode(),
    ],
}


@pytest.mark.parametrize(("kind", "what"), REFUSED)
def test_refused(kind, what):
    for data in REFUSED[kind, what]:
        with pytest.raises(CorruptCheckpoint, match=what) as refused:
            PARSERS[kind](data, Path("the file"))
        assert refused.value.path == Path("the file")


@given(st.binary(max_size=80) | st.text("0123456789 \nt-", max_size=40).map(str.encode))
def test_any_bytes(data):
    for kind, encode in (
        ("checkpoint", checkpoints.encode),
        ("leader epochs", lambda epochs: leader_epochs.encode(epochs.entries)),
        ("properties", properties.encode),
        ("partition.metadata", partition_metadata.encode),
    ):
        with contextlib.suppress(CorruptCheckpoint):
            found = PARSERS[kind](data)
            assert PARSERS[kind](encode(found)) == found


def test_reading_files(tmp_path):
    """None or nothing where there is none; what is written is read; an error names the file."""
    for module, missing, data, expected, damaged in (
        (checkpoints, {}, checkpoints.encode({T0: 5}), {T0: 5}, b"x"),
        (leader_epochs, LeaderEpochs(), leader_epochs.encode(EPOCHS.entries), EPOCHS, b"x"),
        (meta_properties, None, b"version=0\nbroker.id=1", MetaProperties(0, None, 1, None), b"version=x"),
        (partition_metadata, None, partition_metadata.encode(ID), ID, b"x"),
        (topic_properties, None, topic_properties.encode({"b": "-1", "a": "x"}), {"a": "x", "b": "-1"}, b"a=\\u12"),
    ):
        path = tmp_path / module.__name__
        assert module.read(path) == missing
        path.write_bytes(data)
        assert module.read(path) == expected
        path.write_bytes(damaged)
        with pytest.raises(CorruptCheckpoint) as refused:
            module.read(path)
        assert refused.value.path == path
    assert topic_properties.encode({"b": "-1", "a": "x"}).splitlines()[1:] == [b"a=x", b"b=-1"]
    assert partition_metadata.encode(ID) == f"version: 0\ntopic_id: {ID}".encode()
    with pytest.raises(ValueError, match="not a Kafka id"):
        partition_metadata.encode("x")


@requires_fixtures
def test_every_file_that_a_broker_wrote():
    counts = dict.fromkeys(("epochs", "offsets", "ids"), 0)
    for path in FIXTURES.rglob("*-checkpoint"):
        data = path.read_bytes()
        if path.name == "leader-epoch-checkpoint":
            assert leader_epochs.encode(leader_epochs.read(path).entries) == data
            counts["epochs"] += 1
        else:
            # A broker writes them in the order of its hash map.
            ours = checkpoints.encode(checkpoints.read(path))
            assert sorted(ours.splitlines()) == sorted(data.splitlines() or [b"0", b"0"])
            counts["offsets"] += 1
    for path in FIXTURES.rglob("partition.metadata"):
        assert partition_metadata.encode(partition_metadata.read(path)) == path.read_bytes()
        counts["ids"] += 1
    for path in FIXTURES.rglob("meta.properties"):
        found = meta_properties.read(path)
        assert (found.node_id, found.version) == (1, 0 if found.directory_id is None else 1)
    assert counts["epochs"] > 50
    assert counts["offsets"] > 20
    assert counts["ids"] > 100


# Round trips

partitions = st.builds(
    TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(
    st.dictionaries(partitions, st.integers(-1, MAX_OFFSET), max_size=20),
    st.binary(min_size=16, max_size=16),
    st.dictionaries(texts, texts, max_size=8),
    st.lists(texts, max_size=2),
)
def test_round_trips(offsets, topic_id, values, comments):
    data = checkpoints.encode(offsets)
    assert checkpoints.parse(data) == offsets
    assert data.startswith(f"0\n{len(offsets)}\n".encode())
    text = partition_metadata.id_text(topic_id)
    assert len(text) == 22
    assert partition_metadata.id_bytes(text) == topic_id
    data = properties.encode(values, comments)
    assert data.isascii()
    assert properties.parse(data) == values
    assert list(properties.parse(data)) == list(values)


def test_no_ids():
    # Text that a command line would parse as an option is no new id.
    assert not any(partition_metadata.random_id().startswith("-") for _ in range(500))
    for text in ("", "a" * 21, "a" * 23, "a" * 21 + "+", "a" * 22 + "=="):
        with pytest.raises(ValueError, match="not a Kafka id"):
            partition_metadata.id_bytes(text)


def test_properties_are_parsed_as_java_does():
    """Against java.util.Properties itself."""
    count = 0
    with gzip.open(Path(__file__).parent / "data" / "java-properties.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            try:
                found = properties.parse(case["text"].encode("utf-8", "surrogatepass"))
            except CorruptCheckpoint:
                found = None
            assert found == case["properties"], repr(case["text"])
            count += 1
    assert count > 2000


# Leader epochs

EPOCHS = LeaderEpochs((EpochEntry(0, 0), EpochEntry(2, 10), EpochEntry(5, 30)))


def test_assign():
    for epoch, start, expected in (
        (6, 40, [(0, 0), (2, 10), (5, 30), (6, 40)]),
        (5, 30, [(0, 0), (2, 10), (5, 30)]),
        (5, 40, [(0, 0), (2, 10), (5, 30)]),  # the first start offset of an epoch counts
        (5, 20, [(0, 0), (2, 10), (5, 20)]),
        (6, 30, [(0, 0), (2, 10), (6, 30)]),
        (1, 40, [(0, 0), (1, 40)]),
        (9, 0, [(9, 0)]),
    ):
        assert EPOCHS.assign(EpochEntry(epoch, start)).entries == tuple(EpochEntry(*entry) for entry in expected)


def test_truncation():
    assert EPOCHS.latest_epoch == 5
    assert LeaderEpochs().latest_epoch is None
    assert EPOCHS.truncate_from_end(30).entries == EPOCHS.entries[:2]
    assert EPOCHS.truncate_from_end(31) == EPOCHS
    assert EPOCHS.truncate_from_end(0) == LeaderEpochs()
    assert EPOCHS.truncate_from_start(0) == EPOCHS
    assert EPOCHS.truncate_from_start(10).entries == EPOCHS.entries[1:]
    assert EPOCHS.truncate_from_start(29).entries == (EpochEntry(2, 29), EpochEntry(5, 30))
    assert EPOCHS.truncate_from_start(99).entries == (EpochEntry(5, 99),)
    late = LeaderEpochs((EpochEntry(3, 50),))
    assert late.truncate_from_start(40) == late
    assert [late.epoch_at(offset) for offset in (49, 50, 99)] == [None, 3, 3]


def test_insert():
    for entry, expected in (
        ((1, 5), [(0, 0), (1, 5), (2, 10), (5, 30)]),
        ((2, 5), [(0, 0), (2, 5), (5, 30)]),  # the entry of the epoch moves
        ((1, 0), [(1, 0), (2, 10), (5, 30)]),
        *((entry, EPOCHS.entries) for entry in ((0, 5), (3, 5), (9, 40))),  # not between its neighbours
    ):
        assert EPOCHS.insert(EpochEntry(*entry)).entries == tuple(expected)


# Checkpoints of KRaft records are byte for byte those of a broker, except for their times.


@requires_fixtures
@pytest.mark.golden
def test_as_a_broker_writes_it():
    log_dir = FIXTURES / "groups" / "log"
    golden = (log_dir / "bootstrap.checkpoint").read_bytes()
    metadata = read_bootstrap(log_dir)
    assert metadata.features["metadata.version"] == 30
    records = [FeatureLevelRecord(name, level) for name, level in metadata.features.items()]
    ours = metadata_checkpoint.bootstrap(records, 0)
    starts = table_of(golden).position.tolist()
    assert starts == table_of(ours).position.tolist()
    # Of each batch: the checksum, and two times.
    different = {at for at, pair in enumerate(zip(golden, ours, strict=True)) if pair[0] != pair[1]}
    assert different <= {start + at for start in starts for at in (*range(17, 21), *range(27, 43))}


def test_voters():
    voter = metadata_checkpoint.Voter(1, "VOLPpBNpQfaPKS6f4L_SkA", "CONTROLLER", "localhost", 9093)
    data = metadata_checkpoint.voters(voter, 5)
    block = Decoder().decode(data, table_of(data), origin=0, control=True)
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
INT64, INT32, INT16 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (64, 32, 16))


@given(st.lists(st.builds(ProducerEntry, INT64, INT16, INT32, INT64, INT32, INT64, INT32, INT64), max_size=20))
def test_producers_round_trip(entries):
    data = producer_state.encode(entries)
    assert len(data) == 10 + ENTRY_SIZE * len(entries)
    snapshot = producer_state.parse(data)
    assert snapshot.entries() == entries
    assert len(snapshot) == len(entries)


def what_is_wrong(data):
    with pytest.raises(CorruptCheckpoint) as refused:
        producer_state.parse(bytes(data))
    return refused.value.what.removeprefix("snapshot").strip()


def test_damaged_producer_snapshots():
    wrong_count = "'s count does not fit its size"
    for at in range(len(DATA)):
        assert what_is_wrong(DATA[:at]) == ("is cut off" if at < 10 else wrong_count)
        for mask in (0x01, 0x80):
            data = bytearray(DATA)
            data[at] ^= mask
            expected = {"has an unknown version"} if at < 2 else {"fails its CRC", wrong_count}
            assert what_is_wrong(data) in expected
    assert what_is_wrong(DATA[:6] + struct.pack(">i", -1) + DATA[10:]) == wrong_count


def test_reading_a_producer_snapshot(tmp_path):
    path = tmp_path / "x.snapshot"
    assert producer_state.read(path) is None
    path.write_bytes(DATA)
    assert producer_state.read(path).entries() == ENTRIES
    path.write_bytes(DATA[:-1])
    with pytest.raises(CorruptCheckpoint) as refused:
        producer_state.read(path)
    assert refused.value.path == path


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
    {"meta.properties": ManifestFile(5, "ef" * 32)},
)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "m.json"
    assert manifest.read(path) is None
    manifest.write(RealDisk(), path, SAMPLE)
    assert manifest.read(path) == SAMPLE
    assert [file.name for file in tmp_path.iterdir()] == ["m.json"]
    assert manifest.digest_file(path) == ManifestFile(
        path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
    )
    assert manifest.digest_file(tmp_path / "none") is None


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


def test_other_files_are_no_manifests():
    parts = [manifest.encode(SAMPLE)[:size] for size in (0, 1, 100, 1000)]
    for data in (*parts, b"null", b"[]", b"{}", b'{"format": "kafkafs-manifest"}', b'{"format": 1}', b"[" * 100_000):
        with pytest.raises(CorruptCheckpoint, match="does not parse"):
            manifest.parse(data, Path("m.json"))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"null", "not an object with the format 'kafkafs-manifest'"),
        (b'{"format": "kafkafs-manifest"}', "no member 'version'"),
    ],
)
def test_why_a_file_is_no_manifest(data, found):
    with pytest.raises(CorruptCheckpoint) as failure:
        manifest.parse(data, Path("m.json"))
    assert str(failure.value.found) == found


def signed(content):
    """With a digest that is right: somebody else may have made it."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


@pytest.mark.parametrize(
    "place", [("created_ms",), ("partitions", 1, "log_end_offset"), ("partitions", 1, "ranges", 0, "size_bytes"),
              ("groups", 0, "offset"), ("partitions", 0, "partition")],
)  # fmt: skip
def test_numbers_are_numbers(place):
    for value in ("x", 1.5, None, [], {"a": 1}):
        content = json.loads(manifest.encode(SAMPLE))
        del content["sha256"]
        assert manifest.parse(signed(content)) == SAMPLE
        inner = content
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = value
        with pytest.raises(CorruptCheckpoint, match="does not parse"):
            manifest.parse(signed(content))


def test_a_later_version_is_named():
    content = {**json.loads(manifest.encode(SAMPLE)), "version": 2}
    with pytest.raises(UnsupportedFormat, match="unknown version"):
        manifest.parse(json.dumps(content).encode())
