"""The statements of a text in SQL, as DuckDB parses them."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafkafs.arrow.error_places import in_text

if TYPE_CHECKING:
    import duckdb


# The word `offset`, unless a number follows as in LIMIT 10 OFFSET 5; texts, names and comments are matched to skip it
# in them.
_OFFSET: Final = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/)|\boffset\b(?!\s+\d)""", re.I | re.S)


class BadQuery(Exception):
    """DuckDB refuses a statement; its message says why."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement; whether it has a result (CREATE, INSERT and SET have none), whether the result comes from EXPLAIN,
    and the line of the whole text where it begins."""

    text: str
    has_result: bool
    is_plan: bool
    line: int


def statements_of(text: str, written: str | None = None) -> list[Statement]:
    """The statements of a text. OFFSET is a word of SQL, so a column of that name is quoted if the text is otherwise
    invalid. `written`: the part of it that a user wrote, by default everything. BadQuery."""
    import duckdb

    def parsed(text: str) -> list[Statement]:
        position, statements = 0, []
        for statement in duckdb.extract_statements(text):
            query = statement.query.strip()
            position = max(position, text.find(query, position))
            statements.append(_statement(statement, query, text.count("\n", 0, position) + 1))
            position += 1
        return statements

    try:
        text.encode()  # surrogates stand for bytes of a command line that are not UTF-8; DuckDB refuses them
        return parsed(text)
    except UnicodeEncodeError as error:
        raise BadQuery(str(error)) from None
    except duckdb.Error as error:
        with suppress(duckdb.Error):
            return parsed(_OFFSET.sub(lambda found: found[1] or '"offset"', text))
        raise BadQuery(in_text(error, text if written is None else written)) from None


def _statement(parsed: duckdb.Statement, text: str, line: int) -> Statement:
    import duckdb

    kinds, results = duckdb.StatementType, duckdb.ExpectedResultType
    expected = parsed.expected_result_type
    # DuckDB returns the number of changed rows like a row of a result.
    has_result = results.QUERY_RESULT in expected and results.CHANGED_ROWS not in expected
    if parsed.type == kinds.MULTI:  # PIVOT
        has_result = True
    elif parsed.type in (kinds.INSERT, kinds.UPDATE, kinds.DELETE, kinds.MERGE_INTO):
        has_result = "returning" in text.casefold()
    return Statement(text, has_result, parsed.type == kinds.EXPLAIN, line)
