"""Lines that `kcat -J` and `rpk topic consume` print become the messages that these programs have read."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from kafkafs.writing.line_parsers import parse_line
from storage.errors import InvalidRecord
from storage.format.block import Record
from tests.support.commands import output_of
from tests.support.waiting import wait_for

# What kcat 1.7.1 printed of the messages below, which `kcat -P -Z -K: -H h=x -H n= -H ä=é` had written.
KCAT = [
    b'{"topic":"t","partition":0,"offset":0,"tstype":"create","ts":1795838588719,"broker":1,"headers":["h","x","n","",'
    b'"\xc3\xa4","\xc3\xa9"],"key":"k","payload":"v"}',
    b'{"topic":"t","partition":0,"offset":1,"tstype":"create","ts":1795838588719,"broker":1,"headers":["h","x","n","",'
    b'"\xc3\xa4","\xc3\xa9"],"key":"key","payload":null}',
    b'{"topic":"t","partition":0,"offset":2,"tstype":"create","ts":1795838588719,"broker":1,"headers":["h","x","n","",'
    b'"\xc3\xa4","\xc3\xa9"],"key":null,"payload":"no key"}',
    b'{"topic":"t","partition":0,"offset":3,"tstype":"create","ts":1795838588719,"broker":1,"headers":["h","x","n","",'
    b'"\xc3\xa4","\xc3\xa9"],"key":"bin","payload":"\xff\xfe\\"\\\\/\\t\\u0001"}',
]
WRITTEN = b'k:v\nkey:\n:no key\nbin:\xff\xfe"\\/\t\x01'
MESSAGES = [(b"k", b"v"), (b"key", None), (None, b"no key"), (b"bin", b'\xff\xfe"\\/\t\x01')]
HEADERS = [(b"h", b"x"), (b"n", b""), ("ä".encode(), "é".encode())]
MS = 1795838588719

# As rpk's Go code writes its struct: a null value, and a key that is null or empty, are left out.
RPK = {
    b'{"topic":"t","key":"k","value":"v\\u003c","headers":[{"key":"h","value":"x"},{"key":"n","value":""}],'
    b'"timestamp":1795838588719,"partition":2,"offset":7}': Record(b"k", b"v<", [(b"h", b"x"), (b"n", b"")], MS),
    b'{"topic":"t","key":"k","timestamp":1795838588719,"partition":2,"offset":8}': Record(b"k", None, [], MS),
    b'{"topic":"t","value":"","timestamp":1795838588719,"partition":2,"offset":9}': Record(None, b"", [], MS),
}


def test_what_kcat_has_printed():
    records = [Record(key, value, HEADERS, MS) for key, value in MESSAGES]
    assert [parse_line(line) for line in KCAT] == [(record, 0) for record in records]


@pytest.mark.parametrize("line", RPK)
def test_what_rpk_prints(line):
    assert parse_line(line) == (RPK[line], 2)


@pytest.mark.parametrize(
    ("fields", "record"),
    [
        ({"value": "ours", "payload": "kcat's"}, Record(None, b"ours", [], -1)),
        ({"value": None, "payload": "kcat's", "ts": 5}, Record(None, None, [], -1)),
        ({"payload": "kcat's", "timestamp": 7, "ts": 5}, Record(None, b"kcat's", [], 7)),
        ({"value": "", "headers": [["key", "value"]]}, Record(None, b"", [(b"key", b"value")], -1)),
        ({"value": "", "headers": ["a", None, "b", ""]}, Record(None, b"", [(b"a", None), (b"b", b"")], -1)),
        ({"value": "", "value_size": 3, "key_error": "ignored as any other field"}, Record(None, b"", [], -1)),
    ],
)  # fmt: skip
def test_a_line_that_could_be_both_is_ours(fields, record):
    assert parse_line(json.dumps(fields).encode()).record == record


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"payload": {"id": 1}, "value_schema_id": 3}, "kcat -J"),
        ({"payload": None, "payload_error": "no schema"}, "kcat -J"),
        ({"payload": "x", "key": None, "key_error": "no schema"}, "kcat -J"),
        ({"topic": "t", "partition": 0, "offset": 1, "timestamp": 5, "value_size": 9}, "--meta-only"),
        ({"topic": "t", "partition": 0, "offset": 1, "timestamp": 5, "timestampType": "CreateTime"}, "no value"),
        ({"payload": 5}, "must be a string"),
        ({"payload": "", "headers": ["a"]}, "pair of name and value"),
        ({"payload": "", "headers": [None, "a"]}, "must have a name"),
        ({"value": "", "headers": [{"key": "a"}]}, "pair of name and value"),
        ({"value": "", "headers": [{"key": "a", "value": 5}]}, "header's value"),
    ],
)  # fmt: skip
def test_lines_that_do_not_hold_the_message_are_refused(fields, reason):
    with pytest.raises(InvalidRecord, match=reason):
        parse_line(json.dumps(fields).encode())


@pytest.mark.parametrize("line", [b'{"value":"\xff"}', b'{"value":"","more":"\xff"}', b'{"payload":"","value":"\xff"}'])
def test_our_own_lines_are_utf_8(line):
    with pytest.raises(InvalidRecord, match="utf-8"):
        parse_line(line)


def test_an_object_over_several_lines():
    with pytest.raises(InvalidRecord, match="--pretty-print=false"):
        parse_line(b"{")


@pytest.fixture
def cluster(tmp_path):
    """The address of the cluster that librdkafka, below kcat, makes for tests."""
    if shutil.which("kcat") is None:
        pytest.skip("needs kcat")
    log = tmp_path / "cluster"
    with log.open("wb") as messages:
        holder = subprocess.Popen(
            ["kcat", "-C", "-b", "unused", "-t", "held", "-X", "test.mock.num.brokers=1", "-X", "debug=mock"],
            stdout=messages, stderr=messages,
        )  # fmt: skip
    try:
        wait_for("kcat's cluster", lambda: re.search(r"bootstrap.servers=(\S+)", log.read_text()) is not None)
        yield re.search(r"bootstrap.servers=(\S+)", log.read_text())[1]
    finally:
        holder.kill()
        holder.wait()


def test_round_trip_with_kcat(cluster, tmp_path):
    def kcat(*arguments, given=None):
        command = ["kcat", "-b", cluster, "-t", "t", "-p", "0", *arguments]
        return subprocess.run(command, input=given, check=True, capture_output=True, timeout=120).stdout

    kcat("-P", "-Z", "-K:", "-H", "h=x", "-H", "n=", "-H", "ä=é", given=WRITTEN)
    printed = kcat("-C", "-J", "-o", "beginning", "-e", "-q")
    times = [json.loads(line.decode(errors="replace"))["ts"] for line in printed.splitlines()]
    logs = tmp_path / "logs"
    output_of("topics", "create", logs, "t")
    append = [sys.executable, "-m", "kafkafs", "append", logs, "t", "--format", "jsonl"]
    subprocess.run(append, input=printed, check=True)
    lines = output_of("cat", logs, "t", "--format", "jsonl").splitlines()
    assert [parse_line(line) for line in lines] == [
        (Record(key, value, HEADERS, ms), 0) for (key, value), ms in zip(MESSAGES, times, strict=True)
    ]
    # What kcat makes of our copy is what it made of its own: keys, values and headers by its own format.
    form = "%K %k %S %s %h\n"
    assert output_of("cat", logs, "t", "--format", form) == kcat("-C", "-f", form, "-o", "beginning", "-e", "-q")
