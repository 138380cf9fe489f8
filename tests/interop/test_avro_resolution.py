"""Values that are read as a schema that evolved: the export's columns against the recorded answers of Java's Avro.

Nightly Java's Avro itself answers: KAFKAFS_AVRO_PAIRS is the number of pairs of schemas, KAFKAFS_AVRO_SEED the first
seed.
"""

import json
import os
from collections import Counter

import pyarrow as pa
import pytest

from kafkafs.arrow.avro_columns import AvroColumn
from kafkafs.decoding import columns
from kafkafs.decoding.avro_schema import BadSchema
from kafkafs.decoding.avro_schema import parse as parse_avro
from kafkafs.schemas.schema import AVRO, Schema
from tests.interop.avro_evolutions import CannotExpress, Evolution, in_columns, plain
from tests.interop.avro_referee import PAIRS, VALUES, digest_of, question_of, recorded, referee, requires_avro
from tests.interop.kafka import on_broker
from tests.support.decoded_columns import SchemaTable, framed
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.uncompiled import uncompiled

WRITER, READER = 1, 2


def read(made, rows):
    writer, reader = made.texts
    schemas = SchemaTable(Schema(WRITER, AVRO, writer), Schema(READER, AVRO, reader))
    column = AvroColumn(schemas, "t-value", parse_avro(Schema(READER, AVRO, reader), schemas))
    values, ids, errors = column.read(pa.array([framed(row, WRITER) for row in rows], pa.binary()), {})
    assert ids.tolist() == [WRITER] * len(rows)
    assert values.type == column.type
    values.validate(full=True)
    return values, errors


def check(pairs, ask):
    """Each value is read as `ask` answers, or both refuse it."""
    seen = Counter()
    for seed in pairs:
        made = Evolution(seed)
        rows = [made.data() for _ in range(VALUES)]
        answer = ask(question_of(*made.texts, rows))
        assert "error" not in answer, (seed, answer, made.texts)
        try:
            values, errors = read(made, rows)
        except BadSchema as error:
            if "contains itself" in str(error):  # columns cannot express it
                continue
            raise
        found = plain(made.reader, values)
        for row, one in enumerate(answer["values"]):
            where = (seed, row, *made.texts, rows[row].hex(), errors.get(row), one)
            try:
                expected = in_columns(made.reader, one["value"]) if "error" not in one else CannotExpress
            except CannotExpress:
                expected = CannotExpress
            seen[expected is CannotExpress] += 1
            assert (row in errors) == (expected is CannotExpress), where
            if row not in errors:
                assert json.dumps(found[row], default=repr) == json.dumps(expected, default=repr), where
    assert seen[False] > len(pairs)
    assert seen[True] > len(pairs) // 10


@requires_fixtures
@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_evolved_schemas(form, monkeypatch):
    if form == "plain":
        monkeypatch.setattr(columns, "avro_kernel", uncompiled("kafkafs.decoding.avro_kernel"))
    answers = recorded(FIXTURES / "avro")

    def ask(question):
        assert digest_of(question) in answers, "not recorded: python -m tests.interop.avro_referee DIRECTORY"
        return answers[digest_of(question)]

    check(range(PAIRS), ask)


@pytest.mark.nightly
@on_broker
@requires_avro
def test_evolved_schemas_of_java():
    """Also that it still gives the recorded answers."""
    answers = recorded(FIXTURES / "avro")
    with referee() as answer_of:

        def ask(question):
            answer = answer_of(question)
            assert answers.get(digest_of(question), answer) == answer, question
            return answer

        first = int(os.environ.get("KAFKAFS_AVRO_SEED", "0"))
        pairs = int(os.environ.get("KAFKAFS_AVRO_PAIRS", "300"))
        check(range(first, first + pairs), ask)
