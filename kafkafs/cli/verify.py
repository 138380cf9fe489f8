"""`kafkafs verify`: checks everything in a log directory."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import denied, echo, fail_with, shown
from kafkafs.cli.process import FOUND, use_default_signals
from kafkafs.cli.progress_bar import progress_bar
from kafkafs.cli.shared_options import TIER, tier
from kafkafs.cli.targets import LogDirPath, TopicPartitionPattern, expand, is_named, open_log_dir
from kafkafs.cli.terminal import print_json

if TYPE_CHECKING:
    from storage.files.manifest import Manifest
    from storage.progress import Progress
    from storage.types import TopicPartition
    from storage.verify.findings import Finding


@click.command()
@click.argument("logdir", type=LogDirPath(anew=True))
@click.argument("tp", required=False, type=TopicPartitionPattern())
@click.option(
    "--notes", is_flag=True, help="Also list notes, which the next start repairs; otherwise they are only counted."
)
@click.option(
    "--manifest",
    "manifest_place",
    metavar="FILE",
    is_flag=False,
    flag_value="",
    help="Also compare LOGDIR with the manifest that `mirror --manifest` wrote. A backup at a URL needs no FILE.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, notes included.")
@TIER
@click.pass_context
def verify(
    ctx: click.Context, logdir: Path, tp: str | None, notes: bool, manifest_place: str | None, as_json: bool
) -> None:
    """Check every batch, record, index entry, snapshot, checkpoint and name of LOGDIR, or of TP.

    TP is a topic, topic/partition or a glob. Logs that are being moved to LOGDIR (-future) are checked too, those that
    a broker has set aside (-stray, -delete) are not. Nothing is changed. Each finding says where it is, what was
    expected and found, what recovery after a crash would do about it, and what repairs it. Notes need no action: the
    next start repairs them, a running broker is just writing there, or messages are in tiered storage.

    With --manifest, nothing that FILE lists may be missing or changed; LOGDIR may have more. If LOGDIR is the
    URL of a backup in an object store, verify reads all its objects, and compares them with the backup's own manifest.

    With --tier, verify also reads the remote segments, batch by batch. It reports damage, gaps, missing objects and a
    tier that cannot be reached as findings, and objects that no metadata names as notes. The tier is only listed and
    read.

    \b
    kafkafs verify /var/kafka
    kafkafs verify /var/kafka 'orders*' --json
    kafkafs verify /backup/kafka --manifest /backup/kafka.json
    kafkafs verify /var/kafka --tier s3://bucket/prefix --notes
    kafkafs verify s3://bucket/backup --manifest

    Exit code 1 if there is a finding that is not a note; 4 if the user may not read some files: then the findings are
    about the others.
    """
    from storage.log.places import is_stored
    from storage.verify.verify import verify_log_dir

    use_default_signals(ctx)
    in_store = is_stored(logdir)
    manifest = None if manifest_place is None and not in_store else _read(manifest_place or "", logdir)
    chosen = None if tp is None else _chosen(logdir, tp, manifest)
    with progress_bar() as progress:
        findings = [] if in_store else verify_log_dir(logdir, chosen, progress=progress)
        if manifest is not None:
            from storage.verify.manifest_audit import verify_manifest

            findings += verify_manifest(logdir, manifest, chosen, progress=progress)
        findings = _with_tier(findings, logdir, chosen, progress)
    _report_findings(ctx, findings, notes=notes, as_json=as_json)


def _read(place: str, logdir: Path) -> Manifest:
    """The manifest in a file, or of the backup at a URL. Without `place`: of the backup at LOGDIR, which is a URL."""
    from storage.files import manifest
    from storage.log.places import is_stored
    from storage.log.stored_dir import backup_at, read_manifest
    from storage.tier.object_places import open_place

    if not place and is_stored(logdir):
        return backup_at(logdir).manifest
    if not place:
        raise click.UsageError("--manifest: name a FILE, because LOGDIR is a directory")
    listed = read_manifest(open_place(place)) if "://" in place else manifest.read(Path(place))
    if listed is None:
        raise click.BadParameter(f"File {place!r} does not exist.", param_hint="'--manifest'")
    return listed


def _chosen(logdir: Path, tp: str, manifest: Manifest | None) -> list[TopicPartition]:
    """The partitions that TP names here or in the manifest: a lost partition must be reported as missing."""
    from storage.errors import UnknownTopicOrPartition

    listed = [] if manifest is None else [partition for partition in manifest.partitions if is_named(partition, tp)]
    try:
        return sorted({*expand(open_log_dir(logdir), tp), *listed})
    except UnknownTopicOrPartition:
        if listed:
            return listed
        raise


def _with_tier(
    findings: list[Finding], logdir: Path, chosen: Sequence[TopicPartition] | None, progress: Progress
) -> list[Finding]:
    """`findings`; if the command was given a tier, also the findings of these partitions in the tier, instead of the
    notes that remote segments were not checked."""
    places = tier()
    if places is None:
        return findings
    from storage.verify.findings import FaultKind
    from storage.verify.tier_audit import verify_tier

    log_dir = open_log_dir(logdir)
    partitions = log_dir.all_partitions() if chosen is None else chosen
    in_log_dir = [
        finding for finding in findings if finding.kind is not FaultKind.REMOTE_SEGMENTS
    ]  # they are checked now
    return in_log_dir + verify_tier(log_dir, places, partitions, progress, elsewhere=chosen is None)


def _report_findings(ctx: click.Context, all_findings: list[Finding], *, notes: bool, as_json: bool) -> None:
    """Prints findings and notes; exits with code 1 if there are findings, 4 if files may not be read."""
    from storage.verify.findings import FaultKind, Severity

    findings = [finding for finding in all_findings if finding.severity is Severity.FINDING]
    noted = [finding for finding in all_findings if finding.severity is Severity.NOTE]
    if as_json:
        print_json(
            {"findings": [_json(finding) for finding in findings], "notes": [_json(finding) for finding in noted]}
        )
    else:
        for finding in all_findings if notes else findings:
            _print_finding(finding)
        echo(_summary(findings, noted))
    fail_with(ctx, denied([finding.path for finding in findings if finding.kind is FaultKind.NOT_PERMITTED]))
    if findings:
        ctx.exit(FOUND)


def _print_finding(finding: Finding) -> None:
    """Prints a finding: a first line, and the details below it."""
    where = [
        f"{name} {value:,}" if sys.stdout.isatty() else f"{name} {value}"
        for name, value in (("position", finding.position), ("offset", finding.offset))
        if value is not None
    ]
    echo(
        f"{finding.path}: {finding.severity.value} {finding.name}: {finding.what}"
        + (f" ({', '.join(where)})" if where else "")
    )
    for name, value in (
        ("expected", finding.expected),
        ("found", finding.found),
        ("recovery", finding.recovery),
        ("repaired by", finding.repair),
    ):
        if value is not None:
            echo(f"  {name}: {value}")
    if finding.more:
        echo(f"  and {finding.more} more of this kind in this file")


def _summary(findings: list[Finding], notes: list[Finding]) -> str:
    text = _counted(findings, "finding") if findings else "nothing wrong"
    return f"{text}; {_counted(notes, 'note')}" if notes else text


def _counted(findings: list[Finding], word: str) -> str:
    kinds: Counter[str] = Counter()
    for finding in findings:
        kinds[finding.name] += 1 + finding.more
    total = kinds.total()
    listed = ", ".join(f"{count} {name}" for name, count in kinds.most_common())
    return f"{total} {word}{'s' if total > 1 else ''}: {listed}"


def _json(finding: Finding) -> dict[str, Any]:
    def plain(value: object) -> object:
        return value if value is None or isinstance(value, int | str) else str(value)

    return {
        "severity": finding.severity.value,
        "name": finding.name,
        "file": shown(str(finding.path)),
        "what": finding.what,
        "position": finding.position,
        "offset": finding.offset,
        "expected": plain(finding.expected),
        "found": plain(finding.found),
        "recovery": finding.recovery,
        "repair": finding.repair,
        "more": finding.more,
    }
