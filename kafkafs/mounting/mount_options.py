"""The options of `-o`, as mount(8) passes them on. Pure: text in, a frozen value out.

mount(8) passes on the options in fstab: its own (`auto`, `user`, `x-…`), the kernel's (`noexec`) and those of kafkafs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from kafkafs.schemas.places import OWN_SCHEMAS, SchemaPlaces
from storage.types import Isolation

# Options of mount(8) and fstab(5) that are not meant for a filesystem, and defaults.
_GENERIC = frozenset(
    (
        "rw",
        "exec",
        "suid",
        "dev",
        "atime",
        "async",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "nousers",
        "owner",
        "noowner",
        "group",
        "nogroup",
        "_netdev",
        "nofail",
        "defaults",
        "diratime",
        "relatime",
        "norelatime",
        "nostrictatime",
        "nolazytime",
        "loud",
        "silent",
        "mand",
        "nomand",
        "iversion",
        "noiversion",
        "dirsync",
        "strictatime",
        "lazytime",
        "nodiratime",
        "nosymfollow",
        "symfollow",
    )
)
# Whether the mount may write. `rw` is not among them: mount(8) passes it unless it passes `ro`.
_WRITE = {"ro": False, "write": True}
# Options that the kernel carries out. With `sync` it marks every write as a write to a file with O_SYNC.
_KERNEL = frozenset(("noexec", "nosuid", "nodev", "noatime", "sync"))
# libfuse's own, passed on.
_LIBFUSE = frozenset(("allow_other", "allow_root"))
_UNMOUNTING = frozenset(("auto_unmount", "noauto_unmount"))
_FLAGS = _WRITE.keys() | _KERNEL | _LIBFUSE | _UNMOUNTING

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LEAST_CACHE_BYTES = 4 << 20
_LEAST_LATEST_BYTES = 1 << 20


class BadOption(ValueError):
    """An unknown option, or a value that is not valid for it. The message is for the user."""


@dataclass(frozen=True, slots=True)
class MountOptions:
    """The options given. Sizes in bytes; None: not given. `libfuse`: passed on unchanged. `create`: never from `-o`.

    `write`: whether the mount owns the log directory and appends. None, when neither `write` nor `ro` was given, mounts
    read-only as False does.
    """

    write: bool | None = None
    create: bool = False
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    clamp: bool = False
    keys: bool = True
    log: Path | None = None
    cache_bytes: int | None = None
    latest_bytes: int | None = None
    exact_below: int | None = None
    exact_sizes: bool = False
    config: Path | None = None
    schemas: SchemaPlaces = OWN_SCHEMAS
    tier: tuple[str, ...] = ()
    tier_keys: tuple[tuple[str, Path], ...] = ()
    uid: int | None = None
    gid: int | None = None
    modes_below: bool = False
    auto_unmount: bool = True
    libfuse: frozenset[str] = frozenset()


_Apply = Callable[[MountOptions, str], MountOptions]


def parse_options(texts: Iterable[str], start: MountOptions | None = None) -> MountOptions:
    """The options of all `-o` in order, on top of `start`; later ones replace earlier ones. Raises BadOption."""
    options = start or MountOptions()
    for text in texts:
        for word in _words(text):
            options = _apply(options, word)
    if options.modes_below and (options.uid is not None or options.gid is not None):
        raise BadOption("modes=below shows the owners of the files below: uid= and gid= contradict it")
    return options


def escaped(value: str) -> str:
    """`value` as part of a libfuse option: commas and backslashes escaped."""
    return value.replace("\\", "\\\\").replace(",", "\\,")


def _words(text: str) -> list[str]:
    """Splits at commas; `\\,` is a comma in a value, `\\\\` a backslash, as in libfuse. Without empty words."""
    return [re.sub(r"\\([,\\])", r"\1", word) for word in re.findall(r"(?:\\.|[^,])+", text, re.DOTALL)]


def _apply(options: MountOptions, word: str) -> MountOptions:
    name, equals, value = word.strip().partition("=")
    if not name or name in _GENERIC or name.lower().startswith(("x-", "comment")):
        return options
    if equals and name in _FLAGS:
        raise BadOption(f"{word.strip()}: option {name} takes no value")
    if name in _WRITE:
        # mount(8) puts `ro` first, whatever the order in which it was given, so neither can replace the other.
        if options.write not in (None, _WRITE[name]):
            raise BadOption("--write (-o write) and --read-only (-o ro) contradict each other: give one of them")
        return replace(options, write=_WRITE[name])
    if name in _KERNEL or name in _LIBFUSE:
        return replace(options, libfuse=options.libfuse | {name})
    if name in _UNMOUNTING:
        return replace(options, auto_unmount=name == "auto_unmount")
    if name == "remount":
        raise BadOption("a kafkafs mount cannot be remounted: umount it and mount it again, to append with -o write")
    if name not in _OURS:
        raise BadOption(_unknown(name))
    apply, example = _OURS[name]
    if not equals or not value:
        raise BadOption(f"option {name} needs a value: -o {name}={example}")
    return apply(options, value)


def _choice(name: str, field: str, choices: dict[str, object]) -> _Apply:
    """How to apply an option whose value is one of a few words. `choices`: what each word sets."""

    def apply(options: MountOptions, value: str) -> MountOptions:
        if value not in choices:
            raise BadOption(f"{name}={value}: {' or '.join(choices)}")
        return replace(options, **{field: choices[value]})  # type: ignore[arg-type]  # by the field's name

    return apply


def _tier_key(options: MountOptions, value: str) -> MountOptions:
    name, _, file = value.partition("=")
    if not name or not file:
        raise BadOption(f"tier_key={value}: ID=FILE")
    return replace(options, tier_keys=(*options.tier_keys, (name, Path(file))))


def _schemas(options: MountOptions, value: str) -> MountOptions:
    try:
        return replace(options, schemas=options.schemas.with_text(value))
    except ValueError as error:
        raise BadOption(f"schemas={value}: {error}") from None


def _size(name: str, field: str, least_bytes: int) -> _Apply:
    return lambda options, value: replace(options, **{field: _bytes(name, value, least_bytes)})  # type: ignore[arg-type]


def _bytes(name: str, value: str, least_bytes: int) -> int:
    digits, unit = (value[:-1], value[-1].lower()) if value[-1].isalpha() else (value, "")
    if not (digits.isascii() and digits.isdigit()) or unit not in _UNITS:
        raise BadOption(f"{name}={value}: bytes, or with K, M or G as in 64M")
    size_bytes = int(digits) * _UNITS[unit]
    if size_bytes < least_bytes:
        raise BadOption(f"{name}={value}: at least {least_bytes >> 20}M")
    return size_bytes


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or int(value) >= 2**32 - 1:
        raise BadOption(f"{name}={value}: a number")
    return int(value)


# By name: what a value does, and an example of one.
_OURS: dict[str, tuple[_Apply, str]] = {
    "isolation": (
        _choice("isolation", "isolation", {isolation.value: isolation for isolation in Isolation}),
        "read_committed",
    ),
    "out_of_range": (_choice("out_of_range", "clamp", {"clamp": True, "error": False}), "clamp"),
    "keys": (_choice("keys", "keys", {"on": True, "off": False}), "off"),
    "log": (lambda options, value: replace(options, log=Path(value)), "/var/log/kafkafs.log"),
    "cache_size": (_size("cache_size", "cache_bytes", _LEAST_CACHE_BYTES), "64M"),
    "exact_below": (_size("exact_below", "exact_below", 0), "64M"),
    "sizes": (_choice("sizes", "exact_sizes", {"exact": True, "estimated": False}), "exact"),
    "latest_memory": (_size("latest_memory", "latest_bytes", _LEAST_LATEST_BYTES), "512M"),
    "config": (lambda options, value: replace(options, config=Path(value)), "server.properties"),
    "schemas": (_schemas, "/var/kafka-of-the-registry"),
    "tier": (lambda options, value: replace(options, tier=(*options.tier, value)), "s3://bucket/prefix"),
    "tier_key": (_tier_key, "key1=private.pem"),
    "modes": (_choice("modes", "modes_below", {"below": True, "all": False}), "below"),
    "uid": (lambda options, value: replace(options, uid=_number("uid", value)), "1000"),
    "gid": (lambda options, value: replace(options, gid=_number("gid", value)), "1000"),
}
NAMES = (*_OURS, *_WRITE, *sorted(_LIBFUSE), *sorted(_KERNEL), *sorted(_UNMOUNTING))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, NAMES, n=1)
    guess = f" (did you mean {near[0]}?)" if near else f"; there are {', '.join(NAMES)}"
    return f"unknown mount option {name}{guess}"
