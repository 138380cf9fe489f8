"""The list of kernels, and what the build compiles."""

from __future__ import annotations

import tomllib
from pathlib import Path

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
