"""Offsets further above the base of their segment than an index can have (KAFKA-6264), which all readers have; and
offsets that do not ascend, in batches with correct CRCs: a broker keeps them. Readers skip a batch that is there twice,
as consumers do, and fail at others."""

import json
import struct

import pytest

import kafkafs
from storage.errors import CorruptBatch
from tests.support.commands import output_of, process, run
from tests.support.raw_batches import batch, message, record
from tests.support.reference_views import content, readable, tree_of

pytest.importorskip("pyarrow")

FAR = 2**31 + 5
OFFSETS = [0, 10, FAR, FAR + 9]
VALUES = [b"1", b"2", b"3", b"4"]
TIMES = [1_763_683_200_000 + 86_400_000 * day for day in range(4)]


@pytest.fixture(params=["active", "sealed", "v1", "indexes of an old broker"])
def log_dir(request, tmp_path):
    """A log directory with these messages in t/0, in one segment."""
    directory = tmp_path / "log" / "t-0"
    directory.mkdir(parents=True)
    parts = [
        message(offset, value, magic=1, timestamp=time)
        if request.param == "v1"
        else batch([record(value=value)], offset, base_timestamp=time, max_timestamp=time)
        for offset, value, time in zip(OFFSETS, VALUES, TIMES, strict=True)
    ]
    segment = directory / f"{0:020d}"
    segment.with_suffix(".log").write_bytes(b"".join(parts))
    if request.param == "sealed":
        (directory / f"{FAR + 10:020d}.log").touch()
    if request.param == "indexes of an old broker":  # its entries for offsets beyond 31 bits are cut to 32
        entries = [(OFFSETS[at] & 0xFFFF_FFFF, sum(map(len, parts[:at])), TIMES[at]) for at in (1, 2, 3)]
        index = [struct.pack(">II", offset, position) for offset, position, _ in entries]
        segment.with_suffix(".index").write_bytes(b"".join(index))
        times = [struct.pack(">qI", time, offset) for offset, _, time in entries]
        segment.with_suffix(".timeindex").write_bytes(b"".join(times))
    return tmp_path / "log"


def test_readers_have_all_messages(log_dir):
    assert output_of("count", log_dir, "t/0") == b"4\n"
    for limits, first in (
        ((), 0),
        (("--offsets", f"{FAR}-"), 2),
        (("--offsets", f"{FAR + 1}-"), 3),
        (("--time", "2025-11-23--"), 2),
    ):
        assert output_of("cat", log_dir, "t/0", *limits).split() == VALUES[first:]
    with process("fetch", log_dir, "t/0", "--offset", FAR + 9, "--max-bytes", 10_000) as fetching:
        assert fetching.communicate()[0].endswith((log_dir / "t-0" / f"{0:020d}.log").read_bytes()[-30:])
    lines = output_of("dump", log_dir / "t-0" / f"{0:020d}.log").splitlines()
    assert [one["offset"] for one in map(json.loads, lines) if "offset" in one] == OFFSETS
    tree = tree_of(log_dir)
    for name, values in (
        ("messages.txt", VALUES),
        ("offsets/last-2.txt", VALUES[2:]),
        (f"offsets/{FAR}.txt", VALUES[2:3]),
    ):
        assert content(tree, f"/t/0/{name}").split() == values
    assert kafkafs.open(log_dir)["t"].scan().to_arrow().column("offset").to_pylist() == OFFSETS
    query = f"SELECT value FROM t WHERE offset > {FAR}"
    assert output_of("sql", log_dir, query, "--format", "csv") == b"value\n4\n"


@pytest.mark.parametrize("command", [("mirror",), ("salvage", "t"), ("revive",)], ids=" ".join)
def test_copies_have_all_messages(log_dir, tmp_path, command):
    name, *topics = command
    copy = tmp_path / "copy"
    output_of(name, log_dir, *topics, *([copy] if name == "mirror" else ["--to", copy]))
    assert output_of("cat", copy, "t/0").split() == VALUES


def test_no_check_takes_them_for_damage(log_dir):
    result = run("verify", log_dir)
    assert "segment-span" in result.stdout
    assert "damage" not in run("doctor", log_dir).stdout


# Offsets that do not ascend at the end of a log

SHAPES = {
    "the last": [0, 1, 3, 2],
    "the last two": [0, 3, 4, 1, 2],
    "after a far one": [0, 1, 2, 2**20, 3, 4],
    "after a farther one": [0, 1, 2, 2**40, 3, 4],
    "the last, after a far one": [0, 1, 2, 2**20, 3],
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def fallen(request, tmp_path):
    directory = tmp_path / "t-0"
    directory.mkdir()
    data = b"".join(batch([record(value=b"v")], offset, max_timestamp=1000) for offset in request.param)
    (directory / f"{0:020d}.log").write_bytes(data)
    return tmp_path


def test_readers_fail(fallen, tmp_path_factory):
    for name, place in (
        ("cat", "t/0"),
        ("count", "t/0"),
        ("digest", "t/0"),
        ("mirror", tmp_path_factory.mktemp("copy")),
    ):
        result = run(name, fallen, place)
        assert (name, result.exit_code) == (name, 4)
        assert "offsets do not ascend" in result.stderr
    scan = kafkafs.open(fallen)["t"].scan()
    for read in (scan.to_arrow, scan.count):
        with pytest.raises(CorruptBatch, match="offsets do not ascend"):
            read()
    stretches, errors = readable(tree_of(fallen).lookup("/t/0/messages.txt"))
    assert b"".join(stretches).startswith(b"v\nv\n")
    assert errors


# Batches that are there twice

TWICE = {
    "one": [0, 1, 1, 2, 3],
    "some": [0, 1, 2, 0, 1, 2, 3],
    "the first ones": [0, 1, 2, 3, 0, 1, 4],
    "one, after a gap": [0, 7, 7, 8],
    "the last": [0, 1, 2, 2],
    "the last, and others": [0, 1, 2, 0, 1],
    "often": [0, 0, 0, 1, 1, 0, 2, 1, 0],
}


def log_of(directory, offsets, indexed=None, padding=""):
    """A partition's directory with a segment of these batches; in its index there is only the batch `indexed`. The
    values are the offsets, and `padding`."""
    directory.mkdir(parents=True)
    batches = [
        batch(
            [record(key=b"k%d" % (offset % 2), value=f"{offset}{padding}".encode())],
            offset,
            base_timestamp=time,
            max_timestamp=time,
        )
        for offset in offsets
        for time in [TIMES[0] + offset]
    ]
    segment = directory / f"{0:020d}.log"
    segment.write_bytes(b"".join(batches))
    if indexed is not None:
        entry = struct.pack(">II", offsets[indexed], sum(map(len, batches[:indexed])))
        segment.with_suffix(".index").write_bytes(entry)
    return batches


@pytest.fixture(
    params=[
        pytest.param((offsets, indexed), id=name if indexed is None else f"{name}, the index has {indexed}")
        for name, offsets in TWICE.items()
        for indexed in (None, *range(1, len(offsets)))
        if indexed is None or 0 < offsets[indexed] in offsets[:indexed]
    ]
)
def twice(request, tmp_path):
    """A log directory with batches that are there twice, and the offsets that its readers get. The index may have one
    of the repeated batches, as after a broker's recovery."""
    offsets, indexed = request.param
    log_of(tmp_path / "log" / "t-0", offsets, indexed)
    return tmp_path / "log", sorted(set(offsets))


def lines_of(offsets):
    return b"".join(b"%d\n" % offset for offset in offsets)


def test_readers_skip_what_is_there_twice(twice):
    log_dir, offsets = twice
    assert output_of("count", log_dir, "t/0") == b"%d\n" % len(offsets)
    assert output_of("cat", log_dir, "t/0") == lines_of(offsets)
    for first in offsets:
        assert output_of("cat", log_dir, "t/0", "--offsets", f"{first}-") == lines_of(offsets[offsets.index(first) :])
    assert output_of("cat", log_dir, "t/0", "--key", "k0") == lines_of(offset for offset in offsets if offset % 2 == 0)
    assert kafkafs.open(log_dir)["t"].scan().to_arrow().column("offset").to_pylist() == offsets
    query = "SELECT offset FROM t ORDER BY offset"
    assert output_of("sql", log_dir, query, "--format", "csv") == b"offset\n" + lines_of(offsets)
    tree = tree_of(log_dir)
    for name in ("messages.txt", "offsets/0-.txt", "time/2025-11.txt"):
        assert content(tree, f"/t/0/{name}") == lines_of(offsets)
    assert content(tree, "/t/0/keys/k1.txt") == lines_of(offset for offset in offsets if offset % 2)


@pytest.mark.parametrize("offsets", TWICE.values(), ids=TWICE)
def test_views_that_grow_by_a_second_copy_skip_it(offsets, tmp_path):
    batches = log_of(tmp_path / "t-0", offsets)
    (log,) = tmp_path.glob("t-0/*.log")
    log.write_bytes(b"")
    tree = tree_of(tmp_path)
    for count, batch_bytes in enumerate(batches, 1):
        with log.open("ab") as file:
            file.write(batch_bytes)
        for name in ("messages.txt", "offsets/0-.txt", "time/2025-11.txt"):
            assert content(tree, f"/t/0/{name}") == lines_of(sorted(set(offsets[:count])))


@pytest.mark.parametrize("offsets", TWICE.values(), ids=TWICE)
def test_readers_of_a_key_with_an_index_skip_it(offsets, tmp_path):
    batches = log_of(tmp_path / "t-0", offsets, padding=" " * 600_000)
    ascending = [row for row in range(1, len(offsets)) if offsets[row] > max(offsets[:row])]
    index = b"".join(struct.pack(">II", offsets[row], sum(map(len, batches[:row]))) for row in ascending)
    (tmp_path / "t-0" / f"{0:020d}.index").write_bytes(index)
    for _ in ("makes the index", "has the index"):
        for key in (0, 1):
            found = output_of("cat", tmp_path, "t/0", "--key", f"k{key}").split()
            expected = [offset for offset in sorted(set(offsets)) if offset % 2 == key]
            assert [int(line) for line in found] == expected
            assert [int(line) for line in content(tree_of(tmp_path), f"/t/0/keys/k{key}.txt").split()] == expected


@pytest.mark.parametrize("command", ["mirror LOGDIR COPY", "salvage LOGDIR t --to COPY",
                                     "revive LOGDIR --to COPY", "revive LOGDIR --to COPY --salvage"])  # fmt: skip
def test_copies_show_it_once(twice, tmp_path, command):
    (log_dir, offsets), copy = twice, tmp_path / "copy"
    output_of(*({"LOGDIR": log_dir, "COPY": copy}.get(word, word) for word in command.split()))
    assert output_of("cat", copy, "t/0") == lines_of(offsets)
    assert run("verify", copy).exit_code == 0


def test_a_store_is_refused_it(twice, tmp_path):
    pytest.importorskip("fsspec")
    result = run("mirror", twice[0], f"file://{tmp_path}/store")
    assert result.exit_code == 4
    assert "batch is in the segment twice" in result.stderr


def test_checks_name_what_is_there_twice_and_recovery_keeps_it(twice):
    log_dir, _ = twice
    log = log_dir / "t-0" / f"{0:020d}.log"
    data = log.read_bytes()
    assert " batch-twice" in run("verify", log_dir).stdout
    assert "consumers skip the second one, others" in run("doctor", log_dir).stdout
    output_of("recover", log_dir)
    assert log.read_bytes() == data
