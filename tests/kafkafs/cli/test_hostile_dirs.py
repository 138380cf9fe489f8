"""Log directories that a stranger has made: nothing of them is run, followed, waited for or believed. See also
transcripts/hostile.txt."""

import os
import subprocess

import pytest

from storage.format.block import Record
from tests.support.builders import build_log_dir
from tests.support.commands import process, run
from tests.support.mounts import KAFKAFS
from tests.support.schema_logs import GrowingLog, framed, schema_record


def plant(log_dir, ran, packages, modules=()):
    """Put code into a log directory, for a process whose working directory it is."""
    files = [log_dir / name / "__init__.py" for name in packages] + [log_dir / name for name in modules]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"open({str(ran)!r}, 'a').write(__name__)\n")


def test_no_code_of_the_directory_is_run(tmp_path):
    pytest.importorskip("grpc_tools", reason="Protobuf schemas need kafkafs[schemas]")
    log_dir, ran = tmp_path / "log", tmp_path / "ran"
    text = 'syntax = "proto3"; message M { int32 a = 1; }'
    GrowingLog(log_dir, "_schemas-0").append([schema_record("t-value", 1, 1, text, schemaType="PROTOBUF")])
    GrowingLog(log_dir, "t-0").append([Record(None, framed(1, b"\0\x08\x05"))])
    modules = ("grpc_tools/protoc.py", "sitecustomize.py", "click.py", "fuse.py")
    plant(log_dir, ran, ("grpc_tools", "google", "storage", "kafkafs", "numpy"), modules)
    command = [*KAFKAFS, "cat", ".", "t", "--format", "decoded"]
    done = subprocess.run(command, cwd=log_dir, capture_output=True, timeout=120, check=False)
    assert b'"value":{"a":5}' in done.stdout, done.stderr
    assert not ran.exists()


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_sparks_workers_run_no_code_of_the_directory(tmp_path):
    session = pytest.importorskip("tests.spark.session", exc_type=ImportError)
    if not session.HAVE_JAVA and not session.REQUIRED:
        pytest.skip("no Java: Spark does not run")
    log_dir, ran = build_log_dir(tmp_path / "log", {"t": [[b"a"]]}).path, tmp_path / "ran"
    plant(log_dir, ran, ("storage", "kafkafs", "numpy", "pyspark", "pickle"))
    command = [*KAFKAFS, "spark", "export", ".", tmp_path / "out", "t", "--master", "local[1]"]
    done = subprocess.run(command, cwd=log_dir, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert not ran.exists()


def test_an_argument_is_printed_without_its_control_characters(tmp_path):
    """A shell may have taken it from the names in a directory."""
    log_dir = build_log_dir(tmp_path / "log", {"t": [[b"a"]]}).path
    for words in (["append", log_dir, "\x1b[2Jx/0"], ["cat", log_dir, "t/0", "--offsets", "\x1b[2J"], ["\x1b[2J"]):
        with process(*words, stdin=subprocess.DEVNULL) as running:
            stdout, stderr = running.communicate(timeout=60)
        assert running.returncode == 2, stderr
        assert b"\x1b" not in stdout + stderr
        assert b"x1b[2J" in stderr


@pytest.mark.parametrize("name", ["import.jsonl", "ids/1.avsc"])
def test_a_directory_of_schemas_is_opened_as_a_log_directory_is(tmp_path, name):
    log_dir, place = tmp_path / "log", tmp_path / "log" / name
    place.parent.mkdir(parents=True)
    (log_dir / "2.avsc").write_text('"string"')
    os.mkfifo(place)
    assert "secret" not in run("schemas", log_dir, "--json").output
    place.unlink()
    (tmp_path / "victim").write_text('{"subject":"secret","body":{"version":1,"id":1,"schema":"secret"}}')
    place.symlink_to(tmp_path / "victim")
    assert "secret" not in run("schemas", log_dir, "--json").output
