"""Options that several commands have, and numbers that they parse in the same way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from storage.errors import BadDestination
from storage.types import Isolation

if TYPE_CHECKING:
    from kafkafs.reading.range_names import OffsetSpec, TimeSpec
    from kafkafs.schemas.places import SchemaPlaces
    from storage.tier.tier import Tier


_Parsed = TypeVar("_Parsed")
_Command = TypeVar("_Command", bound=Callable[..., Any])


class ParsedText(click.ParamType[_Parsed]):
    """A value that a function makes of the text. Its ValueError says what is wrong with it."""

    def __init__(self, name: str, parse: Callable[[str], _Parsed]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _Parsed:
        if not isinstance(value, str):
            parsed: _Parsed = value  # it was parsed before
            return parsed
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def pair(text: str, form: str) -> tuple[str, str]:
    """The two texts around the first `=`, neither of them empty. `form` is what a ValueError says was expected."""
    left, _, right = text.partition("=")
    if not left or not right:
        raise ValueError(f"{text!r} is not in the form {form}")
    return left, right


RENAMING: Final = ParsedText("OLD=NEW", lambda text: pair(text, "OLD=NEW"))


def check_destination(path: Path, *sources: Path) -> None:
    """Raises BadDestination if a command may not write at `path`: if storage's function of this name forbids it, or in
    the tree of a mount, where a new directory would be a topic."""
    from kafkafs.mounting.mountpoint import absolute, tree_around
    from storage.log.places import check_destination as check

    check(path, *sources)
    tree = tree_around(absolute(path))
    if tree is not None:
        what = f"is inside the tree of {tree.source} at {tree.path}"
        raise BadDestination(what, path=path, advice="Name another place: a directory there is a topic")


AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def isolation_option(default: Isolation) -> Callable[[_Command], _Command]:
    """The option `--isolation` with this default."""
    return click.option(
        "--isolation",
        type=click.Choice([isolation.value for isolation in Isolation]),
        default=default.value,
        show_default=True,
        help="read_committed leaves out aborted messages and stops at open transactions.",
    )


ISOLATION: Final = isolation_option(Isolation.READ_UNCOMMITTED)


def _schemas(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> SchemaPlaces:
    from kafkafs.schemas.places import schema_places

    try:
        return schema_places(texts)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


SCHEMAS: Final = click.option(
    "--schemas",
    multiple=True,
    callback=_schemas,
    metavar="PATH or TOPIC=FILE[:MESSAGE]",
    help="Where the schemas are: another log directory with _schemas, or a directory of files like 12.avsc, 13.proto or"
    " 14.json. By default LOGDIR. Or the schema of a topic's values without a registry's framing, of keys with"
    " TOPIC#key=: an .avsc, a .proto, or a descriptor set of protoc. Can be repeated.",
)


READS_ANEW: Final = "kafkafs.anew"
"""In the context of a command that takes no object of a store from the cache directory, and keeps none there."""


def _place(ctx: click.Context, _param: click.Parameter, places: tuple[str, ...]) -> None:
    ctx.meta["kafkafs.tier"] = places


def _keys(ctx: click.Context, _param: click.Parameter, pairs: tuple[tuple[str, str], ...]) -> None:
    ctx.meta["kafkafs.tier_keys"] = {name: Path(file).absolute() for name, file in pairs}


def TIER(command: Callable[..., Any]) -> Callable[..., Any]:  # noqa: N802 - one of the options
    """Adds `--tier` and `--tier-key`. What opens a log directory in the command takes them from `tier`."""
    where = "Where remote segments of tiered topics are: a directory, or a URL like s3://bucket/prefix."
    key = "A private key (PEM) for encrypted segments."
    for option in (
        click.option(
            "--tier-key",
            type=ParsedText("ID=FILE", lambda text: pair(text, "ID=FILE")),
            help=key,
            multiple=True,
            expose_value=False,
            callback=_keys,
        ),
        click.option("--tier", metavar="PATH", help=where, multiple=True, expose_value=False, callback=_place),
    ):
        command = option(command)
    return command


def tier_options() -> tuple[tuple[str, ...], dict[str, Path]]:
    """The places and the keys that the command in progress was given."""
    context = click.get_current_context(silent=True)
    meta = {} if context is None else context.meta
    return meta.get("kafkafs.tier", ()), meta.get("kafkafs.tier_keys", {})


def tier() -> Tier | None:
    """The tier that the command in progress was given; None without one."""
    places, keys = tier_options()
    if not places:
        return None
    from storage.tier.blocks import RemoteBlockCache
    from storage.tier.tier import Tier

    is_anew = READS_ANEW in click.get_current_context().meta
    return Tier(places, keys, RemoteBlockCache(disk_bytes=0) if is_anew else None)


def _offsets(_ctx: click.Context, _param: click.Parameter, text: str | None) -> OffsetSpec | None:
    from kafkafs.reading.range_names import MalformedRange, parse_offsets

    try:
        return None if text is None else parse_offsets(text)
    except MalformedRange as error:
        raise click.BadParameter(str(error)) from None


OFFSETS: Final = click.option(
    "--offsets",
    callback=_offsets,
    metavar="R",
    help="100-199, 100-, 100+50, last-10, -10 or 100; earliest (everything) or latest (what comes with --follow).",
)


def _times(_ctx: click.Context, _param: click.Parameter, text: str | None) -> TimeSpec | None:
    from kafkafs.reading.range_names import MalformedRange, parse_times

    try:
        return None if text is None else parse_times(text, today())
    except MalformedRange as error:
        raise click.BadParameter(str(error)) from None


TIMES: Final = click.option(
    "--time",
    "times",
    callback=_times,
    metavar="R",
    help="2026-11-20, today, 2026-11-20T10--, 2026-11-20T10--2026-11-20T12, until-2026-11-20, last-1h; UTC without a"
    " zone. An instant may be epoch milliseconds (13 digits).",
)


def _moment(text: str) -> int:
    from kafkafs.reading.range_names import parse_moment

    return parse_moment(text, today())


MOMENT: Final = ParsedText("TIME", _moment)
"""A time as in the range names, in epoch milliseconds; the beginning of a period."""

AT: Final = click.option("--at", "at_ms", type=MOMENT, metavar="TIME", help="The state at this time.")


def _duration(text: str) -> int:
    from kafkafs.reading.range_names import LastDuration, MalformedRange, parse_time_spec

    try:
        period = parse_time_spec(f"last-{text}")
    except MalformedRange:
        period = None
    if not isinstance(period, LastDuration):
        raise ValueError(f"{text!r} is not a duration such as 1s, 15m, 1h or 7d")
    return period.duration_ms


DURATION: Final = ParsedText("DURATION", _duration)
"""A duration as in the range names, in milliseconds."""


def today() -> date:
    """The date in UTC."""
    return datetime.now(UTC).date()


def whole_number(text: str, most: int) -> int | None:
    """The number from 0 to `most` in ASCII digits, leading zeros allowed; None if `text` is not one."""
    if not text.isascii() or not text.isdigit():
        return None
    digits = text.lstrip("0") or "0"
    # The length first: int() refuses thousands of digits with an error of its own.
    return int(digits) if len(digits) <= len(str(most)) and int(digits) <= most else None
