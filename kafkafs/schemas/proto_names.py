"""Message types that the text of a .proto declares, and files that it imports, found without compiling it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# A comment without an end takes the rest of the text, a string without an end the rest of its line: so nothing is read
# twice.
_TOKEN: Final = re.compile(
    r"""//[^\n]*|/\*(?:.*?\*/|.*)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?"""
    r"""|\b(?P<word>package|message|group)\s+(?P<name>[A-Za-z_][\w.]*)|(?P<mark>[{};])""",
    re.DOTALL | re.ASCII,
)
_MOST_DEPTH: Final = 100  # of types within each other: the compiler takes fewer


def message_types(text: str) -> Iterator[str]:
    """The full names, also of nested types, in the order of the text. They may be wrong if the text does not
    compile."""
    package, scope = "", list[str | None]()  # None: a block of another kind
    waiting: str | None = None  # the name whose block begins next
    for token in _TOKEN.finditer(text):
        word, mark = token["word"], token["mark"]
        if word == "package":
            package = token["name"]
        elif word is not None:
            waiting = token["name"]
        elif mark == "{":
            scope.append(waiting)
            if waiting is not None and len(scope) <= _MOST_DEPTH:
                yield ".".join([*filter(None, (package,)), *(name for name in scope if name is not None)])
            waiting = None
        elif mark == "}" and scope:
            scope.pop()
        elif mark == ";":
            waiting = None


_IMPORT: Final = re.compile(
    r"""//[^\n]*|/\*(?:.*?\*/|.*)|\bimport\s+(?:public\s+|weak\s+)?["'](?P<name>[^"'\\\n]+)["']"""
    r"""|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?""",
    re.DOTALL | re.ASCII,
)


def imports(text: str) -> Iterator[str]:
    """The names of the files that the text imports, in its order."""
    return (token["name"] for token in _IMPORT.finditer(text) if token["name"] is not None)
