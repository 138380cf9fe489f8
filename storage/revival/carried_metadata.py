"""Which of the old cluster's metadata, besides topics, a new cluster takes over.

Configurations of brokers, groups and client metrics, quotas, ACLs, SCRAM credentials and delegation tokens are in the
metadata log. They are taken over if a broker of one node works with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from storage.files.metadata_records import ResourceType, VerbatimKind
from storage.files.metadata_replay import ClusterMetadata

_SECURITY: Final = (VerbatimKind.ACL, VerbatimKind.SCRAM, VerbatimKind.TOKEN)
# The new broker listens in plain text, is alone, and keeps all messages. With these settings it would not start, would
# refuse messages with acks=all, or would remove old messages. Also names of classes and files that may be missing.
_LEFT_OUT: Final = (
    "listener", "advertised.", "inter.broker.", "ssl.", "sasl.", "principal.", "metric.reporters", "min.insync.",
    "default.replication.", "leader.replication.", "follower.replication.", "log.retention.",
)  # fmt: skip
_SHOWN = 5


def carried(cluster: ClusterMetadata, node_id: int, *, without_security: bool) -> ClusterMetadata:
    """The part of a cluster's metadata that a new cluster of this one node gets: its features, and no topics."""
    own = cluster.brokers.get(node_id)
    return replace(
        cluster,
        topics={},
        broker_defaults=_fit(cluster.broker_defaults),
        brokers={} if own is None else {node_id: _fit(own)},
        verbatim=tuple(record for record in cluster.verbatim if not without_security or record.kind not in _SECURITY),
    )


def carried_notes(cluster: ClusterMetadata, kept: ClusterMetadata) -> Iterator[str]:
    """Notes for people about the metadata: what was taken over, and the names of what was left out."""
    for kind in VerbatimKind:
        had = [record.name for record in cluster.verbatim if record.kind is kind]
        has = [record.name for record in kept.verbatim if record.kind is kind]
        if had:
            yield f"{kind.value}: {len(has)} of {len(had)} carried over ({shortened_list(sorted(set(had)))})"
        if has and kind is VerbatimKind.ACL:
            yield "no broker enforces ACLs before its server.properties names an authorizer.class.name"
        if has and kind is VerbatimKind.TOKEN:
            yield "delegation tokens need the old delegation.token.secret.key in server.properties"
    for what, before, after in _configs(cluster, kept):
        if after:
            yield f"dynamic configuration of {what}: carried over: {shortened_list(sorted(after))}"
        if before.keys() - after.keys():
            yield f"dynamic configuration of {what}: left out: {shortened_list(sorted(before.keys() - after.keys()))}"


def _configs(
    cluster: ClusterMetadata, kept: ClusterMetadata
) -> Iterator[tuple[str, Mapping[str, str], Mapping[str, str]]]:
    yield "all brokers", cluster.broker_defaults, kept.broker_defaults
    for node, values in sorted(cluster.brokers.items()):
        yield f"broker {node}", values, kept.brokers.get(node, {})
    for (kind, name), values in sorted(cluster.other_configs.items()):
        known = kind in list(ResourceType)
        what = ResourceType(kind).name.lower().replace("_", " ") if known else f"resource type {kind},"
        yield f"{what} {name}", values, kept.other_configs.get((kind, name), {})


def _fit(values: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if not key.startswith(_LEFT_OUT)}


def shortened_list(names: Sequence[object]) -> str:
    return ", ".join(map(str, names[:_SHOWN])) + (" …" if len(names) > _SHOWN else "")
