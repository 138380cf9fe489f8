"""What `doctor` predicts of recovery is what a broker did: the fixture `recovery` has 33 damages, before and after.

More damages, each with a broker's verdict, are in tests/interop/test_doctor.py.
"""

import json
import os
import re
import shutil
import struct
from pathlib import Path

import pytest

from storage.diagnosis import broker_properties
from storage.diagnosis.examination import examine
from storage.diagnosis.predictions import Reaction
from storage.errors import InvalidConfig
from storage.files import producer_state
from storage.files.cluster_metadata import ClusterMetadataReader
from storage.files.metadata_checkpoint import bootstrap, cluster_records
from storage.files.metadata_replay import ClusterMetadata
from storage.format.block import Record
from storage.types import TopicPartition
from tests.support.broker_rules import stored_batches
from tests.support.builders import (
    CLUSTER_ID,
    ROLL,
    Batch,
    Partition,
    abort,
    build_log_dir,
    many,
    metadata_records,
    topic_id,
    topic_setting,
)
from tests.support.commands import run
from tests.support.damaged_bytes import flip, overwrite
from tests.support.fixtures import FIXTURES, copy_log_dir, requires_fixtures
from tests.support.raw_batches import batch, record

RECOVERY = FIXTURES / "recovery"
# A broker serves them, and consumers then fail at the damage, or may be led past messages by an index.
UNNOTICED = {"c4-flip-magic", "f3-garbage-index-below-recovery-point", "f4-plausible-index-below-recovery-point",
             "m-flip-below-recovery-point", "k2-older-missing"}  # fmt: skip
ABORTED = [Batch(many(2), producer_id=7, transactional=True), abort(7)]


@requires_fixtures
@pytest.mark.golden
def test_log_ends_after_recovery():
    diagnosis, cases = examine([RECOVERY / "before"]), json.loads((RECOVERY / "cases.json").read_text())
    assert len(cases) == 33
    for name, case in cases.items():
        tp = TopicPartition(case["topic"], 0)
        own = [one for one in diagnosis.predictions if one.tp == tp and one.reaction is not Reaction.STRAY]
        cuts = [one.end_offset for one in own if one.reaction is Reaction.CUTS]
        end = cuts[0] if cuts else case["log_end_offset_before_crash"]
        if name != "k-active-emptied":  # nothing is left that tells what was there
            assert end == case["log_end_offset_after"], name
        assert any(one.reaction is Reaction.UNNOTICED for one in own) == (name in UNNOTICED), name


def built(path, *partitions, records=(), clean=True, topic_partitions=None, keeps="-1", leader_epoch=0, replicas=(1,)):
    """A broker's directory with a topic t of these partitions, which keeps everything unless `keeps` sets retention.ms;
    `records` come first in its metadata, `leader_epoch` is in it."""
    topic = metadata_records("t", topic_partitions or len(partitions), replicas, leader_epoch=leader_epoch)
    metadata = [*records, *topic, topic_setting("t", "retention.ms", keeps)]
    return build_log_dir(path, {"t": partitions, "__cluster_metadata": [metadata]}, clean=clean).path


def names_of(diagnosis):
    return {one.name for one in diagnosis.predictions}


def named(path, name):
    """Of each prediction with that name: what it is of, the reaction and the end offset."""
    return [
        ("" if one.tp is None else str(one.tp), one.reaction, one.end_offset)
        for one in examine([path]).predictions
        if one.name == name
    ]


def test_a_clean_directory_is_well(tmp_path):
    found = examine([built(tmp_path, [b"a"], [b"b"])])
    assert found.is_well
    assert found.starts
    assert not found.predictions


@pytest.mark.parametrize(
    ("version", "said"),
    [(30, "Kafka 4.3 or later"), (31, "Kafka 4.4 or later"), (33, "Kafka 4.4 or later"), (34, "later Kafka than 4.4")],
)
def test_a_later_metadata_version(tmp_path, version, said):
    """4.3.0 does not start with 31, though it knows it ("this controller only supports versions 7-30")."""
    level = Record(None, b"\x01\x0c\x00\x11metadata.version" + bytes([0, version, 0]))
    (found,) = examine([built(tmp_path, [b"a"], records=[level])]).predictions
    assert (found.name, found.reaction) == ("metadata-version-new", Reaction.IGNORES)
    assert said in found.broker
    assert ("not known to this version of kafkafs" in found.what) == (version > 33)


def test_a_metadata_version_without_a_metadata_log_is_the_bootstrap_checkpoints(tmp_path):
    level = Record(None, b"\x01\x0c\x00\x11metadata.version\x00\x1e\x00")
    built(tmp_path, [b"a"], records=[level])
    metadata_log, checkpoint = tmp_path / "__cluster_metadata-0", tmp_path / "bootstrap.checkpoint"
    shutil.copy(metadata_log / f"{0:020d}.log", checkpoint)
    shutil.rmtree(metadata_log)
    (found,) = (each for each in examine([tmp_path]).predictions if each.name == "metadata-version-new")
    assert found.path == checkpoint


@pytest.mark.parametrize(
    ("key", "value", "is_small"),
    [("segment.bytes", "4000", True), ("segment.bytes", "1048576", False), ("internal.segment.bytes", "4000", False)],
)
def test_a_configuration_that_later_releases_refuse(tmp_path, key, value, is_small):
    """4.3.0 does not start on a directory of 3.9.1: "Invalid value 4000 for configuration segment.bytes"."""
    found = examine([built(tmp_path, [b"a"], records=[topic_setting("t", key, value)])])
    notes = [one.broker for one in found.predictions if one.name == "segment-bytes-small"]
    assert [note.startswith("does not start if it is Kafka 4.1 or later") for note in notes] == [True] * is_small


def test_a_snapshot_that_cannot_be_read_hides_no_topics(tmp_path):
    """The log from its beginning tells as much."""
    path = built(tmp_path, [b"a"])
    (path / "__cluster_metadata-0" / f"{2:020}-{1:010}.checkpoint").write_bytes(b"")
    found = examine([path])
    assert names_of(found) == {"metadata-snapshot-damaged"}
    assert not found.starts
    reader = ClusterMetadataReader(path)
    for _ in range(2):  # the second time it goes on where the log ended
        metadata = reader.refresh()
        assert list(metadata.topics) == ["t"]
        assert metadata.problem is not None


def test_an_older_snapshot_does_not_help_a_newer_one_that_is_damaged(tmp_path):
    """A broker loads the newest one; cut at the end of a batch it takes it as it is."""
    path = built(tmp_path, [b"a"])
    directory = path / "__cluster_metadata-0"
    whole = bootstrap(cluster_records(ClusterMetadata(features={"metadata.version": 21})), 0)
    (directory / f"{1:020}-{1:010}.checkpoint").write_bytes(whole)
    for content, reactions in ((b"", [Reaction.REFUSES]), (whole[:-20], [Reaction.CUTS]), (whole, [])):
        (directory / f"{2:020}-{1:010}.checkpoint").write_bytes(content)
        assert [one for _, one, _ in named(path, "metadata-snapshot-damaged")] == reactions


@pytest.mark.parametrize(
    ("behind", "reaction"), [(0, [Reaction.STRAY]), (1, []), (-1, [])], ids=["at its end", "above it", "below it"]
)
def test_a_directory_in_place_of_a_producer_snapshot_of_the_metadata_log(tmp_path, behind, reaction):
    """A broker cannot write the one at the end of the log, takes the segment for damaged, and starts without it."""
    path = built(tmp_path, [b"a"])
    end = ClusterMetadataReader(path).refresh().end_offset
    snapshot = path / "__cluster_metadata-0" / f"{end + behind:020}.snapshot"
    snapshot.unlink(missing_ok=True)
    snapshot.mkdir()
    assert [one for _, one, _ in named(path, "no-regular-file")] == reaction


def test_what_is_expected_of_an_unclean_directory(tmp_path):
    """Zeros where messages were flushed are damage; at or behind the recovery point they are preallocated space that
    nobody has written to."""
    torn = Partition([Batch(many(30))], recovery_point=0, tail=b"\0\0\0\0\0\0\0\x1etorn")
    zeros = [Partition([Batch(many(30))], recovery_point=point, tail=bytes(4096)) for point in (0, 30, 33)]
    path = built(tmp_path, torn, *zeros, clean=False)
    found = examine([path]).predictions
    assert {(str(one.tp), one.name, one.reaction, one.end_offset) for one in found} == {
        ("None", "unclean", Reaction.RECOVERS, None),
        ("t/0", "torn-tail", Reaction.CUTS, 30),
        ("t/1", "preallocated-tail", Reaction.REPAIRS, None),
        ("t/2", "preallocated-tail", Reaction.REPAIRS, None),
        ("t/3", "damage", Reaction.CUTS, 30),
    }
    assert ["salvage" in one.advice for one in found if one.name == "damage"] == [True]
    assert names_of(examine([path], quick=True)) == {"unclean"}


@pytest.mark.parametrize(
    ("entry", "tail", "predicted"),
    [
        ((5, 0), b"", None),
        ((5, 4), b"", (Reaction.REFUSES, None)),  # the epoch of the first batch as a length
        ((5, -1), b"", (Reaction.REFUSES, None)),
        ((9, 10**6), b"", (Reaction.CUTS, 0)),  # beyond the log: the segment is empty
        (None, bytes(500), (Reaction.REFUSES, None)),
        (None, bytes(9), None),
        (None, batch([record()], 40, crc=0), (Reaction.CUTS, 41)),
        (None, batch([record()], 40, last_offset_delta=-9), (Reaction.CUTS, 32)),
        ((-5, 0), bytes(500), None),  # it recovers the segment
        (None, b"\0\0\0\0\0\0\0\x0d\0\0\0\x20\0\0\0\0\1\1" + bytes(26), (Reaction.REFUSES, None)),
        ((12, 0), b"\0\0\0\0\0\0\0\x0d\0\0\0\x20\0\0\0\0\1\1" + bytes(26), (Reaction.REFUSES, None)),
    ],
    ids=[
        "a batch",
        "within a batch",
        "negative",
        "beyond the log",
        "zeros",
        "few bytes",
        "a bad CRC",
        "an end before the beginning",
        "corrupt",
        "an old set behind",
        "an old set",
    ],
)
def test_where_a_broker_looks_for_the_end_of_a_log(tmp_path, entry, tail, predicted):
    path = built(tmp_path, Partition([Batch(many(6)), Batch(many(6))], tail=tail))
    index = path / "t-0" / f"{0:020}.index"
    index.write_bytes(b"" if entry is None else struct.pack(">ii", *entry))
    assert named(path, "log-end-misread") == ([] if predicted is None else [("t/0", *predicted)])


@pytest.mark.parametrize(
    ("snapshots", "predicted"),
    [((0, 12), (Reaction.REFUSES, None)), ((14,), (Reaction.CUTS, 14)), ((), (Reaction.CUTS, 14))],
    ids=["of earlier ends", "of the end", "none"],
)
def test_a_broker_that_has_to_know_producers_looks_for_the_end_it_has_found(tmp_path, snapshots, predicted):
    """It reads the first offset of each batch on its way, and for that decompresses sets of old messages."""
    old_set = b"\0\0\0\0\0\0\0\x0d\0\0\0\x20\0\0\0\0\1\1" + bytes(26)
    path = built(tmp_path, Partition([Batch(many(6)), Batch(many(6))], tail=old_set))
    (path / "t-0" / f"{0:020}.index").write_bytes(b"")
    for snapshot in (path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    for offset in snapshots:
        (path / "t-0" / f"{offset:020}.snapshot").write_bytes(producer_state.encode([]))
    assert named(path, "log-end-misread") == [("t/0", *predicted)]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("is_copy", [False, True], ids=["another batch", "a copy"])
def test_a_broker_ends_a_log_after_its_last_batch(tmp_path, is_copy, clean):
    """Though an earlier batch has a greater offset: it gives the offsets between them to other messages."""
    batches = [batch([record(value=b"%d" % offset)], offset) for offset in (0, 1, 2)]
    last = batches[1] if is_copy else batch([record(value=b"other")], 1)
    path = built(tmp_path, Partition([], tail=b"".join([*batches, last])), clean=clean)
    assert named(path, "log-end-misread") == [("t/0", Reaction.CUTS, 2)]
    assert "loses messages of t/0 from offset 2 on: save" in run("doctor", path).stdout


@pytest.mark.parametrize(
    ("at", "field", "reaction"),
    [
        (0, b"\0\1", Reaction.REFUSES),
        (0, b"\1\0", Reaction.REFUSES),
        (0, b"\xff\xff", Reaction.REFUSES),
        (2, b"\xff", Reaction.UNNOTICED),
        (18, struct.pack(">q", -1), Reaction.REPAIRS),
        (34 + 9, None, Reaction.UNNOTICED),
        (34, None, Reaction.UNNOTICED),
    ],
    ids=["version 1", "version 256", "version -1", "a negative producer id", "a last offset below the segment",
         "half an entry", "no second entry"],
)  # fmt: skip
def test_a_wrong_transaction_index(tmp_path, at, field, reaction):
    """A broker looks at the version and the last offset alone. An entry that is missing, and half an entry, are not
    missed: consumers were given the aborted messages."""
    path = built(tmp_path, ABORTED * 2)
    (index,) = (path / "t-0").glob("*.txnindex")
    assert index.stat().st_size == 68
    if field is None:
        os.truncate(index, at)
    else:
        overwrite(index, at, field)
    found = [one for one in examine([path]).predictions if one.path == index]
    assert {one.reaction for one in found} == {reaction}
    if field is None:
        assert "given aborted ones" in found[0].broker


@pytest.mark.parametrize("base", [pytest.param(0, marks=pytest.mark.leaves_damage("txn-index-corrupt")), 6])
def test_half_an_entry_of_a_transaction_index_after_a_kill(tmp_path, base):
    """A broker does not read it below the recovery point, and `recover` leaves the segment as it is."""
    path = built(tmp_path, Partition([*ABORTED * 2, ROLL, *ABORTED * 2], recovery_point=6), clean=False)
    index = path / "t-0" / f"{base:020}.txnindex"
    os.truncate(index, 34 + 9)
    expected = Reaction.UNNOTICED if base == 0 else Reaction.REPAIRS
    assert {one.reaction for one in examine([path]).predictions if one.path == index} == {expected}
    assert run("recover", path).exit_code == 0
    assert index.stat().st_size == (43 if base == 0 else 68)


@pytest.mark.parametrize(
    ("base", "indexed", "clean", "reaction"),
    [
        (20, False, True, Reaction.REFUSES),
        (20, True, True, Reaction.UNNOTICED),
        (20, True, False, Reaction.REFUSES),
        (28, False, True, Reaction.UNNOTICED),  # it ends within the segment
    ],
)
def test_a_batch_below_its_segment(tmp_path, base, indexed, clean, reaction):
    """A broker that recovers the segment takes it for one whose offsets are too far apart, and cannot split it."""
    batches = [Batch(many(5)), Batch(many(5))]
    path = built(tmp_path, Partition(batches, start_offset=30, recovery_point=None if clean else 30), clean=clean)
    log = path / "t-0" / f"{30:020}.log"
    overwrite(log, 0, struct.pack(">q", base))
    if not indexed:
        log.with_suffix(".index").unlink()
    assert [one.reaction for one in examine([path]).predictions if one.path == log] == [reaction]


def test_a_batch_below_a_segment_that_its_aborts_have_recovered(tmp_path):
    """A broker recovers a segment whose transaction index has an abort from before it, also after a clean shutdown."""
    path = built(tmp_path, Partition([Batch(many(5)), Batch(many(5))], start_offset=30))
    log = path / "t-0" / f"{30:020}.log"
    overwrite(log, 0, struct.pack(">q", 20))
    log.with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 1, 20, 22, 20))
    assert ("batch-range", Reaction.REFUSES) in {(one.name, one.reaction) for one in examine([path]).predictions}
    log.with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 1, 30, 32, 30))
    assert Reaction.REFUSES not in {one.reaction for one in examine([path]).predictions}


@pytest.mark.parametrize(
    ("high_watermark", "position", "unreadable"),
    [
        (None, 0, [0]),  # where none is checkpointed, the log's start counts
        (5, 0, [0]),  # no index entry spares the broker the first batch
        (15, 0, []),
        (5, 1, [0]),
        (0, 1, []),  # the batch is there that it looks for
        (10, 1, []),  # of the next segment
        (20, 0, []),  # the end is not looked up
    ],
)
def test_a_high_watermark_that_a_leader_cannot_look_up(tmp_path, high_watermark, position, unreadable):
    """A batch whose size is 0, which stops a search; a CRC does not."""
    path = built(
        tmp_path, Partition([Batch(many(5)), Batch(many(5)), ROLL, Batch(many(5)), Batch(many(5))]), Partition([])
    )
    log = path / "t-0" / f"{0:020}.log"
    overwrite(log, position * log.stat().st_size // 2 + 8, bytes(4))
    lines = [] if high_watermark is None else [f"t 0 {high_watermark}\n"]
    (path / "replication-offset-checkpoint").write_text(f"0\n{len(lines)}\n{''.join(lines)}")
    found = [one for one in examine([path]).predictions if one.name == "high-watermark-unreadable"]
    assert [one.path for one in found] == [path / "t-0" / f"{base:020}.log" for base in unreadable]
    assert all(one.tp is None and "t/0" in one.broker for one in found)


@pytest.mark.parametrize("base", [30 + 2**31, 2**58])
@pytest.mark.parametrize(("indexed", "clean"), [(False, True), (True, False)])
@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("is_last", [True, False])
def test_a_batch_far_above_its_segment(tmp_path, base, indexed, clean, row, is_last):
    """A broker that recovers the segment splits it, if the last batch is the one that is far above."""
    batches = [Batch(many(5)), Batch(many(5)), Batch(many(5)), *([] if is_last else [ROLL, Batch(many(5))])]
    path = built(tmp_path, Partition(batches, start_offset=30, recovery_point=None if clean else 30), clean=clean)
    log = path / "t-0" / f"{30:020}.log"
    overwrite(log, row * log.stat().st_size // 3, struct.pack(">q", base))
    if not indexed:
        log.with_suffix(".index").unlink()
    refuses = row < 2
    is_moved = not refuses and not is_last and not clean  # otherwise we split the segment like a broker
    reactions = [Reaction.REFUSES] * refuses + [Reaction.UNNOTICED] * is_moved
    assert named(path, "batch-range") == [("t/0", reaction, None) for reaction in reactions]
    assert examine([path]).starts != refuses


def test_damage_where_an_index_is_missing_is_cut_off(tmp_path):
    partition = Partition([Batch(many(1)), Batch(many(1))], segment_bytes=1)
    path = built(tmp_path, partition, partition)
    for number in (0, 1):
        overwrite(path / f"t-{number}" / f"{0:020}.log", -1, b"!")
    (path / "t-1" / f"{0:020}.index").unlink()
    assert {one[:2] for one in named(path, "batch-crc")} == {("t/0", Reaction.UNNOTICED), ("t/1", Reaction.CUTS)}


def test_an_intact_batch_behind_the_cut_is_no_torn_tail(tmp_path):
    tails = batch([record()], 1, length=0) + batch([record()], 2), batch([record()], 1, crc=0) + batch([record()], 2)
    path = built(tmp_path, *(Partition([Batch(many(1))], recovery_point=0, tail=tail) for tail in tails), clean=False)
    cuts = [one for one in examine([path]).predictions if one.reaction is Reaction.CUTS]
    assert {(str(one.tp), one.name) for one in cuts} == {("t/0", "damage"), ("t/1", "damage")}
    for one in cuts:
        assert "with an intact batch at position" in one.what
        assert "salvage" in one.advice


def test_server_properties(tmp_path):
    file, logs = tmp_path / "server.properties", build_log_dir(tmp_path / "logs", {}).path

    def read(text):
        file.write_text(text)
        return broker_properties.read(file)

    def predicted(text):
        return [(one.name, one.path) for one in examine([logs], properties=read(text)).predictions]

    found = read("node.id=3\nlog.dirs=/a, /b\nprocess.roles=broker\n")
    assert (found.node_id, found.metadata_dir, found.is_kraft) == (3, Path("/a"), True)
    assert read("node.id=3\nlog.dirs=/a\nmetadata.log.dir=/m\n").metadata_dir == Path("/m")
    with pytest.raises(InvalidConfig, match="no number"):
        read("node.id=three\n")
    tiered = "remote.log.storage.system.enable="
    assert [read(text).is_tiered for text in (f"{tiered}True \n", f"{tiered}false\n", "")] == [True, False, False]
    assert [name for name, _ in predicted(f"node.id=9\nlog.dirs={logs}\n")] == ["node-id-differs"]
    gone = predicted(f"node.id=1\nlog.dirs={logs},{tmp_path}/gone\nprocess.roles=broker\n")
    assert gone == [("meta-properties-missing", tmp_path / "gone")]
    assert predicted("node.id=1\nlog.dirs=/a,/b\nprocess.roles=broker\n") == []


@pytest.mark.parametrize(
    ("epochs", "reaction"),
    [
        ("0 0", None),
        ("0 0,1 5", None),
        ("", Reaction.FORGETS),
        ("1 0", Reaction.FORGETS),
        ("0 2", Reaction.FORGETS),
        ("0 0,1 3", Reaction.UNNOTICED),
        (None, Reaction.FORGETS),
    ],
)
def test_leader_epochs_of_a_tiered_log(tmp_path, epochs, reaction):
    """4.3.0 began a log at its first segment there, and removed the remote segments: "due to leader-epoch-cache
    truncation". It served a log whose next leader begins with the first segment here."""
    path = tiered_log(tmp_path, [Batch(many(5))] * 3, clean=True, leader_epoch=2)
    file = path / "t-0" / "leader-epoch-checkpoint"
    file.unlink()
    if epochs is not None:
        lines = list(filter(None, epochs.split(",")))
        file.write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    assert [found for _, found, _ in named(path, "remote-epochs")] == ([] if reaction is None else [reaction])


@pytest.mark.parametrize("epoch", [0, 7])
def test_a_leader_epoch_above_that_of_the_metadata_in_a_tiered_log(tmp_path, epoch):
    """No CRC covers it. Recovery keeps it; the leader then begins with that of the metadata: "caused truncation of
    conflicting entries"."""
    path = tiered_log(tmp_path, [Batch(many(5)), Batch(many(5)), Batch(many(5), leader_epoch=epoch)], clean=False)
    (path / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    assert [found for _, found, _ in named(path, "remote-epochs")] == ([Reaction.FORGETS] if epoch == 7 else [])


def test_leader_epochs_of_a_tiered_log_beside_the_directory_with_the_metadata(tmp_path):
    """4.3.0 gave a consumer nothing of it. Only the metadata say that it is tiered."""
    path, second = tiered_log(tmp_path, [Batch(many(5))] * 3, clean=False), tmp_path / "second"
    second.mkdir()
    meta = (path / "meta.properties").read_text()
    (second / "meta.properties").write_text(re.sub("directory.id=.*", "", meta))
    for name in ("t-0", "log-start-offset-checkpoint"):
        (path / name).rename(second / name)
    (second / "t-0" / "leader-epoch-checkpoint").write_bytes(b"")
    found = [one.reaction for one in examine([path, second]).predictions if one.name == "remote-epochs"]
    assert found == [Reaction.FORGETS]


@requires_fixtures
def test_a_lost_segment_that_was_in_no_tier(tmp_path):
    """4.3.0 sent a consumer there to the log's end. What was uploaded, and is not here any more, is in the tier."""
    path = copy_log_dir(FIXTURES / "tiers" / "log", tmp_path / "log")
    for base in (724, 977):
        for file in path.glob(f"cut-0/{base:020}.*"):
            file.unlink()
    assert named(path, "remote-segment") == []
    (events,) = path.glob("__remote_log_metadata-1/*.log")
    *before, _ = stored_batches(events.read_bytes()[:3952])  # without the end of the last upload
    events.write_bytes(b"".join(batch.data for batch in before))
    cut = [one for one in examine([path]).predictions if one.name == "remote-segment" and one.tp.topic == "cut"]
    assert [(one.reaction, one.what.partition(" are")[0]) for one in cut] == [
        (Reaction.UNNOTICED, "offsets 977 to 1210")
    ]
    shutil.rmtree(events.parent)
    assert [one for one in named(path, "remote-segment") if one[0] == "cut/0"] == []  # nobody knows


def tiered_log(tmp_path, batches, *, clean, leader_epoch=0):
    """A directory with a tiered topic t, of which the first segment is not here any more."""
    records = [topic_setting("t", "remote.storage.enable", "true")]
    partition = Partition([batches[0], *batches], segment_bytes=1, recovery_point=0)
    path = built(tmp_path, partition, records=records, clean=clean, leader_epoch=leader_epoch)
    for file in (path / "t-0").glob(f"{0:020}.*"):
        file.unlink()
    (path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    return path


QUORUM_STATE = {
    "clusterId": "", "leaderId": 1, "leaderEpoch": 3, "votedId": -1, "appliedOffset": 0,
    "currentVoters": [{"voterId": 1}], "data_version": 0,
}  # fmt: skip


@pytest.mark.parametrize(("text", "is_read"), [("{}on: 0", True), ("{}\n{}", True), ("\n{}", False), ("{}\xff", True)])
def test_what_follows_a_quorum_state(tmp_path, text, is_read):
    """4.3.0 read the first value of the first line."""
    path = built(tmp_path, [b"a"])
    state = json.dumps(QUORUM_STATE)
    (path / "__cluster_metadata-0" / "quorum-state").write_text(text.replace("{}", state))
    assert examine([path]).starts == is_read


@pytest.mark.parametrize(
    ("change", "is_read"),
    [
        ({}, True),
        ({"currentVoters": None}, True),
        ({"data_version": "7"}, True),  # what is no number is 0 to a broker
        ({"data_version": 1}, False),  # without votedDirectoryId
        ({"data_version": 1, "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA"}, True),
        ({"data_version": 2}, False),
        ({"data_version": float("inf")}, False),
        ({"leaderEpoch": None}, False),
        ({"leaderId": "x"}, False),
        ({"clusterId": None}, False),
    ],
)
def test_a_quorum_state_that_a_broker_reads(tmp_path, change, is_read):
    """As 4.3.0 and 4.4.0 did ("unable to locate field 'votedDirectoryId', which is mandatory in version 1")."""
    path = built(tmp_path, [b"a"])
    (path / "__cluster_metadata-0" / "quorum-state").write_text(json.dumps({**QUORUM_STATE, **change}))
    found = examine([path])
    assert names_of(found) == (set() if is_read else {"quorum-state-corrupt"})
    assert found.starts == is_read


def test_strays_and_absent_partitions(tmp_path):
    records = [*metadata_records("t", 3, [1]), *metadata_records("other", 1, [2])]
    path = build_log_dir(
        tmp_path, {"t": [[b"a"], [b"b"]], "other": [[b"c"]], "unknown": [[b"d"]], "__cluster_metadata": [records]}
    ).path
    (path / "t-1" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id('later')}")
    found = examine([path])
    assert {(str(one.tp), one.name) for one in found.predictions if one.name != "retention"} == {
        ("t/1", "topic-id-differs"), ("t/2", "partition-absent"), ("other/0", "not-assigned"),
        ("unknown/0", "topic-unknown"),
    }  # fmt: skip
    assert (found.starts, found.is_well) == (True, False)
    (tmp_path / "server.properties").write_text(
        f"process.roles=broker,controller\nnode.id=1\nlog.dirs={path}\ncontroller.quorum.voters=1@a:1,2@b:1,3@c:1\n"
    )
    found = examine([path], properties=broker_properties.read(tmp_path / "server.properties"))
    # A node with an old copy of the metadata set nothing aside: it got the newer ones from the other controllers.
    strays = [one for one in found.predictions if one.reaction is Reaction.STRAY]
    assert len(strays) == 3
    assert all("other controllers" in one.broker and "not known" in one.broker for one in strays)


@pytest.mark.parametrize(
    ("change", "is_read"),
    [
        (lambda data: data, True),
        (lambda data: data + bytes(17), True),  # too few bytes for a header
        (lambda data: data + bytes(18), False),
        (lambda data: data + b"\xff" * 100, False),
        (lambda data: data + data, True),
        (lambda data: data + data[:-1], True),  # a batch that is cut off
        (lambda data: data + b"text" * 50, True),  # of a length that makes it one
        (lambda data: data[:-1], True),  # the footer
        (lambda data: data[:20], False),
        (lambda data: data[:17] + b"\xff" + data[18:], True),  # a CRC, which a broker does not check here
        (lambda data: data[:57] + bytes(4) + data[61:], False),  # the number of records
    ],
    ids=["whole", "few bytes", "zeros", "garbage", "twice", "twice, cut", "text", "cut", "the beginning", "a CRC",
         "no records"],
)  # fmt: skip
def test_what_a_broker_reads_of_bootstrap_checkpoint(tmp_path, change, is_read):
    path = built(tmp_path, [b"a"])
    data = bootstrap(cluster_records(ClusterMetadata(features={"metadata.version": 21})), 0)
    (path / "bootstrap.checkpoint").write_bytes(change(data))
    assert names_of(examine([path])) == (set() if is_read else {"bootstrap-corrupt"})


@pytest.mark.parametrize(
    ("offset", "point", "predicted"),
    [
        (0, 0, []),
        (4, 0, [(Reaction.CUTS, 0)]),  # at the end of the first segment, which it empties
        (8, 0, [(Reaction.CUTS, 4)]),
        (9, 0, []),
        (6, 0, []),
        (4, 4, [(Reaction.OFFLINE, None)]),  # it writes that snapshot again when it has emptied the second segment
    ],
)
def test_a_directory_in_place_of_a_snapshot_that_recovery_writes(tmp_path, offset, point, predicted):
    """4.3.0 takes the segment for damaged, removes all messages from there on, and starts."""
    log = Partition([Batch(many(4)), ROLL, Batch(many(4))], recovery_point=point)
    path = built(tmp_path, log, clean=False)
    snapshot = path / "t-0" / f"{offset:020}.snapshot"
    snapshot.unlink(missing_ok=True)
    snapshot.mkdir()
    assert named(path, "no-regular-file") == [("t/0", *prediction) for prediction in predicted]


def test_a_directory_in_place_of_the_snapshot_before_an_empty_segment(tmp_path):
    """4.3.0 has nothing to remove there, and goes on."""
    path = built(tmp_path, Partition([Batch(many(4)), ROLL, Batch(many(4))]), clean=False)
    (path / "t-0" / f"{4:020}.snapshot").unlink(missing_ok=True)
    (path / "t-0" / f"{4:020}.snapshot").mkdir()
    for base in (0, 4):
        (path / "t-0" / f"{base:020}.log").write_bytes(b"")
    assert named(path, "no-regular-file") == []


@pytest.mark.parametrize(
    ("lines", "reaction"),
    [
        ("t zero 5\n", Reaction.UNNOTICED),
        ("t 0 5\nt 1 \0\0\n", Reaction.UNNOTICED),  # it counts the lines last
        ("t 0 5\nt 1 zero\ngarbage\n", Reaction.UNNOTICED),
        ("t 0 5\ngarbage\nt 1 zero\n", Reaction.OFFLINE),
        ("t 0 5\nt 1 7\n", Reaction.OFFLINE),
    ],
)
def test_the_first_wrong_line_of_a_cleaners_checkpoint_decides(tmp_path, lines, reaction):
    path = built(tmp_path, [b"a"])
    (path / "cleaner-offset-checkpoint").write_text(f"0\n1\n{lines}")
    assert named(path, "checkpoint-corrupt") == [("", reaction, None)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", ["recovery-point", "log-start", "replication", "cleaner"])
def test_a_directory_in_place_of_a_checkpoint(tmp_path, kind, clean):
    path = built(tmp_path, [b"a"], clean=clean)
    checkpoint = path / f"{kind}-offset-checkpoint"
    checkpoint.unlink(missing_ok=True)
    checkpoint.mkdir()
    assert named(path, "checkpoint-corrupt") == [("", Reaction.OFFLINE, None)]


@pytest.mark.parametrize(
    ("voters", "reaction"), [("1@a:1", Reaction.UNNOTICED), ("1@a:1,2@b:1,3@c:1", Reaction.OFFLINE)]
)
def test_a_broker_without_topics_reads_no_high_watermark(tmp_path, voters, reaction):
    """4.3.0 makes its logs strays, and leaves the file alone until it makes a partition."""
    path = built(tmp_path / "logs", [b"a"])
    shutil.rmtree(path / "__cluster_metadata-0")
    (path / "replication-offset-checkpoint").write_text("0\n7\nt 0 5\n")
    file = tmp_path / "server.properties"
    file.write_text(f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters={voters}\n")
    found = examine([path], properties=broker_properties.read(file)).predictions
    assert [one.reaction for one in found if one.name == "checkpoint-corrupt"] == [reaction]


@pytest.mark.parametrize("nodes", [[1], [1, 2]])
def test_an_absent_partition_may_be_in_a_directory_that_was_not_named(tmp_path, nodes):
    path = build_log_dir(tmp_path, {"t": [[b"a"]], "__cluster_metadata": [metadata_records("t", 2, nodes)]}).path
    absent = [one for one in examine([path]).predictions if one.name == "partition-absent"]
    assert [(one.reaction.is_finding, "all of the broker's log.dirs" in one.advice) for one in absent] == [
        (nodes == [1], True)
    ]


@pytest.mark.parametrize("in_its_place", [Path.touch, lambda path: path.symlink_to("nowhere")])
def test_an_absent_partition_whose_name_is_taken(tmp_path, in_its_place):
    """4.3.0 could not create it (FileAlreadyExistsException), and stopped with its only directory."""
    path = built(tmp_path, [b"a"], topic_partitions=2)
    in_its_place(path / "t-1")
    found = examine([path])
    assert [(one.name, one.reaction) for one in found.predictions] == [("partition-absent", Reaction.OFFLINE)]
    assert not found.starts


def test_names_that_a_broker_takes(tmp_path):
    """It looks for the number behind the last dash alone; and 4.3.0 and 4.4.0 ended the log at 7 for this segment."""
    path = built(tmp_path, [b"a"])
    for name in ("tö-0", "foo-+3", "..-0"):
        (path / name).mkdir()
    (path / ".kafka_cleanshutdown").unlink()
    (path / ".kafka_cleanshutdown").mkdir()
    (path / "t-0" / "0000000000000000007.log").write_bytes(b"")
    found = examine([path])
    assert found.starts
    unknown = {(one.path.name, one.reaction) for one in found.predictions if one.name == "topic-unknown"}
    assert unknown == {(name, Reaction.STRAY) for name in ("..-0", "foo-+3", "tö-0")}
    assert named(path, "file-misnamed") == [("t/0", Reaction.CUTS, 7)]
    log = path / "t-0" / f"{0:020}.log"
    shutil.copy(log, path / "t-0" / f"{30:020}.log")  # between two segments: the log ends as before
    assert named(path, "file-misnamed") == [("t/0", Reaction.CUTS, None)]


@pytest.mark.parametrize("text", ["", "cluster.id=x\n", "version=0\nbroker.id=1\n", "node.id=1\n"])
def test_a_meta_properties_without_ids(tmp_path, text):
    """Emptied by a full disk, or of version 0 without an id: node ID not found, cluster ID not found."""
    path = built(tmp_path, [b"a"])
    (path / "meta.properties").write_text(text)
    found = examine([path])
    assert "meta-properties-corrupt" in names_of(found)
    assert not found.starts


@pytest.mark.parametrize("voters", ["1@a:1", "1@a:1,2@b:1,3@c:1"])
@pytest.mark.parametrize("cluster_id", [CLUSTER_ID, CLUSTER_ID[:-4] + "\0" * 4])
def test_a_cluster_id_that_other_nodes_do_not_have(tmp_path, voters, cluster_id):
    """INCONSISTENT_CLUSTER_ID. A node by itself takes any."""
    path = built(tmp_path / "logs", [b"a"])
    identity = path / "meta.properties"
    identity.write_text(identity.read_text().replace(CLUSTER_ID, cluster_id))
    file = tmp_path / "server.properties"
    file.write_text(f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters={voters}\n")
    found = names_of(examine([path], properties=broker_properties.read(file)))
    assert ("cluster-id-corrupt" in found) == (cluster_id != CLUSTER_ID and "," in voters)


IDS = f"cluster.id={CLUSTER_ID}\n"


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("", "meta-properties-corrupt"),
        ("broker.id=1\n", "meta-properties-corrupt"),
        (IDS + "node.id=1\n", "meta-properties-corrupt"),
        (IDS + "broker.id=2\n", "node-id-differs"),
        ("broker.id=1\ncluster.id=other\n", "cluster-id-differs"),
        (IDS + "broker.id=1\n", None),
        ("node.id=1\ndirectory.id=AAAA", None),  # the directory goes offline: it can read nothing of this file
    ],
)
def test_a_second_meta_properties_without_a_version(tmp_path, text, refuses):
    """A file of version 0: KafkaRaftServer.initializeLogDirs wants both ids of each directory."""
    path, second = built(tmp_path / "first", [b"a"]), tmp_path / "second"
    second.mkdir()
    (second / "meta.properties").write_text(text)
    found = examine([path, second])
    refusals = [prediction.name for prediction in found.predictions if prediction.reaction is Reaction.REFUSES]
    assert refusals == [refuses] * bool(refuses)
    assert found.starts == (refuses is None)


@pytest.mark.parametrize(
    ("content", "reaction"),
    [
        (b"", Reaction.REFUSES),
        (b"version: 0\n", Reaction.REFUSES),
        (b"version: 0\ntopic_id: nonsense", Reaction.REFUSES),
        (b"version: 0\ntopic_id: " + b"A" * 22, Reaction.OFFLINE),
        (b"version: 0\ntopic_id: \xff", Reaction.OFFLINE),
        (bytes(43), Reaction.OFFLINE),
    ],
)
def test_a_topic_id_that_does_not_parse(tmp_path, content, reaction):
    """An IOException takes the directory offline; a NullPointerException, of what is cut off, ends the broker."""
    path = built(tmp_path, [b"a"])
    (path / "t-0" / "partition.metadata").write_bytes(content)
    assert named(path, "topic-id-corrupt") == [("t/0", reaction, None)]


def test_another_topics_id(tmp_path):
    """InconsistentTopicIdException: neither that topic nor an unrelated one had a leader."""
    records = metadata_records("other", 1, [1])
    path = built(tmp_path, [b"a"], records=records)
    (path / "t-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id('other')}")
    assert named(path, "topic-id-shared") == [("t/0", Reaction.UNNOTICED, None)]


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("transactional", [False, True])
def test_a_log_with_transactions_may_end_the_broker_when_its_directory_is_offline(tmp_path, transactional, is_file):
    """It looks up the transaction's first offset in a directory that has already failed (KafkaStorageException)."""
    path, second = built(tmp_path / "first", [b"a"]), tmp_path / "second"
    second.mkdir()
    meta = (path / "meta.properties").read_text()
    (second / "meta.properties").write_text(re.sub("directory.id=.*", f"directory.id={topic_id('second')}", meta))
    other = build_log_dir(tmp_path / "other", {"u": [[b"x"], ABORTED if transactional else [b"b"]]})
    for number in (0, 1):
        (other.path / f"u-{number}").rename(second / f"u-{number}")
    epochs = second / "u-0" / "leader-epoch-checkpoint"
    if is_file:
        epochs.write_bytes(b"damaged")
    else:
        epochs.unlink()
        epochs.mkdir()
    predictions = examine([path, second]).predictions
    findings = {one.name: str(one.tp) for one in predictions if one.reaction is Reaction.OFFLINE}
    expected = {"epochs-corrupt" if is_file else "no-regular-file": "u/0"} | (
        {"transactions-offline": "u/1"} if transactional else {}
    )
    assert findings == expected


@pytest.mark.parametrize(
    ("name", "reactions"),
    [
        (f"{7:021}.log", [Reaction.CUTS]),
        ("-5.log", [Reaction.CUTS]),
        (f"{7:021}.index", []),
        ("-5.snapshot", []),
        ("x.log", [Reaction.REFUSES]),
        (f"{1 << 63}.index", [Reaction.REFUSES]),
    ],
)
def test_names_that_a_broker_parses_as_offsets(tmp_path, name, reactions):
    """Long.parseLong takes signs and any number of digits; a broker started with each of the first four."""
    path = built(tmp_path, [Batch(many(3))])
    (path / "t-0" / name).touch()
    assert [reaction for _, reaction, _ in named(path, "file-misnamed")] == reactions


METADATA_FILES = {
    "partition.metadata": [b"", bytes(43), f"version: 0\ntopic_id: {topic_id('t')}".encode()],
    "leader-epoch-checkpoint": [bytes(8), b"0\n1"],
}


@pytest.mark.parametrize(("name", "content"), [(name, data) for name, all_ in METADATA_FILES.items() for data in all_])
def test_a_small_file_of_the_metadata_log(tmp_path, name, content):
    """Empty or zeros after a power loss: the broker does not start."""
    path = built(tmp_path, [b"a"])
    (path / "__cluster_metadata-0" / name).write_bytes(content)
    found = examine([path])
    assert not found.starts
    assert [one.path.name for one in found.predictions] == [name]


@pytest.mark.parametrize(
    ("in_its_place", "reaction"),
    [(Path.mkdir, Reaction.REFUSES), (lambda path: path.symlink_to("nowhere"), Reaction.UNNOTICED)],
)
def test_a_metadata_log_that_is_no_file(tmp_path, in_its_place, reaction):
    """4.3.0: FileSystemException, Is a directory. Doctor does not follow the link, so it cannot know what the broker
    finds, and says so."""
    path = built(tmp_path, [b"a"])
    (log,) = (path / "__cluster_metadata-0").glob("*.log")
    log.unlink()
    in_its_place(log)
    found = examine([path])
    assert ("no-regular-file", reaction) in {(one.name, one.reaction) for one in found.predictions}
    assert found.starts == (reaction is Reaction.UNNOTICED)


def test_a_metadata_log_that_others_have(tmp_path):
    """One of three controllers: it gets the metadata from the others, and nothing is set aside."""
    path = built(tmp_path / "log", [b"a"])
    shutil.rmtree(path / "__cluster_metadata-0")
    properties = tmp_path / "server.properties"
    for voters, reaction in (("1@a:1", Reaction.STRAY), ("1@a:1,2@b:1,3@c:1", Reaction.REPAIRS)):
        properties.write_text(
            f"process.roles=broker,controller\nnode.id=1\nlog.dirs={path}\ncontroller.quorum.voters={voters}\n"
        )
        found = examine([path], properties=broker_properties.read(properties))
        assert {(one.name, one.reaction) for one in found.predictions} == {("metadata-lost", reaction)}
        assert ("revive" in found.predictions[0].advice) == (reaction is Reaction.STRAY)


@pytest.mark.parametrize("gone", ["first", "middle", "last"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_that_is_missing(tmp_path, gone, clean):
    """Other files know that it was there: epochs, its neighbours, the high watermark."""
    batches = [Batch(many(5)) for _ in range(4)]
    path = built(tmp_path, Partition(batches, segment_bytes=1, recovery_point=0), clean=clean)
    bases = sorted((path / "t-0").glob("*.log"))
    base = {"first": bases[0], "middle": bases[1], "last": bases[-1]}[gone]
    for file in (path / "t-0").glob(f"{base.stem}.*"):
        file.unlink()
    (path / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    name = {"first": "log-start-lost", "middle": "segment-gap", "last": "log-end-lost"}[gone]
    reaction = Reaction.CUTS if gone == "last" else Reaction.UNNOTICED
    expected = [] if gone == "first" and not clean else [("t/0", reaction, 15 if gone == "last" else None)]
    assert named(path, name) == expected


def test_retention_goes_by_the_last_entry_of_a_time_index(tmp_path):
    """A stale clean-shutdown file, or zeros: the broker took 1970 for the segment's latest time, and removed it all."""
    path = built(tmp_path, [Batch(many(5))], [Batch(many(5))], keeps="864000000000")
    index = path / "t-1" / f"{0:020}.timeindex"
    index.write_bytes(index.read_bytes() + bytes(1200))
    assert named(path, "retention-early") == [("t/1", Reaction.CUTS, None)]
    assert not named(path, "retention")


def test_a_time_index_that_was_about_to_take_its_place_counts_for_retention(tmp_path):
    """Recovery comes first: the last entry of the .swap file, of 1970, counts, whatever the live file says."""
    path = built(tmp_path, *[[Batch(many(5))]] * 2, keeps="864000000000")
    for number, is_live_gone in ((0, True), (1, False)):
        index = path / f"t-{number}" / f"{0:020}.timeindex"
        replacement = index.with_name(f"{index.name}.swap")
        replacement.write_bytes(index.read_bytes() + bytes(1200))
        if is_live_gone:
            index.unlink()
    early = [found for found in examine([path]).predictions if found.name == "retention-early"]
    assert [(str(found.tp), found.path.suffix) for found in early] == [("t/0", ".swap"), ("t/1", ".swap")]


def test_a_time_index_that_recovery_removes_does_not_count_for_retention(tmp_path):
    """A segment that was compacted takes the place of all files: without a time index its modification time counts."""
    path = built(tmp_path, [Batch(many(5))], keeps="864000000000")
    index = path / "t-0" / f"{0:020}.timeindex"
    index.write_bytes(index.read_bytes() + bytes(1200))
    for kind in ("log", "index"):
        shutil.copy2(index.with_suffix(f".{kind}"), index.with_suffix(f".{kind}.swap"))
    assert not named(path, "retention-early")


def test_what_retention_removes_as_always_is_a_note(tmp_path):
    path = built(tmp_path, [Batch(many(5))], keeps="1000")
    found = examine([path])
    assert [(one.name, one.reaction) for one in found.predictions] == [("retention", Reaction.REMOVES)]
    assert found.is_well
    assert (
        run("doctor", path).stdout.splitlines()[-1] == "the broker starts, and loses nothing but what retention removes"
    )


def test_what_retention_removes_of_a_log_that_is_cut(tmp_path):
    """The segments before the cut go as always."""
    batches = Partition([Batch(many(5))] * 3, segment_bytes=1, recovery_point=0)
    path = built(tmp_path, batches, clean=False, keeps="1000")
    flip(sorted((path / "t-0").glob("*.log"))[2], 100)
    assert named(path, "damage") == [("t/0", Reaction.CUTS, 10)]
    (note,) = [one for one in examine([path]).predictions if one.name == "retention"]
    assert (note.reaction, note.what[:34]) == (Reaction.REMOVES, "2 segments up to offset 10 exceed ")


@pytest.mark.parametrize("clean", [True, False])
def test_a_directory_in_place_of_a_snapshot_of_producers(tmp_path, clean):
    """A broker lists regular files, and fails where it writes one of that name: after a clean shutdown not, if a later
    one can be read."""
    path = built(tmp_path, Partition([Batch(many(5))] * 3, segment_bytes=1, recovery_point=0), clean=clean)
    snapshots = sorted((path / "t-0").glob("*.snapshot"))
    assert len(snapshots) > 1
    for snapshot, is_read in ((snapshots[0], not clean), (snapshots[-1], True)):
        snapshot.unlink()
        snapshot.mkdir()
        assert ("no-regular-file" in names_of(examine([path]))) == is_read


@pytest.mark.parametrize("retention_ms", [-1, 1000, 10**15])
@pytest.mark.parametrize(
    ("number", "reaction"), [(0, Reaction.UNNOTICED), (1, Reaction.UNNOTICED), (-1, Reaction.OFFLINE)]
)
def test_a_directory_in_place_of_a_time_index(tmp_path, number, retention_ms, reaction):
    """After a clean shutdown a broker opens that of the active segment. Retention of 4.3.0 meets one that is before the
    first segment that stays, and ends: "Uncaught exception in scheduled task"."""
    path = built(tmp_path, Partition([Batch(many(5))] * 3, segment_bytes=1), keeps=str(retention_ms))
    index = sorted((path / "t-0").glob("*.timeindex"))[number]
    index.unlink()
    index.mkdir()
    found = examine([path]).predictions
    assert {one.reaction for one in found if one.name == "no-regular-file"} == {reaction}
    if reaction is Reaction.UNNOTICED:
        assert not any(prediction.name.startswith("retention") for prediction in found)


def test_which_logs_a_retention_that_ends_has_reached_is_not_known(tmp_path):
    """In a broker's concurrent map."""
    partition = Partition([Batch(many(5))] * 3, segment_bytes=1)
    path = built(tmp_path, partition, partition, keeps="1000")
    index = path / "t-1" / f"{0:020}.timeindex"

    def retention():
        return [one.broker for one in examine([path]).predictions if one.name == "retention" and one.tp.partition == 0]

    assert retention() == ["removes them in the first minutes, as always"]
    index.unlink()
    index.mkdir()
    assert retention() == [f"removes them in the first minutes, as always, unless it meets {index} first"]


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize(
    ("recovery_point", "number", "reaction"),
    [
        (None, 0, Reaction.UNNOTICED),
        (None, 2, Reaction.OFFLINE),
        (5, 0, Reaction.UNNOTICED),
        (5, 1, Reaction.OFFLINE),
        (4, 0, Reaction.OFFLINE),
    ],
)
def test_indexes_that_a_broker_does_not_open_when_it_starts(tmp_path, kind, recovery_point, number, reaction):
    """Those of segments before the active one; after a crash, of those that are wholly below the recovery point."""
    partition = Partition([Batch(many(5))] * 3, segment_bytes=1, recovery_point=recovery_point)
    path = built(tmp_path, partition, clean=recovery_point is None)
    (path / "replication-offset-checkpoint").write_text("0\n1\nt 0 15\n")
    index = sorted((path / "t-0").glob(f"*{kind}"))[number]
    index.unlink()
    index.mkdir()
    assert named(path, "no-regular-file") == [("t/0", reaction, None)]


@pytest.mark.parametrize(
    ("high_watermark", "replicas", "numbers"),
    [(0, [1], [0]), (5, [1], [1]), (9, [1], [1]), (10, [1], []), (5, [1, 2], [])],
)
def test_an_index_in_which_a_leader_looks_up_its_high_watermark(tmp_path, high_watermark, replicas, numbers):
    """A directory in its place takes the log directory offline. A follower looks up nothing."""
    path = built(tmp_path, Partition([Batch(many(5))] * 3, segment_bytes=1), replicas=replicas)
    (path / "replication-offset-checkpoint").write_text(f"0\n1\nt 0 {high_watermark}\n")
    for index in sorted((path / "t-0").glob("*.index"))[:2]:
        index.unlink()
        index.mkdir()
    found = [one for one in examine([path]).predictions if one.reaction is Reaction.OFFLINE]
    assert [int(one.path.stem) // 5 for one in found] == numbers


@pytest.mark.parametrize("kind", [".log", ".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("suffix", [".deleted", ".cleaned", ".swap"])
def test_a_directory_with_the_name_of_a_file_of_an_interrupted_operation(tmp_path, kind, suffix):
    """A broker looks at regular files alone (LogLoader.removeTempFilesAndCollectSwapFiles), and so does recovery."""
    path = built(tmp_path, Partition([Batch(many(5))] * 3, segment_bytes=1, recovery_point=0), clean=False)
    directory = path / "t-0" / f"{10:020}{kind}{suffix}"
    directory.mkdir()
    assert named(path, "no-regular-file") == []
    assert run("recover", path).exit_code == 0
    assert directory.is_dir()


@pytest.mark.parametrize("offsets", [(18,), range(20)], ids=["no index entry", "an index entry"])
@pytest.mark.parametrize("indexed", [True, False])
def test_offsets_that_go_back(tmp_path, offsets, indexed):
    """A broker compares offsets where it adds an index entry: it then dies, or empties a segment that has an index;
    otherwise it keeps both copies."""
    tail = b"".join(batch([record(0, None, b"x" * 1500)], offset) for offset in offsets)
    path = built(tmp_path, Partition([b"x" * 1500] * 20, recovery_point=0, tail=tail), clean=False)
    if not indexed:
        (path / "t-0" / f"{0:020}.index").unlink()
    reactions = {one.reaction for one in examine([path]).predictions if one.name == "batch-order"}
    expected = Reaction.UNNOTICED
    if len(offsets) > 1:
        expected = Reaction.CUTS if indexed else Reaction.REFUSES
    assert reactions == {expected}
