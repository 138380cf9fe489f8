"""Decoded views while schemas are registered: nothing changes under an open file, everything after it is closed."""

import json

import pytest

from kafkafs.schemas.log_schemas import LogSchemas
from kafkafs.schemas.schema import Reference
from kafkafs.schemas.sources import schemas_at
from kafkafs.schemas.steady_schemas import SteadySchemas
from kafkafs.tree.tree import Tree, TreeOptions
from storage.format.block import Record
from storage.log.log_dir import LogDir
from tests.support.live_log import LiveLog
from tests.support.reference_views import content, read_all, scanned_bytes, tree_of
from tests.support.schema_logs import (
    LONG,
    START_MS,
    STRING,
    GrowingLog,
    avro_string,
    framed,
    other_record,
    schema_record,
)

PATH = "/t/0/messages.decoded.jsonl"
LEAST_KEPT_BYTES = 1 << 20  # of a segment


class Cluster:
    """A topic and a registry that a test lets grow."""

    def __init__(self, path):
        self.path = path
        self.schemas = GrowingLog(path, "_schemas-0")
        self.topic = GrowingLog(path, "t-0")
        self.schemas.append([schema_record("other", 1, 99)])

    def register(self, schema_id, subject="t-value", text=STRING):
        self.schemas.append([schema_record(subject, schema_id, schema_id, text)])

    def send(self, schema_id, *texts):
        self.topic.append([Record(None, framed(schema_id, avro_string(text)), (), START_MS) for text in texts])

    def fill(self):
        """Enough messages for the index to be kept on disk."""
        for number in range(5):
            self.send(1, *[f"{number}-{index}".ljust(60) for index in range(4000)])


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path / "log")


def values(data):
    """The decoded values; True for a line with an error."""
    found = [json.loads(line) for line in data.splitlines()]
    return [True if "error" in line else line["value"] for line in found]


def test_a_schema_that_appears_later(cluster):
    cluster.send(1, "a", "b")
    tree = tree_of(cluster.path)
    view = tree.lookup(PATH)
    before = view.open()
    first = read_all(before)
    assert values(first) == [True, True]
    cluster.register(1)
    # The open file is as it was, in content and size, for stats too, also where it grows by the same id.
    assert read_all(before) == first
    assert before.size == tree.lookup(PATH).attributes().size == len(first)
    cluster.send(1, "c")
    grown = read_all(before)
    assert grown.startswith(first)
    assert values(grown) == [True, True, True]
    # What is opened now shows the values; the older handle still does not.
    after = tree.lookup(PATH).open()
    assert values(read_all(after)) == ["a", "b", "c"]
    assert read_all(before) == grown
    assert after.size == len(read_all(after))
    before.close()
    after.close()
    assert values(content(tree, PATH)) == ["a", "b", "c"]


def test_a_large_view_is_open_at_once_and_keeps_its_schemas(tmp_path):
    schemas, live = GrowingLog(tmp_path / "log", "_schemas-0"), LiveLog(tmp_path / "log")
    schemas.append([schema_record("other", 1, 99)])
    texts = [f"{number:060}" for number in range(3000)]
    for first in range(0, 3000, 500):
        live.append(*(framed(1, avro_string(text)) for text in texts[first : first + 500]), batch=10)
        live.roll()
    tree = tree_of(tmp_path / "log", exact_below=16 << 10)
    handle, front = tree.lookup(PATH).open(), tree.lookup(PATH).open()
    exact = content(tree_of(tmp_path / "log", exact_below=None), PATH)
    size = handle.size
    assert size != len(exact)
    assert (handle.read(0, 100), handle.read(size - 100, 100)) == (exact[:100], exact[-100:])
    schemas.append([schema_record("t-value", 1, 1, STRING)])
    assert read_all(front) == exact
    assert values(exact) != texts
    assert values(content(tree, PATH)) == texts


@pytest.mark.parametrize("place", ["t/0", "t"])
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("latest", [True, "new"], ["later", "new"]),
        ("keys/a", ["old", "new"], ["old", "new"]),
        ("keys/b", [True], ["later"]),
    ],
)
def test_the_latest_and_keys(cluster, place, name, before, after):
    """They keep what they show while they are open, and are decoded anew at the next open."""
    cluster.register(1)
    pairs = [(b"a", 1, "old"), (b"b", 2, "later"), (b"a", 1, "new")]
    cluster.topic.append([Record(key, framed(number, avro_string(text)), (), START_MS) for key, number, text in pairs])
    tree, path = tree_of(cluster.path), f"/{place}/{name}.decoded.jsonl"
    handle = tree.lookup(path).open()
    shown = read_all(handle)
    assert values(shown) == before
    cluster.register(2)
    assert read_all(handle) == shown
    handle.close()
    assert values(content(tree, path)) == after


def kept_tree(cluster, index_dir, **more):
    return Tree(LogDir.open_read_only(cluster.path), TreeOptions(index_dir=index_dir), **more)


def test_what_is_kept_on_disk(cluster, tmp_path):
    """A later mount uses it if the schemas are the same, and nothing is kept while an id is unknown."""
    index_dir = tmp_path / "index"
    cluster.register(1)
    cluster.fill()
    first = kept_tree(cluster, index_dir)
    data = content(first, PATH)
    first.stop()
    assert len(list(index_dir.glob("*.npz"))) == 1
    again = kept_tree(cluster, index_dir)
    assert content(again, PATH) == data
    assert scanned_bytes(again) == 0

    # It goes on with other ids, although they were registered after the pieces were measured.
    cluster.register(2)
    later = kept_tree(cluster, index_dir)
    cluster.send(3, "unknown")
    assert content(later, PATH).startswith(data)
    later.stop()
    assert len(list(index_dir.glob("*.npz"))) == 1  # nothing was kept
    cluster.register(3)
    known = kept_tree(cluster, index_dir)
    assert values(content(known, PATH))[-1] == "unknown"
    assert scanned_bytes(known) > LEAST_KEPT_BYTES


def test_other_schemas_are_another_index(cluster, tmp_path):
    """The same log with other schemas (`schemas=PATH`) does not take what was kept for these."""
    index_dir, files = tmp_path / "index", tmp_path / "files"
    files.mkdir()
    (files / "2.avsc").write_text(STRING)
    cluster.register(1)
    cluster.fill()
    first = kept_tree(cluster, index_dir)
    assert values(content(first, PATH))[0] == "0-0".ljust(60)
    first.stop()
    other = kept_tree(cluster, index_dir, schemas=schemas_at(files))
    assert values(content(other, PATH))[0] is True


def test_answers_stay(cluster, monkeypatch):
    source = LogSchemas(LogDir.open_read_only(cluster.path))
    steady = SteadySchemas(source)
    assert steady.fingerprint() == source.registry().fingerprint

    def answers():
        """What was unknown when it was asked for."""
        asked = steady.by_id(1, "t-value"), steady.by_guid(bytes(16))
        return [*asked, steady.referenced(Reference("n", "t-value", 1))]

    assert answers() == [None] * 3
    assert steady.by_id(99, "t-value") is not None
    assert steady.fingerprint() is None  # something was unknown
    cluster.schemas.append([other_record("NOOP", None, None)])
    cluster.register(5)
    assert not steady.is_outdated()
    assert steady.by_id(5) is not None
    cluster.register(1)
    assert steady.is_outdated()
    assert answers() == [None] * 3
    assert steady.by_id(1, "u-value") is not None  # was not asked before
    assert not SteadySchemas(source).is_outdated()


def test_after_too_many_questions_the_registry_stays_as_it_is_then(cluster, monkeypatch):
    monkeypatch.setattr("kafkafs.schemas.steady_schemas.MOST_ANSWERS", 3)
    few = SteadySchemas(LogSchemas(LogDir.open_read_only(cluster.path)))
    assert [few.by_id(number) for number in (1000, 1001, 1002, 1003)] == [None] * 4
    assert not few.is_outdated()
    cluster.register(1003, text=LONG)
    assert few.is_outdated()
    assert few.by_id(1003) is None
    assert few.by_id(99) is not None
