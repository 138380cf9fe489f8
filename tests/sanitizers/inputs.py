"""Inputs of the fuzz driver: exact-size copies, numbers that provoke, logs, and data of random schemas."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kafkafs.decoding.avro_program import Programs
from kafkafs.decoding.avro_resolution import ValueColumn, add
from kafkafs.decoding.avro_schema import BadSchema
from kafkafs.decoding.avro_schema import parse as parse_avro
from kafkafs.schemas.registry import AVRO, JSON, Schema
from storage.append import batch_encoder
from storage.format.block import Record, encode_varint
from storage.format.compression import Codec
from storage.format.record_batch import BatchFields, encode_batch
from tests.support.avro_evolutions import Evolution
from tests.support.avro_samples import Samples
from tests.support.broker_rules import stored_batches
from tests.support.damaged_bytes import damaged, with_right_checksums
from tests.support.decoded_columns import SchemaTable, one_schema
from tests.support.fixtures import FIXTURES

# Inputs of the fuzz driver: exact-size copies, and numbers that provoke.
#
# A copy's memory ends where its last byte does, so that reading or writing one byte too far meets a red zone. `bytes`
# and `bytearray` have a byte more than they show; numpy arrays have not.

Int64s = NDArray[np.int64]

EDGES = (0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63), -(2**63) + 1, 2**62)


def exact(data):
    """A copy of `data` in memory that ends where it does."""
    return np.frombuffer(data, np.uint8).copy()


def column(values):
    """An int64 column of exactly these values."""
    return np.array(values, np.int64)


def index(dice, near):
    """A row or position as our own code counts them, or a little beyond."""
    return dice.randrange(-1, near + 3)


def number(dice, near):
    """What bytes on disk can make of a number: mostly 0 to a little beyond `near`, at times a limit or anything."""
    kind = dice.randrange(8)
    if kind == 0:
        return dice.choice(EDGES)
    if kind == 1:
        return dice.randrange(-(2**63), 2**63)
    return dice.randrange(-1, near + 3)


def any_record(dice, *, headers=True):
    """A record with sizes around those where varints grow."""

    def text():
        size = dice.choice((0, 0, 1, 5, 63, 64, 100, 300, 9000 if dice.random() < 0.02 else 7))
        kind = dice.randrange(4)
        if kind == 0:
            return None
        if kind == 1:
            return dice.randbytes(size)
        return ('aé\u2028"\\\n\x00😀' * size).encode()[:size] if kind == 2 else b"x" * size

    pairs = tuple((text() or b"", text()) for _ in range(dice.choice((0, 0, 1, 3)))) if headers else ()
    return Record(text(), text(), pairs, dice.choice((-1, 0, 1_700_000_000_000, dice.randrange(2**63))))


def made_log(dice):
    """A few batches of any formats, one after another."""
    log = b""
    offset = dice.choice((0, 1000, 2**40, 2**63 - 1000))
    for _ in range(dice.choice((1, 1, 2, 5))):
        magic = dice.choice((0, 1, 2, 2, 2))
        records = [any_record(dice, headers=magic == 2) for _ in range(dice.choice((1, 1, 2, 10)))]
        if magic == 2:
            fields = BatchFields(
                producer_id=dice.choice((-1, 5)), transactional=dice.random() < 0.3, control=dice.random() < 0.1
            )
            log += encode_batch(records, base_offset=offset, codec=dice.choice(list(Codec)), fields=fields)
        else:
            codec = dice.choice((Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4))
            log += batch_encoder.encode(records, magic, base_offset=offset, codec=codec)
        offset += len(records)
    return log


def fixture_batches():
    """Single small batches of real brokers, some of every log."""
    dice = random.Random(1)
    found = []
    for log in sorted(FIXTURES.glob("*/log/*/*.log")):
        small = [batch.data for batch in stored_batches(log.read_bytes()) if len(batch.data) < 8000]
        found += dice.sample(small, min(len(small), 5))
    return found


class Logs:
    """A source of log bytes: real and made ones, whole and damaged."""

    def __init__(self):
        self._real = fixture_batches()

    def whole(self, dice):
        """Batches without damage."""
        if self._real and dice.random() < 0.5:
            return b"".join(dice.choice(self._real) for _ in range(dice.choice((1, 1, 2, 4))))
        return made_log(dice)

    def any(self, dice):
        """Batches with damage most of the time, with checksums that fit half of the time."""
        data = self.whole(dice)
        if dice.random() < 0.15:
            return data
        data = damaged(data, dice)
        return with_right_checksums(data) if dice.random() < 0.6 else data


def tolerant(function, *arguments):
    """Call a kernel that may refuse its arguments with ValueError or IndexError; None if it does."""
    try:
        return function(*arguments)
    except (ValueError, IndexError):
        return None


# Inputs of the fuzz driver for decoding: programs of random schemas, JSON texts, and their data, whole and damaged.

# Few bytes for many items, for deep values, and for long texts.
HARD = (
    ('{"type":"array","items":"null"}', encode_varint(70_000) + b"\0"),
    ('{"type":"array","items":{"type":"array","items":"null"}}', encode_varint(9) + encode_varint(9000) + b"\0" * 10),
    ('{"type":"record","name":"N","fields":[{"name":"n","type":["null","N"]}]}', b"\2" * 600 + b"\0"),
    ('{"type":"record","name":"N","fields":[{"name":"n","type":"N"}]}', b""),
    ('{"type":"bytes","logicalType":"decimal","precision":9,"scale":3}', encode_varint(9000) + b"\x80" * 9000),
    ('{"type":"bytes","logicalType":"decimal","precision":4000,"scale":4000}', encode_varint(300) + b"\xff\x7f" * 150),
    ('{"type":"fixed","name":"F","size":2147483647}', b"abc"),
    ('"string"', encode_varint(3000) + b"\1" * 3000),
)
TEXTS = (b'{"a":[1,-2.5e+10,true,null,{}],"b\\u00e9\\n":"x"}', b" [ ]\n", b'"\\ud800"', b"[" * 600, b"-", b"1e", b"tru")


@dataclass(frozen=True, slots=True)
class Decodable:
    """A program, its lookup as schema 7, and one datum."""

    programs: Programs
    entry: int
    lookup: SchemaTable
    data: bytes
    reader: ValueColumn | None = None  # the columns that it fills


class AvroInputs:
    """A source of them; the schemas are made once, some hundred."""

    def __init__(self):
        self._samples = [Samples(seed) for seed in range(300)]
        self._programs = Programs()
        self._entries = [self._add(made.text) for made in self._samples]
        self._hard = [self._add(text) for text, _ in HARD]
        self._json = self._programs.add_json()
        self._evolved = [made for seed in range(150) if (made := self._evolve(Evolution(seed))) is not None]

    def _add(self, text):
        lookup = one_schema(text)
        schema = lookup.by_id(7)
        assert schema is not None
        return self._programs.add_avro(parse_avro(schema, lookup))

    def _evolve(self, made):
        writer, reader = (one_schema(text) for text in made.texts)
        try:
            column = ValueColumn.of(parse_avro(Schema(7, AVRO, made.texts[1]), reader))
        except BadSchema:
            return None  # it contains itself
        return made, add(self._programs, parse_avro(Schema(7, AVRO, made.texts[0]), writer), column), column

    def any(self, dice):
        if dice.random() < 0.4:
            made, entry, column = dice.choice(self._evolved)
            return Decodable(self._programs, entry, one_schema(made.texts[0]), made.data_from(dice), column)
        kind = dice.random()
        if kind < 0.05:
            which = dice.randrange(len(HARD))
            return Decodable(self._programs, self._hard[which], one_schema(HARD[which][0]), HARD[which][1])
        if kind < 0.2:
            data = dice.choice(TEXTS)
            if dice.random() < 0.5:
                data = json.dumps(
                    [dice.choice((None, 1.5, "\u00e9\n", {"k": []})) for _ in range(9)], indent=2
                ).encode()
            return Decodable(self._programs, self._json, one_schema("{}", JSON), data)
        which = dice.randrange(len(self._samples))
        made = self._samples[which]
        return Decodable(self._programs, self._entries[which], one_schema(made.text), made.sample_from(dice)[0])

    def damaged(self, data, dice):
        """With changed, missing and additional bytes, or none."""
        changed = bytearray(data)
        for _ in range(dice.choice((0, 0, 1, 2, 5))):
            if changed:
                changed[dice.randrange(len(changed))] = dice.choice((0, 1, 2, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        end = dice.choice((len(changed), len(changed), dice.randrange(len(changed) + 1)))
        return bytes(changed[:end]) + (dice.randbytes(3) if dice.random() < 0.1 else b"")
