"""Kafka's own records, read and written by definition; and the examples of FORMAT.md."""

import json
import os
import random
import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.coordinators.offset_records import (
    CommittedOffset,
    GroupType,
    OffsetKey,
    encode_commit,
    encode_offset_key,
    group_type,
)
from storage.errors import CorruptData, InvalidRecord, StorageError
from storage.files.names import KAFKAS_OWN_TOPICS
from storage.format.messages import GROUPS, MOST_JSON, messages
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from tests.storage.format.outcomes import exact, in_both_forms
from tests.support.fixtures import FIXTURES, ROOT, requires_fixtures
from tests.support.own_topics import INTERNAL, PARTITIONS, golden, lines, raw, tp_of, without_name

SEED = os.environ.get("KAFKAFS_FUZZ_SEED", "1")
VECTORS = FIXTURES / "internal" / "golden" / "vectors.jsonl.gz"

# Kafka's own records read by definition: as Kafka's own classes print them, and damaged ones as errors.


@requires_fixtures
@pytest.mark.parametrize("fixture", INTERNAL)
def test_records_of_every_type_and_version_are_read_as_kafka_reads_them(fixture):
    count = 0
    for line in lines(FIXTURES / fixture / "golden" / "vectors.jsonl.gz"):
        if line["topic"] in GROUPS:
            key, value = messages(line["topic"]).one(*raw(line))
            assert (without_name(key), value) == (line["key"], line["value"]), line["name"]
            count += 1
    assert count > 200


@requires_fixtures
@pytest.mark.parametrize("fixture", INTERNAL)
def test_odd_and_broken_records_are_read_or_refused_as_kafka_does_it(fixture):
    errors = {}
    for line in lines(FIXTURES / fixture / "golden" / "edges.jsonl.gz"):
        reader = messages(line["topic"])
        if "error" in line:
            with pytest.raises(StorageError) as caught:
                reader.one(*raw(line))
            before, _, errors[line["case"]] = caught.value.what.partition(" cannot be read: ")
            assert before in ("record's key", "record's value")
        else:
            key, value = reader.one(*raw(line))
            assert (without_name(key), value) == (line["key"], line["value"]), line["case"]
    assert errors["null group"] == "null where it must not be in field group, at byte 4"
    assert errors["value version 5"] == "version 5 is not known to this version of kafkafs, at byte 2"
    assert errors["unknown api key"] == "type 99 is not known to this version of kafkafs, at byte 3"
    assert errors["members: length beyond the value"] == "cut off in field members, at byte 25"


@requires_fixtures
@pytest.mark.parametrize(("fixture", "partition"), PARTITIONS)
def test_logs_of_brokers_read_as_kafkas_classes_print_them(fixture, partition):
    tp = tp_of(partition)
    log_dir = LogDir.open_read_only(FIXTURES / fixture / "log")
    found = []
    for block in read_range(log_dir.log(tp).snapshot(), 0, control=True):
        is_control = block.table.is_control[block.batch].tolist()
        plain = list(messages(tp.topic).objects(block))
        control = list(messages("control").objects(block))
        for row, offset in enumerate(block.offset.tolist()):
            if is_control[row]:
                _, value, error = control[row]
                found.append({"offset": offset, "control": {**value, "keyVersion": 0}})
            else:
                key, value, error = plain[row]
                found.append({"offset": offset, "key": without_name(key), "value": value})
            assert error is None
    assert found == golden(fixture, partition)


def test_the_groups_that_are_topics_are_kafkas_own():
    assert GROUPS == KAFKAS_OWN_TOPICS


def test_the_key_tells_the_name_of_its_type():
    key, _ = messages("__consumer_offsets").one(b"\0\1\0\1g\0\1t\0\0\0\3", None)
    assert json.dumps(key) == (
        '{"type": 1, "name": "OffsetCommit", "data": {"group": "g", "topic": "t", "partition": 3}}'
    )


def all_texts(reader, rows, room):
    """The texts and errors of all rows, read with a room that grows from `room` bytes on."""
    data, columns = b"", []
    for sides in rows:
        for side in sides:
            columns.append((len(data), -1 if side is None else len(side)))
            data += side or b""
    cells = np.array(columns, np.int64).reshape(len(rows), 4).T
    data, found = exact(data), []
    while len(found) < len(rows):
        out = np.empty(room, np.uint8)
        read = reader.read(data, cells[:, len(found) :], out)
        text = out[: read.end].tobytes()
        for row in range(read.rows):
            key, key_size, value, size = read.places[:, row].tolist()
            first = text[key : key + key_size] if key_size >= 0 else None
            found.append((first, text[value : value + size] if size >= 0 else None, read.errors.get(row)))
        room *= 2
    return found


@requires_fixtures
@pytest.mark.parametrize("topic", sorted(GROUPS))
def test_damaged_records_give_texts_or_errors(topic):
    """The same in both forms of the kernel, in any room."""
    dice = random.Random(f"{SEED} {topic}")
    rows = []
    for key, value in (raw(line) for line in lines(VECTORS) if line["topic"] == topic):
        data = bytearray(value or b"")
        for _ in range(dice.randrange(3) if data else 0):
            data[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        rows.append((key, bytes(data[: dice.choice((len(data), dice.randrange(len(data) + 1)))])))
        rows.append((key and key[: dice.randrange(len(key) + 1)], value))
    reader = messages(topic)
    texts = in_both_forms(all_texts, reader, rows, 1 << 20)
    assert texts == all_texts(reader, rows, 64)
    for _, text, error in texts:
        assert text is None or error is None or error[0] == "key"
        json.loads(text or "null")
    assert any(error is not None for _, _, error in texts)


def test_text_that_is_not_utf8_is_replaced_as_javas_decoder_replaces_it():
    dice = random.Random(7)
    pieces = [b"a", "ü€😀".encode(), b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xf4\x90", b"\xff", b"\xe0\x80"]
    for _ in range(500):
        text = b"".join(dice.choices(pieces, k=dice.randrange(1, 6)))
        key, _ = messages("__transaction_state").one(b"\0\0" + len(text).to_bytes(2, "big") + text, None)
        assert key["data"]["transactionalId"] == text.decode(errors="replace"), text


def test_an_element_that_is_null_is_an_error_as_for_kafkas_reader():
    """MessageDataGenerator: "non-nullable field topics element was serialized as null"."""
    reader, key, rest = messages("__consumer_offsets"), b"\0\x10\0\1g\0\1r", b"\0" * 17
    assert reader.one(key, b"\0\0\2\2t" + rest)[1]["data"]["topics"] == ["t"]
    with pytest.raises(StorageError, match="null where it must not be in field topics"):
        reader.one(key, b"\0\0\2\0" + rest)


# Committed offsets as they are written here, read back by Kafka's definitions; and what kinds of records there are.

KEY = OffsetKey("g", "t", 2)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
int64s = st.integers(-(2**63), 2**63 - 1)


def read(key, value):
    named, data = messages("__consumer_offsets").one(encode_offset_key(key), value)
    assert named["name"] == "OffsetCommit"
    return OffsetKey(**named["data"]), CommittedOffset.of(data["data"])


@given(texts, texts, st.integers(-(2**31), 2**31 - 1), int64s, st.integers(-(2**31), 2**31 - 1), texts, int64s)
def test_commits_come_back(group, topic, partition, offset, epoch, text, at):
    key, committed = OffsetKey(group, topic, partition), CommittedOffset(offset, epoch, text, at)
    assert read(key, encode_commit(committed)) == (key, committed)


@pytest.mark.parametrize(
    ("version", "epoch", "expires"), [(0, -1, -1), (1, -1, 9), (2, -1, -1), (3, 7, -1), (4, 7, -1)]
)
def test_every_version_of_a_committed_offset(version, epoch, expires):
    offset, stamp = (number.to_bytes(8, "big") for number in (5, 6))
    head = b"\0" + bytes([version]) + offset + (b"\0\0\0\7" if version >= 3 else b"")
    metadata = b"\2m" if version == 4 else b"\0\1m"
    tail = {1: (9).to_bytes(8, "big"), 4: b"\1\0\x10" + bytes(range(16))}.get(version, b"")
    assert read(KEY, head + metadata + stamp + tail) == (KEY, CommittedOffset(5, epoch, "m", 6, expires))


def test_what_a_record_cannot_hold():
    for name in ("x" * 2**15, "\ud800"):
        with pytest.raises(InvalidRecord):
            encode_offset_key(OffsetKey(name, "t", 0))
        with pytest.raises(InvalidRecord):
            encode_commit(CommittedOffset(1, metadata=name))


def test_every_kind_of_record_belongs_to_a_type_of_group():
    names = {}
    for kind in range(64):
        key = b"\0" + bytes([kind]) + b"\0\1g" * 2 + b"\0\0\0\0"
        try:
            names[kind] = messages("__consumer_offsets").one(key, None)[0]["name"]
        except StorageError:
            continue
    assert len(names) >= 21
    for kind in names.keys() - {0, 1, 2}:  # offsets, and what classic groups have
        assert names[kind].lower().startswith(group_type(kind)), names[kind]
    assert group_type(2) == GroupType.CLASSIC


# The examples of FORMAT.md are what lies in the files they name.

TEXT = (ROOT / "storage" / "FORMAT.md").read_text()
BYTES = re.findall(r"`([^`\n]+)` from byte (\d+):\n\n```hex\n(.*?)```", TEXT, re.DOTALL)
LINES = re.findall(r"`([^`\n]+)`:\n\n```text\n(.*?)```", TEXT, re.DOTALL)
HEX = re.compile(r"(?:[0-9a-f]{2} ?)+(?: (?:[0-9a-f]{2} ?)+)?")


def data_of(example):
    """The bytes at the start of each line; words follow after two spaces or more."""
    matches = [HEX.match(line) for line in example.splitlines()]
    assert all(matches)
    return bytes.fromhex("".join(match.group() for match in matches if match))


@requires_fixtures
@pytest.mark.parametrize(("name", "position", "example"), BYTES, ids=[name for name, _, _ in BYTES])
def test_bytes(name, position, example):
    data = data_of(example)
    assert (FIXTURES / name).read_bytes()[int(position) : int(position) + len(data)] == data
    if name.endswith(".log"):
        assert len(data) == 12 + int.from_bytes(data[8:12], "big")


@requires_fixtures
@pytest.mark.parametrize(("name", "example"), LINES, ids=[name for name, _ in LINES])
def test_lines(name, example):
    assert (FIXTURES / name).read_text().rstrip("\n") == example.rstrip("\n")


def test_no_example_is_missed():
    assert (len(BYTES), len(LINES)) == (TEXT.count("```hex"), TEXT.count("```text"))
    assert len(BYTES) == 8


def test_columns_outside_of_the_buffer_are_refused():
    reader = messages("__consumer_offsets")
    for start, length in ((0, 5), (-1, 2), (2**62, 2**62), (5, 1)):
        with pytest.raises(ValueError, match="outside"):
            reader.read(exact(b"\0\1\0\0"), np.array([[start], [length], [0], [-1]], np.int64), np.empty(100, np.uint8))


def test_a_record_that_is_too_long_as_json_is_an_error():
    """Eight bytes of a topology are 160 of JSON. A record that ends just within the bound is read."""

    def topology(count):
        length = bytes([count % 128 | 128, count // 128 % 128 | 128, count // 128**2])
        return struct.pack(">hi", 0, 1) + length + b"\1\1\1\1\1\1\1\0" * (count - 1) + b"\0"

    key = struct.pack(">h", 23) + b"\0\1g"
    reader = messages("__consumer_offsets")
    one, two = (len(json.dumps(reader.one(key, topology(n))[1], separators=(",", ":"))) for n in (2, 3))
    most = MOST_JSON // (two - one)
    assert len(reader.one(key, topology(most - 10))[1]["data"]["subtopologies"]) == most - 11
    with pytest.raises(CorruptData, match=f"more than {MOST_JSON} bytes as JSON in field"):
        reader.one(key, topology(most + 10))
