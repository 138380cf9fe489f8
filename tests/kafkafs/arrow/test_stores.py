"""A backup in an object store is a log that Python, SQL and Spark's tasks read as any other."""

import pickle
import random

import fsspec
import pytest

import kafkafs
from kafkafs.arrow.log_dirs import LogDirs
from storage.files.manifest import range_key
from storage.format.block import Record
from storage.format.compression import Codec
from storage.log.stored_dir import open_stored, read_manifest
from storage.tier.object_places import open_place
from storage.types import TopicPartition
from tests.support.builders import START_MS, Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, run

pytest.importorskip("pyarrow")

TP = TopicPartition("t", 0)


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source, url = tmp_path / "source", f"memory://{tmp_path.name}/backup"
    batches = [Batch(many(50)) for _ in range(20)]
    build_log_dir(source, {"t": [Partition(batches, segment_bytes=9000)]})
    output_of("mirror", source, url)
    yield source, url
    fsspec.filesystem("memory").store.clear()


def test_python_and_sql(places):
    source, url = places
    tables = [kafkafs.open(str(place))["t"].scan().to_arrow() for place in places]
    assert tables[0].num_rows == 1000
    assert tables[1] == tables[0]
    for question in ("select count(*), min(offset), max(value) from t", 'select * from t where "offset" = 777'):
        assert output_of("sql", url, question) == output_of("sql", source, question)


def test_a_task_of_another_process_opens_the_url(places, tmp_path, monkeypatch):
    _, url = places
    task = pickle.dumps(LogDirs([open_stored(url)]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another machine"))
    found = pickle.loads(task)
    assert found.log(TP).snapshot().log_end_offset == 1000
    assert (tmp_path / "of another machine").exists()


def only_objects_of(url, wanted):
    """Removes the .log objects whose offsets are not among those that are wanted; returns how many it left."""
    place, left = open_place(url), 0
    ranges = read_manifest(place).partitions[TP].ranges
    for listed in ranges:
        if any(listed.first_offset <= offset <= listed.last_offset for offset in wanted):
            left += 1
        else:
            place.remove([range_key(TP, listed)])
    return left, len(ranges)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_only_what_may_hold_a_day_is_read(places, tmp_path, codec):
    """A record's timestamp may be any: one of the day comes nine days later, in the middle of a batch."""
    _, url = places
    source, url, day = tmp_path / "days", f"{url}/days", 86_400_000
    times = [[START_MS + n * day + i for i in range(50)] for n in range(10) for _ in range(3)]
    times[-2][20] = START_MS + 4 * day
    noise = random.Random(1)
    batches = [Batch([Record(None, noise.randbytes(100), (), time) for time in each], codec) for each in times]
    build_log_dir(source, {"t": [Partition(batches, segment_bytes=7000)]})
    output_of("mirror", source, url)
    wanted = range(4 * 150, 5 * 150)
    left, before = only_objects_of(url, [*wanted, 28 * 50 + 20])
    assert left < before // 3
    begin, end = (f"epoch_ms({START_MS + n * day})" for n in (4, 5))
    question = f'select count(*), sum("offset") from t where timestamp >= {begin} and timestamp < {end}'
    assert output_of("sql", url, question) == output_of("sql", source, question)


def test_only_what_may_hold_a_day_is_read_of_a_segment(places, tmp_path):
    """Its objects have at most 16 MiB."""
    _, url = places
    source, url, day = tmp_path / "days", f"{url}/days", 86_400_000
    noise = random.Random(1).randbytes(1 << 20)
    batches = [Batch([Record(None, noise, (), START_MS + n * day)]) for n in range(3) for _ in range(17)]
    build_log_dir(source, {"t": [Partition(batches)]})
    output_of("mirror", source, url)
    assert only_objects_of(url, range(17, 34)) == (2, 4)
    begin, end = (f"epoch_ms({START_MS + n * day})" for n in (1, 2))
    question = f"select count(*) from t where timestamp >= {begin} and timestamp < {end}"
    assert output_of("sql", url, question) == output_of("sql", source, question)


def test_a_place_without_a_backup(places):
    result = run("cat", "memory://elsewhere/none", "t")
    assert result.exit_code == 4
    assert "there is no backup" in result.stderr
