"""`kafkafs doctor` predicts what a real broker then does on broken directories: its log and the directory are the judge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka
from tests.support.commands import run

pytestmark = requires_kafka

OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
PARTITIONS = 14


class Patient(Broker):
    """A broker on one or two existing directories, which are not formatted."""

    def __init__(self, directory: Path, dirs: list[Path]) -> None:
        super().__init__(directory, {"log.dirs": ",".join(map(str, dirs))})
        self.dirs = dirs

    def _format(self) -> None:
        pass

    @property
    def properties(self) -> Path:
        return self._properties

    def begins(self) -> bool:
        """Whether it starts."""
        try:
            self.start()
        except AssertionError:
            return False
        return True


@dataclass(frozen=True)
class Origin:
    """A directory after a clean stop, and one after kill -9."""

    clean: Path
    killed: Path


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origin]:
    root = tmp_path_factory.mktemp("origin")
    broker = Broker(root / "broker", {"log.flush.offset.checkpoint.interval.ms": "3600000"})
    try:
        client = Client(broker.start().address)
        client.create_topic("p", PARTITIONS, {"retention.ms": -1, "internal.segment.bytes": 4000})
        for partition in range(PARTITIONS):
            messages = [Message(bytes(100), b"%d" % number) for number in range(60)]
            client.produce("p", messages, partition, batch=5)
        client.transactions("p", [(False, [Message(b"aborted")])], PARTITIONS - 1)
        broker.kill()
        killed = root / "killed"
        shutil.copytree(broker.log_dir, killed)
        broker.start()
        broker.stop()
        assert not broker.complaints()
        yield Origin(broker.log_dir, killed)
    finally:
        broker.kill()


def examined(dirs: list[Path], *options: object) -> dict[str, Any]:
    result = run("doctor", *dirs, "--json", *options)
    told: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if told["loses_nothing"] else 1)
    return told


def logs_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    path.write_bytes(data)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# The whole directory: each case is a start.


def second_dir(first: Path, *, like_first: bool = True) -> Path:
    """A second log directory, formatted as the first one."""
    second = first.with_name("second")
    second.mkdir()
    if like_first:
        text = (first / "meta.properties").read_text()
        lines = [line for line in text.splitlines() if not line.startswith("directory.id")]
        (second / "meta.properties").write_text("\n".join([*lines, f"directory.id={OTHER_ID}", ""]))
    return second


def meta_missing(logs: Path) -> list[Path]:
    (logs / "meta.properties").unlink()
    return [logs]


def meta_of_another_version(logs: Path) -> list[Path]:
    edit(logs / "meta.properties", "version=1", "version=7")
    return [logs]


def meta_of_zookeeper(logs: Path) -> list[Path]:
    edit(logs / "meta.properties", "version=1", "version=0")
    edit(logs / "meta.properties", "node.id", "broker.id")
    shutil.rmtree(logs / "__cluster_metadata-0")
    return [logs]


def meta_without_cluster_id(logs: Path) -> list[Path]:
    edit(logs / "meta.properties", "cluster.id=", "cluster.was=")
    return [logs]


def another_node(logs: Path) -> list[Path]:
    edit(logs / "meta.properties", "node.id=1", "node.id=5")
    return [logs]


def another_cluster(logs: Path) -> list[Path]:
    second = second_dir(logs)
    edit(second / "meta.properties", "cluster.id=", "cluster.id=X")
    return [logs, second]


def shared_directory_id(logs: Path) -> list[Path]:
    second = second_dir(logs, like_first=False)
    shutil.copy(logs / "meta.properties", second)
    return [logs, second]


def lost_and_found(logs: Path) -> list[Path]:
    (logs / "lost+found").mkdir()
    return [logs]


def dot_snapshot(logs: Path) -> list[Path]:
    (logs / ".snapshot").mkdir()
    return [logs]


def partition_twice(logs: Path) -> list[Path]:
    second = second_dir(logs)
    shutil.copytree(logs / "p-0", second / "p-0")
    return [logs, second]


def metadata_elsewhere(logs: Path) -> list[Path]:
    second = second_dir(logs)
    shutil.copytree(logs / "__cluster_metadata-0", second / "__cluster_metadata-0")
    return [logs, second]


def bad_quorum_state(logs: Path) -> list[Path]:
    (logs / "__cluster_metadata-0" / "quorum-state").write_text("{")
    return [logs]


def bad(name: str) -> Callable[[Path], list[Path]]:
    def damage(logs: Path) -> list[Path]:
        (logs / name).write_text("garbage\n")
        return [logs]

    return damage


def bad_topic_id(logs: Path) -> list[Path]:
    (logs / "p-3" / "partition.metadata").write_text("version: 0\ntopic_id: nonsense")
    return [logs]


def misnamed_segment(logs: Path) -> list[Path]:
    (logs / "p-3" / "backup.log").write_bytes(b"")
    return [logs]


def bad_epochs(logs: Path) -> list[Path]:
    (logs / "p-3" / "leader-epoch-checkpoint").write_text("garbage\n")
    return [logs]


def later_txn_index(logs: Path) -> list[Path]:
    (index,) = (logs / f"p-{PARTITIONS - 1}").glob("*.txnindex")
    index.write_bytes(b"\0\1" + index.read_bytes()[2:])
    return [logs]


def metadata_lost(logs: Path) -> list[Path]:
    shutil.rmtree(logs / "__cluster_metadata-0")
    return [logs]


def metadata_and_bootstrap_lost(logs: Path) -> list[Path]:
    (logs / "bootstrap.checkpoint").unlink()
    return metadata_lost(logs)


def unformatted_second(logs: Path) -> list[Path]:
    return [logs, second_dir(logs, like_first=False)]


WHOLE = {
    # name: (damage, the finding, its reaction, whether the broker starts, what its log says)
    "meta.properties missing": (meta_missing, "meta-properties-missing", "refuses", False, ""),
    "meta.properties of version 7": (meta_of_another_version, "meta-properties-corrupt", "refuses", False, ""),
    "meta.properties of ZooKeeper": (meta_of_zookeeper, "metadata-lost", "sets-aside", True, ""),
    "meta.properties without a cluster id": (meta_without_cluster_id, "meta-properties-corrupt", "refuses", False, ""),
    "another node's": (another_node, "node-id-differs", "refuses", False, ""),
    "another cluster's": (another_cluster, "cluster-id-differs", "refuses", False, ""),
    "one directory id twice": (shared_directory_id, "directory-id-shared", "refuses", False, ""),
    "lost+found": (lost_and_found, "name-unparsable", "refuses", False, "lost+found"),
    ".snapshot": (dot_snapshot, "name-unparsable", "refuses", False, ".snapshot"),
    "one partition twice": (partition_twice, "partition-twice", "refuses", False, ""),
    "a metadata log elsewhere": (metadata_elsewhere, "metadata-log-elsewhere", "refuses", False, ""),
    "quorum-state": (bad_quorum_state, "quorum-state-corrupt", "refuses", False, ""),
    "recovery points": (bad("recovery-point-offset-checkpoint"), "checkpoint-corrupt", "takes-offline", False, ""),
    "log starts": (bad("log-start-offset-checkpoint"), "checkpoint-corrupt", "takes-offline", False, ""),
    "high watermarks": (bad("replication-offset-checkpoint"), "checkpoint-corrupt", "takes-offline", False, ""),
    "cleaner offsets": (bad("cleaner-offset-checkpoint"), "checkpoint-corrupt", "takes-offline", False, ""),
    "a topic id": (bad_topic_id, "topic-id-corrupt", "refuses", False, ""),
    "a segment's name": (misnamed_segment, "file-misnamed", "refuses", False, ""),
    "leader epochs": (bad_epochs, "epochs-corrupt", "refuses", False, ""),
    "a later transaction index": (later_txn_index, "txn-index-version", "refuses", False, ""),
    "the metadata log lost": (metadata_lost, "metadata-lost", "sets-aside", True, ""),
    "the metadata log and bootstrap lost": (metadata_and_bootstrap_lost, "metadata-lost", "sets-aside", True, ""),
    "a second, unformatted directory": (unformatted_second, "meta-properties-missing", "formats", True, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", WHOLE)
def test_what_happens_to_the_directory(origin: Origin, tmp_path: Path, case: str) -> None:
    damage, name, reaction, starts, said = WHOLE[case]
    logs = tmp_path / "logs"
    shutil.copytree(origin.clean, logs)
    broker = Patient(tmp_path / "broker", damage(logs))
    told = examined(broker.dirs, "--server-properties", broker.properties)
    try:
        began = broker.begins()
    finally:
        broker.kill()
    lines = [line for line in broker.log_text().splitlines() if " ERROR " in line or " FATAL " in line]
    print(
        "CASE",
        case,
        "|",
        "starts" if began else "stops",
        "|",
        [(one["name"], one["reaction"]) for one in told["findings"]],
        "|",
        lines[:2],
        broker.log_text()[-300:] if not lines else "",
    )
    assert began == starts
    assert told["starts"] == starts
    assert (name, reaction) in [(one["name"], one["reaction"]) for one in (*told["findings"], *told["notes"])]
    assert said in broker.log_text()
    if name == "metadata-lost":
        assert len(list(logs.glob("p-*-stray"))) == PARTITIONS


def test_a_held_directory(origin: Origin, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(origin.clean, logs)
    broker = Patient(tmp_path / "broker", [logs])
    lock = DirLock(RealDisk(), logs)
    try:
        told = examined([logs])
        assert [one["name"] for one in told["findings"]] == ["locked"]
        assert not told["starts"]
        assert not broker.begins()
        assert "Failed to acquire lock" in broker.log_text()
    finally:
        broker.kill()
        lock.release()
