"""`kafkafs doctor` predicts what a real broker then does on broken directories: its log and its directory decide.

The predictions are compared with recorded verdicts, on copies of the fixture `doctor`. Nightly, brokers of three
releases give these verdicts: each of them starts on its own directories, broken in the same way.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from tests.interop.client import Client
from tests.interop.kafka import (
    LATER_VERSION,
    OLDER_VERSION,
    VERSION,
    Broker,
    DidNotStart,
    on_broker,
    requires_kafka,
    requires_later_kafka,
    requires_older_kafka,
)
from tests.interop.make_doctor import PARTITIONS, Origin, make_origin
from tests.support.commands import run
from tests.support.fixtures import FIXTURES, copy_log_dir, requires_fixtures

OTHER_ID = "qqqqqqqqqqqqqqqqqqqqqg"
RESERVED_ID = "AAAAAAAAAAAAAAAAAAAAAQ"  # DirectoryId.LOST or the like

FIXTURE = Origin(VERSION, FIXTURES / "doctor" / "clean", FIXTURES / "doctor" / "killed")


RELEASES = {OLDER_VERSION: requires_older_kafka, VERSION: requires_kafka, LATER_VERSION: requires_later_kafka}
JUDGES = [
    pytest.param(release, marks=RELEASES[release])
    for release in os.environ.get("KAFKAFS_DOCTOR_JUDGES", ",".join(RELEASES)).split(",")
]


def every_judge(test):
    """The test runs nightly, with a broker of each release."""
    for mark in (pytest.mark.nightly, *on_broker):
        test = mark(test)
    return pytest.mark.parametrize("origin", JUDGES, indirect=True)(test)


class Patient(Broker):
    """A broker on one or two existing directories, which are not formatted."""

    def __init__(self, directory, dirs, version):
        super().__init__(directory, {"log.dirs": ",".join(map(str, dirs))}, version=version)
        self.dirs = dirs

    def _format(self):
        pass

    @property
    def properties(self):
        return self._properties

    def begins(self):
        """Whether it starts, or refuses to."""
        try:
            self.start()
        except DidNotStart:
            return False
        return True


@pytest.fixture(scope="module")
def origin(request, tmp_path_factory):
    return make_origin(tmp_path_factory.mktemp("origin"), request.param)


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

Damage = Callable[[Path], object]
META, QUORUM_STATE, BOOTSTRAP = "meta.properties", "__cluster_metadata-0/quorum-state", "bootstrap.checkpoint"
METADATA, POINTS = "__cluster_metadata-0", "recovery-point-offset-checkpoint"


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


def metadata_damaged(logs):
    log = logs_of(logs / METADATA)[-1]
    flip(log, log.stat().st_size - 5)


def add(path, data):
    with path.open("ab") as file:
        file.write(data)


def last_index_entry(position):
    """The last index of p-3 ends with an entry for this position."""
    return lambda logs: add(logs_of(logs / "p-3")[-1].with_suffix(".index"), struct.pack(">ii", 1, position))


ID = "directory.id=.*"
OF_ZOOKEEPER = all_of(edited(META, "version=1", "version=0"), edited(META, "node.id", "broker.id"), removed(METADATA))
LATER = f"{METADATA}/{50:020}-{1:010}.checkpoint"


class Verdict(NamedTuple):
    """What becomes of a damage: the finding, its reaction, whether the broker starts, what its log says; if that is
    empty, the log complains of nothing."""

    damage: Damage
    finding: str
    reaction: str
    starts: bool
    said: str


WHOLE = {name: Verdict(*row) for name, row in {
    "meta.properties missing": (removed(META), "meta-properties-missing", "refuses", False, META),
    "meta.properties of version 7": (
        edited(META, "version=1", "version=7"), "meta-properties-corrupt", "refuses", False, "version number 7",
    ),
    "meta.properties of ZooKeeper": (OF_ZOOKEEPER, "metadata-lost", "sets-aside", True, ""),
    "meta.properties without a cluster id": (
        edited(META, "cluster.id=", "cluster.was="),
        "meta-properties-corrupt", "refuses", False, "cluster.id was not found",
    ),
    "another node's": (
        edited(META, "node.id=1", "node.id=5"), "node-id-differs", "refuses", False, "Stored node id 5",
    ),
    "another cluster's": (
        second(edited(META, "cluster.id=", "cluster.id=X")),
        "cluster-id-differs", "refuses", False, "Invalid cluster.id",
    ),
    "one directory id twice": (
        all_of(made("../second"), copied(META, "../second")),
        "directory-id-shared", "refuses", False, "Duplicate directory ID",
    ),
    "a reserved directory id": (
        second(edited(META, OTHER_ID, RESERVED_ID)), "directory-id-reserved", "refuses", False, RESERVED_ID,
    ),
    "lost+found": (made("lost+found"), "name-unparsable", "refuses", False, "lost+found"),
    ".snapshot": (made(".snapshot"), "name-unparsable", "refuses", False, ".snapshot"),
    "one partition twice": (
        all_of(second(), copied("p-0", "../second/p-0")),
        "partition-twice", "refuses", False, "Duplicate log directories",
    ),
    "a metadata log elsewhere": (
        all_of(second(), copied(METADATA, f"../second/{METADATA}")),
        "metadata-log-elsewhere", "refuses", False, "__cluster_metadata",
    ),
    "quorum-state": (written(QUORUM_STATE, b"{"), "quorum-state-corrupt", "refuses", False, "quorum-state"),
    "recovery points": (written(POINTS), "checkpoint-corrupt", "takes-offline", False, f"{POINTS}]: garbage"),
    "log starts": (
        written("log-start-offset-checkpoint"),
        "checkpoint-corrupt", "takes-offline", False, "log-start-offset-checkpoint]: garbage",
    ),
    "high watermarks": (
        written("replication-offset-checkpoint"),
        "checkpoint-corrupt", "takes-offline", False, "replication-offset-checkpoint]: garbage",
    ),
    "cleaner offsets": (
        written("cleaner-offset-checkpoint"),
        "checkpoint-corrupt", "takes-offline", False, "cleaner-offset-checkpoint]: garbage",
    ),
    "a topic id": (
        written("p-3/partition.metadata", b"version: 0\ntopic_id: nonsense"),
        "topic-id-corrupt", "refuses", False, "Input string `nonsense`",
    ),
    "a segment's name": (
        written("p-3/backup.log", b""), "file-misnamed", "refuses", False, "NumberFormatException",
    ),
    "leader epochs": (
        written("p-3/leader-epoch-checkpoint"),
        "epochs-corrupt", "takes-offline", False, "leader-epoch-checkpoint]: garbage",
    ),
    "a later transaction index": (
        txn_index_entry(0, b"\1"), "txn-index-version", "refuses", False, "Unexpected aborted transaction version",
    ),
    "a producer id that is none": (txn_index_entry(2, b"\xff"), "txn-index-corrupt", "does-not-notice", True, ""),
    "an aborted transaction of an earlier segment": (
        txn_index_entry(18, bytes(8)), "txn-index-corrupt", "repairs", True, "corrupted index file",
    ),
    "a batch below its segment": (
        unindexed(-1, below_its_segment), "batch-range", "refuses", False, "Split operation is only permitted",
    ),
    "damage where the index is missing": (
        unindexed(0, lambda log: flip(log, log.stat().st_size - 5)),
        "batch-crc", "cuts", True, "Found invalid messages",
    ),
    "the metadata log lost": (removed(METADATA), "metadata-lost", "sets-aside", True, ""),
    "the metadata log and bootstrap lost": (
        all_of(removed(BOOTSTRAP), removed(METADATA)), "metadata-lost", "sets-aside", True, "",
    ),
    "a second, unformatted directory": (
        made("../second"), "meta-properties-missing", "refuses", False, "No `meta.properties` found",
    ),
    "a second directory of version 7": (
        second(edited(META, "version=1", "version=7")),
        "meta-properties-corrupt", "takes-offline", True, "version number 7",
    ),
    "an id of a second directory that is none": (
        second(edited(META, OTHER_ID, "nonsense")),
        "directory-id-corrupt", "takes-offline", True, "Unable to read directory.id as a Uuid",
    ),
    "meta.properties of a second directory is one": (
        second(as_directory(META)), "meta-properties-corrupt", "takes-offline", True, "Is a directory",
    ),
    "recovery points of a second directory": (
        second(written(POINTS)), "checkpoint-corrupt", "takes-offline", True, f"{POINTS}]: garbage",
    ),
    "a directory id that is none": (
        edited(META, ID, "directory.id=nonsense"),
        "directory-id-corrupt", "refuses", False, "Unable to read directory.id as a Uuid",
    ),
    "quorum-state of version 7": (
        edited(QUORUM_STATE, r'"data_version":\d', '"data_version":7'),
        "quorum-state-corrupt", "refuses", False, "data_version (7)",
    ),
    "quorum-state that lacks a field": (
        edited(QUORUM_STATE, r'"leaderEpoch":', '"leaderEpoch_":'),
        "quorum-state-corrupt", "refuses", False, "unable to locate field 'leaderEpoch'",
    ),
    "quorum-state is a directory": (
        as_directory(QUORUM_STATE), "quorum-state-corrupt", "refuses", False, "Is a directory",
    ),
    "bootstrap.checkpoint is a directory": (
        as_directory(BOOTSTRAP), "bootstrap-corrupt", "refuses", False, "Is a directory",
    ),
    "a snapshot's name": (
        written(f"{METADATA}/x.checkpoint", b""), "file-misnamed", "refuses", False, "StringIndexOutOfBounds",
    ),
    "another directory id": (
        edited(META, ID, f"directory.id={OTHER_ID}"), "directory-id-unknown", "does-not-notice", True, "",
    ),
    "a segment's name of 19 digits": (
        written(f"p-3/{7:019}.log", b""), "file-misnamed", "cuts", True, "rebuilding index file",
    ),
    "a number in the recovery points": (
        written(POINTS, b"0\n1\np zero 5\n"), "checkpoint-corrupt", "recovers", True, "resetting",
    ),
    "a number in the high watermarks": (
        written("replication-offset-checkpoint", b"0\n1\np zero 5\n"),
        "checkpoint-corrupt", "does-not-notice", True, "NumberFormatException",
    ),
    "a number in the cleaner's offsets": (
        written("cleaner-offset-checkpoint", b"0\n1\np zero 5\n"),
        "checkpoint-corrupt", "does-not-notice", True, 'For input string: "zero"',
    ),
    "an empty snapshot": (written(LATER, b""), "metadata-snapshot-damaged", "refuses", False, "handleLoadSnapshot"),
    "a snapshot of garbage": (written(LATER, b"x" * 100), "metadata-snapshot-damaged", "refuses", False, "magic"),
    "bootstrap.checkpoint": (written(BOOTSTRAP, b""), "bootstrap-corrupt", "refuses", False, "No FeatureLevelRecord"),
    "meta.properties is a directory": (
        as_directory(META), "meta-properties-corrupt", "refuses", False, "Is a directory",
    ),
    "a checkpoint is a directory": (
        as_directory(POINTS), "checkpoint-corrupt", "takes-offline", False, "Is a directory",
    ),
    **{
        f"{what} a directory": (
            as_directory(f"p-3/{pattern}"), "no-regular-file", "takes-offline", False, "Is a directory",
        )
        for what, pattern in (
            ("leader epochs are", "leader-epoch-checkpoint"), ("a topic id is", "partition.metadata"),
            ("an index is", "*.index"), ("a snapshot is", "*.snapshot"),
        )
    },
    "the last segment is a directory": (as_directory("p-3/*.log"), "log-end-lost", "cuts", True, ""),
    "the last segment lost": (
        lambda logs: logs_of(logs / "p-3")[-1].unlink(), "log-end-lost", "cuts", True, "orphaned index file",
    ),
    "zeros behind the last batch": (
        lambda logs: add(logs_of(logs / "p-3")[-1], bytes(4096)),
        "log-end-misread", "refuses", False, "Found record size 0 smaller than",
    ),
    "a last index entry within a batch": (last_index_entry(4), "log-end-misread", "refuses", False, "smaller than"),
    "a last index entry beyond the log": (last_index_entry(1 << 20), "log-end-misread", "cuts", True, ""),
    "zeros before a number": (renamed("p-3", "p-003"), "name-not-canonical", "ignores", True, ""),
    "one partition twice, once with zeros": (
        copied("p-3", "p-003"), "partition-twice", "refuses", False, "Duplicate log directories",
    ),
    "only a future log": (renamed("p-3", f"p-3.{'a' * 32}-future"), "being-moved", "ignores", True, ""),
    "a metadata log that is damaged": (metadata_damaged, "metadata-log-damaged", "cuts", True, "Corruption found"),
}.items()}  # fmt: skip


def broken(origin, case, directory):
    """A broker, not started, on a broken copy of the clean directory."""
    logs = copy_log_dir(origin.clean, directory / "logs")
    WHOLE[case].damage(logs)
    return Patient(
        directory / "broker", [path for path in (logs, logs.with_name("second")) if path.exists()], origin.version
    )


def prediction(broker, case):
    """What doctor says, which must be the recorded verdict."""
    verdict = WHOLE[case]
    told = examined(broker.dirs, "--server-properties", broker.properties)
    assert told["starts"] == verdict.starts
    found = [(one["name"], one["reaction"]) for one in (*told["findings"], *told["notes"])]
    assert (verdict.finding, verdict.reaction) in found
    lost = [one for one in told["findings"] if one["name"] == "log-end-lost"]
    assert (told["loses_nothing"], len(lost)) == (not told["findings"], int(verdict.finding == "log-end-lost"))
    return told


@requires_fixtures
@pytest.mark.parametrize("case", WHOLE)
def test_what_is_predicted_of_the_directory(tmp_path, case):
    prediction(broken(FIXTURE, case, tmp_path), case)


@every_judge
@pytest.mark.parametrize("case", WHOLE)
def test_what_happens_to_the_directory(origin, tmp_path, case):
    verdict = WHOLE[case]
    if "bootstrap" in case and case != "bootstrap.checkpoint" and not (origin.clean / BOOTSTRAP).exists():
        pytest.skip(f"Kafka {origin.version} formats a directory without {BOOTSTRAP}")
    broker = broken(origin, case, tmp_path)
    told = prediction(broker, case)
    try:
        began = broker.begins()
        if began and verdict.finding in ("log-end-lost", "log-end-misread", "name-not-canonical", "being-moved"):
            cuts = [one for one in told["findings"] if one["reaction"] == "cuts"]
            end = next((one["log_end_offset"] for one in cuts), 60)
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


@contextmanager
def held(directory):
    """Another process holds the directory."""
    lock = DirLock(RealDisk(), directory)
    try:
        yield
    finally:
        lock.release()


@requires_fixtures
def test_what_is_predicted_of_a_held_directory(tmp_path):
    logs = copy_log_dir(FIXTURE.clean, tmp_path / "logs")
    with held(logs):
        told = examined([logs])
    assert [one["name"] for one in told["findings"]] == ["locked"]
    assert not told["starts"]


@every_judge
def test_a_held_directory(origin, tmp_path):
    logs = copy_log_dir(origin.clean, tmp_path / "logs")
    broker = Patient(tmp_path / "broker", [logs], origin.version)
    with held(logs):
        assert not broker.begins()
    assert "Failed to acquire lock" in broker.log_text()


# Faults of single partitions: all of them at one start.


FIRST = f"{0:020}.log"
DELETED, STRAY, LEFT_OVER = f"p-3.{'a' * 32}-delete", f"p-7.{'b' * 32}-stray", f"{7:020}.log.cleaned"


def by_partition(told):
    found = {}
    for one in (*told["findings"], *told["notes"]):
        found.setdefault(f"{one['topic']}-{one['partition']}", set()).add((one["name"], one["reaction"]))
    return found


def break_clean(logs):
    """A fault in each partition of a directory after a clean stop."""
    (logs / "p-0" / "partition.metadata").unlink()
    (logs / "p-1" / "partition.metadata").write_text(f"version: 0\ntopic_id: {OTHER_ID}")
    shutil.rmtree(logs / "p-2")
    shutil.copytree(logs / "p-3", logs / DELETED)
    starts = logs / "log-start-offset-checkpoint"
    starts.write_text("0\n1\np 4 100\n")
    (logs / "p-5" / FIRST).with_suffix(".index").unlink()
    flipped = logs / "p-6" / FIRST
    flip(flipped, flipped.stat().st_size - 5)
    shutil.copytree(logs / "p-7", logs / STRAY)
    snapshot = sorted((logs / "p-8").glob("*.snapshot"))[-1]
    flip(snapshot, 7)
    (logs / "p-9" / FIRST).with_suffix(".index").write_bytes(b"\xff" * 16)
    with logs_of(logs / "p-10")[-1].open("ab") as log:
        log.write(b"garbage!")
    (logs / "p-11" / LEFT_OVER).write_bytes(b"unfinished")
    shutil.copytree(logs / "p-12", logs / "unknown-0")
    (logs / "unknown-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {OTHER_ID}")
    shutil.copytree(logs / "p-12", logs / "p-99")


def check_clean(logs):
    """What doctor says of `break_clean`, which must be the recorded verdicts."""
    told = examined([logs])
    assert told["starts"]
    found = by_partition(told)
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
        "unknown-0": {("topic-unknown", "sets-aside")},
        "p-99": {("not-assigned", "sets-aside")},
    }
    assert {name: own for name, own in found.items() if name in expected} == expected
    assert not found.get("p-12")


@requires_fixtures
def test_what_is_predicted_of_partitions_of_a_clean_directory(tmp_path):
    logs = copy_log_dir(FIXTURE.clean, tmp_path / "logs")
    break_clean(logs)
    check_clean(logs)


@every_judge
def test_partitions_of_a_clean_directory(origin, tmp_path):
    logs = copy_log_dir(origin.clean, tmp_path / "logs")
    break_clean(logs)
    check_clean(logs)
    damaged = (logs / "p-6" / FIRST).read_bytes()
    broker = Patient(tmp_path / "broker", [logs], origin.version)
    try:
        client = Client(broker.start().address)
        ends = {number: client.offsets("p", number) for number in range(PARTITIONS - 1)}
        assert ends == dict.fromkeys(range(PARTITIONS - 1), (0, 60)) | {
            0: (0, 0), 1: (0, 0), 2: (0, 0), 4: (100, 100),
        }  # fmt: skip
        broker.stop()
        for name in ("p-0", "p-1", "unknown-0", "p-99"):
            assert len(list(logs.glob(f"{name}.*-stray"))) == 1, name
        assert not (logs / DELETED).exists()
        assert (logs / STRAY).exists()
        assert (logs / "p-5" / FIRST).with_suffix(".index").exists()
        assert (logs / "p-6" / FIRST).read_bytes() == damaged
        assert (logs / "p-9" / FIRST).with_suffix(".index").read_bytes() == b"\xff" * 16
        assert not (logs / "p-11" / LEFT_OVER).exists()
        assert logs_of(logs / "p-10")[-1].read_bytes().endswith(b"garbage!")
    finally:
        broker.kill()


def break_killed(logs):
    """A fault in each partition of a directory after kill -9."""
    (logs / "recovery-point-offset-checkpoint").write_text("0\n0\n")

    def sized(number, at=-1):
        return logs_of(logs / f"p-{number}")[at]

    torn = sized(0)
    torn.write_bytes(torn.read_bytes()[:-10])
    flip(sized(1, 0), sized(1, 0).stat().st_size - 5)
    flip(sized(2), sized(2).stat().st_size - 5)
    with sized(3).open("ab") as log:
        log.write(bytes(5000))
    with sized(4).open("ab") as log:
        log.write(b"\xff" * 100)
    flip(sized(5, 0), 16)  # the magic of the first batch, which no checksum covers
    sorted((logs / "p-6").glob("*.index"))[0].write_bytes(b"\xff" * 16)
    (logs / "p-7" / "leader-epoch-checkpoint").unlink()
    for snapshot in (logs / "p-8").glob("*.snapshot"):
        snapshot.unlink()
    swap = sized(9, 0)
    swap.rename(swap.with_name(swap.name + ".swap"))
    shutil.copy(sized(10, 0), sized(10, 0).with_name(sized(10, 0).name + ".deleted"))


def check_killed(logs):
    """What doctor says of `break_killed`, which must be the recorded verdicts: log end offsets by partition."""
    told = examined([logs])
    assert told["starts"]
    found = by_partition(told)
    expected = {
        "p-0": {("torn-tail", "cuts")},
        "p-1": {("damage", "cuts")},
        "p-2": {("torn-tail", "cuts")},
        "p-3": {("preallocated-tail", "repairs")},
        "p-4": {("torn-tail", "cuts")},
        "p-5": {("batch-magic", "does-not-notice")},
    }
    assert {name: own for name, own in found.items() if name in expected} == expected
    cuts = {one["partition"]: one["log_end_offset"] for one in told["findings"] if one["reaction"] == "cuts"}
    assert cuts[1] < cuts[0] == cuts[2] < cuts[4] == 60
    return {number: cuts.get(number, 60) for number in range(12)}


@requires_fixtures
def test_what_is_predicted_of_partitions_of_a_killed_broker(tmp_path):
    logs = copy_log_dir(FIXTURE.killed, tmp_path / "logs")
    break_killed(logs)
    check_killed(logs)


@every_judge
def test_partitions_of_a_killed_broker(origin, tmp_path):
    logs = copy_log_dir(origin.killed, tmp_path / "logs")
    break_killed(logs)
    predicted = check_killed(logs)
    broker = Patient(tmp_path / "broker", [logs], origin.version)
    try:
        client = Client(broker.start().address)
        assert {number: client.offsets("p", number)[1] for number in range(12)} == predicted
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


def check_second_batches(logs):
    """What doctor says of `break_second_batches`, which must be the recorded verdicts."""
    told = examined([logs])
    for number, (name, _, _, later) in enumerate(SECOND_BATCHES):
        (words,) = {one["broker"] for one in told["findings"] if (one["partition"], one["name"]) == (number, name)}
        assert words.endswith(later), (name, words)


@requires_fixtures
def test_what_is_predicted_of_what_consumers_are_given(tmp_path):
    logs = copy_log_dir(FIXTURE.clean, tmp_path / "logs")
    break_second_batches(logs)
    check_second_batches(logs)


@every_judge
def test_what_consumers_are_given(origin, tmp_path):
    logs = copy_log_dir(origin.clean, tmp_path / "logs")
    break_second_batches(logs)
    check_second_batches(logs)
    broker = Patient(tmp_path / "broker", [logs], origin.version)
    try:
        client = Client(broker.start().address)
        for number, (name, _, _, later) in enumerate(SECOND_BATCHES):
            assert client.offsets("p", number)[1] == 60  # it leads the partition
            done = subprocess.run(
                ["kcat", "-b", broker.address, "-C", "-t", "p", "-p", str(number), "-o", "beginning", "-e", "-q", "-f",
                 "%o\n", "-X", "check.crcs=true"],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            offsets = [int(one) for one in done.stdout.split()]
            assert offsets[:5] == list(range(5)), name
            assert offsets != list(range(60)), name
            assert ("ERROR" in done.stderr) == (later != NO_ERROR), (name, done.stderr)
            if later == NO_ERROR:
                assert offsets[-1] == 59, name
            else:
                assert offsets == list(range(5)), name
    finally:
        broker.kill()
