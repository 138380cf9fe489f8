"""Java's Avro as a referee of schema resolution.

    python -m tests.interop.avro_referee DIRECTORY

makes the fixture `avro` in DIRECTORY, which `tests/fixtures/pack.py` packs: `answers.json.xz`, what Java's Avro reads
of the data of the first PAIRS pairs of schemas.
"""

import base64
import hashlib
import json
import lzma
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.kafka import REQUIRED
from tests.support.avro_evolutions import Evolution
from tests.support.downloads import DOWNLOADS

PAIRS = 300
VALUES = 6  # of each pair
SOURCE = Path(__file__).with_name("AvroReferee.java")
CACHE = DOWNLOADS / "avro-1.12.1"


def _missing():
    if not (CACHE / "avro-1.12.1.jar").exists():
        return f"needs Java's Avro in {CACHE}: tests/run.sh fetches it"
    return "" if shutil.which("javac") else "needs a JDK (javac)"


requires_avro = pytest.mark.skipif(bool(_missing()) and not REQUIRED, reason=_missing() or "it is there")


class Referee:
    """A running one."""

    def __init__(self):
        if why := _missing():
            raise RuntimeError(why)
        self._process = subprocess.Popen(
            ["java", "-Xmx256m", "-cp", f"{CACHE}/*", str(SOURCE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, kind, error, at):
        self._process.kill()
        self._process.communicate()

    def read(self, question):
        """Its answer (AvroReferee.java)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the referee has ended"
        return json.loads(answer)


def question_of(writer, reader, data):
    """The question what the second schema reads of data of the first."""
    question = {"writer": writer, "reader": reader, "data": [base64.b64encode(value).decode() for value in data]}
    return json.dumps(question).encode()


def digest_of(question):
    """Identifies a question whose answer is recorded."""
    return hashlib.sha256(question).hexdigest()[:16]


def recorded(fixture):
    """The answers in the fixture, by digest of the question."""
    return json.loads(lzma.decompress((fixture / "answers.json.xz").read_bytes()))


README = """\
`answers.json.xz`: what Java's Avro 1.12.1 reads of random data as a schema that evolved, by digest of the question
(tests/interop/avro_referee.py, which makes it; tests/interop/AvroReferee.java says what an answer is).
"""


def main(directory):
    fixture = directory / "avro"
    fixture.mkdir(parents=True)
    answers = {}
    with Referee() as referee:
        for seed in range(PAIRS):
            pair = Evolution(seed)
            question = question_of(*pair.texts, [pair.data() for _ in range(VALUES)])
            answers[digest_of(question)] = referee.read(question)
    (fixture / "answers.json.xz").write_bytes(lzma.compress(json.dumps(answers).encode(), preset=9))
    (fixture / "README.md").write_text(README)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
