"""`latest.txt` and `latest.jsonl` on a mount: ordinary tools, sizes, a log that grows, too many keys."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess

import pytest

from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.commands import output_of
from tests.support.mounts import mounted, requires_fuse
from tests.support.serving_processes import fails_with

pytestmark = [requires_fuse, pytest.mark.timeout(120)]


def shell(command, directory):
    return subprocess.run(command, shell=True, cwd=directory, check=True, capture_output=True).stdout


def test_tools_and_sizes(tmp_path):
    partitions = [Partition([Batch(many(5_000, size=200, keys=keys))]) for keys in (3_000, 700)]
    build_log_dir(tmp_path / "log", {"t": partitions})
    with mounted(tmp_path / "log", tmp_path / "mnt") as mount:
        topic = mount.path / "t"
        expected = {
            "latest.txt": output_of("cat", tmp_path / "log", "t", "--latest"),
            "latest.jsonl": output_of("cat", tmp_path / "log", "t", "--latest", "--format", "jsonl"),
            "0/latest.jsonl": output_of("cat", tmp_path / "log", "t/0", "--latest", "--format", "jsonl"),
            "1/latest.txt": output_of("cat", tmp_path / "log", "t/1", "--latest"),
        }
        assert expected["latest.txt"].count(b"\n") == 3_700
        for name, content in expected.items():
            assert (topic / name).stat().st_size > 0
            assert shell(f"wc -c < {name}", topic).split() == [str(len(content)).encode()]
            assert shell(f"cat {name}", topic) == content
            assert shell(f"tail -n 3 {name}", topic) == b"".join(content.splitlines(keepends=True)[-3:])
            assert shell(f"dd if={name} bs=777 status=none", topic) == content
            copied = tmp_path / name.replace("/", "-")
            shell(f"cp {name} {shlex.quote(str(copied))}", topic)
            assert copied.read_bytes() == content
            assert (topic / name).stat().st_size == len(content)
        assert shell("tar cf - latest.txt 0/latest.jsonl | tar xOf - latest.txt", topic) == expected["latest.txt"]
        with fails_with(errno.EROFS):
            os.open(topic / "latest.txt", os.O_WRONLY)
        with pytest.raises(FileNotFoundError):
            (topic / "latest.log").stat()


def test_more_keys_than_the_memory_holds(tmp_path):
    build_log_dir(tmp_path / "log", {"t": [Partition([Batch(many(10_000, keys=10_000)) for _ in range(6)])]})
    log = tmp_path / "messages"
    build_log_dir(tmp_path / "few", {"t": [Partition([Batch(many(60_000, keys=60_000))])]})
    with mounted(tmp_path / "few", tmp_path / "mnt", "-o", f"latest_memory=1M,log={log}") as mount:
        with fails_with(errno.ENOMEM):
            (mount.path / "t" / "latest.txt").read_bytes()
        # All else goes on.
        assert len((mount.path / "t" / "0" / "messages.txt").read_bytes().splitlines()) == 60_000
    assert "kafkafs/spark/SPARK.md" in log.read_text()
    with mounted(tmp_path / "log", tmp_path / "mnt2", "-o", "latest_memory=1M") as mount:
        assert len((mount.path / "t" / "latest.txt").read_bytes().splitlines()) == 10_000
