"""`kafkafs replay`: produces the messages of a log directory into a running cluster."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kafkafs.cli import fail_with, say, text_of
from kafkafs.cli.progress_bar import progress_bar
from kafkafs.cli.shared_options import OFFSETS, RENAMING, SCHEMAS, TIER, TIMES, check_destination, isolation_option
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir, say_remote
from kafkafs.cli.terminal import print_table
from kafkafs.cli.where import WHERE, refusals, where_filter
from storage.errors import StorageError, UnknownTopicOrPartition
from storage.files.names import KAFKAS_OWN_TOPICS
from storage.progress import working
from storage.types import Isolation, TopicPartition

if TYPE_CHECKING:
    from kafkafs.arrow.record_filter import Where
    from kafkafs.reading.range_names import OffsetSpec, TimeSpec
    from kafkafs.reading.selection import Question
    from kafkafs.replay.arrivals import ArrivalMap
    from kafkafs.replay.cluster import Cluster, TargetTopic
    from kafkafs.replay.registry_check import RegistryCheck
    from kafkafs.schemas.places import SchemaPlaces
    from storage.coordinators.groups import ConsumerGroup
    from storage.format.block import RecordBlock
    from storage.log.log_dir import LogDir
    from storage.progress import Progress

_OWN_KEYS: Final = ("retention.free.bytes", "message.format.version")  # unknown to a broker of 4.x
_PLACED: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


@click.command()
@LOGDIR
@click.argument("tps", metavar="TP...", nargs=-1, required=True, type=TopicPartitionPattern())
@click.option("--to", "servers", required=True, metavar="HOST:PORT[,...]", help="Brokers of the cluster.")
@click.option(
    "--command-config",
    "properties_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Properties of a client, as Kafka's tools take them: TLS, SASL, compression.type, linger.ms …",
)
@click.option(
    "--topic",
    "renamings",
    multiple=True,
    type=RENAMING,
    help="Produce the messages of topic OLD into NEW; may be repeated.",
)
@OFFSETS
@TIMES
@click.option("--key", metavar="K", help="Only messages with this key, found by an index of keys.")
@WHERE
@SCHEMAS
@isolation_option(Isolation.READ_COMMITTED)
@click.option("--create", is_flag=True, help="Create missing topics, with the source's partitions and configuration.")
@click.option("--groups", "all_groups", is_flag=True, help="Commit the offsets of all groups, mapped to the new ones.")
@click.option(
    "--group", "some_groups", multiple=True, metavar="G", help="Commit the offsets of this group; may be repeated."
)
@click.option(
    "--map",
    "map_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write old and new offsets to FILE, as JSON lines. If FILE exists, continue where its run ended.",
)
@click.option("--skip-too-large", is_flag=True, help="Leave out messages that the cluster refuses as too large.")
@click.option("--registry", "registry_url", metavar="URL", help="Warn of schema ids that this registry does not know.")
@click.option("--dry-run", is_flag=True, help="Produce nothing: show what would be produced, created and committed.")
@TIER
@click.pass_context
def replay(
    ctx: click.Context,
    logdir: Path,
    tps: tuple[str, ...],
    servers: str,
    properties_path: Path | None,
    renamings: tuple[tuple[str, str], ...],
    offsets: OffsetSpec | None,
    times: TimeSpec | None,
    key: str | None,
    expression: str | None,
    schemas: SchemaPlaces,
    isolation: str,
    create: bool,
    all_groups: bool,
    some_groups: tuple[str, ...],
    map_path: Path | None,
    skip_too_large: bool,
    registry_url: str | None,
    dry_run: bool,
) -> None:
    """Produce the messages of TPs into a running cluster.

    TP is a topic, topic/partition or a glob; globs leave out Kafka's own topics. Key, value, headers, timestamp,
    partition and the order within it are kept. Aborted messages and open transactions are left out, unless --isolation
    is read_uncommitted. If the cluster refuses a message, the error names its offset, and the rest of its partition is
    not produced (exit code 4). It needs the extra kafkafs[replay].

    With --map, the same command continues a killed run, without a missing or doubled message. If it cannot decide what
    has arrived, it produces nothing and exits with code 4. The ranges last-N and last-1h cannot be combined with --map.

    With --groups or --group, groups continue at the same message. Offsets are committed when all messages have arrived.
    The groups must have no active members in the cluster.

    \b
    kafkafs replay /var/kafka orders 'payments*' --to kafka:9092 --create --groups --map orders.map
    kafkafs replay /var/kafka orders/0 --to kafka:9093 --command-config client.properties --dry-run
    kafkafs replay /var/kafka orders --to kafka:9092 --topic orders=again --time 2026-11-20T10--
    kafkafs replay /var/kafka orders --to kafka:9092 --where "value_json->>'customer' = 'c-11'"
    kafkafs replay /var/kafka bid --to kafka:9092 --schemas bid=b.avsc --where "value_json->>'id'='7'"
    """
    from kafkafs.reading.selection import Question
    from kafkafs.replay.arrivals import ArrivalMap
    from kafkafs.replay.cluster import Cluster, check_topic

    question = Question(offsets, times, Isolation(isolation), None if key is None else os.fsencode(key))
    if map_path is not None and question.is_fixed:
        raise click.UsageError("with --map a range cannot begin with last-: the next run would mean other messages")
    if schemas and expression is None and registry_url is None:
        raise click.UsageError("--schemas is for --where and --registry")
    log_dir = open_log_dir(logdir)
    targets = _expand(log_dir, tps)
    renamed = dict(renamings)
    names = {topic: renamed.get(topic, topic) for topic in {tp.topic for tp in targets}}
    if unused := sorted(renamed.keys() - names.keys()):
        raise click.UsageError(f"--topic: {unused[0]} is not among the topics that are replayed")
    if len(set(names.values())) < len(names):
        raise click.UsageError("--topic: two topics would become one, and their offsets could not be told apart")
    if owned := sorted(KAFKAS_OWN_TOPICS & set(names.values())):
        raise click.UsageError(f"{owned[0]} is written by brokers only; --topic OLD=NEW names another topic")
    if map_path is not None:
        check_destination(map_path, logdir)
    groups = _groups(log_dir, some_groups, targets) if all_groups or some_groups else []
    where = None if expression is None else where_filter(expression, log_dir, schemas, targets)
    registry = None if registry_url is None else _registry(registry_url, log_dir, schemas)
    try:
        cluster = Cluster(servers, _properties(properties_path))
    except ImportError as error:
        raise click.UsageError(f"replay needs confluent-kafka: install kafkafs[replay] ({error})") from None
    say_remote(log_dir, targets)
    with closing(cluster), refusals(where):
        topics = cluster.topics(set(names.values()))
        for topic, name in sorted(names.items()):
            if name not in topics and create:
                _create(cluster, log_dir, topic, name, dry_run)
                topics |= cluster.topics({name})
        decoded = f"schemas {schemas}" if expression is not None and schemas else None
        options = (isolation, offsets, times, key if key is None else f"key {key}", expression, decoded)
        head = {"cluster": cluster.cluster_id, "messages": ", ".join(str(part) for part in options if part is not None)}
        with closing(ArrivalMap(map_path, head, change=not dry_run)) as arrivals:
            source = _Source(log_dir, question, where, registry)
            chosen = []
            for tp in targets:
                name = names[tp.topic]
                if name in topics or not (create and dry_run):
                    chosen.append((tp, check_topic(topics.get(name), TopicPartition(name, tp.partition), servers)))
            if dry_run:
                fail_with(ctx, _preview(source, targets, names, arrivals, groups))
                return
            _say_times(topics.values())
            errors = _replay(cluster, source, chosen, arrivals, skip_too_large)
            _print_arrived(chosen, arrivals)
            if errors and groups:
                errors.append("no group was committed: messages are missing")
            elif groups:
                errors += _commit(cluster, groups, [tp for tp, _ in chosen], arrivals)
            if map_path is not None and not errors:
                _join(map_path, arrivals)
    fail_with(ctx, errors)


class _Source:
    """The messages that are replayed, as blocks of each partition."""

    def __init__(
        self,
        log_dir: LogDir,
        question: Question,
        where: Where | None,
        registry: RegistryCheck | None,
    ) -> None:
        from storage.format.decoder import Decoder

        self.log_dir = log_dir
        self._question, self._where, self._registry = question, where, registry
        self._decoder = Decoder()

    def blocks(self, tp: TopicPartition, first: int, progress: Progress) -> Iterator[RecordBlock]:
        """The wanted records at or after `first`; a block is valid until the next is taken. StorageError, OSError."""
        from kafkafs.reading.range_names import OffsetsFrom
        from kafkafs.reading.selection import RecordFilter
        from kafkafs.reading.unmounted import PartitionReader

        log, question = self.log_dir.log(tp), self._question
        if question.offsets is None and first:
            question = replace(question, offsets=OffsetsFrom(first))
        start = log.snapshot().log_start_offset
        at = max(start, first)
        with working(progress, str(tp), log.snapshot().log_end_offset - at):
            now_ms = self.log_dir.clock.now_ms()
            for block in PartitionReader(log, question, now_ms, self._decoder).blocks():
                end = int(block.offset[-1]) + 1
                block = RecordFilter(first=first).apply(block)
                if self._where is not None:
                    block = self._where(tp, block)
                for problem in self._registry.problems(tp.topic, block) if self._registry and len(block) else ():
                    say(f"warning: {problem}: see `kafkafs schemas --to`")
                if len(block):
                    yield block
                progress.advance(end - at)
                at = end


def _expand(log_dir: LogDir, patterns: Iterable[str]) -> list[TopicPartition]:
    """The partitions that the patterns name, each once. Globs leave Kafka's own topics out."""
    chosen = dict.fromkeys(
        tp
        for pattern in patterns
        for tp in expand(log_dir, pattern)
        if tp.topic not in KAFKAS_OWN_TOPICS or tp.topic == pattern.partition("/")[0]
    )
    if not chosen:
        raise UnknownTopicOrPartition("only Kafka's own topics match, and globs leave them out", path=log_dir.path)
    return list(chosen)


def _properties(path: Path | None) -> dict[str, str]:
    from kafkafs.replay.client_properties import translate
    from storage.format import properties

    if path is None:
        return {}
    config, unused = translate(properties.parse(path.read_bytes(), path), path)
    if unused:
        say(f"{path}: without effect here: {', '.join(unused)}")
    return config


def _registry(url: str, log_dir: LogDir, schemas: SchemaPlaces) -> RegistryCheck:
    from kafkafs.replay.registry_check import RegistryCheck
    from kafkafs.schemas.sources import schemas_of

    if not url.startswith(("http://", "https://")):
        raise click.UsageError("--registry is a URL of http or https")
    return RegistryCheck(url, schemas_of(log_dir, schemas).registry())


def _create(cluster: Cluster, log_dir: LogDir, topic: str, name: str, dry_run: bool) -> None:
    """Creates a topic with the source's partitions and configuration; a dry run only says so."""
    info = log_dir.topic_info(topic)
    partitions = max(info.partition_count or 0, log_dir.partitions(topic)[-1] + 1)
    config = {key: text for key, text in info.overrides.items() if key not in (*_OWN_KEYS, *_PLACED)}
    shown = "".join(f" {key}={text}" for key, text in sorted(config.items()))
    say(f"{'would create' if dry_run else 'creating'} topic {name} with {partitions} partitions{shown}")
    if not dry_run:
        cluster.create(name, partitions, config)


def _say_times(topics: Iterable[TargetTopic]) -> None:
    for topic in topics:
        if topic.has_append_time:
            say(f"note: {topic.name} has LogAppendTime at the target: messages get the time at which they arrive")


def _say_old(blocks: Iterator[RecordBlock], topic: TargetTopic, now_ms: int) -> Iterator[RecordBlock]:
    """The blocks; says if the first has messages that the target will soon remove."""
    for number, block in enumerate(blocks):
        if not number and not topic.has_append_time and 0 <= topic.retention_ms < now_ms - int(block.timestamp.min()):
            say(f"note: {topic.name} will remove messages that are older than its retention.ms, {topic.retention_ms}")
        yield block


def _replay(
    cluster: Cluster,
    source: _Source,
    chosen: list[tuple[TopicPartition, TargetTopic]],
    arrivals: ArrivalMap,
    skip_too_large: bool,
) -> list[object]:
    """Replays all partitions; returns the errors of those that failed."""
    from kafkafs.replay.replaying import Replay, TooLarge

    batch_bytes = min(topic.max_message_bytes for _, topic in chosen)
    work = Replay(cluster, arrivals, batch_bytes, skip_too_large=skip_too_large)
    errors: list[object] = []
    with progress_bar() as progress:
        for tp, topic in chosen:
            while True:
                known = arrivals.get(tp)
                blocks = source.blocks(tp, 0 if known is None else known.next_old, progress)
                try:
                    work.partition(tp, topic, _say_old(blocks, topic, source.log_dir.clock.now_ms()))
                except TooLarge as error:
                    known = arrivals.get(tp)
                    if skip_too_large and known is not None and error.offset is not None:
                        known.add(error.offset, -1)
                        continue
                    errors.append(error)
                except (StorageError, OSError) as error:
                    errors.append(error)
                break
        arrivals.flush()
    return errors


def _print_arrived(chosen: list[tuple[TopicPartition, TargetTopic]], arrivals: ArrivalMap) -> None:
    rows = []
    for tp, topic in chosen:
        known = arrivals.get(tp)
        if known is not None:
            rows.append((tp.topic, tp.partition, topic.name, known.messages, known.skipped, known.next_new))
    print_table(("TOPIC", "PARTITION", "TO", "MESSAGES", "TOO LARGE", "NEXT OFFSET"), rows)


def _preview(
    source: _Source,
    targets: list[TopicPartition],
    names: Mapping[str, str],
    arrivals: ArrivalMap,
    groups: list[ConsumerGroup],
) -> list[object]:
    """Prints what would be produced; returns errors."""
    from storage.progress import NoProgress

    rows: list[tuple[object, ...]] = []
    errors: list[object] = []
    for tp in targets:
        known = arrivals.get(tp)
        count, first, last = 0, None, None
        try:
            for block in source.blocks(tp, 0 if known is None else known.next_old, NoProgress()):
                count += len(block)
                first = int(block.offset[0]) if first is None else first
                last = int(block.offset[-1])
        except (StorageError, OSError) as error:
            errors.append(text_of(error))
        done = 0 if known is None else known.messages
        rows.append((tp.topic, tp.partition, names[tp.topic], count, first, last, done))
    print_table(("TOPIC", "PARTITION", "TO", "MESSAGES", "FIRST", "LAST", "ARRIVED"), rows)
    for group in groups:
        say(f"would commit group {group.name!r}")
    return errors


def _groups(log_dir: LogDir, names: Iterable[str], targets: list[TopicPartition]) -> list[ConsumerGroup]:
    """The groups with these names (none: all that have offsets of the targets). UnknownTopicOrPartition."""
    from storage.coordinators.groups import GroupOffsets
    from storage.coordinators.offset_records import GroupType

    offsets = GroupOffsets(log_dir)
    known = offsets.groups()
    for problem in offsets.problems():
        say(problem)
    for name in names:
        if name not in known:
            raise UnknownTopicOrPartition(f"there is no group {name!r} here", path=log_dir.path)
    chosen = [known[name] for name in dict.fromkeys(names)] or [group for _, group in sorted(known.items())]
    for group in chosen:
        if group.type in (GroupType.SHARE, GroupType.STREAMS):
            say(f"note: {group.name!r} is a {group.type.value} group: its offsets alone do not say where it continues")
    usable = [group for group in chosen if group.type not in (GroupType.SHARE, GroupType.STREAMS)]
    return [group for group in usable if any(tp.partition in group.offsets.get(tp.topic, ()) for tp in targets)]


def _commit(
    cluster: Cluster, groups: list[ConsumerGroup], targets: list[TopicPartition], arrivals: ArrivalMap
) -> list[object]:
    """Commits the groups' offsets of these partitions, as the cluster has them; returns errors."""
    errors: list[object] = []
    rows = []
    for group in groups:
        offsets = {}
        for tp in targets:
            committed, known = group.offsets.get(tp.topic, {}).get(tp.partition), arrivals.get(tp)
            if committed is not None and known is not None:
                place = TopicPartition(known.topic, tp.partition)
                offsets[place] = (known.new_offset(committed.offset), committed.metadata)
                rows.append((group.name, known.topic, tp.partition, committed.offset, offsets[place][0]))
        try:
            cluster.commit(group.name, offsets)
        except StorageError as error:
            errors.append(error)
            rows = [row for row in rows if row[0] != group.name]
    print_table(("GROUP", "TOPIC", "PARTITION", "OLD OFFSET", "OFFSET"), rows)
    return errors


def _join(path: Path, arrivals: ArrivalMap) -> None:
    from kafkafs.cli.whole_file import whole_file

    with whole_file(path) as file:
        file.writelines(arrivals.all_lines())
