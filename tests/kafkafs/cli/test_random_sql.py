"""Random SQL statements in every form, with a fixed seed; `python -m tests.kafkafs.cli.random_sql` has more."""

import pytest

pytest.importorskip("duckdb", reason="no duckdb: install the extra `sql`")
pytest.importorskip("polars", reason="no polars")


def test_random_statements():
    from tests.kafkafs.cli.random_sql import check_random

    assert list(check_random(40, seed=1)) == []
