"""A plot of statistics: messages, bytes and compression ratio over time, a line for each topic. Needs matplotlib."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from kafkafs.spark.jobs.stats import CALENDAR_MS, HOUR_MS, HourStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# The first panel shows what most people look for.
_PANELS: Final[tuple[tuple[str, Callable[[HourStats], float]], ...]] = (
    ("messages an hour", lambda hour: hour.messages),
    ("MiB of log an hour", lambda hour: hour.log_bytes / 2**20),
    ("median size, bytes", lambda hour: hour.median_size),
    ("compression ratio", lambda hour: hour.compression_ratio),
)


def draw(hours: Sequence[HourStats], path: Path) -> None:
    """Writes a PNG. Messages without a timestamp are left out. OSError."""
    # matplotlib ignores labels that begin with an underscore, as names of internal topics do: a blank goes first.
    topics: dict[str, dict[int, HourStats]] = {}
    for hour in hours:
        if hour.hour_ms is not None and hour.hour_ms in CALENDAR_MS:
            topics.setdefault(hour.topic, {})[hour.hour_ms] = hour
    matplotlib.rcdefaults()  # not what a matplotlibrc in the working directory says, which may be a stranger's
    figure = Figure(figsize=(10, 9), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(len(_PANELS), sharex=True)
    for panel, (title, value) in zip(panels, _PANELS, strict=True):
        for topic, by_hour in topics.items():
            times, values = _line(by_hour, value)
            panel.plot(times, values, label=f" {topic}", marker="." if len(by_hour) < 100 else None)
        panel.set_title(title, loc="left", fontsize="medium")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    locator = AutoDateLocator()
    panels[-1].xaxis.set_major_locator(locator)
    panels[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))
    if topics:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    canvas.print_png(str(path))


def _line(by_hour: dict[int, HourStats], value: Callable[[HourStats], float]) -> tuple[list[datetime], list[float]]:
    """Points by time; the line is interrupted (nan) where hours have no messages."""
    times, values, before = [], [], None
    for start, hour in sorted(by_hour.items()):
        if before is not None and start > before + HOUR_MS:
            times.append(_moment(before + HOUR_MS))
            values.append(float("nan"))
        times.append(_moment(start))
        values.append(float(value(hour)))
        before = start
    return times, values


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds // 1000, UTC)
