"""Options that several commands have, and numbers that they parse in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from storage.types import Isolation

if TYPE_CHECKING:
    from kafkafs.selection.range_names import OffsetSpec
    from storage.tier.tier import Tier

AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
ISOLATION: Final = click.option(
    "--isolation",
    type=click.Choice([isolation.value for isolation in Isolation]),
    default=Isolation.READ_UNCOMMITTED.value,
    show_default=True,
    help="read_committed leaves out aborted messages and stops at open transactions.",
)

SCHEMAS: Final = click.option(
    "--schemas",
    "schemas_path",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="PATH",
    help="Where the schemas are: another log directory with _schemas, or a directory of files like 12.avsc, 13.proto or"
    " 14.json. By default LOGDIR.",
)


def _place(ctx: click.Context, _param: click.Parameter, places: tuple[str, ...]) -> None:
    ctx.meta["kafkafs.tier"] = places


def _keys(ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> None:
    keys = ctx.meta["kafkafs.tier_keys"] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not name or not file:
            raise click.BadParameter(f"{text!r} is not ID=FILE")
        keys[name] = Path(file).absolute()


def TIER(command: Callable[..., Any]) -> Callable[..., Any]:  # noqa: N802 - one of the options
    """`--tier` and `--tier-key`: for whatever opens a log directory in the command (`tier`)."""
    where = "Where remote segments of tiered topics are: a directory, or a URL like s3://bucket/prefix."
    key = "A private key (PEM) for encrypted segments."
    for option in (
        click.option("--tier-key", metavar="ID=FILE", help=key, multiple=True, expose_value=False, callback=_keys),
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
    from storage.tier.tier import Tier

    return Tier(places, keys)


# The ends of a log, as Kafka's tools and as kcat call them.
ENDS: Final = {"earliest": "earliest", "beginning": "earliest", "latest": "latest", "end": "latest"}


def _offsets(_ctx: click.Context, _param: click.Parameter, text: str | None) -> OffsetSpec | None:
    from kafkafs.selection.range_names import LastMessages, MalformedRange, parse_offset_spec

    end = ENDS.get(text or "earliest")
    try:
        if end is None and text is not None:
            return parse_offset_spec(text)
        return LastMessages(0) if end == "latest" else None
    except MalformedRange as error:
        raise click.BadParameter(str(error)) from None


OFFSETS: Final = click.option(
    "--offsets",
    callback=_offsets,
    metavar="R",
    help="100-199, 100-, 100+50, last-10, -10 or 100; earliest (everything) or latest (what comes with --follow).",
)


class Moment(click.ParamType[int]):
    """A time as in the range names, in epoch milliseconds; the beginning of a period."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from kafkafs.selection.range_names import MalformedRange, TimeBetween, parse_time_spec

        try:
            spec = parse_time_spec(f"{dated(str(value))}--")
        except MalformedRange:
            spec = None
        if not isinstance(spec, TimeBetween) or spec.start_ms is None or spec.end_ms is not None:
            self.fail(f"{value!r} is not a time (2026-11-20T10:15)", param, ctx)
        return spec.start_ms


def dated(text: str) -> str:
    """The text of a time with the dates of `today` and `yesterday` (UTC), which are no names of files."""
    today = datetime.now(UTC).date()
    days = {"today": today, "yesterday": today - timedelta(days=1)}
    return re.sub(r"\b(today|yesterday)(?![a-z])", lambda found: days[found[1]].isoformat(), text)


def whole_number(text: str, most: int) -> int | None:
    """The number from 0 to `most` in ASCII digits, leading zeros allowed; None if `text` is not one."""
    if not text.isascii() or not text.isdigit():
        return None
    digits = text.lstrip("0") or "0"
    # The length first: int() refuses thousands of digits with an error of its own.
    return int(digits) if len(digits) <= len(str(most)) and int(digits) <= most else None
