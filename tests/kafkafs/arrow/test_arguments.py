"""Arguments of `kafkafs.open`, `scan`, `messages` and the ways to read a scan: each means what it says, or is an error
that says what was expected and what was found."""

import copy
import dataclasses
import inspect
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest

import kafkafs
from kafkafs.arrow.invalid_option import InvalidOption
from storage.errors import StorageError
from storage.format.block import Record
from storage.types import Isolation
from tests.support.builders import START_MS, STEP_MS, Batch, build_log_dir, many
from tests.support.schema_logs import schema_record

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

ROOT = Path(__file__).resolve().parents[3]
ROWS = 10
START = datetime.fromtimestamp(START_MS / 1000, UTC)
EAST = timezone(timedelta(hours=3))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Two partitions of ten messages, a second apart, each key twice."""
    return build_log_dir(tmp_path_factory.mktemp("log"), {"t": [[Batch(many(ROWS, keys=5))]] * 2}, broker=False)


@pytest.fixture(scope="module")
def topic(built):
    return kafkafs.open(built.path)["t"]


def moment(seconds):
    return START + timedelta(seconds=seconds)


ALL = list(range(ROWS))
NS = START_MS * 1_000_000
assert STEP_MS == 1000


# Argument, value, and the offsets of partition 0 that it chooses.
MEANT = [
    ("offsets", None, ALL),
    ("offsets", (2, 5), [2, 3, 4]),
    ("offsets", [None, 2], [0, 1]),
    ("offsets", (8, None), [8, 9]),
    ("offsets", (None, None), ALL),
    ("offsets", (3, 3), []),
    ("offsets", (8, 2**63 - 1), [8, 9]),
    ("offsets", (np.int64(2), np.array(5)), [2, 3, 4]),
    ("offsets", (pd.Series([2])[0], 5), [2, 3, 4]),
    ("offsets", np.str_("2-4"), [2, 3, 4]),
    ("offsets", "2", [2]),
    ("offsets", "8-", [8, 9]),
    ("offsets", "3+2", [3, 4]),
    ("offsets", "last-3", [7, 8, 9]),
    ("offsets", "-3", [7, 8, 9]),
    ("offsets", "earliest", ALL),
    ("offsets", "beginning", ALL),
    ("offsets", "latest", []),
    ("offsets", "end", []),
    ("time", None, ALL),
    ("time", (None, None), ALL),
    ("time", [START_MS + 2000, np.int64(START_MS + 4000)], [2, 3]),
    ("time", (START_MS + 2000, START_MS + 2000), []),
    ("time", (-5, START_MS + 1000), [0]),
    ("time", (moment(2), moment(4).replace(tzinfo=None)), [2, 3]),
    ("time", (moment(2).astimezone(EAST), None), ALL[2:]),
    ("time", (moment(2.0001), None), ALL[3:]),
    ("time", (START.date(), None), ALL),
    ("time", (START.date() + timedelta(days=1), None), []),
    ("time", (None, date(1969, 1, 1)), []),
    ("time", (pd.Timestamp(moment(2)).tz_convert("Asia/Tokyo"), pd.Timestamp(moment(4)).tz_localize(None)), [2, 3]),
    ("time", (pd.Timestamp(NS + 2_000_000_001), None), ALL[3:]),
    ("time", (np.datetime64(NS + 2_000_000_000, "ns"), np.datetime64(NS + 2_000_000_001, "ns")), [2]),
    ("time", (np.datetime64(NS // 1000 + 2_000_001, "us"), np.datetime64(START_MS + 4000, "ms")), [3]),
    ("time", (np.datetime64(START.date().isoformat()), None), ALL),
    ("time", (np.datetime64(1970, "Y"), None), []),
    ("time", (moment(2).isoformat().replace("+00:00", "Z"), str(START_MS + 4000)), [2, 3]),
    ("time", START.date().isoformat(), ALL),
    ("time", f"{moment(2):%Y-%m-%dT%H:%M:%S}--", ALL[2:]),
    ("time", f"until-{moment(2):%Y-%m-%dT%H:%M:%S}", [0, 1]),
    *(("key", key, [1, 6]) for key in (b"key-00001", "key-00001", memoryview(b"key-00001"), np.str_("key-00001"))),
    ("key", None, ALL),
    ("key", b"", []),
    ("latest", False, ALL),
    ("latest", np.True_, ALL[5:]),
    ("on_damage", "skip", ALL),
    ("on_damage", np.str_("fail"), ALL),
]

# Argument, value, and what the error must say.
WRONG = [
    *(
        ("offsets", given, "offsets takes a pair of whole numbers from 0 on")
        for given in (
            5, True, (1,), (1, 2, 3), [], (1.0, 2), (np.True_, 2), ("1", "2"), (-1, None), (np.int64(-1), None),
            (0, 2**63), (Decimal(1), None), (b"1", None), (pd.NaT, None), (datetime(2026, 1, 1), None), range(1, 3),
            {1, 2}, {1: 2, 3: 4}, b"12", iter((1, 2)), np.array([1, 2]), Path("1-2"), int,
        )
    ),
    *(("offsets", given, "ends before it begins") for given in ((2, 1), (np.int64(2), 1), "2-1")),
    *(("offsets", given, "is not an offset range; write") for given in ("", "1:2", "5-x", "Earliest", "today", "-")),
    ("offsets", "last-0", "asks for zero messages"),
    ("offsets", str(2**63), "above 2^63-1"),
    *(
        ("time", given, "time takes")
        for given in (
            START_MS, START, START.date(), pd.NaT, True, (1,), (START, START, START), [], (pd.NaT, None),
            (np.datetime64("NaT"), None), (None, np.datetime64("NaT", "D")), (timedelta(1), None),
            (float(START_MS), None), (True, None), (Decimal(1), None), (b"2026", None), (START.time(), None),
            (2**63, None), (np.datetime64(10**12, "Y"), None), (pd.NA, None), (datetime, None), {START, moment(1)},
            iter((START, START)), np.array([1, 2]), range(2),
        )
    ),
    *(
        ("time", given, "ends before it begins")
        for given in (
            (moment(2), moment(1)), (START_MS + 1, START_MS), ("2026", "2025"), ("today", "yesterday"),
            (np.datetime64("2026"), date(2025, 1, 1)),
        )
    ),
    ("time", "2026--2025", "does not end after it begins"),
    *(
        ("time", given, "is not a time")
        for given in (
            "", "Today", "earliest", ("x", None), ("last-15m", None), ("2026--2027", None), ("--2026", None),
            (None, "2026--"), ("2026-01-01T25", None),
        )
    ),
    ("time", "2026-02-30", "a day that does not exist"),
    *(("key", given, "key takes bytes, or a text") for given in (5, True, ("k",), [b"k"], Path("k"), pd.NaT)),
    ("key", "\ud800", "cannot be written in UTF-8"),
    *(("latest", given, "latest must be True or False") for given in (None, 1, "yes", [], np.int64(1))),
    *(
        ("on_damage", given, "on_damage must be 'fail' or 'skip'")
        for given in (None, True, "ignore", b"skip", ["skip"], np.array(["skip", "fail"]))
    ),
    ("on_damage", "skp", "did you mean 'skip'?"),
]  # fmt: skip

PARTITIONS = [
    (None, [0, 1]),
    (np.int64(1), [1]),
    (np.array(1), [1]),
    ([1, 0, 1], [0, 1]),
    ({0}, [0]),
    (range(2), [0, 1]),
    (pd.Series([1]), [1]),
    ({1: "x"}, [1]),
    ((n for n in (1, 0)), [0, 1]),
    ([], []),
]
WRONG_PARTITIONS = [
    *(
        (given, "partitions takes a whole number from 0 on, or several")
        for given in ("0", b"\0", 0.0, True, [True], ["0"], [0, -1], np.array([0.0]), pd.NA, 2**63, [[0]], int)
    ),
    (2, "t has no partition 2 in .*: it has 0, 1"),
    ([0, 7, 8], "t has no partition 7, 8 in .*: it has 0, 1"),
    (range(10**12), "t has no partition 2, 3, 4, .*: it has 0, 1"),
]

WRONG_OF_SCANS = [
    *(({"columns": given}, "columns takes at least one name, and each once") for given in (
        (), 5, b"key", {"key"}, ("key", "key"), iter(()), Path("key"),
    )),
    *(({"columns": given}, "is not one of key, value, topic") for given in (
        "", "KEY", [5], ("key", b"value"), [["key"]], iter(["key", "x"]), {"x": 1},
    )),
    ({"columns": "vlaue"}, "did you mean 'value'?"),
    ({"columns": "value_json"}, r"with decode=True"),
    *(({"decode": given}, "decode must be True, False or 'json'") for given in (None, 1, "yes", [], np.array([1, 2]))),
    ({"decode": "jsn"}, "did you mean 'json'?"),
    ({"decode": True}, "there are no schemas in"),
    *(
        ({"text": given}, "text must be True, False, 'strict' or 'replace'")
        for given in (None, 1, "ignore", b"strict", np.array([1, 2]))
    ),
    ({"latest": True, "offsets": (1, 2)}, "latest means the whole log"),
    ({"latest": True, "time": "today"}, "latest means the whole log"),
]  # fmt: skip


def offsets_of(messages):
    return [message.offset for message in messages]


def named(row):
    return re.sub(r" at 0x[0-9a-f]+", "", repr(row))[:60]


@pytest.mark.parametrize(("name", "given", "expected"), MEANT, ids=named)
def test_what_an_argument_means(topic, name, given, expected):
    arguments = {name: given}
    assert topic[0].scan(**arguments).to_arrow().column("offset").to_pylist() == expected
    assert offsets_of(topic[0].messages(**arguments)) == expected
    assert topic.scan(**arguments).count() == 2 * len(expected)
    assert offsets_of(topic.messages(**arguments)) == 2 * expected


@pytest.mark.parametrize(("name", "given", "why"), WRONG, ids=named)
def test_an_argument_that_cannot_be(topic, name, given, why):
    arguments = {name: given}
    for use in (topic.scan, topic.messages, topic[0].scan, topic[0].messages):
        with pytest.raises(ValueError, match=re.escape(why)) as caught:
            use(**arguments)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(("given", "expected"), PARTITIONS, ids=named)
def test_which_partitions(built, given, expected):
    topic = kafkafs.open(built.path)["t"]
    assert list(topic.scan(partitions=given).offsets) == expected


@pytest.mark.parametrize(("given", "why"), WRONG_PARTITIONS, ids=named)
def test_partitions_that_cannot_be(topic, given, why):
    for use in (topic.scan, topic.messages):
        with pytest.raises(InvalidOption, match=why):
            use(partitions=given)


@pytest.mark.parametrize(("arguments", "why"), WRONG_OF_SCANS, ids=named)
def test_arguments_of_scans_that_cannot_be(topic, arguments, why):
    for use in (topic.scan, topic[0].scan):
        with pytest.raises(InvalidOption, match=re.escape(why)):
            use(**{name: copy_of(value) for name, value in arguments.items()})


def copy_of(given):
    """An iterator can be used once."""
    return copy.copy(given) if isinstance(given, Iterator) else given


@pytest.mark.parametrize("given", ["key", ("key",), iter(["key"]), {"key": 1}, pd.Index(["key"])], ids=named)
def test_columns(topic, given):
    assert topic.scan(columns=given).schema.names == ["key"]


def test_choices_of_a_scan(topic, tmp_path):
    for text in (True, np.True_, "strict", np.str_("replace")):
        assert topic.scan(text=text).schema.field("key").type == pa.string()
    assert topic.scan(text=np.False_, decode=np.False_).schema.field("key").type == pa.binary()
    schemas = [
        schema_record("t-value", 1, 1, '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}')
    ]
    log = kafkafs.open(build_log_dir(tmp_path, {"_schemas": [schemas], "t": [[b"\0\0\0\0\1\2"]]}).path)
    assert log["t"].scan(decode=np.str_("json")).schema.field("value").type == pa.binary()
    assert log["t"].scan(decode=np.True_).schema.field("value").type == pa.struct([("a", pa.int32())])


def test_today_and_yesterday(tmp_path):
    """The dates of UTC at the time of the scan."""
    day = timedelta(days=1)
    while True:
        now = datetime.now(UTC)
        stamps = [now - 2 * day, now - day, now]
        records = [Record(None, b"x", (), int(stamp.timestamp() * 1000)) for stamp in stamps]
        topic = kafkafs.open(build_log_dir(tmp_path / now.isoformat(), {"t": [[Batch(records)]]}).path)["t"]
        ranges = ("today", "yesterday", "yesterday--", "until-today", "yesterday--today", ("yesterday", "today"))
        chosen = [offsets_of(topic.messages(time=each)) for each in ranges]
        if datetime.now(UTC).date() == now.date():  # not around midnight
            break
    assert chosen == [[2], [1], [1, 2], [0, 1], [1], [1]]
    assert offsets_of(topic.messages(time="last-1h")) == [2]


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda t: t.scan(offset=(0, 1)), r"Topic\.scan\(\) has no argument 'offset'; did you mean 'offsets'\?"),
        (lambda t: t.messages(partition=0), r"Topic\.messages\(\) .* 'partition'; did you mean 'partitions'\?"),
        (lambda t: t.messages(text=True), r"Topic\.messages\(\) has no argument 'text'; it has partitions, offsets"),
        (lambda t: t[0].scan(partitions=1), r"Partition\.scan\(\) has no argument 'partitions'; it has offsets,"),
        (lambda t: t[0].messages(ofsets=1), r"Partition\.messages\(\) .*did you mean 'offsets'\?"),
        (lambda t: kafkafs.open("x", isolaton="x"), r"kafkafs\.open\(\) .*did you mean 'isolation'\?"),
        (lambda t: t.scan().to_pandas(split_block=1), r"Scan\.to_pandas\(\) .*did you mean 'split_blocks'\?"),
        (lambda t: t.scan().to_dataset().to_table(colums=["key"]), r"\.to_table\(\) .*did you mean 'columns'\?"),
        (lambda t: t.scan().to_dataset().scanner(filtr=1), r"\.scanner\(\) .*did you mean 'filter'\?"),
        (lambda t: t.scan().to_dataset().head(1, column=[]), r"\.head\(\) .*did you mean 'columns'\?"),
        (lambda t: t.scan().to_dataset().count_rows(where=1), r"\.count_rows\(\) has no argument 'where'"),
        (lambda t: t.scan().to_dataset().to_batches(batchsize=1), r"\.to_batches\(\) .*did you mean 'batch_size'\?"),
    ],
)
def test_an_unknown_argument_is_reported_with_the_nearest(topic, use, why):
    with pytest.raises(TypeError, match=why):
        use(topic)


@pytest.mark.parametrize(
    ("given", "missing"),
    [("tt", "no topic 'tt' in .*; did you mean"), ("", "no topic ''"), (5, "no topic 5 in"), (b"t", "no topic b't'")],
)
def test_a_topic_that_is_not_there(tmp_path, given, missing):
    log = kafkafs.open(build_log_dir(tmp_path, {"ttt": [[b"x"]]}).path)
    assert given not in log
    with pytest.raises(KeyError, match=missing) as caught:
        log[given]
    assert isinstance(caught.value, StorageError)


def test_partitions_by_numbers(topic):
    assert all(number in topic for number in (0, 1, np.int64(1)))
    assert topic[np.int32(1)].tp.partition == 1
    assert {message.partition for message in topic.messages(partitions=np.int64(1))} == {1}
    for given in (2, -1, True, 1.0, "0", None, [], 2**70, slice(None)):
        assert given not in topic
        with pytest.raises(KeyError, match=r"no partition .* of t in .*: it has 0, 1") as caught:
            topic[given]
        assert isinstance(caught.value, StorageError)


def test_paths(built, tmp_path, monkeypatch):
    text, other = os.fspath(built.path), tmp_path / "other"
    build_log_dir(other, {"u": [[b"x"]]}, broker=False)
    for path in (text, built.path, text.encode(), np.str_(text), [text], (built.path,), {text.encode()}, iter([text])):
        assert list(kafkafs.open(path)) == ["t"]
    for several in ([text, other], (os.fspath(each) for each in (text, other)), {text: 1, other: 2}.keys()):
        assert list(kafkafs.open(several)) == ["t", "u"]
    monkeypatch.chdir(built.path.parent)
    assert list(kafkafs.open(built.path.name)) == ["t"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        *(({"path": given}, "path takes") for given in (None, 5, "", b"", "a\0b", [], [None], ["", "x"], Path, {})),
        *(({"isolation": given}, "isolation must be 'read_uncommitted' or 'read_committed'") for given in (
            None, True, "READ_COMMITTED", b"read_committed", ["read_committed"],
        )),
        ({"isolation": "read_comitted"}, "did you mean 'read_committed'?"),
        *(({"schemas": given}, "schemas takes ") for given in (5, "", "a\0b", [])),
        *(({"schemas": given}, "is not a directory") for given in ("nope", __file__, b"nope")),
        *(({"tier": given}, "tier takes") for given in (5, "", [], {}, [None])),
        *(({"tier": given}, "nope is not a directory") for given in ("nope", b"nope", ["nope"], Path("s3://b/nope"))),
        ({"tier": __file__}, "is not a directory"),
        ({"tier": "nope://bucket"}, "tier: nope://bucket: is a URL of an unknown kind"),
        *(({"tier": ".", "tier_keys": given}, "tier_keys takes a mapping of ids to the paths") for given in (
            5, "k=f", [("k", "f")], {1: "f"},
        )),
        ({"tier": ".", "tier_keys": {"k": 5}}, "tier_keys: 'k' takes the path"),
        ({"tier": ".", "tier_keys": {"k": "/"}}, "the key 'k', is not a file"),
        ({"tier_keys": {"k": __file__}}, "name the tier too, as tier="),
    ],
    ids=named,
)  # fmt: skip
def test_arguments_of_open_that_cannot_be(built, arguments, why):
    with pytest.raises(InvalidOption, match=re.escape(why)):
        kafkafs.open(**{"path": built.path, **arguments})


def test_arguments_of_open(built, tmp_path):
    key = tmp_path / "key.pem"
    key.write_text("")
    level = Isolation.READ_COMMITTED
    places = [None, os.fspath(tmp_path), tmp_path, os.fsencode(tmp_path), [tmp_path], f"file://{tmp_path}"]
    for place in places:
        assert "t" in kafkafs.open(built.path, tier=place, isolation=level)
    assert "t" in kafkafs.open(
        built.path, tier=tmp_path, tier_keys={"k": os.fsencode(key)}, schemas=os.fsencode(tmp_path)
    )


# What the results are.


def test_a_message_is_a_plain_value(topic, tmp_path):
    """Pickled, copied, compared, hashed, as a dict and in a DataFrame, and still decoded."""
    message = next(topic.messages())
    names = ["topic", "partition", "offset", "key", "value", "timestamp", "timestamp_type", "headers"]
    assert list(dataclasses.asdict(message)) == [field.name for field in dataclasses.fields(message)] == names
    assert dataclasses.astuple(message)[:4] == ("t", 0, 0, b"key-00000")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(message, protocol)) == message
    assert copy.copy(message) == copy.deepcopy(message) == dataclasses.replace(message) == message
    assert len({message, copy.copy(message), dataclasses.replace(message, offset=1)}) == 2
    frame = pd.DataFrame(topic.messages())
    assert list(frame.columns) == names
    assert frame["offset"].tolist() == 2 * ALL
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.offset = 5
    written = dataclasses.replace(message, value=b"{}")
    with pytest.raises(InvalidOption, match="was not read from a log"):
        _ = written.decoded


def test_a_message_is_decoded_in_another_process(tmp_path):
    schemas = [schema_record("t-value", 1, 1, '"int"')]
    topic = kafkafs.open(build_log_dir(tmp_path, {"_schemas": [schemas], "t": [[b"\0\0\0\0\1\x0e"]]}).path)["t"]
    pickled = pickle.dumps(list(topic.messages()))
    code = "import pickle, sys; (message,) = pickle.load(sys.stdin.buffer); print(message.decoded)"
    done = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, check=True, cwd=ROOT)
    assert done.stdout == b"7\n"


def test_a_log_is_opened_again_where_it_is_unpickled(built, topic):
    log = kafkafs.open([built.path], isolation="read_committed")
    again = pickle.loads(pickle.dumps(log))
    assert again["t"].offsets == log["t"].offsets
    assert repr(again) == repr(log)
    assert pickle.loads(pickle.dumps(topic)).scan(offsets="2-3").count() == 4
    assert copy.deepcopy(topic[1]).offsets == topic[1].offsets
    for made in (topic.scan(), topic.scan().to_dataset()):
        for use in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="a scan cannot be copied or pickled"):
                use(made)


def test_a_scan_has_no_length(topic):
    """Iteration gives batches, so a length of messages would be another one."""
    empty = topic.scan(offsets=(0, 0))
    with pytest.raises(TypeError, match="has no len"):
        len(empty)
    assert empty.count() == 0
    assert bool(empty) is True


def test_a_dataset_is_written(topic, tmp_path):
    ds = pytest.importorskip("pyarrow.dataset")
    scan = topic.scan(text=True)
    for number, data in enumerate((scan, scan.to_dataset())):
        ds.write_dataset(data, tmp_path / str(number), format="parquet", partitioning=["partition"])
        back = ds.dataset(tmp_path / str(number), format="parquet", partitioning=["partition"]).to_table()
        assert (
            back.sort_by([("partition", "ascending"), ("offset", "ascending")]).column("offset").to_pylist() == 2 * ALL
        )
    assert pa.table(scan.to_dataset()).equals(scan.to_arrow())


def test_numbers_of_a_dataset(topic):
    dataset = topic.scan().to_dataset()
    assert [batch.num_rows for batch in dataset.to_batches(batch_size=np.int64(4))] == [4] * 5
    assert dataset.head(0).num_rows == 0
    assert dataset.head(np.int64(13)).column("offset").to_pylist() == [*ALL, 0, 1, 2]
    assert dataset.head(10**9).num_rows == 2 * ROWS
    for use, why in (
        (lambda: dataset.head(-1), "num_rows takes a whole number from 0 on, not -1"),
        (lambda: dataset.head(1.5), "num_rows takes a whole number"),
        (lambda: dataset.head(True), "num_rows takes a whole number"),
        (lambda: dataset.to_table(batch_size=0), "batch_size takes a whole number from 1 on, not 0"),
        (lambda: dataset.scanner(batch_size="5"), "batch_size takes a whole number"),
    ):
        with pytest.raises(InvalidOption, match=why):
            use()


def test_options_of_pandas_are_checked_before_the_log_is_read(topic):
    scan = topic.scan()
    with pytest.raises(TypeError):
        scan.to_pandas(type_mapper=None)
    assert scan.bytes_read == 0
    assert scan.to_pandas(timestamp_as_object=True)["timestamp"][0] == START


def test_a_topic_that_was_removed(tmp_path):
    log = kafkafs.open(build_log_dir(tmp_path, {"t": [[b"x"]], "u": [[b"x"]]}, broker=False).path)
    topic, partition = log["t"], log["t"][0]
    shutil.rmtree(tmp_path / "t-0")
    assert list(log) == ["u"]
    assert topic.offsets == {}
    for use in (lambda: topic.config, lambda: partition.offsets, lambda: topic[0]):
        with pytest.raises(KeyError, match=r"no topic 't'|no partition"):
            use()


# What programs that complete, document and check see.


def test_everything_public_has_a_docstring():
    documented = {}
    for name in kafkafs.__all__:
        value = documented[name] = getattr(kafkafs, name)
        if isinstance(value, type):
            members = [member for member in vars(value) if member.strip("_") in ("getitem", "iter", "contains")]
            members += [member for member in vars(value) if not member.startswith("_")]
            documented |= {f"{name}.{member}": vars(value)[member] for member in members}
    written = [name for name, value in documented.items() if isinstance(value, FunctionType | property | type)]
    assert {"open", "Log.topics", "Topic.scan", "Partition.messages", "Scan.to_reader", "Message.time"} <= {*written}
    assert not [name for name in written if not (documented[name].__doc__ or "").strip()]
    for function in (kafkafs.Topic.scan, kafkafs.Topic.messages, kafkafs.Partition.scan, kafkafs.Partition.messages):
        for parameter in list(inspect.signature(function).parameters)[1:]:
            assert f"`{parameter}`" in function.__doc__, (function.__qualname__, parameter)


PROGRAM = """\
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path

import numpy as np

import kafkafs
from kafkafs import Log, Message, Partition, Scan, Topic


def read(log: Log) -> Iterator[Message]:
    topic: Topic = log["orders"]
    partition: Partition = topic[0]
    yield from topic.messages(partitions=[0, 1], time=(datetime(2026, 1, 1), None), latest=False, on_damage="skip")
    yield from partition.messages(offsets=(np.int64(1), None), key="k")


log: Log = kafkafs.open([Path("a"), b"b"], isolation="read_committed", schemas="s", tier="c", tier_keys={"k": "d"})
keys: list[bytes | None] = [message.key for message in read(log)]
scan: Scan = log["orders"].scan(columns=("key",), time=("yesterday", date(2026, 1, 2)), decode="json", text=True)
number: int = scan.count()
ends: dict[int, tuple[int, int]] = log["orders"].offsets
"""
ERRORS = """\
import kafkafs

topic = kafkafs.open("a")["t"]
topic.scan(offset=(0, 1))
topic.messages(columns="key")
topic.scan(latest="yes")
len(topic.scan())
topic.scan().count().nothing
"""


def test_a_strict_type_checker_reads_the_installed_packages(tmp_path):
    """As of another project: they are found through its interpreter, and only py.typed says that they have types."""
    pytest.importorskip("mypy")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "kafkafs.pth").write_text(f"{ROOT}\n")
    numpy = Path(np.__file__).parent
    (site / "numpy").symlink_to(numpy)
    (tmp_path / "good.py").write_text(PROGRAM)
    (tmp_path / "bad.py").write_text(ERRORS)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", environment / "bin" / "python"]
    done = subprocess.run([*command, "good.py", "bad.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    found = re.findall(r"^(\w+)\.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert [(name, int(line)) for name, line, _ in found] == [("bad", line) for line in range(4, 9)], done.stdout
    assert 'Unexpected keyword argument "offset"' in found[0][2]
    for package in ("kafkafs", "storage"):
        assert (ROOT / package / "py.typed").is_file()
