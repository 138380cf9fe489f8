"""Kernels as plain Python, to hold their compiled forms against."""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

from tests.fixtures import ROOT


@cache
def uncompiled(name: str) -> ModuleType:
    """The module `name` from its .py file even where the extension module is built; under a name of its own."""
    path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"uncompiled.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
