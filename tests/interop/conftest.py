"""One broker for all tests here, its live directory mounted, and a check that its log stays free of errors."""

import pytest

from tests.interop.client import Client
from tests.interop.kafka import Broker
from tests.support.mounts import mounted


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory):
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        running.start()
        yield running
        running.stop()
        assert running.complaints() == []


@pytest.fixture
def broker(shared_broker):
    """After each test its log holds no error."""
    yield shared_broker
    assert shared_broker.complaints() == []


@pytest.fixture
def own_broker(request, tmp_path):
    """A broker for one test, with the module's SETTINGS."""
    with Broker(tmp_path / "broker", request.module.SETTINGS) as running:
        yield running
        assert running.complaints() == []


@pytest.fixture
def client(broker):
    return Client(broker.address)


@pytest.fixture(scope="session")
def live(shared_broker, tmp_path_factory):
    """The running broker's directory, mounted read-only."""
    with mounted(shared_broker.log_dir, tmp_path_factory.mktemp("live") / "mnt") as tree:
        yield tree
