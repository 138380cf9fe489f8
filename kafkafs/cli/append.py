"""`kafkafs append`: appends the lines of stdin as messages."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafs.cli import say
from kafkafs.cli.passes import WAIT, open_owned
from kafkafs.cli.process import DATA_ERROR
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, check_topic

if TYPE_CHECKING:
    from kafkafs.writing.line_parsers import Parse
    from kafkafs.writing.line_writer import LineWriter
    from storage.types import TopicPartition

_READ_BYTES = 128 << 10


@click.command()
@LOGDIR
@click.argument("tp", type=TopicPartitionPattern())
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["txt", "jsonl"]),
    default="txt",
    show_default=True,
    help="The format of the lines.",
)
@click.option("--key-separator", metavar="S", help="With txt: the text before S in a line is the key.")
@click.option("--force", is_flag=True, help="Also append to a topic that has several replicas.")
@WAIT
@click.pass_context
def append(
    ctx: click.Context,
    logdir: Path,
    tp: str,
    format_name: str,
    key_separator: str | None,
    force: bool,
) -> None:
    """Append the lines of stdin to TP, a topic or topic/partition of LOGDIR.

    Use it to write without a mount. For a topic, the partition is chosen as Kafka's producer chooses it: by the key, or
    any partition for lines without keys. With jsonl each line is an object as `kafkafs cat --format jsonl`, `kcat -J`
    or `rpk topic consume --pretty-print=false` prints it; the value is required. Decoded lines are refused. The command
    stops at the first line that the topic does not accept: earlier lines are appended, later lines are not. Every
    appended line is on disk when the command ends.

    \b
    seq 100 | kafkafs append ./logs numbers
    kafkafs cat ./logs orders --format jsonl | kafkafs append ./copy orders --format jsonl
    kcat -b host:9092 -t orders -C -e -J | kafkafs append ./copy orders --format jsonl
    """
    from kafkafs.writing.destinations import open_target
    from kafkafs.writing.line_parsers import keyed_txt, parse_jsonl, parse_txt
    from kafkafs.writing.line_writer import LineWriter
    from storage.directory.owned_dir import Opening
    from storage.errors import StorageError

    topic, partition = _parsed(tp)
    if key_separator is not None and (format_name == "jsonl" or not key_separator):
        raise click.UsageError("--key-separator is a non-empty text between key and value, for txt lines only")
    parse: Parse = parse_jsonl if format_name == "jsonl" else parse_txt
    if key_separator is not None:
        parse = keyed_txt(os.fsencode(key_separator))
    only = None if partition is None else [partition]
    owned = open_owned(logdir, Opening(gentle=True, only=only))
    failed = True
    try:
        check_topic(owned.log_dir, topic)
        writer = LineWriter(open_target(owned, partition or topic, force=force), parse, _say_why)
        failed = not _append_stdin(writer)
    except (StorageError, OSError) as error:
        say(error if isinstance(error, StorageError) else error.strerror or error)
    finally:
        closing = owned.close()
    for failed_tp, reason in closing.errors.items():
        if failed_tp.topic == topic:
            failed = True
            say(reason)
    if closing.failure is not None:
        raise closing.failure
    if failed:
        ctx.exit(DATA_ERROR)


def _parsed(tp: str) -> tuple[str, TopicPartition | None]:
    from storage.files.names import partition_number, topic_name_problem
    from storage.types import TopicPartition

    topic, slash, text = tp.partition("/")
    number = partition_number(text) if slash else None
    if topic_name_problem(topic) is not None or (slash and number is None):
        raise click.UsageError(f"{tp} is neither a topic nor topic/partition")
    return topic, None if number is None else TopicPartition(topic, number)


def _read_stdin() -> bytes:
    """The next bytes, none at the end. OSError."""
    try:
        return os.read(sys.stdin.fileno(), _READ_BYTES)
    except OSError as error:
        error.strerror = f"stdin: {error.strerror}"
        raise


def _say_why(line: int | None, error: Exception, elsewhere: int) -> None:
    from kafkafs.writing.refused_lines import reason_of

    say(reason_of(error, elsewhere) if line is None else f"line {line}: {reason_of(error, elsewhere)}")


def _append_stdin(writer: LineWriter) -> bool:
    """Appends all of stdin. False if a line was refused."""
    from storage.errors import StorageError

    while data := _read_stdin():
        try:
            while data:
                data = data[writer.write(data) :]
        except (StorageError, OSError):  # `_say_why` has said it
            return False
    try:
        writer.sync()
    except (StorageError, OSError):
        return False
    return True
