"""What a Spark worker does when a task arrives: it acknowledges at once, and excludes its modules from collections."""

from __future__ import annotations

import gc
import pickle
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from kafkafs.spark.jobs.tasks import run_tasks
from kafkafs.spark.python_workers import Started, WorkerStart, WrongWorkerPython, check_python
from kafkafs.spark.source import BatchReader

if TYPE_CHECKING:
    pass


@pytest.fixture
def connections():
    """Both ends of a connection within the machine, one socket that listens, and one without a peer's address."""
    unix = socket.socketpair()
    with (
        unix[0],
        unix[1],
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        yield one, other


def is_quick(connection):
    """Whether received data is acknowledged at once."""
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def talk(one, other):
    """Messages and answers, until the kernel expects that each message has one: at once, unless it had to wait."""
    while is_quick(other):
        one.sendall(b"task")
        assert other.recv(10) == b"task"
        other.sendall(b"result")
        assert one.recv(10) == b"result"


@pytest.mark.nightly
def test_only_in_a_task(connections, monkeypatch):
    one, other = connections
    sent = pickle.dumps(Started(len))
    talk(one, other)
    pickle.loads(sent)
    assert not is_quick(other)
    monkeypatch.setattr("kafkafs.spark.python_workers.TaskContext.get", object)
    monkeypatch.setattr("kafkafs.spark.python_workers._begun", False)  # nothing of the test's own process is frozen
    before = psutil.Process().num_fds()
    assert pickle.loads(sent)("four") == 4
    assert is_quick(other)
    assert psutil.Process().num_fds() == before
    assert not gc.get_freeze_count()


@pytest.mark.nightly
def test_modules_are_kept_from_the_second_task_on():
    """In a new process, because freezing cannot be undone."""
    program = (
        "import gc, pickle; from kafkafs.spark import python_workers as start; "
        "sent = pickle.dumps(start.WorkerStart()); start.TaskContext.get = object; "
        "counts = [pickle.loads(sent) and gc.get_freeze_count() for _ in range(3)]; "
        "assert counts[0] == 0 < 1000 < counts[1], counts; assert counts[2] <= counts[1], counts"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.nightly
def test_the_drivers_workers_keep_their_modules_too():
    """They create what is sent to the tasks, and no task runs in them. In any other process nothing is frozen."""
    program = (
        "import gc, sys; from types import SimpleNamespace; from kafkafs.spark.python_workers import WorkerStart; "
        "elsewhere = [WorkerStart() and gc.get_freeze_count() for _ in range(2)]; "
        "sys.modules['__main__'].__spec__ = SimpleNamespace(name='pyspark.daemon'); "
        "counts = [WorkerStart() and gc.get_freeze_count() for _ in range(2)]; "
        "assert elsewhere == [0, 0] and counts[0] == 0 < 1000 < counts[1], (elsewhere, counts)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def _state(_task):
    """The number of tasks that a worker has begun, and whether its modules are frozen."""
    _BEGUN.append(None)
    return len(_BEGUN), gc.get_freeze_count() > 0


_BEGUN = []


@pytest.mark.nightly
def test_in_spark_workers(spark):
    """The acknowledgement itself cannot be observed afterwards: a connection that was delayed once is fast, too."""
    later = [frozen for number, frozen in run_tasks(spark, _state, range(8), "test") if number > 1]
    assert later
    assert all(later)


def test_whatever_is_sent_takes_it_along(tmp_path):
    from kafkafs.spark.options import parse
    from kafkafs.spark.sink import BatchWriter, SinkOptions, StreamWriter
    from kafkafs.spark.stream import StreamReader
    from storage.clock import SystemClock

    options = parse({"path": str(tmp_path), "subscribe": "orders"})
    sink = SinkOptions(tmp_path)
    stream = StreamReader(options, 2, SystemClock())
    for sent in (BatchReader(options, 2), stream, BatchWriter(sink, []), StreamWriter(sink, [])):
        assert any(isinstance(value, WorkerStart) for value in vars(sent).values())


# The check of the workers' Python before any work is done in vain


VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def session(python, master="local[2]"):
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec=str(python)))


def python_that_says(path, answer):
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
def test_another_python(tmp_path, answer, error):
    python = python_that_says(tmp_path / "python", answer)
    with pytest.raises(WrongWorkerPython, match=error):
        check_python(session(python))
    check_python(session(python, "spark://there:7077"))


def test_a_python_that_will_do(tmp_path):
    check_python(session(sys.executable))
    check_python(session(python_that_says(tmp_path / "python", f"{VERSION} True")))
    with pytest.raises(WrongWorkerPython, match="does not exist here"):
        check_python(session(tmp_path / "none"))


def test_what_is_asked(tmp_path):
    """Another name of this Python, which has everything that is needed."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    check_python(session(python))
