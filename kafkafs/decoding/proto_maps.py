"""Sorting a Protobuf map's entries in JSON by their keys.

The protobuf library's order differs between processes, but a view must show the same bytes to all readers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkafs.decoding.proto_any import (
    ANY,
    without_marks,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]


_LIBRARYS_OWN = "google.protobuf."


def in_order(fields: Any, kind: Any) -> Any:
    """Return the JSON value of a message of the type `kind` (a descriptor), with all its maps sorted."""
    if kind.full_name == ANY:
        return _sorted(fields, is_any=True)
    if kind.full_name.startswith(_LIBRARYS_OWN):
        return _sorted(fields)  # Struct is a map
    if not _may_have_maps(kind):
        return fields
    for field in kind.fields:
        below = field.message_type
        if below is None or field.name not in fields:
            continue
        content = fields[field.name]
        if below.GetOptions().map_entry:
            value_type = below.fields_by_name["value"].message_type
            content = {
                key: content[key] if value_type is None else in_order(content[key], value_type)
                for key in sorted(content)
            }
        elif isinstance(content, list) and not below.full_name.startswith(_LIBRARYS_OWN):
            content = [in_order(item, below) for item in content]
        else:
            content = in_order(content, below)
        fields[field.name] = content
    return fields


def _sorted(value: Any, *, is_any: bool = False) -> Any:
    """The value with all its objects sorted. `is_any`: the value within an Any may be another Any."""
    if isinstance(value, dict):
        value = without_marks(value) if is_any else value
        return {key: _sorted(value[key], is_any=is_any) for key in sorted(value)}
    return [_sorted(item, is_any=is_any) for item in value] if isinstance(value, list) else value


@lru_cache(maxsize=4096)
def _may_have_maps(kind: Any) -> bool:
    """Whether a message of this type may hold a map at any depth."""
    seen, waiting = {kind.full_name}, [kind]
    while waiting:
        for field in waiting.pop().fields:
            below = field.message_type
            if below is None or below.full_name in seen:
                continue
            if below.GetOptions().map_entry or below.full_name in (f"{_LIBRARYS_OWN}Struct", f"{_LIBRARYS_OWN}Any"):
                return True
            if below.full_name in (f"{_LIBRARYS_OWN}Value", f"{_LIBRARYS_OWN}ListValue"):
                return True
            seen.add(below.full_name)
            waiting.append(below)
    return False
