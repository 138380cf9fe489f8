from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.format.block import Record
from storage.format.compression import Codec
from tests.support.broker_rules import Producers, stored_batches
from tests.support.builders import (
    RESTART,
    ROLL,
    START_MS,
    Batch,
    BuiltRecord,
    Item,
    Partition,
    Raw,
    abort,
    build_log_dir,
    build_wide,
    commit,
    many,
)
from tests.support.fixtures import log_dir_of, requires_fixtures, topics_of

# Their first segments were removed or cleaned, so a replay from the start is not what the broker did.
NOT_FROM_THE_START = {"t-retention-ms", "t-retention-bytes", "t-deleted", "cmp-tomb"}


def replayable() -> Iterator[Any]:
    for fixture in ("roll", "codecs", "transactions", "times", "compaction-before"):
        for topic, facts in topics_of(fixture).items():
            if topic not in NOT_FROM_THE_START:
                for number in range(facts["partitions"]):
                    yield pytest.param(fixture, f"{topic}-{number}", facts, id=f"{fixture}:{topic}-{number}")


def files_of(path: Path, *suffixes: str) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(path.iterdir()) if p.suffix in suffixes}


@requires_fixtures
@pytest.mark.parametrize(("fixture", "name", "facts"), list(replayable()))
def test_replayed_batches_give_the_brokers_own_files(
    fixture: str, name: str, facts: dict[str, Any], tmp_path: Path
) -> None:
    """File names, .log, .index, .timeindex and .txnindex to the byte: the builder's rules are Kafka's."""
    source = log_dir_of(fixture) / name
    config = facts["effective_config"]
    items: list[Item] = []
    restarts = set(facts.get("restart_at_offsets", ()))
    for log in sorted(source.glob("*.log")):
        for batch in stored_batches(log.read_bytes()):
            if batch.base_offset in restarts:
                items.append(RESTART)
            items.append(Raw(batch.data))
    spec = Partition(
        items,
        segment_bytes=int(config.get("internal.segment.bytes") or config["segment.bytes"]),
        segment_ms=int(config["segment.ms"]),
        index_interval_bytes=int(config["index.interval.bytes"]),
        segment_index_bytes=int(config["segment.index.bytes"]),
    )
    built = build_log_dir(tmp_path, {"t": [spec]})["t", 0]
    kinds = (".log", ".index", ".timeindex", ".txnindex")
    assert files_of(built.path, *kinds) == files_of(source, *kinds)
    # A broker that is restarted records its epoch at the log end, before any batch has it.
    theirs = (source / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    ours = (built.path / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    assert ours == [line for line in theirs if not line.endswith(f" {built.log_end_offset}")]


def entries_of(snapshot: bytes) -> dict[int, tuple[int, ...]]:
    count = struct.unpack_from(">i", snapshot, 6)[0]
    entries = [struct.unpack_from(">qhiqiqiq", snapshot, 10 + 46 * i) for i in range(count)]
    return {entry[0]: entry[1:] for entry in entries}


@requires_fixtures
@pytest.mark.parametrize("topic", ["tx-basic-0", "tx-basic-1", "tx-lz4-0", "tx-librdkafka-0", "tx-open-0"])
def test_producer_snapshots_are_the_brokers_own(topic: str) -> None:
    """Every .snapshot of the broker has the same content as ours, except for producers that it had expired."""
    source = log_dir_of("transactions") / topic
    expected = {int(p.stem): entries_of(p.read_bytes()) for p in source.glob("*.snapshot")}
    producers = Producers()
    seen = 0
    for log in sorted(source.glob("*.log")):
        for batch in stored_batches(log.read_bytes()):
            if batch.base_offset in expected:
                ours = entries_of(producers.snapshot())
                theirs = expected[batch.base_offset]
                assert {pid: ours[pid] for pid in theirs} == theirs
                seen += len(theirs)
            producers.append(batch)
    assert seen > 2


def test_values_alone_make_a_topic(tmp_path: Path) -> None:
    built = build_log_dir(tmp_path, {"t": [[b"one", b"two"], []]})
    assert built["t", 0].records == [
        BuiltRecord(0, START_MS, None, b"one"),
        BuiltRecord(1, START_MS + 1000, None, b"two"),
    ]
    assert built["t", 1].records == []
    assert (built["t", 1].path / "00000000000000000000.log").read_bytes() == b""
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n2\nt 0 2\nt 1 0\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n0\n"
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    names = sorted(p.name for p in built["t", 0].path.iterdir())
    assert names == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000002.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]


def test_every_format_and_codec_side_by_side(tmp_path: Path) -> None:
    batches: list[Item] = []
    for magic in (0, 1, 2):
        codecs = [codec for codec in Codec if codec != Codec.ZSTD or magic == 2]
        batches += [Batch(many(5, keys=2), codec=codec, magic=magic) for codec in codecs]
    built = build_log_dir(tmp_path, {"t": [Partition(batches, start_offset=100, segment_bytes=700)]})["t", 0]
    assert [r.offset for r in built.records] == list(range(100, 165))
    assert {r.timestamp for r in built.records[:20]} == {-1}
    assert built.log_end_offset == 165
    assert len(built.segments) > 2
    assert [b.stored.last_offset for b in built.batches][-5:] == [144, 149, 154, 159, 164]


def test_transactions_are_accounted_for(tmp_path: Path) -> None:
    items: list[Item] = [
        Batch(many(3), producer_id=7, transactional=True),
        Batch(many(2), producer_id=8, transactional=True),
        abort(7),
        ROLL,
        b"plain",
        Batch(many(1), producer_id=7, transactional=True),
        commit(7),
        Batch(many(1), producer_id=9, transactional=True),
    ]
    built = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    assert built.segments == [0, 6]
    assert built.aborted == [(7, 0, 5)]
    assert built.last_stable_offset == 3
    assert [r.offset for r in built.records] == [0, 1, 2, 3, 4, 6, 7, 9]
    assert [r.offset for r in built.read_committed] == []
    assert (built.path / f"{0:020d}.txnindex").read_bytes() == struct.pack(">hqqqq", 0, 7, 0, 5, 3)
    more = build_log_dir(tmp_path / "more", {"t": [[*items, commit(8), abort(9)]]})["t", 0]
    assert more.last_stable_offset == more.log_end_offset == 12
    assert [r.offset for r in more.read_committed] == [3, 4, 6, 7]
    sequences = [(b.stored.producer_id, b.stored.base_sequence) for b in more.batches if b.stored.producer_id == 7]
    assert sequences == [(7, 0), (7, -1), (7, 3), (7, -1)]


def test_what_a_killed_broker_leaves(tmp_path: Path) -> None:
    spec = Partition([Batch(many(100)), Batch(many(100)), ROLL, b"x"], tail=b"\0" * 9, recovery_point=200)
    built = build_log_dir(tmp_path, {"t": [spec]}, clean=False, extra={"lost+found/": b"", "odd-0/x": b"y"})["t", 0]
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "lost+found").is_dir()
    assert (tmp_path / "odd-0" / "x").read_bytes() == b"y"
    sizes = {p.name: p.stat().st_size for p in built.path.iterdir()}
    assert sizes[f"{200:020d}.index"] == 10_485_760
    assert sizes[f"{200:020d}.timeindex"] == 10_485_756
    assert sizes[f"{0:020d}.timeindex"] == 12
    assert f"{201:020d}.snapshot" not in sizes
    assert built.log(1).read_bytes().endswith(b"x\0" + b"\0" * 9)
    assert (built.path / f"{200:020d}.index").stat().st_blocks == 0


def test_log_start_offset_hides_records(tmp_path: Path) -> None:
    built = build_log_dir(tmp_path, {"t": [Partition([Batch(many(10))], log_start_offset=4)]})["t", 0]
    assert [r.offset for r in built.records] == [4, 5, 6, 7, 8, 9]
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 4\n"


def test_other_contents_take_the_place_of_files(tmp_path: Path) -> None:
    extra = {f"{0:020d}.index": b"garbage", "note": b"x"}
    built = build_log_dir(tmp_path, {"t": [Partition([Record(b"k", None)], extra=extra, mtime=1e9)]})["t", 0]
    assert (built.path / f"{0:020d}.index").read_bytes() == b"garbage"
    assert (built.path / "note").read_bytes() == b"x"
    assert {p.stat().st_mtime for p in built.path.iterdir()} == {1e9}
    assert built.records == [BuiltRecord(0, -1, b"k", None)]


def test_a_wide_log_dir(tmp_path: Path) -> None:
    first = build_wide(tmp_path / "w", 25, topics=3, segments=4)
    assert first.segments == [0, 1, 2, 3]
    dirs = sorted(p.name for p in (tmp_path / "w").iterdir() if p.is_dir())
    assert len(dirs) == 25
    assert dirs[-1] == "wide2-7"
    assert files_of(tmp_path / "w" / "wide2-7", ".log") == files_of(first.path, ".log")
    assert len((tmp_path / "w" / "recovery-point-offset-checkpoint").read_text().splitlines()) == 27


@requires_fixtures
@pytest.mark.parametrize("name", ["meta.properties", "c-none-0/partition.metadata", ".kafka_cleanshutdown"])
def test_small_files_look_like_the_brokers(name: str, tmp_path: Path) -> None:
    build_log_dir(tmp_path, {"c-none": [[b""]]})
    ours, theirs = ((path / name).read_text() for path in (tmp_path, log_dir_of("codecs")))
    assert [len(line) for line in ours.splitlines()] == [len(line) for line in theirs.splitlines()]
    assert re.sub("[A-Za-z0-9_-]{22}", "", ours) == re.sub("[A-Za-z0-9_-]{22}", "", theirs)
