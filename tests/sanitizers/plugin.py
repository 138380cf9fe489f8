"""What run.sh adds to pytest: every kernel comes from the tree that build.py made, and examples are new each time."""

import importlib
import os
from pathlib import Path

import pytest
from hypothesis import settings

from storage.types import is_compiled
from tests.support.fixtures import ROOT
from tests.support.uncompiled import extension_modules


@pytest.hookimpl(trylast=True)  # after tests/conftest.py, which chooses a profile too
def pytest_configure():
    for name in extension_modules():
        module = importlib.import_module(name)
        if not is_compiled(module) or Path(module.__file__).is_relative_to(ROOT):
            pytest.exit(f"{name} is not the sanitized build but {module.__file__}", returncode=3)
    # The sanitizers' shadow memory does not fit into the limit of the process that compiles Protobuf.
    os.environ.pop("LD_PRELOAD", None)
    settings.register_profile("sanitizers", max_examples=50, deadline=None, database=None)
    settings.load_profile("sanitizers")
