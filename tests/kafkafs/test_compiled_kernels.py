"""The list of kernels, and what the build compiles."""

import sys
import tomllib
from pathlib import Path
from types import ModuleType

from kafkafs.compiled_kernels import KERNELS, loaded, uncompiled
from storage.format.compression import Codec
from tests.support.live_log import LiveLog
from tests.support.reference_views import content, tree_of
from tests.support.uncompiled import plain_kernels

ROOT = Path(__file__).resolve().parents[2]


def test_all_kernels_are_named():
    with (ROOT / "pyproject.toml").open("rb") as file:
        tool = tomllib.load(file)["tool"]
    modules = tool["setuptools"]["ext-modules"]
    # One module is not a kernel: it holds what Cython's modules share, and has no Python source.
    assert sorted(KERNELS) == sorted(module["name"] for module in modules if module["sources"][0].endswith(".py"))
    assert any(sorted(KERNELS) == sorted(override["module"]) for override in tool["mypy"]["overrides"])


def test_kernels_are_compiled():
    assert not uncompiled()
    assert loaded() == dict.fromkeys(sorted(KERNELS), "compiled")


def test_a_kernel_that_another_thread_is_importing_is_not_loaded_yet(monkeypatch):
    first, *others = sorted(KERNELS)
    assert not uncompiled()
    monkeypatch.setitem(sys.modules, first, ModuleType(first))
    assert list(loaded()) == others


def test_the_plain_forms_of_all_kernels(tmp_path):
    live = LiveLog(tmp_path / "log", Codec.GZIP)
    live.write_segments(60, 20)
    with plain_kernels():
        tree = tree_of(live.path.parent)
        assert content(tree, "/t/0/offsets/15-70.txt") == live.text(lambda offset, _: 15 <= offset <= 70)
        assert content(tree, "/t/0/messages.txt") == live.text()
        assert content(tree, "/t/0/time/2023-11-14.txt") == live.text()
