"""`kafkafs transactions`: producers, open transactions, and which of them holds the last stable offset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kafkafs.cli import echo, fail_with, text_of
from kafkafs.cli.passes import each
from kafkafs.cli.process import use_default_signals
from kafkafs.cli.shared_options import AS_JSON, TIER
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir
from kafkafs.cli.terminal import moment, print_json, print_table

if TYPE_CHECKING:
    from storage.coordinators.transaction_records import TransactionMetadata
    from storage.coordinators.transactions import PartitionProducers, TransactionalIds
    from storage.files.producer_state import ProducerEntry

_MINUTE_MS: Final = 60_000


@click.command()
@LOGDIR
@click.argument("tp", required=False, type=TopicPartitionPattern())
@click.option("--open", "only_open", is_flag=True, help="Only producers with an open transaction.")
@click.option(
    "--timeout",
    "timeout_minutes",
    type=click.IntRange(min=0),
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="The cluster's transaction.max.timeout.ms: a transaction without messages for longer may be hanging.",
)
@AS_JSON
@TIER
@click.pass_context
def transactions(
    ctx: click.Context, logdir: Path, tp: str | None, only_open: bool, timeout_minutes: int, as_json: bool
) -> None:
    """Show the producers of LOGDIR, or of TP, and their open transactions.

    Use it when consumers of committed messages hang: they stop at the first message of the oldest open transaction, the
    last stable offset. Its producer is marked with 'holds LSO'. TP is a topic, topic/partition or a glob. A transaction
    is 'hanging' if it has been silent for longer than --timeout and no transactional id in __transaction_state will end
    it in that partition, as kafka-transactions.sh find-hanging decides it; 'hanging?' if partitions of
    __transaction_state are missing here, so that this is not certain. A second table lists the transactional ids and
    their states.

    \b
    kafkafs transactions /var/kafka --open
    kafkafs transactions /var/kafka orders/3 --json
    """
    from storage.coordinators.transactions import involves, partition_producers, transactional_ids

    use_default_signals(ctx)
    log_dir = open_log_dir(logdir)
    chosen = expand(log_dir, tp)
    ids, now_ms = transactional_ids(log_dir), log_dir.clock.now_ms()
    judge = _Judge(ids, now_ms, timeout_minutes * _MINUTE_MS)
    producers: list[PartitionProducers] = []
    errors = each(chosen, lambda tp: producers.append(partition_producers(log_dir.log(tp))))
    partitions = [judge.partition(state, only_open=only_open) for state in producers]
    shown = {row["transactional_id"] for state in partitions for row in state["producers"]}
    states = [
        _state(name, metadata)
        for name, metadata in sorted(ids.by_id.items())
        if tp is None or name in shown or involves(metadata, chosen)
    ]
    if as_json:
        print_json({"partitions": partitions, "transactional_ids": states, "transactional_ids_complete": ids.complete})
    else:
        _print_producers(partitions)
        if states:
            echo()
            _print_states(states)
    fail_with(ctx, (*(f"{tp}: {text_of(error)}" for tp, error in errors.items()), *ids.problems))


class _Judge:
    """Facts about open transactions: who owns them, and whether somebody will end them."""

    def __init__(self, ids: TransactionalIds, now_ms: int, timeout_ms: int) -> None:
        self._ids = ids
        self._now_ms = now_ms
        self._timeout_ms = timeout_ms

    def partition(self, producers: PartitionProducers, *, only_open: bool) -> dict[str, Any]:
        rows = [self._producer(producers, producer) for producer in producers.producers]
        return {
            "topic": producers.tp.topic,
            "partition": producers.tp.partition,
            "log_start_offset": producers.log_start_offset,
            "last_stable_offset": producers.last_stable_offset,
            "log_end_offset": producers.log_end_offset,
            "producers": [row for row in rows if row["transaction"] is not None or not only_open],
        }

    def _producer(self, producers: PartitionProducers, producer: ProducerEntry) -> dict[str, Any]:
        return {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "coordinator_epoch": producer.coordinator_epoch,
            "last_sequence": producer.last_sequence,
            "last_offset": producer.last_offset,
            "last_timestamp": producer.timestamp,
            "transactional_id": self._ids.owner(producer.producer_id),
            "transaction": None if producer.current_txn_first_offset < 0 else self._open(producers, producer),
        }

    def _open(self, producers: PartitionProducers, producer: ProducerEntry) -> dict[str, Any]:
        begun = producers.begun[producer.producer_id]
        silent = self._now_ms - producer.timestamp > self._timeout_ms
        will_end = self._ids.will_end(producers.tp, producer) if silent else True
        return {
            "first_offset": producer.current_txn_first_offset,
            "first_timestamp": None if begun < 0 else begun,
            "age_ms": None if begun < 0 else self._now_ms - begun,
            "holds_last_stable_offset": producers.holds_back(producer),
            "hanging": None if will_end is None else not will_end,
        }


def _state(name: str, metadata: TransactionMetadata) -> dict[str, Any]:
    return {
        "transactional_id": name,
        "producer_id": metadata.producer_id,
        "producer_epoch": metadata.producer_epoch,
        "state": metadata.state.text,
        "timeout_ms": metadata.timeout_ms,
        "start_timestamp": None if metadata.start_timestamp < 0 else metadata.start_timestamp,
        "last_update_timestamp": metadata.last_update_timestamp,
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(metadata.partitions)],
    }


def _print_producers(partitions: list[dict[str, Any]]) -> None:
    rows = []
    for partition in partitions:
        for row in partition["producers"]:
            transaction = row["transaction"]
            first, age = (None, None) if transaction is None else (transaction["first_offset"], transaction["age_ms"])
            rows.append((
                f"{partition['topic']}/{partition['partition']}", row["producer_id"], row["producer_epoch"],
                row["coordinator_epoch"], row["last_sequence"], moment(row["last_timestamp"]), first, _age(age),
                row["transactional_id"], _notes(transaction),
            ))  # fmt: skip
    names = (
        "PARTITION",
        "PRODUCER",
        "EPOCH",
        "COORDINATOR",
        "SEQUENCE",
        "LAST BATCH",
        "OPEN SINCE",
        "AGE",
        "ID",
        "NOTE",
    )
    print_table(names, rows)


def _notes(transaction: dict[str, Any] | None) -> str:
    if transaction is None:
        return ""
    notes = ["holds LSO"] if transaction["holds_last_stable_offset"] else []
    if transaction["hanging"] is not False:
        notes.append("hanging" if transaction["hanging"] else "hanging?")
    return ", ".join(notes)


def _age(age_ms: int | None) -> str | None:
    """Days, hours, minutes and seconds, the largest two."""
    if age_ms is None:
        return None
    seconds = max(age_ms, 0) // 1000
    parts = [(seconds // 86_400, "d"), (seconds // 3_600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    first = next((slot for slot, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2])


def _print_states(states: list[dict[str, Any]]) -> None:
    columns = ("TRANSACTIONAL ID", "PRODUCER", "EPOCH", "STATE", "STARTED", "TIMEOUT MS", "PARTITIONS")
    rows = [
        (
            row["transactional_id"], row["producer_id"], row["producer_epoch"], row["state"],
            None if row["start_timestamp"] is None else moment(row["start_timestamp"]), row["timeout_ms"],
            " ".join(f"{partition['topic']}/{partition['partition']}" for partition in row["partitions"]),
        )
        for row in states
    ]  # fmt: skip
    print_table(columns, rows)
