"""A version of a subject as a line of the import file, which `kafkafs schemas --to` writes: to the line and back."""

from __future__ import annotations

import json
from typing import Any

from kafkafs.schemas.registry import SubjectVersion
from kafkafs.schemas.registry_replay import RegistryReplay
from storage.errors import CorruptData


def import_line(entry: SubjectVersion) -> dict[str, Any]:
    """A version as a line of the import file. Its `body` is the body of a registry's POST /subjects/SUBJECT/versions in
    the mode IMPORT."""
    schema = entry.schema
    body: dict[str, Any] = {"version": entry.version, "id": schema.schema_id, "schemaType": schema.schema_type}
    if schema.references:
        body["references"] = [
            {"name": reference.name, "subject": reference.subject, "version": reference.version}
            for reference in schema.references
        ]
    if entry.metadata is not None:
        body["metadata"] = entry.metadata
    if entry.rule_set is not None:
        body["ruleSet"] = entry.rule_set
    return {
        "subject": entry.subject,
        "state": entry.state.value,
        "timestamp": entry.timestamp,
        "body": {**body, "schema": schema.text},
    }


def apply_import(replay: RegistryReplay, line: bytes, number: int) -> None:
    """Apply a line of the import file to the replay. CorruptData."""
    try:
        entry = json.loads(line)
        body, state = entry["body"], entry.get("state", "live")
        key = json.dumps({"keytype": "SCHEMA", "subject": entry["subject"], "version": body["version"]}).encode()
        value = json.dumps({**body, "deleted": state == "soft-deleted"}).encode()
        timestamp = int(entry.get("timestamp", -1))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptData(f"line {number} is not a schema: {type(error).__name__}: {error}") from None
    replay.apply(key, value, number - 1, timestamp)
    if state == "hard-deleted":
        replay.apply(key, None, number - 1, timestamp)
