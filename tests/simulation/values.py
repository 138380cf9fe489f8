"""Frozen values whose text is as short as the expression that makes them: plans are printed as tests."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T", bound=type)


@dataclass_transform(frozen_default=True)
def value(kind: T) -> T:
    """A frozen dataclass; its repr leaves out fields that have their default."""
    made: Any = dataclasses.dataclass(frozen=True, repr=False)(kind)
    made.__repr__ = _short
    return made  # type: ignore[no-any-return]


def _short(self: Any) -> str:
    parts = []
    for number, field in enumerate(dataclasses.fields(self)):
        found = getattr(self, field.name)
        if field.default is not dataclasses.MISSING and found == field.default:
            continue
        required = field.default is dataclasses.MISSING and number == len(parts)
        parts.append(repr(found) if required else f"{field.name}={found!r}")
    return f"{type(self).__name__}({', '.join(parts)})"
