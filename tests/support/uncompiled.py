"""Kernels as plain Python, to compare their compiled forms with."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

from tests.support.fixtures import ROOT


@cache
def uncompiled(name: str) -> ModuleType:
    """The module `name` from its .py file even if its extension module is built; under another name."""
    path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"uncompiled.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def extension_modules() -> tuple[str, ...]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    modules = project["tool"]["setuptools"]["ext-modules"]
    return tuple(module["name"] for module in modules if module["sources"][0].endswith(".py"))


@contextmanager
def plain_kernels() -> Iterator[None]:
    """In the body, all modules loaded so far use the plain forms of every kernel."""
    forms = {id(sys.modules[name]): uncompiled(name) for name in extension_modules() if name in sys.modules}
    replaced = [
        (module, attribute, value)
        for name, module in list(sys.modules.items())
        if name.startswith(("storage.", "kafkafs."))
        for attribute, value in list(vars(module).items())
        if id(value) in forms
    ]
    for module, attribute, value in replaced:
        setattr(module, attribute, forms[id(value)])
    try:
        yield
    finally:
        for module, attribute, value in replaced:
            setattr(module, attribute, value)
