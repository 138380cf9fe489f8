"""What Spark's Python workers run: kafkafs from where the driver has it, compiled or not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The check of the Python that Spark's workers run: it needs kafkafs, which plans, reads and writes in the workers.
_ASK: Final = (
    "import sys, importlib.util as u; "
    "print('%d.%d' % sys.version_info[:2], all(map(u.find_spec, ('kafkafs', 'storage', 'pyarrow'))))"
)
_TIMEOUT_S: Final = 60


class WrongWorkerPython(RuntimeError):
    """The workers' Python lacks kafkafs, or its version differs from this one's."""


def mending(python: str) -> str:
    """Advice for workers whose Python, the executable `python`, lacks kafkafs."""
    return (
        f"Install it there (`{python} -m pip install 'kafkafs[spark]'`), or let the workers run a Python that has it: "
        f"PYSPARK_PYTHON={sys.executable}, or --conf spark.pyspark.python={sys.executable}"
    )


def check_python(spark: SparkSession) -> None:
    """Checks the Python that the workers of a session on this machine will use, if it is not this one, by running it.

    A cluster is not checked: its machines may not be running yet, and a task that fails reports it. WrongWorkerPython.
    """
    try:
        master, python = str(spark.sparkContext.master), str(spark.sparkContext.pythonExec)
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and raises errors of its own
        return
    found = shutil.which(python)
    if not master.startswith("local") or found == sys.executable:
        return
    if found is None:
        raise WrongWorkerPython(f"Spark's workers would run {python}, which does not exist here. {mending(python)}")
    answer = subprocess.run(
        [Path(found).absolute(), "-P", "-c", _ASK],
        cwd="/", capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    version, _, has_all = answer.stdout.strip().partition(" ")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if has_all != "True":
        raise WrongWorkerPython(f"the Python of Spark's workers, {found}, has no kafkafs. {mending(found)}")
    if version != own:
        raise WrongWorkerPython(
            f"the Python of Spark's workers, {found}, has version {version}, but this one has {own}. {mending(found)}"
        )
