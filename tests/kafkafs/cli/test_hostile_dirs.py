"""Log directories that a stranger has made: nothing of them is run, followed for writing, waited for or printed raw."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest

from storage.coordinators.transactions import TransactionMetadata, TransactionState
from storage.files import manifest
from storage.format.block import Record
from storage.types import TopicPartition
from tests.storage.coordinators.test_transactions import state_topic
from tests.support.builders import START_MS, Batch, Partition, build_log_dir, many
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
        found = process(*words, stdin=subprocess.DEVNULL)
        stdout, stderr = found.communicate(timeout=60)
        assert found.returncode == 2, stderr
        assert b"\x1b" not in stdout + stderr
        assert b"x1b[2J" in stderr


EVIL = "\x1b]0;evil\x07\x1b[2J\x9b\u202e"


def evil_log_dir(path):
    """A log directory that has an escape sequence wherever it can have a text."""
    state = TransactionMetadata(6, 6, 60_000, TransactionState.ONGOING, (TopicPartition("t", 0),), START_MS, START_MS)
    open_one = Batch(many(2), producer_id=6, producer_epoch=6, transactional=True)
    topics = {"t": [Partition([open_one])], "__transaction_state": state_topic((f"{EVIL}transaction", state))}
    build_log_dir(path, topics, broker=False)
    assert run("groups", path, f"{EVIL}group", "--reset-to", "earliest", "--topic", "t").exit_code == 0
    records = [
        schema_record(f"{EVIL}subject", 1, 1),
        schema_record("t-value", 1, 2, f"{EVIL}schema"),
        schema_record("t-key", 1, 3, json.dumps({"type": "record", "name": f"{EVIL}name", "fields": []})),
    ]
    GrowingLog(path, "_schemas-0").append(records)
    GrowingLog(path, "u-0").append([Record(None, framed(2, b"x"))])
    (path / f"{EVIL}-0.{'0' * 32}-delete").mkdir()
    (path / f"t-0/{EVIL}.log").write_text(EVIL)
    (path / "t-0/topic.properties").write_text(f"retention.ms={EVIL}\n{EVIL}=1\ncleanup.policy={EVIL}\n")
    (path / "meta.properties").write_text(f"version=1\nnode.id=1\ncluster.id={EVIL}\n{EVIL}={EVIL}\n")
    (path / "recovery-point-offset-checkpoint").write_text(f"0\n1\n{EVIL} 0 1\n")


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


# Commands, their exit codes, and whether they show such a text.
SHOWING = [
    ("topics list LOGS", 0, True),
    ("topics describe LOGS", 4, True),
    ("count LOGS", 0, False),
    ("verify LOGS", 1, True),
    ("doctor LOGS", 1, True),
    ("groups LOGS", 0, True),
    ("groups LOGS GROUP", 0, False),
    ("transactions LOGS", 0, True),
    ("retain LOGS --dry-run", 0, False),
    ("recover LOGS --dry-run", 0, False),
    ("metadata LOGS", 4, False),
    ("schemas LOGS", 0, True),
    ("schemas LOGS --to OUT", 0, False),
    ("cat LOGS u --format decoded", 0, False),
    ("revive LOGS --to NEW", 0, True),
]


@pytest.mark.leaves_damage("dir-unparsable", "file-misnamed")
def test_texts_of_the_directory_are_printed_without_control_characters(tmp_path):
    places = {name: tmp_path / name.lower() for name in ("LOGS", "OUT", "NEW")} | {"GROUP": f"{EVIL}group"}
    evil_log_dir(places["LOGS"])
    for command, code, shows in SHOWING:
        result = run(*(places.get(word, word) for word in command.split()))
        assert (command, result.exit_code) == (command, code), result.output
        assert CONTROL.search(result.output) is None, (command, result.output)
        assert ("x1b" in result.output) == shows, (command, result.output)
    assert not [path for path in places["OUT"].rglob("*") if CONTROL.search(path.name)]


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
