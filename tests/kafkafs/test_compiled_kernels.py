"""The list of kernels, and what the build compiles."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from kafkafs.compiled_kernels import KERNELS, loaded, uncompiled

ROOT = Path(__file__).resolve().parents[2]


def test_all_kernels_are_named() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        tool = tomllib.load(file)["tool"]
    modules = tool["setuptools"]["ext-modules"]
    # One module is not a kernel: it holds what Cython's modules share, and has no Python source.
    assert sorted(KERNELS) == sorted(module["name"] for module in modules if module["sources"][0].endswith(".py"))
    assert any(sorted(KERNELS) == sorted(override["module"]) for override in tool["mypy"]["overrides"])


def test_kernels_are_compiled() -> None:
    assert not uncompiled()
    assert loaded() == dict.fromkeys(sorted(KERNELS), "compiled")


def test_a_kernel_that_another_thread_is_importing_is_not_loaded_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    name = KERNELS[-1]
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert name not in loaded()
    monkeypatch.delitem(sys.modules, name)
    importlib.import_module(name)
    assert name in loaded()
