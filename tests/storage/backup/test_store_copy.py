"""Backups in an object store: whole at any moment, uploaded only once, and read without belief in what a store says."""

import hashlib
import json
from collections import Counter

import fsspec
import pytest

from storage.append.appender import Appender
from storage.backup.manifest_recorder import ManifestRecorder
from storage.backup.mirror import Mirror
from storage.backup.store_copy import StoreCopy
from storage.errors import CorruptCheckpoint, LogLocked, StorageError, TierUnavailable
from storage.files import manifest as manifests
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.log.stored_dir import open_stored, read_manifest
from storage.tier.object_places import Place, open_place
from storage.types import TopicPartition
from storage.verify.manifest_audit import verify_manifest
from tests.support.builders import Batch, Partition, build_log_dir
from tests.support.commands import output_of, run
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.owned_dirs import append, append_keyed, opened, values_of

TP = TopicPartition("t", 0)
MANIFEST = "manifest.json"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    """A place without objects."""
    yield f"memory://{tmp_path.name}/backup" if request.param == "memory" else f"file://{tmp_path}/backup"
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()


@pytest.fixture
def source(tmp_path):
    owned = opened(tmp_path / "source")
    owned.create_topic("t", 2, {"segment.bytes": "500", "retention.ms": "1000"})
    add(owned, range(10))
    yield owned
    owned.close()


def add(owned, numbers, tp=TP):
    for n in numbers:
        append(owned.log(tp), [b"value %d" % n] * 3)


def expected(numbers):
    return [b"value %d" % n for n in numbers for _ in range(3)]


def values_at(path):
    return values_of(LogDir.open_read_only(path).log(TP).snapshot())


def objects(url):
    return {key: open_place(url).size_of(key) for key in open_place(url).keys()}  # noqa: SIM118 - not a mapping


def mirrored(owned, url, *options):
    return json.loads(output_of("mirror", owned.path, url, "--json", *options))


def is_whole(url):
    path = open_stored(url)
    return verify_manifest(path, read_manifest(open_place(url)), workers=1) == []


def test_a_backup_is_read_verified_and_restored(source, url, tmp_path):
    assert mirrored(source, url)["manifest"].endswith(MANIFEST)
    assert output_of("cat", url, "t") == output_of("cat", source.path, "t")
    assert output_of("cat", url, "t/0", "--offsets", "last-4") == output_of(
        "cat", source.path, "t/0", "--offsets=last-4"
    )
    assert b"nothing wrong" in output_of("verify", url, "--manifest")
    printed = output_of("revive", url, "--to", tmp_path / "restored").decode()
    assert f"{url}/t-0".removeprefix("file://") in printed
    assert "cache" not in printed
    assert values_at(tmp_path / "restored") == expected(range(10))
    bases = [segment.base_offset for segment in source.log(TP).snapshot().segments]
    assert [
        segment.base_offset for segment in LogDir.open_read_only(tmp_path / "restored").log(TP).snapshot().segments
    ] == bases
    info = LogDir.open_read_only(open_stored(url)).topic_info("t")
    assert (info.topic_id, info.overrides["retention.ms"]) == (source.topic_info("t").topic_id, "1000")


@requires_fixtures
@pytest.mark.parametrize("fixture", ["transactions", "internal", "compaction-after", "v0", "times"])
def test_what_a_broker_wrote(fixture, url, tmp_path):
    log = FIXTURES / fixture / "log"
    output_of("mirror", log, url)
    for isolation in ("read_uncommitted", "read_committed"):
        options = ("--isolation", isolation, "--format", "jsonl")
        topics = [topic for topic in LogDir.open_read_only(log).topics() if topic != "__cluster_metadata"]
        assert len(topics) > 0
        for topic in topics:
            assert output_of("cat", url, topic, *options) == output_of("cat", log, topic, *options), topic
    assert output_of("groups", url) == output_of("groups", log)
    assert b"nothing wrong" in output_of("verify", url)
    copy = tmp_path / "restored"
    output_of("revive", url, "--to", copy)
    assert run("verify", copy).exit_code == 0
    for topic in topics:
        ids = [LogDir.open_read_only(path).topic_info(topic).topic_id for path in (log, copy)]
        assert ids[0] in (None, ids[1])
        assert output_of("cat", copy, topic, "--format", "jsonl") == output_of("cat", log, topic, "--format", "jsonl")


def test_thousands_of_small_batches(url, tmp_path):
    """Only some of those that are read at once are looked at together."""
    build_log_dir(tmp_path / "source", {"t": [Partition([Batch([Record(None, b"x")]) for _ in range(6000)])]})
    output_of("mirror", tmp_path / "source", url)
    assert len(values_at(open_stored(url))) == 6000
    assert is_whole(url)


class Watched(Place):
    """A place that counts requests, and fails from one of those that change something on."""

    def __init__(self, inner, changes=None):
        super().__init__(inner.name, inner.path, is_local=inner.is_local)
        self.inner, self.left, self.requests = inner, changes, Counter()

    def _change(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise TierUnavailable("the network is gone", path=self.name)

    def entries(self, key):
        self.requests["entries"] += 1
        return self.inner.entries(key)

    def read(self, key, position, size):
        self.requests["read"] += 1
        return self.inner.read(key, position, size)

    def size_of(self, key):
        self.requests["size_of"] += 1
        return self.inner.size_of(key)

    def keys(self):
        self.requests["keys"] += 1
        return self.inner.keys()

    def write(self, key, data):
        self._change()
        self.requests["write"] += 1
        self.inner.write(key, data)

    def remove(self, keys):
        if keys:
            self._change()
            self.requests["remove"] += 1
            self.inner.remove(keys)


def backed_up(source, place, *, delete=False):
    recorder = ManifestRecorder(read_manifest(place))
    with StoreCopy(place, recorder, delete=delete) as target:
        mirror = Mirror(
            LogDir.open_read_only(source.path), target, lambda found: found.all_partitions(), recorder=recorder
        )
        mirror.run()
        target.finish(None, 1000)
    return [str(result.error) for result in mirror.results.values() if result.error is not None]


def test_an_idle_run_is_three_requests(source, url):
    place = Watched(open_place(url))
    assert backed_up(source, place) == []
    before, _ = objects(url), place.requests.clear()
    assert backed_up(source, place) == []
    assert place.requests == {"read": 2, "write": 1}
    assert objects(url).keys() == before.keys()


def test_of_two_mirrors_at_once_the_second_to_end_changes_nothing(source, url):
    mirrored(source, url)
    add(source, [10])

    class Raced(Watched):
        def write(self, key, data):
            if not self.requests["write"]:
                mirrored(source, url)
            super().write(key, data)

    place = Raced(open_place(url))
    with pytest.raises(LogLocked, match="another mirror has written a backup there meanwhile"):
        backed_up(source, place, delete=True)
    assert not place.requests["remove"]
    assert values_at(open_stored(url)) == expected(range(11))
    assert is_whole(url)


def test_a_mirror_whose_manifest_another_one_replaces_removes_nothing(source, url):
    class Raced(Watched):
        def write(self, key, data):
            super().write(key, data)
            if key == MANIFEST:
                add(source, [11])
                mirrored(source, url)

    mirrored(source, url)
    add(source, [10])
    place = Raced(open_place(url))
    with pytest.raises(LogLocked):
        backed_up(source, place, delete=True)
    assert not place.requests["remove"]
    assert values_at(open_stored(url)) == expected(range(12))
    assert is_whole(url)


def test_only_what_is_new_is_uploaded(source, url):
    mirrored(source, url)
    before = objects(url)
    was_open = open_stored(url)
    add(source, [10])
    uploaded = mirrored(source, url)["partitions"][0]["bytes"]
    new = objects(url).keys() - before.keys()
    assert 0 < uploaded < 600
    assert all(key.startswith("t-0/") for key in new)
    assert before.keys() <= objects(url).keys()
    assert values_at(was_open) == expected(range(10))  # who has opened the previous backup reads it
    add(source, [11])
    mirrored(source, url)
    assert before.keys() - objects(url).keys()  # and not for ever
    assert values_at(open_stored(url)) == expected(range(12))
    assert is_whole(url)


def test_a_run_that_stops_anywhere_leaves_the_backup_before(source, url):
    mirrored(source, url)
    count = 10
    for stop in range(100):
        add(source, range(count, count + 5))
        place = Watched(open_place(url), stop)
        try:
            backed_up(source, place)
        except TierUnavailable:
            kept = values_at(open_stored(url))
            assert kept in (expected(range(count)), expected(range(count + 5)))
            assert is_whole(url)
            mirrored(source, url)
        else:
            break
        count += 5
        assert values_at(open_stored(url)) == expected(range(count))
    else:
        pytest.fail("every run was stopped")
    assert stop >= 3
    mirrored(source, url, "--delete")
    named = read_manifest(open_place(url))
    keys = {manifests.range_key(TP, one) for one in named.partitions[TP].ranges}
    assert keys <= objects(url).keys()
    assert len(objects(url)) <= 1 + len(keys) + len(named.superseded)


def test_what_retention_removed_stays_until_delete(source, url):
    mirrored(source, url)
    output = run("retain", source.path, "t")  # the source is held by this process
    assert output.exit_code == 3
    log = source.log(TP)
    log.roll()
    log.increment_log_start_offset(12)
    log.remove_segments([segment for segment in log.snapshot().segments[:-1] if segment.base_offset < 9])
    add(source, [10])
    mirrored(source, url)
    assert values_at(open_stored(url)) == expected(range(11))
    before = objects(url)
    mirrored(source, url, "--delete")
    assert values_at(open_stored(url)) == expected(range(4, 11))
    assert before.keys() - objects(url).keys()
    assert is_whole(url)


def test_a_topic_that_was_deleted_stays_until_delete(source, url):
    source.create_topic("other", 1)
    add(source, [0], TopicPartition("other", 0))
    mirrored(source, url)
    source.delete_topic("other")
    mirrored(source, url, "t")
    assert LogDir.open_read_only(open_stored(url)).topics() == ["other", "t"]
    mirrored(source, url, "t", "--delete")
    assert LogDir.open_read_only(open_stored(url)).topics() == ["t"]
    assert not [key for key in objects(url) if key.startswith("other")]
    assert is_whole(url)


def test_one_topic_up_to_a_time_is_restored(source, url, tmp_path):
    source.create_topic("other", 1)
    until = source.clock.now_ms()
    later = [Record(None, b"value 10", (), until + 1000)]
    assert Appender(source.log(TP), clock=source.clock).append(later).error is None
    mirrored(source, url)
    output_of("revive", url, "t", "--to", tmp_path / "restored", "--until", until)
    assert LogDir.open_read_only(tmp_path / "restored").topics() == ["__cluster_metadata", "t"]
    assert values_at(tmp_path / "restored") == expected(range(10))


def test_what_compaction_replaced_leaves_the_backup_at_once(tmp_path, url):
    source = tmp_path / "source"

    append_keyed(source, (b"a", b"b"), (b"a",), (b"b", b"c"))
    output_of("mirror", source, url)
    before = objects(url)
    append_keyed(source, (b"c",))
    output_of("compact", source, "t")
    output_of("mirror", source, url)
    assert output_of("cat", url, "t") == output_of("cat", source, "t")
    assert before.keys() <= objects(url).keys()
    output_of("mirror", source, url, "--delete")
    assert before.keys() - objects(url).keys()
    assert output_of("cat", url, "t") == output_of("cat", source, "t")
    assert is_whole(url)


def test_compaction_of_the_source_while_a_mirror_begins(tmp_path, url):
    source = tmp_path / "source"

    class Raced(StoreCopy):
        def begin(self, *args):
            super().begin(*args)
            output_of("compact", source, "t")

    append_keyed(source, (b"a", b"b"), (b"a",), (b"b", b"c"))
    output_of("mirror", source, url)
    append_keyed(source, (b"c",), (b"a", b"d"))
    recorder = ManifestRecorder(read_manifest(open_place(url)))
    with Raced(open_place(url), recorder) as target:
        mirror = Mirror(LogDir.open_read_only(source), target, lambda found: found.all_partitions(), recorder=recorder)
        mirror.run()
        target.finish(None, 1000)
    assert [result.error for result in mirror.results.values() if result.error is not None] == []
    assert output_of("cat", url, "t") == output_of("cat", source, "t")


def test_delete_leaves_what_is_not_of_a_mirror(source, url):
    open_place(url).write("t-0/notes.txt", b"mine")
    open_place(url).write("photo.jpg", b"mine too")
    mirrored(source, url, "--delete")
    assert {"t-0/notes.txt", "photo.jpg"} <= objects(url).keys()


def test_a_cut_and_another_name(source, url):
    until = source.clock.now_ms()
    later = [Record(None, b"value 10", (), until + 1000)]
    assert Appender(source.log(TP), clock=source.clock).append(later).error is None
    output_of("mirror", source.path, url, "--until", until, "--rename", "t=u")
    assert output_of("cat", url, "u/0").count(b"value") == 30
    output_of("mirror", source.path, url, "--rename", "t=u")
    assert output_of("cat", url, "u/0").count(b"value") == 31
    result = run("mirror", source.path, url, "t", "--rename", "t=u", "--until", until)
    assert result.exit_code == 4
    assert "the copy already holds messages from after the cut" in result.stderr
    assert is_whole(url)


def test_another_topic_and_a_source_that_lost_messages(source, url, tmp_path):
    mirrored(source, url)
    other = opened(tmp_path / "other")
    other.create_topic("t", 1)
    add(other, [0])
    result = run("mirror", other.path, url)
    assert result.exit_code == 4
    assert "another topic of that name" in result.stderr
    other.close()
    shorter = opened(tmp_path / "shorter")
    shorter.create_topic("t", 1, topic_id=source.topic_info("t").topic_id)
    add(shorter, [0])
    result = run("mirror", shorter.path, url)
    assert result.exit_code == 4
    assert "the source has lost messages that the backup has" in result.stderr
    shorter.close()
    assert values_at(open_stored(url)) == expected(range(10))


@pytest.mark.parametrize(
    "command", [("append", "t"), ("recover",), ("retain", "t"), ("topics", "create", "new"), ("doctor",)]
)
def test_a_backup_is_only_read(source, url, command):
    mirrored(source, url)
    before = objects(url)
    words = (*command[:2], url, *command[2:]) if command[0] == "topics" else (command[0], url, *command[1:])
    assert run(*words).exit_code != 0
    assert objects(url) == before


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damaged_objects_are_found_and_not_read(source, url, damage, tmp_path, monkeypatch):
    mirrored(source, url)
    output_of("cat", url, "t/0")  # which keeps what it reads
    place = open_place(url)
    key = next(key for key in place.keys() if key.startswith("t-0/") and key.endswith(".log"))  # noqa: SIM118
    data = place.read(key, 0, 1 << 20)
    place.remove([key])
    if damage != "gone":
        place.write(key, data[:-3] if damage == "cut" else data[:100] + bytes([data[100] ^ 1]) + data[101:])
    assert run("verify", url).exit_code == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    assert run("cat", url, "t/0").exit_code == 4


def resealed(content):
    content.pop("sha256", None)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


def _file(content):
    return content["files"][0]


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["topics"][0].update(topic="../t"),
        lambda c: c["topics"][0].update(topic_id="../../../../etc/passwd"),
        lambda c: c["topics"][0].update(configs={"retention.ms": ["1"]}),
        lambda c: c["partitions"][0].update(topic="a/../../b"),
        lambda c: c["partitions"][0].update(partition=-1),
        lambda c: c["partitions"][0].update(partition=10**9),
        lambda c: c["partitions"][0].update(log_end_offset=2**64),
        lambda c: c["partitions"][0]["ranges"][0].update(size_bytes=2**62),
        lambda c: c["partitions"][0]["ranges"][0].update(size_bytes=-1),
        lambda c: c["partitions"][0]["ranges"][0].update(sha256="../../../x"),
        lambda c: c["partitions"][0]["ranges"][0].update(first_offset=-1),
        lambda c: c["partitions"][0]["segments"].reverse(),
        lambda c: c["partitions"][0]["segments"][0].update(size_bytes=1),
        lambda c: c["partitions"][0]["segments"].pop(),
        lambda c: _file(c).update(path="../../x"),
        lambda c: _file(c).update(path="/etc/passwd"),
        lambda c: _file(c).update(path="t-0/../t-1/00000000000000000000.index"),
        lambda c: _file(c).update(path="meta.properties"),
        lambda c: _file(c).update(path=True),
        lambda c: c["topics"][0].update(topic=["t"]),
        lambda c: c["partitions"][0].update(partition=True),
        lambda c: _file(c).update(sha256="0" * 64),
        lambda c: _file(c).update(size_bytes=-5),
        lambda c: _file(c).update(content="!"),
        lambda c: c.update(superseded=["../../outside/00000000000000000000-" + "0" * 64 + ".log"]),
        lambda c: c.update(superseded=["t-0/another's object"]),
        lambda c: c.update(superseded=["manifest.json"]),
    ],
)
def test_hostile_manifests_lead_nowhere(source, url, tmp_path, change):
    mirrored(source, url)
    place = open_place(url)
    content = json.loads(place.read(MANIFEST, 0, 1 << 20))
    change(content)
    place.write(MANIFEST, resealed(content))
    with pytest.raises(StorageError) as refused:
        open_stored(url)
    assert isinstance(refused.value, CorruptCheckpoint)
    assert list((tmp_path / "cache").glob("*/*/*")) == []
    before = objects(url)
    assert run("mirror", source.path, url).exit_code == 4
    assert objects(url) == before


def test_no_more_partitions_than_are_read(source, url, tmp_path, monkeypatch):
    mirrored(source, url)
    monkeypatch.setattr("storage.files.names.MAX_PARTITIONS", 1)
    with pytest.raises(CorruptCheckpoint, match="2 partitions"):
        open_stored(url)
    assert list((tmp_path / "cache").glob("*/*/*")) == []


def test_a_manifest_that_could_not_be_read_is_not_written(source, url, monkeypatch):
    mirrored(source, url)
    add(source, [10])
    monkeypatch.setattr("storage.backup.store_copy.MOST_ENTRIES_BYTES", 1000)
    result = run("mirror", source.path, url)
    assert result.exit_code == 4
    assert "manifest.json: would be too large" in result.stderr
    assert values_at(open_stored(url)) == expected(range(10))


def test_a_mark_of_nothing(source, url):
    mirrored(source, url)
    place = open_place(url)
    content = json.loads(place.read(MANIFEST, 0, 1 << 20))
    for segment in content["partitions"][0]["segments"]:
        segment["mark"] = ""
    place.write(MANIFEST, resealed(content))
    add(source, [10])
    mirrored(source, url)
    assert values_at(open_stored(url)) == expected(range(11))
    assert is_whole(url)


@pytest.mark.leaves_damage("partition-empty")
def test_a_partition_without_files(source, url):
    for path in (source.path / "t-1").glob("0*"):
        path.unlink()
    output_of("mirror", source.path, url)
    assert output_of("cat", url, "t") == output_of("cat", source.path, "t")
    assert is_whole(url)


def test_no_link_in_a_store_is_followed(source, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "store" / "t-0").symlink_to(tmp_path / "outside")
    assert run("mirror", source.path, f"file://{tmp_path}/store").exit_code == 4
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_password_in_a_url_is_never_shown(source):
    result = run("cat", "memory://me:secret@here/backup", "t")
    assert result.exit_code == 4
    assert "secret" not in result.stderr
    assert "memory://***@here/backup" in result.stderr


FAILURES = []


class Flaky(fsspec.get_filesystem_class("memory")):
    """Fails as a store does, as long as there are FAILURES left."""

    protocol = ("flaky",)

    def _fail(self):
        if FAILURES:
            raise FAILURES.pop(0)

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        self._fail()
        super().pipe_file(path, value, mode, **kwargs)

    def cat_file(self, path, start=None, end=None, **kwargs):
        self._fail()
        return super().cat_file(path, start, end, **kwargs)


class HttpError(Exception):
    def __init__(self, code):
        super().__init__(f"the store says {code}")
        self.code = code


@pytest.fixture
def flaky(monkeypatch):
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    yield waits
    Flaky.store.clear()
    FAILURES.clear()


@pytest.mark.parametrize(
    "failure",
    [
        TimeoutError("slow"),
        ConnectionResetError("reset"),
        OSError(16, "Reduce your rate"),
        HttpError(429),
        HttpError(503),
    ],
    ids=repr,
)
def test_a_request_that_may_succeed_later_is_repeated(flaky, failure):
    place = open_place("flaky://here/backup")
    FAILURES.extend([failure] * 2)
    place.write("x", b"abc")
    FAILURES.append(failure)
    assert place.read("x", 1, 5) == b"bc"
    assert len(flaky) == 3
    assert flaky[0] < flaky[1]
    FAILURES.extend([failure] * 10)
    with pytest.raises(TierUnavailable, match="flaky://here/backup/x: cannot be written"):
        place.write("x", b"abc")


@pytest.mark.parametrize("failure", [PermissionError(13, "Access Denied"), HttpError(403), ValueError("no")], ids=repr)
def test_a_request_that_is_refused_is_not_repeated(flaky, failure):
    FAILURES.append(failure)
    with pytest.raises(TierUnavailable, match="flaky://here/backup/x: cannot be read from byte 0 to 2"):
        open_place("flaky://here/backup").read("x", 0, 3)
    assert flaky == []


def test_parameters_of_uploads_are_passed_on(source, flaky, monkeypatch):
    passed = []
    monkeypatch.setattr(Flaky, "pipe_file", lambda _self, _path, _value, **kwargs: passed.append(kwargs))
    mirrored(source, "flaky://here/backup", "--store-option", "StorageClass=STANDARD_IA")
    assert passed
    assert all(one == {"StorageClass": "STANDARD_IA"} for one in passed)
