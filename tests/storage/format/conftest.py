"""A fixture for tests that run with the kernels as they are installed, and again with all of them as plain Python."""

from contextlib import nullcontext

import pytest

from tests.support.uncompiled import plain_kernels


@pytest.fixture(params=["as installed", "plain"])
def both_forms(request):
    with plain_kernels() if request.param == "plain" else nullcontext():
        yield
