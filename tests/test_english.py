"""Plain English: the worst patterns in documents, help, docstrings, comments and names of variables.

A pattern is listed once, below.
"""

import ast
import re
from functools import cache

import pytest

from tests.test_documents import ROOT, comments, product

DOCUMENTS = [ROOT / "README.md", *(ROOT / "kafkafs").rglob("*.md"), *(ROOT / "storage").glob("*.md")]
DOCUMENTS += (ROOT / "examples").glob("*.md")

# An errno is no adjective: "fails with ERANGE", "exits with code 4".
AN_ERRNO_AFTER_IS = re.compile(r"\b(?:is|are|be|was)\s+(?:an?\s+)?(?:`?E[A-Z]{4,}\b(?! file)|exit\s+code\b)")
# A docstring says what the caller gets: "Return the …", "The offsets that …".
BEGINNINGS = re.compile(r"(?:As|See|What|One|The same)\b")
# A report reports, a message says, a caller passes.
TOLD = re.compile(r"\btold\b")
# A variable is named for what it holds. `found` beside `expected` is what an error has found.
VARIABLES = {"found", "one", "told", "wanted", "made", "there", "here"}


@cache
def modules():
    """The path below the repository, source and tree of each module."""
    return [(path.relative_to(ROOT), source, tree) for path, source, tree in product()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_errno_is_no_adjective_in_documents(document):
    text = document.read_text()
    assert [found[0] for found in AN_ERRNO_AFTER_IS.finditer(text)] == []
    assert TOLD.findall(text) == []


def test_docstrings_and_comments():
    wrong = []
    for name, source, tree in modules():
        for text in comments(source, tree):
            if BEGINNINGS.match(text):
                wrong.append(f"{name}: begins with {text[:60]!r}")
            wrong += [f"{name}: {found[0]!r} in {text[:60]!r}" for found in AN_ERRNO_AFTER_IS.finditer(text)]
            wrong += [f"{name}: 'told' in {text[:60]!r}" for _ in TOLD.finditer(text)]
    assert not wrong, "\n".join(wrong)


def bound_names(function):
    """The variables and parameters of a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if isinstance(node, ast.arg):
            yield node.arg


def reports_an_error(function):
    """Whether it has what was expected, or passes what was found to an error."""
    return any(
        "expected" in (getattr(node, "id", None), getattr(node, "arg", None)) or getattr(node, "arg", None) == "found"
        for node in ast.walk(function)
    )


def test_variables_are_named_for_what_they_hold():
    wrong = [
        f"{name}:{function.lineno}: {variable} in {function.name}"
        for name, _, tree in modules()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for variable in sorted(VARIABLES.intersection(bound_names(function)))
        if variable != "found" or not reports_an_error(function)
    ]
    assert not wrong, "\n".join(wrong)
