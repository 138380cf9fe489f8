"""DuckDB's errors with the place in the text that a user wrote: DuckDB runs SQL in which that text is only a part."""

from __future__ import annotations

import re

_PLACE = re.compile(r"\n*\nLINE (\d+): ([^\n]*)(?:\n( *)(\^[^\n]*))?")


def in_text(error: Exception, text: str, first_line: int = 1) -> str:
    """An error's message, whose line is that of the text, which begins at `first_line`; without a line that is not of
    the text."""

    def placed(place: re.Match[str]) -> str:
        number, excerpt, indent, marks = int(place[1]), place[2], place[3], place[4]
        part = excerpt.removeprefix("...").removesuffix("...")
        numbers = [number for number, line in enumerate(text.split("\n"), 1) if part in line]
        if not numbers:
            return ""
        nearest = min(numbers, key=lambda candidate: abs(candidate - number))
        before = f"LINE {nearest + first_line - 1}: "
        line = f"\n\n{before}{excerpt}"
        moved = len(before) - len(f"LINE {number}: ")
        return line if marks is None else f"{line}\n{' ' * (len(indent) + moved)}{marks}"

    return _PLACE.sub(placed, str(error)).replace("\n\t", "\n    ").replace("\t", " ").rstrip()
