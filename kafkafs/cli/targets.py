"""TP on the command line: `topic`, `topic/partition` or a glob."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import say, show_as
from kafkafs.cli.shared_options import READS_ANEW, tier
from storage.errors import StorageError, UnknownTopicOrPartition
from storage.files import names
from storage.types import TopicPartition

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from storage.log.log_dir import LogDir


def expand(log_dir: LogDir, pattern: str | None) -> list[TopicPartition]:
    """The partitions that TP names (None: all), by topic and number. UnknownTopicOrPartition if it names none.

    In a glob `*`, `?` and `[…]` mean what they mean in a shell, on either side of the slash.
    """
    partitions = [
        tp
        for topic in log_dir.topics()
        for tp in (TopicPartition(topic, partition) for partition in log_dir.partitions(topic))
        if is_named(tp, pattern)
    ]
    if not partitions and pattern is not None:
        what = f"no topic or partition here is named {pattern}"
        raise UnknownTopicOrPartition(what, path=log_dir.path, advice=_meant(log_dir, pattern))
    return partitions


def expand_topics(log_dir: LogDir, patterns: Sequence[str]) -> list[str]:
    """The topics that these names and globs name (none: all), in this order. UnknownTopicOrPartition."""
    topics: list[str] = []
    for pattern in patterns:
        named = [topic for topic in log_dir.topics() if fnmatchcase(topic, pattern)]
        if not named:
            check_topic(log_dir, pattern)
        topics += named
    return list(dict.fromkeys(topics)) if patterns else log_dir.topics()


def check_topic(log_dir: LogDir, topic: str) -> None:
    """Raises UnknownTopicOrPartition, with the name that is probably meant, if there is no such topic."""
    if topic not in log_dir.topics():
        name = topic.partition("/")[0]
        advice = f"Name the topic alone: {name}" if name in log_dir.topics() else _meant(log_dir, topic)
        raise UnknownTopicOrPartition(f"no topic {topic!r} here", path=log_dir.path, advice=advice)


def _meant(log_dir: LogDir, pattern: str) -> str | None:
    """A hint for a name that names nothing here."""
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
    """A topic, a partition or a glob: completed to topics, and after a slash to partitions."""

    name = "TP"

    def _names_in(self, log_dir: LogDir, incomplete: str) -> list[str]:
        return [str(tp) for tp in expand(log_dir, None)] if "/" in incomplete else log_dir.topics()


def without_slash(name: str) -> str:
    """`orders/0/` as `orders/0`."""
    return name.rstrip("/") or name


class LogDirPath(click.Path):
    """The path of a log directory; for the URL of a backup in an object store, that of the directory that shows the
    backup. `anew`: for commands that read everything once; they take nothing from the cache of stores and tiers."""

    def __init__(self, *, anew: bool = False) -> None:
        super().__init__(path_type=Path)
        self._anew = anew

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if ctx is not None and self._anew:
            ctx.meta[READS_ANEW] = True
        if isinstance(value, str) and "://" in value and not (ctx is not None and ctx.resilient_parsing):
            return opened_url(value, anew=self._anew)
        return super().convert(value, param, ctx)


def opened_url(url: str, *, anew: bool = False) -> Path:
    """The directory that shows the backup at a URL: see `open_stored`."""
    from storage.log.stored_dir import backup_at, open_stored

    path = open_stored(url, anew=anew)
    show_as(path, backup_at(path).place.name)
    return path


LOGDIR = click.argument("logdir", type=LogDirPath())


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
