"""Option `tier`: tiered topics whole, and an error where the tier does not give a part."""

import json

import pytest

from tests.support.fixtures import requires_fixtures
from tests.support.tiers import ISOLATIONS, KEYS, LAYOUTS, TIERS, golden_of, partitions

PythonException = pytest.importorskip("pyspark.errors").PythonException
pytest.importorskip("kafkafs.spark.data_source")


pytestmark = requires_fixtures
TOPICS = ",".join(sorted({tp.topic for tp in partitions()}))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_record(spark, layout):
    isolation = ISOLATIONS[LAYOUTS.index(layout) % 2]
    options = {
        "tier": json.dumps([str(TIERS / layout)]) if layout == "tier-aiven" else str(TIERS / layout),
        "tierKey": f"key1={KEYS['key1']}",
        "isolation.level": isolation,
        "subscribe": TOPICS,
    }
    rows = spark.read.format("kafkafs").options(**options).load(str(TIERS / "log")).collect()
    found = sorted((row.topic, row.partition, row.offset, row.key, row.value) for row in rows)
    golden = [(tp.topic, tp.partition, one) for tp in partitions() for one in golden_of(tp, isolation)]
    assert found == sorted((topic, number, one.offset, one.key, one.value) for topic, number, one in golden)


def test_what_is_lost_fails_the_query_even_if_damage_is_skipped(spark):
    options = {"tier": str(TIERS / "lost/tier-local"), "subscribe": "lz", "onCorruptBatch": "skip"}
    with pytest.raises(PythonException, match="messages 781 to 1538 are in tiered storage and cannot be read"):
        spark.read.format("kafkafs").options(**options).load(str(TIERS / "lost/log")).count()
