"""Batches above MOST_BATCH_BYTES, in sparse files: checked, counted and copied in parts, and damage to readers."""

import filecmp
import json
import subprocess
import sys

import pytest

from storage.errors import CorruptBatch, RecordTooLarge
from storage.format.batches import MOST_BATCH_BYTES
from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.record_batch import encode_batch
from tests.support.builders import build_log_dir, many
from tests.support.commands import run
from tests.support.damaged_bytes import overwrite
from tests.support.large_batches import large_batch
from tests.support.readers import built, open_log, read_past_damage

SIZE = MOST_BATCH_BYTES + 1


def build(path, magic=2):
    """A log after a crash, with four messages, a large batch, and two messages; returns its .log."""
    partition = build_log_dir(path, {"t": [many(4)]}, clean=False)["t", 0]
    (path / "recovery-point-offset-checkpoint").unlink()
    for other in partition.path.glob("*.*index"):
        other.unlink()
    log = partition.log()
    with log.open("ab") as file:
        end = file.tell() + SIZE
        file.write(large_batch(4, SIZE, magic))
        file.truncate(end)
    with log.open("ab") as file:
        file.write(encode_batch([Record(None, b"x", (), 1), Record(None, b"y", (), 2)], base_offset=5))
    return log


# In a process of its own: only there the greatest resident size tells of nothing else.
COMMANDS = """
import json, sys
from click.testing import CliRunner
from kafkafs.cli import main

codes = [CliRunner().invoke(main, command).exit_code for command in json.loads(sys.argv[1])]
status = open("/proc/self/status").read()
print(json.dumps([codes, int(status.partition("VmHWM:")[2].split()[0]) >> 10]))
"""


def test_it_is_checked_and_copied_in_parts(tmp_path):
    """One of 2 GiB took 2.15 GB in verify."""
    log, places = build(tmp_path / "log"), [tmp_path / name for name in ("copied", "salvaged", "manifest.json")]
    commands = [
        ("verify", tmp_path / "log"),
        ("recover", tmp_path / "log", "--dry-run"),
        ("recover", tmp_path / "log"),
        ("dump", log),
        ("cat", tmp_path / "log", "t"),
        ("mirror", tmp_path / "log", places[0], "--manifest", places[2]),
        ("verify", places[0], "--manifest", places[2]),
        ("salvage", tmp_path / "log", "t", "--to", places[1]),
    ]
    command = [sys.executable, "-c", COMMANDS, json.dumps(commands, default=str)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    codes, most_mib = json.loads(result.stdout)
    assert codes == [1, 0, 0, 4, 4, 0, 1, 0]
    assert most_mib < 200  # the process itself takes 80
    for place in places[:2]:
        assert filecmp.cmp(log, place / "t-0" / log.name, shallow=False)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_readers_tell_it_as_damage_and_continue(tmp_path, magic):
    snapshot = open_log(build(tmp_path, magic=magic).parent).snapshot()
    assert snapshot.log_end_offset == 7
    records, errors = read_past_damage(snapshot)
    assert [record.offset for record in built(records)] == [0, 1, 2, 3, 5, 6]
    (error,) = errors
    assert isinstance(error, CorruptBatch)
    assert (error.what, error.offset, error.found) == ("record batch is larger than kafkafs reads", 4, SIZE)


def test_a_wrong_checksum_is_found(tmp_path):
    log = build(tmp_path)
    overwrite(log, SIZE // 2, b"x")
    assert "batch-crc" in run("verify", tmp_path).stdout
    assert open_log(log.parent).snapshot().log_end_offset == 4


@pytest.mark.leaves_damage("records")  # its records are not read
def test_one_of_an_undefined_magic_is_salvaged(tmp_path):
    log, whole = build(tmp_path / "log", magic=5), build(tmp_path / "whole")
    assert "1 with a corrected magic byte" in run("salvage", tmp_path / "log", "t", "--to", tmp_path / "copy").stdout
    assert filecmp.cmp(whole, tmp_path / "copy" / "t-0" / log.name, shallow=False)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_it_is_never_written(codec):
    with pytest.raises(RecordTooLarge, match=f"at most {MOST_BATCH_BYTES} bytes"):
        encode_batch([Record(None, bytes(MOST_BATCH_BYTES))], codec=codec)
