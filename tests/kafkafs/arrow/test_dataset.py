"""A scan as a Dataset: DuckDB and polars get what the filter says, and only what they need is read."""

import operator
import pickle
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kafkafs
from storage.format.block import Record
from tests.support.builders import ROLL, START_MS, STEP_MS, Batch, build_log_dir, many

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
ds = pytest.importorskip("pyarrow.dataset")

ROWS = 2000


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Three partitions: 2,000 messages in segments of 500 and batches of 10; 2,000 in one segment; some odd ones."""
    segments = []
    for number in range(ROWS // 10):
        segments += [ROLL] * (number > 0 and number % 50 == 0) + [Batch(many(10, 200, keys=7))]
    one = [Batch(many(10, 200, keys=7)) for _ in range(ROWS // 10)]
    odd = [Record(None, None, (), -1), Record(b"k", None), Record(None, b"x", (), START_MS - 5), Record(b"k", b"")]
    return build_log_dir(tmp_path_factory.mktemp("log"), {"t": [segments, one, [Batch(odd)]]}, broker=False)


def scan_of(built, **arguments):
    return kafkafs.open(built.path)["t"].scan(**arguments)


def ms(value):
    return pa.scalar(value, pa.timestamp("ms", "UTC"))


COMPARED = st.sampled_from([operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
NUMBERS = st.integers(-3, ROWS + 3)
LEAVES = st.one_of(
    st.builds(lambda op, n: op(pc.field("offset"), n), COMPARED, NUMBERS),
    st.builds(lambda op, n: op(pc.field("partition"), n), COMPARED, st.integers(-1, 3)),
    st.builds(lambda op, n: op(pc.field("timestamp"), ms(START_MS + n * STEP_MS)), COMPARED, NUMBERS),
    st.builds(lambda op, n: op(pc.field("timestamp"), ms(n)), COMPARED, st.integers(-2, 0)),
    st.builds(lambda values: pc.field("offset").isin(pa.array(values, pa.int64())), st.lists(NUMBERS)),
    st.builds(lambda op, key: op(pc.field("key"), key), COMPARED, st.sampled_from([b"key-00003", b"k", b""])),
    st.sampled_from(["key", "value", "timestamp", "headers"]).map(lambda name: pc.field(name).is_null()),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(operator.and_, inner, inner), st.builds(operator.or_, inner, inner), inner.map(operator.invert)
    ),
    max_leaves=5,
)


@given(wanted=FILTERS, columns=st.none() | st.sampled_from([["offset"], ["key", "timestamp"], ["key", "offset"]]))
def test_a_filter_chooses_what_it_chooses_of_all_rows(built, wanted, columns):
    scan = scan_of(built)
    expected = ALL.setdefault(built.path, scan.to_arrow()).filter(wanted)
    found = scan.to_dataset().to_table(filter=wanted, columns=columns)
    assert found.equals(expected if columns is None else expected.select(columns))


ALL = {}


def duck(dataset, query):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone='UTC'")
        connection.register("t", dataset)
        return connection.execute(query).fetchall()


START = datetime.fromtimestamp(START_MS / 1000, UTC)


@pytest.mark.parametrize(
    ("where", "rows", "share"),
    [
        ("true", 2 * ROWS + 4, 1.0),
        ("partition = 1", ROWS, 0.5),
        ('"offset" BETWEEN 700 AND 719', 40, 0.02),
        ('"offset" IN (3, 7) AND partition = 0', 2, 0.01),
        ('"offset" = 1999 OR "offset" = 1990', 4, 0.02),
        (f"\"timestamp\" >= '{START + timedelta(seconds=1990)}'", 20, 0.15),
        (f'"timestamp" >= \'{START + timedelta(seconds=990)}\' AND partition = 0 AND "offset" < 1000', 10, 0.02),
        ("key = 'key-00003'::BLOB AND partition = 0 AND \"offset\" < 10", 1, 0.01),
        ("partition = 9", 0, 0.0),
    ],
)
def test_duckdb_reads_only_what_the_filter_needs(built, where, rows, share):
    scan, whole = scan_of(built), scan_of(built)
    whole.to_arrow()
    assert duck(scan.to_dataset(), f"SELECT count(*) FROM t WHERE {where}") == [(rows,)]
    assert scan.bytes_read <= share * whole.bytes_read


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """Four segments of 1.6 MB; the keys of the second are in no other."""
    items = []
    for number in range(64):
        key = (
            b"rare\n\xff" if number == 20 else b'r"\\' + "\u00e9".encode() if number == 21 else b"k%d" % (number // 16)
        )
        items += [ROLL] * (number > 0 and number % 16 == 0) + [Batch([Record(key, b"x" * 2000)] * 50)]
    return build_log_dir(tmp_path_factory.mktemp("keyed"), {"t": [items]}, broker=False)


@pytest.mark.parametrize(
    ("text", "where", "rows", "share"),
    [
        ("replace", "key = 'k1'", 14 * 50, 0.4),
        ("replace", 'key = \'r"\\\u00e9\' AND "offset" >= 0', 50, 0.4),
        ("replace", "key = 'k1' AND (value IS NULL OR key >= 'a')", 14 * 50, 0.4),
        ("replace", "key = 'nowhere'", 0, 0.1),
        ("replace", "key = 'rare\n\ufffd'", 50, 1.0),  # the bytes are others
        (False, "key = 'rare\n\\xff'::BLOB", 50, 0.4),
        ("replace", "key = 'k1' OR \"offset\" = 0", 14 * 50 + 1, 1.0),
        ("replace", "key != 'k1'", 50 * 50, 1.0),
        ("replace", "key IN ('k1', 'k2')", 30 * 50, 1.0),
    ],
)
def test_a_key_is_looked_for_in_the_key_index(keyed, tmp_path, monkeypatch, text, where, rows, share):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("secrets.randbits", random.Random(1).getrandbits)  # a filter may take one key for another
    whole = scan_of(keyed)
    whole.to_arrow()
    for _ in range(2):  # indexed, and known
        scan = scan_of(keyed, text=text)
        assert duck(scan.to_dataset(), f"SELECT count(*) FROM t WHERE {where}") == [(rows,)]
        assert scan.bytes_read <= share * whole.bytes_read


def test_columns_of_a_dataset(built):
    dataset = scan_of(built).to_dataset()
    scanner = dataset.scanner(columns=["value"], filter=(pc.field("key") == b"k") & (pc.field("offset") > 3))
    assert scanner.projected_schema.names == ["value"]
    assert dataset.to_table(columns={"twice": pc.field("offset") * 2}).column(0).to_pylist()[:3] == [0, 2, 4]
    with pytest.raises(pa.ArrowInvalid, match="nothing"):
        dataset.to_table(filter=pc.field("nothing") == 1)
    with pytest.raises(KeyError, match="nothing"):
        dataset.scanner(columns=["nothing"])


def test_ways_to_read_a_dataset(built):
    dataset, first = scan_of(built).to_dataset(), pc.field("offset") < 5
    assert isinstance(dataset, ds.Dataset)
    assert dataset.schema == scan_of(built).schema
    assert dataset.count_rows() == 2 * ROWS + 4
    assert dataset.count_rows(filter=first) == 14
    assert dataset.head(3).column("offset").to_pylist() == [0, 1, 2]
    assert sum(batch.num_rows for batch in dataset.to_batches(filter=first)) == 14
    assert dataset.scanner(filter=first).to_reader().read_all().num_rows == 14
    for use in (lambda: dataset.get_fragments(), lambda: dataset.join, lambda: dataset.filter(first)):
        with pytest.raises(AttributeError, match="a scan as a Dataset has no"):
            use()
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        pickle.dumps(dataset)


def test_polars_reads_lazily(built):
    polars = pytest.importorskip("polars")
    scan = scan_of(built)
    frame = polars.scan_pyarrow_dataset(scan.to_dataset())
    found = frame.filter((polars.col("offset") >= 10) & (polars.col("offset") < 20)).select("value").collect()
    assert found.shape == (20, 1)
    assert scan.bytes_read < 20_000


def test_a_narrowed_scan_stays_within_the_scan(built):
    scan = scan_of(
        built, offsets=(100, 200), time=(START_MS + 150 * STEP_MS, None), partitions=[0, 1], key=b"key-00003"
    )
    wanted = (
        (pc.field("offset") >= 50) & (pc.field("offset") < 160) & (pc.field("timestamp") < ms(START_MS + 158 * STEP_MS))
    )
    assert scan.to_dataset().to_table(filter=wanted).equals(scan.to_arrow().filter(wanted))
    latest, last = scan_of(built, latest=True), pc.field("offset") > 1995
    assert latest.to_dataset().to_table(filter=wanted).num_rows == 0
    assert latest.to_dataset().to_table(filter=last).equals(latest.to_arrow().filter(last))
