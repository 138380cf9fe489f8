"""`kafkafs digest` and `kafkafs diff`: whether two logs have the same records, and where they differ."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo, fail_with, say, text_of
from kafkafs.cli.process import FOUND, use_default_signals
from kafkafs.cli.progress_bar import progress_bar
from kafkafs.cli.shared_options import AS_JSON, ISOLATION, OFFSETS, TIER
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir, say_remote
from kafkafs.cli.terminal import facts, print_json, print_table
from kafkafs.reading.range_names import OffsetsBetween, OffsetsFrom, OffsetSpec, SingleOffset
from storage.errors import StorageError, UnknownTopicOrPartition
from storage.progress import working
from storage.types import MAX_OFFSET, Isolation, TopicPartition

if TYPE_CHECKING:
    from storage.backup.record_digests import LogDiff, SeenRecord, Stored
    from storage.log.log_dir import LogDir
    from storage.progress import Progress

_SHOWN_BYTES = 60


@click.command()
@LOGDIR
@click.argument("tp", type=TopicPartitionPattern())
@OFFSETS
@click.option("--by", type=click.IntRange(1, MAX_OFFSET), metavar="N", help="A digest for each range of N offsets.")
@ISOLATION
@AS_JSON
@TIER
@click.pass_context
def digest(
    ctx: click.Context,
    logdir: Path,
    tp: str,
    offsets: OffsetSpec | None,
    by: int | None,
    isolation: str,
    as_json: bool,
) -> None:
    """Print a digest of the records of each partition of TP.

    Use it to compare logs on different machines. TP is a topic, topic/partition or a glob. The digest covers offset,
    timestamp, key, value and headers of every message that a consumer sees, whatever the batches, compression, format
    version and segments are. It is XXH3 with 128 bits, which detects accidents but no forgery. With --by N, there is a
    digest for each range of N offsets that has messages; ranges begin at multiples of N.

    \b
    kafkafs digest /var/kafka orders
    kafkafs digest /var/kafka orders/0 --offsets 1000000-1999999 --by 100000
    """
    use_default_signals(ctx)
    log_dir = open_log_dir(logdir)
    targets = expand(log_dir, tp)
    say_remote(log_dir, targets)
    rows: list[dict[str, Any]] = []
    with progress_bar() as progress:
        for target in targets:
            try:
                rows.append(_digest(log_dir, target, offsets, by, Isolation(isolation), progress))
            except (StorageError, OSError) as error:
                rows.append({**asdict(target), "error": text_of(error)})
    failed = [row["error"] for row in rows if "error" in row]
    if as_json:
        print_json({"algorithm": "xxh3-128", "isolation": isolation, "partitions": rows})
    else:
        lines = [
            (f"{row['topic']}/{row['partition']}", span["start_offset"], span["end_offset"], span["records"],
             span["digest"])
            for row in rows
            for span in (() if "error" in row else (row,) if by is None else row["ranges"])
        ]  # fmt: skip
        print_table(("PARTITION", "FROM", "END", "MESSAGES", "DIGEST"), lines)
    fail_with(ctx, failed)


def _digest(
    log_dir: LogDir,
    tp: TopicPartition,
    offsets: OffsetSpec | None,
    by: int | None,
    isolation: Isolation,
    progress: Progress,
) -> dict[str, Any]:
    from kafkafs.reading.selection import Question
    from storage.backup.record_digests import digest_records

    snapshot = log_dir.log(tp).snapshot()
    selection = Question(offsets, isolation=isolation).resolve(snapshot, log_dir.clock.now_ms())
    with working(progress, str(tp), snapshot.size_bytes):
        digests = digest_records(
            snapshot,
            selection.start_offset,
            selection.end_offset,
            by=by,
            isolation=isolation,
            progress=progress,
        )
    ranges = {} if by is None else {"ranges": [asdict(span) for span in digests.ranges]}
    return {**asdict(tp), **asdict(digests.whole), **ranges}


@click.command()
@click.argument("logdir", type=click.Path(path_type=Path), metavar="LOGDIR1")
@click.argument("other", type=click.Path(path_type=Path), metavar="LOGDIR2")
@click.argument("tp", type=TopicPartitionPattern())
@OFFSETS
@click.option(
    "--by",
    type=click.IntRange(1, MAX_OFFSET),
    default=1 << 16,
    show_default=True,
    metavar="N",
    help="How many offsets are compared at once.",
)
@ISOLATION
@AS_JSON
@TIER
@click.pass_context
def diff(
    ctx: click.Context,
    logdir: Path,
    other: Path,
    tp: str,
    offsets: OffsetSpec | None,
    by: int,
    isolation: str,
    as_json: bool,
) -> None:
    """Compare the messages of TP in two log directories.

    TP is a topic, topic/partition or a glob. For each partition that differs, the output shows the first difference on
    both sides, the ranges of offsets that have differences, as finely as --by says, and how many messages differ or
    exist only on one side. Messages that compaction may have removed from the other side are counted apart. A partition
    that one directory lacks is named. Equal messages in other batches, codecs or format versions are a note on stderr.

    \b
    kafkafs diff /var/kafka /backup/kafka orders
    kafkafs diff /var/kafka /backup/kafka orders/0 --offsets 0-99999 --by 1000

    Exit code 1 if there is a difference.
    """
    use_default_signals(ctx)
    start, end = _bounds(offsets)
    sides = open_log_dir(logdir), open_log_dir(other)
    targets = sorted({difference for side in sides for difference in _named(side, tp)})
    if not targets:
        raise UnknownTopicOrPartition(f"no topic or partition is named {tp} here, nor in {other}", path=logdir)
    rows: list[dict[str, Any]] = []
    diffs: list[tuple[TopicPartition, LogDiff, str | None]] = []
    with progress_bar() as progress:
        for target in targets:
            try:
                difference, absent, stored = _diff(sides, target, start, end, Isolation(isolation), by, progress)
            except (StorageError, OSError) as error:
                rows.append({**asdict(target), "error": text_of(error)})
                continue
            diffs.append((target, difference, absent))
            rows.append({**asdict(target), "absent_in": absent, **_json(difference, stored)})
    failed = [row["error"] for row in rows if "error" in row]
    differ = any(row.get("differs") for row in rows)
    if as_json:
        print_json({"differ": differ, "partitions": rows})
    else:
        for target, difference, absent in diffs:
            _print(target, difference, (logdir, other), absent)
    for row in rows:
        place = f"{row['topic']}/{row['partition']}"
        if not row.get("differs", True) and row["stored"][0] != row["stored"][1] and row["absent_in"] is None:
            how = (f"{side} has {_layout(layout)}" for side, layout in zip((logdir, other), row["stored"], strict=True))
            say(f"{place}: the same messages, stored differently: {'; '.join(how)}")
    fail_with(ctx, failed)
    if differ:
        ctx.exit(FOUND)


def _bounds(offsets: OffsetSpec | None) -> tuple[int, int]:
    """First offset, and the one after the last."""
    if offsets is None:
        return 0, MAX_OFFSET
    if not isinstance(offsets, SingleOffset | OffsetsBetween | OffsetsFrom):
        raise click.UsageError("--offsets must name offsets here (100-199, 100- or 100): the two logs may differ")
    return offsets.first, MAX_OFFSET if offsets.last is None else min(offsets.last + 1, MAX_OFFSET)


def _named(log_dir: LogDir, tp: str) -> list[TopicPartition]:
    try:
        return expand(log_dir, tp)
    except UnknownTopicOrPartition:
        return []


def _diff(
    sides: tuple[LogDir, LogDir],
    tp: TopicPartition,
    start: int,
    end: int,
    isolation: Isolation,
    by: int,
    progress: Progress,
) -> tuple[LogDiff, str | None, list[Stored]]:
    """The difference of a partition, the directory that does not have it at all, and how it is stored in both."""
    from storage.backup.record_digests import diff_records, empty_log, stored_as

    held = [side.log(tp).snapshot() if tp in side.all_partitions() else None for side in sides]
    absent = next((str(side.path) for side, log in zip(sides, held, strict=True) if log is None), None)
    existing = next(log for log in held if log is not None)
    left, right = (empty_log(existing) if log is None else log for log in held)
    with working(progress, str(tp), left.size_bytes + right.size_bytes):
        difference = diff_records(left, right, start, end, isolation=isolation, by=by, progress=progress)
    return difference, absent, [stored_as(log, start, end) for log in (left, right)]


def _layout(stored: dict[str, Any]) -> str:
    formats = ", ".join(f"v{version}" for version in stored["formats"])
    return f"{stored['batches']} batches ({', '.join([formats, *stored['codecs']])})"


def _print(tp: TopicPartition, difference: LogDiff, sides: tuple[Path, Path], absent: str | None) -> None:
    """Prints the difference of a partition. `absent`: the directory that does not have the partition."""
    if difference.first is None:
        no_message = f"not in {absent}; the other directory has no message of it in these offsets"
        echo(f"{tp}: {'equal' if absent is None else no_message}")
        return
    if absent is not None:
        echo(f"{tp}: not in {absent}")
    ranges = ", ".join(f"{first}-{last}" for first, last in difference.ranges)
    echo(f"{tp}: differs first at offset {difference.first.offset}; differences within {ranges}")
    for side, seen in zip(sides, (difference.first.left, difference.first.right), strict=True):
        echo(f"  {side}: {'no message' if seen is None else _text(seen)}")
    what = difference.differences
    if what.changed:
        echo(f"  different on both sides: {what.changed}, in {', '.join(what.fields)}")
    for side, count, superseded in zip(sides, what.only, what.superseded, strict=True):
        if count:
            part = "all" if superseded == count else superseded
            compacted = f"; {part} of them superseded or deletions, as compaction removes them" if superseded else ""
            echo(f"  only in {side}: {count}{compacted}")
    if not what.whole:
        from storage.backup.record_digests import MOST_COUNTED

        echo(f"  (of the first {MOST_COUNTED} messages of these ranges)")


def _text(seen: SeenRecord) -> str:
    fields = [f"timestamp {seen.timestamp}", f"key {_shown(seen.key)}", f"value {_shown(seen.value)}"]
    fields += [f"header {_shown(name)}={_shown(value)}" for name, value in seen.headers]
    return ", ".join(fields)


def _shown(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = repr(data[:_SHOWN_BYTES])[1:]
    return f"{text} and {len(data) - _SHOWN_BYTES} bytes more" if len(data) > _SHOWN_BYTES else text


def _json(difference: LogDiff, stored: list[Stored]) -> dict[str, Any]:
    return {"differs": difference.first is not None, **facts(difference), "stored": facts(stored)}
