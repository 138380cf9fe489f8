"""What decoded.jsonl shows, encoded again by the same schema, is shown the same."""

from __future__ import annotations

import json

import pytest

from kafkafs.decoding import TextDecoder, encode_json
from tests.support.decoded_columns import decoded_text
from tests.support.decoded_golden import GoldenSchemas, golden_lines, partitions, same
from tests.support.fixtures import requires_fixtures


@requires_fixtures
@pytest.mark.golden
@pytest.mark.parametrize("partition", partitions())
def test_golden_values_encoded_and_decoded(partition: str) -> None:
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
