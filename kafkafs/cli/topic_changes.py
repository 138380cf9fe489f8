"""`kafkafs topics create`, `alter`, `delete`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafs.cli.passes import WAIT, owned_dir
from kafkafs.cli.shared_options import ParsedText, check_destination
from kafkafs.cli.targets import LOGDIR, TopicName, check_topic

if TYPE_CHECKING:
    from storage.directory.owned_dir import OwnedDir


TOPIC = click.argument("topic", type=TopicName())
PARTITIONS = click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="The number of partitions.")


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} is not in the form K=V")
    return key.strip(), value.strip()


CONFIG = click.option(
    "--config",
    "config",
    multiple=True,
    type=ParsedText("K=V", _setting),
    metavar="K=V",
    help="A topic configuration of Kafka's.",
)


@click.command()
@LOGDIR
@TOPIC
@PARTITIONS
@CONFIG
@WAIT
def create(logdir: Path, topic: str, partitions: int | None, config: tuple[tuple[str, str], ...]) -> None:
    """Create TOPIC in LOGDIR, which is created if necessary. The topic keeps everything unless configured otherwise.

    \b
    kafkafs topics create ./logs orders --partitions 3 --config cleanup.policy=compact
    """
    from storage.directory.guest_rules import check_topic_may_be_made_by_hand

    check_destination(logdir)
    check_topic_may_be_made_by_hand(topic)
    with _opened(logdir, create=True) as owned:
        owned.create_topic(topic, partitions, dict(config))


@click.command()
@LOGDIR
@TOPIC
@CONFIG
@click.option("--unset", multiple=True, metavar="K", help="Remove a configuration of the topic.")
@PARTITIONS
@WAIT
def alter(
    logdir: Path,
    topic: str,
    config: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
    partitions: int | None,
) -> None:
    """Change the configuration of TOPIC, or give it more partitions.

    \b
    kafkafs topics alter ./logs orders --config retention.ms=86400000 --unset compression.type
    """
    from storage.directory.guest_rules import check_topic_may_be_made_by_hand

    if not config and not unset and partitions is None:
        raise click.UsageError("nothing to alter: give --config, --unset or --partitions")
    with _opened(logdir) as owned:
        check_topic(owned.log_dir, topic)
        if partitions is not None:
            check_topic_may_be_made_by_hand(topic)
            owned.add_partitions(topic, partitions)
        if config or unset:
            owned.alter_config(topic, dict(config), unset)


@click.command()
@LOGDIR
@TOPIC
@WAIT
def delete(logdir: Path, topic: str) -> None:
    """Remove TOPIC from LOGDIR, with all its messages.

    \b
    kafkafs topics delete ./logs orders
    """
    with _opened(logdir) as owned:
        check_topic(owned.log_dir, topic)
        owned.delete_topic(topic)


@contextmanager
def _opened(logdir: Path, *, create: bool = False) -> Iterator[OwnedDir]:
    """The directory, opened without its logs. If it was not shut down cleanly, the next start still recovers it."""
    from storage.errors import InvalidConfig, InvalidTopic

    try:
        with owned_dir(logdir, {}, only=(), create=create) as owned:
            yield owned
    except (InvalidConfig, InvalidTopic) as error:
        raise click.UsageError(str(error)) from None
