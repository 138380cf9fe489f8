"""`kafkafs report`: a page about a log directory, for a colleague who does not have it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafs.cli import denied, fail_with, say, text_of
from kafkafs.cli.groups import logs_in, summary_of
from kafkafs.cli.process import use_default_signals
from kafkafs.cli.progress_bar import progress_bar
from kafkafs.cli.shared_options import TIER, check_destination
from kafkafs.cli.targets import LOGDIR, open_log_dir
from storage.errors import StorageError
from storage.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkafs.cli.report_page import Facts, Held, TopicFacts
    from storage.coordinators.transactions import TransactionalIds
    from storage.log.log_dir import LogDir
    from storage.log.snapshot import ReadableLog
    from storage.progress import Progress


@click.command()
@LOGDIR
@click.option(
    "-o", "output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.html", help="Default: stdout."
)
@click.option("--quick", is_flag=True, help="Do not read the logs: no numbers of messages, and nothing over time.")
@TIER
@click.pass_context
def report(ctx: click.Context, logdir: Path, output: Path | None, quick: bool) -> None:
    """Write a page about LOGDIR: one HTML file without scripts, to send to a colleague or to print.

    The page has what `doctor` says, sizes, messages and segments of each topic and what retention would remove now,
    messages and bytes over time, consumer groups with their lag, the open transactions that hold a last stable offset,
    and the configuration that differs from Kafka's defaults. The largest topics come first. All messages are read once.

    \b
    kafkafs report /var/kafka -o report.html
    kafkafs report /var/kafka --quick -o report.html

    Exit code 4 if something cannot be read; the page names it.
    """
    from kafkafs.cli.report_page import page
    from kafkafs.cli.whole_file import whole_file

    use_default_signals(ctx)
    log_dir = open_log_dir(logdir)
    if output is not None:
        check_destination(output, logdir)
    with progress_bar() as progress:
        facts = _facts(log_dir, logdir, quick, progress)
    parts = page(facts)
    if output is None:
        for part in parts:
            click.echo(part, nl=False)
    else:
        with whole_file(output) as file:
            for part in parts:
                file.write(part.encode())
    fail_with(ctx, [*facts.problems, *denied(facts.diagnosis.denied)])


def _facts(log_dir: LogDir, logdir: Path, quick: bool, progress: Progress) -> Facts:
    from kafkafs.cli.report_page import Facts, Held, TopicFacts
    from storage.coordinators.groups import GroupOffsets
    from storage.coordinators.transactions import transactional_ids
    from storage.diagnosis.examination import examine
    from storage.log.statistics import Statistics
    from storage.progress import working

    counted, problems = Statistics(), list[str]()
    topics, held = list[TopicFacts](), list[Held]()
    ids = transactional_ids(log_dir)
    for topic in log_dir.topics():
        facts = TopicFacts(topic)
        try:
            facts.config = log_dir.topic_info(topic).config.differing_texts()
        except (StorageError, OSError) as error:
            problems.append(f"{topic}: {text_of(error)}")
        for number in log_dir.partitions(topic):
            tp = TopicPartition(topic, number)
            try:
                log = log_dir.log(tp)
                snapshot = log.snapshot()
                facts.partitions += 1
                facts.segments += len(snapshot.segments)
                facts.size_bytes += snapshot.size_bytes
                if snapshot.remote_note is not None:
                    say(f"note: {snapshot.remote_note}")
                _add_retention(log_dir, tp, facts)
                held += _held(log, ids)
                if not quick:
                    with working(progress, str(tp), snapshot.size_bytes):
                        for _ in counted.add(snapshot, progress.advance):
                            pass
            except (StorageError, OSError) as error:
                problems.append(f"{tp}: {text_of(error)}")
        if topic in counted.topics:
            facts.messages = counted.topics[topic].messages
        topics.append(facts)
    problems += [f"{damage.tp}: {text_of(damage.error)}" for damage in counted.damages]
    offsets, logs = GroupOffsets(log_dir), logs_in(log_dir, None)
    by_id = cache(log_dir.topics_by_id)
    groups = [summary_of(group, logs, by_id) for _, group in sorted(offsets.groups().items())]
    return Facts(
        str(logdir), log_dir.clock.now_ms(), examine((logdir,), quick=quick, progress=progress),
        sorted(topics, key=lambda topic: (-topic.size_bytes, topic.name)), counted.over_time.histogram(),
        sorted(groups, key=lambda group: -(group["lag"] or 0)), held, [*problems, *offsets.problems()],
    )  # fmt: skip


def _add_retention(log_dir: LogDir, tp: TopicPartition, facts: TopicFacts) -> None:
    """Adds what retention would remove of a partition now."""
    from storage.upkeep.partition_retention import preview_partition
    from storage.upkeep.retention import disk_free_bytes

    result = preview_partition(log_dir, tp, free_bytes=disk_free_bytes(log_dir.path))
    if result is not None:
        facts.removed_segments += len(result.segments)
        facts.removed_bytes += result.size_bytes


def _held(log: ReadableLog, ids: TransactionalIds) -> Iterator[Held]:
    """The open transactions that hold the partition's last stable offset."""
    from storage.coordinators.transactions import partition_producers

    known = partition_producers(log)
    for producer in known.producers:
        if producer.current_txn_first_offset >= 0 and known.holds_back(producer):
            waiting = known.log_end_offset - known.last_stable_offset
            begun = known.begun[producer.producer_id]
            owner = ids.owner(producer.producer_id)
            yield log.tp, waiting, producer.producer_id, owner, producer.current_txn_first_offset, begun
