"""One Spark session for all tests here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two task slots that knows the format `kafkafs`."""
    from tests.spark.session import start_session

    with pytest.MonkeyPatch.context() as patch:
        # Workers need the disks of tests, and do not import from the working directory once a command has run.
        root = str(Path(__file__).parents[2])
        patch.setenv("PYTHONPATH", root, prepend=os.pathsep)
        session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
