"""Standard output as a sink for large amounts of data."""

from __future__ import annotations

import io
import sys

from kafkafs.cli.output import FileSink, Sink, StreamSink


def stdout_sink() -> Sink:
    """The descriptor of stdout if there is one. What was printed before is written first."""
    sys.stdout.flush()
    try:
        return FileSink(sys.stdout.fileno())
    except io.UnsupportedOperation:
        return StreamSink(sys.stdout.buffer)
