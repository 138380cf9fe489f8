"""Keyword arguments of public functions: an unknown one is reported with the function's public name, and with the
argument that is probably meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def checked_keywords(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """The function, with its signature and docstring. An unknown keyword is a TypeError that says what is probably
    meant; Python's own says so from 3.13 on."""
    plain: Any = function
    code, name = plain.__code__, plain.__qualname__
    public = name if "." in name else f"{plain.__module__}.{name}"
    known = [each for each in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if each != "self"]

    @wraps(function)
    def checked(*arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        check_keywords(public, keywords, known)
        return function(*arguments, **keywords)

    return checked


def check_keywords(function: str, keywords: Iterable[str], known: Sequence[str]) -> None:
    """TypeError for the first keyword that the function does not know."""
    for keyword in keywords:
        if keyword not in known:
            more = nearest(keyword, known) or f"; it has {', '.join(known)}"
            raise TypeError(f"{function}() has no argument {keyword!r}{more}")


def nearest(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'offsets'?` if one of the known names is nearly this one, otherwise an empty text."""
    # Imported here: only an error needs it.
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1, cutoff=0.7) if isinstance(name, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""
