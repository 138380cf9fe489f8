"""Windows of batches, walks around damage, and the search for intact batches among bytes that look like batches."""

import os
import random
import struct

import pytest

from storage.errors import StorageError
from storage.files.log_file import LogFile
from storage.format import decode_kernel
from storage.format.batches import BATCH_HEADER_SIZE
from storage.format.compression import Codec, compress
from storage.log.intact import BreakReason, Budget, Undecided, Walk, intact_batch, walk
from storage.log.reader import find_batch, read_blocks
from storage.log.scanning import scan_batches
from storage.log.segment import Segment
from storage.types import MAX_OFFSET, Isolation
from tests.support.builders import ROLL, Batch, Partition, abort, build_log_dir, commit, many
from tests.support.damaged_bytes import overwrite
from tests.support.raw_batches import batch, message, record
from tests.support.readers import built, open_log, read_past_damage

# Windows of batches: where they begin and end, and what of a segment no byte flip can bring about.


@pytest.fixture
def read_sizes(monkeypatch):
    sizes, read = [], LogFile.read

    def counted(log, position, size, into=None):
        sizes.append(size)
        return read(log, position, size, into)

    monkeypatch.setattr(LogFile, "read", counted)
    return sizes


@pytest.fixture
def partition(tmp_path):
    items = [Batch(many(2, size)) for size in (50, 5000, 100, 90_000, 10, 10, 2000)]
    return build_log_dir(tmp_path, {"t": [[*items, ROLL, Batch(many(1))]]})["t", 0]


@pytest.mark.parametrize("window", [100, 4096, 70_000, 1 << 20])
def test_batches_that_begin_in_the_span(partition, window):
    snapshot = open_log(partition.path).snapshot()
    starts = [batch.position for batch in partition.batches[:-1]]
    size = snapshot.segments[0].size
    for first in starts:
        for end in (*starts, size, size - 1, starts[3] + 1, starts[3] + 70, size + 100):
            windows = []
            for part in scan_batches(snapshot, snapshot.segments[0], first, end, window=window):
                assert part.damage is None
                assert part.origin <= int(part.table.position[0])
                assert int(part.table.end[-1]) <= part.origin + len(part.buffer)
                windows += part.table.position.tolist()
            assert windows == [start for start in starts if first <= start < end]


@pytest.mark.parametrize("batches", [1, 20])
def test_little_of_a_hole_is_read(tmp_path, batches, read_sizes):
    partition = build_log_dir(tmp_path, {"t": [[*[Batch(many(1, 50_000))] * batches, ROLL, Batch(many(1))]]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    path = snapshot.segments[0].log.path
    size = path.stat().st_size
    os.truncate(path, 1 << 30)
    snapshot = open_log(partition.path).snapshot()
    read_sizes.clear()
    windows = scan_batches(snapshot, snapshot.segments[0], 0, window=4 << 20)
    seen = [(window.table.rows, window.damage and (window.damage.position, window.damage.end)) for window in windows]
    assert sum(rows for rows, _ in seen) == batches
    assert seen[-1][1] == (size, 1 << 30)
    assert sum(read_sizes) < 3 * size + (256 << 10)


def test_many_tiny_batches_fill_tables(tmp_path):
    batches = [Batch(many(1, 1), magic=0) for _ in range(9000)]
    partition = build_log_dir(tmp_path, {"t": [batches]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    tables = [part.table.rows for part in scan_batches(snapshot, snapshot.segments[0], 0)]
    assert sum(tables) == 9000
    assert len(tables) > 2


def test_interleaved_readers_do_not_share_buffers(partition):
    snapshot = open_log(partition.path).snapshot()
    readers = [read_blocks(snapshot, snapshot.segments[0], 0, window=100) for _ in range(5)]
    blocks = [next(reader) for reader in readers]
    assert {block.value(1) for block in blocks} == {partition.records[1].value}
    for reader in readers:
        assert next(reader).value(0) == partition.records[2].value
        reader.close()


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bytes_never_show_wrong_records(tmp_path, seed):
    """Whatever single file is damaged: what is shown was written, in order, and what is missing was told of or lies at
    the end. (A batch's base offset is outside of its CRC and is left alone here: see DESIGN.md.)"""
    rng = random.Random(seed)
    items = [
        item
        for number in range(24)
        for item in (
            Batch(many(rng.randint(1, 5), rng.randint(1, 200)), codec=rng.choice([0, 0, 1, 2, 3, 4])),
            Batch(many(2), producer_id=1, transactional=True),
            *([rng.choice([abort, commit])(1)] if number % 3 == 0 else []),
            *([ROLL] if number in (8, 16) else []),
        )
    ]
    partition = build_log_dir(tmp_path, {"t": [Partition([*items, commit(1)], index_interval_bytes=500)]})["t", 0]
    starts = {(batch.segment, batch.position + at) for batch in partition.batches for at in range(8)}
    files = sorted(path for path in partition.path.iterdir() if path.suffix != ".metadata" and path.stat().st_size)
    path = rng.choice([*files, *(file for file in files if file.suffix == ".log")])
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 1, 5, 40])):
        at = rng.randrange(len(data))
        if path.suffix != ".log" or (int(path.stem), at) not in starts:
            data[at] ^= rng.randint(1, 255)
    path.write_bytes(data)
    snapshot = open_log(partition.path).snapshot()
    for isolation, records in zip(Isolation, (partition.records, partition.read_committed), strict=True):
        whole = {record.offset: record for record in records}
        found, errors = read_past_damage(snapshot, isolation)
        shown = built(found)
        offsets = [record.offset for record in shown]
        assert offsets == sorted(set(offsets))
        assert [whole.get(offset) for offset in offsets] == shown
        if path.suffix != ".log":
            assert (len(shown), errors) == (len(whole), [])
        elif not errors and isolation is Isolation.READ_UNCOMMITTED:
            assert offsets == sorted(whole)[: len(offsets)]
    for offset in range(snapshot.log_start_offset, snapshot.log_end_offset):
        assert find_batch(snapshot, offset) is not None


@pytest.mark.parametrize("window", [100, 1 << 20])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_flipped_bit_of_a_header_hides_its_batch_alone(tmp_path, magic, window):
    """Without an index that would help. A last offset that is too high does not make the batches after it wrong."""
    codec = Codec.NONE if magic == 2 else Codec.GZIP
    items = [Batch(many(3), magic=magic, codec=codec) for _ in range(8)]
    partition = build_log_dir(tmp_path, {"t": [[*items, ROLL, Batch(many(2))]]})["t", 0]
    path = partition.path / f"{0:020d}.log"
    intact = path.read_bytes()
    for number in (0, 3, 7):
        batch = partition.batches[number]
        offsets = [record.offset for record in partition.records if not 3 * number <= record.offset < 3 * number + 3]
        for bit in range(8 * 12, 8 * (BATCH_HEADER_SIZE if magic == 2 else 30)):
            if magic == 2 and bit // 8 in range(12, 16):
                continue  # the leader epoch: nothing protects it, and readers do not need it
            data = bytearray(intact)
            data[batch.position + bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            records, errors = read_past_damage(open_log(partition.path).snapshot(), window=window)
            assert [record.offset for record in records] == offsets, bit
            assert [error.position for error in errors if isinstance(error, StorageError)] == [batch.position], bit


@pytest.mark.parametrize("in_window", [1, 2, 3, 10])
def test_offsets_that_fall_after_a_last_offset_that_is_too_high(tmp_path, in_window):
    """Two damages at the end of a window: readers are not given the offsets of the first batch twice."""
    items = [Batch(many(3)) for _ in BATCHES]
    partition = build_log_dir(tmp_path, {"t": [[*items, ROLL, Batch(many(2))]]})["t", 0]
    too_high = BATCHES[1][:23] + struct.pack(">i", 9) + BATCHES[1][27:]
    again = batch([record(n, value=b"#" * 50) for n in range(3)], 1)
    (partition.path / f"{0:020d}.log").write_bytes(b"".join([BATCHES[0], too_high, again, *BATCHES[3:]]))
    records, errors = read_past_damage(open_log(partition.path).snapshot(), window=in_window * SIZE)
    assert [record.offset for record in records] == [0, 1, 2, *range(9, 20)]
    assert [error.position for error in errors] == [SIZE, 2 * SIZE]


# Walks around damage: where a log breaks off, and where it goes on.

BATCHES = [batch([record(i, value=bytes([65 + n]) * 50) for i in range(3)], n * 3) for n in range(6)]
SIZE = len(BATCHES[0])
THIRD = BATCHES[2]


def segment(path, *parts, base=0):
    log = path / f"{base:020}.log"
    log.write_bytes(b"".join(parts))
    return Segment(path, base, LogFile(log), log.stat().st_size)


def walked(one, end_offset=1 << 40):
    """The base offset of each batch that was seen, the walk, what was passed."""
    seen, passed = [], []

    def visit(data, table, rows, origin):
        seen.extend(table.base_offset[:rows].tolist())

    result = walk(one, visit, lambda broken, offset: passed.append((broken, offset)), end_offset)
    assert tuple(broken for broken, _ in passed) == result.breaks
    return seen, result, passed


@pytest.mark.parametrize(
    ("hurt", "fault"),
    [
        (THIRD[:80] + b"#" + THIRD[81:], BreakReason.CRC),
        (THIRD[:8] + b"\0\0\0\1" + THIRD[12:], BreakReason.LENGTH),
        (THIRD[:8] + b"\0\0\0\x12" + THIRD[12:], BreakReason.LENGTH),
        (THIRD[:8] + b"\x7f\0\0\0" + THIRD[12:], BreakReason.CUT_OFF),
        (THIRD[:16] + b"\x09" + THIRD[17:80] + b"#" + THIRD[81:], BreakReason.GARBAGE),
        (bytes(SIZE), BreakReason.ZEROS),
        (b"what is this?" * 9, BreakReason.GARBAGE),
        (THIRD[:-5], BreakReason.CRC),
    ],
)
def test_behind_damage_it_goes_on(tmp_path, hurt, fault):
    seen, result, ((broken, offset),) = walked(segment(tmp_path, *BATCHES[:2], hurt, *BATCHES[3:]))
    assert seen == [0, 3, 9, 12, 15]
    assert (broken.fault, broken.position, broken.end) == (fault, 2 * SIZE, 2 * SIZE + len(hurt))
    assert (broken.offset, offset, broken.intact_behind) == (6, 9, True)
    assert result.next_offset == 18


def test_a_sound_segment_and_one_with_a_tail(tmp_path):
    seen, result, _ = walked(segment(tmp_path, *BATCHES))
    assert (seen, result) == ([0, 3, 6, 9, 12, 15], Walk((), 18))
    seen, result, ((broken, offset),) = walked(segment(tmp_path, *BATCHES[:-1], BATCHES[5][:-1]))
    assert len(seen) == 5
    assert (broken.fault, broken.intact_behind, broken.end) == (BreakReason.CUT_OFF, False, 6 * SIZE - 1)
    assert (offset, result.next_offset) == (15, 15)


@pytest.mark.parametrize("offset", [900, 1 << 39])
def test_offsets_that_fall_are_a_break_of_no_bytes(tmp_path, offset):
    high = batch([record(0)], offset)
    seen, result, ((broken, following),) = walked(segment(tmp_path, *BATCHES[:2], high, *BATCHES[2:]))
    assert seen == [0, 3, offset, 6, 9, 12, 15]
    assert (broken.fault, broken.position, broken.end) == (
        BreakReason.ORDER,
        2 * SIZE + len(high),
        2 * SIZE + len(high),
    )
    assert (broken.offset, following, result.next_offset) == (offset + 1, 6, offset + 1)


def test_an_offset_below_the_segment_is_a_break(tmp_path):
    seen, _, ((broken, offset),) = walked(segment(tmp_path, THIRD, BATCHES[0], BATCHES[3], base=6))
    assert seen == [6, 9]
    assert (broken.fault, broken.position, broken.end, offset) == (BreakReason.RANGE, SIZE, 2 * SIZE, 9)


def test_a_copy_of_a_log_in_a_damaged_message_is_not_taken_for_this_log(tmp_path):
    """Of the batch's own length nothing says that it is wrong; and beyond the segment's offsets nothing counts."""
    outer = bytearray(batch([record(value=b"".join(BATCHES[4:]))], 6))
    outer[25] ^= 1
    assert walked(segment(tmp_path, *BATCHES[:2], outer, BATCHES[3]))[0] == [0, 3, 9]
    outer[8:12] = b"\x7f\0\0\0"  # now its length is damaged, too
    assert walked(segment(tmp_path, *BATCHES[:2], outer, BATCHES[3]), end_offset=12)[0] == [0, 3, 9]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats(tmp_path, magic):
    parts = [message(n, b"value" * 9, magic=magic) for n in range(4)]
    parts.append(message(6, compress(Codec.GZIP, parts[0] + parts[1], magic), magic=magic, attributes=Codec.GZIP))
    parts[2] = parts[2][:40] + b"#" + parts[2][41:]
    seen, result, ((broken, offset),) = walked(segment(tmp_path, *parts))
    assert seen == [0, 1, 3, -1]
    assert (broken.fault, offset, result.next_offset) == (BreakReason.CRC, 3, 7)
    parts[2] = parts[2][:8] + b"\x7f" + parts[2][9:]
    assert walked(segment(tmp_path, *parts))[0] == [0, 1, 3, -1]


@pytest.mark.parametrize("end_offset", [100, MAX_OFFSET])
def test_intact_batches_behind_a_length_of_zero_are_seen(tmp_path, end_offset):
    one = segment(tmp_path, *BATCHES[:2], THIRD[:8] + bytes(4) + THIRD[12:], *BATCHES[3:])
    seen, _, ((broken, _),) = walked(one, end_offset=end_offset)
    assert seen == [0, 3, 9, 12, 15]
    assert (broken.fault, broken.end, broken.intact_behind) == (BreakReason.ZEROS, 3 * SIZE, True)


@pytest.mark.parametrize("batches_behind", [0, 2])
def test_a_hole_of_terabytes_is_not_read(tmp_path, batches_behind, read_sizes):
    path = segment(tmp_path, *BATCHES[:2]).log.path
    behind = (1 << 40) - 5  # the hole ends within a page: the batch's first bytes follow zeros of its page
    overwrite(path, behind, b"".join(BATCHES[2 : 2 + batches_behind]) or b"x")
    one = Segment(tmp_path, 0, LogFile(path), path.stat().st_size)
    seen, result, _ = walked(one)
    assert seen == [0, 3, *([6, 9] if batches_behind else [])]
    end = behind if batches_behind else one.size
    assert [(broken.position, broken.end) for broken in result.breaks] == [(2 * SIZE, end)]
    assert sum(read_sizes) < 64 << 20


@pytest.mark.parametrize(("count", "shown"), [(2, [0, 3, 9]), (3, [0, 3, 6])])
def test_what_looks_like_batches_everywhere_ends_the_walk_and_is_told(tmp_path, count, shown):
    """All searches of a walk share one budget, and nobody is told that nothing is behind: after two breaks, each with
    headers that claim some 16 times all that follows, it is used up."""
    lies = (claiming(2, 4 << 20) + b"#" * 40) * 20
    parts = [part for n in range(count) for part in (BATCHES[n], lies)]
    data = b"".join([*parts, BATCHES[3]])
    seen, result, _ = walked(segment(tmp_path, data, bytes(4 << 20), b"x"))
    assert seen == shown
    broken = result.breaks[-1]
    assert broken.undecided == (count == 3)
    if broken.undecided:
        assert (broken.end, broken.intact_behind) == (len(data) + (4 << 20) + 1, False)
        assert "too much behind it looks like batches" in broken.behind


# The search for intact batches among bytes that look like batches, whatever these claim.

GOOD = [batch([record(value=b"v" * 90)], 7), message(8, b"w" * 50), message(9, b"x" * 70, magic=0)]
STEP = 1 << 20  # is read at a time


def claiming(kind, size):
    """The header of a batch that claims `size` bytes; its CRC is wrong."""
    header = bytearray(GOOD[kind][: (61, 34, 26)[kind]])
    header[8:12] = (size - 12).to_bytes(4, "big")
    header[12:21] = header[12:17] + b"bad!" if kind == 0 else b"bad!" + header[16:21]
    return bytes(header)


def hostile(size):
    """Bytes that are full of headers, each of which claims everything that follows."""
    data = bytearray(size)
    for at in range(0, size - 61, 61):
        header = claiming(at % 3, size - at)
        data[at : at + len(header)] = header
    return bytes(data)


def test_it_finds_what_brute_force_finds(tmp_path):
    """Also where what it reads at a time ends."""
    dice = random.Random(1)
    found = set()
    for _ in range(80):
        parts = [b"#" * dice.choice((0, STEP - dice.randrange(500)))]
        for _ in range(dice.randrange(1, 9)):
            kind = dice.randrange(3)
            garbage = bytes(dice.choices((0, 1, 2, 60), k=dice.randrange(40)))
            lie = claiming(kind, dice.randrange(30, 900))
            parts += [dice.choice((garbage, lie, lie, lie, GOOD[kind] if dice.random() < 0.3 else garbage))]
        data = b"".join(parts)
        one = segment(tmp_path, data)
        expected = decode_kernel.search(data, 0, len(data), 0, 2**62)
        while expected >= 0 and one.batch_at(expected, len(data), any_offset=True) is None:
            expected = decode_kernel.search(data, expected + 1, len(data), 0, 2**62)
        assert intact_batch(one, 0, len(data)) == (None if expected < 0 else expected)
        found.add(None if expected < 0 else data[expected + 16])
    assert found == {None, 0, 1, 2}


def test_it_misses_no_position(tmp_path):
    """Not where what it reads at a time ends, nor the one behind what looks like a header."""
    for at in (STEP - 61, STEP - 1, STEP, STEP + 1):
        for good in GOOD:
            one = segment(tmp_path, b"#" * at, good)
            assert intact_batch(one, 0, one.size) == at
    # With a zero before it, of its length all but the last byte is one of a message.
    one = segment(tmp_path, b"#\0", batch([record(value=b"#" * (60 << 8))], 0))
    assert decode_kernel.search(one.log.read(0, one.size), 0, one.size, 0, 10) == 1
    assert intact_batch(one, 0, one.size) == 2


def test_it_gives_up_and_says_so(tmp_path):
    """Each header claims all that follows: 134 MB are to be checked, of 128 KiB."""
    data = hostile(1 << 17)
    one = segment(tmp_path, data, GOOD[0])
    with pytest.raises(Undecided):
        intact_batch(one, 0, one.size, budget=Budget(one.size))
    assert intact_batch(one, 0, one.size) == len(data)
