"""Messages and bytes over time as a picture. Needs matplotlib."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from storage.log.histogram import Histogram

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def draw(histogram: Histogram, title: str, path: Path) -> None:
    """Writes a PNG, or an SVG if the name ends in .svg. Times are UTC. OSError; OverflowError beyond the year 9999."""
    matplotlib.rcdefaults()  # a matplotlibrc in the working directory may be a stranger's
    figure = Figure(figsize=(10, 6), layout="constrained")
    canvas = FigureCanvasSVG(figure) if path.suffix.lower() == ".svg" else FigureCanvasAgg(figure)
    panels = figure.subplots(2, sharex=True)
    times = [_EPOCH + timedelta(milliseconds=start) for start in histogram.starts_ms.tolist()]
    width = timedelta(milliseconds=histogram.width_ms)
    for panel, name, values in zip(
        panels, ("messages", "bytes"), (histogram.messages, histogram.size_bytes), strict=True
    ):
        panel.bar(times, values, width=width, align="edge")
        panel.set_title(name, loc="left", fontsize="medium")
        panel.grid(alpha=0.3)
    locator = AutoDateLocator()
    panels[-1].xaxis.set_major_locator(locator)
    panels[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))
    figure.suptitle(title)
    canvas.print_figure(str(path))
