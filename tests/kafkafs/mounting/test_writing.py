"""Writing to a real mount with ordinary tools: messages, topics, settings, and what a tool is told when it fails.

The rules of lines are tested in tests/kafkafs/writing.
"""

import errno
import fcntl
import json
import os
import re
import shlex
import subprocess

import pytest

from storage.files import names
from storage.verify.verify import verify_log_dir
from tests.support.builders import build_log_dir
from tests.support.mounts import mounted, requires_fuse
from tests.support.serving_processes import fails_with, killed_after
from tests.support.waiting import wait_for

pytestmark = requires_fuse

MIB = 1 << 20


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    """One mount for the tests of this module: each makes a topic of its own."""
    path = tmp_path_factory.mktemp("writing")
    with mounted(path / "logs", path / "mnt", "--create", write=True) as mount, killed_after(mount.process):
        yield mount
    assert (path / "logs" / names.CLEAN_SHUTDOWN).exists()
    assert verify_log_dir(path / "logs") == []


@pytest.fixture
def topic(mount, request):
    """A new topic of one partition."""
    path = mount.path / re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)
    path.mkdir()
    return path


def shell(command, cwd, code=0):
    """What bash says on stderr."""
    result = subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == code, result.stderr
    return result.stderr


def messages(topic):
    return (topic / "0" / "messages.txt").read_bytes().splitlines()


def eventually(topic, expected):
    """The kernel tells of a close a moment after it: what a last line without newline waits for."""
    wait_for(f"{expected}", lambda: messages(topic) == expected)


TOOLS = {
    "echo": ("echo one >> @append; echo two > 0/@append", [b"one", b"two"]),
    "tee": ("seq 3000 | tee @append > /dev/null", [b"%d" % n for n in range(1, 3001)]),
    "two processes, one descriptor": ("{ printf a; (printf b); (printf 'c\\nd'); } > @append", [b"abc", b"d"]),
    "dd in pieces": ("printf 'a\\nb\\n' | dd of=@append bs=1 2> /dev/null", [b"a", b"b"]),
    "cp": ('f=$(mktemp); printf "a\\nb\\n" > "$f"; cp --preserve=mode "$f" @append; rm "$f"', [b"a", b"b"]),
    "jsonl": ("""echo '{"value":"v","key":"k"}' >> @append.jsonl""", [b"v"]),
    "touch": ("touch @append; chmod 600 0/@append; truncate -s 5 @append", []),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_tools(topic, tool):
    command, expected = TOOLS[tool]
    assert shell(command, topic) == ""
    eventually(topic, expected)
    assert (topic / "@append").read_bytes() == (topic / "0" / "@append.jsonl").read_bytes() == b""


def sparse(path, *parts, size=0):
    """A file with these bytes at these positions and holes elsewhere. It has `size` bytes at least."""
    with path.open("wb") as file:
        for position, data in parts:
            file.seek(position)
            file.write(data)
        file.truncate(max(size, file.tell()))
    assert path.stat().st_blocks * 512 < path.stat().st_size
    return shlex.quote(str(path))


@pytest.mark.parametrize("command", ["cp {} @append", "dd if={} of=@append bs=4096 conv=sparse,notrunc 2> /dev/null"])
def test_holes_are_zeros(topic, tmp_path, command):
    """Tools move on over the holes of a sparse file, and write nothing there."""
    parts = (100_000, b"x\n"), (300_000, b"y\nz"), (600_000, b"\nend\n")
    shell(command.format(sparse(tmp_path / "sparse", *parts, size=900_000)), topic)
    eventually(topic, (tmp_path / "sparse").read_bytes().split(b"\n"))
    long = sparse(tmp_path / "long", (0, b"a\n"), size=1 << 33)
    assert "Message too long" in shell(f"cp {long} @append", topic, code=1)


def test_positions_mean_nothing_but_holes(topic):
    """Who writes at a position again, or before, appends; who appends has no position."""
    path = topic / "@append"
    with path.open("wb", buffering=0) as file:
        for data, position in ((b"one\n", 0), (b"two\n", 0), (b"three\n", 2), (b"3\n", 0), (b"four\n", 8)):
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
    assert messages(topic) == [b"one", b"two", b"three", b"3", b"four", b"five", b"six", b"seven", b"eight"]


# When a line can be read, and when it is on disk


def recovery_point(topic):
    """Up to which offset everything is on disk."""
    return int(json.loads((topic / "0" / "@info.json").read_bytes())["recovery_point"])


def test_a_message_can_be_read_when_its_write_returns(topic):
    with (topic / "@append").open("wb", buffering=0) as file:
        for number in range(50):
            file.write(b"%d\n" % number)
            assert messages(topic)[-1] == b"%d" % number
        file.write(b"one\nhalf")
        assert messages(topic)[50:] == [b"one"]
        assert recovery_point(topic) == 0
        os.fsync(file.fileno())
        assert messages(topic)[50:] == [b"one", b"half"]
        assert recovery_point(topic) == 52


def test_the_sync_command_makes_what_was_appended_durable(topic):
    """sync(1) opens its files for reading."""
    for number, name in enumerate(("0/@append", "@append", "@append.jsonl")):
        shell("echo one >> 0/@append", topic)
        assert recovery_point(topic) == number
        shell(f"sync {name}", topic)
        assert recovery_point(topic) == number + 1


@pytest.mark.parametrize(
    ("name", "flag"), [("0/@append", os.O_SYNC), ("@append", os.O_DSYNC), ("@append.jsonl", os.O_DSYNC)]
)
def test_a_write_to_a_file_opened_with_o_sync_is_durable_when_it_returns(topic, name, flag):
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


def test_a_single_write_can_be_durable(topic):
    with (topic / "@append").open("ab", buffering=0) as file:
        for flags, point in ((0, 0), (os.RWF_SYNC, 2), (0, 2), (os.RWF_DSYNC, 4)):
            os.pwritev(file.fileno(), [b"line\n"], 0, flags)
            assert recovery_point(topic) == point


def test_the_mount_option_sync_makes_every_write_durable(tmp_path):
    with mounted(tmp_path / "logs", tmp_path / "mnt", "--create", "-o", "sync", write=True) as synced:
        (synced.path / "t").mkdir()
        shell("echo one >> t/@append", synced.path)
        assert recovery_point(synced.path / "t") == 1


# What is refused


def test_settings(topic):
    shell("echo retention.ms=5000 >> @config; printf 'segment.bytes=1048576\\n\\n# x\\nflush.ms=' > @config", topic)
    lines = (topic / "@config").read_bytes().splitlines()
    assert lines[:2] == [b"retention.ms=5000", b"segment.bytes=1048576"]
    shell("echo segment.bytes= >> @config", topic)
    assert b"segment.bytes=1048576" not in (topic / "@config").read_bytes().splitlines()
    for bad in ("segment.byte=5", "segment.bytes=x", "nothing", "=5"):
        assert "Invalid argument" in shell(f"echo {bad} >> @config", topic, code=1)
    assert (topic / "@config").read_bytes().splitlines()[0] == b"retention.ms=5000"


def test_why_a_line_was_refused_is_in_the_status_and_the_log(tmp_path):
    """EINVAL tells neither the line nor what is wrong with it."""
    log = tmp_path / "log"
    with mounted(tmp_path / "logs", tmp_path / "mnt", "--create", "-o", f"log={log}", write=True) as mount:
        (mount.path / "t").mkdir()
        for content in (b'{"value":"a"}\n{"value":"b"}\n{"value":{"x":"\\u001b[31m"}}\n', b'{"value":1}'):
            with (mount.path / "t/0/@append.jsonl").open("wb", buffering=0) as file:
                taken = file.write(content)
                with fails_with(errno.EINVAL):
                    file.write(content[taken:]) if taken < len(content) else os.fsync(file.fileno())
        with fails_with(errno.EINVAL):
            (mount.path / "t/@config").write_bytes(b"# set\nretention.ms=\nsegment.bytes=few\n")
        with fails_with(errno.EINVAL):
            (mount.path / "a b").mkdir()
        refused = json.loads((mount.path / "@status.json").read_bytes())["refused_lines"]
    paths = ["t/0/@append.jsonl", "t/0/@append.jsonl", "t/@config", "a b"]
    assert [(entry["path"], entry["line"]) for entry in refused] == list(zip(paths, [3, 1, 3, None], strict=True))
    assert refused[0]["reason"].startswith("`value` must be a string")
    assert "segment.bytes" in refused[2]["reason"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"]) for entry in refused)
    logged = log.read_text()
    assert [entry["reason"] for entry in refused if entry["reason"] not in logged] == []
    assert "refused: t/0/@append.jsonl: line 3, after 2 accepted lines: `value` must be" in logged
    assert "\x1b" not in logged


# More than a message may have: max.message.bytes is 1,048,588 unless set.
OVERLONG = b"x" * 2 * MIB
# Lines, and how many of them precede the one that is refused.
REFUSED = {
    "2 MiB": (b"g1\n" + OVERLONG + b"\ng2\n", 1),
    "last": (b"g1\n" * 100_000 + b"x" * (MIB + 3) + b"\n", 100_000),
    "without a newline": (b"g1\n" + OVERLONG, 1),
}


@pytest.mark.parametrize(
    "command", ["dd of=@append bs=64M", "dd of=@append bs=1000", "cat >> @append", "tee @append > /dev/null"]
)
@pytest.mark.parametrize("case", REFUSED)
def test_tools_fail_at_the_line_that_is_refused(topic, tmp_path, case, command):
    """A write(2) of many FUSE requests, of which one is refused: exactly the lines before it are appended."""
    data, good = REFUSED[case]
    (tmp_path / "lines").write_bytes(data)
    assert "Message too long" in shell(f"{command} < {shlex.quote(str(tmp_path / 'lines'))}", topic, code=1)
    assert len(messages(topic)) == good


@pytest.mark.parametrize("sync", [False, True], ids=["write", "fsync"])
def test_after_an_error_the_open_file_is_refused_until_it_is_closed(topic, sync):
    """Also after one that the kernel dropped: then it comes with the next call."""
    with (topic / "@append").open("wb", buffering=0) as file:
        assert 0 < file.write(b"g1\n" + OVERLONG + b"\ng2\n") < 2 * MIB  # the caller does not write the rest
        for _ in range(2):
            with fails_with(errno.EMSGSIZE):
                os.fsync(file.fileno()) if sync else file.write(b"g3\n")
        with fails_with(errno.EMSGSIZE):
            file.write(b"g3\n")
        with fails_with(errno.EMSGSIZE):
            os.fsync(file.fileno())
        assert recovery_point(topic) == 1  # what was accepted is on disk all the same
    with (topic / "@append").open("wb", buffering=0) as file:
        file.write(b"g4\n")
    assert messages(topic) == [b"g1", b"g4"]


# A stopped broker's directory


def test_a_stopped_brokers_directory(tmp_path):
    log_dir = build_log_dir(tmp_path / "logs", {"t": [[b"one", b"two"]], "__consumer_offsets": [[b"x"]]}).path
    before = (log_dir / names.CLEAN_SHUTDOWN).read_bytes()
    with mounted(log_dir, tmp_path / "mnt", write=True) as mount:
        assert not (log_dir / names.CLEAN_SHUTDOWN).exists()
        with fails_with(errno.EINVAL):  # the number of its partitions is unknown here
            os.open(mount.path / "t" / "@append", os.O_WRONLY)
        with fails_with(errno.EPERM):
            os.open(mount.path / "__consumer_offsets" / "0" / "@append", os.O_WRONLY)
        (mount.path / "t" / "0" / "@append").write_bytes(b"three\n")
        assert messages(mount.path / "t") == [b"one", b"two", b"three"]
    assert (log_dir / names.CLEAN_SHUTDOWN).read_bytes() == before
    assert verify_log_dir(log_dir) == []
