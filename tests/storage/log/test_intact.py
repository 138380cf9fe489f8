"""Walks around damage: where a log breaks off, and where it goes on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.files.log_file import LogFile
from storage.format.batches import BatchTable
from storage.format.compression import Codec, compress
from storage.log import intact
from storage.log.intact import Break, Fault, Walk, intact_batch, walk
from storage.log.segment import Segment
from storage.types import MAX_OFFSET
from tests.support.raw_batches import batch, message, record

BATCHES = [batch([record(i, value=bytes([65 + n]) * 50) for i in range(3)], n * 3) for n in range(6)]
SIZE = len(BATCHES[0])


def segment(path: Path, data: bytes, base_offset: int = 0) -> Segment:
    log = path / f"{base_offset:020}.log"
    log.write_bytes(data)
    return Segment(path, base_offset, LogFile(log), len(data))


def walked(one: Segment, end_offset: int = 1 << 40) -> tuple[list[tuple[int, int]], Walk, list[tuple[Break, int]]]:
    """(position and base offset of each batch that was seen, the walk, what was passed)."""
    seen: list[tuple[int, int]] = []
    passed: list[tuple[Break, int]] = []

    def visit(data: memoryview, table: BatchTable, rows: int, origin: int) -> None:
        seen.extend(zip(table.position[:rows].tolist(), table.base_offset[:rows].tolist(), strict=True))

    result = walk(one, visit, lambda broken, offset: passed.append((broken, offset)), end_offset)
    assert tuple(broken for broken, _ in passed) == result.breaks
    return seen, result, passed


def test_a_sound_segment(tmp_path: Path) -> None:
    seen, result, _ = walked(segment(tmp_path, b"".join(BATCHES)))
    assert seen == [(n * SIZE, n * 3) for n in range(6)]
    assert result == Walk((), 18)


@pytest.mark.parametrize(
    ("hurt", "fault"),
    [
        (BATCHES[2][:80] + b"#" + BATCHES[2][81:], Fault.CRC),
        (BATCHES[2][:8] + b"\0\0\0\1" + BATCHES[2][12:], Fault.LENGTH),
        (BATCHES[2][:8] + b"\0\0\0\x12" + BATCHES[2][12:], Fault.LENGTH),
        (BATCHES[2][:8] + b"\x7f\0\0\0" + BATCHES[2][12:], Fault.CUT_OFF),
        (BATCHES[2][:16] + b"\x09" + BATCHES[2][17:80] + b"#" + BATCHES[2][81:], Fault.GARBAGE),
        (bytes(SIZE), Fault.ZEROS),
        (b"what is this?" * 9, Fault.GARBAGE),
        (BATCHES[2][:-5], Fault.CRC),
        (b"\0\0\0\5" + BATCHES[2][4:], Fault.RANGE),
    ],
)
def test_behind_damage_it_goes_on(tmp_path: Path, hurt: bytes, fault: Fault) -> None:
    seen, result, ((broken, offset),) = walked(segment(tmp_path, b"".join([*BATCHES[:2], hurt, *BATCHES[3:]])))
    assert [base for _, base in seen] == [0, 3, 9, 12, 15]
    assert (broken.fault, broken.position, broken.end) == (fault, 2 * SIZE, 2 * SIZE + len(hurt))
    assert (broken.offset, offset, broken.intact_behind) == (6, 9, True)
    assert result.next_offset == 18


def test_a_tail(tmp_path: Path) -> None:
    seen, result, ((broken, offset),) = walked(segment(tmp_path, b"".join(BATCHES)[:-1]))
    assert len(seen) == 5
    assert (broken.fault, broken.intact_behind, broken.end) == (Fault.CUT_OFF, False, 6 * SIZE - 1)
    assert (offset, result.next_offset) == (15, 15)


def test_offsets_that_fall_are_a_break_of_no_bytes(tmp_path: Path) -> None:
    high = batch([record(0)], 900)
    seen, result, ((broken, offset),) = walked(segment(tmp_path, b"".join([*BATCHES[:2], high, *BATCHES[2:]])))
    assert [base for _, base in seen] == [0, 3, 900, 6, 9, 12, 15]
    assert (broken.fault, broken.position, broken.end) == (Fault.ORDER, 2 * SIZE + len(high), 2 * SIZE + len(high))
    assert (broken.offset, offset, result.next_offset) == (901, 6, 901)


def test_a_copy_of_a_log_in_a_damaged_message_is_not_taken_for_this_log(tmp_path: Path) -> None:
    """Of the batch's own length nothing says that it is wrong; and beyond the segment's offsets nothing counts."""
    inner = b"".join(BATCHES[4:])
    outer = bytearray(batch([record(value=inner)], 6))
    outer[25] ^= 1
    one = segment(tmp_path, b"".join([*BATCHES[:2], outer, BATCHES[3]]))
    assert [base for _, base in walked(one)[0]] == [0, 3, 9]
    outer[8:12] = b"\x7f\0\0\0"  # now its length is damaged, too
    one = segment(tmp_path, b"".join([*BATCHES[:2], outer, BATCHES[3]]))
    assert [base for _, base in walked(one, end_offset=12)[0]] == [0, 3, 9]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats(tmp_path: Path, magic: int) -> None:
    parts = [message(n, b"value" * 9, magic=magic) for n in range(4)]
    parts.append(message(6, compress(Codec.GZIP, parts[0] + parts[1], magic), magic=magic, attributes=Codec.GZIP))
    parts[2] = parts[2][:40] + b"#" + parts[2][41:]
    one = segment(tmp_path, b"".join(parts))
    seen, result, ((broken, offset),) = walked(one)
    assert [base for _, base in seen] == [0, 1, 3, -1]
    assert (broken.fault, offset, result.next_offset) == (Fault.CRC, 3, 7)
    parts[2] = parts[2][:8] + b"\x7f" + parts[2][9:]
    assert [base for _, base in walked(segment(tmp_path, b"".join(parts)))[0]] == [0, 1, 3, -1]


def test_the_search_finds_each_batch_and_nothing_else(tmp_path: Path) -> None:
    dice = random.Random(5)
    for _ in range(20):
        before = bytes(dice.choices((0, 1, 2, 255), k=dice.randrange(300)))
        parts = [*BATCHES[1:2], message(9, b"x" * 9), message(10, b"y" * 9, magic=0)]
        dice.shuffle(parts)
        one = segment(tmp_path, before + b"".join(parts))
        position = len(before)
        for part in parts:
            assert intact_batch(one, 0 if position == len(before) else position - 5, one.size) == position
            position += len(part)
        assert intact_batch(one, position - 1, one.size) is None


def test_a_search_over_more_than_a_step(tmp_path: Path) -> None:
    for length in ((1 << 20) - 30, (1 << 20) + 5, 3 << 20):
        one = segment(tmp_path, bytes(length) + BATCHES[1])
        assert intact_batch(one, 1, one.size) == length
        assert intact_batch(one, 1, one.size, lowest=4) is None
        assert intact_batch(one, 1, one.size, highest=2) is None


def test_behind_a_length_of_zero_nothing_was_written_yet_at_the_end_of_a_log(tmp_path: Path) -> None:
    """An append of several batches gets its first length last: what it left is no part of the log."""
    unfinished = BATCHES[2][:8] + bytes(4) + BATCHES[2][12:]
    one = segment(tmp_path, b"".join([*BATCHES[:2], unfinished, *BATCHES[3:]]))
    seen, _, ((broken, _),) = walked(one, end_offset=MAX_OFFSET)
    assert [base for _, base in seen] == [0, 3]
    assert (broken.fault, broken.end, broken.intact_behind) == (Fault.ZEROS, one.size, False)
    assert len(walked(one, end_offset=100)[0]) == 5


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batches_behind", [0, 2])
def test_a_hole_of_terabytes_is_not_read(
    tmp_path: Path, threads: int, batches_behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = segment(tmp_path, b"".join(BATCHES[:2]))
    behind = (1 << 40) - 5  # the hole ends within a page: the batch's first bytes follow zeros of its page
    with one.log.path.open("r+b") as file:
        file.seek(behind)
        file.write(b"".join(BATCHES[2 : 2 + batches_behind]) or b"x")
    one = Segment(tmp_path, 0, LogFile(one.log.path), one.log.path.stat().st_size)
    sizes: list[int] = []
    read = LogFile.read

    def counted(log: LogFile, position: int, size: int, into: bytearray | memoryview | None = None) -> memoryview:
        sizes.append(size)
        return read(log, position, size, into)

    monkeypatch.setattr(LogFile, "read", counted)
    seen: list[int] = []
    result = walk(
        one,
        lambda _data, table, rows, _origin: seen.extend(table.base_offset[:rows].tolist()),
        lambda _broken, _offset: None,
        1 << 40,
        threads=threads,
    )
    assert seen == [0, 3, *([6, 9] if batches_behind else [])]
    assert [(broken.position, broken.end) for broken in result.breaks] == [
        (2 * SIZE, behind if batches_behind else one.size)
    ]
    assert sum(sizes) < 64 << 20


def test_what_looks_like_batches_everywhere_ends_the_walk_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All searches of a walk share one budget, and nobody is told that nothing is behind."""
    lie = BATCHES[2][:8] + b"\0\0\x40\0" + BATCHES[2][12:61]
    hostile = lie * (0x4000 // len(lie) + 40)
    data = BATCHES[0] + hostile + BATCHES[3]
    monkeypatch.setattr(intact, "_STEP", 1 << 10)
    monkeypatch.setattr(intact, "_ROUNDS", 1000)
    seen, result, _ = walked(segment(tmp_path, data))
    assert seen == [(0, 0), (len(data) - SIZE, 9)]
    assert [broken.undecided for broken in result.breaks] == [False]
    monkeypatch.setattr(intact, "_ROUNDS", 2)
    seen, result, _ = walked(segment(tmp_path, data))
    assert seen == [(0, 0)]
    (broken,) = result.breaks
    assert (broken.position, broken.end, broken.undecided, broken.intact_behind) == (SIZE, len(data), True, False)
    assert "too much behind it looks like batches" in broken.behind
