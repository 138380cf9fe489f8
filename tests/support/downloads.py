"""Where tests/run.sh keeps what it downloads: jars, and an older Spark."""

from __future__ import annotations

import os
from pathlib import Path

_CACHE_HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
DOWNLOADS = Path(os.environ.get("KAFKAFS_TEST_CACHE") or _CACHE_HOME / "kafkafs")
