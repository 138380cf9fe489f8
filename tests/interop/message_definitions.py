"""Makes `storage/format/message_definitions.txt` from Kafka's jars: `python -m tests.interop.message_definitions JARS`.

The jars hold the definitions as JSON with comments. Of each message that the topics of Kafka itself consist of, a line
is made; storage/format/messages.py says how it reads. Records of MirrorMaker have no definitions in files.
"""

import json
import re
import sys
import zipfile
from pathlib import Path

HEADER = """\
# The messages that the topics of Kafka itself consist of. Derived by tests/interop/message_definitions.py from the
# message definitions of Apache Kafka 4.4.0 (Apache License 2.0, Copyright the Apache Software Foundation).
# GROUP ROLE TYPE NAME VERSIONS FLEXIBLE_VERSIONS FIELD...; FIELD is name:type:versions, then :n=versions where it may
# be null, :t=tag/versions where it is tagged, :d=default; the fields of a struct follow in braces.
"""
# Of each jar: the directory, and which group of messages its definitions belong to.
_JARS = {
    "kafka-group-coordinator": ("common/message/", "__consumer_offsets"),
    "kafka-transaction-coordinator": ("common/message/", "__transaction_state"),
    "kafka-share-coordinator": ("common/message/", "__share_group_state"),
    "kafka-metadata": ("common/metadata/", "__cluster_metadata"),
    "kafka-storage": ("message/", "__remote_log_metadata"),
    "kafka-clients": ("common/message/", ""),
}
# Those of kafka-clients: control records by their type (ControlRecordType), and what members of classic groups send.
_CLIENTS = {
    "EndTxnMarker": [("control", 0, "ABORT"), ("control", 1, "COMMIT")],
    "LeaderChangeMessage": [("control", 2, "LEADER_CHANGE")],
    "SnapshotHeaderRecord": [("control", 3, "SNAPSHOT_HEADER")],
    "SnapshotFooterRecord": [("control", 4, "SNAPSHOT_FOOTER")],
    "KRaftVersionRecord": [("control", 5, "KRAFT_VERSION")],
    "VotersRecord": [("control", 6, "KRAFT_VOTERS")],
    "ConsumerProtocolSubscription": [("subscription", 0, "ConsumerProtocolSubscription")],
    "ConsumerProtocolAssignment": [("assignment", 0, "ConsumerProtocolAssignment")],
}
# Of the classes OffsetSync, Checkpoint and Heartbeat of connect-mirror-client.
_MIRROR = """\
checkpoints key 0 Checkpoint 0 none consumerGroupId:string:0+ topic:string:0+ partition:int32:0+
checkpoints value 0 Checkpoint 0 none upstreamOffset:int64:0+ offset:int64:0+ metadata:string:0+
heartbeats key 0 Heartbeat 0 none sourceClusterAlias:string:0+ targetClusterAlias:string:0+
heartbeats value 0 Heartbeat 0 none timestamp:int64:0+
"""


def definitions(jars):
    """The definitions that are needed, each with its `group`."""
    for jar, (directory, group) in _JARS.items():
        (path,) = (path for path in jars.glob(f"{jar}-[0-9]*.jar") if not path.stem.endswith("-test"))
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.startswith(directory) and name.endswith(".json"):
                    found = json.loads(re.sub(r"^\s*//.*$|\s//.*$", "", archive.read(name).decode(), flags=re.M))
                    if found["type"] in ("coordinator-key", "coordinator-value", "metadata", "data"):
                        yield {"group": group, **found}


def lines(jars):
    """A line for each message, sorted."""
    made = []
    for one in definitions(jars):
        name = one["name"]
        match one["type"]:
            case "coordinator-key" | "coordinator-value" as role:
                short = name.removesuffix("Key").removesuffix("Value")
                made.append(_line((one["group"], role.removeprefix("coordinator-"), one["apiKey"], short), one))
            case "metadata":
                made.append(_line((one["group"], "value", one["apiKey"], _constant(name)), one))
            case "data" if one["group"] == "__remote_log_metadata" and "apiKey" in one:
                made.append(_line((one["group"], "value", one["apiKey"], _constant(name)), one))
            case "data" if not one["group"]:
                for group, number, short in _CLIENTS.get(name, ()):
                    made.append(_line((group, "value", number, short), one))
    return sorted([*made, *_MIRROR.splitlines()], key=_order)


def _order(line):
    group, role, number, *_ = line.split()
    return group, int(number), role


def _constant(name):
    """TopicRecord: TOPIC_RECORD, as the enumerations of record types name it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


def _line(head, message):
    structs = {one["name"]: one["fields"] for one in message.get("commonStructs", ())}
    fields = _fields(message["fields"], structs)
    return " ".join(map(str, (*head, message["validVersions"], message["flexibleVersions"], *fields)))


def _fields(fields, structs):
    for field in fields:
        name = field["name"][0].lower() + field["name"][1:]
        text = f"{name}:{field['type']}:{field.get('versions', field.get('taggedVersions'))}"
        if "nullableVersions" in field:
            text += f":n={field['nullableVersions']}"
        if "tag" in field:
            text += f":t={field['tag']}/{field['taggedVersions']}"
        if field.get("default") not in (None, ""):
            text += f":d={field['default']}"
        yield text
        inner = field.get("fields") or structs.get(field["type"].removeprefix("[]"))
        if inner is not None:
            yield from ("{", *_fields(inner, structs), "}")


if __name__ == "__main__":
    sys.stdout.write(HEADER + "\n".join(lines(Path(sys.argv[1]))) + "\n")
