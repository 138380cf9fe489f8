"""Which messages a range means: edges, last-N over gaps, times; which rows of a block have a key or a header."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.reading import blocks, collector, selection
from kafkafs.reading.selection import header_rows, key_rows
from kafkafs.tree.tree import Tree, TreeOptions
from storage.errors import OffsetOutOfRange
from storage.log.log_dir import LogDir
from tests.support.blocks import Row, block_of
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many
from tests.support.live_log import START_MS, LiveLog
from tests.support.owned_dirs import StandingClock
from tests.support.reference_views import content, read_all, tree_of, txt
from tests.support.uncompiled import uncompiled


@pytest.fixture
def live(tmp_path):
    """Offsets 0 to 39 in batches of five, a segment each ten; log start 12."""
    log = LiveLog(tmp_path / "log")
    for _ in range(4):
        log.roll()
        log.write(10, batch=5)
    (tmp_path / "log" / "log-start-offset-checkpoint").write_text("0\n1\nt 0 12\n")
    return log


def shown(live, offsets):
    return live.text(lambda offset, _: offset in offsets)


@pytest.mark.parametrize(
    ("name", "clamp", "now", "later"),
    [
        ("12-", False, range(12, 40), range(12, 60)),
        ("40-", False, (), range(40, 60)),
        ("20-29", False, range(20, 30), range(20, 30)),
        ("20-39", False, range(20, 40), range(20, 40)),
        ("20-40", False, range(20, 40), range(20, 41)),
        ("40-50", False, (), range(40, 51)),
        ("40", False, (), [40]),
        ("39", False, [39], [39]),
        ("20+7", False, range(20, 27), range(20, 27)),
        ("20+20", False, range(20, 40), range(20, 40)),
        ("20+21", False, range(20, 40), range(20, 41)),
        ("40+1", False, (), [40]),
        ("last-3", False, range(37, 40), range(37, 40)),
        ("last-28", False, range(12, 40), range(12, 40)),
        ("last-1000", False, range(12, 40), range(12, 40)),
        ("5-20", True, range(12, 21), range(12, 21)),
        ("0-", True, range(12, 40), range(12, 60)),
        ("11+2", True, range(12, 14), range(12, 14)),
        ("0-12", True, [12], [12]),
    ],
)
def test_offsets(live, name, clamp, now, later):
    """What an open file shows, and what it shows when the log has grown."""
    handle = tree_of(live.path.parent, clamp=clamp).lookup(f"/t/0/offsets/{name}.txt").open()
    assert read_all(handle) == shown(live, now)
    live.write(20)
    assert read_all(handle) == shown(live, later)
    handle.close()


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("name", ["41.txt", "41-.log", "41-50.jsonl", "41+1.txt", "11.txt", "0-11.txt"])
def test_out_of_range(live, name, clamp):
    file = tree_of(live.path.parent, clamp=clamp).lookup(f"/t/0/offsets/{name}")
    for look in (file.attributes, file.open):
        with pytest.raises(OffsetOutOfRange):
            look()


@pytest.mark.parametrize("name", ["5-20", "0-", "11+2", "0-12"])
def test_a_range_that_begins_below_the_log_start(live, name):
    """It is clamped only where the mount says so."""
    with pytest.raises(OffsetOutOfRange):
        tree_of(live.path.parent).lookup(f"/t/0/offsets/{name}.txt").open()


def test_a_last_duration_is_fixed_while_the_file_is_open_and_holds_now(live):
    clock, options = StandingClock(START_MS + 35_000), TreeOptions(index_bytes=0)
    first, later = (Tree(LogDir.open_read_only(live.path.parent), options, clock=clock) for _ in range(2))
    handle = first.lookup("/t/0/time/last-10s.txt").open()
    assert read_all(handle) == shown(live, range(25, 36))
    clock.time_ms += 3000
    live.append(b"late", timestamps=[START_MS + 30_000])
    assert read_all(handle) == shown(live, range(25, 36))
    assert content(later, "/t/0/time/last-10s.txt") == shown(live, [*range(28, 39), 40])


times = st.lists(st.integers(-1, 40) | st.just(2000), min_size=1, max_size=30)


@pytest.mark.parametrize("form", ["built", "plain"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(timestamps=times, batch=st.integers(1, 8), start=st.integers(0, 45))
def test_time_ranges_have_all_of_a_time(form, tmp_path_factory, timestamps, batch, start):
    records = [r._replace(timestamp=t) for r, t in zip(many(len(timestamps)), timestamps, strict=True)]
    items = [Batch(records[i : i + batch]) for i in range(0, len(records), batch)]
    rolled = [part for item in items for part in (item, ROLL)][:-1]
    path = build_log_dir(tmp_path_factory.mktemp("log"), {"t": [Partition(rolled), Partition(items)]}).path
    with pytest.MonkeyPatch.context() as patch:
        if form == "plain":
            for module in (blocks, collector):
                patch.setattr(module, "block_kernel", uncompiled("kafkafs.reading.block_kernel"))
        for partition in (0, 1):
            tree, at = tree_of(path), f"/t/{partition}/time"
            since = [record for record in records if record.timestamp >= start]
            until = [record for record in records if 0 <= record.timestamp < start + 7]
            assert content(tree, f"{at}/{start:013d}--.txt") == txt(since)
            assert content(tree, f"{at}/until-{start + 7:013d}.txt") == txt(until)
            both = [record for record in since if record in until]
            assert content(tree, f"{at}/{start:013d}--{start + 7:013d}.txt") == txt(both)
            assert content(tree, f"/t/{partition}/messages.txt") == txt(records)


# Keys and headers of blocks against looking at each record


few = st.binary(max_size=2) | st.sampled_from(
    [b"key", b"x" * 31, b"x" * 32, b"x" * 33, b"x" * 40 + b"a", b"x" * 40 + b"b"]
)
headers = st.lists(st.tuples(few, st.none() | few), max_size=3).map(tuple)
rows = st.lists(st.builds(Row, key=st.none() | few, value=st.none() | few, headers=headers), max_size=12)


@pytest.mark.parametrize("form", ["built", "plain"])
@given(chosen=rows, key=few)
def test_keys(form, chosen, key):
    expected = [i for i, row in enumerate(chosen) if row.key == key]
    with pytest.MonkeyPatch.context() as patch:
        if form == "plain":
            patch.setattr(selection, "block_kernel", uncompiled("kafkafs.reading.block_kernel"))
        assert key_rows(block_of(chosen), key).tolist() == expected


@given(rows, few, few)
def test_headers(chosen, name, value):
    """One that may be there, and all that are."""
    present = {header for row in chosen for header in row.headers if header[1] is not None}
    for header in present | {(name, value)}:
        expected = [i for i, row in enumerate(chosen) if header in row.headers]
        assert header_rows(block_of(chosen), *header).tolist() == expected
