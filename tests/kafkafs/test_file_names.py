"""Names as file names."""

from __future__ import annotations

from unicodedata import category

from hypothesis import given
from hypothesis import strategies as st

from kafkafs.file_names import decoded_name, encoded_name


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_names_go_there_and_back(text: str) -> None:
    name = encoded_name(text)
    assert name
    assert "/" not in name
    assert not name.startswith(".")
    assert not {category(char) for char in name} & {"Cc", "Cf"}
    assert decoded_name(name) == text


def test_what_a_terminal_obeys_is_encoded() -> None:
    assert encoded_name("a\x1b[2J\u202e\x7fü b") == "a%1B[2J%E2%80%AE%7Fü b"


@given(st.text(alphabet="%/2Ff.x@\x1b1Bb", max_size=8))
def test_a_name_has_one_encoded_form(name: str) -> None:
    try:
        text = decoded_name(name)
    except ValueError:
        return
    assert encoded_name(text) == name
