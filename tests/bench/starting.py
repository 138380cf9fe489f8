"""Whole commands on a small directory, where the start of Python and the imports take most of the time."""

from __future__ import annotations

import sys

from tests.bench.case import Context
from tests.bench.measure import Row, run_seconds
from tests.support.fixtures import ROOT
from tests.support.mounts import KAFKAFS

_FLOOR = "python, numpy"


def measure(context: Context) -> None:
    log_dir = str(ROOT / "examples/sample-log")
    commands = {
        "python": [sys.executable, "-c", "pass"],
        _FLOOR: [sys.executable, "-c", "import numpy"],
        "topics list": [*KAFKAFS, "topics", "list", log_dir],
        "count": [*KAFKAFS, "count", log_dir, "orders"],
        "cat --offsets 0": [*KAFKAFS, "cat", log_dir, "orders/0", "--offsets", "0"],
    }
    for command in commands.values():
        run_seconds(command)  # which compiles the modules
    for _ in range(4 * context.runs):
        for name, command in commands.items():
            compare = (_FLOOR,) if not name.startswith("python") else ()
            context.report.add(Row(name, "", note="whole process", compare=compare), run_seconds(command))
