"""`kafkafs histogram`: messages and bytes over time."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import echo, say
from kafkafs.cli.process import DATA_ERROR, use_default_signals
from kafkafs.cli.shared_options import AS_JSON, TIER, check_destination
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir, say_remote
from kafkafs.cli.terminal import print_json

if TYPE_CHECKING:
    from storage.log.histogram import Histogram

_DAY_MS = 86_400_000
_WIDTH = 80  # of a chart that is not printed on a terminal
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_PICTURE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@LOGDIR
@click.argument("tp", type=TopicPartitionPattern())
@click.option(
    "--buckets", type=click.IntRange(1, 10_000), default=40, show_default=True, help="The greatest number of lines."
)
@click.option("--png", type=_PICTURE, help="Draw it into a PNG file; needs matplotlib: pip install 'kafkafs[plot]'.")
@click.option("--svg", type=_PICTURE, help="Draw it into an SVG file.")
@AS_JSON
@TIER
@click.pass_context
def histogram(
    ctx: click.Context, logdir: Path, tp: str, buckets: int, png: Path | None, svg: Path | None, as_json: bool
) -> None:
    """Show messages and bytes of TP over time, in UTC.

    TP is a topic, topic/partition or a glob; several partitions are added up. Only index entries and batch headers are
    read: ten gigabytes take less than a second. Bytes are exact. Messages are counted as offsets, so messages that
    compaction removed and transaction markers count too. A batch counts at its greatest timestamp; a late batch counts
    at the time of the batches before it. A time beyond the year 9999 (for example of a producer that writes
    nanoseconds) counts as no timestamp.

    \b
    kafkafs histogram /var/kafka orders
    kafkafs histogram /var/kafka orders/3 --png orders.png
    """
    from storage.log.histogram import histogram as counted

    use_default_signals(ctx)
    log_dir = open_log_dir(logdir)
    for path in (png, svg):
        if path is not None:
            check_destination(path, logdir)
    targets = expand(log_dir, tp)
    say_remote(log_dir, targets)
    found = counted([log_dir.log(target).snapshot() for target in targets], buckets=buckets)
    if png is not None or svg is not None:
        draw = drawing(ctx, "kafkafs.cli.histogram_plot")
        for path, suffix in ((png, ".png"), (svg, ".svg")):
            if path is not None:
                draw(found, tp, path if path.suffix else path.with_suffix(suffix))
    if as_json:
        print_json(_json(found))
    elif png is None and svg is None:
        _chart(found)


def drawing(ctx: click.Context, module: str) -> Callable[..., None]:
    """The function `draw` of a module that needs matplotlib. Without matplotlib, says so and exits with code 4."""
    try:
        draw: Callable[..., None] = import_module(module).draw
    except ImportError:
        say("matplotlib is not installed: pip install 'kafkafs[plot]'")
        ctx.exit(DATA_ERROR)
    return draw


def _chart(found: Histogram) -> None:
    """Prints one line per bucket: time, messages, bytes, and a bar for the number of messages."""
    rows = [
        (_time_name(start, found.width_ms), f"{messages:,}", _size(size), messages)
        for start, messages, size in zip(
            found.starts_ms.tolist(), found.messages.tolist(), found.size_bytes.tolist(), strict=True
        )
    ]
    if found.undated_messages:
        rows.append(("no timestamp", f"{found.undated_messages:,}", _size(found.undated_bytes), found.undated_messages))
    if not rows:
        echo("no messages")
        return
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    columns = shutil.get_terminal_size((_WIDTH, 0)).columns if sys.stdout.isatty() else _WIDTH
    room = max(10, columns - sum(widths) - 7)
    most = max(row[3] for row in rows) or 1
    for time, messages, size, number in rows:
        eighths = -(-number * room * 8 // most)  # rounded up, so that every message shows
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        echo(f"{time:{widths[0]}}  {messages:>{widths[1]}}  {size:>{widths[2]}}  {bar}".rstrip())
    total = int(found.messages.sum()) + found.undated_messages
    size_bytes = int(found.size_bytes.sum()) + found.undated_bytes
    echo(f"{total:,} messages, {size_bytes:,} bytes; a line is {_duration(found.width_ms)}")


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


def _size(size_bytes: int) -> str:
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _json(found: Histogram) -> dict[str, Any]:
    return {
        "width_ms": found.width_ms,
        "buckets": [
            {"start_ms": start, "messages": messages, "bytes": size}
            for start, messages, size in zip(
                found.starts_ms.tolist(), found.messages.tolist(), found.size_bytes.tolist(), strict=True
            )
        ],
        "no_timestamp": {"messages": found.undated_messages, "bytes": found.undated_bytes},
    }
