"""Tiers: every layout gives the bytes that the broker had, also behind URLs; damaged or hostile ones give errors."""

import base64
import json
import os
import random
import resource
import shutil
import sys

import cramjam
import pytest

from storage.errors import CorruptData, InvalidConfig, StorageError, TierUnavailable, UnsupportedFormat
from storage.files.leader_epochs import EpochEntry
from storage.files.names import FileKind
from storage.files.small_files import MOST_ENTRIES_BYTES
from storage.tier import manifests
from storage.tier.blocks import RemoteBlockCache
from storage.tier.manifests import decode_sizes
from storage.tier.object_places import DirectoryPlace, UrlPlace, open_place
from storage.tier.remote_segments import BytesFile
from storage.tier.tier import Tier
from tests.storage.tier.aiven_objects import RsaKey, Style, random_id, sizes_text, write
from tests.support.damaged_bytes import flip_middle
from tests.support.fixtures import requires_fixtures
from tests.support.tiers import KEYS, TIERS, copied

pytestmark = requires_fixtures


LOCAL = Tier([str(TIERS / "tier-local")])


def files_of(segment):
    """All files of a segment, by what they are."""
    found = {kind.name: file for kind in FileKind if (file := segment.part(kind)) is not None}
    return found if segment.content.epochs_file is None else {**found, "epochs": segment.content.epochs_file}


def assert_same(found, expected):
    """Equal segments, however their files are read."""
    rng = random.Random(1)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert (one.segment_id, one.base_offset, one.is_complete) == (other.segment_id, other.base_offset, True)
        assert one.segment_epochs == other.segment_epochs
        files = files_of(other)
        assert set(files_of(one)) == set(files)
        for name, file in files_of(one).items():
            whole = bytes(files[name].whole())
            assert file.size == len(whole)
            for _ in range(4):
                position, size = rng.randrange(file.size + 10), rng.randrange(file.size + 10)
                assert bytes(file.read(position, size)) == whole[position : position + size], (name, position, size)
            assert bytes(file.read(0, file.size + 1)) == whole


@pytest.mark.parametrize("seed", range(6))
def test_any_prefix_chunk_size_and_key(seed, tmp_path):
    rng = random.Random(seed)
    prefix = rng.choice(["", "pre/", "pre-", "a/b/c/", "x/backups-2024-01-01-productionx/", "data-7/pre."])
    key = RsaKey.new("the key", rng.choice([2048, 2056])) if seed % 2 else None
    topic_id = random_id()
    sources = LOCAL.segments("two", 0)
    for segment in sources:
        size = rng.choice([1000, 4096, 65536, 1 << 22])
        compressed = rng.random() < 0.5
        write(tmp_path, segment, topic_id, segment.base_offset + 100, Style(prefix, size, compressed, key))
    pem = tmp_path / "key.pem"
    # Whatever the label says.
    pem.write_bytes(b"\n" + (key.pem if key is not None else b"").replace(b" PRIVATE KEY", b" ANY KEY"))
    tier = Tier([str(tmp_path)], {"the key": pem})
    (of,) = tier.partitions()
    assert (of.topic, of.topic_id, of.partition) == ("two", topic_id, 0)
    for asked in (topic_id, None):
        found = tier.segments("two", 0, asked)
        assert [segment.end_offset for segment in found] == [segment.base_offset + 100 for segment in sources]
        assert_same(found, sources)
    assert tier.segments("two", 0, random_id()) == tier.segments("wo", 0) == tier.segments("two", 1) == []


def test_a_path_may_be_any_directory_of_the_tier(tmp_path):
    place = TIERS / "tier-aiven"
    (path,) = place.rglob("two-*/0/*00249-*.rsm-manifest")
    while path != place:
        path = path.parent
        assert len(Tier([str(path)]).segments("two", 0)) == 4
    with pytest.raises(TierUnavailable, match="there is no such directory"):
        Tier([str(tmp_path / "none")]).segments("two", 0)
    with pytest.raises(TierUnavailable, match="nosuchscheme"):
        Tier(["nosuchscheme://bucket"]).partitions()
    assert Tier([str(tmp_path)]).partitions() == []


def test_manifests_before_they_had_metadata(tmp_path):
    (segment,) = (segment for segment in LOCAL.segments("two", 0) if segment.base_offset == 249)
    write(tmp_path, segment, random_id(), 496, Style(with_metadata=False))
    (found,) = Tier([str(tmp_path)]).segments("two", 0)
    assert found.end_offset is None
    assert_same([found], [segment])


def test_plain_segments_of_a_partition(tmp_path):
    for place in (TIERS / "log" / "keep-0", TIERS / "log"):
        plain = Tier([str(place)]).segments("keep", 0, "any id")
        assert [segment.base_offset for segment in plain] == [0, 239, 471, 719, 957, 1200]
        assert [segment.end_offset for segment in plain] == [238, 470, 718, 956, 1199, None]
        for one, other in zip(plain, LOCAL.segments("keep", 0), strict=False):
            assert (one.segment_id, one.segment_epochs) == (None, other.segment_epochs)
            for name, file in files_of(other).items():
                assert name == "epochs" or bytes(files_of(one)[name].whole()) == bytes(file.whole()), name
        # A snapshot with a segment's offset belongs to the segment before it.
        assert "PRODUCER_SNAPSHOT" not in files_of(plain[-1])
    copy = copied(TIERS / "log" / "keep-0", tmp_path / "keep-0")
    (copy / f"{471:020}.snapshot").unlink()
    has = ["PRODUCER_SNAPSHOT" in files_of(segment) for segment in Tier([str(copy)]).segments("keep", 0)]
    assert has == [True, False, True, True, True, False]


def test_a_name_that_ends_with_no_id_is_none_of_a_tier(tmp_path):
    """The last of the 22 characters of an id has two bits."""
    place = copied(TIERS / "tier-local", tmp_path / "tier")
    for directory in list(place.glob("two-*")):
        directory.rename(directory.with_name(directory.name[:-1] + "B"))
    named = {of.topic for of in Tier([str(place)]).partitions()}
    assert named == {of.topic for of in LOCAL.partitions()} - {"two"}


def test_what_names_a_place():
    for name in ("tier", "/backups/tier", "file:///backups/tier"):
        assert isinstance(open_place(name), DirectoryPlace), name
    assert isinstance(open_place(URL), UrlPlace)


def test_parts_in_two_places_are_one_segment(tmp_path):
    """A key prefix that was changed: the custom metadata say where the .log is."""
    one, other = copied(TIERS / "tier-aiven", tmp_path / "one"), tmp_path / "other"
    for log in one.rglob("*.log"):
        target = other / log.relative_to(one)
        target.parent.mkdir(parents=True, exist_ok=True)
        log.rename(target)
    assert not any(segment.is_complete for segment in Tier([str(one)]).segments("two", 0))
    for places in ([tmp_path], [one, other], [other, one], [one, TIERS / "tier-local"]):
        assert_same(Tier(list(map(str, places))).segments("two", 0), LOCAL.segments("two", 0))


def test_nothing_is_changed_and_no_link_is_followed(tmp_path):
    tier = copied(TIERS / "tier-local", tmp_path / "tier")
    (directory,) = tier.glob("two-0-*")
    log = next(directory.glob("*.log"))
    log.rename(tmp_path / "secret")
    log.symlink_to(tmp_path / "secret")
    directory.rename(tmp_path / directory.name)
    (tier / directory.name).symlink_to(tmp_path / directory.name)
    paths = sorted(tmp_path.rglob("*"))  # which changes access times itself
    before = {path: path.lstat() for path in paths}
    assert Tier([str(tier)]).segments("two", 0) == []
    inside = Tier([str(tmp_path / directory.name)]).segments("two", 0)
    assert [segment.part(FileKind.LOG) is None for segment in inside].count(True) == 1
    for of in Tier([str(tier)]).partitions():
        for segment in Tier([str(tier)]).segments(of.topic, of.partition):
            for file in files_of(segment).values():
                file.read(0, file.size)
    assert {path: path.lstat() for path in before} == before


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        ("00000000", []),
        ("0000000100000007", [7]),
        ("00000003 0000000a 01 000a 0000001e", [10, 20, 30]),
        ("00000003 00000100 02 0000 0101 00000001", [256, 513, 1]),
        ("00000002 0000000a 05 00 00000000 0000001e", None),
        ("00000002 0000000a 01 00 0000001e 00", None),
        ("7fffffff 0000000a 01 00 0000001e", None),
        ("0000", None),
        ("", None),
    ],
)
def test_lists_of_chunk_sizes(data, sizes):
    found = decode_sizes(bytes.fromhex(data))
    assert (None if found is None else found.tolist()) == sizes


# Tiers that are damaged, or made to do harm: a clear error, and nothing else.

TOPIC_ID = random_id()
SOURCE = LOCAL.segments("txn", 0)[3] if TIERS.exists() else None


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One segment, compressed and encrypted, and its key."""
    place, key = tmp_path_factory.mktemp("made"), RsaKey.new("k1")
    write(place / "tier", SOURCE, TOPIC_ID, SOURCE.base_offset + 248, Style("", 4096, True, key))
    (place / "k1.pem").write_bytes(key.pem)
    return place


@pytest.fixture
def place(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


def segment_of(place, **keys):
    (segment,) = Tier([str(place / "tier")], keys or {"k1": place / "k1.pem"}).segments("txn", 0, TOPIC_ID)
    return segment


def log_of(segment):
    return segment.content.parts[FileKind.LOG]


def read_all(segment):
    for file in [*segment.content.parts.values(), segment.content.epochs_file]:
        if file is not None:
            for position in range(0, file.size, 10_000):
                file.read(position, 10_000)


def object_of(place, suffix):
    return next((place / "tier").rglob(f"*{suffix}"))


def change(place, edit):
    path = object_of(place, ".rsm-manifest")
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))


def test_keys(place, tmp_path):
    read_all(segment_of(place))
    segment = segment_of(place, k2=place / "none")  # what is not encrypted needs no key
    assert (segment.end_offset, segment.log_size) == (segment.base_offset + 248, 65151)
    other = tmp_path / "other.pem"
    other.write_bytes(RsaKey.new("k1").pem)
    for keys, match in (
        ({"k1": other}, r"was not encrypted with the private key .*other\.pem.*--tier-key"),
        ({"k2": place / "k1.pem"}, r"the private key 'k1' was not given; found keys: k2"),
        ({"k1": tmp_path / "none.pem"}, "cannot be read; found No such file"),
    ):
        with pytest.raises(TierUnavailable, match=match):
            read_all(segment_of(place, **keys))
    for text in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", os.urandom(100_000)):
        other.write_bytes(text)
        with pytest.raises(InvalidConfig, match="is no private RSA key"):
            read_all(segment_of(place, k1=other))


@pytest.mark.parametrize("suffix", [".log", ".indexes", ".rsm-manifest"])
def test_objects_that_are_cut_off(place, suffix):
    segment, path = segment_of(place), object_of(place, suffix)
    data = path.read_bytes()
    for left in (0, 1, -1):
        path.write_bytes(data[:left])
        with pytest.raises(CorruptData) as found:
            read_all(segment_of(place))
        assert str(path) in str(found.value)
    if suffix != ".rsm-manifest":
        path.write_bytes(data)
        assert segment.log_size  # it was looked at before its objects shrink, and go
        os.truncate(path, len(data) - 1)
        with pytest.raises(CorruptData, match="object is cut off"):
            read_all(segment)
        path.unlink()
        with pytest.raises(TierUnavailable, match="there is no such object"):
            read_all(segment)
    else:
        path.unlink()
        assert not segment_of(place).is_complete
        with pytest.raises(TierUnavailable, match="has no manifest"):
            read_all(segment_of(place))


def test_a_changed_byte_is_noticed(place):
    for suffix in (".log", ".indexes"):
        path = object_of(place, suffix)
        flip_middle(path)
        with pytest.raises(CorruptData, match="cannot be decrypted") as found:
            read_all(segment_of(place))
        assert "rsm-manifest" in str(found.value)
        flip_middle(path)


def _bomb(size):
    return base64.b64encode(bytes(cramjam.zstd.compress(bytes(size)))).decode()


_INDEX, _METADATA = ("chunkIndex",), ("remoteLogSegmentMetadata",)
_SIZES = (*_INDEX, "transformedChunks")
_ID = (*_METADATA, "remoteLogSegmentId")


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (("version",), ["2", 1]),
        (_INDEX, [None, []]),
        ((*_INDEX, "type"), ["other", "fixed"]),
        ((*_INDEX, "originalFileSize"), [2**31, -1, 2**31 - 1, 1e300, True]),
        ((*_INDEX, "originalChunkSize"), [0, 1, 2**31 - 1]),
        (_SIZES, ["!", _bomb(1 << 30), _bomb(4)]),
        (_SIZES, [sizes_text([1 << 30] * 16), sizes_text([1000] * 15 + [0x7FFFFFFF])]),
        (("segmentIndexes", "offset", "size"), [2**31 - 1, 27]),
        (("segmentIndexes", "offset", "position"), [2**31 - 1]),
        (("segmentIndexes", "timestamp", "position"), [-1, 3]),
        (("compression",), ["yes", False]),
        (("encryption",), [None, {"dataKey": "k1", "aad": ""}, {"dataKey": "k1:AAAA", "aad": ""}]),
        (("encryption",), [{"dataKey": "k1:" + "A" * 342 + "==", "aad": ""}, {"dataKey": 7, "aad": ""}]),
        (("encryption", "aad"), ["AAAA"]),
        ((*_METADATA, "startOffset"), [0]),
        ((*_METADATA, "endOffset"), [0, 2**63]),
        ((*_METADATA, "segmentLeaderEpochs"), [{"-1": 0}, {"1" * 5000: 0}, {"2147483648": 0}, {"1": "x"}]),
        ((*_ID, "id"), ["../../../../etc/passwd"]),
        ((*_ID, "topicIdPartition", "topicId"), ["FcNe0WUtC7GXjZ80kNrwSA"]),
        ((*_ID, "topicIdPartition", "topicPartition", "partition"), [1]),
    ],
    ids=str,
)
def test_hostile_manifests(place, path, values):
    """None of them takes memory that it claims to need."""
    original = object_of(place, ".rsm-manifest").read_bytes()
    for value in values:

        def edit(manifest, value=value):
            for key in path[:-1]:
                manifest = manifest[key]
            manifest[path[-1]] = value

        object_of(place, ".rsm-manifest").write_bytes(original)
        change(place, edit)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(StorageError) as found:
            read_all(segment_of(place))
        assert str(place) in str(found.value)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10, value  # KiB
        assert isinstance(found.value, UnsupportedFormat) or value != "2"


def test_the_greatest_leader_epoch_in_a_manifest(place):
    change(place, lambda manifest: manifest[_METADATA[0]].update(segmentLeaderEpochs={"2147483647": 7}))
    assert segment_of(place).content.segment_epochs.entries == (EpochEntry(2147483647, 7),)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"x"', "[" * 100_000, '{"version":"1"}', "9" * 10_000, '{"version":"1","x":' + "9" * 9999],
)
def test_manifests_that_are_none(place, text):
    object_of(place, ".rsm-manifest").write_text(text)
    with pytest.raises(CorruptData, match="manifest does not parse"):
        read_all(segment_of(place))
    os.truncate(object_of(place, ".rsm-manifest"), 1 << 40)
    with pytest.raises(CorruptData, match="manifest is too large"):
        read_all(segment_of(place))


@pytest.mark.parametrize("data_key", ["k1", "k1:", "k1:!"])
def test_a_manifest_without_a_data_key(place, data_key):
    """The fault is the manifest's, not that of the private key that was given."""
    change(place, lambda manifest: manifest["encryption"].update(dataKey=data_key))
    with pytest.raises(CorruptData, match="manifest has no data key"):
        read_all(segment_of(place))


@pytest.mark.parametrize(("real", "said"), [(4096, 4095), (4096, 4097)])
def test_a_chunk_that_decompresses_to_more_or_less(place, real, said):
    """What the manifest says of sizes is right, and so is the tag; only the content is not."""
    shutil.rmtree(place / "tier")
    write(place / "tier", SOURCE, TOPIC_ID, 2000, Style("", real, True, None))

    def edit(manifest):
        count = -(-manifest["chunkIndex"]["originalFileSize"] // real)
        manifest["chunkIndex"] |= {"originalChunkSize": said, "originalFileSize": said * count}

    change(place, edit)
    with pytest.raises(CorruptData, match="chunk"):
        read_all(segment_of(place))


def test_a_chunk_that_is_too_large_for_memory(place):
    """A small object may claim to hold it."""
    object_of(place, ".log").write_bytes(bytes(50))
    sizes = {"originalChunkSize": 300 << 20, "originalFileSize": 300 << 20, "transformedChunks": sizes_text([50])}
    change(place, lambda manifest: manifest["chunkIndex"].update(sizes))
    with pytest.raises(UnsupportedFormat, match="too large to be in memory"):
        segment_of(place).part(FileKind.LOG)


def test_the_largest_index_in_a_tier():
    assert len(BytesFile("index", bytes(MOST_ENTRIES_BYTES)).whole()) == MOST_ENTRIES_BYTES
    with pytest.raises(CorruptData, match="too large for what it is"):
        BytesFile("index", bytes(MOST_ENTRIES_BYTES + 1)).whole()


@pytest.mark.parametrize("seed", range(20))
def test_random_damages(place, seed):
    """Of random bytes in random objects nothing but a StorageError comes, or the bytes as they were."""
    rng = random.Random(seed)
    expected = bytes(log_of(segment_of(place)).read(0, 1 << 20))
    originals = {suffix: object_of(place, suffix).read_bytes() for suffix in (".log", ".indexes", ".rsm-manifest")}
    for _ in range(15):
        for suffix, data in originals.items():
            damaged = bytearray(data)
            if rng.random() < (0.9 if suffix == ".rsm-manifest" else 0.3):
                for _ in range(rng.choice([1, 1, 1, 5])):
                    at = rng.randrange(len(damaged))
                    choice = rng.randrange(4)
                    if choice == 0:
                        del damaged[at : at + rng.randrange(1, 50)]
                    elif choice == 1:
                        damaged[at:at] = rng.choice([b"0", b"9" * 20, b"}", b'"', b"-", rng.randbytes(8), b"null"])
                    else:
                        damaged[at] = rng.choice(b'0123456789,:{}[]"truefalsn\x00\xff')
            object_of(place, suffix).write_bytes(damaged)
        try:
            segment = segment_of(place)
            log = log_of(segment)
            read_all(segment)
        except (StorageError, KeyError):
            continue
        assert bytes(log.read(0, 1 << 20)) == expected


def test_names_that_lead_elsewhere(tmp_path):
    """Names of files are matched against what backends write, and never joined from what an object says."""
    place = tmp_path / f"t-{TOPIC_ID}" / "0"
    place.mkdir(parents=True)
    segment_id = random_id()
    for name in (
        f"{2**63:020d}-{segment_id}.log",
        f"{'9' * 20}-{segment_id}.rsm-manifest",
        f"x{'0' * 20}-{segment_id}.log",
    ):
        (place / name).write_bytes(b"x")
    os.mkfifo(place / f"{0:020d}-{segment_id}.log")
    (place / f"{0:020d}-{segment_id}.indexes").mkdir()
    assert Tier([str(tmp_path)]).segments("t", 0) == []


# Tiers behind URLs: fsspec's file system in memory stands for a bucket.

URL = "memory://bucket/some/prefix"


class Requests:
    """What is asked of URLs: the keys that are read, and those that are listed."""

    def __init__(self, monkeypatch):
        self.read = []
        self.listed = []
        read, entries = UrlPlace.read, UrlPlace.entries

        def noted_read(url, key, position, size):
            self.read.append(key)
            return read(url, key, position, size)

        def noted_entries(url, key):
            self.listed.append(key)
            return entries(url, key)

        monkeypatch.setattr(UrlPlace, "read", noted_read)
        monkeypatch.setattr(UrlPlace, "entries", noted_entries)

    def new(self):
        """How many reads there were since."""
        count = len(self.read)
        self.read.clear()
        return count


@pytest.fixture
def bucket():
    import fsspec

    system = fsspec.filesystem("memory")
    for layout in ("tier-local", "tier-aiven-enc"):
        for path in (TIERS / layout).rglob("*"):
            if path.is_file():
                name = f"/bucket/some/prefix/{layout}/{path.relative_to(TIERS / layout)}"
                system.pipe_file(name, path.read_bytes())
    yield system
    system.rm("/bucket", recursive=True)


@pytest.fixture
def requests(bucket, monkeypatch):
    return Requests(monkeypatch)


def tier(layout, cache):
    return Tier([f"{URL}/{layout}"], KEYS, RemoteBlockCache(directory=cache))


@pytest.mark.parametrize("layout", ["tier-local", "tier-aiven-enc"])
def test_the_same_bytes_and_few_requests(layout, requests, tmp_path):
    expected = LOCAL.segments("two", 0)
    found = tier(layout, tmp_path).segments("two", 0, expected[0].of.topic_id)
    assert all("two-" in key for key in requests.listed if "-" in key.partition("/")[2])
    assert requests.new() == 0
    for one, other in zip(found, expected, strict=True):
        log, got = log_of(other).read(0, 1 << 20), log_of(one)
        assert b"".join(got.read(at, 1000) for at in range(0, got.size, 1000)) == log
        assert one.epochs == other.epochs
    # One request for a manifest, at most three for a .log, one for the epochs.
    assert requests.new() <= 5 * len(found)
    for one in found:
        log_of(one).read(0, 1 << 20)
    assert requests.new() == 0


def test_what_was_read_is_kept_as_it_is_in_the_tier(requests, tmp_path):
    def contents():
        segments = tier("tier-aiven-enc", tmp_path / "cache").segments("two", 0)
        return [bytes(log_of(segment).read(0, 1 << 20)) for segment in segments]

    first = contents()
    assert requests.new()
    kept = sorted((tmp_path / "cache").iterdir())
    assert kept
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    objects = b"".join(path.read_bytes() for path in (TIERS / "tier-aiven-enc").rglob("two*/**/*") if path.is_file())
    assert all(path.read_bytes()[:-4] in objects for path in kept)
    assert (contents(), requests.new()) == (first, 0)
    for path in kept:  # damaged ones are read again
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert (contents(), requests.new() > 0) == (first, True)
    (tmp_path / "cache").chmod(0o777)  # anybody could write there
    assert (contents(), requests.new() > 0) == (first, True)


def test_a_process_that_has_time_connects_first(requests, tmp_path):
    there = tier("tier-local", tmp_path)
    there.connect()
    there.wait_until_connected(60)
    assert requests.listed == [""]
    assert there.segments("two", 0)
    assert requests.listed.count("") == 1


@pytest.mark.usefixtures("bucket")
def test_each_block_is_decoded_once_when_memory_is_short(monkeypatch, tmp_path):
    decoded, decompress_into = [], manifests.decompress_into

    def noted(*arguments):
        decoded.append(arguments)
        return decompress_into(*arguments)

    monkeypatch.setattr(manifests, "decompress_into", noted)
    cache = RemoteBlockCache(memory_bytes=20_000, directory=tmp_path)  # of chunks of 16,384 bytes
    (segment, *_) = Tier([f"{URL}/tier-aiven-enc"], KEYS, cache).segments("two", 0)
    log = log_of(segment)
    assert log.size > 3 * 16_384
    for at in range(0, log.size, 1000):
        log.read(at, 1000)
    assert len(decoded) == -(-log.size // 16_384)


def test_an_object_that_was_replaced_is_not_read_from_the_cache(bucket, tmp_path):
    def log():
        return bytes(log_of(tier("tier-local", tmp_path).segments("two", 0)[0]).read(0, 100))

    before = log()
    (name,) = bucket.glob("/bucket/some/prefix/tier-local/two-0-*/00000000000000000000-*.log")
    bucket.pipe_file(name, bytes(1000))
    assert log() == bytes(100) != before


def test_errors_name_the_object(bucket, tmp_path):
    log = log_of(tier("tier-aiven-enc", tmp_path).segments("two", 0)[0])
    (name,) = bucket.glob("/bucket/some/prefix/tier-aiven-enc/**/two-*/0/00000000000000000000-*.log")
    bucket.pipe_file(name, bucket.cat_file(name)[:-1])
    with pytest.raises(CorruptData, match=rf"{URL}/.*\.log: object is cut off"):
        log.read(0, 1 << 20)
    bucket.rm(name)
    with pytest.raises(TierUnavailable, match=rf"{URL}/.*\.log: there is no such object"):
        log.read(0, 1 << 20)


def test_a_package_that_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(TierUnavailable, match=r"memory:// is not installed.*kafkafs\[store\]"):
        tier("tier-local", tmp_path).segments("two", 0)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    (segment, *_) = Tier([str(TIERS / "tier-aiven-enc")], KEYS).segments("two", 0)
    with pytest.raises(TierUnavailable, match=r"cryptography is missing.*kafkafs\[store\]"):
        log_of(segment).read(0, 1)
