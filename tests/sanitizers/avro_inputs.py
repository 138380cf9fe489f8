"""Inputs of the fuzz driver for decoding: programs of random schemas, JSON texts, and their data, whole and damaged."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from kafkafs.decoding import BadSchema, parse_avro
from kafkafs.decoding.avro_program import Programs
from kafkafs.decoding.avro_resolution import ValueColumn, add
from kafkafs.schemas.registry import AVRO, JSON, Schema
from storage.format.block import encode_varint
from tests.support.avro_evolutions import Evolution
from tests.support.avro_samples import Samples
from tests.support.decoded_columns import SchemaTable, one_schema

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

    def __init__(self) -> None:
        self._samples = [Samples(seed) for seed in range(300)]
        self._programs = Programs()
        self._entries = [self._add(made.text) for made in self._samples]
        self._hard = [self._add(text) for text, _ in HARD]
        self._json = self._programs.add_json()
        self._evolved = [made for seed in range(150) if (made := self._evolve(Evolution(seed))) is not None]

    def _add(self, text: str) -> int:
        lookup = one_schema(text)
        schema = lookup.by_id(7)
        assert schema is not None
        return self._programs.add_avro(parse_avro(schema, lookup))

    def _evolve(self, made: Evolution) -> tuple[Evolution, int, ValueColumn] | None:
        writer, reader = (one_schema(text) for text in made.texts)
        try:
            column = ValueColumn.of(parse_avro(Schema(7, AVRO, made.texts[1]), reader))
        except BadSchema:
            return None  # it contains itself
        return made, add(self._programs, parse_avro(Schema(7, AVRO, made.texts[0]), writer), column), column

    def any(self, dice: random.Random) -> Decodable:
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

    def damaged(self, data: bytes, dice: random.Random) -> bytes:
        """With changed, missing and additional bytes, or none."""
        changed = bytearray(data)
        for _ in range(dice.choice((0, 0, 1, 2, 5))):
            if changed:
                changed[dice.randrange(len(changed))] = dice.choice((0, 1, 2, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        end = dice.choice((len(changed), len(changed), dice.randrange(len(changed) + 1)))
        return bytes(changed[:end]) + (dice.randbytes(3) if dice.random() < 0.1 else b"")
