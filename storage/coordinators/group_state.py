"""A group's members and their assignments, as its coordinator would describe them after a start.

For the classic protocol the last rebalance is recorded; for the newer ones (KIP-848, KIP-932, KIP-1071) each member
with its target and its current assignment. Sources: Kafka's ClassicGroup, ConsumerGroup.maybeUpdateGroupState,
ShareGroup, StreamsGroup, MemberState.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from storage.coordinators.groups import ConsumerGroup
from storage.coordinators.offset_records import GroupType
from storage.errors import StorageError
from storage.format.messages import messages

# By group type, the types of five records: the group's epoch, its assignment's epoch, and a member's metadata, target
# assignment and current assignment.
_KINDS: Final = {GroupType.CONSUMER: (3, 6, 5, 7, 8), GroupType.SHARE: (11, 12, 10, 13, 14),
                 GroupType.STREAMS: (17, 20, 19, 21, 22)}  # fmt: skip
_REGULAR_EXPRESSION, _TOPOLOGY, _SHARE_PARTITIONS = 16, 23, 15
_MEMBER_STATES: Final = {0: "Stable", 1: "UnrevokedPartitions", 2: "UnreleasedPartitions", 127: "Unknown"}
_TASKS: Final = ("activeTasks", "standbyTasks", "warmupTasks")

_Names = Mapping[str, str]


def state_of(group: ConsumerGroup, topics_by_id: Callable[[], _Names]) -> dict[str, Any]:
    """The content of `@state.json` (kafkafs/CONTRACT.md, "Groups"). `topics_by_id`: called where ids are recorded."""
    if group.type is GroupType.CLASSIC:
        return {"group": group.name, "type": "classic", **_classic(group)}
    names = topics_by_id()
    epoch_kind, target_kind, *member_kinds = _KINDS[group.type]
    whole = {record.kind: record.data for record in group.records}
    epoch, target = whole.get(epoch_kind, {}).get("epoch"), whole.get(target_kind, {}).get("assignmentEpoch")
    parts: dict[str, dict[int, Mapping[str, Any]]] = {}
    for record in group.records:
        if record.kind in member_kinds:
            parts.setdefault(record.key["memberId"], {})[record.kind] = record.data
    members = [_member(name, [of.get(kind, {}) for kind in member_kinds], names) for name, of in sorted(parts.items())]
    state: dict[str, Any] = {
        "group": group.name,
        "type": str(group.type),
        "state": _state(group.type, epoch, target, members),
        "epoch": epoch,
        "assignment_epoch": target,
        "members": members,
    }
    expressions = {
        entry.key["regularExpression"]: entry.data.get("topics")
        for entry in group.records
        if entry.kind == _REGULAR_EXPRESSION
    }
    if expressions:
        state["regular_expressions"] = expressions
    if _TOPOLOGY in whole:
        state["topology"] = whole[_TOPOLOGY]
    if _SHARE_PARTITIONS in whole:
        state["initialized_partitions"] = [
            {"topic": entry["topicName"], "topic_id": entry["topicId"], "partitions": entry["partitions"]}
            for entry in whole[_SHARE_PARTITIONS].get("initializedTopics", ())
        ]
    return state


def _classic(group: ConsumerGroup) -> dict[str, Any]:
    known = group.metadata
    if known is None:  # of a consumer that only commits
        return {"state": "Empty", "protocol_type": None, "protocol": None, "generation": None, "leader": None,
                "members": []}  # fmt: skip
    is_consumers = known["protocolType"] == "consumer"
    members = []
    for recorded in known["members"]:
        subscription = _opened("subscription", recorded["subscription"], is_consumers)
        assignment = _opened("assignment", recorded["assignment"], is_consumers)
        member = {
            "member_id": recorded["memberId"],
            "group_instance_id": recorded.get("groupInstanceId"),
            "client_id": recorded["clientId"],
            "client_host": recorded["clientHost"],
        }
        if isinstance(subscription, Mapping):
            member["subscribed_topics"] = subscription["topics"]
        else:
            member["subscription"] = subscription
        if isinstance(assignment, Mapping):
            assignment = assignment["assignedPartitions"]
        members.append({**member, "assignment": assignment})
    return {
        "state": "Stable" if members else "Empty",
        "protocol_type": known["protocolType"],
        "protocol": known["protocol"],
        "generation": known["generation"],
        "leader": known["leader"],
        "members": members,
    }


def _opened(what: str, text: str, is_consumers: bool) -> Any:
    """The decoded bytes of a client of the consumer protocol; base64 for other clients, and for bytes that do not
    decode."""
    data = base64.b64decode(text)
    if not is_consumers:
        return text
    try:
        return messages(what).one(None, data)[1]["data"] if data else {"topics": [], "assignedPartitions": []}
    except StorageError:
        return text


def _member(name: str, parts: Sequence[Mapping[str, Any]], names: _Names) -> dict[str, Any]:
    about, target, current = parts
    member = {
        "member_id": name,
        "group_instance_id": about.get("instanceId"),
        "client_id": about.get("clientId"),
        "client_host": about.get("clientHost"),
        "rack": about.get("rackId"),
        "state": _MEMBER_STATES.get(current.get("state", 127), "Unknown"),
        "member_epoch": current.get("memberEpoch"),
    }
    if "subscribedTopicNames" in about:
        member["subscribed_topics"] = about["subscribedTopicNames"]
        if about.get("subscribedTopicRegex"):
            member["subscribed_expression"] = about["subscribedTopicRegex"]
        member["assignment"] = _partitions(current.get("assignedPartitions", ()), names)
        member["target_assignment"] = _partitions(target.get("topicPartitions", ()), names)
    else:
        member["process_id"], member["topology_epoch"] = about.get("processId"), about.get("topologyEpoch")
        for side, of in (("assignment", current), ("target_assignment", target)):
            member[side] = {
                kind.removesuffix("Tasks"): [
                    {"subtopology": tasks["subtopologyId"], "partitions": tasks["partitions"]}
                    for tasks in of.get(kind, ())
                ]
                for kind in _TASKS
            }
    return member


def _partitions(topics: Sequence[Mapping[str, Any]], names: _Names) -> list[dict[str, Any]]:
    return [
        {"topic": names.get(topic["topicId"]), "topic_id": topic["topicId"], "partitions": topic["partitions"]}
        for topic in topics
    ]


def _state(kind: GroupType, epoch: int | None, target: int | None, members: Sequence[Mapping[str, Any]]) -> str:
    if not members:
        return "Empty"
    if kind is GroupType.SHARE:
        return "Stable"
    if (epoch or 0) > (target or 0):
        return "Assigning"
    stable = all(member["state"] == "Stable" and member["member_epoch"] == target for member in members)
    return "Stable" if stable else "Reconciling"
