"""Java's Avro as a referee of schema resolution."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.interop.kafka import REQUIRED

SOURCE = Path(__file__).with_name("AvroReferee.java")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkafs" / "avro-1.12.1"


def _missing() -> str:
    if not (CACHE / "avro-1.12.1.jar").exists():
        return f"needs Java's Avro in {CACHE}: tests/run.sh fetches it"
    return "" if shutil.which("javac") else "needs a JDK (javac)"


requires_avro = pytest.mark.skipif(bool(_missing()) and not REQUIRED, reason=_missing() or "it is there")


class Referee:
    """A running one."""

    def __init__(self) -> None:
        if why := _missing():
            raise RuntimeError(why)
        self._process = subprocess.Popen(
            ["java", "-Xmx256m", "-cp", f"{CACHE}/*", str(SOURCE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def read(self, writer: str, reader: str, data: Sequence[bytes]) -> dict[str, Any]:
        """Its answer (AvroReferee.java)."""
        question = {"writer": writer, "reader": reader, "data": [base64.b64encode(one).decode() for one in data]}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the referee has ended"
        found: dict[str, Any] = json.loads(answer)
        return found
