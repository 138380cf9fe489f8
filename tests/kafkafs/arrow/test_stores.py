"""A backup in an object store is a log that Python, SQL and Spark's tasks read as any other."""

import pickle

import fsspec
import pytest

import kafkafs
from kafkafs.arrow.log_dirs import LogDirs
from storage.log.stored_dir import open_stored
from storage.types import TopicPartition
from tests.support.builders import Batch, Partition, build_log_dir, many
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


def test_a_place_without_a_backup(places):
    result = run("cat", "memory://elsewhere/none", "t")
    assert result.exit_code == 4
    assert "there is no backup" in result.stderr
