"""Frozen values whose text is as short as the expression that makes them: plans are printed as tests."""

from __future__ import annotations

import dataclasses
from typing import TypeVar, dataclass_transform

T = TypeVar("T", bound=type)


@dataclass_transform(frozen_default=True)
def value(kind):
    """A frozen dataclass; its repr leaves out fields that have their default."""
    made = dataclasses.dataclass(frozen=True, repr=False)(kind)
    made.__repr__ = _short
    return made


def _short(self):
    parts = []
    for number, field in enumerate(dataclasses.fields(self)):
        found = getattr(self, field.name)
        if field.default is not dataclasses.MISSING and found == field.default:
            continue
        required = field.default is dataclasses.MISSING and number == len(parts)
        parts.append(repr(found) if required else f"{field.name}={found!r}")
    return f"{type(self).__name__}({', '.join(parts)})"
