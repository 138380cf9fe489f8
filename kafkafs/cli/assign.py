"""`kafkafs assign`: which broker gets which replica, as Kafka decides."""

from __future__ import annotations

from collections import Counter

import click

from kafkafs.cli import echo
from kafkafs.cli.shared_options import ParsedText, pair, whole_number
from kafkafs.cli.terminal import print_json, print_table

_MOST_START = 1_000_000  # above this Kafka's 32-bit arithmetic may overflow


def _brokers(text: str) -> list[int]:
    return sorted(map(_broker, text.split(",")))


def _racks(text: str) -> dict[int, str]:
    racks = {}
    for part in text.split(","):
        broker, rack = pair(part, "BROKER=RACK")
        racks[_broker(broker)] = rack
    return racks


def _broker(text: str) -> int:
    number = whole_number(text, 2**31 - 1)
    if number is None:
        raise ValueError(f"{text!r} is not a broker id")
    return number


@click.command()
@click.option("--brokers", required=True, type=ParsedText("1,2,3", _brokers), metavar="1,2,3", help="The brokers' ids.")
@click.option("--partitions", required=True, type=click.IntRange(min=1), metavar="N", help="The number of partitions.")
@click.option(
    "--replication-factor",
    required=True,
    type=click.IntRange(min=1),
    metavar="R",
    help="The number of replicas of each partition.",
)
@click.option(
    "--racks",
    type=ParsedText("1=a,2=b", _racks),
    metavar="1=a,2=b",
    help="The rack of every broker; replicas are spread over racks.",
)
@click.option(
    "--start", type=click.IntRange(0, _MOST_START), metavar="S", help="The start position, instead of a random one."
)
@click.option(
    "--first-partition", type=click.IntRange(min=0), default=0, metavar="P", help="The first number, to add partitions."
)
@click.option("--topic", default="topic", show_default=True, metavar="TOPIC", help="The topic's name in the JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON that kafka-reassign-partitions reads.")
def assign(
    brokers: list[int],
    partitions: int,
    replication_factor: int,
    racks: dict[int, str] | None,
    start: int | None,
    first_partition: int,
    topic: str,
    as_json: bool,
) -> None:
    """Assign replicas to brokers as Kafka does: leaders rotate, followers are shifted, racks alternate.

    \b
    kafkafs assign --brokers 1,2,3 --partitions 6 --replication-factor 2
    kafkafs assign --brokers 1,2,3,4 --racks 1=a,2=a,3=b,4=b --partitions 8 --replication-factor 2
    """
    from storage.log.assignment import assign_replicas

    try:
        assigned = assign_replicas(
            brokers, partitions, replication_factor, racks=racks, start=start, first_partition=first_partition
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        rows = [{"topic": topic, "partition": number, "replicas": replicas} for number, replicas in assigned.items()]
        print_json({"version": 1, "partitions": rows})
        return
    print_table(
        ("PARTITION", "LEADER", "REPLICAS"),
        [(number, replicas[0], ",".join(map(str, replicas))) for number, replicas in assigned.items()],
    )
    echo()
    leaders = Counter(replicas[0] for replicas in assigned.values())
    replicas_of = Counter(broker for replicas in assigned.values() for broker in replicas)
    rack_of = racks or {}
    print_table(
        ("BROKER", "RACK", "LEADERS", "REPLICAS"),
        [(broker, rack_of.get(broker), leaders[broker], replicas_of[broker]) for broker in brokers],
    )
