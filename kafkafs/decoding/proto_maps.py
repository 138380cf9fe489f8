"""The order of a Protobuf map's entries in JSON: that of their keys.

The protobuf library gives them in an order that differs between processes. A view must show the same bytes to all.
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
    """The JSON value of a message of the type `kind` (a descriptor), with all maps in it in order."""
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
        found = fields[field.name]
        if below.GetOptions().map_entry:
            value_type = below.fields_by_name["value"].message_type
            found = {
                key: found[key] if value_type is None else in_order(found[key], value_type) for key in sorted(found)
            }
        elif isinstance(found, list) and not below.full_name.startswith(_LIBRARYS_OWN):
            found = [in_order(one, below) for one in found]
        else:
            found = in_order(found, below)
        fields[field.name] = found
    return fields


def _sorted(value: Any, *, is_any: bool = False) -> Any:
    """With all objects in order. `is_any`: what is within an Any may be another one."""
    if isinstance(value, dict):
        value = without_marks(value) if is_any else value
        return {key: _sorted(value[key], is_any=is_any) for key in sorted(value)}
    return [_sorted(one, is_any=is_any) for one in value] if isinstance(value, list) else value


@lru_cache(maxsize=4096)
def _may_have_maps(kind: Any) -> bool:
    """Whether a message of this type may hold a map, at any depth."""
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
