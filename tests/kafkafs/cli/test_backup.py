"""mirror --until, --rename, --manifest; verify --manifest; digest; diff: their output and exit codes."""

from __future__ import annotations

import errno
import json
import shutil

import pytest

from storage.append.partition_log import PartitionLog
from storage.files import names
from storage.format.compression import Codec
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, START_MS, Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, process, run
from tests.support.damaged_bytes import flip
from tests.support.fixtures import ROOT
from tests.support.owned_dirs import append, opened
from tests.support.waiting import wait_for

SAMPLE = ROOT / "examples" / "sample-log"


@pytest.fixture
def source(tmp_path):
    """Two segments, and another partition."""
    items = [Batch(many(5)), Batch(many(5)), ROLL, Batch(many(5))]
    return build_log_dir(tmp_path / "source", {"t": [items, Partition([Batch(many(3))])]}).path


def copy_of(source, tmp_path, *options):
    copy, manifest = tmp_path / "copy", tmp_path / "m.json"
    output_of("mirror", source, copy, "--manifest", manifest, *options)
    moved = tmp_path / "moved"  # damaged by tests; what was written through the engine stays sound
    shutil.copytree(copy, moved, ignore=shutil.ignore_patterns(".lock"))
    return moved, manifest


def test_a_backup_is_verified(source, tmp_path):
    copy, manifest = copy_of(source, tmp_path)
    assert output_of("verify", copy, "--manifest", manifest) == b"nothing wrong\n"
    log = copy / "t-0" / f"{0:020d}.log"  # by its own configuration the copy has one segment
    flip(log, 70)
    result = run("verify", copy, "--manifest", manifest)
    assert result.exit_code == 1
    assert f"{log}: finding manifest-differs" in result.output
    assert "offsets 0 to 9" in result.output
    told = json.loads(run("verify", copy, "t/0", "--manifest", manifest, "--json").output)
    assert {"manifest-differs", "batch-crc"} <= {one["name"] for one in told["findings"]}
    assert output_of("verify", copy, "t/1", "--manifest", manifest) == b"nothing wrong\n"


def test_a_lost_partition_is_found_by_its_name(source, tmp_path):
    copy, manifest = copy_of(source, tmp_path)
    shutil.rmtree(copy / "t-1")
    for tp in ("t", "t/1"):
        result = run("verify", copy, tp, "--manifest", manifest)
        assert result.exit_code == 1
        assert "manifest-missing" in result.output
    assert run("verify", copy, "t/7", "--manifest", manifest).exit_code == 4
    assert run("verify", copy, "t/7").exit_code == 4


def test_until_says_where_it_cut(source, tmp_path):
    until = START_MS + 6000  # the second message of the second batch
    result = run("mirror", source, tmp_path / "copy", "--until", until, "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    mixed = {"base_offset": 5, "last_offset": 9, "later": 3}
    assert [(p["log_end_offset"], p["mixed_batch"]) for p in told["partitions"]] == [(10, mixed), (3, None)]
    assert "t/0: the last batch, offsets 5 to 9, was copied whole; 3 of its messages are later" in result.stderr
    again = run("mirror", source, tmp_path / "copy", "--until", START_MS)
    assert again.exit_code == 4
    assert "after the cut" in again.stderr


def test_a_run_that_was_interrupted_is_continued_and_says_so(source, tmp_path):
    output_of("mirror", source, tmp_path / "copy")
    (tmp_path / "copy" / names.CLEAN_SHUTDOWN).unlink()
    manifest = tmp_path / "m.json"
    result = run("mirror", source, tmp_path / "copy", "--manifest", manifest, "--json")
    assert result.exit_code == 0
    assert "was not closed in order; this run continued" in result.stderr
    assert "t/0: offsets 0 to 14 were in DEST already and not in" in result.stderr
    told = json.loads(result.stdout)
    assert told["continued"] is True
    assert told["manifest"] == str(manifest)
    assert [p["added_to_manifest"] for p in told["partitions"]] == [[0, 14], [0, 2]]
    assert run("mirror", source, tmp_path / "copy", "--manifest", manifest).stderr == ""


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
    told = run("mirror", source.path, copy, "--manifest", manifest, "--json")
    assert told.exit_code == 0
    assert "was not closed in order; this run continued" in told.stderr
    assert json.loads(told.stdout)["partitions"][0]["added_to_manifest"] == [0, 9]
    assert output_of("verify", copy, "--manifest", manifest) == b"nothing wrong\n"
    assert json.loads(output_of("count", copy, "t/0", "--json"))["total"] == 15
    source.close()


def test_no_manifest_of_what_may_not_be_on_the_disk(source, tmp_path, monkeypatch):
    """The last sync of a partition fails, after everything was copied."""
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


def test_manifest_where_none_can_be(source, tmp_path):
    (tmp_path / "text").write_text("a text")
    for file, code in ((source / "m.json", 2), (tmp_path / "none" / "m.json", 2), (tmp_path / "text", 4)):
        assert run("mirror", source, tmp_path / "copy", "--manifest", file).exit_code == code
        assert not (tmp_path / "copy").exists()
    assert run("verify", source, "--manifest", tmp_path / "none.json").exit_code == 2
    assert run("verify", source, "--manifest", tmp_path / "text").exit_code == 4
    assert (tmp_path / "text").read_text() == "a text"


def test_rename(source, tmp_path):
    copy, manifest = copy_of(source, tmp_path, "--rename", "t=restored")
    assert sorted(path.name for path in copy.glob("*-*") if path.is_dir()) == ["restored-0", "restored-1"]
    assert output_of("verify", copy, "--manifest", manifest) == b"nothing wrong\n"
    for options in (["t"], ["=t"], ["t="], ["other=x"], ["t=a", "--rename", "t=b"]):
        assert run("mirror", source, tmp_path / "other", "--rename", *options).exit_code == 2
    assert run("mirror", source, tmp_path / "other", "--rename", "t=a b").exit_code == 4
    assert run("mirror", source, tmp_path / "other", "--follow", "--until", "2026").exit_code == 2


def test_groups_are_in_the_manifest(tmp_path):
    output_of("mirror", SAMPLE, tmp_path / "copy", "orders", "--manifest", tmp_path / "m.json")
    groups = json.loads((tmp_path / "m.json").read_bytes())["groups"]
    assert [(g["group"], g["topic"], g["partition"], g["offset"]) for g in groups] == [
        ("billing", "orders", 0, 420), ("billing", "orders", 1, 200)
    ]  # fmt: skip
    for until, expected in (("2026-11-19", []), ("2100", groups)):
        path = tmp_path / until
        output_of("mirror", SAMPLE, path, "orders", "--manifest", tmp_path / f"{until}.json", "--until", until)
        assert json.loads((tmp_path / f"{until}.json").read_bytes())["groups"] == expected


def test_digest(source, tmp_path):
    lines = output_of("digest", source, "t").decode().splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["PARTITION", "FROM", "END", "MESSAGES"], ["t/0", "0", "15", "15"], ["t/1", "0", "3", "3"]
    ]  # fmt: skip
    told = json.loads(output_of("digest", source, "t/0", "--by", 10, "--json"))
    assert told["algorithm"] == "xxh3-128"
    (partition,) = told["partitions"]
    assert partition["digest"] == lines[1].split()[4]
    assert [(one["start_offset"], one["end_offset"]) for one in partition["ranges"]] == [(0, 10), (10, 15)]
    assert len(output_of("digest", source, "t/0", "--by", 10).splitlines()) == 3
    (part,) = json.loads(output_of("digest", source, "t/0", "--offsets", "10-", "--json"))["partitions"]
    assert part["digest"] == partition["ranges"][1]["digest"]
    assert run("digest", source, "t/0", "--offsets", "99-").exit_code == 4
    assert run("digest", source, "t/0", "--offsets", "x").exit_code == 2
    copy, _ = copy_of(source, tmp_path)
    assert output_of("digest", copy, "t") == output_of("digest", source, "t")


def test_diff(source, tmp_path):
    copy, _ = copy_of(source, tmp_path)
    assert output_of("diff", source, copy, "t") == b"t/0: equal\nt/1: equal\n"
    items = [Batch(many(5)), Batch([*many(4), many(1, 70, keys=1)[0]]), ROLL, Batch(many(6))]
    build_log_dir(tmp_path / "other", {"t": [items]})
    result = run("diff", source, tmp_path / "other", "t", "--by", 5)
    assert result.exit_code == 1
    assert "t/0: differs first at offset 9; differences within 5-9, 15-19" in result.stdout
    assert "key null" in result.stdout
    assert "key 'key-00000'" in result.stdout
    assert "and 10 bytes more" in result.stdout
    assert f"t/1: not in {tmp_path / 'other'}\n" in result.stdout
    assert "  different on both sides: 1, in key, value\n" in result.stdout
    assert f"  only in {tmp_path / 'other'}: 1\n" in result.stdout
    told = json.loads(run("diff", source, tmp_path / "other", "t", "--offsets", "10-", "--json").stdout)
    assert told["differ"] is True
    first, second = told["partitions"]
    assert (first["first"]["offset"], first["first"]["left"]) == (15, None)
    assert first["first"]["right"]["value"].startswith("value-0000005")
    assert second["absent_in"] == str(tmp_path / "other")
    assert second["differs"] is False  # it has nothing from offset 10 on
    said = run("diff", source, tmp_path / "other", "t/1", "--offsets", "10-").stdout
    assert said.startswith(f"t/1: not in {tmp_path / 'other'}; ")
    assert run("diff", tmp_path / "other", source, "t/1").stdout.startswith(f"t/1: not in {tmp_path / 'other'}\n")
    neither = run("diff", source, tmp_path / "other", "missing")
    assert neither.exit_code == 4
    assert f"here, nor in {tmp_path / 'other'}" in neither.stderr
    assert output_of("diff", source, tmp_path / "other", "t/0", "--offsets", "0-8") == b"t/0: equal\n"
    zstd_items = [Batch(many(5), Codec.ZSTD), Batch(many(4), Codec.ZSTD)]
    build_log_dir(tmp_path / "zstd", {"t": [zstd_items]})
    zstd = run("diff", tmp_path / "other", tmp_path / "zstd", "t/0", "--offsets", "0-8")
    assert (zstd.exit_code, zstd.stdout) == (0, "t/0: equal\n")
    assert "t/0: the same messages, stored differently: " in zstd.stderr
    assert zstd.stderr.endswith(f"{tmp_path / 'zstd'} has 2 batches (v2, zstd)\n")
    assert run("diff", source, copy, "t", "--offsets", "last-5").exit_code == 2
    assert run("diff", source, copy, "nothing").exit_code == 4


def test_what_compaction_removes_is_told_from_what_is_lost(tmp_path):
    values = many(6, keys=3)  # the first three have later messages
    whole = build_log_dir(tmp_path / "whole", {"t": [[Batch(values)]]}).path
    compacted = build_log_dir(tmp_path / "compacted", {"t": [[Batch(values[3:], base_offset=3)]]}).path
    lost = build_log_dir(tmp_path / "lost", {"t": [[Batch(values[3:5], base_offset=3)]]}).path
    digests = {output_of("digest", path, "t").split()[-1] for path in (whole, compacted, lost)}
    assert len(digests) == 3
    words = "of them superseded or deletions, as compaction removes them\n"
    assert f"  only in {whole}: 3; all {words}" in run("diff", whole, compacted, "t").stdout
    assert f"  only in {whole}: 4; 3 {words}" in run("diff", whole, lost, "t").stdout
    assert f"  only in {compacted}: 1\n" in run("diff", compacted, lost, "t").stdout


def test_what_cannot_be_read_is_not_equal(source, tmp_path):
    copy, _ = copy_of(source, tmp_path)
    log = copy / "t-0" / f"{0:020d}.log"
    flip(log, 70)
    for command in (["diff", source, copy, "t"], ["digest", copy, "t"]):
        result = run(*command)
        assert result.exit_code == 4
        assert str(log) in result.output
        assert "t/1" in result.output
