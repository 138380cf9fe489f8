"""`kafkafs cat`: prints the views without a mount."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from kafkafs import compiled_kernels
from kafkafs.cli import say, text_of
from kafkafs.cli.process import DATA_ERROR, use_default_signals
from kafkafs.cli.shared_options import AT, DURATION, ISOLATION, OFFSETS, SCHEMAS, TIER, TIMES
from kafkafs.cli.targets import LOGDIR, TopicPartitionPattern, expand, open_log_dir
from kafkafs.cli.terminal import moment
from kafkafs.cli.where import WHERE, refusals, where_filter
from kafkafs.reading.range_names import LastMessages, OffsetSpec, TimeSpec
from storage.errors import StorageError
from storage.types import Isolation, TopicPartition

if TYPE_CHECKING:
    from kafkafs.arrow.record_filter import Where
    from kafkafs.cli.output import Output
    from kafkafs.formats.format import Format
    from kafkafs.reading.selection import Question
    from kafkafs.reading.unmounted import PartitionReader
    from kafkafs.schemas.places import SchemaPlaces
    from storage.format.block import RecordBlock
    from storage.log.log_dir import LogDir
    from storage.log.snapshot import ReadableLog

DECODED: Final = "decoded"
_POLL_SECONDS: Final = 0.15
_WINDOW_MS: Final = 1000


def _format(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    from kafkafs.formats import by_name

    if text == "decoded.jsonl":  # as the files of a mount are named
        return DECODED
    if text not in ("log", DECODED):
        try:
            by_name(text, TopicPartition("topic", 0))
        except ValueError as error:  # BadTemplate, without importing it
            raise click.BadParameter(str(error)) from None
    return text


def _headers(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[bytes, bytes], ...]:
    headers = []
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise click.BadParameter(f"{text!r} is not in the form NAME=VALUE")
        headers.append((os.fsencode(name), os.fsencode(value)))
    return tuple(headers)


@click.command()
@LOGDIR
@click.argument("tp", type=TopicPartitionPattern())
@OFFSETS
@TIMES
@click.option(
    "--format",
    "form",
    callback=_format,
    default="txt",
    show_default=True,
    metavar="F",
    help=r"txt, jsonl, decoded or decoded.jsonl (jsonl with keys and values decoded by their schemas), log (Kafka's own"
    r" bytes), or a template of kcat's letters: '%o %T %k %s\n'.",
)
@SCHEMAS
@click.option(
    "-f", "--follow", is_flag=True, help="Continue with later messages, until ^C or until the range is complete."
)
@click.option("-n", "most", type=click.IntRange(min=1), metavar="N", help="At most N messages, over all partitions.")
@click.option("--merge", is_flag=True, help="All partitions together, in the order of their timestamps.")
@click.option(
    "--window",
    "window_ms",
    type=DURATION,
    metavar="DURATION",
    help="With --merge and --follow: how long a message waits for earlier ones of other partitions  [default: 1s]",
)
@click.option("--latest", is_flag=True, help="Only each partition's last message of every key, without deleted keys.")
@AT
@click.option("--key", metavar="K", help="Only messages with this key, found by an index of keys.")
@click.option("--header", "headers", callback=_headers, multiple=True, metavar="N=V", help="Only with this header.")
@WHERE
@ISOLATION
@TIER
@click.pass_context
def cat(
    ctx: click.Context,
    logdir: Path,
    tp: str,
    offsets: OffsetSpec | None,
    times: TimeSpec | None,
    form: str,
    schemas: SchemaPlaces,
    follow: bool,
    most: int | None,
    merge: bool,
    window_ms: int | None,
    latest: bool,
    at_ms: int | None,
    key: str | None,
    headers: tuple[tuple[bytes, bytes], ...],
    expression: str | None,
    isolation: str,
) -> None:
    """Print the messages of TP: the same bytes as in the files of a mount.

    TP is a topic, topic/partition or a glob like 'orders*/0'. Partitions are printed one after the other, or with
    --merge together, in the order of their timestamps. Ranges apply to each partition. --key and --time use indexes
    in the user's cache directory; with --latest, --key and --header choose among the last messages. A key whose
    messages are in several partitions, for example because partitions were added, has a last message in each.

    \b
    kafkafs cat /var/kafka orders
    kafkafs cat /var/kafka orders/0 --offsets last-10 --format jsonl
    kafkafs cat /var/kafka orders --time 2026-11-20T10--2026-11-20T12 --key k17
    kafkafs cat /var/kafka orders --offsets -10 --follow
    kafkafs cat /var/kafka 'orders*' --merge --follow --format jsonl
    kafkafs cat /var/kafka customers --latest --format jsonl
    kafkafs cat /var/kafka customers --latest --at 2026-11-20T10:15
    kafkafs cat /var/kafka orders --where "value_json->>'customer' = 'c-11' AND key IS NOT NULL"

    Template letters: %s value, %S its length (-1: null), %R that as 4 bytes, %k key, %K its length, %t topic, %p
    partition, %o offset, %T timestamp in ms, %h headers, %%; \\n \\t \\r \\xNN. A null prints nothing, a null header
    value NULL.

    Exit code 4: damage; offsets that begin above the end of a partition, whatever other partitions have; a line of more
    than 64 MiB, which is left out; with --key alone, no message has the key.
    """
    from kafkafs.reading.selection import DEFAULT_LATEST_BYTES, Question

    use_default_signals(ctx)
    if form == "log" and (key is not None or headers or expression is not None or most is not None or merge):
        raise click.UsageError(
            "--format log prints whole batches; it cannot be combined with --key, --header, --where, --merge or -n"
        )
    if form != DECODED and schemas and expression is None:
        raise click.UsageError("--schemas is for --format decoded and --where")
    if latest and (form == "log" or follow or offsets is not None or times is not None):
        raise click.UsageError(
            "--latest means the whole log, message by message, as it is now; it cannot be combined "
            "with --offsets, --time, --follow or --format log"
        )
    if at_ms is not None and not latest:
        raise click.UsageError("--at is for --latest; --time chooses messages by their timestamps")
    if window_ms is not None and not (merge and follow):
        raise click.UsageError("--window is for --merge with --follow")
    log_dir = open_log_dir(logdir)
    targets = expand(log_dir, tp)
    if form == "log" and len(targets) != 1:
        raise click.UsageError(f"--format log takes one partition; {tp} means {len(targets)}")
    memory = DEFAULT_LATEST_BYTES if latest else None
    question = Question(
        offsets, times, Isolation(isolation), None if key is None else os.fsencode(key), headers, memory
    )
    make_format = _decoded(log_dir, schemas, targets) if form == DECODED else _plain(form)
    if question.key is not None:
        targets = _in_order_for(question.key, log_dir, targets)
    slow = compiled_kernels.slowness()
    if slow is not None:
        say(slow)
    added = partial(_added, log_dir, tp, set(targets)) if form != "log" else list[TopicPartition]
    where = None if expression is None else where_filter(expression, log_dir, schemas, targets)
    window = (window_ms or _WINDOW_MS) if merge else None
    with refusals(where):
        printed = _print(log_dir, targets, question, make_format, added if follow else None, where, most, window, at_ms)
    if printed.failed:
        ctx.exit(DATA_ERROR)
    if key is not None and not printed.messages and not (offsets or times or headers or expression or latest or follow):
        say(f"{logdir}: no message of {tp} has the key {key!r}")  # in the tree there is no such file
        ctx.exit(DATA_ERROR)


def _in_order_for(key: bytes, log_dir: LogDir, targets: list[TopicPartition]) -> list[TopicPartition]:
    """The partitions by topic. In each topic the partition comes first that producers choose for the key, as in `keys`
    of a mount."""
    from storage.append.partitioner import in_order_for_key

    partitions: dict[str, list[int]] = {}
    for tp in targets:
        partitions.setdefault(tp.topic, []).append(tp.partition)
    return [
        TopicPartition(topic, partition)
        for topic, numbers in partitions.items()
        for partition in in_order_for_key(key, numbers, _count(log_dir, topic))
    ]


def _added(log_dir: LogDir, pattern: str, known: set[TopicPartition]) -> list[TopicPartition]:
    """The partitions that TP names and that are not in `known`; adds them to `known`."""

    try:
        log_dir.refresh()
        added = [tp for tp in expand(log_dir, pattern) if tp not in known]
    except (StorageError, OSError):
        return []  # the readers of the removed partitions report it
    known.update(added)
    return added


def _count(log_dir: LogDir, topic: str) -> int:
    """How many partitions a topic has, as far as it is known here."""
    known = log_dir.topic_info(topic).partition_count
    return log_dir.partitions(topic)[-1] + 1 if known is None else known


MakeFormat = Callable[[TopicPartition], "Format | None"]
"""The format for a partition, as of now; None: the log's own bytes."""


def _plain(form: str) -> MakeFormat:
    from kafkafs.formats import by_name

    return lambda tp: None if form == "log" else by_name(form, tp)


def _decoded(log_dir: LogDir, places: SchemaPlaces, targets: list[TopicPartition]) -> MakeFormat:
    """A function that makes decoded formats, by the schemas of the log directory or at other places; Kafka's own topics
    need no schemas. A format is used until schemas appear that it lacks."""
    from kafkafs.decoding.decoded_jsonl import DecodedJsonl
    from kafkafs.schemas.sources import schemas_of
    from kafkafs.schemas.steady_schemas import SteadySchemas
    from storage.format.messages import GROUPS

    source = schemas_of(log_dir, places)
    needed = any(tp.topic not in GROUPS for tp in targets)
    if needed and not source.registry() and source.problem:
        raise StorageError(f"the schemas cannot be read: {source.problem}")
    if needed and not source.registry():
        raise click.UsageError(
            f"there are no schemas in {places.directory or log_dir.path}: --format decoded needs the topic _schemas"
            " there, or --schemas PATH, or --schemas TOPIC=FILE"
        )
    formats: dict[TopicPartition, tuple[Format, SteadySchemas]] = {}

    def make(tp: TopicPartition) -> Format:
        if tp not in formats or formats[tp][1].is_outdated():
            schemas = SteadySchemas(source)
            formats[tp] = DecodedJsonl(tp, schemas), schemas
        return formats[tp][0]

    return make


def _print(
    log_dir: LogDir,
    targets: list[TopicPartition],
    question: Question,
    make_format: MakeFormat,
    added: Callable[[], list[TopicPartition]] | None,
    where: Where | None,
    most: int | None,
    window_ms: int | None,
    at_ms: int | None,
) -> _Printer:
    """Prints all partitions, but at most `most` messages; returns the printer. `added`: follow the partitions, and also
    those that it returns later, from their beginning. `window_ms`: merge them; see `--window`. `at_ms`: print them as
    they were at that time."""
    from kafkafs.cli.output import Output, stdout_sink
    from kafkafs.reading.unmounted import PartitionReader
    from storage.format.decoder import Decoder

    output = Output()
    printer = _Printer(output, most, log_dir.clock.now_ms)
    now_ms = log_dir.clock.now_ms()
    decoder = Decoder()

    def make(_: Output) -> None:
        def source_of(tp: TopicPartition, question: Question) -> _Source:
            note = _remote_note(log_dir, tp, question)
            if note is not None:
                output.report(note)
            follow, log = added is not None, log_dir.log(tp)
            if at_ms is not None:
                log = _log_at(log_dir, log, at_ms, output)
            # A block is valid until its decoder decodes again, and a merge holds one of each partition.
            own = decoder if window_ms is None else Decoder()
            reader = PartitionReader(log, question, now_ms, own, follow=follow, note=output.report)
            return _Source(tp, reader, partial(make_format, tp), None if where is None else partial(where, tp))

        def source_of_new(tp: TopicPartition) -> _Source:
            return source_of(tp, question.of_new())

        sources = (source_of(tp, question) for tp in targets if printer.left != 0)
        if window_ms is not None:
            printer.merge(sources, window_ms, None if added is None else lambda: map(source_of_new, added()))
            return
        following = [source for source in sources if printer.print(source) and not source.reader.done]
        while following and added is not None and printer.left != 0:
            output.flush()
            output.wait(_POLL_SECONDS)
            following += map(source_of_new, added())
            following = [source for source in following if printer.print(source) and not source.reader.done]

    output.run(make, stdout_sink(), say)
    return printer


def _log_at(log_dir: LogDir, log: ReadableLog, at_ms: int, output: Output) -> ReadableLog:
    """The log as it was at a time. Reports on stderr if it is incomplete."""
    from storage.log.earlier import EarlierLog, completeness

    known = completeness(log_dir, log.snapshot(), at_ms)
    problem = known.problem(log.tp, moment(known.from_ms or 0))
    if problem is not None:
        output.report(f"note: {problem}")
    return EarlierLog(log, at_ms)


def _remote_note(log_dir: LogDir, tp: TopicPartition, question: Question) -> str | None:
    """The note about messages in tiered storage that may be missing; None for explicit offsets, where reading fails."""

    try:
        snapshot = log_dir.log(tp).snapshot()
    except (StorageError, OSError):
        return None  # reading reports it
    local_count = snapshot.log_end_offset - snapshot.log_start_offset
    asked = question.offsets
    may_be_short = asked is None or (isinstance(asked, LastMessages) and asked.most > local_count)
    return f"note: {snapshot.remote_note}" if snapshot.remote_note is not None and may_be_short else None


class _Source(NamedTuple):
    """A partition to print. `make_format` makes its format; None: the log's own bytes."""

    tp: TopicPartition
    reader: PartitionReader
    make_format: Callable[[], Format | None]
    where: Callable[[RecordBlock], RecordBlock] | None = None

    def blocks(self) -> Iterator[RecordBlock]:
        """The wanted messages, as from PartitionReader.blocks."""
        blocks = self.reader.blocks()
        return blocks if self.where is None else map(self.where, blocks)


class _Printer:
    """Prints partitions. What cannot be read is reported (`failed`), and printing continues with the next partition;
    after a message that is too long, with the next message."""

    def __init__(self, output: Output, most: int | None, now_ms: Callable[[], int]) -> None:
        self.failed = False
        self.messages = 0
        self.left = most  # messages that may yet be printed; None: any number
        self._output = output
        self._now_ms = now_ms

    def print(self, source: _Source) -> bool:
        """Prints the messages that a source has now. False if an error ended this."""
        try:
            form = source.make_format()
            if form is None:
                for part in source.reader.raw():
                    self._output.put(part)
            else:
                for block in source.blocks():
                    self._put(source, form, block)
                    if self.left == 0:
                        break
        except (StorageError, OSError) as error:
            self._fail(error)
            return False
        self.failed |= source.reader.failed
        return True

    def merge(self, sources: Iterable[_Source], window_ms: int, added: Callable[[], Iterable[_Source]] | None) -> None:
        """Prints all messages in the order of their timestamps. `added`: follow the sources, and also those that it
        returns later."""
        from kafkafs.cli.merge import Due, Merge

        merge: Merge[_Source] = Merge(time.monotonic)
        for source in sources:
            merge.add(source, partial(self._reading, source))
        while True:
            due = None
            if added is not None:
                due = Due(self._now_ms() - window_ms, time.monotonic() - window_ms / 1000)
            forms: dict[TopicPartition, Format] = {}
            for source, block in merge.parts(due):
                form = forms.get(source.tp) or source.make_format()
                if form is not None:
                    forms[source.tp] = form
                    self._put(source, form, block)
                if self.left == 0:
                    return
            if added is None or merge.is_empty:
                return
            self._output.flush()
            self._output.wait(_POLL_SECONDS)
            for source in added():
                merge.add(source, partial(self._reading, source))

    def _reading(self, source: _Source) -> Iterator[RecordBlock] | None:
        """Return the blocks that a source has now, or None at its end. An error ends the source."""
        if source.reader.done:
            return None
        return self._until_error(source)

    def _until_error(self, source: _Source) -> Iterator[RecordBlock]:
        try:
            yield from source.blocks()
        except (StorageError, OSError) as error:
            source.reader.done = True
            self._fail(error)
        self.failed |= source.reader.failed

    def _fail(self, error: Exception) -> None:
        self.failed = True
        self._output.report(text_of(error))

    def _put(self, source: _Source, form: Format, block: RecordBlock) -> None:
        if self.left is not None:
            block = block.select(slice(0, self.left)) if len(block) > self.left else block
            self.left -= len(block)
        self.messages += len(block)
        for error in self._output.render(form, block):
            self.failed = True
            self._output.report(f"{source.tp}: {error}")
