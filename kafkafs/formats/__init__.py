"""Formats: how a message becomes bytes. `log` is not a format: its bytes are the log's own and are never rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafs.formats.format import Format
    from storage.types import TopicPartition


def by_name(name: str, tp: TopicPartition) -> Format:
    """The format `txt` or `jsonl`, or that of a template (a text with a `%` or a backslash). Raises
    `templates.BadTemplate`."""
    if name == "txt":
        from kafkafs.formats.txt import Txt

        return Txt()
    if name == "jsonl":
        from kafkafs.formats.jsonl import Jsonl

        return Jsonl(tp)
    from kafkafs.formats.templates import BadTemplate, template

    if "%" not in name and "\\" not in name:
        known = r"txt, jsonl, decoded, log, and templates like '%o %T %k %s\n'"
        raise BadTemplate(f"unknown format {name!r}; there are {known}")
    return template(name, tp)
