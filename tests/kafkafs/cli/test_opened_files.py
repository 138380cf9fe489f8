"""What each command does to the files of a log directory: it opens none through a link, and a look changes nothing."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.spark.session import new_spark
from tests.support.commands import process
from tests.support.every_command import EVERY_COMMAND, known_commands, placed, runs, sample_beside, sample_log_dir
from tests.support.mounts import KAFKAFS, requires_fuse
from tests.support.serving_processes import watched
from tests.support.system_calls import Call, Naming, calls, objection, objections, requires_strace, traced

# A broker follows links, so these commands look whether an entry of the log directory leads to a directory, which only
# stat(2) tells. Nothing of it is opened.
LOOKING = ("doctor", "report", "verify")
AT_AN_ENTRY = re.compile(r'newfstatat\(AT_FDCWD<[^>]*>, "[^"]*/log/[^/"]+", .*, 0\)')

# These do something else after a crash. Opening for writing recovers, whatever the command.
AFTER_A_CRASH = ("append", "doctor", "recover", "verify")


def forbidden_calls(words, tmp_path, *, clean):
    """What a run calls that is forbidden, and what it says on stderr."""
    place = tmp_path / f"{'clean' if clean else 'crashed'}-{len(list(tmp_path.iterdir()))}"
    place.mkdir()
    sample_beside(place)
    log_dir = sample_log_dir(place / "log", clean=clean, broker=words[0] == "doctor")
    command = traced([*KAFKAFS, *placed(words, log_dir, place)], place / "calls")
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / "cache"), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, input=b"key:one\nkey:two\n", capture_output=True, timeout=300, check=False, cwd=place, env=environment
    )
    assert list(calls(place / "calls", log_dir)), f"{words} opens nothing: {done.stderr.decode()}"
    forbidden = objections(place / "calls", log_dir)
    if words[0] in LOOKING:
        forbidden = {text: wrong for text, wrong in forbidden.items() if not AT_AN_ENTRY.fullmatch(text)}
    return forbidden, done.stderr.decode()


def test_each_command_is_tried():
    """A new one needs arguments in `every_command`."""
    assert known_commands() == sorted(EVERY_COMMAND)


@requires_strace
@pytest.mark.parametrize("words", runs(), ids=" ".join)
def test_no_command_opens_anything_through_a_link(words, tmp_path):
    for clean in (True, False) if words[0] in AFTER_A_CRASH else (True,):
        forbidden, said = forbidden_calls(words, tmp_path, clean=clean)
        assert not forbidden
        assert "Traceback" not in said


@requires_strace
@new_spark
@pytest.mark.parametrize("words", runs(spark=True), ids=" ".join)
def test_no_job_opens_anything_through_a_link(words, tmp_path):
    assert not forbidden_calls(words, tmp_path, clean=True)[0]


FLAGS = "O_RDONLY|O_NONBLOCK|O_NOFOLLOW"


@pytest.mark.parametrize(
    ("name", "arguments", "path", "relative", "allowed"),
    [
        ("openat", f'3</log/t-0>, "file", {FLAGS}', "/log/t-0/file", True, True),
        ("openat", f'AT_FDCWD</>, "/log/t-0/file", {FLAGS}', "/log/t-0/file", False, False),
        ("openat", '3</log/t-0>, "file", O_RDONLY|O_NONBLOCK', "/log/t-0/file", True, False),
        ("openat", '3</log/t-0>, "file", O_RDONLY|O_NOFOLLOW', "/log/t-0/file", True, False),
        ("unlinkat", '3</log/t-0>, "file", 0', "/log/t-0/file", True, True),
        ("unlink", '"/log/t-0/file"', "/log/t-0/file", False, False),
        ("fchownat", '3</log>, "file", 1, 1, 0', "/log/file", True, False),
        ("execve", '"/log/grep"', "/log/grep", False, False),
        ("newfstatat", 'AT_FDCWD</>, "/log/t-0/file", {}, 0', "/log/t-0/file", False, False),
    ],
)
def test_the_referee_knows_what_is_forbidden(name, arguments, path, relative, allowed):
    assert (objection(Call(name, arguments, (Naming(path, relative),)), Path("/log")) is None) == allowed


@requires_strace
def test_the_referee_sees_what_a_program_does(tmp_path):
    log_dir, file = tmp_path / "log", tmp_path / "log" / 'a "file" \n\xe9 <3>'
    log_dir.mkdir()
    file.write_bytes(b"")
    subprocess.run(traced(["cat", file], tmp_path / "cat"), check=True, timeout=60)
    assert list(objections(tmp_path / "cat", log_dir).values()) == ["follows a link"]
    subprocess.run(traced(["rm", file], tmp_path / "rm"), check=True, timeout=60)
    assert "changes something by its path" in objections(tmp_path / "rm", log_dir).values()


# Commands that only read, and mounts, do not even change access times.

LONG_AGO_NS = 10**18  # so that a file system mounted `relatime` records any access


def writes(words):
    return (
        words[0] in ("append", "reindex")
        or (words[0] in ("compact", "recover", "retain") and "--dry-run" not in words)
        or (words[0] == "topics" and words[1] in ("alter", "create", "delete"))
        or "--reset-to" in words
        or words[:3] == ["mirror", "SOURCE", "LOGS"]
    )


@pytest.fixture
def files(tmp_path):
    """A log directory as after a crash, and all that is in it, which nobody has read or written for long."""
    path = sample_log_dir(tmp_path / "logs", clean=False)
    files = [path, *path.rglob("*")]
    for file in files:
        os.utime(file, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return files


def touched(files):
    return [file for file in files if {file.stat().st_atime_ns, file.stat().st_mtime_ns} != {LONG_AGO_NS}]


@pytest.mark.parametrize("words", [words for words in runs() if not writes(words)], ids=" ".join)
def test_a_look_changes_nothing(files, tmp_path, words):
    sample_beside(tmp_path)
    with process(*placed(words, files[0], tmp_path)) as running:
        _, messages = running.communicate(timeout=120)
    # `doctor` has findings, `dump` shows the torn tail, and there is no group `readers`.
    expected = {"doctor": 1, "dump": 4, "groups": 4 if "readers" in words else 0}.get(words[0], 0)
    assert running.returncode == expected, messages
    assert touched(files) == []


@requires_fuse
def test_a_read_only_mount_changes_nothing(files, tmp_path):
    with watched(files[0], tmp_path / "mnt") as mount:
        for folder, _, names in os.walk(mount.path):
            for name in names:
                Path(folder, name).read_bytes()
        assert (mount.path / "orders/0/time/2020--.log").read_bytes()
    assert touched(files) == []
