"""One broker for all tests here, its live directory mounted twice, and a check that its log stays free of errors."""

from __future__ import annotations

import pytest

from tests.interop.client import Client
from tests.interop.kafka import Broker
from tests.support.mounts import mounted


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    running = Broker(tmp_path_factory.mktemp("broker"))
    try:
        running.start()
        yield running
        running.stop()
        assert running.complaints() == []
    finally:
        running.kill()


@pytest.fixture(scope="session")
def client(broker):
    return Client(broker.address)


@pytest.fixture(scope="session")
def live(broker, tmp_path_factory):
    """The running broker's directory, mounted read-only."""
    with mounted(broker.log_dir, tmp_path_factory.mktemp("live") / "mnt") as tree:
        yield tree


@pytest.fixture(autouse=True)
def the_broker_does_not_notice(request):
    """After each test on the shared broker its log holds no error."""
    yield
    if "broker" in request.fixturenames:
        running = request.getfixturevalue("broker")
        assert running.complaints() == []
