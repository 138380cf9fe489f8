"""One Spark session for all tests here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package", autouse=True)
def workers_know_the_tests() -> Iterator[None]:
    """Workers get disks of tests. All tests of a process share a JVM, and where a command has started it, its workers
    do not import from the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two task slots that knows the format `kafkafs`."""
    from tests.spark.session import start_session

    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
