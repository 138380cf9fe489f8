"""Kafka's own records after a little of every kind of work; and the definitions as the broker's jars have them."""

from __future__ import annotations

from pathlib import Path

from tests.interop import own_topics
from tests.interop.kafka import JARS, requires_kafka
from tests.support.fixtures import ROOT
from tests.support.message_definitions import HEADER, lines

pytestmark = requires_kafka


def test_every_record_is_read_as_kafka_reads_it(tmp_path: Path) -> None:
    done, equal, differing = own_topics.run(tmp_path, 0, 1)
    assert not differing, differing[0]
    assert set(own_topics.DECODERS) == {kind.split()[0] for kind in equal}
    assert len(done) >= 8


def test_the_definitions_are_those_of_the_jars() -> None:
    """Of 4.3.0; the shipped ones are of 4.4.0, which adds a record and two tagged fields."""
    shipped = (ROOT / "storage" / "format" / "message_definitions.txt").read_text().removeprefix(HEADER).splitlines()
    older = lines(JARS)
    added = [line for line in shipped if line not in older]
    assert [line.split()[3] for line in added] == ["UNREGISTER_CONTROLLER_RECORD", "StreamsGroupMetadata"]
    (changed,) = [line for line in older if line not in shipped]
    assert added[1].startswith(changed)
