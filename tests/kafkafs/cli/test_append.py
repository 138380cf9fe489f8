"""`kafkafs append`: what is appended, and the errors of what is not."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from kafkafs.mounting.errnos import errno_of
from kafkafs.tree.tree import Tree
from storage.errors import NotPermitted
from storage.files import names
from tests.support.builders import build_log_dir, metadata_records
from tests.support.commands import output_of
from tests.support.owned_dirs import close_clean, opened


def append(log_dir, data, *arguments, code=0):
    """What it prints on stderr."""
    command = [sys.executable, "-m", "kafkafs", "append", str(log_dir), *arguments]
    result = subprocess.run(command, input=data, capture_output=True, timeout=120, check=False)
    assert result.returncode == code, result.stderr.decode()
    assert result.stdout == b""
    return result.stderr.decode()


@pytest.fixture
def logs(tmp_path):
    path = tmp_path / "logs"
    output_of("topics", "create", path, "t", "--partitions", "2", "--config", "max.message.bytes=1000")
    return path


def test_lines(logs):
    assert append(logs, b"one\ntwo\n\nlast", "t/1") == ""
    assert output_of("cat", logs, "t/1") == b"one\ntwo\n\nlast\n"
    append(logs, b"", "t/1")
    append(logs, b"more\n", "t/1")
    assert output_of("cat", logs, "t/1", "--format", "%o %s\n") == b"0 one\n1 two\n2 \n3 last\n4 more\n"


def test_keys(logs):
    append(logs, b"a::1\nb::2::3\nnone\n", "t/0", "--key-separator", "::")
    assert output_of("cat", logs, "t/0", "--format", "%k|%s\n") == b"a|1\nb|2::3\n|none\n"


def test_what_cat_prints_can_be_appended(logs):
    line = b'{"key":"k","value":"v","timestamp":5,"headers":[["h",{"base64":"/w=="}]]}\n'
    append(logs, line, "t/0", "--format=jsonl")
    append(logs, b'{"value":null,"key":"x"}\n', "t/0", "--format=jsonl")
    printed = output_of("cat", logs, "t/0", "--format", "jsonl")
    copy = logs.with_name("copy")
    output_of("topics", "create", copy, "t")
    append(copy, printed, "t", "--format=jsonl")
    assert output_of("cat", copy, "t/0", "--format", "jsonl") == printed


def test_the_directory_is_shut_down_cleanly(logs):
    (logs / names.CLEAN_SHUTDOWN).unlink()
    append(logs, b"x\n", "t")
    assert (logs / names.CLEAN_SHUTDOWN).exists()


def test_a_bad_line(logs):
    said = append(logs, b'{"value":"a"}\n{"value":"b"}\n{bad\n{"value":"c"}\npart', "t/0", "--format=jsonl", code=4)
    assert said.startswith("kafkafs: line 3: line is not valid JSON")
    assert output_of("cat", logs, "t/0") == b"a\nb\n"


@pytest.mark.parametrize("arguments", [["t/x"], ["*"], ["t", "--key-separator="], ["t", "--format=log"]])
def test_usage(logs, arguments):
    append(logs, b"x\n", *arguments, code=2)


def test_no_such_topic(logs):
    assert "no topic" in append(logs, b"x\n", "nix", code=4)
    assert "no partition" in append(logs, b"x\n", "t/7", code=4)
    assert "no such log directory" in append(logs.with_name("nix"), b"x\n", "t", code=4)


def test_a_topic_with_replicas_takes_force(tmp_path):
    """Also for @append: a leader elsewhere would truncate what is added."""
    records = metadata_records("t", 1, replicas=[1, 2, 3])
    logs = build_log_dir(tmp_path / "logs", {"t": [[b"old"]], "__cluster_metadata": [records]}).path
    assert "3 replicas" in append(logs, b"new\n", "t", code=4)
    assert output_of("cat", logs, "t") == b"old\n"
    owned = opened(logs)
    tree = Tree(owned.log_dir, owned=owned)
    for path in ("/t/@append", "/t/0/@append", "/t/@append.jsonl"):
        with pytest.raises(NotPermitted, match="3 replicas") as caught:
            tree.lookup(path).open_to_write().write(b'{"value":"new"}\n')
        assert errno_of(caught.value) == errno.EPERM
    close_clean(owned)
    assert append(logs, b"new\n", "t", "--force") == ""
    assert output_of("cat", logs, "t") == b"old\nnew\n"
