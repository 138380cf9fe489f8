"""Numbers on the command line."""

from __future__ import annotations

import pytest

from kafkafs.cli.shared_options import whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("000", 0),
        ("00000000000000000100", 100),  # the base offset of a segment, as in its name
        ("2147483647", 2**31 - 1),
        ("2147483648", None),
        ("9" * 10_000, None),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1_000", None),
        ("²", None),
        ("٣", None),
    ],
)
def test_whole_number(text: str, number: int | None) -> None:
    assert whole_number(text, 2**31 - 1) == number
