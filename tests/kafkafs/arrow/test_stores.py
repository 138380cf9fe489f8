"""A backup in an object store is a log that Python, SQL and Spark's tasks read as any other."""

import pickle

import fsspec
import pytest

import kafkafs
from kafkafs.arrow.log_dirs import LogDirs
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.log.stored_dir import open_stored
from storage.tier.object_places import open_place
from storage.types import TopicPartition
from tests.support.builders import START_MS, Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, run

pytest.importorskip("pyarrow")


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
    assert found.log(TopicPartition("t", 0)).snapshot().log_end_offset == 1000
    assert (tmp_path / "of another machine").exists()


def test_what_is_older_than_a_filter_is_not_read(places, tmp_path):
    """The manifest has the greatest timestamp of each segment."""
    _, url = places
    source, day = tmp_path / "days", 86_400_000
    batches = [
        Batch([Record(None, b"x" * 100, (), START_MS + n * day + i) for i in range(50)])
        for n in range(10)
        for _ in range(3)
    ]
    build_log_dir(source, {"t": [Partition(batches, segment_bytes=17000)]})
    output_of("mirror", source, url + "/days")
    place = open_place(url + "/days")
    segments = LogDir.open_read_only(source).log(TopicPartition("t", 0)).snapshot().segments
    older = [segment.base_offset for segment in segments if segment.base_offset < 600]
    assert len(older) > 2
    for key in place.keys():  # noqa: SIM118 - it is not a mapping
        if key.endswith(".log") and int(key.partition("/")[2][:20]) in older[:-1]:
            place.remove([key])
    question = f"select count(*) from t where timestamp >= epoch_ms({START_MS + 7 * day})"
    assert output_of("sql", url + "/days", question) == output_of("sql", source, question)


def test_a_place_without_a_backup(places):
    result = run("cat", "memory://elsewhere/none", "t")
    assert result.exit_code == 4
    assert "there is no backup" in result.stderr
