"""The search for intact batches among bytes that look like batches, whatever these claim."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.files.log_file import LogFile
from storage.format import decode_kernel
from storage.log import intact
from storage.log.intact import Budget, Undecided, intact_batch
from storage.log.segment import Segment
from tests.support.raw_batches import batch, message, record

GOOD = [batch([record(value=b"v" * 90)], 7), message(8, b"w" * 50), message(9, b"x" * 70, magic=0)]


def segment(path: Path, data: bytes) -> Segment:
    log = path / f"{0:020}.log"
    log.write_bytes(data)
    return Segment(path, 0, LogFile(log), len(data))


def claiming(kind: int, size: int) -> bytes:
    """The header of a batch that claims `size` bytes; its CRC is wrong."""
    header = bytearray(GOOD[kind][: (61, 34, 26)[kind]])
    header[8:12] = (size - 12).to_bytes(4, "big")
    header[12:21] = header[12:17] + b"bad!" if kind == 0 else b"bad!" + header[16:21]
    return bytes(header)


def hostile(size: int) -> bytes:
    """Bytes that are full of headers, each of which claims everything that follows."""
    data = bytearray(size)
    for at in range(0, size - 61, 61):
        header = claiming(at % 3, size - at)
        data[at : at + len(header)] = header
    return bytes(data)


def first_by_brute_force(one: Segment, data: bytes) -> int | None:
    at = decode_kernel.search(data, 0, len(data), 0, 2**62)
    while at >= 0 and one.batch_at(at, len(data), any_offset=True) is None:
        at = decode_kernel.search(data, at + 1, len(data), 0, 2**62)
    return None if at < 0 else at


@pytest.mark.parametrize("many", [1, 3, 1000])
def test_it_finds_what_brute_force_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    monkeypatch.setattr(intact, "_FEW", 0)
    monkeypatch.setattr(intact, "_MANY", many)
    dice = random.Random(many)
    found = set()
    for _ in range(150):
        parts = []
        for _ in range(dice.randrange(1, 9)):
            kind = dice.randrange(3)
            garbage = bytes(dice.choices((0, 1, 2, 60), k=dice.randrange(40)))
            lie = claiming(kind, dice.randrange(30, 900))
            parts += [dice.choice((garbage, lie, lie, lie, GOOD[kind] if dice.random() < 0.3 else garbage))]
        data = b"".join(parts)
        monkeypatch.setattr(intact, "_STEP", dice.choice((64, 100, 1 << 20)))
        one = segment(tmp_path, data)
        expected = first_by_brute_force(one, data)
        assert intact_batch(one, 0, len(data)) == expected
        found.add(None if expected is None else data[expected + 16])
    assert found == {None, 0, 1, 2}


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_its_work_is_linear_in_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    """Each candidate claims all that follows: read one after the other they would be 4 GB."""
    data = hostile(1 << 19)
    one = segment(tmp_path, data + GOOD[kind])
    read = [0]
    original = LogFile.read

    def counted(log: LogFile, position: int, size: int, into: bytearray | memoryview | None = None) -> memoryview:
        read[0] += size
        return original(log, position, size, into)

    monkeypatch.setattr(LogFile, "read", counted)
    assert intact_batch(one, 0, one.size, budget=Budget(one.size)) == len(data)
    assert read[0] < 25 * len(data)
    read[0] = 0
    assert intact_batch(segment(tmp_path, data), 0, len(data), budget=Budget(len(data))) is None
    assert read[0] < 25 * len(data)


def test_it_gives_up_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intact, "_MANY", 100)
    monkeypatch.setattr(intact, "_STEP", 1 << 12)
    monkeypatch.setattr(intact, "_ROUNDS", 5)
    data = hostile(1 << 16) + GOOD[0]
    one = segment(tmp_path, data)
    assert intact_batch(one, 0, len(data)) == len(data) - len(GOOD[0])
    with pytest.raises(Undecided):
        intact_batch(one, 0, len(data), budget=Budget(len(data)))


def test_right_checksums_of_what_is_no_batch_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intact, "_FEW", 0)
    monkeypatch.setattr(Segment, "batch_at", lambda *_, **__: None)
    monkeypatch.setattr(intact, "_STEP", 100)
    monkeypatch.setattr(intact, "_ROUNDS", 1)
    one = segment(tmp_path, GOOD[0] * 9)
    assert intact_batch(one, 0, one.size) is None
    Budget(one.size).spend(one.size)  # the one pass over all bytes
    with pytest.raises(Undecided):
        intact_batch(one, 0, one.size, budget=Budget(one.size))
