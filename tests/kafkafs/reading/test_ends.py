"""Large views that nobody has measured: both ends are read without what is between, and nothing wrong is shown."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest

from kafkafs.reading import blocks, workers
from kafkafs.reading.growth import SizeWasEstimated
from kafkafs.tree.paths import NoSuchPath
from storage.errors import LogTruncated, SegmentGone
from storage.format.compression import Codec
from tests.support.live_log import START_MS, LiveLog
from tests.support.readers import table_of
from tests.support.reference_views import (
    PATH,
    content,
    opened,
    read_all,
    read_anyhow,
    readable,
    scanned_bytes,
    size_of,
    tree_of,
)
from tests.support.waiting import wait_for

BELOW = 16 << 10
SIZES = {"even": (60, 60), "longer at the end": (5, 400), "shorter at the end": (400, 5)}


@pytest.fixture(params=[Codec.NONE, Codec.LZ4])
def live(tmp_path, request):
    return LiveLog(tmp_path / "log", request.param)


def random_bytes(seed, size):
    return random.Random(seed).randbytes(size).hex().encode()


def write(live, count, size=60):
    values = [b"%d %s" % (live.next_offset + n, random_bytes(live.next_offset + n, size)) for n in range(count)]
    live.append(*values, batch=5)


def fill(live, sizes, segments=6):
    first, last = sizes
    for number in range(segments):
        write(live, 300, first + (last - first) * number // (segments - 1))
        live.roll()
    write(live, 50, last)


def write_offset_indexes(live):
    """With them, what is measured in advance is divided among threads."""
    for base in live.segments:
        table = table_of(live.log(base).read_bytes())
        entries = np.stack((table.base_offset - base, table.position), axis=1)[1::4]
        live.log(base).with_suffix(".index").write_bytes(entries.astype(">i4").tobytes())


def estimating(live, **options):
    return tree_of(live.path.parent, **{"exact_below": BELOW, "workers": 0, **options})


def file_bytes(live):
    return sum(path.stat().st_size for path in live.path.glob("*.log"))


@pytest.fixture(params=SIZES)
def filled(live, request):
    fill(live, SIZES[request.param])
    return live


def test_the_first_and_the_last_bytes_cost_a_little_of_the_log(filled):
    tree = estimating(filled)
    handle = opened(tree)
    text = filled.text()
    assert handle.read(0, 1000) == text[:1000]
    assert handle.read(handle.size - 1000, 1000) == text[-1000:]
    assert handle.read(handle.size, 1000) == b""
    assert scanned_bytes(tree) < file_bytes(filled) // 8


@pytest.mark.parametrize("path", [PATH, "/t/0/offsets/7-.txt", "/t/0/offsets/453-.txt"])
def test_a_sequential_reader_gets_everything_whatever_the_size_was(filled, path):
    tree = estimating(filled)
    first = 0 if path == PATH else int(path.split("/")[-1].split("-")[0])
    text = filled.text(lambda offset, _: offset >= first)
    handle = opened(tree, path)
    assert handle.size != len(text)
    assert read_all(handle, 3000) == text
    assert handle.size == size_of(tree, path) == len(text)
    assert content(tree, path) == text


@pytest.mark.parametrize("ext", ["txt", "jsonl"])
@pytest.mark.parametrize("known_blocks", [False, True])
@pytest.mark.parametrize("below", [BELOW, 2 * BELOW])
def test_a_sequential_reader_has_each_message_decoded_once(filled, ext, known_blocks, below, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2000)  # a block that goes on in the next step is rendered again
    monkeypatch.setattr(workers, "AWAITED_PART_BYTES", 2000)
    write_offset_indexes(filled)
    tree = estimating(filled, exact_below=below)
    if known_blocks:
        with pytest.raises(NoSuchPath):
            opened(tree, "/t/0/keys/7.txt")
    before = tree.status()
    data = read_all(opened(tree, f"/t/0/messages.{ext}"), 3000)
    assert data == content(estimating(filled, exact_below=None), f"/t/0/messages.{ext}")
    status = tree.status()
    assert status["view_index"]["scanned_bytes"] - before["view_index"]["scanned_bytes"] <= file_bytes(filled) * 1.1
    # The last messages were measured at the open, and are rendered when they are read.
    misses = status["block_cache"]["misses"] - before["block_cache"]["misses"]
    assert misses < file_bytes(filled) // 2000 // 8


def test_a_worker_goes_on_before_the_reader_gets_there(filled):
    tree = estimating(filled, workers=1)
    tree.start()
    handle, text = opened(tree), filled.text()
    measured = scanned_bytes(tree)
    for position in range(0, 2000, 500):
        assert handle.read(position, 500) == text[position : position + 500]
    wait_for("the worker has measured more", lambda: scanned_bytes(tree) > measured)
    assert read_all_from(handle, 2000) == text[2000:]
    tree.stop()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_sizes_that_come_from_rendering_are_those_of_measuring(live, isolation, monkeypatch):
    """With a cache in which nothing stays, what was measured is rendered again, by its size."""
    monkeypatch.setattr(workers, "AWAITED_PART_BYTES", 2000)
    for number in range(60):
        write(live, 20, 50 + number)
        live.begin(7, *[b"of a transaction %d" % number] * 9)
        live.end(7, commit=number % 3 > 0)
        if number % 20 == 19:
            live.roll()
    write_offset_indexes(live)
    for path in (PATH, "/t/0/messages.jsonl", "/t/0/offsets/13-.txt", of_path(*of_times(100))):
        exact = estimating(live, exact_below=None, isolation=isolation)
        expected = content(exact, path)
        for cache_bytes, below in product((0, 64 << 20), (4096, 40_000)):
            tree = estimating(live, exact_below=below, isolation=isolation, cache_bytes=cache_bytes)
            handle = opened(tree, path)
            assert read_all(handle, 3000) == expected
            read_anyhow(handle, expected, cache_bytes)
            assert content(tree, path) == expected


def of_path(name, _):
    return f"/t/0/{name}.txt"


def test_damage_ends_what_is_rendered_in_advance(filled):
    """The errors and the bytes around them are those of a view that is measured first."""
    for base in filled.segments[1:4]:
        data = bytearray(filled.log(base).read_bytes())
        data[len(data) // 2] ^= 1
        filled.log(base).write_bytes(data)
    expected, errors = readable(estimating(filled, exact_below=None).lookup(PATH))
    assert len(errors) > 1
    found, found_errors = readable(estimating(filled).lookup(PATH))
    assert found == expected
    assert [error.position for error in found_errors] == [error.position for error in errors]


def test_what_was_read_through_is_exact_at_the_next_open(filled):
    tree = estimating(filled)
    tail, reader = opened(tree), opened(tree)
    shown = tail.size
    read_all(reader)
    handle = opened(tree)
    assert handle.size == len(filled.text())
    assert tail.size == shown
    assert tail.read(shown - 500, 500) == filled.text()[-500:]


def test_lines_are_read_backwards_until_the_estimate_ends(filled):
    tree = estimating(filled)
    text = filled.text()
    handle = opened(tree)
    position, found = handle.size, b""
    with pytest.raises(SizeWasEstimated):  # noqa: PT012 - which read it is depends on the estimate
        while position > 0:
            start = max(0, position - 4096)
            found = handle.read(start, position - start) + found
            position = start
    assert len(found) > BELOW
    assert text.endswith(found)
    again = opened(tree)
    assert handle.read(handle.size - 10, 10) == text[-10:]
    again.close()


def test_a_reader_from_the_front_that_has_seen_the_end_does_not_skip_to_it(filled):
    tree = estimating(filled)
    text = filled.text()
    handle = opened(tree)
    assert text.endswith(handle.read(handle.size - 4096, 4096))
    position = 0
    with pytest.raises(SizeWasEstimated):  # noqa: PT012 - which read it is depends on the estimate
        while part := handle.read(position, 4096):
            assert part == text[position : position + len(part)]
            position += len(part)
    assert content(tree, PATH) == text


def test_a_read_in_the_middle_waits_for_the_measurement(filled):
    tree = estimating(filled, exact_below=4096)
    text = filled.text()
    handle = opened(tree)
    assert handle.read(len(text) // 2, 5000) == text[len(text) // 2 :][:5000]
    assert handle.size == len(text)


def test_what_is_appended_comes_after_the_size_that_was_shown(filled):
    tree = estimating(filled)
    handle = opened(tree)
    position = handle.size
    assert filled.text().endswith(handle.read(position - 100, 100))
    data = b""
    for _ in range(5):
        before = len(filled.text())
        write(filled, 40)
        filled.roll()
        fresh = handle.read(position, 1 << 20)
        while more := handle.read(position + len(fresh), 1 << 20):
            fresh += more
        assert fresh == filled.text()[before:]
        position += len(fresh)
        data += fresh
        assert handle.size == size_of(tree) == position
        other = opened(tree)
        assert other.read(0, 50) == filled.text()[:50]
        other.close()
    assert handle.read(position - len(data), len(data)) == data


def test_a_reader_from_the_front_follows_the_log_from_its_end(filled):
    tree = estimating(filled)
    handle = opened(tree)
    data = read_all(handle)
    write(filled, 40)
    fresh = handle.read(len(data), 1 << 20)
    assert data + fresh == filled.text()
    assert handle.size == len(data + fresh)


def test_messages_that_retention_deletes_before_they_are_read_are_missed(filled):
    tree = estimating(filled)
    front, back = opened(tree), opened(tree)
    text = filled.text()
    assert front.read(0, 100) == text[:100]
    size = back.size
    filled.retain(3)
    with pytest.raises(SegmentGone):
        read_all(front, 3000)
    assert back.read(size - 100, 100) == text[-100:]
    write(filled, 3)
    assert back.read(size, 1 << 20) == filled.text()[-(back.size - size) :]
    assert content(tree, PATH) == filled.text()


def test_a_truncation_ends_it(filled):
    tree = estimating(filled)
    front, back = opened(tree), opened(tree)
    front.read(0, 100)
    back.read(back.size - 100, 100)
    filled.truncate(filled.next_offset - 20)
    for handle in (front, back):
        with pytest.raises(LogTruncated):
            handle.read(handle.size - 100, 200)
        with pytest.raises(LogTruncated):
            handle.read(0, 100)
    assert content(tree, PATH) == filled.text()


def test_compaction_between_the_ends(filled):
    tree = estimating(filled)
    front, back = opened(tree), opened(tree)
    start = front.read(0, 100)
    end = back.read(back.size - 100, 100)
    assert (start, end) == (filled.text()[:100], filled.text()[-100:])
    size = back.size
    before = filled.text()
    filled.compact(lambda offset: offset % 3 == 0)
    with pytest.raises(SegmentGone):  # noqa: PT012 - what was measured may be read until then
        while part := front.read(len(start), 3000):
            start += part
    assert before.startswith(start)
    write(filled, 3)
    assert back.read(size, 1 << 20) == filled.text()[-(back.size - size) :]
    assert content(tree, PATH) == filled.text()


def test_exact_sizes_are_measured_at_the_open(filled):
    for tree in (estimating(filled, exact_below=None), estimating(filled, exact_below=1 << 20)):
        assert opened(tree).size == size_of(tree) == len(filled.text())


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_an_open_transaction_ends_what_a_consumer_of_committed_messages_sees(live, isolation):
    fill(live, SIZES["even"])
    before = live.text()
    live.begin(7, b"first", b"second")
    write(live, 600)
    live.begin(8, b"aborted")
    live.end(8, commit=False)
    tree = estimating(live, isolation=isolation)
    handle = opened(tree)
    last = handle.read(handle.size - 100, 200)
    if isolation == "read_committed":
        assert last == before[-100:]
        size = handle.size
        live.end(7, commit=True)
        fresh = read_all_from(handle, size)
        assert fresh == live.text()[len(before) :]
        assert content(tree, PATH) == live.text()
    else:
        assert last.endswith(b"aborted\n")


def read_all_from(handle, position):
    data = b""
    while part := handle.read(position + len(data), 65_536):
        data += part
    return data


class Known:
    """What a reader has seen of a file. Each place is where the text has it, or, from one place on, as far from the
    end as the text has it; never one beside the other."""

    def __init__(self, shift):
        self._shift = shift
        self._shown = {}

    def add(self, text, position, data):
        shifts = [shift for shift in (0, self._shift) if text[position + shift :][: len(data)] == data]
        assert shifts, "not in the text"
        for place in range(position - 1, position + len(data) + 1):
            assert self._shown.get(place, shifts[0]) == shifts[0]
        self._shown |= dict.fromkeys(range(position, position + len(data)), shifts[0])


def wander(tree, live, seed, reads=40, path=PATH, wanted=lambda _offset, _timestamp: True, late=b""):
    """`late`: what comes after the last messages that the file showed when it was opened."""
    rng = random.Random(seed)
    handle = opened(tree, path)
    shift = len(live.text(wanted).removesuffix(late)) - handle.size
    known, position = Known(shift), 0
    failures = 0
    for _ in range(reads):
        size = rng.choice([64, 1000, 5000, 20_000])
        shown = handle.size
        position = rng.choice(
            [position, position, 0, shown - size, position - 2 * size, shown // 2, rng.randrange(max(1, shown))]
        )
        position = max(0, position)
        try:
            data = handle.read(position, size)
        except SizeWasEstimated:
            failures += 1
            continue
        text = live.text(wanted)
        if len(data) < 16:
            assert position + size > min(len(text), shown)
            continue
        known.add(text, position, data)
        position += len(data)
        assert handle.size >= position
        if rng.random() < 0.1:
            write(live, 3)
    handle.close()
    return failures


@pytest.mark.parametrize("seed", range(3))
def test_readers_that_go_anywhere_are_shown_nothing_wrong(filled, seed):
    tree = estimating(filled, exact_below=4096)
    wander(tree, filled, seed)
    wander(tree, filled, -seed)


def test_readers_of_several_threads(filled):
    tree = estimating(filled, exact_below=4096, workers=2)
    text = filled.text()

    def look(number):
        handle = opened(tree)
        if number % 3 == 0:
            return read_all(handle, 3000) == text
        if number % 3 == 1:
            return handle.read(handle.size - 3000, 3000) == text[-3000:]
        start = handle.read(0, 3000)
        return len(start) > 0 and text.startswith(start)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(look, range(24)))


@pytest.mark.parametrize(("exact_below", "expected"), [(BELOW, "estimated"), (1 << 30, None), (None, None)])
def test_info_says_that_sizes_are_estimates(filled, exact_below, expected):
    facts = json.loads(content(estimating(filled, exact_below=exact_below), "/t/0/@info.json"))
    assert facts.get("sizes") == expected


def of_times(first_s, end_s=None):
    first_ms = START_MS + first_s * 1000
    end_ms = None if end_s is None else START_MS + end_s * 1000
    name = f"time/{first_ms}--{'' if end_ms is None else end_ms}"
    return name, lambda _, stamp: stamp >= first_ms and (end_ms is None or stamp < end_ms)


def of_offsets(first, last):
    return f"offsets/{first}-{last}", lambda offset, _: first <= offset <= last


ENDING = dict([of_offsets(7, 1720), of_offsets(453, 1333), of_offsets(100, 5000), of_times(37), of_times(1000)])
ENDING["offsets/304+1200"] = of_offsets(304, 1503)[1]
PAST = dict([of_times(7, 1500), of_times(430, 435), of_times(900, 1200), of_times(1310, 1499)])
RANGES = {f"/t/0/{name}.txt": wanted for name, wanted in (ENDING | PAST).items()}


def is_past(path):
    return path.removeprefix("/t/0/").removesuffix(".txt") in PAST


def on_time(live, path, wanted):
    """The text of a range without its late messages, and that of these: a past range shows them when it has been read
    to its end."""
    late_from = 1850 if is_past(path) else live.next_offset
    early = live.text(lambda offset, stamp: wanted(offset, stamp) and offset < late_from)
    return early, live.text(wanted).removeprefix(early)


@pytest.fixture(params=RANGES)
def ranged(tmp_path, request):
    """A log with late messages at its end, and a range of it: path, and which messages it has."""
    live = LiveLog(tmp_path / "log", Codec.LZ4)
    fill(live, SIZES["longer at the end"])
    assert live.next_offset == 1850
    live.append(b"late", b"later", timestamps=[START_MS + 1_350_500, START_MS + 431_100])
    write(live, 200)
    return live, request.param, RANGES[request.param]


def test_the_first_message_of_a_range_costs_a_little_of_the_log(ranged):
    live, path, wanted = ranged
    tree = estimating(live)
    assert opened(tree, path).read(0, 40) == live.text(wanted)[:40]
    assert scanned_bytes(tree) < file_bytes(live) // 3


def test_the_last_messages_of_a_range(ranged):
    live, path, wanted = ranged
    tree = estimating(live)
    handle = opened(tree, path)
    size = handle.size
    early, late = on_time(live, path, wanted)
    assert handle.read(size - 4, 100) == early[-4:]
    assert scanned_bytes(tree) < file_bytes(live) // 3
    assert read_all_from(handle, size) == late


def test_a_small_range_of_a_large_log_is_measured_at_the_open(ranged):
    """It can be read backwards to its beginning, as tail(1) reads it for more lines than it has."""
    live, path, wanted = ranged
    early, _ = on_time(live, path, wanted)
    if is_past(path) and len(early) < 8192:
        tree = estimating(live)
        handle = opened(tree, path)
        assert handle.size == size_of(tree, path) == len(early)
        assert handle.read(0, len(early)) == early
        assert scanned_bytes(tree) < file_bytes(live) // 3
        live.append(b"appended", timestamps=[START_MS + 432_000])
        assert handle.read(0, len(early)) == early
        assert handle.read(len(early), 100) == live.text(wanted)[len(early) :]
        assert size_of(tree, path) == len(live.text(wanted))
        assert content(tree, path) == live.text(wanted)


def test_the_last_messages_of_a_range_behind_one_that_is_far_too_early(live):
    """By the time index, the messages after it are late; by the first batches of segments they are not."""
    live.append(b"too early", timestamps=[START_MS + 10_000_000_000])
    fill(live, SIZES["even"])
    name, wanted = of_times(430, 1500)
    tree = estimating(live)
    handle = opened(tree, f"/t/0/{name}.txt")
    assert handle.read(handle.size - 100, 100) == live.text(wanted)[-100:]


def test_a_range_is_read_to_its_end(ranged):
    live, path, wanted = ranged
    tree = estimating(live)
    handle = opened(tree, path)
    assert read_all(handle, 3000) == live.text(wanted)
    assert handle.size == len(live.text(wanted))
    assert content(tree, path) == live.text(wanted)
    assert content(estimating(live, exact_below=None), path) == live.text(wanted)


def test_a_range_grows_while_it_is_read(ranged):
    live, path, wanted = ranged
    tree = estimating(live)
    front, back = opened(tree, path), opened(tree, path)
    data, last = front.read(0, 3000), back.read(back.size - 4, 4)
    size, before = back.size, live.text(wanted)
    assert size_of(tree, path) == size
    live.append(b"appended", timestamps=[START_MS + 1_350_600])
    live.roll()
    live.append(b"last of all", timestamps=[START_MS + 432_000])
    assert not is_past(path) or (back.size > size) == (live.text(wanted) != before)
    assert data + read_all_from(front, len(data)) == live.text(wanted)
    assert live.text(wanted).endswith(last + read_all_from(back, size))
    front.close()
    back.close()
    assert content(tree, path) == live.text(wanted)


@pytest.mark.parametrize("seed", range(2))
def test_readers_that_go_anywhere_in_a_range_are_shown_nothing_wrong(ranged, seed):
    live, path, wanted = ranged
    _, late = on_time(live, path, wanted)
    wander(estimating(live, exact_below=4096), live, seed, path=path, wanted=wanted, late=late)


def test_few_bytes_among_much_that_is_not_shown_have_their_exact_size(live):
    """By the first message, which is far too early, the range has the whole log; only its last messages are in it."""
    live.append(b"too early", timestamps=[START_MS + 10_000_000_000])
    fill(live, SIZES["even"])
    name, wanted = of_times(live.next_offset - 5)
    handle = opened(estimating(live), f"/t/0/{name}.txt")
    assert handle.size == len(live.text(wanted))
    assert handle.read(0, 1000) == live.text(wanted)


def test_aborted_messages_between_the_ends_are_no_error(live):
    write(live, 3)
    for _ in range(20):
        live.begin(7, *(random_bytes(live.next_offset, 300) for _ in range(20)))
        live.end(7, commit=False)
        live.roll()
    write(live, 3)
    tree = estimating(live, isolation="read_committed")
    handle = opened(tree)
    assert handle.size == len(live.text())
    assert handle.read(0, 10_000) == live.text()
