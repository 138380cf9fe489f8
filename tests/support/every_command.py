"""A log directory with a file of every kind, and arguments with which each command reads or writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from kafkafs.cli import main
from storage.files import commit_ledger, manifest, metadata_checkpoint
from storage.files.metadata_records import FeatureLevelRecord
from storage.format.block import Record
from tests.support.builders import ROLL, Batch, Item, Partition, abort, build_log_dir, many
from tests.support.schema_logs import LONG, STRING, avro_string, framed, schema_record

# Words of the arguments below: the log directory, and files and directories beside it that do not exist.
_SPARK: Final = ("--master", "local[1]")

# Command → arguments. Each list is one run. `None`: it opens no log directory, or has tests of its own for this.
EVERY_COMMAND: Final[dict[str, list[list[str]] | None]] = {
    "append": [["LOGS", "orders/0"], ["LOGS", "new"]],
    "assign": None,
    "cat": [
        ["LOGS", "orders"],
        ["LOGS", "orders/0", "--format", "log"],
        ["LOGS", "orders/0", "--isolation", "read_committed", "--time", "2020--"],
        ["LOGS", "orders/0", "--key", "key-00001"],
        ["LOGS", "orders", "--latest"],
        ["LOGS", "decoded", "--format", "decoded"],
        ["LOGS", "orders", "--where", "offset > 3"],
    ],
    "compact": [["LOGS", "orders"], ["LOGS", "orders", "--dry-run"]],
    "completion": None,
    "count": [["LOGS", "--isolation", "read_committed"]],
    "diff": [["LOGS", "LOGS", "orders"]],
    "digest": [["LOGS", "orders", "--by", "10"]],
    "doctor": [["LOGS"], ["--quick", "LOGS", "--tier", "LOGS"]],
    "dump": [["LOGS", *(f"LOGS/{name}" for name in ("orders-0", "orders-1", "__cluster_metadata-0"))]],
    "fetch": [["LOGS", "orders/0", "--offset", "3", "--max-bytes", "1000"]],
    "groups": [
        ["LOGS"],
        ["LOGS", "readers"],
        ["LOGS", "readers", "--reset-to", "earliest", "--topic", "orders", "--force"],
    ],
    "mirror": [
        ["LOGS", "OUT", "orders"],
        ["LOGS", "OUT", "orders", "--until", "2023-11-14T22:14", "--manifest", "OUT.json"],
        ["SOURCE", "LOGS", "orders"],
    ],
    "mount": None,
    "recover": [["LOGS"], ["LOGS", "orders/0"], ["LOGS", "--dry-run"]],
    "reindex": [["LOGS", "orders"]],
    "replay": None,
    "retain": [["LOGS"], ["LOGS", "orders", "--before", "end"], ["LOGS", "--dry-run"]],
    "revive": [
        ["LOGS", "--to", "OUT", "--salvage"],
        ["LOGS", "--to", "OUT", "--link"],
        ["LOGS/orders-0", "--to", "OUT", "--until", "2024-01-01", "--dry-run"],
    ],
    "metadata": [["LOGS"], ["LOGS", "--at", "2024-01-01"]],
    "salvage": [["LOGS", "orders/0", "--to", "OUT"]],
    "schemas": [["LOGS"], ["LOGS", "--to", "OUT"]],
    "spark export": [["LOGS", "OUT", "orders", *_SPARK]],
    "sql": [["LOGS", "SELECT count(o.value), count(d.value) FROM orders o, decoded d", "-o", "OUT.csv"]],
    "report": [["LOGS", "-o", "OUT.html"]],
    "stats": [["LOGS", "--over-time", "1h", "--png", "OUT.png"], ["LOGS", "decoded", "--decode", "--distinct-keys"]],
    "topics alter": [["LOGS", "orders", "--config", "retention.ms=-1", "--partitions", "3"]],
    "topics create": [["LOGS", "new", "--partitions", "2"]],
    "topics delete": [["LOGS", "orders"]],
    "topics describe": [["LOGS"]],
    "topics list": [["LOGS"]],
    "transactions": [["LOGS"]],
    "umount": None,
    "verify": [["LOGS", "--notes"], ["LOGS", "--manifest", "MANIFEST"]],
}


def known_commands() -> list[str]:
    """The commands that the command line knows, with those of groups of commands."""

    def below(command: click.Command, words: tuple[str, ...]) -> Iterator[str]:
        if isinstance(command, click.Group):
            for name in command.commands:
                yield from below(command.commands[name], (*words, name))
        else:
            yield " ".join(words)

    return sorted(below(main, ()))


def runs(*, spark: bool = False) -> list[list[str]]:
    """All runs of all commands, with words in capitals where places belong (see `placed`)."""
    return [
        [*command.split(), *arguments]
        for command, all_arguments in EVERY_COMMAND.items()
        if command.startswith("spark ") == spark
        for arguments in all_arguments or []
    ]


def placed(words: list[str], log_dir: Path, beside: Path) -> list[str]:
    """The words of a run, for this log directory. `beside` is a directory that has what `sample_beside` makes."""
    places = {"LOGS": log_dir, "OUT": beside / "out", "SOURCE": beside / "source", "MANIFEST": beside / "manifest"}

    def place(word: str) -> str:
        for name, path in places.items():
            if word == name or word.startswith((f"{name}/", f"{name}.")):
                return str(path) + word.removeprefix(name)
        return word

    return [place(word) for word in words]


def sample_log_dir(path: Path, *, clean: bool, broker: bool = False) -> Path:
    """A log directory with topics, transactions, groups and schemas, and with what deletion, compaction, reassignment,
    a crash and tiered storage leave."""
    transaction: list[Item] = [Batch(many(5), producer_id=7, transactional=True), abort(7)]
    orders: list[Item] = [
        Batch(many(30, keys=5)),
        *transaction,
        ROLL,
        Batch(many(30, keys=5)),
        ROLL,
        Batch(many(3, keys=5)),
    ]
    schemas = [schema_record("decoded-value", 1, 1, STRING), schema_record("decoded-key", 1, 2, LONG)]
    decoded = [Record(None, framed(1, avro_string("text")), (), -1)]
    segment = f"{0:020d}"
    orphan = f"{5:020d}"
    extra = {
        "orders-0/topic.properties": b"cleanup.policy=compact,delete\nretention.ms=1000\n",
        "orders-1/topic.properties": b"cleanup.policy=compact,delete\nretention.ms=1000\n",
        **{f"orders-0/{orphan}{suffix}.deleted": b"" for suffix in (".log", ".index", ".timeindex", ".snapshot")},
        f"orders-0/{orphan}.log.cleaned": b"",
        f"orders-0/{orphan}.index.cleaned": b"",
        "orders-0/leader-epoch-checkpoint.tmp": b"0\n0\n",
        "orders-0/topic.properties.tmp": b"",
        f"gone-0.{'0' * 32}-delete/{segment}.log": b"",
        f"moved-0.{'1' * 32}-future/{segment}.log": b"",
        f"stray-0.{'2' * 32}-stray/{segment}.log": b"",
        "remote-log-index-cache/index": b"",
        "bootstrap.checkpoint": metadata_checkpoint.bootstrap([FeatureLevelRecord("metadata.version", 7)], 0),
        "recovery-point-offset-checkpoint.tmp": b"",
        ".lock": b"",
        "kafkafs-commits": commit_ledger.encode(commit_ledger.Ledger()),
    }
    build_log_dir(
        path,
        {
            "orders": [Partition(orders, tail=b"" if clean else b"\0\0\0torn", recovery_point=10), [b"one"]],
            "_schemas": [[Batch(schemas)]],
            "decoded": [[Batch(decoded)]],
            "__consumer_offsets": [[]],
            "__transaction_state": [[]],
            "__remote_log_metadata": [[]],
            "__cluster_metadata": [Partition([], extra={"quorum-state": b"{}"})],
        },
        clean=clean,
        broker=broker,
        extra=extra,
    )
    return path


def sample_beside(path: Path) -> None:
    """What commands need besides a log directory: a source to copy from, and a manifest."""
    build_log_dir(path / "source", {"orders": [[b"one", b"two"]]}, broker=False)
    (path / "manifest").write_bytes(manifest.encode(manifest.Manifest(None, 0, 0, None)))
