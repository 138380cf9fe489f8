"""`kafkafs mirror`: copies logs to another directory, byte for byte."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from kafkafs.cli import say, text_of
from kafkafs.cli.passes import WAIT, owned_dir
from kafkafs.cli.process import DATA_ERROR
from kafkafs.cli.progress_bar import progress_bar
from kafkafs.cli.shared_options import AS_JSON, MOMENT, RENAMING, TIER, ParsedText, check_destination, pair
from kafkafs.cli.targets import LogDirPath, TopicPartitionPattern, expand, open_log_dir
from kafkafs.cli.terminal import print_json, print_table
from storage.errors import UnknownTopicOrPartition
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.backup.manifest_recorder import ManifestRecorder
    from storage.backup.mirror import Mirror, Mirrored
    from storage.directory.owned_dir import OwnedDir
    from storage.files.manifest import Manifest
    from storage.log.log_dir import LogDir
    from storage.types import OffsetRange

_LOOK_AGAIN_S = 0.1
_FLUSH_S = 5.0


@click.command()
@click.argument("src", type=LogDirPath(anew=True))
@click.argument("dest", type=click.Path(file_okay=False))
@click.argument("tp", required=False, type=TopicPartitionPattern())
@click.option("--follow", is_flag=True, help="Keep copying new messages until interrupted.")
@click.option(
    "--until",
    "until_ms",
    type=MOMENT,
    help="Cut each partition after its last batch with a message at or before TIME (2026-11-20T10:15, UTC without a "
    "zone, or epoch milliseconds).",
)
@click.option(
    "--rename",
    "renamings",
    multiple=True,
    type=RENAMING,
    help="Give the topic OLD the name NEW in DEST; may be repeated.",
)
@click.option(
    "--manifest",
    "manifest_path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="List in FILE what was copied, with digests, for `verify --manifest`. Adds to a FILE that exists.",
)
@click.option("--force", is_flag=True, help="Also copy into partitions that have several replicas.")
@click.option(
    "--delete",
    is_flag=True,
    help="Remove from the store what SRC no longer has, and what interrupted runs have left there.",
)
@click.option(
    "--store-option",
    "store_options",
    multiple=True,
    type=ParsedText("KEY=VALUE", lambda text: pair(text, "KEY=VALUE")),
    help="A parameter of each upload, as the store takes it: StorageClass=STANDARD_IA or ServerSideEncryption=AES256.",
)
@WAIT
@AS_JSON
@TIER
@click.pass_context
def mirror(
    ctx: click.Context,
    src: Path,
    dest: str,
    tp: str | None,
    follow: bool,
    until_ms: int | None,
    renamings: tuple[tuple[str, str], ...],
    manifest_path: Path | None,
    force: bool,
    delete: bool,
    store_options: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """Copy the log of TP, by default everything, from SRC into DEST, batch by batch.

    Use it for backups: each run copies what is new, with the same offsets. TP is a topic, topic/partition or a glob.
    SRC is only read, and may be a running broker's. SRC and DEST are directories, or URLs of an object store such as
    s3://bucket/prefix. A topic that DEST lacks is created with SRC's configuration, but keeps everything. If DEST is a
    broker's directory, only topics that the broker has created are copied.

    With --until, every partition is cut at the same moment. Batches stay whole: if the last batch also has later
    messages, their number is reported.

    With --manifest, `kafkafs verify DEST --manifest FILE` shows whether anything is missing or has changed. The
    manifest is written last, and only if every partition was copied. An interrupted run leaves the previous manifest
    untouched; the next run continues.

    \b
    kafkafs mirror /var/kafka /backup/kafka
    kafkafs mirror /var/kafka /backup/kafka 'orders*' --follow
    kafkafs mirror /var/kafka /backup/kafka --until 2026-11-20T10:15 --manifest /backup/kafka.json
    """
    from storage.files import manifest
    from storage.files.disk import RealDisk

    if follow and until_ms is not None:
        raise click.UsageError("--follow and --until cannot be combined")
    source = open_log_dir(src)
    renamed = _renamed(source, renamings, follow)
    begun = Begun(source, partial(_wanted, tp=tp, follow=follow), until_ms, renamed, manifest_path)
    if "://" in dest:
        if follow or force:
            raise click.UsageError("--follow and --force are for a DEST that is a directory")
        done = _to_store(begun, dest, dict(store_options), delete=delete)
    else:
        if delete or store_options:
            raise click.UsageError("--delete and --store-option are for a DEST that is a URL")
        done = _to_directory(begun, src, Path(dest), follow=follow, force=force)
    results = [done.copy.results[partition] for partition in sorted(done.copy.results)]
    errors = [*(result.error for result in results if result.error is not None), *done.errors]
    written = manifest_path if done.manifest is not None and not errors else None
    if written is not None and done.manifest is not None:
        manifest.write(RealDisk(), written, done.manifest)
    recorder = done.copy.recorder
    unlisted = {} if recorder is None else recorder.found
    if as_json:
        json_rows = [_json(result, unlisted.get(result.tp)) for result in results]
        place = written or done.place
        print_json(
            {"partitions": json_rows, "continued": done.continues, "manifest": None if place is None else str(place)}
        )
    else:
        rows = [(str(r.tp), r.first_offset, r.log_end_offset, r.size_bytes) for r in results]
        print_table(("PARTITION", "FROM", "END", "BYTES"), rows)
    for note in _notes(results, unlisted, manifest_path, dest if done.continues else None):
        say(note)
    for text in dict.fromkeys(map(text_of, errors)):
        say(text)
    if errors:
        if manifest_path is not None:
            say(f"{manifest_path} was not written, because not everything was copied")
        ctx.exit(DATA_ERROR)


class Begun(NamedTuple):
    """The source and choice of a copy, as `Mirror` takes them. `manifest_path`: where the manifest is written."""

    source: LogDir
    wanted: Callable[[LogDir], list[TopicPartition]]
    until_ms: int | None
    renamed: Mapping[str, str]
    manifest_path: Path | None


class Done(NamedTuple):
    """The outcome of a copy. `errors`: besides those in the results. `place`: of a store's own manifest. `continues`:
    an earlier run was interrupted."""

    copy: Mirror
    errors: Sequence[Exception]
    manifest: Manifest | None
    place: str | None = None
    continues: bool = False


def _to_directory(begun: Begun, src: Path, dest: Path, *, follow: bool, force: bool) -> Done:
    from storage.backup.directory_copy import DirectoryCopy
    from storage.backup.mirror import Mirror

    check_destination(dest, src)
    recorder = None if begun.manifest_path is None else _recorder(begun.manifest_path, src, dest)
    interrupted = _was_interrupted(dest)
    unclosed: dict[TopicPartition, Exception] = {}
    with owned_dir(dest, unclosed, create=True) as owned:
        with progress_bar() as progress:
            target = DirectoryCopy(owned, force)
            copy = Mirror(begun.source, target, begun.wanted, progress, begun.until_ms, begun.renamed, recorder)
            copy.run()
        if follow:
            _follow(copy, owned)
    for tp, error in unclosed.items():
        result = copy.results.get(tp)
        if result is not None and result.error is None:
            result.error = error  # what was copied may not be on the disk
    complete_manifest = None
    if recorder is not None and not unclosed and not any(result.error for result in copy.results.values()):
        complete_manifest = recorder.manifest(begun.until_ms, begun.source.clock.now_ms(), dest)
    return Done(
        copy,
        [error for tp, error in unclosed.items() if tp not in copy.results],
        complete_manifest,
        continues=interrupted,
    )


def _to_store(begun: Begun, url: str, options: Mapping[str, str], *, delete: bool) -> Done:
    from storage.backup.manifest_recorder import ManifestRecorder
    from storage.backup.mirror import Mirror
    from storage.backup.store_copy import StoreCopy
    from storage.log.places import STORED_MANIFEST
    from storage.log.stored_dir import read_manifest
    from storage.tier.object_places import open_place

    if begun.manifest_path is not None:
        _check_manifest(begun.manifest_path, begun.source.path)
    place = open_place(url, options)
    gc.freeze()  # each upload leaves cycles of objects; finding them is quick without the objects that exist already
    try:
        recorder = ManifestRecorder(read_manifest(place))
        with StoreCopy(place, recorder, delete=delete) as target, progress_bar() as progress:
            copy = Mirror(begun.source, target, begun.wanted, progress, begun.until_ms, begun.renamed, recorder)
            copy.run()
            complete_manifest = target.finish(begun.until_ms, begun.source.clock.now_ms())
    finally:
        gc.unfreeze()
    return Done(copy, [], complete_manifest, place.object_name(STORED_MANIFEST))


def _renamed(source: LogDir, renamings: tuple[tuple[str, str], ...], follow: bool) -> dict[str, str]:
    renamed = dict(renamings)
    if len(renamed) < len(renamings):
        raise click.UsageError("--rename gives a topic two names")
    unknown = [old for old in renamed if old not in source.topics()]
    if unknown and not follow:
        raise click.UsageError(f"--rename: SRC has no topic {', '.join(unknown)}")
    return renamed


def _recorder(path: Path, src: Path, dest: Path) -> ManifestRecorder:
    """A recorder that continues the present manifest. Raises, before anything is copied, errors that would keep the
    manifest from being written."""
    from storage.backup.manifest_recorder import ManifestRecorder
    from storage.files import manifest

    _check_manifest(path, src, dest)
    return ManifestRecorder(manifest.read(path))


def _check_manifest(path: Path, *others: Path) -> None:
    """Raises UsageError or BadDestination if no manifest can be written at `path`."""
    if not path.parent.is_dir():
        raise click.UsageError(f"--manifest: there is no directory {path.parent}")
    check_destination(path, *others)


def _was_interrupted(dest: Path) -> bool:
    """Whether a log directory has partitions and was not closed in order, as a killed mirror leaves it."""
    from storage.files import names
    from storage.files.opening import exists

    return (
        dest.is_dir()
        and any(dest.iterdir())
        and not exists(dest / names.CLEAN_SHUTDOWN)
        and bool(open_log_dir(dest).topics())
    )


def _notes(
    results: list[Mirrored],
    unlisted_ranges: Mapping[TopicPartition, OffsetRange],
    manifest_path: Path | None,
    interrupted: str | None,
) -> Iterator[str]:
    """The notes about a mirror that worked."""
    if interrupted is not None:
        yield f"{interrupted} was not closed in order; this run continued where each partition ended"
    for result in results:
        if result.remote_note is not None:
            yield f"note: {result.remote_note}: they were not copied"
        unlisted = unlisted_ranges.get(result.tp)
        if unlisted is not None:
            yield (
                f"{result.tp}: offsets {unlisted.start} to {unlisted.end - 1} were in DEST already and not in"
                f" {manifest_path}; they were checked and added"
            )
        mixed = result.mixed
        if mixed is not None:
            yield (
                f"{result.tp}: the last batch, offsets {mixed.base_offset} to {mixed.last_offset}, was copied whole;"
                f" {mixed.later} of its messages {'is' if mixed.later == 1 else 'are'} later than --until"
            )


def _wanted(log_dir: LogDir, tp: str | None, follow: bool) -> list[TopicPartition]:
    try:
        return expand(log_dir, tp)
    except UnknownTopicOrPartition:
        if follow:
            return []  # it may be created later
        raise


def _follow(copy: Mirror, owned: OwnedDir) -> None:
    """Repeats passes until SIGINT or SIGTERM."""
    flushed = time.monotonic()
    with _interrupted() as stop:
        while not stop.wait(_LOOK_AGAIN_S):
            copy.run()
            if time.monotonic() - flushed > _FLUSH_S:
                for log in owned.logs():
                    if log.failure is None and log.recovery_point < log.log_end_offset:
                        log.flush()
                owned.checkpoint()
                flushed = time.monotonic()


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _json(result: Mirrored, unlisted: OffsetRange | None) -> dict[str, object]:
    return {
        **asdict(result.tp),
        "first_offset": result.first_offset,
        "log_end_offset": result.log_end_offset,
        "bytes": result.size_bytes,
        "mixed_batch": None if result.mixed is None else result.mixed._asdict(),
        "added_to_manifest": None if unlisted is None else [unlisted.start, unlisted.end - 1],
        "error": None if result.error is None else text_of(result.error),
    }
