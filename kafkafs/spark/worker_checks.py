"""The Python that Spark's workers run: it must have kafkafs, which plans, reads and writes there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ASK: Final = (
    "import sys, importlib.util as u; "
    "print('%d.%d' % sys.version_info[:2], all(map(u.find_spec, ('kafkafs', 'storage', 'pyarrow'))))"
)
_TIMEOUT_S: Final = 60


class WrongWorkerPython(RuntimeError):
    """The workers' Python lacks kafkafs, or is of another version than this one."""


def mending(python: str) -> str:
    """How workers whose Python lacks kafkafs get it. `python`: what runs them."""
    return (
        f"Install it there (`{python} -m pip install 'kafkafs[spark]'`), or have the workers run a Python that has it: "
        f"PYSPARK_PYTHON={sys.executable}, or --conf spark.pyspark.python={sys.executable}"
    )


def check_python(spark: SparkSession) -> None:
    """Asks the Python that the workers of a session on this machine will run, if it is another one than this.

    Nothing is asked of a cluster: its machines may not even be there yet; a task that fails says so. WrongWorkerPython.
    """
    try:
        master, python = str(spark.sparkContext.master), str(spark.sparkContext.pythonExec)
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and its own way of saying so
        return
    found = shutil.which(python)
    if not master.startswith("local") or found == sys.executable:
        return
    if found is None:
        raise WrongWorkerPython(f"Spark's workers are to run {python}, which is not here. {mending(python)}")
    answer = subprocess.run([found, "-c", _ASK], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    version, _, has_all = answer.stdout.strip().partition(" ")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if has_all != "True":
        raise WrongWorkerPython(f"the Python of Spark's workers, {found}, has no kafkafs. {mending(found)}")
    if version != own:
        raise WrongWorkerPython(
            f"the Python of Spark's workers, {found}, is version {version}, and this one is {own}. {mending(found)}"
        )
