"""Predictions about the quorum's files: the metadata log, its snapshots, quorum-state and bootstrap.checkpoint.

Sources: Kafka's KafkaRaftServer, FileQuorumStateStore, Snapshots, MetadataLoader, BootstrapDirectory.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from storage.diagnosis.damage import of_denied
from storage.diagnosis.directory_checks import REVIVE, LogDirState, not_a_file
from storage.diagnosis.log_loading import LEAST_LENGTH, blocked_snapshots, check_files
from storage.diagnosis.predictions import Prediction, Reaction
from storage.errors import CorruptCheckpoint
from storage.files import cluster_metadata, names, partition_metadata
from storage.files.cluster_metadata import ClusterMetadataReader
from storage.files.listing import paths_in
from storage.files.metadata_replay import ClusterMetadata
from storage.files.names import FileKind
from storage.files.small_files import MOST_ENTRIES_BYTES, read_whole
from storage.format.batches import LENGTH, LOG_OVERHEAD, BatchTable, scan
from storage.log.segments import live_offsets
from storage.types import TopicPartition

_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"  # Topic.METADATA_TOPIC_ID
_LEAST_METADATA_VERSION = 7  # 3.3-IV3: brokers from 4.0 on refuse older ones
# The least metadata.version that a release introduced, and the release (MetadataVersion). 4.3 knows the name of
# 31, and does not start with it.
_RELEASES = ((31, "4.4"), (30, "4.3"), (28, "4.2"), (26, "4.1"), (22, "4.0"))
_LATEST_METADATA_VERSION = 33  # 4.4-IV2
# The numbers that a quorum-state must have, by its version (QuorumStateData).
_QUORUM_STATE_NUMBERS = {
    0: ("leaderId", "leaderEpoch", "votedId", "appliedOffset"),
    1: ("leaderId", "leaderEpoch", "votedId"),
}
_HEAD_BYTES = 17  # Records.HEADER_SIZE_UP_TO_MAGIC
_BOOTSTRAP_BATCHES = 4096  # of a bootstrap.checkpoint, which has three, that are looked into
_LINE_END = re.compile("[\r\n]")
# Names of snapshots in any state, from which a broker parses offset and epoch (Snapshots.parse).
_SNAPSHOT_END = re.compile(r".*\.checkpoint(\.part|\.deleted)?")
_SNAPSHOT_BEGIN = re.compile(r"[0-9]{20}.[0-9]{10}.*")


def check_quorum(
    dirs: Sequence[LogDirState], metadata_dir: LogDirState, metadata: ClusterMetadata | None
) -> Iterator[Prediction]:
    """Check that the metadata log is in its place, and can be read."""
    for state in dirs:
        if state is not metadata_dir and state.metadata_log.is_dir():
            yield Prediction(
                "metadata-log-elsewhere",
                Reaction.REFUSES,
                state.metadata_log,
                "a metadata log outside of the metadata directory",
                f"does not start: it expects the metadata log in {metadata_dir.path} alone",
                "Correct metadata.log.dir, or the order of log.dirs: the first one has the metadata log",
            )
    yield from _check_log(metadata_dir.metadata_log)
    if metadata is not None and metadata.problem is None:
        yield from _check_producer_snapshots(metadata_dir.metadata_log, metadata.end_offset)
    yield from _check_quorum_state(metadata_dir.metadata_log / names.QUORUM_STATE)
    bootstrap = metadata_dir.path / names.BOOTSTRAP_CHECKPOINT
    what = None
    try:
        began = cluster_metadata.read_bootstrap(metadata_dir.path, verify_crc=False)
    except OSError as error:
        began, what = ClusterMetadata(), not_a_file(bootstrap, error).what
    if began is not None and began.problem is not None and isinstance(began.problem.found, PermissionError):
        yield of_denied(began.problem.found, bootstrap)
    elif began is not None and (what := what or _bootstrap_fault(began, bootstrap)) is not None:
        yield Prediction(
            "bootstrap-corrupt",
            Reaction.REFUSES,
            bootstrap,
            what,
            "does not start: it cannot read it, or: No FeatureLevelRecord for metadata.version was found",
            "Move the file elsewhere, if there is a metadata log: what it said is in it",
        )
    yield from _check_snapshots(metadata_dir)
    if metadata is not None and metadata.problem is not None and not _is_snapshot(metadata.problem.path):
        yield Prediction(
            "metadata-log-damaged",
            Reaction.CUTS,
            metadata.problem.path or metadata_dir.metadata_log,
            f"the metadata can be read up to offset {metadata.end_offset}: {metadata.problem.what}",
            "cuts the metadata log there, or does not start; topics that it forgets become strays",
            f"Take the metadata log of another controller, or: {REVIVE}",
        )
    known = metadata or began
    told_by = bootstrap if metadata is None or not metadata_dir.metadata_log.is_dir() else metadata_dir.metadata_log
    version = 0 if known is None else known.features.get("metadata.version", 0)
    if 0 < version < _LEAST_METADATA_VERSION:
        yield Prediction(
            "metadata-version-old",
            Reaction.REFUSES,
            told_by,
            f"metadata.version is {version}, before 3.3-IV3",
            "does not start, if it is Kafka 4.0 or later",
            "Start Kafka 3.9 and raise it: kafka-features.sh upgrade",
        )

    release = next((name for least, name in _RELEASES if version >= least), None)
    if version > _LATEST_METADATA_VERSION:
        yield Prediction(
            "metadata-version-new",
            Reaction.IGNORES,
            told_by,
            f"metadata.version is {version}, not known to this version of kafkafs",
            "starts if it is a later Kafka than 4.4 and knows that version; Kafka 4.4 does not start",
        )
    elif release is not None:
        yield Prediction(
            "metadata-version-new",
            Reaction.IGNORES,
            told_by,
            f"metadata.version is {version}",
            f"starts if it is Kafka {release} or later; an earlier one does not",
        )


def _check_log(directory: Path) -> Iterator[Prediction]:
    """Check the metadata log for files on which loading it fails. OSError."""
    if not directory.is_dir():
        if os.path.lexists(directory):
            what, broker = "is no directory", "does not start: it cannot make the metadata log"
            yield Prediction("metadata-log-damaged", Reaction.REFUSES, directory, what, broker, "Move it elsewhere")
        return
    for prediction in check_files(directory, TopicPartition(names.CLUSTER_METADATA_TOPIC, 0), is_rehearsed=True):
        refuses = prediction.reaction is Reaction.OFFLINE
        yield replace(
            prediction, reaction=Reaction.REFUSES, broker="does not start: it cannot load the metadata log",
            advice="Move the file elsewhere: the broker makes it again", tp=None,
        ) if refuses else replace(prediction, tp=None)  # fmt: skip
    bases = live_offsets(directory, FileKind.LOG)
    for path in paths_in(directory):
        if not path.name.endswith(FileKind.LOG.value) or names.parse_segment_file(path.name) is None:
            continue
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            what, broker = "is a symbolic link, which kafkafs does not follow", "follows it: nobody knows what it finds"
            yield Prediction("no-regular-file", Reaction.UNNOTICED, path, what, broker, "Put the file in its place")
        elif not stat.S_ISREG(mode):
            broker = "does not take it for a segment, and does not start where it has to make one of that name"
            yield Prediction(
                "no-regular-file",
                Reaction.REFUSES,
                path,
                "is no regular file",
                broker,
                f"Move it elsewhere, or: {REVIVE}",
            )
    path = directory / names.PARTITION_METADATA
    try:
        topic_id = partition_metadata.read(path)
        what = "" if topic_id in (None, _TOPIC_ID) else f"topic id {topic_id}, expected {_TOPIC_ID}"
    except CorruptCheckpoint as error:
        what = error.what
    except OSError as error:
        not_a_file(path, error)  # see above
        what = ""
    if what:
        broker, advice = "does not start: it cannot load the metadata log", "Remove the file: the broker makes it again"
        yield Prediction("topic-id-corrupt", Reaction.REFUSES, path, what, broker, advice)
    snapshots = [name for path in paths_in(directory) if (name := names.parse_metadata_snapshot(path.name))]
    if bases and bases[0] > max((name.end_offset for name in snapshots), default=0):
        yield Prediction(
            "metadata-log-damaged", Reaction.REFUSES, directory,
            f"the log begins at {bases[0]}, and no snapshot reaches that offset",
            "does not start: Inconsistent snapshot state", f"Put the files that are missing back, or: {REVIVE}",
        )  # fmt: skip


def _check_producer_snapshots(directory: Path, end: int) -> Iterator[Prediction]:
    """Check for a directory with the name of a producer snapshot that a broker writes: it recovers the metadata log at
    each start. `end`: where the log ends."""
    bases = live_offsets(directory, FileKind.LOG)
    for offset, path in blocked_snapshots(directory).items():
        reaction, broker = Reaction.REFUSES, "does not start: it cannot write the snapshot"
        if offset == end and bases and bases[-1] < end:
            reaction = Reaction.STRAY
            broker = (
                f"removes the metadata log from offset {bases[-1]} on, as it cannot write the snapshot, and starts;"
                " topics that it forgets become strays"
            )
        elif offset not in bases[1:]:
            continue  # it writes no snapshot there
        yield Prediction("no-regular-file", reaction, path, "is a directory", broker, "Move it elsewhere")


def _check_quorum_state(path: Path) -> Iterator[Prediction]:
    what = "the file does not parse, or is of a version that is not known, or lacks what that version must have"
    try:
        data = read_whole(path)
    except OSError as error:
        data, what = b"", not_a_file(path, error).what
    if data is not None and not _is_quorum_state(data):
        yield Prediction(
            "quorum-state-corrupt",
            Reaction.REFUSES,
            path,
            what,
            "does not start: Error while reading the Quorum status, or: data_version is not within the supported ones,"
            " or: unable to locate a field",
            "Remove the file, if this is the only controller",
        )


def _is_quorum_state(data: bytes) -> bool:
    """Whether FileQuorumStateStore reads it: the first value in the first line. A version that is not a number counts
    as 0."""
    try:
        state, _ = json.JSONDecoder().raw_decode(_LINE_END.split(data.decode(), 1)[0].lstrip())
        if not isinstance(state, dict) or "data_version" not in state:
            return False
        number = state["data_version"]
        version = int(number) if isinstance(number, int | float) else 0
        numbers = _QUORUM_STATE_NUMBERS.get(version)
        has_voters = isinstance(state.get("currentVoters", ""), list | None)
        named = has_voters and isinstance(state.get("clusterId"), str) if version == 0 else "votedDirectoryId" in state
        return numbers is not None and named and all(isinstance(state.get(name), int) for name in numbers)
    except (ValueError, OverflowError, RecursionError):
        return False


def _bootstrap_fault(began: ClusterMetadata, path: Path) -> str | None:
    """Why a broker fails to read its `bootstrap.checkpoint`; None if it reads it: it passes over a batch that is cut
    off at the end, and checks no CRC (BootstrapDirectory, FileLogInputStream)."""
    problem = began.problem
    if problem is not None and problem.position is None:
        return problem.what
    data, batches = read_whole(path, MOST_ENTRIES_BYTES) or b"", BatchTable.empty(_BOOTSTRAP_BATCHES)
    scan(data, 0, batches)
    end = int(batches.end[batches.rows - 1]) if batches.rows else 0
    if problem is not None and problem.position is not None and problem.position < end:
        return problem.what
    empty = batches.position[: batches.rows][batches.count[: batches.rows] == 0]
    if len(empty):
        return f"the batch at position {empty[0]} has no records"
    rest = data[end:]
    if problem is not None and len(rest) > _HEAD_BYTES:
        length = int.from_bytes(rest[LENGTH], "big", signed=True)
        if length < LEAST_LENGTH or LOG_OVERHEAD + length <= len(rest):
            return f"no batch begins at position {end}"
    return None if "metadata.version" in began.features else "the file holds no metadata.version"


def _check_snapshots(metadata_dir: LogDirState) -> Iterator[Prediction]:
    """Check the snapshots: a broker parses the names of all and loads the newest, whatever an older one and the log
    say."""
    directory = metadata_dir.metadata_log
    if not directory.is_dir():
        return
    for path in paths_in(directory):
        if _SNAPSHOT_END.fullmatch(path.name) and not _SNAPSHOT_BEGIN.fullmatch(path.name):
            yield Prediction(
                "file-misnamed", Reaction.REFUSES, path, "a snapshot's name without an offset and an epoch",
                "does not start: it cannot parse the name", "Move the file elsewhere",
            )  # fmt: skip
    problem = ClusterMetadataReader(metadata_dir.path).problem_of_newest_snapshot()
    if problem is None:
        return
    if isinstance(problem.found, PermissionError):
        raise problem.found
    older = "Move the file elsewhere, if an older snapshot or the log from its beginning is there"
    is_cut = isinstance(problem, CorruptCheckpoint) and bool(problem.position)
    yield Prediction(
        "metadata-snapshot-damaged",
        Reaction.CUTS if is_cut else Reaction.REFUSES,
        problem.path or directory,
        problem.what,
        "takes what is before the cut for all of it; topics that are missing there become strays"
        if is_cut
        else "does not start: it cannot load the snapshot",
        f"{older}; or: {REVIVE}",
    )


def _is_snapshot(path: Path | None) -> bool:
    return path is not None and names.parse_metadata_snapshot(path.name) is not None
