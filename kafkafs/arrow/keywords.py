"""Checks of the keyword arguments of public functions: the error for an unknown name has the function's public name,
and the nearest known argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def checked_keywords(*others: str) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Decorate a function, which keeps its signature and docstring. An unknown keyword is a TypeError that suggests the
    nearest known name; Python itself does this from 3.13 on. `others`: the names that its `**` arguments may have."""

    def decorated(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        plain: Any = function
        code, name = plain.__code__, plain.__qualname__
        public = name if "." in name else f"{plain.__module__}.{name}"
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        known = [*(each for each in named if each != "self"), *others]

        @wraps(function)
        def checked(*arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
            check_keywords(public, keywords, known)
            return function(*arguments, **keywords)

        return checked

    return decorated


def check_keywords(function: str, keywords: Iterable[str], known: Sequence[str]) -> None:
    """Raise TypeError for the first keyword that the function does not know."""
    for keyword in keywords:
        if keyword not in known:
            more = nearest(keyword, known) or f"; it has {', '.join(known)}"
            raise TypeError(f"{function}() has no argument {keyword!r}{more}")


def nearest(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'offsets'?` if a known name is similar, otherwise an empty text."""
    # Imported only for errors.
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1, cutoff=0.7) if isinstance(name, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""
