"""Standard output as a sink for much data."""

from __future__ import annotations

import io
import sys

from kafkafs.cli.pump import FileSink, Sink, StreamSink


def stdout_sink() -> Sink:
    """The descriptor where there is one; what was printed before comes before."""
    sys.stdout.flush()
    try:
        return FileSink(sys.stdout.fileno())
    except io.UnsupportedOperation:
        return StreamSink(sys.stdout.buffer)
