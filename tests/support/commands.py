"""Running commands: in this process for results, as a process for exit codes, pipes and signals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kafkafs.cli import main
from storage.types import TopicPartition
from tests.support.blocks import TYPES, Row
from tests.support.builders import BuiltRecord
from tests.support.fixtures import Golden


def run(*args: object) -> Result:
    """Runs a command in this process; its exceptions reach the test."""
    return CliRunner().invoke(
        main, [os.fspath(a) if isinstance(a, Path) else str(a) for a in args], catch_exceptions=False
    )


def output_of(*args: object) -> bytes:
    """Runs a command that must succeed; returns what it prints."""
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def process(*args: object, **kwargs: Any) -> subprocess.Popen[bytes]:
    """A command as a process, stdout and stderr in pipes."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
    return subprocess.Popen([sys.executable, "-m", "kafkafs", *map(str, args)], **options)


def rows_of(records: list[Golden] | list[BuiltRecord], kind: str = "CreateTime") -> list[Row]:
    """Records as rows of the format tests; `kind` is the timestamp type of records that do not have one."""
    return [
        Row(
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            tuple(record.headers),
            TYPES.index(getattr(record, "timestamp_type", kind)),
        )
        for record in records
    ]


def for_partition(line: bytes, tp: TopicPartition) -> bytes:
    """A line of `json_line`, changed to another partition."""
    _, _, rest = line.partition(b',"offset":')
    return f'{{"topic":"{tp.topic}","partition":{tp.partition},"offset":'.encode() + rest
