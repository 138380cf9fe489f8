"""The check of the workers' Python before any work is done in vain."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kafkafs.spark.python_workers import WrongWorkerPython, check_python

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def session(python: Path | str, master: str = "local[2]") -> SimpleNamespace:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec=str(python)))


def python_that_says(path: Path, answer: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (f"{VERSION} False", "has no kafkafs.*-m pip install 'kafkafs.*PYSPARK_PYTHON="),
        ("", "has no kafkafs"),
        ("2.7 True", "has version 2.7, but this one has"),
    ],
)
def test_another_python(tmp_path: Path, answer: str, error: str) -> None:
    python = python_that_says(tmp_path / "python", answer)
    with pytest.raises(WrongWorkerPython, match=error):
        check_python(session(python))
    check_python(session(python, "spark://there:7077"))


def test_a_python_that_will_do(tmp_path: Path) -> None:
    check_python(session(sys.executable))
    check_python(session(python_that_says(tmp_path / "python", f"{VERSION} True")))
    with pytest.raises(WrongWorkerPython, match="does not exist here"):
        check_python(session(tmp_path / "none"))


def test_what_is_asked(tmp_path: Path) -> None:
    """Another name of this Python, which has everything that is needed."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    check_python(session(python))
