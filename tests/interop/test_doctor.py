"""`kafkafs doctor` predicts what a real broker then does on broken directories: its log and its directory decide.

The predictions are compared with recorded verdicts, on copies of the fixture `doctor`. Nightly, a broker gives these
verdicts: it starts on its own directories, broken in the same way.
"""

import json
import re
import shutil
import signal
import struct
import subprocess
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from tests.interop.client import Client
from tests.interop.kafka import Broker, DidNotStart, on_broker, requires_kafka
from tests.interop.make_doctor import PARTITIONS, make_origin
from tests.support.commands import run
from tests.support.fixtures import FIXTURES, copy_log_dir, requires_fixtures
from tests.support.waiting import wait_for

OTHER_ID = "qqqqqqqqqqqqqqqqqqqqqg"
RESERVED_ID = "AAAAAAAAAAAAAAAAAAAAAQ"  # DirectoryId.LOST or the like

RECORDED = {name: FIXTURES / "doctor" / name for name in ("clean", "killed")}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("recorded", marks=requires_fixtures),
        pytest.param("broker", marks=[pytest.mark.nightly, on_broker, requires_kafka]),
    ],
)
def origin(request, tmp_path_factory):
    """The recorded directories, and nightly those of a broker, which judges."""
    return RECORDED if request.param == "recorded" else make_origin(tmp_path_factory.mktemp("origin"))


class Patient(Broker):
    """A broker on existing directories, which are not formatted."""

    def __init__(self, directory, dirs):
        super().__init__(directory, {"log.dirs": ",".join(map(str, dirs))})
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


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    path.write_bytes(data)


# The whole directory: each case is a start. Damages are made of these.

META, QUORUM, BOOTSTRAP = "meta.properties", "__cluster_metadata-0/quorum-state", "bootstrap.checkpoint"
METADATA, POINTS = "__cluster_metadata-0", "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
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

    def replace(file):
        file.unlink()
        file.mkdir()

    return at_file(pattern, replace)


def copied(name, to):
    return lambda logs: (shutil.copytree if (logs / name).is_dir() else shutil.copy)(logs / name, logs / to)


def second(*damages):
    """A second log directory, formatted as the first one, then damaged."""
    formatted = all_of(copied(META, f"../second/{META}"), edited(f"../second/{META}", ID, f"directory.id={OTHER_ID}"))
    return all_of(made("../second"), formatted, lambda logs: all_of(*damages)(logs.with_name("second")))


def patch(path, at, field):
    data = path.read_bytes()
    path.write_bytes(data[:at] + field + data[at + len(field) :])


def txn_index_entry(at, field):
    """The only entry of a transaction index changed."""
    return at_file(f"p-{PARTITIONS - 1}/*.txnindex", lambda index: patch(index, at, field))


def flip_at_the_end(log):
    flip(log, log.stat().st_size - 5)


def add(path, data):
    with path.open("ab") as file:
        file.write(data)


def at_file(pattern, damage):
    """The last file of a pattern is damaged."""
    return lambda logs: damage(sorted(logs.glob(pattern))[-1])


def last_index_entry(position):
    """The last index of p-3 ends with an entry for this position."""
    return at_file("p-3/*.index", lambda index: add(index, struct.pack(">ii", 1, position)))


ID = "directory.id=.*"
FIRST, LOG = f"{0:020}", "p-3/*.log"
NO_NUMBER = b"0\n1\np zero 5\n"  # in a checkpoint
VERSION_7 = edited(META, "version=1", "version=7")
OF_ZOOKEEPER = all_of(edited(META, "version=1", "version=0"), edited(META, "node.id", "broker.id"), removed(METADATA))
UNNOTICED = "does-not-notice"
LATER = f"{METADATA}/{50:020}-{1:010}.checkpoint"


class Verdict(NamedTuple):
    """What becomes of a damage. `said`: what the broker's log says; if that is empty, it complains of nothing."""

    damage: object
    finding: str
    said: str
    reaction: str
    starts: bool


refuses = partial(Verdict, reaction="refuses", starts=False)
goes_offline = partial(Verdict, reaction="takes-offline", starts=False)
loses_one = partial(Verdict, reaction="takes-offline", starts=True)  # of two directories


def starts(damage, finding, reaction, said=""):
    return Verdict(damage, finding, said, reaction, True)


WHOLE = {
    "no meta.properties": refuses(removed(META), "meta-properties-missing", META),
    "version 7": refuses(VERSION_7, "meta-properties-corrupt", "version number 7"),
    "meta.properties of ZooKeeper": starts(OF_ZOOKEEPER, "metadata-lost", "sets-aside"),
    "no cluster": refuses(edited(META, "cluster.id=", "cluster.was="), "meta-properties-corrupt", "cluster.id was not"),
    "another node's": refuses(edited(META, "node.id=1", "node.id=5"), "node-id-differs", "Stored node id 5"),
    "two clusters": refuses(
        second(edited(META, "cluster.id=", "cluster.id=X")), "cluster-id-differs", "Invalid cluster"
    ),
    "one id twice": refuses(
        all_of(made("../second"), copied(META, "../second")), "directory-id-shared", "Duplicate directory"
    ),
    "a reserved id": refuses(second(edited(META, OTHER_ID, RESERVED_ID)), "directory-id-reserved", RESERVED_ID),
    "lost+found": refuses(made("lost+found"), "name-unparsable", "lost+found"),
    ".snapshot": refuses(made(".snapshot"), "name-unparsable", ".snapshot"),
    "p-0 twice": refuses(all_of(second(), copied("p-0", "../second/p-0")), "partition-twice", "Duplicate log"),
    "two metadata logs": refuses(
        all_of(second(), copied(METADATA, f"../second/{METADATA}")), "metadata-log-elsewhere", "__cluster_metadata"
    ),
    "quorum-state": refuses(written(QUORUM, b"{"), "quorum-state-corrupt", "quorum-state"),
    **{
        f"garbage in {name}": goes_offline(written(name), "checkpoint-corrupt", f"{name}]: garbage")
        for name in (POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
    },
    "a topic id": refuses(edited("p-3/partition.metadata", "id: .*", "id: nonsense"), "topic-id-corrupt", "`nonsense`"),
    "a segment's name": refuses(written("p-3/backup.log", b""), "file-misnamed", "NumberFormatException"),
    "epochs": goes_offline(written("p-3/leader-epoch-checkpoint"), "epochs-corrupt", "checkpoint]: garbage"),
    "a later txnindex": refuses(txn_index_entry(0, b"\1"), "txn-index-version", "aborted transaction version"),
    "a producer id that is none": starts(txn_index_entry(2, b"\xff"), "txn-index-corrupt", UNNOTICED),
    "aborted below": starts(txn_index_entry(18, bytes(8)), "txn-index-corrupt", "repairs", "corrupted index file"),
    "a batch below its log": refuses(
        all_of(at_file(LOG, lambda log: patch(log, 0, bytes(8))), at_file("p-3/*.index", Path.unlink)),
        "batch-range",
        "Split operation",
    ),
    "a batch far above its log": refuses(
        all_of(at_file(LOG, lambda log: patch(log, 0, b"\4" + bytes(7))), at_file("p-3/*.index", Path.unlink)),
        "batch-range",
        "Split operation",
    ),
    "aborts and a batch below their log": refuses(
        all_of(
            at_file(f"p-{PARTITIONS - 1}/*.log", lambda log: patch(log, 0, bytes(8))), txn_index_entry(18, bytes(8))
        ),
        "batch-range",
        "Split operation",
    ),
    "no high watermark, and no size of a batch": starts(
        all_of(removed(HIGH_WATERMARKS), at_file(f"p-3/{FIRST}.log", lambda log: patch(log, 8, bytes(4)))),
        "high-watermark-unreadable",
        UNNOTICED,
        "smaller than minimum",
    ),
    "damage without an index": starts(
        all_of(at_file(f"p-3/{FIRST}.log", flip_at_the_end), removed(f"p-3/{FIRST}.index")),
        "batch-crc",
        "cuts",
        "invalid messages",
    ),
    "the metadata log lost": starts(removed(METADATA), "metadata-lost", "sets-aside"),
    "no bootstrap": starts(all_of(removed(BOOTSTRAP), removed(METADATA)), "metadata-lost", "sets-aside"),
    "an unformatted second directory": refuses(made("../second"), "meta-properties-missing", "No `meta.properties`"),
    "second of version 7": loses_one(second(VERSION_7), "meta-properties-corrupt", "version number 7"),
    "second with a wrong id": loses_one(
        second(edited(META, OTHER_ID, "nonsense")), "directory-id-corrupt", "directory.id as a Uuid"
    ),
    "second without a file": loses_one(second(as_directory(META)), "meta-properties-corrupt", "Is a directory"),
    "second with garbage": loses_one(second(written(POINTS)), "checkpoint-corrupt", f"{POINTS}]: garbage"),
    "a wrong id": refuses(edited(META, ID, "directory.id=nonsense"), "directory-id-corrupt", "directory.id as a Uuid"),
    "quorum version": refuses(edited(QUORUM, r'version":\d', 'version":7'), "quorum-state-corrupt", "version (7)"),
    "quorum without a field": refuses(
        edited(QUORUM, "leaderEpoch", "leaderEpoch_"), "quorum-state-corrupt", "'leaderEpoch'"
    ),
    "quorum-state is a directory": refuses(as_directory(QUORUM), "quorum-state-corrupt", "Is a directory"),
    "bootstrap.checkpoint is a directory": refuses(as_directory(BOOTSTRAP), "bootstrap-corrupt", "Is a directory"),
    "a snapshot's name": refuses(written(f"{METADATA}/x.checkpoint", b""), "file-misnamed", "StringIndexOutOfBounds"),
    "another id": starts(edited(META, ID, f"directory.id={OTHER_ID}"), "directory-id-unknown", UNNOTICED),
    "a name of 19 digits": starts(written(f"p-3/{7:019}.log", b""), "file-misnamed", "cuts", "rebuilding index file"),
    "recovery points": starts(written(POINTS, NO_NUMBER), "checkpoint-corrupt", "recovers", "resetting"),
    "high watermarks": starts(written(HIGH_WATERMARKS, NO_NUMBER), "checkpoint-corrupt", UNNOTICED, "NumberFormat"),
    "cleaner offsets": starts(written(CLEANER_OFFSETS, NO_NUMBER), "checkpoint-corrupt", UNNOTICED, 'string: "zero"'),
    "an empty snapshot": refuses(written(LATER, b""), "metadata-snapshot-damaged", "handleLoadSnapshot"),
    "a snapshot of garbage": refuses(written(LATER, b"x" * 100), "metadata-snapshot-damaged", "magic"),
    "bootstrap.checkpoint": refuses(written(BOOTSTRAP, b""), "bootstrap-corrupt", "No FeatureLevelRecord"),
    "meta.properties is a directory": refuses(as_directory(META), "meta-properties-corrupt", "Is a directory"),
    "a checkpoint is a directory": goes_offline(as_directory(POINTS), "checkpoint-corrupt", "Is a directory"),
    **{
        f"{name} is a directory": goes_offline(as_directory(name), "no-regular-file", "Is a directory")
        for name in ("p-3/leader-epoch-checkpoint", "p-3/partition.metadata", "p-3/*.index", "p-3/*.snapshot")
    },
    "an index before the active segment": starts(as_directory(f"p-3/{FIRST}.index"), "no-regular-file", UNNOTICED),
    "the last segment is a directory": starts(as_directory(LOG), "log-end-lost", "cuts"),
    "no last segment": starts(at_file(LOG, Path.unlink), "log-end-lost", "cuts", "orphaned index file"),
    "zeros at the end": refuses(at_file(LOG, lambda log: add(log, bytes(4096))), "log-end-misread", "size 0 smaller"),
    "a last index entry within a batch": refuses(last_index_entry(4), "log-end-misread", "smaller than"),
    "a last index entry beyond the log": starts(last_index_entry(1 << 20), "log-end-misread", "cuts"),
    "zeros before a number": starts(renamed("p-3", "p-003"), "name-not-canonical", "ignores"),
    "p-3 twice": refuses(copied("p-3", "p-003"), "partition-twice", "Duplicate log"),
    "only a future log": starts(renamed("p-3", f"p-3.{'a' * 32}-future"), "being-moved", "ignores"),
    "metadata log": starts(at_file(f"{METADATA}/*.log", flip_at_the_end), "metadata-log-damaged", "cuts", "Corruption"),
}


@pytest.mark.parametrize("case", WHOLE)
def test_the_directory(origin, tmp_path, case):
    if case in ("no bootstrap", "bootstrap.checkpoint is a directory") and not (origin["clean"] / BOOTSTRAP).exists():
        pytest.skip(f"this release formats a directory without {BOOTSTRAP}")
    verdict = WHOLE[case]
    logs = copy_log_dir(origin["clean"], tmp_path / "logs")
    verdict.damage(logs)
    dirs = [path for path in (logs, logs.with_name("second")) if path.exists()]
    broker = Patient(tmp_path / "broker", dirs)
    told = examined(broker.dirs, "--server-properties", broker.properties)
    assert told["starts"] == verdict.starts
    found = [(finding["name"], finding["reaction"]) for finding in (*told["findings"], *told["notes"])]
    assert (verdict.finding, verdict.reaction) in found
    assert [name for name, _ in found].count("log-end-lost") == (verdict.finding == "log-end-lost")
    assert told["loses_nothing"] == (not told["findings"])
    if origin is RECORDED:
        return
    with broker:
        began = broker.begins()
        if began and verdict.finding in ("log-end-lost", "log-end-misread", "name-not-canonical", "being-moved"):
            cuts = [finding for finding in told["findings"] if finding["reaction"] == "cuts"]
            end = next((finding["log_end_offset"] for finding in cuts), 60)
            assert Client(broker.address).offsets("p", 3) == (0, end)
        if began and verdict.said:  # perhaps only when it is to lead
            wait_for(verdict.said, lambda: verdict.said in broker.log_text())
    assert began == verdict.starts
    if verdict.said:
        assert verdict.said in broker.log_text()
    else:
        assert verdict.starts
        assert broker.complaints() == []
    if verdict.finding == "metadata-lost":
        assert len(list(broker.dirs[0].glob("p-*-stray"))) == PARTITIONS


def test_a_held_directory(origin, tmp_path):
    logs = copy_log_dir(origin["clean"], tmp_path / "logs")
    broker = Patient(tmp_path / "broker", [logs])
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


class Fault(NamedTuple):
    """What becomes of a partition: the finding, if it is worth a word, its reaction, and the log's start and end.
    `remains`: a pattern of what is there once then; `unchanged`, `gone`: files."""

    damage: object
    finding: str = ""
    reaction: str = ""
    offsets: tuple = (0, 60)
    remains: str = ""
    unchanged: str = ""
    gone: str = ""


DELETED, STRAY, LEFT_OVER = f"p-3.{'a' * 32}-delete", f"p-7.{'b' * 32}-stray", f"p-11/{7:020}.log.cleaned"
DIFFERS = ("topic_id: .*", f"topic_id: {OTHER_ID}")
# After a clean stop.
CLEAN = {
    "p-0": Fault(removed("p-0/partition.metadata"), "topic-id-missing", "sets-aside", (0, 0), "p-0.*-stray"),
    "p-1": Fault(edited("p-1/partition.metadata", *DIFFERS), "topic-id-differs", "sets-aside", (0, 0), "p-1.*-stray"),
    "p-2": Fault(removed("p-2"), "partition-absent", "creates-empty", (0, 0)),
    "p-3": Fault(copied("p-3", DELETED), "being-deleted", "removes", gone=DELETED),
    "p-4": Fault(written(LOG_STARTS, b"0\n1\np 4 100\n"), "log-start-beyond-end", "cuts", (100, 100)),
    "p-5": Fault(removed(f"p-5/{FIRST}.index"), "index-missing", "repairs", remains=f"p-5/{FIRST}.index"),
    "p-6": Fault(at_file(f"p-6/{FIRST}.log", flip_at_the_end), "batch-crc", UNNOTICED, unchanged=f"p-6/{FIRST}.log"),
    "p-7": Fault(copied("p-7", STRAY), "stray", "ignores", remains=STRAY),
    "p-8": Fault(at_file("p-8/*.snapshot", lambda path: flip(path, 7)), "snapshot-corrupt", "repairs"),
    "p-9": Fault(written(f"p-9/{FIRST}.index", b"\xff" * 16), "index-order", UNNOTICED, unchanged=f"p-9/{FIRST}.index"),
    "p-10": Fault(at_file("p-10/*.log", lambda path: add(path, b"garbage!")), "batch-cut-off", UNNOTICED),
    "p-11": Fault(written(LEFT_OVER, b"unfinished"), "file-left-over", "removes", gone=LEFT_OVER),
    "p-12": Fault(copied("p-12", "p-99")),
    "unknown-0": Fault(
        all_of(copied("p-12", "unknown-0"), edited("unknown-0/partition.metadata", *DIFFERS)),
        "topic-unknown",
        "sets-aside",
        None,
        "unknown-0.*-stray",
    ),
    "p-99": Fault(all_of(), "not-assigned", "sets-aside", None, "p-99.*-stray"),
}
# After kill -9, with recovery points of 0; the ends are those that are predicted where it cuts.
KILLED = {
    "p-0": Fault(at_file("p-0/*.log", lambda path: path.write_bytes(path.read_bytes()[:-10])), "torn-tail", "cuts"),
    "p-1": Fault(at_file(f"p-1/{FIRST}.log", flip_at_the_end), "damage", "cuts"),
    "p-2": Fault(at_file("p-2/*.log", flip_at_the_end), "torn-tail", "cuts"),
    "p-3": Fault(at_file(LOG, lambda path: add(path, bytes(5000))), "preallocated-tail", "repairs"),
    "p-4": Fault(at_file("p-4/*.log", lambda path: add(path, b"\xff" * 100)), "torn-tail", "cuts"),
    # The magic of the first batch, which no checksum covers.
    "p-5": Fault(at_file(f"p-5/{FIRST}.log", lambda path: flip(path, 16)), "batch-magic", UNNOTICED),
    "p-6": Fault(written(f"p-6/{FIRST}.index", b"\xff" * 16)),
    "p-7": Fault(removed("p-7/leader-epoch-checkpoint")),
    "p-8": Fault(lambda logs: [path.unlink() for path in (logs / "p-8").glob("*.snapshot")]),
    "p-9": Fault(renamed(f"p-9/{FIRST}.log", f"p-9/{FIRST}.log.swap")),
    "p-10": Fault(copied(f"p-10/{FIRST}.log", f"p-10/{FIRST}.log.deleted")),
    "p-11": Fault(written(POINTS, b"0\n0\n")),
}


@pytest.mark.parametrize(("state", "faults"), [("clean", CLEAN), ("killed", KILLED)], ids=["clean", "killed"])
def test_partitions(origin, tmp_path, state, faults):
    logs = copy_log_dir(origin[state], tmp_path / "logs")
    for fault in faults.values():
        fault.damage(logs)
    told = examined([logs])
    assert told["starts"]
    found = {name: set() for name in faults}
    for one in (*told["findings"], *told["notes"]):
        found.setdefault(f"{one['topic']}-{one['partition']}", set()).add((one["name"], one["reaction"]))
    for name, fault in faults.items():
        if fault.finding:
            assert found[name] == {(fault.finding, fault.reaction)}
    assert not found.get("p-12")
    assert (("unclean", "recovers") in found.get("None-None", ())) == (state == "killed")
    cuts = {one["partition"]: one["log_end_offset"] for one in told["findings"] if one["reaction"] == "cuts"}
    if state == "killed":
        assert cuts[1] < cuts[0] == cuts[2] < cuts[4] == 60
    if origin is RECORDED:
        return
    before = {fault.unchanged: (logs / fault.unchanged).read_bytes() for fault in faults.values() if fault.unchanged}
    with Patient(tmp_path / "broker", [logs]) as broker:
        client = Client(broker.start().address)
        for number, fault in enumerate(fault for fault in faults.values() if fault.offsets):
            end = cuts.get(number, fault.offsets[1])
            assert client.offsets("p", number) == (fault.offsets[0], end), number
        broker.stop()
    for name, data in before.items():
        assert (logs / name).read_bytes() == data, name
    for fault in faults.values():
        assert not fault.remains or len(list(logs.glob(fault.remains))) == 1, fault.remains
        assert not fault.gone or not (logs / fault.gone).exists(), fault.gone
    assert sorted((logs / "p-10").glob("*.log"))[-1].read_bytes().endswith(b"garbage!") == (state == "clean")
    assert state == "clean" or not list(logs.glob("*-stray"))


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


def test_what_consumers_are_given(origin, tmp_path):
    logs = copy_log_dir(origin["clean"], tmp_path / "logs")
    for number, (_, at, field, _) in enumerate(SECOND_BATCHES):
        log = logs / f"p-{number}" / f"{FIRST}.log"
        patch(log, 12 + int.from_bytes(log.read_bytes()[8:12]) + at, field)
    told = examined([logs])
    for number, (name, _, _, later) in enumerate(SECOND_BATCHES):
        own = [finding for finding in told["findings"] if (finding["partition"], finding["name"]) == (number, name)]
        assert own
        assert all(finding["broker"].endswith(later) for finding in own), (name, own)
    if origin is RECORDED:
        return
    with Patient(tmp_path / "broker", [logs]) as broker:
        client = Client(broker.start().address)
        for number, (name, _, _, later) in enumerate(SECOND_BATCHES):
            assert client.offsets("p", number)[1] == 60  # it leads the partition
            done = subprocess.run(
                ["kcat", "-b", broker.address, "-C", "-t", "p", "-p", str(number), "-o", "beginning", "-e", "-q", "-u",
                 "-f", "%o\n", "-X", "check.crcs=true"],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            offsets = [int(offset) for offset in done.stdout.split()]
            has_failed = "ERROR" in done.stderr or done.returncode == -signal.SIGABRT  # an assertion of librdkafka 2.0
            assert has_failed == (later != NO_ERROR), (name, done.stderr)
            if later == NO_ERROR:
                assert (offsets[:5], offsets[-1]) == (list(range(5)), 59), name
                assert offsets != list(range(60)), name
            elif done.returncode == -signal.SIGABRT:  # perhaps before all of them were printed
                assert offsets == list(range(5))[: len(offsets)], name
            else:
                assert offsets == list(range(5)), name
