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
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.avro_evolutions import Evolution
from tests.interop.kafka import REQUIRED
from tests.support.downloads import DOWNLOADS

PAIRS = 300
VALUES = 6  # of each pair
SOURCE = Path(__file__).with_name("AvroReferee.java")
CACHE = DOWNLOADS / "avro-1.12.1"


requires_avro = pytest.mark.skipif(
    not (REQUIRED or ((CACHE / "avro-1.12.1.jar").exists() and shutil.which("javac"))),
    reason=f"needs a JDK, and Java's Avro in {CACHE}: tests/run.sh fetches it",
)


@contextmanager
def referee():
    """A function that gives its answer to a question (AvroReferee.java)."""
    command = ["java", "-Xmx256m", "-cp", f"{CACHE}/*", str(SOURCE)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:

        def ask(question):
            process.stdin.write(question + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, "the referee has ended"
            return json.loads(answer)

        try:
            yield ask
        finally:
            process.kill()


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


def main(directory):
    fixture = directory / "avro"
    fixture.mkdir(parents=True)
    answers = {}
    with referee() as ask:
        for seed in range(PAIRS):
            pair = Evolution(seed)
            question = question_of(*pair.texts, [pair.data() for _ in range(VALUES)])
            answers[digest_of(question)] = ask(question)
    (fixture / "answers.json.xz").write_bytes(lzma.compress(json.dumps(answers).encode(), preset=9))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
