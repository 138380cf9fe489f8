"""`kafkafs mirror` whose process or disk fails. See also transcripts/backup.txt."""

from __future__ import annotations

import errno
import json

from storage.append.partition_log import PartitionLog
from storage.files import names
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import build_log_dir
from tests.support.commands import output_of, process, run
from tests.support.owned_dirs import append, opened
from tests.support.waiting import wait_for


def test_a_killed_mirror_leaves_no_manifest(tmp_path):
    source, copy, manifest = opened(tmp_path / "source"), tmp_path / "copy", tmp_path / "m.json"
    source.create_topic("t", 1)
    tp = TopicPartition("t", 0)
    append(source.log(tp), [b"one"] * 10)
    with process("mirror", source.path, copy, "--follow", "--manifest", manifest) as follower:
        wait_for("the copy's topic", (copy / "t-0").is_dir)
        wait_for("its messages", lambda: LogDir.open_read_only(copy).log(tp).snapshot().log_end_offset == 10)
        follower.kill()
    append(source.log(tp), [b"two"] * 5)
    assert not manifest.exists()
    assert not (copy / names.CLEAN_SHUTDOWN).exists()
    result = run("mirror", source.path, copy, "--manifest", manifest, "--json")
    assert result.exit_code == 0
    assert "was not closed in order; this run continued" in result.stderr
    assert json.loads(result.stdout)["partitions"][0]["added_to_manifest"] == [0, 9]
    assert output_of("verify", copy, "--manifest", manifest) == b"nothing wrong\n"
    assert output_of("count", copy, "t/0") == b"15\n"
    source.close()


def test_no_manifest_of_what_may_not_be_on_the_disk(tmp_path, monkeypatch):
    """The last sync of a partition fails, after everything was copied."""
    source = build_log_dir(tmp_path / "source", {"t": [[b"one"], [b"two"]]}).path
    close = PartitionLog.close

    def failing(log):
        close(log)
        if log.tp.partition == 1:
            raise OSError(errno.EIO, "the disk failed")

    monkeypatch.setattr(PartitionLog, "close", failing)
    result = run("mirror", source, tmp_path / "copy", "--manifest", tmp_path / "m.json", "--json")
    assert result.exit_code == 4
    assert ["disk failed" in str(row["error"]) for row in json.loads(result.stdout)["partitions"]] == [False, True]
    assert "the disk failed" in result.stderr
    assert not (tmp_path / "m.json").exists()
