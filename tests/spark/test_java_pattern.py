"""Patterns of topics: matches are those of Java's Pattern, or the pattern is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafkafs.spark.java_pattern import UnknownPattern, compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ["clicks", "click", "Clicks", "orders", "a.b", "a-b", "a_b", "x1", "tx", "42", "aab", "abab", "ORDERS.v2", "."]

# Java compiles all of these.
KNOWN = [
    "click", "^click$", "cl.*", "clicks|tx", "a.b", r"a\.b", "s$", "^x", "", "()", "(a)(b)?", "(?:a|x).", "[a-c]+$",
    "[^a-z]", "[]a]", "[a-]", "[-a]b", "[a-z&&[^x]]+$", "^[a-z&&[^aeiou]]+$", "[a-z&&c&&b-d]", "[^a-z&&[a-c]]",
    "[a[0-9]]$", r"[\d.]", r"[\w&&[^\d]]$", r"\p{Lower}+$", r"^\p{Upper}", r"\P{Lower}", r"^\p{Alpha}+$", r"\p{Punct}",
    r"\p{Lu}", r"\pL\pN", r"\p{IsAlphabetic}$", r"\p{javaUpperCase}", r"^\p{IsLatin}+$", r"\p{Pd}", "a++b", "^a*+b",
    "a{2}", "^.{2,4}$", "a{1,}?b", "(?<n>a)b", r"(?<n>ab)\k<n>", r"(ab)\1", r"\Qa.b\E", r"\Q.\E+$", r"\Qa.b",
    "(?i)click", "(?i)[a-c]L", "(?i:CLICK)s", "(?i)c(?-i:L)", "(?s).+", "(?m)^tx$", "(?u)tx", r"\Aclick\z", r"click\Z",
    r"\bb\b", "a(?=b)", "a(?!b)", "(?<=a)b", "(?<!a)b$", "(?>a+)b", r"\x61b", r"\u0061b", r"\x{61}b", r"\0141b", r"\t",
    r"\h", r"\H", r"\_", r"\-", "[.]", "]", "}", "^$", "[a-z]{2}?$", r"[\Qab\E]x*1", "a|", r"\d+", r"^\D+$", r"\W",
    r"^\S+$", "#", "a b", "(?i)x(1)", "[+--]", r"\p{L}+\p{Nd}", "((a)(b))", "(a|b)+$", "é|tx", "(?i)[^a-z]$",
]  # fmt: skip
# Malformed patterns, and syntax that only one of Java and Python has, or that has another meaning in the other.
REFUSED = [
    "(cl", "cl)", "[a", "*a", "a**", "a{,3}", "a{", "{", "(?P<n>a)", "(?#note)a", "(a)?(?(1)b|c)", r"\G", r"\R", r"\X",
    r"\N{DIGIT ONE}", "(?x)a b", "(?U)a", "a(?i)b", r"\p{InGreek}", r"\p{Unheard}", r"\y", "a\\", "[b-a]", "[a&&]",
    "(?<1>a)", r"(?<=a+)b", r"(a)\12", "(?i)(?-i)c",
]  # fmt: skip


@pytest.mark.parametrize("pattern", KNOWN)
def test_what_java_finds_is_found(found_by_java: dict[str, list[str]], pattern: str) -> None:
    assert [name for name in NAMES if compiled(pattern).search(name)] == found_by_java[pattern]


@pytest.fixture(scope="module")
def found_by_java(spark: SparkSession) -> dict[str, list[str]]:
    """By pattern: Spark's rlike is Matcher.find."""
    pairs = spark.createDataFrame([(p, n) for p in KNOWN for n in NAMES], "pattern string, name string")
    found: dict[str, list[str]] = {pattern: [] for pattern in KNOWN}
    for pattern, name in pairs.where("name rlike pattern").collect():
        found[pattern].append(name)
    return {pattern: sorted(names, key=NAMES.index) for pattern, names in found.items()}


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_is_not_understood_is_refused(pattern: str) -> None:
    with pytest.raises(UnknownPattern):
        compiled(pattern)
