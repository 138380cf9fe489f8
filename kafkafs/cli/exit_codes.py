"""Exit codes of all commands (kafkafs/CONTRACT.md, "Errors"). 0 is fine; click itself uses 2 for wrong usage."""

from __future__ import annotations

FOUND = 1  # the check found something
HELD = 3  # the log directory is held by another process
DATA_ERROR = 4  # I/O or data error
INTERRUPTED = 130  # by ^C, after cleaning up; the code that a shell reports for SIGINT
