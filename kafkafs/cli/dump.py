"""`kafkafs dump`: the content of Kafka's files as JSON lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafs.cli import say
from kafkafs.cli.dump_lines import Facts, damage_facts, put, put_damage
from kafkafs.cli.dumped_log import log_lines
from kafkafs.cli.process import DATA_ERROR, use_default_signals
from storage.errors import CorruptCheckpoint, StorageError
from storage.files import names
from storage.files.listing import paths_in
from storage.files.names import FileKind, FileState
from storage.files.opening import is_directory, open_file, real_place
from storage.files.small_files import MOST_ENTRIES_BYTES, read_existing

if TYPE_CHECKING:
    from kafkafs.cli.output import Output

_CHECKPOINTS = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
    names.CLEANER_CHECKPOINT,
)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--no-records", is_flag=True, help="Print only the batches of a .log.")
@click.option("--raw", is_flag=True, help="Do not decode the records of Kafka's own topics.")
@click.pass_context
def dump(ctx: click.Context, files: tuple[Path, ...], no_records: bool, raw: bool) -> None:
    """Print the content of Kafka's files, damaged parts too.

    Use it to see what is really in a file. Each line is a JSON object. Files: .log, .index, .timeindex, .txnindex,
    .snapshot (also .cleaned, .swap, .deleted), .checkpoint of the metadata log, the checkpoint files,
    partition.metadata, meta.properties, topic.properties; for a directory, all its files. Records of Kafka's own
    topics, and of MirrorMaker's checkpoints and heartbeats, are decoded. If a .log is in no partition's directory, its
    first records decide whether it belongs to these topics.

    \b
    kafkafs dump /var/kafka/orders-0/*.log | jq 'select(.kind == "batch") | .codec'
    kafkafs dump /var/kafka/orders-0.5f3a…-stray

    Exit code 4 if anything is damaged.
    """
    from kafkafs.cli.output import Output, stdout_sink

    use_default_signals(ctx)
    chosen = [file for path in files for file in _files_of(path)]
    output = Output(most_line_bytes=None)
    failed = False

    def make(_: Output) -> None:
        nonlocal failed
        for path, read in chosen:
            try:
                sound = read(output, path, None if no_records else raw)
            except (StorageError, OSError) as error:
                put(output, path, "damage", damage_facts(error))
                sound = False
            failed = failed or not sound

    output.run(make, stdout_sink(), say)
    if failed:
        ctx.exit(DATA_ERROR)


_Reader = Callable[["Output", Path, "bool | None"], bool]
"""Prints a file; False if something in it is damaged. The last argument: whether records stay raw; None: no records."""


def _files_of(path: Path) -> list[tuple[Path, _Reader]]:
    if path.is_dir():
        known = [(file, _reader_of(file.name)) for file in paths_in(path) if not is_directory(file)]
        return [(file, reader) for file, reader in known if reader is not None]
    path = real_place(path)
    reader = _reader_of(path.name)
    if reader is None:
        raise click.BadParameter(f"{path} does not have the name of one of Kafka's files", param_hint="FILE...")
    return [(path, reader)]


def _reader_of(name: str) -> _Reader | None:
    if name in _CHECKPOINTS:
        return _checkpoint
    if name in _SMALL_FILES:
        return _SMALL_FILES[name]
    for state in FileState:
        bare = name.removesuffix(state.value) if state.value else name
        for suffix, reader in _BY_SUFFIX.items():
            if bare.endswith(suffix):
                return reader
    return None


def _lines(output: Output, path: Path, kind: str, lines: Iterator[Facts]) -> bool:
    for facts in lines:
        put(output, path, kind, facts)
    return True


def _base_offset(path: Path) -> int:
    """The base offset in the file's name; 0 if it has none."""
    digits = path.name.partition(".")[0]
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) <= 20 else 0


def _offset_index(output: Output, path: Path, _: bool | None) -> bool:
    from storage.files import offset_index

    index = offset_index.load(_existing(path), _base_offset(path))
    entries = zip(index.offsets.tolist(), index.positions.tolist(), strict=True)
    _lines(output, path, "offsetIndexEntry", ({"offset": o, "position": p} for o, p in entries))
    return _end_of_index(output, path, len(index) * offset_index.ENTRY_SIZE, index.problem)


def _time_index(output: Output, path: Path, _: bool | None) -> bool:
    from storage.files import time_index

    index = time_index.load(_existing(path), _base_offset(path))
    entries = zip(index.timestamps.tolist(), index.offsets.tolist(), strict=True)
    _lines(output, path, "timeIndexEntry", ({"timestamp": t, "offset": o} for t, o in entries))
    return _end_of_index(output, path, len(index) * time_index.ENTRY_SIZE, index.problem)


def _transaction_index(output: Output, path: Path, _: bool | None) -> bool:
    from storage.files import transaction_index

    index = transaction_index.load(_existing(path), _base_offset(path))
    for entry in index.entries():
        facts = {
            "producerId": entry.producer_id,
            "firstOffset": entry.first_offset,
            "lastOffset": entry.last_offset,
            "lastStableOffset": entry.last_stable_offset,
        }
        put(output, path, "abortedTransaction", facts)
    return _end_of_index(output, path, path.lstat().st_size, index.problem)


def _end_of_index(output: Output, path: Path, used: int, problem: StorageError | None) -> bool:
    if problem is not None:
        put_damage(output, path, problem)
        return False
    size = path.lstat().st_size
    if size > used:
        put(output, path, "preallocated", {"position": used, "bytes": size - used})
    return True


def _producer_snapshot(output: Output, path: Path, _: bool | None) -> bool:
    from storage.files import producer_state

    for entry in producer_state.parse(read_existing(path, MOST_ENTRIES_BYTES), path).entries():
        facts = {
            "producerId": entry.producer_id,
            "producerEpoch": entry.epoch,
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_offset,
            "offsetDelta": entry.offset_delta,
            "timestamp": entry.timestamp,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTransactionFirstOffset": entry.current_txn_first_offset,
        }
        put(output, path, "producer", facts)
    return True


def _checkpoint(output: Output, path: Path, _: bool | None) -> bool:
    from storage.files import checkpoints

    offsets = checkpoints.parse(read_existing(path), path)
    lines = ({"topic": tp.topic, "partition": tp.partition, "offset": offset} for tp, offset in offsets.items())
    return _lines(output, path, "checkpoint", lines)


def _leader_epochs(output: Output, path: Path, _: bool | None) -> bool:
    from storage.files import leader_epochs

    entries = leader_epochs.parse(read_existing(path), path).entries
    return _lines(output, path, "leaderEpoch", ({"epoch": e.epoch, "startOffset": e.start_offset} for e in entries))


def _partition_metadata(output: Output, path: Path, _: bool | None) -> bool:
    from storage.files import partition_metadata

    put(output, path, "partitionMetadata", {"topicId": partition_metadata.parse(read_existing(path), path)})
    return True


def _properties(output: Output, path: Path, _: bool | None) -> bool:
    from storage.format import properties

    try:
        values = properties.parse(read_existing(path))
    except CorruptCheckpoint as error:
        error.path = path
        raise
    return _lines(output, path, "property", ({"key": key, "value": value} for key, value in values.items()))


def _existing(path: Path) -> Path:
    """The path of a file that can be read. Otherwise raises an OSError, which the loader of an index would ignore."""
    os.close(open_file(path, os.O_RDONLY))
    return path


_SMALL_FILES: dict[str, _Reader] = {
    names.LEADER_EPOCH_CHECKPOINT: _leader_epochs,
    names.PARTITION_METADATA: _partition_metadata,
    names.META_PROPERTIES: _properties,
    names.TOPIC_PROPERTIES: _properties,
}
_BY_SUFFIX: dict[str, _Reader] = {
    FileKind.LOG.value: log_lines,
    FileKind.OFFSET_INDEX.value: _offset_index,
    FileKind.TIME_INDEX.value: _time_index,
    FileKind.TRANSACTION_INDEX.value: _transaction_index,
    FileKind.PRODUCER_SNAPSHOT.value: _producer_snapshot,
    ".checkpoint": log_lines,  # a snapshot of the metadata log, and bootstrap.checkpoint: batches too
}
