"""A range of times that ends is read only where such messages may be, and has all of them."""

import random
from pathlib import Path

import pytest

import kafkafs
from storage.format.block import Record
from tests.support.builders import ROLL, START_MS, Batch, build_log_dir
from tests.support.commands import run
from tests.support.damaged_bytes import flip_middle

SECOND = 1000


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Five segments of 1.6 MB, a message a second, out of order by up to a minute; one is an hour late."""
    seeded = random.Random(7)
    items = []
    for number in range(80):
        seconds = [number * 50 + at + seeded.randrange(60) for at in range(50)]
        if number == 70:
            seconds[3] = 400
        records = [Record(b"k", b"x" * 2000, (), START_MS + second * SECOND) for second in seconds]
        items += [ROLL] * (number > 0 and number % 16 == 0) + [Batch(records)]
    return build_log_dir(tmp_path_factory.mktemp("log"), {"t": [items]}, broker=False)


@pytest.mark.parametrize(("first", "last"), [(380, 420), (1500, 1600), (None, 30), (9000, 9001)])
def test_all_of_a_time_is_found_and_little_else_is_read(built, first, last):
    records = built["t", 0].records
    start, end = None if first is None else START_MS + first * SECOND, START_MS + last * SECOND
    wanted = [r.offset for r in records if (start is None or start <= r.timestamp) and r.timestamp < end]
    topic = kafkafs.open(built.path)["t"]
    whole = topic.scan()
    whole.to_arrow()
    for _ in range(2):  # measured, and known
        scan = topic.scan(time=(start, end))
        assert scan.to_arrow().column("offset").to_pylist() == wanted
        assert scan.count() == len(wanted)
        assert scan.bytes_read <= 0.3 * whole.bytes_read  # of two passes


def test_what_is_not_known_is_read(built):
    """Damage may hide anything; without an end there is nothing to look up."""
    log = built["t", 0].log(1)
    flip_middle(log)
    topic = kafkafs.open(built.path)["t"]
    times = START_MS + 500 * SECOND, START_MS + 520 * SECOND
    scan = topic.scan(time=times, on_damage="skip")
    wanted = [r.offset for r in built["t", 0].records if times[0] <= r.timestamp < times[1]]
    assert scan.to_arrow().column("offset").to_pylist() == wanted
    assert len(scan.skipped) == 1
    flip_middle(log)


def read_bytes():
    """What this process has read so far."""
    (line,) = (line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar: "))
    return int(line.split()[1])


@pytest.mark.parametrize(("first", "last"), [(380, 420), (1500, 1600), (9000, 9001), (900, 2700)])
def test_cat_stops_where_no_message_of_a_time_can_follow(built, first, last):
    """It prints those that are late or early, too."""
    log = built["t", 0]
    times = f"{START_MS + first * SECOND}--{START_MS + last * SECOND}"
    wanted = [r.offset for r in log.records if first * SECOND <= r.timestamp - START_MS < last * SECOND]
    for _ in range(2):  # measured, and known
        before = read_bytes()
        result = run("cat", built.path, "t/0", "--time", times, "--format", r"%o\n")
        assert [int(line) for line in result.stdout.split()] == wanted
    needed = sum(path.stat().st_size for path in log.path.glob("*.log")) * (last - first) / 4000
    assert read_bytes() - before <= needed + 6_000_000


def test_cat_meets_damage_that_may_hide_a_message_of_the_time(built):
    """In a segment in which a message of the time may be."""
    log = built["t", 0]
    times = f"{START_MS + 100 * SECOND}--{START_MS + 120 * SECOND}"
    good = run("cat", built.path, "t/0", "--time", times, "--format", r"%o\n").stdout.split()
    flip_middle(log.log(0))
    result = run("cat", built.path, "t/0", "--time", times, "--format", r"%o\n")
    flip_middle(log.log(0))
    assert result.exit_code == 4
    assert "batch checksum differs" in result.stderr
    assert result.stdout.split() == good[: len(result.stdout.split())]
