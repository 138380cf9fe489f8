"""`kafkafs cat` of values that are far larger than their batch, or than a buffer of the output."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from storage.format.compression import Codec
from tests.support.commands import output_of
from tests.support.live_log import LiveLog

MIB = 1 << 20


@pytest.fixture
def live(tmp_path: Path) -> LiveLog:
    return LiveLog(tmp_path / "log", Codec.ZSTD)


def test_the_head_takes_the_memory_of_the_value_once(live: LiveLog) -> None:
    live.append(b"\1" * (96 * MIB))
    command = [sys.executable, "-m", "kafkafs", "cat", str(live.path.parent), "t", "--format", "jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        head = child.stdout.read(200)
        # It waits for its reader. (A child's ru_maxrss counts its parent's memory too.)
        status = Path(f"/proc/{child.pid}/status").read_text()
        child.stdout.close()
    assert head.startswith(b'{"topic":"t"')
    assert b"\\u0001\\u0001" in head
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert resident < 260 * 1024  # the process itself takes 70 MiB; rendered, the value takes 576


def test_values_are_exact(live: LiveLog) -> None:
    large = b'\1 "plain" ' * (5 * MIB // 10)
    live.append(b"before", large, b"between", large, b"\xff" + large, b"after")
    expected = [b"before", large, b"between", large, b"\xff" + large, b"after"]
    assert output_of("cat", live.path.parent, "t") == b"".join(value + b"\n" for value in expected)
    lines = output_of("cat", live.path.parent, "t", "--format", "jsonl").splitlines()
    values = [json.loads(line)["value"] for line in lines]
    assert values[:4] == [value.decode() for value in expected[:4]]
    assert base64.b64decode(values[4]["base64"]) == expected[4]
    assert values[5] == "after"
