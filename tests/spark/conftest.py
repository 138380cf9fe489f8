"""One Spark session for all tests here."""

import pytest


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    """Marks the tests that use the session, so that one worker starts it and runs them all (`--dist loadgroup`)."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            for mark in (pytest.mark.spark, pytest.mark.xdist_group("spark")):
                item.add_marker(mark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A session with two task slots that knows the format `kafkafs`."""
    from tests.spark.session import start_session

    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
