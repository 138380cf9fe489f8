"""The check that the Python of Spark's workers can run this kafkafs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Run by the workers' Python: kafkafs plans, reads and writes there.
_ASK: Final = (
    "import sys, importlib.util as u; "
    "print('%d.%d' % sys.version_info[:2], all(map(u.find_spec, ('kafkafs', 'storage', 'pyarrow'))))"
)
_TIMEOUT_S: Final = 60


class WrongWorkerPython(RuntimeError):
    """The workers' Python lacks kafkafs, or has another version of it."""


def mending(python: str) -> str:
    """Advice on how to give kafkafs to the workers, whose Python is the executable `python`."""
    return (
        f"Install it there (`{python} -m pip install 'kafkafs[spark]'`), or let the workers run a Python that has it: "
        f"PYSPARK_PYTHON={sys.executable}, or --conf spark.pyspark.python={sys.executable}"
    )


def check_python(spark: SparkSession) -> None:
    """Run the Python of a session's workers, if they use another one than this process, and check its kafkafs.

    Only for workers on this machine: those of a cluster may not be running yet, and a task that fails reports the
    cause. WrongWorkerPython.
    """
    try:
        master, python = str(spark.sparkContext.master), str(spark.sparkContext.pythonExec)
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and raises errors of its own
        return
    executable = shutil.which(python)
    if not master.startswith("local") or executable == sys.executable:
        return
    if executable is None:
        raise WrongWorkerPython(f"Spark's workers would run {python}, which does not exist here. {mending(python)}")
    answer = subprocess.run(
        [Path(executable).absolute(), "-P", "-c", _ASK],
        cwd="/", capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    version, _, has_all = answer.stdout.strip().partition(" ")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if has_all != "True":
        raise WrongWorkerPython(f"the Python of Spark's workers, {executable}, has no kafkafs. {mending(executable)}")
    if version != own:
        raise WrongWorkerPython(
            f"the Python of Spark's workers, {executable}, has version {version}, but this one has {own}. "
            f"{mending(executable)}"
        )
