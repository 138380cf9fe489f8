"""Transcripts: commands as a person types them, and exactly what they print (see tests/README.md).

python -m tests.kafkafs.cli.transcripts --write [NAME…]     regenerate all files, or those of these names
"""

import argparse
import itertools
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from kafkafs.cli import main
from storage.clock import SystemClock
from tests.kafkafs.cli import log_dirs
from tests.support.damaged_bytes import flip
from tests.support.fixtures import FIXTURES, ROOT

DIRECTORY = Path(__file__).with_name("transcripts")
NOW_MS = 1_796_083_200_000  # 2026-12-01T00:00Z, after all messages
JSON_WIDTH = 158
# The head of click's usage errors, which says nothing of the error.
USAGE = re.compile(rb"\AUsage: kafkafs .*(?:\n  .*)*\nTry 'kafkafs .*--help' for help\.\n\n")


@dataclass(frozen=True)
class Section:
    """Commands in one fresh directory. `lines` are its lines without the output of its commands."""

    title: str
    lines: list[str]
    text: str

    def words(self, name):
        """The words of its lines `% NAME WORD…`."""
        given = (line.split()[1:] for line in self.lines if line.startswith("% "))
        return [word for first, *words in given if first == name for word in words]


def sections(file):
    """What a transcript has before its first section, as a section without a title, and its sections."""
    for part in re.split(r"(?m)^(?=== )", file.read_text()):
        lines = [line for line in part.splitlines() if line[:2] in ("==", "% ", "$ ", "# ")]
        yield Section(lines[0][3:] if part.startswith("==") else "", lines, part)


def run_section(section, monkeypatch):
    """Run a section in the working directory, which is empty; return the section with the commands' output."""
    ids = itertools.count(1 << 120)
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: NOW_MS)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(ids)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.cwd() / ".cache"))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")  # the order of `ls`
    shown = []
    for line in section.lines:
        shown.append(line)
        if line.startswith("% "):
            word, *arguments = line.split()[1:]
            if word not in ("leaves", "needs"):
                log_dirs.make(word, *arguments)
        elif line.startswith("$ "):
            shown += output_lines(*run_pipeline(line[2:]))
    return "".join(line + "\n" for line in shown) + "\n"


def run_pipeline(line):
    """Stdout, stderr and exit code of a line: of its last command with one, as with the shell's option pipefail."""
    data, errors, code = b"", b"", 0
    for stage in re.split(r" \| (?=(?:[^']*'[^']*')*[^']*$)", line):
        data, error, exit_code = run_stage(stage, data)
        data, errors, code = without_places(data), errors + without_places(error), exit_code or code
    return data, errors, code


def run_stage(stage, data):
    name, *words = shlex.split(stage)
    if name == "json":
        return readable_json(data, words[0] if words else ""), b"", 0
    if name == "flip":
        flip(Path(words[0]), int(words[1]))
        return b"", b"", 0
    if name != "kafkafs":
        done = subprocess.run(["sh", "-c", stage], input=data, capture_output=True, timeout=60, check=False)
        return done.stdout, done.stderr, done.returncode
    return run_command(words, data)


def run_command(words, data):
    """Run a command in this process, with files as its standard streams: some read and write the descriptors."""
    with ExitStack() as stack:
        streams = {
            name: stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
            for name in ("stdin", "stdout", "stderr")
        }
        os.pwrite(streams["stdin"].fileno(), data, 0)
        code = 0
        # Without pytest's handlers, what is logged is printed as in the real program.
        with patch.multiple(sys, **streams), patch.object(logging.getLogger(), "handlers", []):
            try:
                main.main(words, prog_name="kafkafs")
            except SystemExit as end:
                code = end.code or 0
        contents = []
        for name in ("stdout", "stderr"):
            streams[name].flush()
            contents.append(os.pread(streams[name].fileno(), 1 << 30, 0))
    stdout, stderr = contents
    return stdout, USAGE.sub(b"", stderr), code


def without_places(data):
    """Output with fixed words for what another run has elsewhere."""
    for place, word in ((Path.cwd(), "HERE"), (FIXTURES, "FIXTURES"), (ROOT, "ROOT")):
        data = data.replace(os.fsencode(place), word.encode())
    return data.replace(b"process %d" % os.getpid(), b"process PID")


def readable_json(data, path):
    """JSON, or what is at `path` in it, on several lines where it is longer than one; also each line of jsonl."""
    try:
        documents = [json.loads(data)]
    except json.JSONDecodeError:
        documents = [json.loads(line) for line in data.splitlines()]
    for step in filter(None, path.split(".")):
        documents = [document[int(step) if step.isdigit() else step] for document in documents]
    return "".join(indented(document) + "\n" for document in documents).encode()


def indented(value, before="", indent=""):
    """JSON on one line if it fits; otherwise its short parts side by side, and each long one indented on its own."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(before) + len(line) <= JSON_WIDTH or not isinstance(value, list | dict):
        return indent + before + line
    named = value.items() if isinstance(value, dict) else (("", item) for item in value)
    lines = []
    for name, item in named:
        part = indented(item, f"{json.dumps(name)}: " if name else "", indent + " ")
        if lines and "\n" not in lines[-1] + part and len(lines[-1]) + len(part) <= JSON_WIDTH:
            lines[-1] += ", " + part.lstrip()
        else:
            lines.append(part)
    first, last = "[]" if isinstance(value, list) else "{}"
    return "\n".join([indent + before + first, ",\n".join(lines), indent + last])


def output_lines(stdout, stderr, code):
    """The lines of a transcript below a command: stdout, stderr, exit code."""
    lines = ["  " + line for line in readable(stdout)] + ["! " + line for line in readable(stderr)]
    return lines + ([f"[{code}]"] if code else [])


def readable(data):
    """Lines of text, where each byte that is none, or that cannot be seen, is ⟨hex⟩."""
    text = data.decode(errors="surrogateescape")
    if text and not text.endswith("\n"):
        text += "⟨no newline⟩\n"
    for line in text.split("\n")[:-1]:
        seen = re.sub(r"[^ ]| +$", lambda found: escaped(found[0]), line)
        yield seen or "⟨empty⟩"


def escaped(text):
    if text.isprintable() and not text.isspace():
        return text
    return "".join(f"⟨{byte:02x}⟩" for byte in text.encode(errors="surrogateescape"))


def rewrite(file):
    """Write the file again, with what its commands print now."""
    head, *others = sections(file)
    text = head.text
    for section in others:
        with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as directory:
            monkeypatch.chdir(directory)
            text += run_section(section, monkeypatch)
    file.write_text(text.rstrip("\n") + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", required=True)
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args().names
    for transcript in sorted(DIRECTORY.glob("*.txt")):
        if not chosen or transcript.stem in chosen:
            rewrite(transcript)
