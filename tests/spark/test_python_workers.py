"""Spark's Python workers: which Python they must run, with compiled kernels, and what they keep of their modules."""

import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

from kafkafs.spark.kernels_check import UncompiledKernels, require_compiled
from kafkafs.spark.python_workers import WrongWorkerPython, check_python
from tests.support.builders import build_log_dir

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def session(python, master="local[2]"):
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec=str(python)))


def script(path, line):
    path.write_text(f"#!/bin/sh\n{line}\n")
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
def test_another_python(tmp_path, answer, error):
    python = script(tmp_path / "python", f"echo '{answer}'")
    with pytest.raises(WrongWorkerPython, match=error):
        check_python(session(python))
    check_python(session(python, "spark://there:7077"))


def test_a_python_that_will_do(tmp_path):
    check_python(session(sys.executable))
    check_python(session(script(tmp_path / "says", f"echo '{VERSION} True'")))
    check_python(session(script(tmp_path / "python", f'exec {sys.executable} "$@"')))  # it has all that is needed
    with pytest.raises(WrongWorkerPython, match="does not exist here"):
        check_python(session(tmp_path / "none"))


def test_uncompiled_kernels_are_refused_unless_allowed(monkeypatch):
    monkeypatch.setattr(import_module("storage.format.decode_kernel"), "__file__", "decode_kernel.py")
    with pytest.raises(UncompiledKernels, match=r"storage.format.decode_kernel is not compiled .*allowUncompiled"):
        require_compiled()
    require_compiled(allow_uncompiled=True)
    monkeypatch.undo()
    require_compiled()


@pytest.mark.parametrize("method", ["reader", "streamReader", "writer", "streamWriter"])
def test_the_driver_refuses_uncompiled_kernels_before_it_starts_tasks(tmp_path, monkeypatch, method):
    data_source = pytest.importorskip("kafkafs.spark.data_source").KafkafsDataSource
    build_log_dir(tmp_path, {"t": [[b"value"]]})
    schema = data_source({"path": str(tmp_path), "subscribe": "t"}).schema()
    reads = method.lower().endswith("reader")
    source = data_source({"path": str(tmp_path), **({"subscribe": "t"} if reads else {})})
    arguments = (schema,) if reads else (schema, False)
    assert getattr(source, method)(*arguments)
    monkeypatch.setattr(import_module("storage.format.decode_kernel"), "__file__", "decode_kernel.py")
    with pytest.raises(UncompiledKernels):
        getattr(source, method)(*arguments)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("becomes_a_worker", "frozen"),
    [
        ("start.TaskContext.get = object", [False, True, True]),
        ("sys.modules['__main__'].__spec__ = SimpleNamespace(name='pyspark.daemon')", [False, True, True]),
        ("pass", [False, False, False]),
    ],
    ids=["in a task", "of the driver", "elsewhere"],
)
def test_modules_are_kept_from_the_second_task_on(becomes_a_worker, frozen):
    """In a new process, because freezing cannot be undone."""
    program = (
        "import gc, pickle, sys; from types import SimpleNamespace; from kafkafs.spark import worker_start as start; "
        f"sent = pickle.dumps(start.Started(len)); {becomes_a_worker}; "
        "print([pickle.loads(sent)('four') == 4 and gc.get_freeze_count() > 1000 for _ in range(3)])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == f"{frozen}\n"
