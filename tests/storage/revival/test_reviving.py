"""`revive`: choices, cuts, ids, configurations, transactions, and that a killed run leaves nothing complete."""

import errno
import shutil
import struct

import pytest

from storage.coordinators.groups import GroupOffsets
from storage.coordinators.offset_records import CommittedOffset, OffsetKey, encode_commit, encode_offset_key
from storage.errors import CorruptBatch, InvalidConfig, InvalidTopic, LogLocked, NotPermitted, UnknownTopicOrPartition
from storage.files import cluster_metadata as metadata_log
from storage.files import metadata_checkpoint, metadata_records, metadata_replay, partition_metadata
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from storage.files.metadata_checkpoint import NewPartition
from storage.format.batches import MAGIC_AT
from storage.format.block import Record
from storage.format.decoder import Decoder
from storage.format.hashing import group_partition
from storage.format.record_batch import encode_batch
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.revival.features import features
from storage.revival.log_cut import cut_at_offset, cut_at_time
from storage.revival.revive import Request, plan, rehearse, run
from storage.revival.topics import ConfigRequest
from storage.types import Isolation, OffsetRange, TopicPartition
from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.support.builders import (
    ROLL,
    START_MS,
    Batch,
    Partition,
    abort,
    build_log_dir,
    commit,
    many,
    topic_id,
    topic_setting,
)
from tests.support.builders import metadata_records as metadata_of
from tests.support.commands import output_of
from tests.support.damaged_bytes import flip
from tests.support.faults import Crash, FaultyDisk
from tests.support.fixtures import ROOT
from tests.support.nightly import rounds
from tests.support.owned_dirs import StandingClock, tree_of
from tests.support.readers import read_all, table_of

TP = TopicPartition("t", 0)
UNFINISHED = "new.reviving"


def values(log_dir, tp=TP):
    return [
        (r.offset, r.timestamp, r.key, r.value) for r in read_all(LogDir.open_read_only(log_dir).log(tp).snapshot())
    ]


def offsets(log_dir):
    return [record[0] for record in values(log_dir)]


def revived(tmp_path, *sources, **options):
    target = tmp_path / "new"
    result = run(Request(sources=sources, target=target, **options))
    assert not [one for one in verify_log_dir(target) if one.severity is Severity.FINDING]
    assert not list(tmp_path.glob("*.reviving"))
    assert not (target / ".lock").exists()
    return target, result


def described(target):
    metadata = metadata_log.read_bootstrap(target)
    assert metadata is not None
    assert metadata.problem is None
    return metadata


def test_records_are_read_as_they_are_written(tmp_path):
    identity, directory = partition_metadata.random_id(), partition_metadata.random_id()
    records = [
        metadata_records.FeatureLevelRecord("metadata.version", 21),
        metadata_records.TopicRecord("größe", identity),
        metadata_records.ConfigRecord(2, "größe", "retention.ms", "-1"),
        *(NewPartition(identity, number, 7, directory, -1, 4) for number in range(2500)),
        metadata_records.ProducerIdsRecord(5000),
    ]
    (tmp_path / "bootstrap.checkpoint").write_bytes(metadata_checkpoint.bootstrap(records, 1))
    metadata = described(tmp_path)
    topic = metadata.topics["größe"]
    assert (topic.topic_id, topic.configs, len(topic.partitions)) == (identity, {"retention.ms": "-1"}, 2500)
    last = topic.partitions[2499]
    assert (last.replicas, last.isr, last.leader, last.leader_epoch) == ((7,), (7,), -1, 4)
    assert metadata.next_producer_id == 5000


def test_of_several_replicas_the_latest_epoch_then_the_end(tmp_path):
    def replica(name, *batches):
        return build_log_dir(tmp_path / name, {"t": [Partition(list(batches))]}).path

    first = replica("a", Batch(many(10), leader_epoch=1), Batch(many(30), leader_epoch=2))
    second = replica("b", Batch(many(10), leader_epoch=1), Batch(many(5), leader_epoch=3))
    third = replica("c", Batch(many(10), leader_epoch=1), *(Batch(many(count), leader_epoch=3) for count in (5, 3)))
    result = plan(Request(sources=[first, second, third], target=tmp_path / "new"))
    (chosen,) = result.partitions
    assert chosen.replica.path == third / "t-0"
    beyond = [(one.path, one.offsets.start, one.offsets.end) for one in chosen.choice.beyond]
    assert beyond == [(first / "t-0", 10, 40)]
    metadata = described(revived(tmp_path, first, second, third)[0])
    assert metadata.topics["t"].partitions[0].leader_epoch == 4
    # A mirror of one log directory of two has an empty partition for each that is in the other.
    taken = build_log_dir(tmp_path / "d", {"t": [Partition([Batch(many(10))], log_start_offset=7)]})
    (chosen,) = plan(Request(sources=[taken.path, replica("e")], target=tmp_path / "another")).partitions
    assert chosen.choice.beyond == ()


def test_single_directories_even_set_aside(tmp_path):
    built = build_log_dir(tmp_path / "old", {"t": [[b"zero"], [b"one"]], "deleted": [[b"gone"]]}, broker=False)
    shutil.move(built.path / "deleted-0", built.path / f"deleted-0.{'a' * 32}-delete")
    shutil.move(built.path / "t-1", built.path / f"t-1.{'b' * 32}-stray")
    (built.path / f"t-1.{'b' * 32}-stray" / "partition.metadata").unlink()
    target, result = revived(tmp_path, *sorted(path for path in built.path.iterdir() if path.is_dir()))
    assert [str(one.tp) for one in result.partitions] == ["deleted/0", "t/0", "t/1"]
    assert [row[3] for row in values(target, TopicPartition("deleted", 0))] == [b"gone"]
    assert (target / "t-1" / "partition.metadata").read_bytes() == (target / "t-0" / "partition.metadata").read_bytes()


def test_what_a_broker_has_set_aside_is_named(tmp_path):
    """Nobody knows whether it is still wanted, so it is taken only if it is named."""
    built = build_log_dir(tmp_path / "old", {"t": [[b"zero"], [b"one"]]})
    stray = shutil.move(built.path / "t-1", built.path / f"t-1.{'b' * 32}-stray")
    _, result = revived(tmp_path, built.path)
    assert [str(one.tp) for one in result.partitions] == ["t/0"]
    assert [note for note in result.notes if str(stray) in note]
    for options in ({"wanted": lambda tp: tp.partition == 0}, {"sources": [built.path, stray]}):
        result = plan(Request(**{"sources": [built.path], "target": tmp_path / "another", **options}))
        assert not [note for note in result.notes if str(stray) in note]
    shutil.move(built.path / "t-0", built.path / f"t-0.{'c' * 32}-stray")
    with pytest.raises(UnknownTopicOrPartition, match="2 directories that a broker has set aside"):
        plan(Request(sources=[built.path], target=tmp_path / "another"))


def test_a_replica_that_was_being_moved_here(tmp_path):
    built = build_log_dir(tmp_path / "old", {"t": [[b"zero"], [b"one"]]})
    before = values(built.path)
    shutil.move(built.path / "t-0", built.path / f"t-0.{'c' * 32}-future")
    shutil.copytree(built.path / "t-1", built.path / f"t-1.{'d' * 32}-future")
    target, result = revived(tmp_path, built.path)
    assert values(target) == before
    assert [one.replica.path.name for one in result.partitions] == [f"t-0.{'c' * 32}-future", "t-1"]


def test_a_lost_log_start_is_known_from_the_epochs(tmp_path):
    items = [Batch(many(30), leader_epoch=3)]
    extra = {"leader-epoch-checkpoint": b"0\n1\n3 12\n"}
    built = build_log_dir(tmp_path / "old", {"t": [Partition(items, extra=extra)]})
    (built.path / "log-start-offset-checkpoint").unlink()
    assert offsets(revived(tmp_path, built.path)[0])[0] == 12


@pytest.mark.parametrize("store", [False, True])
def test_a_backup_of_a_compacted_log_begins_where_the_log_does(tmp_path, store):
    """Its first leader epoch begins at the first message that compaction has left."""
    place, tp = (tmp_path / "backup").as_uri() if store else tmp_path / "backup", TopicPartition("accounts", 0)
    output_of("mirror", ROOT / "examples" / "sample-log", place)
    output_of("revive", place, "--to", tmp_path / "new")
    revived = LogDir.open_read_only(tmp_path / "new")
    assert (revived.log(tp).snapshot().log_start_offset, values(tmp_path / "new", tp)[0][0]) == (0, 78)
    # The new cluster's metadata log has not begun: it is in bootstrap.checkpoint.
    assert revived.topic_info(tp.topic).overrides["cleanup.policy"] == "compact"


def test_links_are_of_sealed_segments_alone(tmp_path):
    items = [Batch(many(30)), ROLL, Batch(many(30)), ROLL, Batch(many(5))]
    built = build_log_dir(tmp_path / "old", {"t": [Partition(items)]})
    target, result = revived(tmp_path, built.path, link=True)
    sizes = {}
    for path in (built.path / "t-0").iterdir():
        other = target / "t-0" / path.name
        if other.exists() and other.samefile(path):
            sizes[path.name] = path.stat().st_size
    assert sorted(sizes) == [f"{0:020}.log", f"{30:020}.log"]
    assert result.built[TP].linked_bytes == sum(sizes.values())
    assert values(target) == values(built.path)


def test_where_linking_is_not_possible_segments_are_copied(tmp_path):
    built = build_log_dir(tmp_path / "old", {"t": [Partition([Batch(many(30)), ROLL, Batch(many(5))])]})
    disk = FaultyDisk(tmp_path)
    disk.fail = lambda what, _path: errno.EXDEV if what.startswith("link ") else None
    result = run(Request([built.path], tmp_path / "new", link=True), disk=disk)
    assert values(tmp_path / "new") == values(built.path)
    assert any("nothing could be linked" in note for note in result.notes)


def test_a_log_that_ends_beyond_its_last_batch(tmp_path):
    built = build_log_dir(tmp_path / "old", {"t": [Partition([Batch(many(10))])]})
    for kind in ("log", "index", "timeindex"):
        (built.path / "t-0" / f"{50:020}.{kind}").touch()
    target, result = revived(tmp_path, built.path)
    assert result.built[TP].log_end_offset == 50
    assert values(target) == values(built.path)


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("segment", [0, 1])
def test_damage_is_refused_or_salvaged(tmp_path, segment, link):
    items = [Batch(many(10)), Batch(many(10)), ROLL, Batch(many(10)), Batch(many(10))]
    built = build_log_dir(tmp_path / "old", {"t": [Partition(items)], "u": [[b"x"]]}, clean=False)
    log = sorted((built.path / "t-0").glob("*.log"))[segment]
    (built.path / "recovery-point-offset-checkpoint").unlink()
    flip(log, 100)
    with pytest.raises(CorruptBatch, match="salvage") as refused:
        revived(tmp_path, built.path, link=link)
    assert refused.value.path == log
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / UNFINISHED).exists()
    target, result = revived(tmp_path, built.path, salvage=True, link=link)
    lost = range(20 * segment, 20 * segment + 10)
    assert offsets(target) == [offset for offset in range(40) if offset not in lost]
    salvaged, plain = result.partitions
    assert [(loss.first_offset, loss.last_offset) for loss in salvaged.chosen.lost] == [(lost[0], lost[-1])]
    assert plain.chosen is None
    # A salvaged log that is cut ends with the batch that holds the message before the offset.
    shutil.rmtree(target)
    target, result = revived(tmp_path, built.path, salvage=True, link=link, offsets={TP: 25})
    assert offsets(target) == [offset for offset in range(30) if offset not in lost]
    assert result.partitions[0].chosen is not None
    assert result.built[TP].log_end_offset == 30 - 10 * segment


def test_until_a_time(tmp_path):
    def at(*seconds):
        return Batch([Record(None, b"v", (), START_MS + 1000 * second) for second in seconds])

    items = [at(0, 1), at(2, 9), ROLL, at(3, 4), at(20, 5, 21), ROLL, at(22, 23)]
    built = build_log_dir(tmp_path / "old", {"t": [Partition(items)]})
    snapshot = LogDir.open_read_only(built.path).log(TP).snapshot()
    for second, expected in (
        (-1, (0, False)), (0, (2, True)), (1.5, (2, False)), (2, (4, True)), (4, (6, False)), (100, (11, False)),
        (5, (9, True)),  # the message is in the middle of its batch
    ):  # fmt: skip
        cut = cut_at_time(snapshot, START_MS + int(1000 * second))
        assert (cut.end_offset, cut.straddles) == expected, second
    cuts = [cut_at_offset(snapshot, offset) for offset in range(13)]
    assert [cut.end_offset for cut in cuts] == [0, 2, 2, 4, 4, 6, 6, 9, 9, 9, 11, 11, 11]
    assert (cuts[7].straddles, cuts[6].straddles) == (True, False)
    for second, end in ((-1, 0), (1, 2), (4, 6), (5, 9), (100, 11)):
        target, _ = revived(tmp_path, built.path, until_ms=START_MS + 1000 * second)
        assert offsets(target) == list(range(end))
        shutil.rmtree(target)
    target, result = revived(tmp_path, built.path, offsets={TP: 5}, link=True)
    assert offsets(target) == list(range(6))
    assert any("cut at offset 6" in note and "later" in note for note in result.notes)


def test_the_place_of_a_cut_that_no_index_entry_is_near(tmp_path):
    megabyte = Batch([Record(None, bytes(1 << 20), (), START_MS)])
    built = build_log_dir(tmp_path / "old", {"t": [Partition([megabyte] * 4, index_interval_bytes=1 << 30)]})
    target, _ = revived(tmp_path, built.path, offsets={TP: 3})
    assert offsets(target) == [0, 1, 2]


def test_configuration_that_is_given(tmp_path):
    built = build_log_dir(tmp_path / "old", {"t": [[b"a"]], "u": [[b"a"]], "__consumer_offsets": [[]]})
    config = ConfigRequest({"retention.ms": "1000"}, {"u": {"retention.ms": "2000", "cleanup.policy": "compact"}})
    target, result = revived(tmp_path, built.path, config=config)
    topics = described(target).topics
    assert topics["t"].configs == {"retention.ms": "1000"}
    assert topics["u"].configs == {"retention.ms": "2000", "cleanup.policy": "compact"}
    assert "retention.ms" not in topics["__consumer_offsets"].configs
    assert not any("keeps everything" in note for note in result.notes)
    for wrong in (ConfigRequest({"retention": "1"}), ConfigRequest({}, {"t": {"retention.ms": "x"}}),
                  ConfigRequest({}, {"nothing": {}})):  # fmt: skip
        with pytest.raises(InvalidConfig):
            plan(Request(sources=[built.path], target=tmp_path / "x", config=wrong))


def test_refused(tmp_path):
    built = build_log_dir(tmp_path / "other", {"t": [[b"zero"], [b"one"]]})
    (built.path / "t-1" / "partition.metadata").write_bytes(partition_metadata.encode(topic_id("other")))
    with pytest.raises(InvalidTopic, match="different topics"):
        plan(Request(sources=[built.path], target=tmp_path / "new"))
    built = build_log_dir(tmp_path / "old", {"t": [[b"a"]]})
    with pytest.raises(NotPermitted):
        plan(Request(sources=[built.path], target=built.path / "new"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileExistsError):
        plan(Request(sources=[built.path], target=tmp_path / "full"))
    lock = DirLock(RealDisk(), built.path)
    with pytest.raises(LogLocked):
        plan(Request(sources=[built.path], target=tmp_path / "new"))
    lock.release()
    (tmp_path / UNFINISHED).mkdir()
    lock = DirLock(RealDisk(), tmp_path / UNFINISHED)
    with pytest.raises(LogLocked):
        run(Request(sources=[built.path], target=tmp_path / "new"))
    lock.release()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("link", [False, True])
def test_a_stopped_run_leaves_nothing_that_looks_complete(tmp_path, link):
    """When it has returned, everything is on disk; before, nothing looks complete. Killed or without power."""
    data = [Batch(many(5), producer_id=5, transactional=True), abort(5)]
    items = [Batch(many(10)), *data, ROLL, Batch(many(9)), ROLL, Batch(many(5), producer_id=6, transactional=True)]
    root = tmp_path / "root"
    built = build_log_dir(root / "old", {"t": [Partition(items)], "u": [[b"x"]]}, clean=False)
    request = Request(sources=[built.path], target=root / "new", without_transactions=True, link=link)
    shutil.copytree(root, tmp_path / "kept")
    messages = values(built.path)
    counted = FaultyDisk(root)
    run(request, disk=counted)
    expected = tree_of(request.target)
    counted.power_loss()
    assert tree_of(request.target) == expected
    renamed = counted.operations.index(f"rename {UNFINISHED} new")
    begun = counted.operations.index(f"mkdir {TP.dir_name}")
    steps = {*range(0, len(counted.operations), rounds(usual=9, nightly=1)), begun, begun + 1, renamed, renamed + 1}
    for step in steps:
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "kept", root)
        disk = FaultyDisk(root, stop_at=step, seed=step)
        with pytest.raises(Crash):
            run(request, disk=disk)
        if step % 2:
            disk.power_loss()
        if request.target.exists():
            assert step > renamed
            assert tree_of(request.target, without=[".lock"]).keys() == expected.keys()
        else:
            result = run(request)
            assert step % 2 or result.began_anew == (step > begun), counted.operations[step]
        assert values(request.target) == messages
        assert (request.target / "meta.properties").exists()
        assert not (root / UNFINISHED).exists()


def acl(number, principal):
    """The value of an AccessControlEntryRecord: Read of topic t."""
    texts = [bytes([len(text) + 1]) + text for text in (b"t", principal, b"*")]
    return b"\x01\x12\x00" + bytes([number] * 16) + b"\x02" + texts[0] + b"\x03" + texts[1] + texts[2] + b"\x03\x03\x00"


# The value of a UserScramCredentialRecord.
SCRAM = b"\x01\x0b\x00\x04eve\x01\x05salt\x07stored\x07server\x00\x00\x10\x00\x00"


def quota(user, removed):
    """The value of a ClientQuotaRecord of one user's consumer_byte_rate."""
    entity = b"\x02\x05user" + bytes([len(user) + 1]) + user + b"\x00"
    return b"\x01\x0e\x00" + entity + b"\x13consumer_byte_rate" + b"\x40" + bytes(7) + bytes([removed]) + b"\x00"


def old_cluster(directory):
    """A broker's directory whose metadata, in `bootstrap.checkpoint`, have more than topics."""
    written = [
        metadata_records.FeatureLevelRecord("metadata.version", 29),
        metadata_records.FeatureLevelRecord("transaction.version", 2),
        metadata_records.ConfigRecord(4, "", "log.cleaner.threads", "2"),
        metadata_records.ConfigRecord(4, "", "log.retention.ms", "1000"),
        metadata_records.ConfigRecord(4, "1", "ssl.keystore.location", "/k"),
        metadata_records.ConfigRecord(4, "2", "log.cleaner.threads", "3"),
        metadata_records.ConfigRecord(32, "g", "consumer.session.timeout.ms", "50000"),
        metadata_records.ProducerIdsRecord(7000),
    ]
    values = [
        *map(metadata_checkpoint.encode, written),
        *(acl(1, b"User:a"), acl(2, b"User:b"), SCRAM, quota(b"a", False), quota(b"b", False)),
        b"\x01\x13\x00" + bytes([2] * 16) + b"\x00",
        quota(b"b", True),
    ]
    replay = metadata_replay.MetadataReplay()
    data = encode_batch([Record(None, value) for value in values], base_offset=0)
    for record in metadata_records.decode_block(Decoder().decode(data, table_of(data), origin=0)):
        assert isinstance(record, metadata_records.MetadataRecord)
        replay.apply(record)
    content = metadata_checkpoint.bootstrap(metadata_checkpoint.cluster_records(replay.show(0, None)), 1)
    return build_log_dir(directory, {"t": [[b"zero"], [b"one"]]}, extra={"bootstrap.checkpoint": content}).path


def test_what_stands_in_the_metadata_is_carried_over(tmp_path):
    target, result = revived(tmp_path, old_cluster(tmp_path / "old"))
    metadata = described(target)
    assert (target / "bootstrap.checkpoint").stat().st_mode & 0o777 == 0o600  # there are credentials in it
    assert metadata.features == {"metadata.version": 29, "transaction.version": 2}
    assert [one.value for one in metadata.verbatim] == [acl(1, b"User:a"), SCRAM, quota(b"a", False)]
    assert metadata.broker_defaults == {"log.cleaner.threads": "2"}
    assert metadata.brokers == {}
    assert metadata.other_configs == {(32, "g"): {"consumer.session.timeout.ms": "50000"}}
    assert metadata.next_producer_id == 7000
    for note in (
        "ACLs: 1 of 1 carried over (User:a)",
        "no broker enforces ACLs before its server.properties names an authorizer.class.name",
        "SCRAM credentials: 1 of 1 carried over (eve)",
        "quotas: 1 of 1 carried over (user a)",
        "dynamic configuration of all brokers: carried over: log.cleaner.threads",
        "dynamic configuration of all brokers: left out: log.retention.ms",
        "dynamic configuration of broker 1: left out: ssl.keystore.location",
        "dynamic configuration of broker 2: left out: log.cleaner.threads",
        "dynamic configuration of group g: carried over: consumer.session.timeout.ms",
    ):
        assert note in result.notes
    assert not [note for note in result.notes if "no source tells" in note]
    shutil.rmtree(target)
    target, result = revived(tmp_path, tmp_path / "old", without_security=True)
    assert [one.value for one in described(target).verbatim] == [quota(b"a", False)]
    assert {"ACLs: 0 of 1 carried over (User:a)", "SCRAM credentials: 0 of 1 carried over (eve)"} <= set(result.notes)


def test_a_release_decides_the_features(tmp_path):
    old = old_cluster(tmp_path / "old")
    assert described(revived(tmp_path, old, release="3.9")[0]).features == {"metadata.version": 21}
    shutil.rmtree(tmp_path / "new")
    latest = described(revived(tmp_path, old, release="4.4")[0]).features
    assert (latest["metadata.version"], latest["share.version"]) == (33, 2)
    assert features({}, ["group.version"], None) == {"metadata.version": 25, "group.version": 1}
    assert features({"metadata.version": 7}, ["group.version"], None) == {"metadata.version": 21}
    with pytest.raises(InvalidConfig, match=r"share\.version.*4\.1"):
        features({}, ["share.version"], "4.1")


def test_backups_of_two_directories_are_one_cluster(tmp_path):
    """Each has a part of the partitions. The topic keeps its id, by which groups know it, the cluster what it had."""
    old = old_cluster(tmp_path / "old")
    for number in range(2):
        output_of("mirror", old, tmp_path / f"copy{number}", f"t/{number}")
    target, result = revived(tmp_path, *(tmp_path / f"copy{number}" for number in range(2)))
    assert [one.replica.path for one in result.partitions] == [tmp_path / f"copy{n}" / f"t-{n}" for n in range(2)]
    metadata = described(target)
    assert metadata.topics["t"].topic_id == topic_id("t")
    assert [one.value for one in metadata.verbatim] == [acl(1, b"User:a"), SCRAM, quota(b"a", False)]
    assert values(target, TopicPartition("t", 1)) == values(old, TopicPartition("t", 1))


def replicas(tmp_path, *damaged):
    """Replicas of twelve batches of ten messages in three segments, with these batches damaged in each."""
    items = []
    for number in range(12):
        items += [ROLL] * (number in (4, 8)) + [Batch(many(10), leader_epoch=number // 3)]
    paths = []
    for at, batches in enumerate(damaged):
        built = build_log_dir(tmp_path / f"n{at}", {"t": [Partition(items)]}, broker=False)
        for number in batches:
            log = built.path / "t-0" / f"{number // 4 * 40:020}.log"
            flip(log, log.stat().st_size // 4 * (number % 4) + log.stat().st_size // 8)
        paths.append(built.path)
    return paths


@pytest.mark.parametrize("link", [False, True])
def test_a_sound_replica_is_taken_before_a_damaged_one(tmp_path, link):
    """Whatever the order in which they are named, and also without --salvage."""
    damaged, sound = replicas(tmp_path, (5,), ())
    expected = values(sound)
    for order in ([damaged, sound], [sound, damaged]):
        target, result = revived(tmp_path, *order, link=link)
        assert values(target) == expected
        assert result.partitions[0].replica.path == sound / "t-0"
        note = f"t/0: {damaged / 't-0'} is damaged; {sound / 't-0'} can be read further, and is taken"
        assert (note in result.notes) == (order[0] == damaged)
        shutil.rmtree(target)
    assert rehearse(Request([damaged, sound], tmp_path / "new")).partitions[0].replica.path == sound / "t-0"


def test_what_one_replica_lost_is_taken_from_the_others(tmp_path):
    sources = replicas(tmp_path, (2, 5, 11), (5, 6), (2, 3, 7))
    whole = values(*replicas(tmp_path / "whole", ()))
    with pytest.raises(CorruptBatch):
        run(Request(sources, tmp_path / "new"))
    target, result = revived(tmp_path, *sources, salvage=True)
    assert values(target) == whole
    chosen = result.partitions[0].chosen
    assert chosen.lost == []
    taken = result.partitions[0].replica.path
    assert taken == sources[1] / "t-0"  # the one that can be read furthest
    assert {(one.directory, one.offsets.start, one.offsets.end) for one in chosen.filled} == {
        (sources[0] / "t-0", 60, 70),
        (sources[2] / "t-0", 50, 60),
    }
    assert f"t/0: offsets 50 to 59 are from {sources[2] / 't-0'}" in result.notes


def test_other_messages_at_these_offsets_are_not_taken(tmp_path):
    """The other replica's leader at these offsets was another one: its messages were truncated in the first."""
    first, other = replicas(tmp_path, (5,), ())
    items = [*(Batch(many(10)) for _ in range(4)), Batch(many(10, 100)), Batch(many(10, 100))]
    shutil.rmtree(other)
    build_log_dir(other, {"t": [Partition(items)]}, broker=False)
    target, result = revived(tmp_path, other, first, salvage=True)
    chosen = result.partitions[0].chosen
    assert chosen.filled == []
    assert [(one.first_offset, one.last_offset) for one in chosen.lost] == [(50, 59)]
    assert 50 not in offsets(target)


def test_a_batch_that_reaches_into_the_next_one_is_damage(tmp_path):
    """Its offset is wrong, which no CRC covers and no recovery looks at."""
    (source,) = replicas(tmp_path, ())
    log = source / "t-0" / f"{40:020}.log"
    whole = log.read_bytes()
    _, second, third, _ = table_of(whole).position.tolist()
    log.write_bytes(whole[:second] + (52).to_bytes(8, "big") + whole[second + 8 :])
    for action in (rehearse, run):
        with pytest.raises(CorruptBatch) as caught:
            action(Request([source], tmp_path / "new"))
        assert (caught.value.path, caught.value.position in (second, third)) == (log, True)
    target, result = revived(tmp_path, source, salvage=True)
    assert offsets(target) == [*range(50), *range(60, 120)]
    assert [(one.first_offset, one.last_offset) for one in result.partitions[0].chosen.lost] == [(50, 59)]


def test_a_batch_of_an_undefined_magic_is_repaired(tmp_path):
    """No CRC covers the magic: recovery keeps the batch, and no consumer can read it. All the rest of it is right."""
    (source,) = replicas(tmp_path, ())
    expected, log = values(source), source / "t-0" / f"{40:020}.log"
    data = bytearray(log.read_bytes())
    data[table_of(bytes(data)).position.tolist()[1] + MAGIC_AT] = 18
    log.write_bytes(data)
    target, result = revived(tmp_path, source)
    assert (values(target), result.partitions[0].chosen.lost) == (expected, [])


def test_a_whole_directory(tmp_path):
    items = [Batch(many(30)), ROLL, Batch(many(30)), ROLL, Batch(many(5))]
    built = build_log_dir(
        tmp_path / "old",
        {"t": [Partition(items, log_start_offset=40), [b"one"]], "u": [[b"x"]]},
        extra={"t-0/topic.properties": b"cleanup.policy=compact\nsegment.bytes=20000\nmin.insync.replicas=2\n"},
    )
    target, result = revived(tmp_path, built.path)
    for tp in (TP, TopicPartition("t", 1), TopicPartition("u", 0)):
        assert values(target, tp) == values(built.path, tp)
    for log in built.path.glob("*/*.log"):
        assert (target / log.relative_to(built.path)).read_bytes() == log.read_bytes()
    metadata = described(target)
    assert metadata.topics["t"].topic_id == topic_id("t")
    assert metadata.topics["t"].configs == {
        "cleanup.policy": "compact", "internal.segment.bytes": "20000", "retention.ms": "-1",
    }  # fmt: skip
    assert list(metadata.topics["t"].partitions) == [0, 1]
    assert metadata.features == {"metadata.version": 21}
    assert any("min.insync.replicas=2" in note for note in result.notes)
    meta = (target / "meta.properties").read_text()
    assert "node.id=1" in meta
    assert "a2Fma2Fmcy10ZXN0cy0wMQ" in meta  # the cluster's id
    assert "a2Fma2Fmcy1kaXItMDAwMQ" not in meta  # but not the directory's


def test_groups_partitions_and_epochs(tmp_path):
    """The number of partitions of __consumer_offsets, found from the groups' hashes; epochs above committed ones."""
    groups = [f"group-{number}" for number in range(40)]
    logs = [[] for _ in range(7)]
    for group in groups:
        key = encode_offset_key(OffsetKey(group, "t", 0))
        value = encode_commit(CommittedOffset(3, 17, "", START_MS))
        logs[group_partition(group, 7)].append(Record(key, value, (), START_MS))
    offsets = [Partition([Batch(records)] if records else []) for records in logs]
    built = build_log_dir(tmp_path / "old", {"t": [[b"a", b"b"]], "__consumer_offsets": offsets})
    shutil.rmtree(built.path / "__consumer_offsets-3")
    target, result = revived(tmp_path, built.path)
    metadata = described(target)
    assert len(metadata.topics["__consumer_offsets"].partitions) == 7
    assert metadata.topics["__consumer_offsets"].configs["cleanup.policy"] == "compact"
    assert metadata.topics["t"].partitions[0].leader_epoch == 18
    here = GroupOffsets(LogDir.open_read_only(target)).groups()
    assert set(here) == {group for group in groups if group_partition(group, 7) != 3}
    assert any("beyond the end" in note for note in result.notes)
    wrong = Request(sources=[built.path], target=tmp_path / "x", partition_counts={"__consumer_offsets": 3})
    with pytest.raises(InvalidConfig, match="at least 7"):
        plan(wrong)


def test_the_first_producer_id_is_given_out_only_once(tmp_path):
    batch = Batch(many(5), producer_id=0, producer_epoch=0)
    target, _ = revived(tmp_path, build_log_dir(tmp_path / "old", {"t": [[batch]]}).path)
    assert described(target).next_producer_id == 1000


def test_partitions_of_an_older_topic_of_that_name_are_ignored(tmp_path):
    topics = {"t": [[Batch(many(1), leader_epoch=3)], [b"one"]], "__cluster_metadata": [metadata_of("t", 2, [1])]}
    old = build_log_dir(tmp_path / "old", topics).path
    (old / "t-1" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id('older')}")
    target, result = revived(tmp_path, old)
    assert (offsets(target), (target / "t-1").exists()) == ([0], False)
    assert described(target).topics["t"].partitions[0].leader_epoch == 4  # the metadata know only epoch 0
    (note,) = [note for note in result.notes if "another topic of that name" in note]
    assert f"{old / 't-1'} belongs" in note


def test_open_transactions(tmp_path):
    done = [Batch(many(5), producer_id=4711, producer_epoch=2, transactional=True), commit(4711, 2)]
    begun = [Batch(many(5), producer_id=8000, producer_epoch=9, transactional=True), Batch(many(5))]
    items = [*done, abort(3), *begun]
    built = build_log_dir(tmp_path / "old", {"t": [Partition(items)], "__transaction_state": [[]]})
    target, result = revived(tmp_path, built.path)
    assert any("keep consumers" in note for note in result.notes)
    assert described(target).next_producer_id == 9000
    shutil.rmtree(target)
    target, result = revived(tmp_path, built.path, without_transactions=True)
    snapshot = LogDir.open_read_only(target).log(TP).snapshot()
    assert last_stable_offset(snapshot) == snapshot.log_end_offset == 18
    assert len(result.built[TP].aborted) == 1
    assert "__transaction_state" not in described(target).topics


def without_segment(log_dir, *bases):
    for base in bases:
        for path in log_dir.glob(f"t-0/{base:020}.*"):
            path.unlink()
    return log_dir


def test_halves_are_put_together_without_salvage(tmp_path):
    """A segment is missing in each, and in each another one. What no source has is lost, and the report says so."""
    sources = [without_segment(path, base) for path, base in zip(replicas(tmp_path, (), ()), (40, 80), strict=True)]
    whole = values(*replicas(tmp_path / "whole", ()))
    rehearsed = rehearse(Request(sources, tmp_path / "new"))
    target, result = revived(tmp_path, *sources)
    assert values(target) == whole
    assert [one.offsets for one in result.partitions[0].chosen.filled] == [OffsetRange(40, 80)]
    shutil.rmtree(target)
    target, alone = revived(tmp_path, sources[0])
    assert offsets(target) == [*range(40), *range(80, 120)]
    reason = "no batch here holds the offsets before this one"
    assert f"t/0: offsets 40 to 79 are lost: {reason}" in alone.notes
    assert [one.end_offset for one in rehearsed.partitions] == [120]


def test_missing_offsets_of_a_topic_whose_policy_nobody_knows_may_be_compacted(tmp_path):
    """Only its configuration tells a lost segment from one that compaction has emptied."""
    (source,) = replicas(tmp_path, ())
    without_segment(source, 40)
    target, unknown = revived(tmp_path, source)
    assert any("its cleanup.policy is not known; if the topic was compacted" in note for note in unknown.notes)
    assert [(one.first_offset, one.last_offset) for one in unknown.partitions[0].chosen.lost] == [(40, 79)]
    shutil.rmtree(target)
    for policy, is_lost in (("compact", False), ("delete", True)):
        config = ConfigRequest(by_topic={"t": {"cleanup.policy": policy}})
        result = rehearse(Request([source], tmp_path / "new", config=config))
        assert any("are lost" in note for note in result.notes) == is_lost
        assert not any("cleanup.policy is not known" in note for note in result.notes)


def test_a_configuration_that_only_another_replica_has(tmp_path):
    """A mirror of a directory without the metadata log does not know its topics' configuration. Each replica was
    compacted at another time."""

    def replica(name, first_value, last, config):
        items = [Batch(many(10, first_value)), Batch(many(10)), Batch(many(10), base_offset=last)]
        extra = {"t-0/topic.properties": b"retention.ms=-1\n" + config}
        return build_log_dir(tmp_path / name, {"t": [items]}, broker=False, extra=extra).path

    longer, shorter = replica("n0", 0, 40, b""), replica("n1", 50, 30, b"cleanup.policy=compact\n")
    target, result = revived(tmp_path, longer, shorter)
    assert values(target) == values(longer)
    assert described(target).topics["t"].configs["cleanup.policy"] == "compact"
    assert result.partitions[0].chosen is None


def test_the_metadata_say_more_of_a_topic_than_a_shorter_replica(tmp_path):
    items = [Batch(many(10)), Batch(many(10))]
    described_there = [*metadata_of("t", 1, [1]), topic_setting("t", "retention.ms", "5000")]
    longer = build_log_dir(tmp_path / "n0", {"t": [items], "__cluster_metadata": [described_there]}).path
    extra = {"t-0/topic.properties": b"retention.ms=-1\ncleanup.policy=compact\n"}
    shorter = build_log_dir(tmp_path / "n1", {"t": [items[:1]]}, broker=False, extra=extra).path
    target, _ = revived(tmp_path, longer, shorter)
    assert described(target).topics["t"].configs == {"retention.ms": "5000"}


@pytest.mark.parametrize("link", [False, True])
def test_what_only_another_replica_of_a_compacted_topic_has_is_reported(tmp_path, link):
    """The replica that counts lacks a segment, or compaction has emptied that one: nobody knows."""
    first, second = replicas(tmp_path, (), ())
    without_segment(first, 40)
    without_segment(second, 80)
    config = ConfigRequest(by_topic={"t": {"cleanup.policy": "compact"}})
    target, result = revived(tmp_path, first, second, config=config, link=link)
    assert offsets(target) == [*range(40), *range(80, 120)]
    left_out = {(one.path, one.offsets.start, one.offsets.end) for one in result.partitions[0].choice.beyond}
    assert left_out == {(second / "t-0", 40, 80)}
    assert any(
        "offsets 40 to 79" in note and "compaction removed" in note and "or a segment is missing" in note
        for note in result.notes
    )


def test_a_whole_replica_is_taken_before_one_with_a_hole(tmp_path):
    """Although that one ends later: its end is taken too."""
    (hole,) = replicas(tmp_path, ())
    (shorter,) = replicas(tmp_path / "other", ())
    log = shorter / "t-0" / f"{80:020}.log"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 4 * 3])
    without_segment(hole, 40)
    target, result = revived(tmp_path, hole, shorter)
    assert offsets(target) == [*range(120)]
    assert result.partitions[0].replica.path == shorter / "t-0"


def test_what_the_longest_replica_has_in_files_with_wrong_names_is_taken(tmp_path):
    """By the ends of its segments it ends before the other one."""
    longest, shorter = replicas(tmp_path, (), ())
    whole = values(longest)
    log = shorter / "t-0" / f"{80:020}.log"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    first, last = (longest / "t-0" / f"{base:020}.log" for base in (0, 80))
    kept = first.rename(first.with_suffix(".kept"))
    last.rename(first)
    kept.rename(last)
    target, _ = revived(tmp_path, longest, shorter)
    assert values(target) == whole


def test_a_rehearsal_says_what_a_run_does(tmp_path):
    damaged = replicas(tmp_path, (5, 11))
    rehearsed = rehearse(Request(damaged, tmp_path / "new", salvage=True))
    _, result = revived(tmp_path, *damaged, salvage=True)
    assert [(one.first_offset, one.last_offset) for one in result.partitions[0].chosen.lost] == [(50, 59), (110, None)]
    assert rehearsed.partitions[0].chosen.lost == result.partitions[0].chosen.lost
    assert rehearsed.partitions[0].end_offset == result.built[TP].log_end_offset


def test_a_prepared_commit_is_committed_without_its_coordinator(tmp_path):
    """Its producer was told that it is committed; another transaction is aborted."""
    key = b"\0\0\0\2id"
    partitions = b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0"
    value = b"\0\0" + struct.pack(">qhib", 4711, 2, 60_000, 2) + partitions + struct.pack(">qq", START_MS, START_MS)
    items = [
        Batch(many(5), producer_id=4711, producer_epoch=2, transactional=True),
        Batch(many(5), producer_id=8000, producer_epoch=9, transactional=True),
    ]
    states = [Partition([Batch([Record(key, value, (), START_MS)])])]
    built = build_log_dir(tmp_path / "old", {"t": [Partition(items)], "__transaction_state": states})
    target, result = revived(tmp_path, built.path, without_transactions=True)
    assert [one.producer_id for one in result.built[TP].committed] == [4711]
    assert [one.producer_id for one in result.built[TP].aborted] == [8000]
    committed = LogDir.open_read_only(target).log(TP).snapshot()
    assert last_stable_offset(committed) == committed.log_end_offset == 12
    assert [r.offset for r in read_all(committed, isolation=Isolation.READ_COMMITTED)] == list(range(5))


def test_a_coordinator_that_is_older_than_the_data_is_named(tmp_path):
    key = b"\0\0\0\2id"
    value = b"\0\0" + struct.pack(">qhib", 4711, 2, 60_000, 4) + b"\xff" * 4 + struct.pack(">qq", START_MS, START_MS)
    items = [Batch(many(5), producer_id=4711, producer_epoch=7, transactional=True), commit(4711, 7)]
    states = [Partition([Batch([Record(key, value, (), START_MS)])])]
    built = build_log_dir(tmp_path / "old", {"t": [Partition(items)], "__transaction_state": states})
    result = run(Request([built.path], tmp_path / "new"), clock=StandingClock(START_MS + 60_000))
    assert any("1 transactional ids" in note and note.endswith(": id") for note in result.notes)


def test_metadata_logs_that_are_damaged_at_different_places_are_one(tmp_path):
    """Each is read to its first damage; together they have everything."""
    batches = [Batch([Record(None, one, (), START_MS)]) for one in metadata_values()]
    sources = []
    for number, damaged in enumerate((1, 3)):
        topics = {"t": [[b"one"]], "__cluster_metadata": [Partition(batches)]}
        built = build_log_dir(tmp_path / f"n{number}", topics)
        log = built.path / "__cluster_metadata-0" / f"{0:020}.log"
        flip(log, built["__cluster_metadata", 0].batches[damaged].position + 65)
        sources.append(built.path)
    result = plan(Request(sources, tmp_path / "new"))
    assert result.known_features == {"metadata.version": 29, "transaction.version": 2, "group.version": 1}
    assert not any("metadata" in note and "not used" in note for note in result.notes)
    alone = plan(Request(sources[1:], tmp_path / "new"))
    assert alone.known_features == {"metadata.version": 29, "transaction.version": 2}


def metadata_values():
    levels = (("metadata.version", 29), ("transaction.version", 1), ("transaction.version", 2), ("group.version", 1))
    return [metadata_checkpoint.encode(metadata_records.FeatureLevelRecord(*level)) for level in levels]


@pytest.mark.parametrize(("damaged", "contested"), [(0, True), (1, False)])
def test_a_replica_without_a_topic_id_may_be_of_another_topic(tmp_path, damaged, contested):
    """It is, if it has nothing in common with those whose id is known; whose replica is longer does not matter."""
    items = [Batch(many(10)) for _ in range(3)]
    known = build_log_dir(tmp_path / "known", {"t": [items[:1]]})
    unknown = build_log_dir(tmp_path / "unknown", {"t": [[Batch(many(10, 50 if contested else 20)), *items[1:]]]})
    (unknown.path / "t-0" / "partition.metadata").write_bytes(b"damaged" * damaged)
    target, result = revived(tmp_path, known.path, unknown.path)
    ignored = [note for note in result.notes if str(unknown.path / "t-0") in note and "ignored" in note]
    assert bool(ignored) == contested
    assert offsets(target) == [*range(10 if contested else 30)]
    assert values(target)[:10] == values(known.path)


@pytest.mark.parametrize("start", [50, 54])
def test_a_segment_of_another_log_in_the_longest_replica(tmp_path, start):
    """An earlier leader wrote it than leader-epoch-checkpoint names there, whether its first offset fits or not."""
    items = [Batch(many(10), leader_epoch=0), *[Batch(many(10), leader_epoch=1)] * 4, ROLL]
    sound = build_log_dir(tmp_path / "sound", {"t": [[*items, Batch(many(10), leader_epoch=1)]]}, broker=False).path
    longest = shutil.copytree(sound, tmp_path / "longest")
    foreign = build_log_dir(tmp_path / "x", {"t": [Partition([Batch(many(7))] * 4, start_offset=start)]}).path
    shutil.copy2(foreign / "t-0" / f"{start:020}.log", longest / "t-0" / f"{50:020}.log")
    target, result = revived(tmp_path, longest, sound, salvage=True)
    told = result.partitions[0]
    left_out = {(one.path, one.offsets.start, one.offsets.end) for one in told.choice.beyond}
    assert (longest / "t-0", start, start + 28) in left_out
    assert offsets(target) == [*range(60)]


def test_a_shorter_replica_with_other_messages_of_the_same_leader(tmp_path):
    """Which of the two is right nobody knows, whichever is longer."""
    long = build_log_dir(tmp_path / "long", {"t": [[Batch(many(10)) for _ in range(3)]]})
    short = build_log_dir(tmp_path / "short", {"t": [[Batch(many(10)), Batch(many(10, 70))]]})
    with pytest.raises(CorruptBatch, match="damaged"):
        run(Request(sources=(long.path, short.path), target=tmp_path / "refused"))
    target, _ = revived(tmp_path, long.path, short.path, salvage=True)
    assert offsets(target) == [*range(10), *range(20, 30)]
