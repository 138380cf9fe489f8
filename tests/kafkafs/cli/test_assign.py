"""`kafkafs assign`: the table, and the JSON that kafka-reassign-partitions reads."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import output_of, run

TWO_RACKS = ("--brokers", "1,2,3,4", "--racks", "1=a,2=a,3=b,4=b")


def test_the_table():
    args = ("--partitions", 4, "--replication-factor", 2, "--start", 0)
    lines = output_of("assign", *TWO_RACKS, *args).decode().splitlines()
    assert [line.split() for line in lines[:5]] == [
        ["PARTITION", "LEADER", "REPLICAS"],
        ["0", "1", "1,3"],
        ["1", "3", "3,2"],
        ["2", "2", "2,4"],
        ["3", "4", "4,1"],
    ]
    assert [line.split() for line in lines[6:]] == [
        ["BROKER", "RACK", "LEADERS", "REPLICAS"],
        ["1", "a", "1", "2"],
        ["2", "a", "1", "2"],
        ["3", "b", "1", "2"],
        ["4", "b", "1", "2"],
    ]


def test_the_json():
    args = ("--brokers", "3,1,2", "--partitions", 2, "--replication-factor", 2, "--start", 0, "--json")
    assert json.loads(output_of("assign", *args, "--topic", "orders", "--first-partition", 3)) == {
        "version": 1,
        "partitions": [
            {"topic": "orders", "partition": 3, "replicas": [1, 3]},
            {"topic": "orders", "partition": 4, "replicas": [2, 1]},
        ],
    }


@pytest.mark.parametrize(
    "args",
    [
        ("--brokers", "1,x"),
        ("--brokers", "1,"),
        ("--brokers", "1,1"),
        ("--brokers", "1,2", "--racks", "1=a"),
        ("--brokers", "1,2", "--racks", "1=a,2"),
        ("--brokers", "1,2", "--replication-factor", "3"),
        ("--brokers", "1,2", "--partitions", "0"),
        ("--brokers", str(2**31)),
    ],
)
def test_wrong_uses(args):
    rest = [part for name in ("--partitions", "--replication-factor") if name not in args for part in (name, "1")]
    result = run("assign", *args, *rest)
    assert result.exit_code == 2
    assert "Error" in result.stderr
