"""`kafkafs fetch`: the bytes of the answer to a consumer's fetch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafs.cli import say, text_of
from kafkafs.cli.process import DATA_ERROR, use_default_signals
from kafkafs.cli.shared_options import TIER, ParsedText, whole_number
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir
from storage.types import MAX_OFFSET

if TYPE_CHECKING:
    from storage.log.fetch import MessageSetSend, ResetPolicy
    from storage.log.log_dir import LogDir
    from storage.types import TopicPartition

_WORDS = ("earliest", "latest")
_MOST_BYTES = 2**31 - 3  # the greatest value of the length before the messages


def _start_offset(text: str) -> int | str:
    from kafkafs.reading.range_names import ENDS

    number = ENDS.get(text) or whole_number(text, MAX_OFFSET)
    if number is None:
        raise ValueError(f"{text!r} is neither an offset nor earliest or latest")
    return number


@click.command()
@LOGDIR
@click.argument("tps", nargs=-1, required=True, type=TopicPartitionPattern(), metavar="TP...")
@click.option(
    "--offset",
    required=True,
    type=ParsedText("N", _start_offset),
    metavar="N",
    help="Where to start: an offset, earliest or latest.",
)
@click.option(
    "--max-bytes", required=True, type=click.IntRange(1, _MOST_BYTES), metavar="S", help="The size of a chunk."
)
@click.option(
    "--largest-bytes",
    type=click.IntRange(1, _MOST_BYTES),
    metavar="L",
    help="Double S, up to L, until a whole message fits; a larger message is an error.",
)
@click.option(
    "--reset",
    type=click.Choice([*_WORDS, "none"]),
    default="none",
    show_default=True,
    help="Where to start if the log does not have N.",
)
@TIER
@click.pass_context
def fetch(
    ctx: click.Context,
    logdir: Path,
    tps: tuple[str, ...],
    offset: int | str,
    max_bytes: int,
    largest_bytes: int | None,
    reset: str,
) -> None:
    """Write the answer to a fetch of at most S bytes from offset N.

    For one partition it is a MessageSetSend: 4 bytes total length (of what follows), 2 bytes error code, and messages,
    of which the last may be cut off. For several it is a MultiMessageSetSend: length, error code 0, and one
    MessageSetSend per partition, by topic and number. The messages are the log's own bytes, beginning with the batch
    that holds N. Error codes: 1 offset out of range, 2 damaged, 10 message larger than L.

    \b
    kafkafs fetch /var/kafka orders/0 --offset 100 --max-bytes 65536
    kafkafs fetch /var/kafka orders --offset latest --max-bytes 65536
    """
    from storage.log.fetch import MultiMessageSetSend, ResetPolicy

    use_default_signals(ctx)
    log_dir = open_log_dir(logdir)
    targets = list(dict.fromkeys(tp for pattern in tps for tp in expand(log_dir, pattern)))
    policy = ResetPolicy(reset)
    sends = [_fetched(log_dir, tp, offset, max_bytes, largest_bytes, policy) for tp in targets]
    sys.stdout.flush()
    result = sends[0] if len(sends) == 1 else MultiMessageSetSend(sends)
    result.write_to(sys.stdout.fileno())
    if any(send.error for send in sends):
        ctx.exit(DATA_ERROR)


def _fetched(
    log_dir: LogDir,
    tp: TopicPartition,
    offset: int | str,
    max_bytes: int,
    largest_bytes: int | None,
    policy: ResetPolicy,
) -> MessageSetSend:
    """A partition's result. An error is printed, and becomes its error code."""
    from storage.errors import StorageError
    from storage.log import fetch as fetching

    try:
        snapshot = log_dir.log(tp).snapshot()
        if isinstance(offset, int):
            start = fetching.offset_or_reset(snapshot, offset, policy)
        elif offset == "earliest":
            start = snapshot.log_start_offset
        else:
            start = snapshot.log_end_offset
        if snapshot.remote_note is not None and start != offset != "latest":
            say(f"note: {snapshot.remote_note}")
        if largest_bytes is None:
            return fetching.MessageSetSend.of(fetching.read_chunk(snapshot, start, max_bytes))
        return fetching.MessageSetSend.of(
            fetching.fetch(snapshot, start, max_bytes=max_bytes, largest_bytes=largest_bytes)
        )
    except (StorageError, OSError) as error:
        say(f"{tp}: {text_of(error)}")
        return fetching.MessageSetSend.of(error)
