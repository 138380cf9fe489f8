"""Kafka's own records read by definition: as Kafka's own classes print them, and damaged ones as errors."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from storage.errors import StorageError
from storage.files.names import KAFKAS_OWN_TOPICS
from storage.format.messages import GROUPS, Messages, messages
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.own_topics import INTERNAL, PARTITIONS, golden, lines, raw, tp_of, without_name
from tests.support.uncompiled import plain_kernels

pytestmark = requires_fixtures


@pytest.mark.parametrize("fixture", INTERNAL)
def test_records_of_every_type_and_version_are_read_as_kafka_reads_them(fixture: str) -> None:
    count = 0
    for line in lines(FIXTURES / fixture / "golden" / "vectors.jsonl.gz"):
        if line["topic"] in GROUPS:
            key, value = messages(line["topic"]).one(*raw(line))
            assert (without_name(key), value) == (line["key"], line["value"]), line["name"]
            count += 1
    assert count > 200


@pytest.mark.parametrize("fixture", INTERNAL)
def test_odd_and_broken_records_are_read_or_refused_as_kafka_does_it(fixture: str) -> None:
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


@pytest.mark.parametrize(("fixture", "partition"), PARTITIONS)
def test_logs_of_brokers_read_as_kafkas_classes_print_them(fixture: str, partition: str) -> None:
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


def test_the_groups_that_are_topics_are_kafkas_own() -> None:
    assert GROUPS == KAFKAS_OWN_TOPICS


def test_the_key_tells_the_name_of_its_type() -> None:
    key, _ = messages("__consumer_offsets").one(b"\0\1\0\1g\0\1t\0\0\0\3", None)
    assert json.dumps(key) == (
        '{"type": 1, "name": "OffsetCommit", "data": {"group": "g", "topic": "t", "partition": 3}}'
    )


def all_texts(reader: Messages, rows: list[tuple[bytes | None, bytes | None]], room: int) -> list[object]:
    """The texts and errors of all rows, read with a room that grows from `room` bytes on."""
    data, columns = b"", []
    for sides in rows:
        for side in sides:
            columns.append((len(data), -1 if side is None else len(side)))
            data += side or b""
    cells = np.array(columns, np.int64).reshape(len(rows), 4).T
    found: list[object] = []
    while len(found) < len(rows):
        out = np.empty(room, np.uint8)
        read = reader.read(data, cells[:, len(found) :], out)
        for row in range(read.rows):
            key, key_size, value, size = read.places[:, row].tolist()
            text = out[: read.end].tobytes()
            first = text[key : key + key_size] if key_size >= 0 else None
            found.append((first, text[value : value + size] if size >= 0 else None, read.errors.get(row)))
        room *= 2
    return found


@pytest.mark.parametrize("topic", sorted(GROUPS))
def test_damaged_records_give_texts_or_errors_the_same_in_both_forms_of_the_kernel(topic: str) -> None:
    dice = random.Random(topic)
    rows: list[tuple[bytes | None, bytes | None]] = []
    for line in lines(FIXTURES / "internal" / "golden" / "vectors.jsonl.gz"):
        if line["topic"] != topic:
            continue
        key, value = raw(line)
        data = bytearray(value or b"")
        for _ in range(dice.randrange(3)):
            if data:
                data[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        rows.append((key, bytes(data[: dice.choice((len(data), dice.randrange(len(data) + 1)))])))
        rows.append((key and key[: dice.randrange(len(key) + 1)], value))
    reader = messages(topic)
    compiled = all_texts(reader, rows, 64)
    assert compiled == all_texts(reader, rows, 1 << 20)
    with plain_kernels():
        assert all_texts(reader, rows, 1 << 20) == compiled
    for _, text, error in compiled:
        assert text is None or error is None or error[0] == "key"
        json.loads(text or "null")
    assert any(error is not None for _, _, error in compiled)


def test_text_that_is_not_utf8_is_replaced_as_javas_decoder_replaces_it() -> None:
    dice = random.Random(7)
    pieces = [b"a", "ü€😀".encode(), b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xf4\x90", b"\xff", b"\xe0\x80"]
    for _ in range(500):
        text = b"".join(dice.choices(pieces, k=dice.randrange(1, 6)))
        key, _ = messages("__transaction_state").one(b"\0\0" + len(text).to_bytes(2, "big") + text, None)
        assert key["data"]["transactionalId"] == text.decode(errors="replace"), text


def test_an_element_that_is_null_is_an_error_as_for_kafkas_reader() -> None:
    """MessageDataGenerator: "non-nullable field topics element was serialized as null"."""
    reader, key, rest = messages("__consumer_offsets"), b"\0\x10\0\1g\0\1r", b"\0" * 17
    assert reader.one(key, b"\0\0\2\2t" + rest)[1]["data"]["topics"] == ["t"]
    with pytest.raises(StorageError, match="null where it must not be in field topics"):
        reader.one(key, b"\0\0\2\0" + rest)
