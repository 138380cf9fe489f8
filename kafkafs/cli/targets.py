"""TP on the command line: `topic`, `topic/partition` or a glob."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from storage.errors import BadDestination, NotALogDir, StorageError, UnknownTopicOrPartition
from storage.files import names
from storage.types import TopicPartition

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from storage.log.log_dir import LogDir


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
        meant = names.parse_dir(pattern).partition
        advice = None
        if meant is not None and meant.topic in log_dir.topics() and meant.partition in log_dir.partitions(meant.topic):
            advice = f"A partition is written as topic/number: {meant}"
        what = f"no topic or partition here is named {pattern}"
        raise UnknownTopicOrPartition(what, path=log_dir.path, advice=advice)
    return found


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


class TopicPartitionPattern(click.ParamType[str]):
    """The text unchanged. A shell completes it to topics and partitions of the LOGDIR before it."""

    name = "TP"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _items(_names(ctx, partitions="/" in incomplete), incomplete)


class TopicName(click.ParamType[str]):
    """The text unchanged. A shell completes it to topics of the LOGDIR before it."""

    name = "TOPIC"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _items(_names(ctx, partitions=False), incomplete)


LOGDIR = click.argument("logdir", type=click.Path(path_type=Path))


def open_log_dir(path: Path) -> LogDir:
    """Opens a log directory for reading. OSError if it cannot be listed."""
    from storage.log.log_dir import LogDir

    return LogDir.open_read_only(path)


def check_destination(path: Path, *sources: Path) -> None:
    """Raises BadDestination where a command may make nothing: where storage's function of this name forbids it, and in
    the tree of a mount, where a new directory would be a topic."""
    from kafkafs.mounting.mountpoint import absolute, tree_around
    from storage.log.places import check_destination as check

    check(path, *sources)
    tree = tree_around(absolute(path))
    if tree is not None:
        what = f"lies in the tree of {tree.source} at {tree.path}"
        raise BadDestination(what, path=path, advice="Name another place: a directory there is a topic")


def meant_by(error: NotALogDir) -> str:
    """What to tell of a directory that is no log directory: also which one a tree shows."""
    from kafkafs.mounting.mountpoint import absolute, tree_around

    tree = None if error.path is None else tree_around(absolute(error.path))
    if tree is not None:
        found, advice = f"the tree of one at {tree.path}", f"The log directory is {tree.source}"
        error = NotALogDir("not a log directory", path=error.path, found=found, advice=advice)
    return str(error)


def _items(names: list[str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _names(ctx: click.Context, *, partitions: bool) -> list[str]:
    path = ctx.params.get("logdir")
    try:
        log_dir = open_log_dir(Path(path)) if path else None
    except (OSError, StorageError):
        return []
    if log_dir is None:
        return []
    if partitions:
        return [str(tp) for tp in expand(log_dir, None)]
    return log_dir.topics()
