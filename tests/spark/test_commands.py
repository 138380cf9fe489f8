"""`kafkafs spark …` as processes: interruption, and where Spark's own messages go."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil

from tests.spark.session import new_spark
from tests.support.builders import build_log_dir
from tests.support.commands import run


@new_spark
def test_interrupted_while_spark_starts(tmp_path):
    """No process of Spark remains."""
    logs = build_log_dir(tmp_path / "log", {"orders": [[b"x"]]}).path
    command = [sys.executable, "-m", "kafkafs", "spark", "export", str(logs), str(tmp_path / "table")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (started := psutil.Process(process.pid).children(recursive=True)):
            assert time.monotonic() < deadline, "Spark does not start"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("kafkafs: interrupted\n")
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive


def spark_command(*arguments, **environment):
    command = [sys.executable, "-m", "kafkafs", "spark", *map(str, arguments)]
    environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ, check=False)


@new_spark
def test_what_spark_says_goes_to_a_log(tmp_path):
    """The file remains only if Spark failed; then the error names it."""
    path = build_log_dir(tmp_path / "log", {"orders": [[b"x"]]}).path
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = spark_command("export", path, tmp_path / "a", "--master", "local[1]", "--json", TMPDIR=str(temporary))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["messages"] == 1
    assert not list(temporary.glob("kafkafs-spark-*"))
    options = ("--master", "local[1]")
    done = spark_command("export", path, tmp_path / "b", *options, TMPDIR=str(temporary), PYSPARK_PYTHON="/bin/false")
    (log,) = temporary.glob("kafkafs-spark-*.log")
    assert done.returncode == 4
    assert re.fullmatch(rf"kafkafs: Spark gave up: .*Spark's own messages are in {log}\n", done.stderr)
    assert "ERROR" in log.read_text()


def test_spark_does_not_start(tmp_path):
    path = build_log_dir(tmp_path / "log", {"orders": [[b"x"]]}).path
    done = spark_command("export", path, tmp_path / "table", JAVA_HOME=str(tmp_path), TMPDIR=str(tmp_path))
    assert done.returncode == 4
    assert re.fullmatch(r"kafkafs: Spark does not start; found .*java.*\. It needs Java 17 or 21\n", done.stderr)
    assert not list(tmp_path.glob("kafkafs-spark-*"))


def test_a_mistyped_name_is_told_before_spark_starts(tmp_path, monkeypatch):
    from kafkafs.spark.jobs import session

    def started(*_, **__):
        raise AssertionError("Spark is started")

    monkeypatch.setattr(session, "spark_session", started)
    path = build_log_dir(tmp_path / "log", {"orders": [[b"x"]]}).path
    done = run("spark", "export", str(path), str(tmp_path / "out"), "oders")
    assert done.exit_code == 4
    assert "no topic or partition here is named oders" in done.stderr
