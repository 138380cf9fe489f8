"""`kafkafs doctor` predicts what a real broker then does on broken directories: its log and its directory decide.

The predictions are compared with recorded verdicts, on copies of the fixture `doctor`. Nightly, brokers of three
releases give these verdicts: each of them starts on its own directories, broken in the same way.
"""

import json
import os
import re
import shutil
import struct
import subprocess
from typing import NamedTuple

import pytest

from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from tests.interop.client import Client
from tests.interop.kafka import REQUIRES, VERSION, Broker, DidNotStart, on_broker
from tests.interop.make_doctor import PARTITIONS, Origin, make_origin
from tests.support.commands import run
from tests.support.fixtures import FIXTURES, copy_log_dir, requires_fixtures

OTHER_ID = "qqqqqqqqqqqqqqqqqqqqqg"
RESERVED_ID = "AAAAAAAAAAAAAAAAAAAAAQ"  # DirectoryId.LOST or the like

RECORDED = Origin(None, FIXTURES / "doctor" / "clean", FIXTURES / "doctor" / "killed")
JUDGES = os.environ.get("KAFKAFS_DOCTOR_JUDGES", ",".join(REQUIRES)).split(",")
# The recorded directories, and nightly those of brokers of each release, which judge.
every_origin = pytest.mark.parametrize(
    "origin",
    [
        pytest.param(None, id="recorded", marks=requires_fixtures),
        *(pytest.param(judge, marks=[pytest.mark.nightly, on_broker, REQUIRES[judge]]) for judge in JUDGES),
    ],
    indirect=True,
)


@pytest.fixture(scope="module")
def origin(request, tmp_path_factory):
    return RECORDED if request.param is None else make_origin(tmp_path_factory.mktemp("origin"), request.param)


class Patient(Broker):
    """A broker on existing directories, which are not formatted."""

    def __init__(self, directory, dirs, origin):
        super().__init__(directory, {"log.dirs": ",".join(map(str, dirs))}, version=origin.version or VERSION)
        self.dirs = dirs

    def _format(self):
        pass

    def begins(self):
        """Whether it starts, or refuses to."""
        try:
            self.start()
        except DidNotStart:
            return False
        return True


def examined(dirs, *options):
    result = run("doctor", *dirs, "--json", *options)
    told = json.loads(result.stdout)
    assert result.exit_code == (0 if told["loses_nothing"] else 1)
    return told


def logs_of(directory):
    return sorted(directory.glob("*.log"))


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    path.write_bytes(data)


# The whole directory: each case is a start. Damages are made of these.

META, QUORUM_STATE, BOOTSTRAP = "meta.properties", "__cluster_metadata-0/quorum-state", "bootstrap.checkpoint"
METADATA, POINTS = "__cluster_metadata-0", "recovery-point-offset-checkpoint"
HIGH_WATERMARKS, CLEANER_OFFSETS = "replication-offset-checkpoint", "cleaner-offset-checkpoint"


def all_of(*damages):
    def damage(logs):
        for one in damages:
            one(logs)

    return damage


def written(name, content=b"garbage\n"):
    return lambda logs: (logs / name).write_bytes(content)


def edited(name, old, new):
    """A pattern in a file replaced."""

    def damage(logs):
        text = (logs / name).read_text()
        assert re.search(old, text)
        (logs / name).write_text(re.sub(old, new, text))

    return damage


def removed(name):
    return lambda logs: shutil.rmtree(logs / name) if (logs / name).is_dir() else (logs / name).unlink()


def made(name):
    return lambda logs: (logs / name).mkdir()


def renamed(name, new):
    return lambda logs: (logs / name).rename(logs / new)


def as_directory(pattern):
    """The last file of a pattern replaced by a directory."""

    def damage(logs):
        file = sorted(logs.glob(pattern))[-1]
        file.unlink()
        file.mkdir()

    return damage


def copied(name, to):
    return lambda logs: (shutil.copytree if (logs / name).is_dir() else shutil.copy)(logs / name, logs / to)


def second(*damages):
    """A second log directory, formatted as the first one, then damaged."""
    formatted = all_of(copied(META, f"../second/{META}"), edited(f"../second/{META}", ID, f"directory.id={OTHER_ID}"))
    return all_of(made("../second"), formatted, lambda logs: all_of(*damages)(logs.with_name("second")))


def txn_index_entry(at, field):
    """The only entry of a transaction index changed."""

    def damage(logs):
        (index,) = (logs / f"p-{PARTITIONS - 1}").glob("*.txnindex")
        data = index.read_bytes()
        index.write_bytes(data[:at] + field + data[at + len(field) :])

    return damage


def unindexed(segment, damage):
    """A damaged segment of p-3, without its index."""

    def damages(logs):
        log = logs_of(logs / "p-3")[segment]
        damage(log)
        log.with_suffix(".index").unlink()

    return damages


def below_its_segment(log):
    log.write_bytes(bytes(8) + log.read_bytes()[8:])


def flip_at_the_end(log):
    flip(log, log.stat().st_size - 5)


def add(path, data):
    with path.open("ab") as file:
        file.write(data)


def last_of_p_3(logs):
    return logs_of(logs / "p-3")[-1]


def last_index_entry(position):
    """The last index of p-3 ends with an entry for this position."""
    return lambda logs: add(last_of_p_3(logs).with_suffix(".index"), struct.pack(">ii", 1, position))


ID = "directory.id=.*"
NO_NUMBER = b"0\n1\np zero 5\n"  # in a checkpoint
VERSION_7 = edited(META, "version=1", "version=7")
OF_ZOOKEEPER = all_of(edited(META, "version=1", "version=0"), edited(META, "node.id", "broker.id"), removed(METADATA))
LATER = f"{METADATA}/{50:020}-{1:010}.checkpoint"


class Verdict(NamedTuple):
    """What becomes of a damage. `said`: what the broker's log says; if that is empty, it complains of nothing."""

    damage: object
    finding: str
    said: str
    reaction: str
    starts: bool


def refuses(damage, finding, said):
    return Verdict(damage, finding, said, "refuses", False)


def goes_offline(damage, finding, said, starts=False):
    return Verdict(damage, finding, said, "takes-offline", starts)


def starts(damage, finding, reaction, said=""):
    return Verdict(damage, finding, said, reaction, True)


WHOLE = {
    "no meta.properties": refuses(removed(META), "meta-properties-missing", META),
    "version 7": refuses(VERSION_7, "meta-properties-corrupt", "version number 7"),
    "meta.properties of ZooKeeper": starts(OF_ZOOKEEPER, "metadata-lost", "sets-aside"),
    "no cluster id": refuses(
        edited(META, "cluster.id=", "cluster.was="), "meta-properties-corrupt", "cluster.id was not found"
    ),
    "another node's": refuses(edited(META, "node.id=1", "node.id=5"), "node-id-differs", "Stored node id 5"),
    "two clusters": refuses(
        second(edited(META, "cluster.id=", "cluster.id=X")), "cluster-id-differs", "Invalid cluster.id"
    ),
    "one id twice": refuses(
        all_of(made("../second"), copied(META, "../second")), "directory-id-shared", "Duplicate directory ID"
    ),
    "a reserved id": refuses(second(edited(META, OTHER_ID, RESERVED_ID)), "directory-id-reserved", RESERVED_ID),
    "lost+found": refuses(made("lost+found"), "name-unparsable", "lost+found"),
    ".snapshot": refuses(made(".snapshot"), "name-unparsable", ".snapshot"),
    "p-0 twice": refuses(
        all_of(second(), copied("p-0", "../second/p-0")), "partition-twice", "Duplicate log directories"
    ),
    "two metadata logs": refuses(
        all_of(second(), copied(METADATA, f"../second/{METADATA}")), "metadata-log-elsewhere", "__cluster_metadata"
    ),
    "quorum-state": refuses(written(QUORUM_STATE, b"{"), "quorum-state-corrupt", "quorum-state"),
    **{
        f"garbage in {name}": goes_offline(written(name), "checkpoint-corrupt", f"{name}]: garbage")
        for name in (POINTS, "log-start-offset-checkpoint", HIGH_WATERMARKS, CLEANER_OFFSETS)
    },
    "a topic id": refuses(
        edited("p-3/partition.metadata", "topic_id: .*", "topic_id: nonsense"),
        "topic-id-corrupt",
        "`nonsense`",
    ),
    "a segment's name": refuses(written("p-3/backup.log", b""), "file-misnamed", "NumberFormatException"),
    "epochs": goes_offline(
        written("p-3/leader-epoch-checkpoint"), "epochs-corrupt", "leader-epoch-checkpoint]: garbage"
    ),
    "a later txnindex": refuses(txn_index_entry(0, b"\1"), "txn-index-version", "aborted transaction version"),
    "a producer id that is none": starts(txn_index_entry(2, b"\xff"), "txn-index-corrupt", "does-not-notice"),
    "aborted below": starts(txn_index_entry(18, bytes(8)), "txn-index-corrupt", "repairs", "corrupted index file"),
    "a batch below its log": refuses(unindexed(-1, below_its_segment), "batch-range", "Split operation"),
    "damage where the index is missing": starts(
        unindexed(0, flip_at_the_end), "batch-crc", "cuts", "Found invalid messages"
    ),
    "the metadata log lost": starts(removed(METADATA), "metadata-lost", "sets-aside"),
    "no bootstrap": starts(all_of(removed(BOOTSTRAP), removed(METADATA)), "metadata-lost", "sets-aside"),
    "an unformatted second directory": refuses(
        made("../second"), "meta-properties-missing", "No `meta.properties` found"
    ),
    "second of version 7": goes_offline(second(VERSION_7), "meta-properties-corrupt", "version number 7", starts=True),
    "second with a wrong id": goes_offline(
        second(edited(META, OTHER_ID, "nonsense")),
        "directory-id-corrupt",
        "directory.id as a Uuid",
        starts=True,
    ),
    "second without a file": goes_offline(
        second(as_directory(META)), "meta-properties-corrupt", "Is a directory", starts=True
    ),
    "second with garbage": goes_offline(
        second(written(POINTS)), "checkpoint-corrupt", f"{POINTS}]: garbage", starts=True
    ),
    "a wrong id": refuses(edited(META, ID, "directory.id=nonsense"), "directory-id-corrupt", "directory.id as a Uuid"),
    "quorum of version 7": refuses(
        edited(QUORUM_STATE, r'"data_version":\d', '"data_version":7'), "quorum-state-corrupt", "data_version (7)"
    ),
    "quorum without a field": refuses(
        edited(QUORUM_STATE, r'"leaderEpoch":', '"leaderEpoch_":'),
        "quorum-state-corrupt",
        "field 'leaderEpoch'",
    ),
    "quorum-state is a directory": refuses(as_directory(QUORUM_STATE), "quorum-state-corrupt", "Is a directory"),
    "bootstrap.checkpoint is a directory": refuses(as_directory(BOOTSTRAP), "bootstrap-corrupt", "Is a directory"),
    "a snapshot's name": refuses(written(f"{METADATA}/x.checkpoint", b""), "file-misnamed", "StringIndexOutOfBounds"),
    "another id": starts(edited(META, ID, f"directory.id={OTHER_ID}"), "directory-id-unknown", "does-not-notice"),
    "a name of 19 digits": starts(written(f"p-3/{7:019}.log", b""), "file-misnamed", "cuts", "rebuilding index file"),
    "recovery points": starts(written(POINTS, NO_NUMBER), "checkpoint-corrupt", "recovers", "resetting"),
    "high watermarks": starts(
        written(HIGH_WATERMARKS, NO_NUMBER), "checkpoint-corrupt", "does-not-notice", "NumberFormatException"
    ),
    "cleaner offsets": starts(
        written(CLEANER_OFFSETS, NO_NUMBER),
        "checkpoint-corrupt",
        "does-not-notice",
        'string: "zero"',
    ),
    "an empty snapshot": refuses(written(LATER, b""), "metadata-snapshot-damaged", "handleLoadSnapshot"),
    "a snapshot of garbage": refuses(written(LATER, b"x" * 100), "metadata-snapshot-damaged", "magic"),
    "bootstrap.checkpoint": refuses(written(BOOTSTRAP, b""), "bootstrap-corrupt", "No FeatureLevelRecord"),
    "meta.properties is a directory": refuses(as_directory(META), "meta-properties-corrupt", "Is a directory"),
    "a checkpoint is a directory": goes_offline(as_directory(POINTS), "checkpoint-corrupt", "Is a directory"),
    **{
        f"{name} is a directory": goes_offline(as_directory(name), "no-regular-file", "Is a directory")
        for name in ("p-3/leader-epoch-checkpoint", "p-3/partition.metadata", "p-3/*.index", "p-3/*.snapshot")
    },
    "the last segment is a directory": starts(as_directory("p-3/*.log"), "log-end-lost", "cuts"),
    "no last segment": starts(lambda logs: last_of_p_3(logs).unlink(), "log-end-lost", "cuts", "orphaned index file"),
    "zeros at the end": refuses(
        lambda logs: add(last_of_p_3(logs), bytes(4096)), "log-end-misread", "record size 0 smaller than"
    ),
    "a last index entry within a batch": refuses(last_index_entry(4), "log-end-misread", "smaller than"),
    "a last index entry beyond the log": starts(last_index_entry(1 << 20), "log-end-misread", "cuts"),
    "zeros before a number": starts(renamed("p-3", "p-003"), "name-not-canonical", "ignores"),
    "p-3 twice": refuses(copied("p-3", "p-003"), "partition-twice", "Duplicate log directories"),
    "only a future log": starts(renamed("p-3", f"p-3.{'a' * 32}-future"), "being-moved", "ignores"),
    "a metadata log that is damaged": starts(
        lambda logs: flip_at_the_end(logs_of(logs / METADATA)[-1]), "metadata-log-damaged", "cuts", "Corruption found"
    ),
}


def prediction(broker, verdict):
    """What doctor says, which must be the recorded verdict."""
    told = examined(broker.dirs, "--server-properties", broker.properties)
    assert told["starts"] == verdict.starts
    found = [(finding["name"], finding["reaction"]) for finding in (*told["findings"], *told["notes"])]
    assert (verdict.finding, verdict.reaction) in found
    lost = [finding for finding in told["findings"] if finding["name"] == "log-end-lost"]
    assert (told["loses_nothing"], len(lost)) == (not told["findings"], int(verdict.finding == "log-end-lost"))
    return told


@every_origin
@pytest.mark.parametrize("case", WHOLE)
def test_the_directory(origin, tmp_path, case):
    if case in ("no bootstrap", "bootstrap.checkpoint is a directory") and not (origin.clean / BOOTSTRAP).exists():
        pytest.skip(f"Kafka {origin.version} formats a directory without {BOOTSTRAP}")
    verdict = WHOLE[case]
    logs = copy_log_dir(origin.clean, tmp_path / "logs")
    verdict.damage(logs)
    dirs = [path for path in (logs, logs.with_name("second")) if path.exists()]
    broker = Patient(tmp_path / "broker", dirs, origin)
    told = prediction(broker, verdict)
    if origin is RECORDED:
        return
    try:
        began = broker.begins()
        if began and verdict.finding in ("log-end-lost", "log-end-misread", "name-not-canonical", "being-moved"):
            cuts = [finding for finding in told["findings"] if finding["reaction"] == "cuts"]
            end = next((finding["log_end_offset"] for finding in cuts), 60)
            assert Client(broker.address).offsets("p", 3) == (0, end)
    finally:
        broker.kill()
    assert began == verdict.starts
    if verdict.said:
        assert verdict.said in broker.log_text()
    else:
        assert verdict.starts
        assert broker.complaints() == []
    if verdict.finding == "metadata-lost":
        assert len(list(broker.dirs[0].glob("p-*-stray"))) == PARTITIONS


@every_origin
def test_a_held_directory(origin, tmp_path):
    logs = copy_log_dir(origin.clean, tmp_path / "logs")
    broker = Patient(tmp_path / "broker", [logs], origin)
    lock = DirLock(RealDisk(), logs)
    try:
        told = examined([logs])
        assert [finding["name"] for finding in told["findings"]] == ["locked"]
        assert not told["starts"]
        if origin is not RECORDED:
            assert not broker.begins()
            assert "Failed to acquire lock" in broker.log_text()
    finally:
        lock.release()


# Faults of single partitions: all of them at one start.


FIRST = f"{0:020}.log"
DELETED, STRAY, LEFT_OVER = f"p-3.{'a' * 32}-delete", f"p-7.{'b' * 32}-stray", f"{7:020}.log.cleaned"


def expect(told, expected):
    """Findings and notes of these partitions, and their reactions; whether a broker starts."""
    assert told["starts"]
    found = {name: set() for name in expected}
    for finding in (*told["findings"], *told["notes"]):
        found.setdefault(f"{finding['topic']}-{finding['partition']}", set()).add(
            (finding["name"], finding["reaction"])
        )
    assert {name: found[name] for name in expected} == expected


def break_clean(logs):
    """A fault in each partition of a directory after a clean stop."""
    (logs / "p-0" / "partition.metadata").unlink()
    (logs / "p-1" / "partition.metadata").write_text(f"version: 0\ntopic_id: {OTHER_ID}")
    shutil.rmtree(logs / "p-2")
    shutil.copytree(logs / "p-3", logs / DELETED)
    (logs / "log-start-offset-checkpoint").write_text("0\n1\np 4 100\n")
    (logs / "p-5" / FIRST).with_suffix(".index").unlink()
    flip_at_the_end(logs / "p-6" / FIRST)
    shutil.copytree(logs / "p-7", logs / STRAY)
    snapshot = sorted((logs / "p-8").glob("*.snapshot"))[-1]
    flip(snapshot, 7)
    (logs / "p-9" / FIRST).with_suffix(".index").write_bytes(b"\xff" * 16)
    add(logs_of(logs / "p-10")[-1], b"garbage!")
    (logs / "p-11" / LEFT_OVER).write_bytes(b"unfinished")
    shutil.copytree(logs / "p-12", logs / "unknown-0")
    (logs / "unknown-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {OTHER_ID}")
    shutil.copytree(logs / "p-12", logs / "p-99")


@every_origin
def test_partitions_of_a_clean_directory(origin, tmp_path):
    logs = copy_log_dir(origin.clean, tmp_path / "logs")
    break_clean(logs)
    expected = {
        "p-0": {("topic-id-missing", "sets-aside")},
        "p-1": {("topic-id-differs", "sets-aside")},
        "p-2": {("partition-absent", "creates-empty")},
        "p-3": {("being-deleted", "removes")},
        "p-4": {("log-start-beyond-end", "cuts")},
        "p-5": {("index-missing", "repairs")},
        "p-6": {("batch-crc", "does-not-notice")},
        "p-7": {("stray", "ignores")},
        "p-8": {("snapshot-corrupt", "repairs")},
        "p-9": {("index-order", "does-not-notice")},
        "p-10": {("batch-cut-off", "does-not-notice")},
        "p-11": {("file-left-over", "removes")},
        "p-12": set(),
        "unknown-0": {("topic-unknown", "sets-aside")},
        "p-99": {("not-assigned", "sets-aside")},
    }
    expect(examined([logs]), expected)
    if origin is RECORDED:
        return
    damaged = (logs / "p-6" / FIRST).read_bytes()
    broker = Patient(tmp_path / "broker", [logs], origin)
    try:
        client = Client(broker.start().address)
        ends = {number: client.offsets("p", number) for number in range(PARTITIONS - 1)}
        empty = {0: (0, 0), 1: (0, 0), 2: (0, 0), 4: (100, 100)}
        assert ends == dict.fromkeys(range(PARTITIONS - 1), (0, 60)) | empty
        broker.stop()
    finally:
        broker.kill()
    for name in ("p-0", "p-1", "unknown-0", "p-99"):
        assert len(list(logs.glob(f"{name}.*-stray"))) == 1, name
    assert not (logs / DELETED).exists()
    assert (logs / STRAY).exists()
    assert (logs / "p-5" / FIRST).with_suffix(".index").exists()
    assert (logs / "p-6" / FIRST).read_bytes() == damaged
    assert (logs / "p-9" / FIRST).with_suffix(".index").read_bytes() == b"\xff" * 16
    assert not (logs / "p-11" / LEFT_OVER).exists()
    assert logs_of(logs / "p-10")[-1].read_bytes().endswith(b"garbage!")


def break_killed(logs):
    """A fault in each partition of a directory after kill -9."""
    (logs / "recovery-point-offset-checkpoint").write_text("0\n0\n")

    def sized(number, at=-1):
        return logs_of(logs / f"p-{number}")[at]

    torn = sized(0)
    torn.write_bytes(torn.read_bytes()[:-10])
    flip_at_the_end(sized(1, 0))
    flip_at_the_end(sized(2))
    add(sized(3), bytes(5000))
    add(sized(4), b"\xff" * 100)
    flip(sized(5, 0), 16)  # the magic of the first batch, which no checksum covers
    sorted((logs / "p-6").glob("*.index"))[0].write_bytes(b"\xff" * 16)
    (logs / "p-7" / "leader-epoch-checkpoint").unlink()
    for snapshot in (logs / "p-8").glob("*.snapshot"):
        snapshot.unlink()
    swap = sized(9, 0)
    swap.rename(swap.with_name(swap.name + ".swap"))
    shutil.copy(sized(10, 0), sized(10, 0).with_name(sized(10, 0).name + ".deleted"))


@every_origin
def test_partitions_of_a_killed_broker(origin, tmp_path):
    logs = copy_log_dir(origin.killed, tmp_path / "logs")
    break_killed(logs)
    told = examined([logs])
    expected = {
        "p-0": {("torn-tail", "cuts")},
        "p-1": {("damage", "cuts")},
        "p-2": {("torn-tail", "cuts")},
        "p-3": {("preallocated-tail", "repairs")},
        "p-4": {("torn-tail", "cuts")},
        "p-5": {("batch-magic", "does-not-notice")},
    }
    expect(told, expected)
    cuts = {
        finding["partition"]: finding["log_end_offset"] for finding in told["findings"] if finding["reaction"] == "cuts"
    }
    assert cuts[1] < cuts[0] == cuts[2] < cuts[4] == 60
    if origin is RECORDED:
        return
    broker = Patient(tmp_path / "broker", [logs], origin)
    try:
        client = Client(broker.start().address)
        ends = {number: client.offsets("p", number)[1] for number in range(12)}
        assert ends == {number: cuts.get(number, 60) for number in range(12)}
        assert not list(logs.glob("*-stray"))
    finally:
        broker.kill()


# What consumers are given where a broker does not look.


NO_ERROR = "and do not fail"
# A field of the second batch of a log: name, place, value, and what is predicted. The first batch has 5 messages.
SECOND_BATCHES = [
    ("batch-crc", 40, b"\x55", "fail at this place"),
    ("batch-magic", 16, b"\x09", "fail at this place"),
    ("batch-cut-off", 8, b"\0\x10\0\0", NO_ERROR),
    ("batch-order", 7, b"\x0b", NO_ERROR),
    ("batch-length", 8, b"\0\0\0\x05", "fail at this place"),
]


def break_second_batches(logs):
    """Each in a partition of its own."""
    for number, (_, at, field, _) in enumerate(SECOND_BATCHES):
        log = logs / f"p-{number}" / FIRST
        data = bytearray(log.read_bytes())
        position = 12 + int.from_bytes(data[8:12])  # of the second batch
        data[position + at : position + at + len(field)] = field
        log.write_bytes(data)


@every_origin
def test_what_consumers_are_given(origin, tmp_path):
    logs = copy_log_dir(origin.clean, tmp_path / "logs")
    break_second_batches(logs)
    told = examined([logs])
    for number, (name, _, _, later) in enumerate(SECOND_BATCHES):
        own = [finding for finding in told["findings"] if (finding["partition"], finding["name"]) == (number, name)]
        assert own
        assert all(finding["broker"].endswith(later) for finding in own), (name, own)
    if origin is RECORDED:
        return
    broker = Patient(tmp_path / "broker", [logs], origin)
    try:
        client = Client(broker.start().address)
        for number, (name, _, _, later) in enumerate(SECOND_BATCHES):
            assert client.offsets("p", number)[1] == 60  # it leads the partition
            done = subprocess.run(
                ["kcat", "-b", broker.address, "-C", "-t", "p", "-p", str(number), "-o", "beginning", "-e", "-q", "-f",
                 "%o\n", "-X", "check.crcs=true"],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            offsets = [int(offset) for offset in done.stdout.split()]
            assert ("ERROR" in done.stderr) == (later != NO_ERROR), (name, done.stderr)
            if later == NO_ERROR:
                assert (offsets[:5], offsets[-1]) == (list(range(5)), 59), name
                assert offsets != list(range(60)), name
            else:
                assert offsets == list(range(5)), name
    finally:
        broker.kill()
