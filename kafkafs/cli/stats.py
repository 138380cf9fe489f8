"""`kafkafs stats`: what messages consist of, and when they came."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kafkafs.cli import echo, fail_with, say, text_of
from kafkafs.cli.process import DATA_ERROR, use_default_signals
from kafkafs.cli.shared_options import AS_JSON, DURATION, SCHEMAS, TIER, check_destination
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir, say_remote
from kafkafs.cli.terminal import bytes_json, moment, print_json, print_table, size_text
from storage.progress import working

if TYPE_CHECKING:
    from kafkafs.arrow.block_texts import Decoding
    from kafkafs.schemas.places import SchemaPlaces
    from storage.format.block import RecordBlock
    from storage.log.histogram import Histogram
    from storage.log.log_dir import LogDir
    from storage.log.statistics import CodecCounts, HeaderCounts, LargeMessage, Sizes, Statistics
    from storage.types import TopicPartition

_DAY_MS: Final = 86_400_000
_WIDTH: Final = 80  # of a chart that is not printed on a terminal
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_PICTURE: Final = click.Path(path_type=Path, dir_okay=False)
_SHOWN: Final = 10
_FIRST: Final = 5  # rows of a table on the first screen
_MOST_REASONS: Final = 100
_ANY_WIDTH: Final = 0
# In each message, the same reason names a different position.
_POSITION: Final = re.compile(r"(?<!schema )(?<!UTF-)\b[0-9]+")


@click.command()
@LOGDIR
@click.argument("tp", type=TopicPartitionPattern(), required=False)
@click.option(
    "--over-time",
    "bucket_ms",
    type=DURATION,
    is_flag=False,
    flag_value=_ANY_WIDTH,
    metavar="[BUCKET]",
    help="Also draw messages and bytes over time: a line for each BUCKET, such as 1h; by default at most 40 lines.",
)
@click.option("--distinct-keys", is_flag=True, help="Also estimate the number of different keys, within 1 %.")
@click.option("--decode", is_flag=True, help="Also count the messages whose key or value cannot be decoded, by reason.")
@SCHEMAS
@click.option("--png", type=_PICTURE, help="Draw messages and bytes over time into a PNG file (extra kafkafs[plot]).")
@click.option("--svg", type=_PICTURE, help="The same into an SVG file.")
@AS_JSON
@TIER
@click.pass_context
def stats(
    ctx: click.Context,
    logdir: Path,
    tp: str | None,
    bucket_ms: int | None,
    distinct_keys: bool,
    decode: bool,
    schemas: SchemaPlaces,
    png: Path | None,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Show what takes the space in LOGDIR, or in TP: topics, codecs, keys, values, headers, the largest messages.

    TP is a topic, topic/partition or a glob; several partitions are added up. All messages are read once, those of
    aborted transactions too. `values` of a header is how many different values it has, up to 1,000: a header that
    repeats in every message can be most of a topic. Over time, a message counts at its timestamp, and a batch's bytes
    at its greatest timestamp, in UTC.

    \b
    kafkafs stats /var/kafka                                which topic, and what in it?
    kafkafs stats /var/kafka orders --over-time 1h
    kafkafs stats /var/kafka 'orders/*' --distinct-keys --json
    kafkafs stats /var/kafka orders --decode                what did the producers write?

    Exit code 4 if there is damage, which is left out and named on stderr.
    """
    from kafkafs.cli.progress_bar import progress_bar
    from storage.errors import StorageError
    from storage.log.histogram import TooManyBuckets
    from storage.log.statistics import Statistics

    use_default_signals(ctx)
    if schemas and not decode:
        raise click.UsageError("--schemas is for --decode")
    log_dir = open_log_dir(logdir)
    for path in (png, svg):
        if path is not None:
            check_destination(path, logdir)
    draw = None if png is None and svg is None else _drawing(ctx)
    targets = expand(log_dir, tp)
    say_remote(log_dir, targets)
    counted = Statistics(distinct=distinct_keys, width_ms=bucket_ms or None)
    undecodable = _Undecodable(log_dir, schemas, targets) if decode else None
    problems: list[str] = []
    with progress_bar() as progress:
        for target in targets:
            try:
                snapshot = log_dir.log(target).snapshot()
                with working(progress, str(target), snapshot.size_bytes):
                    for block in counted.add(snapshot, progress.advance):
                        if undecodable is not None:
                            undecodable.take(target, block)
            except TooManyBuckets as error:
                raise click.UsageError(f"--over-time: {error}") from None
            except (StorageError, OSError) as error:
                problems.append(text_of(error))
    over_time = counted.over_time.histogram()
    for path, suffix in ((png, ".png"), (svg, ".svg")):
        if draw is not None and path is not None:
            draw(over_time, tp or str(logdir), path if path.suffix else path.with_suffix(suffix))
    shown = _json(counted, over_time, None if undecodable is None else undecodable.reasons)
    if as_json:
        print_json(shown)
    else:
        _print(shown)
        if bucket_ms is not None:
            echo()
            _chart(over_time)
    fail_with(ctx, [*problems, *(f"{damage.tp}: {text_of(damage.error)}" for damage in counted.damages)])


class _Undecodable:
    """The messages whose key or value cannot be decoded, by reason."""

    def __init__(self, log_dir: LogDir, places: SchemaPlaces, targets: list[TopicPartition]) -> None:
        from kafkafs.arrow.block_texts import Decoding
        from kafkafs.schemas.sources import schemas_of
        from kafkafs.schemas.steady_schemas import SteadySchemas
        from storage.format.messages import GROUPS

        source = schemas_of(log_dir, places)
        if not source.registry() and not any(tp.topic in GROUPS for tp in targets):
            raise click.UsageError(
                source.problem
                or f"there are no schemas in {places.directory or log_dir.path}: --decode needs the topic _schemas"
                " there, or --schemas PATH, or --schemas TOPIC=FILE"
            )
        self.reasons: dict[str, dict[str, Any]] = {}
        self._decoding: Decoding = Decoding(SteadySchemas(source))

    def take(self, tp: TopicPartition, block: RecordBlock) -> None:
        from kafkafs.arrow.block_texts import SIDES

        row = 0
        while row < len(block):
            part = block.select(slice(row, row + self._decoding.step))
            self._decoding.take(tp, part)
            for side in SIDES:
                for at, error in self._decoding.texts(side).errors.items():
                    self._count(f"{side}: {_POSITION.sub('N', error)}", tp, int(part.offset[at]))
            row += len(part)

    def _count(self, reason: str, tp: TopicPartition, offset: int) -> None:
        if reason not in self.reasons and len(self.reasons) >= _MOST_REASONS:
            reason = "other reasons"
        first = {"reason": reason, "messages": 0, "topic": tp.topic, "partition": tp.partition, "offset": offset}
        self.reasons.setdefault(reason, first)["messages"] += 1


def _json(counted: Statistics, over_time: Histogram, undecodable: dict[str, dict[str, Any]] | None) -> dict[str, Any]:
    from storage.log.statistics import CODECS

    totals = counted.codecs.values()
    headers = sorted(counted.headers_by_name.items(), key=lambda item: -item[1].bytes)
    producers = sorted(counted.producers.items(), key=lambda item: -item[1])
    topics = sorted(counted.topics.items(), key=lambda item: -item[1].stored_bytes)
    return {
        "messages": counted.messages,
        "tombstones": counted.tombstones,
        "null_keys": counted.null_keys,
        "first_timestamp": counted.first_ms,
        "last_timestamp": counted.last_ms,
        "first_time": None if counted.first_ms is None else moment(counted.first_ms),
        "last_time": None if counted.last_ms is None else moment(counted.last_ms),
        "bytes_on_disk": sum(codec.stored_bytes for codec in totals),
        "bytes_decoded": sum(codec.decoded_bytes for codec in totals),
        "codecs": [{"codec": CODECS[number], **_counts(codec)} for number, codec in sorted(counted.codecs.items())],
        "topics": [{"topic": name, **_counts(topic)} for name, topic in topics],
        "sizes": {name: _sizes(getattr(counted, name)) for name in ("keys", "values", "headers")},
        "headers": [_header(name, header) for name, header in headers],
        "distinct_keys": counted.distinct_keys(),
        "largest": [_large(message) for message in sorted(counted.largest, reverse=True)],
        "producers": [{"producer_id": None if number < 0 else number, "messages": n} for number, n in producers],
        "other_producers": counted.other_producers,
        "undecodable": None
        if undecodable is None
        else sorted(undecodable.values(), key=lambda reason: -reason["messages"]),
        "damaged": [
            {
                "topic": damage.tp.topic,
                "partition": damage.tp.partition,
                "bytes": damage.size_bytes,
                "reason": text_of(damage.error),
            }
            for damage in counted.damages
        ],
        "over_time": {
            "width_ms": over_time.width_ms,
            "buckets": [
                {"start_ms": start, "messages": messages, "bytes": size}
                for start, messages, size in _buckets(over_time)
            ],
            "no_timestamp": {"messages": over_time.undated_messages, "bytes": over_time.undated_bytes},
        },
    }


def _counts(counts: CodecCounts) -> dict[str, int]:
    return {
        "messages": counts.messages,
        "batches": counts.batches,
        "bytes_on_disk": counts.stored_bytes,
        "bytes_decoded": counts.decoded_bytes,
    }


def _sizes(sizes: Sizes) -> dict[str, int]:
    quantiles = {f"p{percent}": sizes.quantile(percent / 100) for percent in (50, 90, 99)}
    return {"count": sizes.count, "bytes": sizes.bytes, "min": sizes.min, **quantiles, "max": sizes.max}


def _header(name: bytes, header: HeaderCounts) -> dict[str, Any]:
    from storage.log.statistics import MOST_VALUES

    values = len(header.values)
    return {
        "name": bytes_json(name),
        "headers": header.count,
        "bytes": header.bytes,
        "values": values if values <= MOST_VALUES else None,
        "example": bytes_json(header.example),
    }


def _large(message: LargeMessage) -> dict[str, Any]:
    return {
        "topic": message.tp.topic,
        "partition": message.tp.partition,
        "offset": message.offset,
        "bytes": message.bytes,
        "key_bytes": max(message.key_bytes, 0),
        "value_bytes": max(message.value_bytes, 0),
        "header_bytes": message.headers_bytes,
        "timestamp": message.timestamp_ms,
    }


def _print(shown: dict[str, Any]) -> None:
    """Prints the statistics. The first screen shows what takes the space."""
    decoded, on_disk, sizes = shown["bytes_decoded"], shown["bytes_on_disk"], shown["sizes"]
    echo(f"{shown['messages']:,} messages, {shown['tombstones']:,} tombstones, {shown['null_keys']:,} without a key")
    if shown["first_time"] is not None:
        echo(f"from {shown['first_time']} to {shown['last_time']}")
    parts = ", ".join(f"{name} {_share(size['bytes'], decoded)}" for name, size in sizes.items())
    echo(f"{size_text(on_disk)} on disk, {size_text(decoded)} decoded: {parts}")
    if shown["distinct_keys"] is not None:
        echo(f"{shown['distinct_keys']:,} different keys")
    if len(shown["topics"]) > 1:
        _by("TOPIC", shown["topics"], on_disk)
    _table(
        ("HEADER", "HEADERS", "BYTES", "OF DECODED", "VALUES", "FIRST VALUE"),
        [
            (_brief(row["name"]), row["headers"], row["bytes"], _share(row["bytes"], decoded),
             "> 1000" if row["values"] is None else row["values"], _brief(row["example"]))
            for row in shown["headers"][:_FIRST]
        ],
    )  # fmt: skip
    _table(
        ("SIZES", "COUNT", "BYTES", "MIN", "P50", "P90", "P99", "MAX"),
        [(name, *size.values()) for name, size in sizes.items()],
    )
    _by("CODEC", shown["codecs"], on_disk)
    _table(
        ("LARGEST", "OFFSET", "BYTES", "KEY", "VALUE", "HEADERS"),
        [
            (f"{row['topic']}/{row['partition']}", *(row[name] for name in ("offset", "bytes", "key_bytes")),
             row["value_bytes"], row["header_bytes"])
            for row in shown["largest"]
        ],
    )  # fmt: skip
    if any(row["producer_id"] is not None for row in shown["producers"]):
        rows = [
            ("none" if row["producer_id"] is None else row["producer_id"], row["messages"])
            for row in shown["producers"]
        ]
        _table(("PRODUCER", "MESSAGES"), rows[:_SHOWN])
    if shown["undecodable"] is not None:
        _table(
            ("MESSAGES", "FIRST", "CANNOT BE DECODED"),
            [(row["messages"], f"{row['topic']}/{row['partition']}@{row['offset']}", row["reason"])
             for row in shown["undecodable"]] or [(0, "", "")],
        )  # fmt: skip


def _by(what: str, rows: list[dict[str, Any]], on_disk: int) -> None:
    columns = (what, "MESSAGES", "BATCHES", "ON DISK", "DECODED", "OF DISK")
    _table(columns, [(*row.values(), _share(row["bytes_on_disk"], on_disk)) for row in rows[:_FIRST]])


def _table(columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        echo()
        print_table(columns, rows)


def _brief(text: object) -> str:
    """The beginning of a text, or of bytes as JSON has them."""
    shown = "" if text is None else text if isinstance(text, str) else str(text)
    return shown if len(shown) <= 40 else f"{shown[:39]}…"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0:.1f} %"


def _drawing(ctx: click.Context) -> Callable[..., None]:
    """The function that draws a picture. Without matplotlib, says so and exits with code 4."""
    try:
        from kafkafs.cli.stats_plot import draw
    except ImportError:
        say("matplotlib is not installed: pip install 'kafkafs[plot]'")
        ctx.exit(DATA_ERROR)
    return draw


def _buckets(histogram: Histogram) -> list[tuple[int, int, int]]:
    """The start, messages and bytes of each bucket."""
    return list(
        zip(histogram.starts_ms.tolist(), histogram.messages.tolist(), histogram.size_bytes.tolist(), strict=True)
    )


def _chart(histogram: Histogram) -> None:
    """Prints one line per bucket: time, messages, bytes, and a bar for the number of messages."""
    counts = [(_time_name(start, histogram.width_ms), messages, size) for start, messages, size in _buckets(histogram)]
    if histogram.undated_messages:
        counts.append(("no timestamp", histogram.undated_messages, histogram.undated_bytes))
    if not counts:
        echo("no messages")
        return
    rows = [(time, f"{messages:,}", size_text(size), messages) for time, messages, size in counts]
    widths = [max(len(str(row[column])) for row in rows) for column in range(3)]
    columns = shutil.get_terminal_size((_WIDTH, 0)).columns if sys.stdout.isatty() else _WIDTH
    room = max(10, columns - sum(widths) - 7)
    most = max(row[3] for row in rows) or 1
    for time, messages, size, number in rows:
        eighths = -(-number * room * 8 // most)  # rounded up, so that every message shows
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        echo(f"{time:{widths[0]}}  {messages:>{widths[1]}}  {size:>{widths[2]}}  {bar}".rstrip())
    total = int(histogram.messages.sum()) + histogram.undated_messages
    size_bytes = int(histogram.size_bytes.sum()) + histogram.undated_bytes
    echo(f"{total:,} messages, {size_bytes:,} bytes; a line is {_duration(histogram.width_ms)}")


def _time_name(milliseconds: int, width_ms: int) -> str:
    try:
        moment = datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    if width_ms % _DAY_MS == 0:
        return moment.strftime("%Y-%m-%d")
    form = "minutes" if width_ms % 60_000 == 0 else "seconds" if width_ms % 1000 == 0 else "milliseconds"
    return moment.isoformat(timespec=form)


def _duration(milliseconds: int) -> str:
    for unit, name in ((_DAY_MS, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")):
        if milliseconds % unit == 0:
            count = milliseconds // unit
            return f"{count} {name}s" if count > 1 else f"one {name}"
    return f"{milliseconds} ms"
