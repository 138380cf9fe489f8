"""Log directories that a stranger has made: nothing of them is run, followed, waited for or believed. See also
transcripts/hostile.txt."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from storage.files import manifest
from storage.format.block import Record
from tests.support.builders import build_log_dir
from tests.support.commands import process, run
from tests.support.fixtures import ROOT
from tests.support.mounts import KAFKAFS
from tests.support.schema_logs import GrowingLog, framed, schema_record


def test_no_code_of_the_directory_is_run(tmp_path):
    pytest.importorskip("grpc_tools", reason="Protobuf schemas need kafkafs[schemas]")
    log_dir, ran = tmp_path / "log", tmp_path / "ran"
    text = 'syntax = "proto3"; message M { int32 a = 1; }'
    GrowingLog(log_dir, "_schemas-0").append([schema_record("t-value", 1, 1, text, schemaType="PROTOBUF")])
    GrowingLog(log_dir, "t-0").append([Record(None, framed(1, b"\0\x08\x05"))])
    code = f"open({str(ran)!r}, 'a').write(__name__)\n"
    for name in ("grpc_tools", "google", "storage", "kafkafs", "numpy"):
        (log_dir / name).mkdir()
        (log_dir / name / "__init__.py").write_text(code)
    for name in ("grpc_tools/protoc.py", "sitecustomize.py", "click.py", "fuse.py"):
        (log_dir / name).write_text(code)
    done = subprocess.run(
        [*KAFKAFS, "cat", ".", "t", "--format", "decoded"], cwd=log_dir, capture_output=True, timeout=120, check=False
    )
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
    for name in ("storage", "kafkafs", "numpy", "pyspark", "pickle"):
        (log_dir / name).mkdir()
        (log_dir / name / "__init__.py").write_text(f"open({str(ran)!r}, 'a').write(__name__)\n")
    command = [*KAFKAFS, "spark", "stats", ".", "t", "--master", "local[1]"]
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


# Files of a terabyte that take no space on disk: their size is not believed, and they are named.

SIZE = 1 << 40


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "log"
    shutil.copytree(ROOT / "examples/sample-log", path)
    (path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    return path


@pytest.mark.parametrize(
    ("name", "code", "doctor_code"),
    [
        ("meta.properties", 4, 4),
        ("recovery-point-offset-checkpoint", 1, 4),
        ("log-start-offset-checkpoint", 4, 4),
        ("cleaner-offset-checkpoint", 1, 4),
        ("kafkafs-commits", 1, 0),  # brokers do not read it
        ("orders-0/topic.properties", 4, 4),
        ("orders-0/leader-epoch-checkpoint", 4, 4),
        ("orders-0/partition.metadata", 4, 4),
        ("orders-0/00000000000000000480.txnindex", 1, 1),
        ("orders-0/00000000000000000480.snapshot", 1, 1),
    ],
)
def test_verify_names_a_file_that_is_too_large(directory, name, code, doctor_code):
    (directory / name).touch()
    os.truncate(directory / name, SIZE)
    result = run("verify", directory)
    assert result.exit_code == code
    assert f"has {SIZE} bytes, and such a file at most" in result.output
    assert name in result.output
    assert run("doctor", directory).exit_code == doctor_code


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_an_index_of_any_size_is_rebuilt(directory, kind):
    os.truncate(directory / f"orders-0/00000000000000000480.{kind}", SIZE // 12 * 12 * 2)
    result = run("recover", directory, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "orders/0: 0 to 500" in result.output


def test_the_end_of_a_log_of_any_size_is_found(directory):
    log = directory / "orders-0/00000000000000000480.log"
    size = log.stat().st_size
    os.truncate(log, SIZE)
    result = run("recover", directory, "--dry-run")
    assert result.exit_code == 0, result.output
    assert f"{SIZE - size} bytes are removed" in result.output.replace(",", "")
    assert run("verify", directory).exit_code == 1


def test_a_manifest(tmp_path):
    path = tmp_path / "manifest"
    path.touch()
    os.truncate(path, SIZE)
    with pytest.raises(OSError, match="at most 67108864"):
        manifest.read(path)
