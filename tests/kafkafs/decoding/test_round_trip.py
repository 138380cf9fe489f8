"""What decoded.jsonl shows, encoded again by the same schema, is shown the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.decoding.decoded_jsonl import DecodedJsonl, TextDecoder
from kafkafs.decoding.encoding import encode_json
from kafkafs.decoding.proto_files import compiled_files
from kafkafs.schemas.registry import JSON, PROTOBUF
from kafkafs.writing.line_parsers import jsonl_with
from tests.support.avro_samples import Samples
from tests.support.blocks import TP, Row
from tests.support.decoded_columns import decoded_text, framed, lines, one_schema
from tests.support.decoded_golden import GoldenSchemas, golden_lines, partitions, same
from tests.support.fixtures import requires_fixtures


@requires_fixtures
@pytest.mark.golden
@pytest.mark.parametrize("partition", partitions())
def test_golden_values_encoded_and_decoded(partition):
    schemas = GoldenSchemas()
    topic = partition.rpartition("-")[0]
    for line in golden_lines(partition):
        for side in ("key", "value"):
            if line[f"{side}_format"] not in ("avro", "protobuf", "json"):
                continue
            schema = schemas.by_id(line[f"{side}_schema"]["id"])
            assert schema is not None
            value = line.get(f"{side}_of_stored_schema", line[side])
            data = encode_json(schema, schemas, value)
            assert data[:5] == b"\0" + schema.schema_id.to_bytes(4, "big")
            text = decoded_text(TextDecoder(schemas, f"{topic}-{side}"), data)
            assert same(json.loads(text), value), line


def appended(schemas, shown):
    """Keys and values of the messages that these lines become."""
    lengths = np.array([len(line) - 1 for line in shown], np.int64)
    starts = (lengths + 1).cumsum() - lengths - 1
    parsed = jsonl_with(schemas, TP.topic)(b"".join(shown), starts, lengths)
    assert parsed.error is None, parsed.error
    return [(parsed.columns.key(row), parsed.columns.value(row)) for row in range(len(parsed.columns))]


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?", fullmatch=True)
CHARACTERS = st.one_of(
    st.characters(exclude_characters='"\\', exclude_categories=["Cs"], min_codepoint=32),
    st.sampled_from([r"\"", r"\\", r"\/", r"\n", r"\u00e9", r"\u0000", r"\ud800", r"\uDC00"]),
)
STRINGS = st.lists(CHARACTERS, max_size=5).map(lambda parts: '"' + "".join(parts) + '"')
NAMES = st.one_of(STRINGS, st.sampled_from(['"a"', '"a"', r'"\u0061"', '"value"', '"key"', '"valueSchema"']))
SPACES = st.text(" \t", max_size=2)


def nested(inner):
    items = st.builds("{0}{1}{0}".format, SPACES, inner)
    members = st.builds("{0}{1}{0}:{2}".format, SPACES, NAMES, items)
    return st.one_of(
        st.lists(items, max_size=4).map(lambda parts: f"[{','.join(parts)}]"),
        st.lists(members, max_size=4).map(lambda parts: f"{{{','.join(parts)}}}"),
    )


JSON_TEXTS = st.recursive(
    st.one_of(NUMBERS, STRINGS, st.sampled_from(["null", "true", "false", "-0", "1e400", "9" * 5000])), nested
)


@given(texts=st.lists(st.tuples(JSON_TEXTS, JSON_TEXTS), min_size=1, max_size=4))
def test_json_is_appended_as_it_was(texts):
    """Numbers that no float holds, names that stand twice, escapes and spaces."""
    rows = [Row(1, 5, framed(key.encode()), framed(value.encode())) for key, value in texts]
    schemas = one_schema("{}", JSON)
    assert appended(schemas, lines(DecodedJsonl(TP, schemas), rows)) == [(row.key, row.value) for row in rows]


@given(seed=st.integers(0, 2**64))
def test_random_avro_lines_are_shown_again(seed):
    """(Decimals of the samples have more digits than their schema allows, which is shown but not written.)"""
    made = Samples(seed)
    if "decimal" in made.text:
        return
    schemas = one_schema(made.text)
    shown = lines(DecodedJsonl(TP, schemas), [Row(1, 5, None, framed(made.sample()[0])) for _ in range(6)])
    rows = [Row(1, 5, key, value) for key, value in appended(schemas, shown)]
    assert lines(DecodedJsonl(TP, schemas), rows) == shown


SCALARS = """
syntax = "proto3";
message A {
  int32 a = 1; int64 b = 2; uint64 c = 3; sint64 d = 4; fixed64 e = 5; double f = 6; float g = 7; bool h = 8;
  string i = 9; bytes j = 10; optional int64 k = 11; repeated double l = 12; A m = 13; repeated A n = 14; E o = 15;
  enum E { ZERO = 0; ONE = 1; }
}
"""
LONGS = st.integers(-(2**63), 2**63 - 1)
NATURALS = st.integers(0, 2**64 - 1)
# The library does not read the largest float's shortest form; a double of that value beside it is refused.
DOUBLES = st.one_of(st.floats(allow_nan=False).filter(lambda n: abs(n) != 3.4028235e38), st.just(float("nan")))
FLOATS = st.floats(width=32, allow_nan=False)
MESSAGES = st.recursive(
    st.fixed_dictionaries({}, optional={
        "a": st.integers(1, 2**31 - 1), "b": LONGS.filter(bool), "c": NATURALS.filter(bool), "d": LONGS.filter(bool),
        "e": NATURALS.filter(bool), "f": DOUBLES.filter(bool), "g": FLOATS.filter(bool), "h": st.just(True),
        "i": st.text(min_size=1), "j": st.binary(min_size=1), "k": LONGS, "l": st.lists(DOUBLES, min_size=1),
        "o": st.sampled_from([1, 2, -1]),
    }),
    lambda inner: st.fixed_dictionaries({}, optional={"m": inner, "n": st.lists(inner, min_size=1, max_size=3)}),
    max_leaves=6,
)  # fmt: skip


@given(messages=st.lists(MESSAGES, min_size=1, max_size=4))
def test_random_protobuf_is_the_same_bytes_again(messages):
    """Without maps, whose order is open, and unknown fields the library writes one form, with one NaN."""
    message_factory = pytest.importorskip("google.protobuf.message_factory")
    schemas = one_schema(SCALARS, PROTOBUF)
    schema = schemas.by_id(7)
    assert schema is not None
    file = compiled_files(schema, schemas).file
    made = message_factory.GetMessageClass(file.message_types_by_name["A"])
    rows = [Row(1, 5, None, framed(b"\0" + made(**message).SerializeToString())) for message in messages]
    shown = lines(DecodedJsonl(TP, schemas), rows)
    again = appended(schemas, shown)
    assert again == [(row.key, row.value) for row in rows]


def test_what_is_shown_of_any_depth_is_appended():
    node = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
    for schemas, deepest in (
        (one_schema(json.dumps(node)), b"\2" * 499 + b"\0"),
        (one_schema("{}", JSON), b"[" * 500 + b"]" * 500),
    ):
        shown = lines(DecodedJsonl(TP, schemas), [Row(1, 5, None, framed(deepest))])
        assert b"error" not in shown[0]
        assert appended(schemas, shown) == [(None, framed(deepest))]
