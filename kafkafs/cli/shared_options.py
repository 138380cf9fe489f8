"""Options that several commands have, and numbers that they parse in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kafkafs.cli import fail_with, say, text_of
from kafkafs.cli.terminal import print_json
from storage.errors import BadDestination, StorageError, UnknownTopicOrPartition
from storage.files import names
from storage.progress import NoProgress
from storage.types import Isolation, TopicPartition

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from kafkafs.reading.range_names import OffsetSpec
    from storage.compaction.compaction import CompactionResult
    from storage.directory.owned_dir import Opening, OwnedDir
    from storage.log.log_dir import LogDir
    from storage.progress import Progress
    from storage.tier.tier import Tier
    from storage.upkeep.retention import RetentionResult


# TP on the command line: `topic`, `topic/partition` or a glob.


def expand(log_dir: LogDir, pattern: str | None) -> list[TopicPartition]:
    """The partitions that TP names (None: all), by topic and number. UnknownTopicOrPartition if it names none.

    In a glob `*`, `?` and `[…]` mean what they mean in a shell, on either side of the slash.
    """
    found = [
        tp
        for topic in log_dir.topics()
        for tp in (TopicPartition(topic, partition) for partition in log_dir.partitions(topic))
        if is_named(tp, pattern)
    ]
    if not found and pattern is not None:
        what = f"no topic or partition here is named {pattern}"
        raise UnknownTopicOrPartition(what, path=log_dir.path, advice=_meant(log_dir, pattern))
    return found


def expand_topics(log_dir: LogDir, patterns: Sequence[str]) -> list[str]:
    """The topics that these names and globs name (none: all), in this order. UnknownTopicOrPartition."""
    found: list[str] = []
    for pattern in patterns:
        named = [topic for topic in log_dir.topics() if fnmatchcase(topic, pattern)]
        if not named:
            check_topic(log_dir, pattern)
        found += named
    return list(dict.fromkeys(found)) if patterns else log_dir.topics()


def check_topic(log_dir: LogDir, topic: str) -> None:
    """UnknownTopicOrPartition, with the name that is probably meant."""
    if topic not in log_dir.topics():
        name = topic.partition("/")[0]
        advice = f"Name the topic alone: {name}" if name in log_dir.topics() else _meant(log_dir, topic)
        raise UnknownTopicOrPartition(f"no topic {topic!r} here", path=log_dir.path, advice=advice)


def _meant(log_dir: LogDir, pattern: str) -> str | None:
    """What to say of a name that names nothing here."""
    meant = names.parse_dir(pattern).partition
    if meant is not None and meant in log_dir.all_partitions():
        return f"A partition is written as topic/number: {meant}"
    topic, slash, _ = pattern.partition("/")
    if slash and topic in log_dir.topics():
        return f"{topic} has these partitions here: {', '.join(map(str, log_dir.partitions(topic)))}"
    import difflib

    near = difflib.get_close_matches(topic, log_dir.topics(), n=1)
    return f"Did you mean {near[0] + slash + pattern.partition('/')[2]}?" if near else None


def absent(log_dir: LogDir, pattern: str | None) -> list[TopicPartition]:
    """The partitions that TP names (None: all except those of internal topics) and that the cluster has but this
    directory does not: see LogDir.absent."""
    return [
        tp
        for tp in log_dir.absent()
        if (is_named(tp, pattern) if pattern is not None else not tp.topic.startswith("__"))
    ]


def is_named(tp: TopicPartition, pattern: str | None) -> bool:
    """Whether TP (None: all) names a partition."""
    topic_glob, slash, partition_glob = ("*", "", "") if pattern is None else pattern.partition("/")
    return fnmatchcase(tp.topic, topic_glob) and (not slash or fnmatchcase(str(tp.partition), partition_glob))


class TopicName(click.ParamType[str]):
    """The text, without the slash that completing a directory's name adds. A shell completes it to topics of the LOGDIR
    before it."""

    name = "TOPIC"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return without_slash(str(value))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in self._names(ctx, incomplete) if name.startswith(incomplete)]

    def _names(self, ctx: click.Context, incomplete: str) -> list[str]:
        path = ctx.params.get("logdir")
        try:
            log_dir = open_log_dir(Path(path)) if path else None
        except (OSError, StorageError):
            return []
        return [] if log_dir is None else self._names_in(log_dir, incomplete)

    def _names_in(self, log_dir: LogDir, _incomplete: str) -> list[str]:
        return log_dir.topics()


class TopicPartitionPattern(TopicName):
    """A topic, a partition or a glob: completed to topics, and behind a slash to partitions."""

    name = "TP"

    def _names_in(self, log_dir: LogDir, incomplete: str) -> list[str]:
        return [str(tp) for tp in expand(log_dir, None)] if "/" in incomplete else log_dir.topics()


_Parsed = TypeVar("_Parsed")


class Parsed(click.ParamType[_Parsed]):
    """What a function makes of the text. Its ValueError says what is wrong with it."""

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


def without_slash(name: str) -> str:
    """`orders/0/` as `orders/0`."""
    return name.rstrip("/") or name


LOGDIR = click.argument("logdir", type=click.Path(path_type=Path))


def open_log_dir(path: Path) -> LogDir:
    """Opens a log directory for reading, with the tier that the command was given (`shared_options.TIER`). OSError if
    it cannot be listed."""
    from storage.log.log_dir import LogDir

    return LogDir.open_read_only(path, tier=tier())


def say_remote(log_dir: LogDir, targets: Iterable[TopicPartition]) -> None:
    """A note on stderr for each of these partitions whose messages are not all here (LogSnapshot.remote_note)."""
    for tp in targets:
        # What cannot be read is for the command to report.
        with suppress(StorageError, OSError):
            note = log_dir.log(tp).snapshot().remote_note
            if note is not None:
                say(f"note: {note}")


def check_destination(path: Path, *sources: Path) -> None:
    """Raises BadDestination where a command may make nothing: where storage's function of this name forbids it, and in
    the tree of a mount, where a new directory would be a topic."""
    from kafkafs.mounting.mountpoint import absolute, tree_around
    from storage.log.places import check_destination as check

    check(path, *sources)
    tree = tree_around(absolute(path))
    if tree is not None:
        what = f"is inside the tree of {tree.source} at {tree.path}"
        raise BadDestination(what, path=path, advice="Name another place: a directory there is a topic")


# Shared by commands that run a pass over several partitions: opening, continuing after errors, reporting.

_Result = TypeVar("_Result")
Errors = Mapping[TopicPartition, Exception]


def each(chosen: Sequence[TopicPartition], run: Callable[[TopicPartition], None]) -> dict[TopicPartition, Exception]:
    """Runs a pass over each partition; returns the errors of those that failed."""
    from storage.errors import StorageError

    errors: dict[TopicPartition, Exception] = {}
    for tp in chosen:
        try:
            run(tp)
        except (StorageError, OSError) as error:
            errors[tp] = error
    return errors


def _wait(ctx: click.Context, _param: click.Parameter, seconds: float) -> None:
    ctx.meta["kafkafs.wait"] = seconds


WAIT: Final = click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    expose_value=False,
    callback=_wait,
    help="Wait so long for the lock of the log directory that is written to, if another process holds it (default: 0).",
)


def open_owned(logdir: Path, opening: Opening, progress: Progress | None = None) -> OwnedDir:
    """A log directory opened for writing, which the caller closes. While another process holds the lock, waits as long
    as `--wait` says (`WAIT`); then raises LogLocked."""
    from storage.directory.owned_dir import OwnedDir
    from storage.files.dir_lock import when_free

    seconds: float = click.get_current_context().meta.get("kafkafs.wait", 0)
    return when_free(lambda: OwnedDir.open(logdir, opening, progress=progress or NoProgress()), seconds)


@contextmanager
def owned_dir(
    logdir: Path,
    errors: dict[TopicPartition, Exception],
    *,
    only: Sequence[TopicPartition] | None = None,
    create: bool = False,
) -> Iterator[OwnedDir]:
    """A directory that is opened for writing (see `Opening`) and closed. `errors` gets those of partitions that did not
    close and have none yet. Raises what kept the directory's own files from being written."""
    from storage.directory.owned_dir import Opening

    owned = open_owned(logdir, Opening(create=create, gentle=True, only=only))
    try:
        yield owned
    finally:
        closing = owned.close()
        errors |= {tp: error for tp, error in closing.errors.items() if tp not in errors}
    if closing.failure is not None:
        raise closing.failure


_Pass = TypeVar("_Pass", "CompactionResult", "RetentionResult")


def passes(
    logdir: Path,
    chosen: Sequence[TopicPartition],
    preview: Callable[[TopicPartition], _Pass | None],
    run: Callable[[OwnedDir, TopicPartition], Iterable[_Pass]],
    *,
    dry_run: bool,
) -> tuple[list[_Pass], Errors]:
    """Runs passes over each partition and removes the files that they replace, or with `dry_run` their previews;
    returns the results and errors."""
    results: list[_Pass] = []
    errors: dict[TopicPartition, Exception] = {}

    def changed(owned: OwnedDir, tp: TopicPartition) -> None:
        for result in run(owned, tp):
            results.append(result)
            for path in result.files:
                owned.disk.unlink(path)

    if dry_run:
        errors = each(chosen, lambda tp: results.extend(filter(None, [preview(tp)])))
    else:
        with owned_dir(logdir, errors, only=chosen) as owned:
            errors |= each(chosen, lambda tp: changed(owned, tp))
    return results, errors


def report(
    ctx: click.Context,
    results: Sequence[_Result],
    errors: Errors,
    print_result: Callable[[_Result], None],
    as_object: Callable[[_Result], dict[str, Any]] | None,
    *,
    footer: Callable[[], None] = lambda: None,
    **more: object,
) -> None:
    """Prints results and then `footer`, or with `as_object` one JSON object that has `more` in it; and errors. Exits
    with code 4 if there are errors."""
    if as_object is not None:
        failed = [{**asdict(tp), "error": text_of(error)} for tp, error in sorted(errors.items())]
        print_json({"partitions": [as_object(result) for result in results], "failed": failed, **more})
    else:
        for result in results:
            print_result(result)
        footer()
    fail_with(ctx, errors.values())


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


def _keys(ctx: click.Context, _param: click.Parameter, pairs: tuple[tuple[str, str], ...]) -> None:
    ctx.meta["kafkafs.tier_keys"] = {name: Path(file).absolute() for name, file in pairs}


def TIER(command: Callable[..., Any]) -> Callable[..., Any]:  # noqa: N802 - one of the options
    """`--tier` and `--tier-key`: for whatever opens a log directory in the command (`tier`)."""
    where = "Where remote segments of tiered topics are: a directory, or a URL like s3://bucket/prefix."
    key = "A private key (PEM) for encrypted segments."
    for option in (
        click.option(
            "--tier-key",
            type=Parsed("ID=FILE", lambda text: pair(text, "ID=FILE")),
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
    from storage.tier.tier import Tier

    return Tier(places, keys)


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


def _moment(text: str) -> int:
    from kafkafs.reading.range_names import parse_moment

    return parse_moment(text, today())


MOMENT: Final = Parsed("TIME", _moment)
"""A time as in the range names, in epoch milliseconds; the beginning of a period."""


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
