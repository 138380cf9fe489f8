"""Writing to a real mount with ordinary tools: messages, topics, settings, and what a tool is told when it fails."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from storage.files import names
from storage.verify.verify import verify_log_dir
from tests.support.builders import build_log_dir
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.serving_processes import fails_with, killed_after
from tests.support.waiting import wait_for

pytestmark = requires_fuse


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    """One mount for all tests of this module: each makes a topic of its own."""
    path = tmp_path_factory.mktemp("writing")
    with mounted(path / "logs", path / "mnt", "--create", write=True) as mount, killed_after(mount.process):
        yield mount
    assert (path / "logs" / names.CLEAN_SHUTDOWN).exists()
    assert verify_log_dir(path / "logs") == []


@pytest.fixture
def topic(mount, request):
    """A new topic of one partition."""
    path = mount.path / re.sub(r"[^a-z]+", "-", request.node.name)
    path.mkdir()
    return path


def shell(command, cwd, code=0):
    """What bash says on stderr."""
    result = subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == code, result.stderr
    return result.stderr


def messages(topic):
    return (topic / "0" / "messages.txt").read_bytes().splitlines()


def eventually(topic, expected):
    """The kernel tells of a close a moment after it: what a last line without newline waits for."""
    wait_for(f"{expected}", lambda: messages(topic) == expected)


TOOLS = {
    "echo": ("echo one >> @append; echo two >> 0/@append", [b"one", b"two"]),
    "truncating echo": ("echo one > @append; echo two > 0/@append", [b"one", b"two"]),
    "cat": ("seq 1000 | cat > @append", [b"%d" % n for n in range(1, 1001)]),
    "tee": ("seq 3000 | tee @append > /dev/null", [b"%d" % n for n in range(1, 3001)]),
    "awk": ("seq 3000 | awk '{print}' > @append", [b"%d" % n for n in range(1, 3001)]),
    "printf line by line": ("{ for i in 1 2 3; do printf '%s\\n' $i; done; } > @append", [b"1", b"2", b"3"]),
    "printf without newlines": ("{ printf a; printf b; printf 'c\\nd'; } > @append", [b"abc", b"d"]),
    "two processes, one descriptor": ("{ (printf a); (printf b); } > @append", [b"ab"]),
    "dd in pieces": ("printf 'a\\nb\\n' | dd of=@append bs=1 2> /dev/null", [b"a", b"b"]),
    "cp": ('f=$(mktemp); printf "a\\nb\\n" > "$f"; cp --preserve=mode "$f" @append; rm "$f"', [b"a", b"b"]),
    "jsonl": ("""echo '{"value":"v","key":"k"}' >> @append.jsonl""", [b"v"]),
    "touch": ("touch @append; chmod 600 0/@append; truncate -s 5 @append", []),
}


def sparse(path, *parts, size=0):
    """A file with these bytes at these positions and holes elsewhere; its content. It has `size` bytes at least."""
    with path.open("wb") as file:
        for position, data in parts:
            file.seek(position)
            file.write(data)
        file.truncate(max(size, file.tell()))
    content = path.read_bytes()
    assert path.stat().st_blocks * 512 < len(content)
    return content


HOLES = {
    "in the middle": ([(0, b"first\n"), (200_000, b"\nlast\n")], 0),
    "at the beginning": ([(300_000, b"\nlast\n")], 0),
    "at the end": ([(0, b"first\nsecond\n")], 300_000),
    "everywhere": ([(100_000, b"x\n"), (300_000, b"y\nz"), (600_000, b"\nend\n")], 900_000),
}
COPYING = {
    "cp": "cp {} @append",
    "cp that makes holes": "cp --sparse=always {} @append",
    "cp without": "cp --sparse=never {} @append",
    "dd": "dd if={} of=@append bs=4096 conv=sparse,notrunc 2> /dev/null",
    "cat": "cat {} > @append",
    "cat that appends": "cat {} >> @append",
}


@pytest.mark.parametrize("tool", COPYING)
@pytest.mark.parametrize("holes", HOLES)
def test_holes_are_zeros(topic, tmp_path, tool, holes):
    """Tools move on over the holes of a sparse file, and write nothing there."""
    parts, size = HOLES[holes]
    content = sparse(tmp_path / "sparse", *parts, size=size)
    shell(COPYING[tool].format(shlex.quote(str(tmp_path / "sparse"))), topic)
    eventually(topic, content.splitlines() if content.endswith(b"\n") else content.split(b"\n"))


def test_a_hole_that_is_too_long_for_a_message_is_refused(topic, tmp_path):
    for name, parts, size in (("middle", [(0, b"a\n"), (1 << 33, b"\nb\n")], 0), ("end", [(0, b"a\n")], 1 << 33)):
        with (tmp_path / name).open("wb") as file:
            for position, data in parts:
                file.seek(position)
                file.write(data)
            file.truncate(max(size, file.tell()))
        assert "Message too long" in shell(f"cp {shlex.quote(str(tmp_path / name))} @append", topic, code=1)
    assert messages(topic) == [b"a", b"a"]


def test_positions_mean_nothing_but_holes(topic):
    """Who writes at a position again, or before, appends; who appends has no position."""
    path = topic / "@append"
    with path.open("wb", buffering=0) as file:
        for data, position in ((b"one\n", 0), (b"two\n", 0), (b"three\n", 2), (b"four\n", 8)):
            file.seek(position)
            file.write(data)
    with path.open("ab", buffering=0) as file:
        file.write(b"five\n")
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) & ~os.O_APPEND)
        file.seek(0)
        file.write(b"six\n")
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
        file.seek(500)
        file.write(b"seven\n")
    with path.open("wb", buffering=0) as file:
        file.truncate(1000)
        file.write(b"eight\n")
    assert messages(topic) == [b"one", b"two", b"three", b"four", b"five", b"six", b"seven", b"eight"]


@pytest.mark.parametrize("tool", TOOLS)
def test_tools(topic, tool):
    command, expected = TOOLS[tool]
    assert shell(command, topic) == ""
    eventually(topic, expected)
    assert (topic / "@append").read_bytes() == (topic / "0" / "@append.jsonl").read_bytes() == b""


def test_a_message_can_be_read_when_its_write_returns(topic):
    with (topic / "@append").open("wb", buffering=0) as file:
        for number in range(50):
            file.write(b"%d\n" % number)
            assert messages(topic)[-1] == b"%d" % number


def test_fsync_ends_the_line_and_flushes(topic):
    with (topic / "0" / "@append").open("wb", buffering=0) as file:
        file.write(b"one\nhalf")
        assert messages(topic) == [b"one"]
        os.fsync(file.fileno())
        assert messages(topic) == [b"one", b"half"]


def recovery_point(topic):
    """Up to which offset everything is on disk."""
    return int(json.loads((topic / "0" / "@info.json").read_bytes())["recovery_point"])


def test_the_sync_command_makes_what_was_appended_durable(topic):
    """sync(1) opens its files for reading."""
    for name in ("0/@append", "@append", "@append.jsonl"):
        before = recovery_point(topic)
        shell("echo one >> 0/@append", topic)
        assert recovery_point(topic) == before
        shell(f"sync {name}", topic)
        assert recovery_point(topic) == before + 1


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC], ids=["O_SYNC", "O_DSYNC"])
@pytest.mark.parametrize("name", ["0/@append", "@append", "@append.jsonl"])
def test_a_write_to_a_file_opened_with_o_sync_is_durable_when_it_returns(mount, request, name, flag):
    topic = mount.path / re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)
    topic.mkdir()
    line = b'{"value":"a"}\n'
    descriptor = os.open(topic / name, os.O_WRONLY | os.O_APPEND | flag)
    try:
        assert os.write(descriptor, line) == len(line)
        assert recovery_point(topic) == 1
        many = line * 20_000  # more than one request of FUSE
        assert os.write(descriptor, many + line[:-1]) == len(many) + len(line) - 1
        assert recovery_point(topic) == 20_001
    finally:
        os.close(descriptor)
    wait_for("the close", lambda: recovery_point(topic) == 20_002)  # of which the kernel tells a moment after it


@pytest.mark.parametrize("flag", [os.RWF_SYNC, os.RWF_DSYNC], ids=["RWF_SYNC", "RWF_DSYNC"])
def test_a_single_write_can_be_durable(mount, request, flag):
    topic = mount.path / re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)
    topic.mkdir()
    descriptor = os.open(topic / "@append", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, b"one\n")
        assert recovery_point(topic) == 0
        os.pwritev(descriptor, [b"two\n"], 0, flag)
        assert recovery_point(topic) == 2
        os.write(descriptor, b"three\n")
        assert recovery_point(topic) == 2
    finally:
        os.close(descriptor)


def test_the_mount_option_sync_makes_every_write_durable(tmp_path):
    with mounted(tmp_path / "logs", tmp_path / "mnt", "--create", "-o", "sync", write=True) as synced:
        (synced.path / "t").mkdir()
        shell("echo one >> t/@append", synced.path)
        assert recovery_point(synced.path / "t") == 1


def test_why_a_line_was_refused_is_in_the_status_and_the_log(tmp_path):
    """EINVAL tells neither the line nor what is wrong with it."""
    log = tmp_path / "log"
    with mounted(tmp_path / "logs", tmp_path / "mnt", "--create", "-o", f"log={log}", write=True) as mount:
        (mount.path / "t").mkdir()
        for content in (b'{"value":"a"}\n{"value":"b"}\n{"value":{"x":"\\u001b[31m"}}\n', b'{"value":1}'):
            file = os.open(mount.path / "t/0/@append.jsonl", os.O_WRONLY)
            try:
                taken = os.write(file, content)
                with fails_with(errno.EINVAL):
                    os.write(file, content[taken:]) if taken < len(content) else os.fsync(file)
            finally:
                os.close(file)
        with fails_with(errno.EINVAL):
            (mount.path / "t/@config").write_bytes(b"# set\nretention.ms=\nsegment.bytes=few\n")
        with fails_with(errno.EINVAL):
            (mount.path / "a b").mkdir()
        found = json.loads((mount.path / "@status.json").read_bytes())["refused_lines"]
    assert [(entry["path"], entry["line"]) for entry in found] == [
        ("t/0/@append.jsonl", 3),
        ("t/0/@append.jsonl", 1),
        ("t/@config", 3),
        ("a b", None),
    ]
    assert found[0]["reason"].startswith("`value` must be a string")
    assert "tojson" in found[0]["reason"]
    assert "segment.bytes" in found[2]["reason"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"]) for entry in found)
    logged = log.read_text()
    for entry in found:
        assert entry["reason"] in logged
    assert "refused: t/0/@append.jsonl: line 3 of the write: `value` must be" in logged
    assert "\x1b" not in logged


def test_parallel_writers_never_mix_lines(topic):
    def write(writer):
        with (topic / "0" / "@append").open("wb", buffering=0) as file:
            data = b"".join(b"%d:%d %s\n" % (writer, n, b"%d" % writer * (n % 50)) for n in range(2000))
            for position in range(0, len(data), 777):
                file.write(data[position : position + 777])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    found = messages(topic)
    assert len(found) == 8 * 2000
    for writer in range(8):
        expected = [b"%d:%d %s" % (writer, n, b"%d" % writer * (n % 50)) for n in range(2000)]
        assert [line for line in found if line.startswith(b"%d:" % writer)] == expected


def test_settings(topic):
    shell("echo retention.ms=5000 >> @config; printf 'segment.bytes=1048576\\n\\n# x\\nflush.ms=' > @config", topic)
    lines = (topic / "@config").read_bytes().splitlines()
    assert lines[:2] == [b"retention.ms=5000", b"segment.bytes=1048576"]
    shell("echo segment.bytes= >> @config", topic)
    assert b"segment.bytes=1048576" not in (topic / "@config").read_bytes().splitlines()
    for bad in ("segment.byte=5", "segment.bytes=x", "nothing", "=5"):
        assert "Invalid argument" in shell(f"echo {bad} >> @config", topic, code=1)
    assert (topic / "@config").read_bytes().splitlines()[0] == b"retention.ms=5000"


def test_internal_topics(tmp_path):
    logs = build_log_dir(tmp_path / "logs", {"read": [[b"x"]]}, broker=False).path
    with mounted(logs, tmp_path / "mnt", write=True) as mount, fails_with(errno.EPERM):
        (mount.path / "__consumer_offsets").mkdir()
    run_kafkafs("groups", logs, "g", "--reset-to", "earliest", "--topic", "read")
    with mounted(logs, tmp_path / "mnt", write=True) as mount:
        topic = mount.path / "__consumer_offsets"
        (partition, *_) = (path for path in topic.iterdir() if path.name.isdigit())
        with fails_with(errno.EPERM):
            os.open(partition / "@append", os.O_WRONLY)
