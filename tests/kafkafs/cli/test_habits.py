"""Words for days, and a mount that holds the lock. See also transcripts/habits.txt."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from kafkafs.reading.range_names import dated
from storage.format.block import Record
from tests.support.builders import build_log_dir
from tests.support.commands import output_of, run
from tests.support.mounts import mounted, requires_fuse, run_kafkafs

DAY_MS = 86_400_000


def test_days(tmp_path):
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    midnight = int(today.timestamp()) * 1000
    times = {"old": -8 * DAY_MS, "week": -6 * DAY_MS, "yesterday": -1, "today": 0}
    records = [Record(None, name.encode(), (), midnight + delta) for name, delta in times.items()]
    logs = build_log_dir(tmp_path / "logs", {"t": [records]}, broker=False).path

    def at(text):
        return output_of("cat", logs, "t", "--time", text).decode().split()

    assert at("today") == ["today"]
    assert at("yesterday") == at("yesterday--today") == at(f"{midnight - 1}--{midnight}") == ["yesterday"]
    assert at("yesterday--") == at("yesterdayT00--") == ["yesterday", "today"]
    assert at("until-today") == at("--today") == ["old", "week", "yesterday"]
    assert at("last-1w") == ["week", "yesterday", "today"]
    reset = json.loads(output_of("groups", logs, "g", "--reset-to", "today", "--topic", "t", "--json"))
    assert [row["offset"] for row in reset["offsets"]] == [3]
    for until, end_offset in (("2000-01-01", 0), ("today", len(times))):
        copy = json.loads(output_of("mirror", logs, tmp_path / "copy", "t", "--until", until, "--json"))
        assert [partition["log_end_offset"] for partition in copy["partitions"]] == [end_offset]
    assert dated("2026-todays", today.date()) == "2026-todays"
    assert dated("today", today.date()) == today.date().isoformat()
    assert dated("yesterday--today", today.date()).startswith((today.date() - timedelta(days=1)).isoformat())


@requires_fuse
def test_a_mount_that_holds_the_lock_is_named(tmp_path):
    logs, mnt = build_log_dir(tmp_path / "logs", {"t": [[b"one"]]}, broker=False).path, tmp_path / "mnt"
    with mounted(logs, mnt, write=True), mounted(logs, tmp_path / "reading"):
        for words in (["topics", "delete", logs, "t"], ["recover", logs], ["recover", logs, "--dry-run"]):
            result = run(*words)
            assert result.exit_code == 3
            assert f"kafkafs mount {logs} {mnt} (process " in result.stderr
            assert result.stderr.endswith(f"It is mounted at {mnt}: `kafkafs umount {mnt}` releases it\n")
        (tmp_path / "third").mkdir()
        mount = run_kafkafs("mount", "--write", logs, tmp_path / "third", check=False)
        assert mount.returncode == 3
        said = f"`kafkafs umount {mnt}` releases it. Or mount it read-only, without --write\n"
        assert mount.stderr.decode().endswith(said)
