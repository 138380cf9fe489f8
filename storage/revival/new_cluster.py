"""The files that turn a directory of logs into the directory of a cluster of one node, from which a broker can start.

A broker and controller in one (combined mode), with a quorum of itself: `meta.properties`; `bootstrap.checkpoint` with
the topics; the checkpoint of `__cluster_metadata-0` that names the voter; the four offset checkpoints; a
`server.properties`. The purpose of each: storage/DESIGN.md, "Reviving".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storage.directory import clean_shutdown
from storage.files import checkpoints, metadata_checkpoint, names
from storage.files.disk import opened, replace_file
from storage.files.disk_protocol import Disk
from storage.files.metadata_checkpoint import NewPartition, NewRecord, Voter, cluster_records
from storage.files.metadata_records import ConfigRecord, ResourceType, TopicRecord
from storage.files.metadata_replay import ClusterMetadata
from storage.format import properties
from storage.revival.building import Built
from storage.revival.features import ELIGIBLE_LEADER_REPLICAS
from storage.revival.topics import TopicPlan
from storage.types import TopicPartition

SERVER_PROPERTIES = "server.properties"
CONTROLLER_LISTENER = "CONTROLLER"
_PRODUCER_ID_BLOCK = 1000  # ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE
_GREATEST_ID = 2**63 - 1
_NO_LEADER = -1
_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Node:
    """The cluster's one node: its identity, and where it listens (the controller on the port after the broker's)."""

    cluster_id: str
    node_id: int
    directory_id: str
    host: str = "localhost"
    port: int = 9092


@dataclass(frozen=True, slots=True)
class NewCluster:
    """The input for the files. `cluster`: features and everything else but topics. `leader_epochs`: the highest known
    epoch of each partition, missing partitions included; `producer_id`: the highest known."""

    node: Node
    cluster: ClusterMetadata
    topics: Sequence[TopicPlan]
    built: Mapping[TopicPartition, Built]
    leader_epochs: Mapping[TopicPartition, int]
    producer_id: int

    def records(self) -> list[NewRecord]:
        """The records of bootstrap.checkpoint."""
        # With eligible leader replicas, a partition without a leader would stay offline.
        leader = self.node.node_id if self.cluster.features.get(ELIGIBLE_LEADER_REPLICAS) else _NO_LEADER
        next_producer_id = 0
        if self.producer_id >= 0:
            # Otherwise a new producer could get an id that a log knows, and its first batch would count as a duplicate.
            # Beyond the greatest possible id a broker gives out none (ProducerIdControlManager): "Exhausted".
            following = (self.producer_id // _PRODUCER_ID_BLOCK + 1) * _PRODUCER_ID_BLOCK
            next_producer_id = min(following, _GREATEST_ID)
        records = cluster_records(replace(self.cluster, next_producer_id=next_producer_id))
        for topic in self.topics:
            records.append(TopicRecord(topic.name, topic.topic_id))
            records += [
                ConfigRecord(ResourceType.TOPIC, topic.name, key, value) for key, value in topic.configs.items()
            ]
            for number in range(topic.partition_count):
                # Above all known epochs: a consumer ignores a leader whose epoch is below that of an offset it has
                # committed.
                epoch = self.leader_epochs.get(TopicPartition(topic.name, number), -1) + 1
                records.append(
                    NewPartition(topic.topic_id, number, self.node.node_id, self.node.directory_id, leader, epoch)
                )
        return records


def write(disk: Disk, directory: Path, cluster: NewCluster, log_dir: Path, now_ms: int) -> None:
    """Write the files into `directory`, which will become `log_dir`; meta.properties, without which no broker starts,
    last."""
    node, built = cluster.node, cluster.built
    ends = {tp: partition.log_end_offset for tp, partition in built.items()}
    starts = {tp: partition.log_start_offset for tp, partition in built.items() if partition.log_start_offset > 0}
    contents = {
        names.RECOVERY_POINT_CHECKPOINT: checkpoints.encode(ends),
        names.REPLICATION_CHECKPOINT: checkpoints.encode(ends),
        names.LOG_START_CHECKPOINT: checkpoints.encode(starts),
        SERVER_PROPERTIES: server_properties(node, log_dir),
    }
    for name, content in contents.items():
        with opened(disk, directory / name, create=True) as file:
            file.write_at(0, content)
            file.sync()
    # Readable only for the user, because it may hold credentials, like a broker's own snapshots.
    bootstrap = metadata_checkpoint.bootstrap(cluster.records(), now_ms)
    replace_file(disk, directory / names.BOOTSTRAP_CHECKPOINT, bootstrap, mode=0o600)
    quorum = directory / f"{names.CLUSTER_METADATA_TOPIC}-0"
    disk.mkdir(quorum)
    voter = Voter(node.node_id, node.directory_id, CONTROLLER_LISTENER, node.host, node.port + 1)
    with opened(disk, quorum / names.metadata_snapshot_file(0, 0), create=True) as file:
        file.write_at(0, metadata_checkpoint.voters(voter, now_ms))
        file.sync()
    disk.sync_dir(quorum)
    clean_shutdown.write(disk, directory, clean_shutdown.UNKNOWN_BROKER_EPOCH)
    identity = {
        "version": "1",
        "cluster.id": node.cluster_id,
        "node.id": str(node.node_id),
        "directory.id": node.directory_id,
    }
    replace_file(disk, directory / names.META_PROPERTIES, properties.encode(identity))


def server_properties(node: Node, log_dir: Path) -> bytes:
    """A configuration with which the broker starts: plain text, on one host, keeping all messages."""
    controller = f"{node.host}:{node.port + 1}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "listeners": f"PLAINTEXT://{node.host}:{node.port},{CONTROLLER_LISTENER}://{controller}",
        "controller.listener.names": CONTROLLER_LISTENER,
        "controller.quorum.bootstrap.servers": controller,
        "log.dirs": str(log_dir),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "log.retention.ms": "-1",
        "offsets.retention.minutes": str(_MAX_INT32),
    }
    comments = (
        "Written by kafkafs revive: one node, broker and controller, which listens on this host alone.",
        "log.retention.ms and offsets.retention.minutes keep old messages and old groups: set your own values later.",
    )
    return properties.encode(settings, comments)
