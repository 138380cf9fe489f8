"""Exit codes of all commands (product.md section 4). 0 is fine; click itself uses 2 for usage."""

from __future__ import annotations

FOUND = 1  # the check found something
USAGE = 2
HELD = 3  # the log directory is held by another process
DATA_ERROR = 4  # I/O or data error
INTERRUPTED = 130  # by ^C, after what was begun has been put in order; as a shell says of those that it ends
