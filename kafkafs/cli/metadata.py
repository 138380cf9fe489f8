"""`kafkafs metadata`: what a KRaft cluster's metadata log says, at its end or earlier."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kafkafs.cli import echo, say
from kafkafs.cli.process import DATA_ERROR, use_default_signals
from kafkafs.cli.shared_options import AS_JSON, MOMENT
from kafkafs.cli.targets import LOGDIR, open_log_dir
from kafkafs.cli.terminal import moment, print_json, print_table

if TYPE_CHECKING:
    from storage.files.cluster_metadata import ClusterMetadataReader
    from storage.files.metadata_replay import Data, MetadataReplay

# Numbers in records, as Kafka's own tools name them (AclOperation, ScramMechanism, SecurityProtocol and others).
_NAMES: Final[dict[str, dict[int, str]]] = {
    "operation": dict(enumerate((
        "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
    ), 2)),
    "permissionType": {2: "DENY", 3: "ALLOW"},
    "patternType": {3: "LITERAL", 4: "PREFIXED"},
    "mechanism": {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"},
    "securityProtocol": {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"},
}  # fmt: skip
_ACL_RESOURCES: Final = {
    2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER",
}  # fmt: skip
_CONFIG_RESOURCES: Final = {2: "topic", 4: "broker", 16: "client-metrics", 32: "group"}
_SECRETS: Final = {"salt", "storedKey", "serverKey"}
_SECRET_CONFIG: Final = re.compile(r"password|secret|jaas|keystore\.key|token", re.IGNORECASE)
_HIDDEN: Final = "(hidden)"


def _diff_was_removed(_ctx: click.Context, _param: click.Parameter, given: bool) -> None:
    if given:
        raise click.UsageError(
            "`kafkafs metadata --diff` was removed. Compare `kafkafs metadata LOGDIR --at TIME` of two times with"
            " diff(1), or print each change with `kafkafs cat LOGDIR __cluster_metadata --format decoded`"
        )


@click.command()
@LOGDIR
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="The state before the record with this offset.")
@click.option("--at", "--time", "at_ms", type=MOMENT, help="The state at this time.")
@click.option("--diff", is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_diff_was_removed)
@click.option("--secrets", is_flag=True, help="Show salted keys of SCRAM users, and passwords in configurations.")
@AS_JSON
@click.pass_context
def metadata(
    ctx: click.Context,
    logdir: Path,
    offset: int | None,
    at_ms: int | None,
    secrets: bool,
    as_json: bool,
) -> None:
    """Show the metadata of the cluster that LOGDIR belongs to.

    Shows brokers, controllers, features, topics with their partitions, configurations, ACLs, quotas, SCRAM users and
    delegation tokens, from __cluster_metadata: at the end of the log, before a record or at a time. The oldest snapshot
    limits how far back this is possible (earlier: exit code 4). Salted keys, and passwords in configurations, are left
    out without --secrets.

    \b
    kafkafs metadata /var/kafka --at 2026-11-20T10:15
    kafkafs metadata /var/kafka --json | jq '.topics[] | select(.topic == "orders")'
    """
    from storage.errors import UnknownTopicOrPartition
    from storage.files.cluster_metadata import ClusterMetadataReader
    from storage.files.names import CLUSTER_METADATA_TOPIC
    from storage.log.earlier import end_at
    from storage.types import TopicPartition

    use_default_signals(ctx)
    if offset is not None and at_ms is not None:
        raise click.UsageError("--offset and --at exclude each other")
    log_dir = open_log_dir(logdir)
    tp = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
    try:
        snapshot = log_dir.log(tp).snapshot()
    except UnknownTopicOrPartition:
        raise UnknownTopicOrPartition(
            "there is no metadata log here", path=logdir,
            advice="It is where metadata.log.dir says, or in the first directory of log.dirs",
        ) from None  # fmt: skip
    end = snapshot.log_end_offset if offset is None else min(offset, snapshot.log_end_offset)
    end = end if at_ms is None else min(end, end_at(snapshot, at_ms))
    reader = ClusterMetadataReader(log_dir.path)
    state, reached, problem = reader.state_before(end)
    if problem is None or reached > 0:
        facts = _facts(state, secrets)
        if as_json:
            print_json({"end_offset": reached, **facts})
        else:
            _print_state(reached, facts)
    if problem is not None:
        say(f"{logdir}: the metadata cannot be read up to offset {end}: {problem}{_known_since(reader, end)}")
        ctx.exit(DATA_ERROR)


def _known_since(reader: ClusterMetadataReader, end_offset: int) -> str:
    """A text that says from when on the state is complete; empty if it is complete at `end_offset`."""
    oldest = reader.oldest_snapshot()
    if oldest is None or oldest[0] <= end_offset:
        return ""
    return f". The state is complete from {moment(oldest[1]) or 'a later time'} on (offset {oldest[0]})"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def _shown(data: Any, secrets: bool) -> Any:
    """A record's data without secrets, its numbers by name."""
    if isinstance(data, list):
        return [_shown(item, secrets) for item in data]
    if not isinstance(data, Mapping):
        return data
    shown = {}
    for name, value in data.items():
        if name in _SECRETS and not secrets:
            continue
        named = _NAMES.get(name, {}).get(value, value) if isinstance(value, int) else _shown(value, secrets)
        shown[_snake(name)] = named
    return shown


def _config_value(key: str, value: str, secrets: bool) -> str:
    return value if secrets or not _SECRET_CONFIG.search(key) else _HIDDEN


def _acl(data: Data, secrets: bool) -> dict[str, Any]:
    return {**_shown(data, secrets), "resource_type": _ACL_RESOURCES.get(data["resourceType"], data["resourceType"])}


def _facts(state: MetadataReplay, secrets: bool) -> dict[str, Any]:
    """The facts to print; takes the partitions out of the state, since both together would take twice the memory."""
    from storage.files import metadata_records
    from storage.files.metadata_records import ResourceType, VerbatimKind

    def of(kind: str) -> list[Any]:
        return [data for (record_kind, _), data in sorted(state.others.items(), key=str) if record_kind == kind]

    configs = {
        resource: {key: _config_value(key, value, secrets) for key, value in sorted(values.items())}
        for resource, values in sorted(state.configs.items())
        if values
    }
    topics = [
        {
            "topic": data["name"],
            "topic_id": topic_id,
            "partitions": [
                {_snake(name).removesuffix("_id"): value for name, value in partition.items() if name != "topicId"}
                for _, partition in sorted(state.partitions.pop(topic_id, {}).items())
            ],
            "configs": configs.pop((ResourceType.TOPIC, data["name"]), {}),
        }
        for topic_id, data in sorted(state.topics.items(), key=lambda item: item[1]["name"])
    ]
    ids = of(metadata_records.PRODUCER_IDS)
    return {
        "features": {data["name"]: data["featureLevel"] for data in of(metadata_records.FEATURE)},
        "next_producer_id": ids[0]["nextProducerId"] if ids else None,
        "brokers": _shown(of(metadata_records.BROKER), secrets),
        "controllers": _shown(of(metadata_records.CONTROLLER), secrets),
        "topics": topics,
        "configs": [
            {"type": _CONFIG_RESOURCES.get(kind, kind), "name": name, "configs": values}
            for (kind, name), values in configs.items()
        ],
        "acls": [_acl(data, secrets) for data in of(VerbatimKind.ACL)],
        "quotas": _shown([{**data, "remove": False} for data in of(VerbatimKind.QUOTA)], secrets),
        "scram_users": _shown(of(VerbatimKind.SCRAM), secrets),
        "delegation_tokens": _shown(of(VerbatimKind.TOKEN), secrets),
    }


def _print_state(end_offset: int, facts: Mapping[str, Any]) -> None:
    features = ", ".join(f"{name} {level}" for name, level in sorted(facts["features"].items()))
    echo(f"Before offset {end_offset}; features: {features or 'none'}; next producer id: {facts['next_producer_id']}")
    nodes = [
        (kind, row[f"{kind}_id"], row.get("broker_epoch"), row.get("fenced"), row.get("rack"),
         " ".join(f"{end['name']}://{end['host']}:{end['port']}" for end in row["end_points"]),
         " ".join(row.get("log_dirs", ())))
        for kind in ("controller", "broker") for row in facts[f"{kind}s"]
    ]  # fmt: skip
    _section(("NODE", "ID", "EPOCH", "FENCED", "RACK", "LISTENERS", "LOG DIRECTORIES"), nodes)
    partitions = [
        (topic["topic"], topic["topic_id"], row["partition"], row["leader"], row["leader_epoch"],
         _list(row["replicas"]), _list(row["isr"]), " ".join(row.get("directories", ())))
        for topic in facts["topics"] for row in topic["partitions"]
    ]  # fmt: skip
    _section(("TOPIC", "ID", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "DIRECTORIES"), partitions)
    configs = [("topic", row["topic"], row["configs"]) for row in facts["topics"]]
    configs += [(row["type"], row["name"] or "<default>", row["configs"]) for row in facts["configs"]]
    lines = [(kind, name, key, value) for kind, name, values in configs for key, value in values.items()]
    _section(("CONFIGURED", "NAME", "KEY", "VALUE"), lines)
    names = ("principal", "permission_type", "operation", "resource_type", "pattern_type", "resource_name", "host")
    columns = ("PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "PATTERN", "NAME", "HOST")
    _section(columns, [[row[name] for name in names] for row in facts["acls"]])
    quotas = [
        (" ".join(f"{part['entity_type']} {part['entity_name'] or '<default>'}" for part in row["entity"]),
         row["key"], row["value"])
        for row in facts["quotas"]
    ]  # fmt: skip
    _section(("QUOTA OF", "KEY", "VALUE"), quotas)
    users = [list(row.values()) for row in facts["scram_users"]]
    _section([name.upper() for name in facts["scram_users"][0]] if users else (), users)
    tokens = facts["delegation_tokens"]
    tokens = [(row["token_id"], row["owner"], moment(row["expiration_timestamp"])) for row in tokens]
    _section(("DELEGATION TOKEN", "OWNER", "EXPIRES"), tokens)


def _section(columns: Iterable[str], rows: list[Any]) -> None:
    if rows:
        echo()
        print_table(list(columns), rows)


def _list(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
