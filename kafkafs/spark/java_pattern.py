"""Translates regular expressions of `subscribePattern`, which are Java's as in Spark's Kafka source, to Python's.

The two languages share most of their syntax, but some shared syntax has different meanings. The searched texts are
topic names, which consist of 65 characters: so a character class is evaluated here, and becomes the set of those
characters that it contains. Syntax without a counterpart in Python is an error: a pattern with another meaning than in
Java would read other topics than the query means, or none. Source: java.util.regex.Pattern (JDK 17).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable
from typing import Final

# The characters of topic names (names.topic_name_problem).
ALPHABET: Final = frozenset(string.ascii_letters + string.digits + "._-")

_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{[0-9]{1,9}(?:,(?:[0-9]{1,9})?)?\})[?+]?")
_NAME: Final = "[a-zA-Z][a-zA-Z0-9]*"
_GROUP: Final = re.compile(rf"\((?:\?(?:<({_NAME})>|[:=!>]|<[=!]|([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])))?")
# Flags without effect on a single line of ASCII: about lines (d, m, s) and the case of Unicode letters (u).
_WITHOUT_EFFECT: Final = "dmsu"
# The characters of names that are in a class or have a property: by the letter of an escape, or the property's name.
_SETS: Final[dict[str, str]] = {
    **dict.fromkeys(("d", "Digit", "IsDigit"), string.digits),
    **dict.fromkeys(("Lower", "IsLowercase", "javaLowerCase"), string.ascii_lowercase),
    **dict.fromkeys(("Upper", "IsUppercase", "javaUpperCase"), string.ascii_uppercase),
    **dict.fromkeys(("Alpha", "IsAlphabetic", "IsLetter", "IsLatin"), string.ascii_letters),
    **dict.fromkeys(("Punct", "IsPunctuation"), "._-"),
    **dict.fromkeys(("ASCII", "Graph", "Print"), "".join(ALPHABET)),
    **dict.fromkeys(("s", "h", "v", "Blank", "Cntrl", "Space", "IsWhite_Space", "javaWhitespace"), ""),
    "w": string.ascii_letters + string.digits + "_",
    "Alnum": string.ascii_letters + string.digits,
    "XDigit": string.hexdigits,
}
_CATEGORY: Final = re.compile(r"(?:Is|general_category=|gc=)?([LMNPSZC][a-z]?)")
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_HEX: Final = re.compile(r"x\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")
_OCTAL: Final = re.compile("0([0-3]?[0-7]{1,2})")


class UnknownPattern(ValueError):
    """A regular expression that is malformed, or that Java supports and Python does not."""


def compiled(text: str) -> re.Pattern[str]:
    """A pattern that finds the same matches in topic names as Java's Pattern. UnknownPattern."""
    translation = _Translation(text)
    python = translation.whole()
    try:
        return re.compile(python, re.ASCII)
    except re.error as error:
        raise UnknownPattern(f"{error.msg} in {text!r}") from None


class _Translation:
    """The translation of one expression, which is read once from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ignoring_case = [False]  # of each group that is open

    def whole(self) -> str:
        out = []
        while self._at < len(self._text):
            out.append(self._element())
        if len(self._ignoring_case) > 1:
            raise self._wrong("a group is not closed")
        return "".join(out)

    def _element(self) -> str:
        """The next element: an atom with its quantifier, or one end of a group or alternative."""
        char = self._text[self._at]
        if char == "(":
            return self._group()
        if char == "|":
            self._at += 1
            return char
        if char in "^$":
            # In Java, $ also matches before a final line terminator, but names have none.
            self._at += 1
            return char + self._quantifier()
        if char in "*+?{":
            raise self._wrong(f"there is nothing before {char!r} that it could repeat")
        if char == ")":
            if len(self._ignoring_case) == 1:
                raise self._wrong("a ) has no (")
            self._ignoring_case.pop()
            self._at += 1
            atom = char
        elif char == "[":
            atom = self._set_of(self._class())
        elif char == ".":
            self._at += 1
            atom = char
        elif char == "\\":
            quoted = self._quoted()
            if quoted is not None:
                # A quantifier applies to the last character only.
                return re.escape(quoted) + (self._quantifier() if quoted else "")
            atom = self._escape()
        else:
            self._at += 1
            atom = re.escape(char)
        return atom + self._quantifier()

    def _quantifier(self) -> str:
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found.group()

    def _group(self) -> str:
        found = _GROUP.match(self._text, self._at)
        if found is None or (self._text.startswith("(?", self._at) and found.end() == self._at + 1):
            raise self._unknown("this kind of group")
        name, on, off, end = found.groups()
        case = self._ignoring_case[-1]
        if end is None:
            self._at = found.end()
            self._ignoring_case.append(case)
            return f"(?P<{name}>" if name else found.group()
        if set((on or "") + (off or "")) - set(_WITHOUT_EFFECT + "i"):
            raise self._unknown(f"the flags {found.group()}")
        case = ("i" in (on or "") or case) and "i" not in (off or "")
        if end == ")":
            if "i" in (on or "") + (off or "") and self._at:
                raise self._unknown(f"{found.group()} after the beginning of the pattern")
            self._at = found.end()
            self._ignoring_case[-1] = case
            return "(?i)" if case and len(self._ignoring_case) == 1 else ""
        self._at = found.end()
        self._ignoring_case.append(case)
        before = self._ignoring_case[-2]
        return "(?:" if case == before else "(?i:" if case else "(?-i:"

    # Escapes

    def _quoted(self) -> str | None:
        """The characters of \\Q…\\E; None if the next element is another one."""
        if not self._text.startswith("\\Q", self._at):
            return None
        end = self._text.find("\\E", self._at)
        quoted = self._text[self._at + 2 : len(self._text) if end < 0 else end]
        self._at = len(self._text) if end < 0 else end + 2
        return quoted

    def _escape(self) -> str:
        """An escape outside a class."""
        rest = self._text[self._at + 1 :]
        if rest[:1] in ("A", "b", "B"):
            self._at += 2
            return "\\" + rest[0]
        if rest[:1] in ("z", "Z"):
            self._at += 2
            return r"\Z"
        if named := re.match(rf"k<({_NAME})>", rest):
            self._at += 1 + named.end()
            return f"(?P={named[1]})"
        if "1" <= rest[:1] <= "9":
            if rest[1:2].isdigit():
                raise self._unknown("a reference to a group of two digits")
            self._at += 2
            return f"(?:\\{rest[0]})"
        found = self._escaped()
        return re.escape(found) if isinstance(found, str) else self._set_of(found)

    def _escaped(self) -> str | frozenset[str]:
        """The character, or the set of characters, that an escape denotes."""
        start, rest = self._at, self._text[self._at + 1 :]
        letter = rest[:1]
        if not letter:
            raise self._wrong("it ends in a backslash")
        self._at += 2
        if letter in "pP":
            return self._property(rest, negated=letter == "P")
        if letter.lower() in "dwshv":
            return _set(_SETS[letter.lower()], negated=letter.isupper())
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if found := _HEX.match(rest):
            self._at = start + 1 + found.end()
            return chr(int(next(filter(None, found.groups())), 16))
        if found := _OCTAL.match(rest):
            self._at = start + 1 + found.end()
            return chr(int(found[1], 8))
        if letter.isascii() and letter.isalnum():
            self._at = start
            raise self._unknown(f"\\{letter}")
        return letter

    def _property(self, rest: str, *, negated: bool) -> frozenset[str]:
        found = re.match(r"\{([A-Za-z_=]+)\}|([A-Z])", rest[1:])
        if found is None:
            raise self._wrong("a property has no name")
        self._at += found.end()
        name = found[1] or found[2]
        if category := _CATEGORY.fullmatch(name):
            chars: Iterable[str] = (c for c in ALPHABET if unicodedata.category(c).startswith(category[1]))
        elif len(name) == 1 or name not in _SETS:
            raise self._unknown(f"the property {name}")
        else:
            chars = _SETS[name]
        return _set(chars, negated=negated)

    # Classes

    def _class(self) -> frozenset[str]:
        """The characters of the class that begins here."""
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        found: frozenset[str] | None = None  # the part before the last &&
        part: set[str] = set()
        first = True
        while first or not self._text.startswith("]", self._at):
            if self._at >= len(self._text):
                raise self._wrong("a class is not closed")
            if self._text.startswith("&&", self._at):
                self._at += 2
                if first or self._text[self._at : self._at + 1] in ("]", "&", ""):
                    raise self._unknown("&& with nothing on one side")
                found = frozenset(part) if found is None else found & part
                part = set()
                continue
            part |= self._item()
            first = False
        self._at += 1
        whole = frozenset(part) if found is None else found & part
        return ALPHABET - whole if negated else whole

    def _item(self) -> frozenset[str]:
        """The characters of an element of a class: a character, a range, an escape or a nested class."""
        if self._text[self._at] == "[":
            return self._class()
        quoted = self._quoted()
        if quoted is not None:
            return self._in_both_cases(quoted)
        begin = self._character()
        if isinstance(begin, frozenset):
            return begin
        after = self._text[self._at + 1 : self._at + 2]
        if not self._text.startswith("-", self._at) or after in ("]", "[", ""):
            return self._in_both_cases(begin)
        self._at += 1
        end = self._character()
        if isinstance(end, frozenset) or end < begin:
            raise self._wrong("a range of characters has no end, or ends before it begins")
        return self._in_both_cases(c for c in ALPHABET if begin <= c <= end)

    def _character(self) -> str | frozenset[str]:
        char = self._text[self._at]
        if char == "\\":
            return self._escaped()
        self._at += 1
        return char

    def _in_both_cases(self, chars: Iterable[str]) -> frozenset[str]:
        found = set(chars)
        if self._ignoring_case[-1]:
            found |= {char.swapcase() for char in found}
        return ALPHABET & found

    @staticmethod
    def _set_of(chars: frozenset[str]) -> str:
        """A class of exactly these characters, even where case is ignored: the set has both cases if needed."""
        return f"(?-i:[{re.escape(''.join(sorted(chars)))}])" if chars else "(?!)"

    # Errors

    def _wrong(self, what: str) -> UnknownPattern:
        return UnknownPattern(f"{what}, at position {self._at} of {self._text!r}")

    def _unknown(self, what: str) -> UnknownPattern:
        return UnknownPattern(
            f"{what} has no equivalent in Python or another meaning there, at position {self._at} of {self._text!r}: "
            "write the pattern differently, or name the topics with subscribe"
        )


def _set(chars: Iterable[str], *, negated: bool) -> frozenset[str]:
    return ALPHABET - frozenset(chars) if negated else ALPHABET & frozenset(chars)
