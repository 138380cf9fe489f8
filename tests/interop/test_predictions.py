"""Rounds of tests/interop/predictions.py, repeated with what a broker did in them: doctor must still say that."""

import json
from pathlib import Path

import pytest

from tests.interop.kafka import BROKER_VERSION, VERSION
from tests.interop.predictions import begun, disagreements, origin
from tests.support.fixtures import requires_fixtures

RECORDED = json.loads(Path(__file__).with_name("predictions.json").read_text())


@requires_fixtures
@pytest.mark.skipif(BROKER_VERSION != VERSION, reason="what other releases did is not recorded")
@pytest.mark.parametrize("record", RECORDED, ids=lambda record: f"{record['seed']}-{record['round']}")
def test_what_a_broker_did(tmp_path, record):
    _, one = begun(origin(), tmp_path, record["seed"], record["round"], record["taken_back"])
    one.outcome = record["outcome"]
    assert list(disagreements(one)) == []
