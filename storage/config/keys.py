"""Configuration keys as data: each has a name, a type, a default, a rule for its values, and broker-level names.

A key is declared once, as the field of a frozen dataclass made by `key()`; reading, checking and showing values works
from that declaration. Types and rules are those of Kafka 4.3's ConfigDef.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from storage.errors import InvalidConfig

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1

_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,19})")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


class ValueKind(NamedTuple):
    """A type of value: `parse` returns the value of a text or raises ValueError, `show` returns the text of a value."""

    name: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


def _integer(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        match = _INTEGER.fullmatch(text)
        if match is None or not minimum <= (number := int(match[1] + match[2])) <= maximum:
            raise ValueError(text)
        return number

    return parse


def _double(text: str) -> float:
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError(text)
    return float(text)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _list(text: str) -> tuple[str, ...]:
    # Repeated entries count once; an empty text is an empty list (ConfigDef.parseType).
    return tuple(dict.fromkeys(re.split(r"\s*,\s*", text))) if text else ()


INT = ValueKind("32-bit integer", _integer(-MAX_INT - 1, MAX_INT))
LONG = ValueKind("64-bit integer", _integer(-MAX_LONG - 1, MAX_LONG))
DOUBLE = ValueKind("number", _double)
BOOLEAN = ValueKind("boolean, true or false", _boolean, lambda value: "true" if value else "false")
STRING = ValueKind("text", lambda text: text)
LIST = ValueKind("comma-separated list", _list, ",".join)


class Rule(NamedTuple):
    """The values of its type that a key accepts; `text` completes "expected …"."""

    text: str
    holds: Callable[[Any], bool]


ANY = Rule("", lambda value: True)


def at_least(minimum: int) -> Rule:
    """Numbers from `minimum` on."""
    return Rule(f"at least {minimum}", lambda value: bool(value >= minimum))


def between(minimum: float, maximum: float) -> Rule:
    """Numbers from `minimum` to `maximum`, both included."""
    return Rule(f"from {minimum} to {maximum}", lambda value: bool(minimum <= value <= maximum))


def one_of(*names: str) -> Rule:
    """A value that is one of these texts."""
    return Rule(f"one of {', '.join(names)}", lambda value: value in names)


def some_of(*names: str) -> Rule:
    """A list of some of these texts."""
    return Rule(f"of {', '.join(names)}", lambda value: set(value) <= set(names))


class Synonym(NamedTuple):
    """Another name for a key, possibly with another unit: `to_value` converts its value to the key's."""

    name: str
    kind: ValueKind
    to_value: Callable[[Any], Any]
    rule: Rule = ANY


class Key(NamedTuple):
    """A configuration key. `broker`: its broker-level names, highest precedence first."""

    name: str
    field: str
    kind: ValueKind
    rule: Rule
    default: Any
    doc: str
    broker: tuple[Synonym, ...] = ()

    def parse(self, text: str) -> Any:
        """The value of a text without surrounding white space. InvalidConfig when the key does not accept it."""
        return parse_value(self.name, self.kind, self.rule, text)

    def show(self, value: Any) -> str:
        """The text of a value."""
        return self.kind.show(value)


def parse_value(name: str, kind: ValueKind, rule: Rule, text: str) -> Any:
    """The value of a text for the key `name`. InvalidConfig when it is not of this kind or breaks the rule."""
    try:
        value = kind.parse(text.strip())
    except (ValueError, KeyError):
        valid = False
    else:
        valid = rule.holds(value)
    if valid:
        return value
    article = "an" if kind.name[0] in "aeio" else "a"
    expected = " ".join(part for part in (f"{article} {kind.name}", rule.text) if part)
    raise InvalidConfig(f"invalid value for {name}", expected=expected, found=repr(text))


def key(
    name: str, kind: ValueKind, default: Any, rule: Rule, doc: str, *, broker: str | tuple[str | Synonym, ...] = ()
) -> Any:
    """A dataclass field that holds the value of a configuration key.

    `broker`: its broker-level names, highest precedence first; a plain name has the key's own type, rule and unit.
    """
    names = (broker,) if isinstance(broker, str) else broker
    synonyms = tuple(
        Synonym(entry, kind, lambda value: value, rule) if isinstance(entry, str) else entry for entry in names
    )
    return dataclasses.field(default=default, metadata={"key": Key(name, "", kind, rule, default, doc, synonyms)})


def keys_of(config: type) -> Mapping[str, Key]:
    """The keys that a dataclass declares, by name, in its order."""
    keys = {}
    for field in dataclasses.fields(config):
        declared = field.metadata.get("key")
        if declared is not None:
            keys[declared.name] = declared._replace(field=field.name)
    return keys


def nearest(name: str, candidates: Iterable[str], similarity: float = 0.7) -> str | None:
    """The candidate most similar to `name`, by difflib's ratio; None when none has this similarity."""
    import difflib

    plain = name.strip().lower().replace("_", ".")
    return next(iter(difflib.get_close_matches(plain, sorted(candidates), n=1, cutoff=similarity)), None)
