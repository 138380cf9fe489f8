"""`kafkafs doctor`: what a broker will do when it starts on log directories, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kafkafs.cli import denied, echo, fail_with
from kafkafs.cli.process import FOUND, use_default_signals
from kafkafs.cli.progress_bar import progress_bar
from kafkafs.cli.shared_options import AS_JSON, TIER, tier
from kafkafs.cli.targets import open_log_dir
from kafkafs.cli.terminal import print_json

if TYPE_CHECKING:
    from storage.diagnosis.predictions import Diagnosis, Prediction

_SHOWN_LOGS: Final = 3  # named in the last line


@click.command()
@click.argument("logdirs", nargs=-1, metavar="LOGDIR...", type=click.Path(path_type=Path))
@click.option(
    "--server-properties",
    "properties_file",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The broker's configuration: its node.id, and where its metadata log is.",
)
@click.option("--quick", is_flag=True, help="Do not read the logs: names, checkpoints and metadata alone.")
@click.option("--self", "of_kafkafs", is_flag=True, help="Report on this installation of kafkafs instead.")
@AS_JSON
@TIER
@click.pass_context
def doctor(
    ctx: click.Context,
    logdirs: tuple[Path, ...],
    properties_file: Path | None,
    quick: bool,
    of_kafkafs: bool,
    as_json: bool,
) -> None:
    """Say what a broker (KRaft, Kafka 3.9 to 4.4) will do when it starts on LOGDIRs.

    Run it before you start a broker after a crash. LOGDIRs are all log directories of one node. Nothing is changed.
    Each finding says what is wrong and where, what the broker does about it, and what to do: whether it starts at all,
    which partitions it sets aside or creates empty, what recovery cuts, and which damage it does not notice. Notes need
    no action.

    With --tier, doctor also lists the tier, and reports gaps, missing objects and objects that no metadata names.

    With --self, doctor reports on this installation: versions, kernels, FUSE, extras, cache directory, limits;
    `problems` says what keeps kafkafs from mounting, or makes it slow. Include this in a report of a fault in kafkafs.

    \b
    kafkafs doctor /var/kafka
    kafkafs doctor /data1/kafka /data2/kafka --server-properties /etc/kafka/server.properties
    kafkafs doctor --self

    Exit code 1 if the broker does not start, or loses something; with --self if kafkafs cannot mount, or is slow. Exit
    code 4 if the user may not read some files: then nobody knows what the broker does with them.
    """
    if of_kafkafs:
        if logdirs or properties_file is not None or quick:
            raise click.UsageError("--self is about kafkafs, not about a log directory")
        _report_on_kafkafs(ctx, as_json)
        return
    if not logdirs:
        raise click.UsageError("Missing argument 'LOGDIR...'.")
    from storage.diagnosis.broker_properties import read
    from storage.diagnosis.damage import of_remote
    from storage.diagnosis.examination import examine

    use_default_signals(ctx)
    properties = None if properties_file is None else read(properties_file)
    with progress_bar() as progress:
        diagnosis = examine(logdirs, properties=properties, quick=quick, progress=progress)
    if (places := tier()) is not None:
        from storage.verify.tier_audit import list_tier

        for logdir in logdirs:
            log_dir = open_log_dir(logdir)
            findings = list_tier(log_dir, places, log_dir.all_partitions())
            diagnosis = diagnosis.with_more(map(of_remote, findings))
    if as_json:
        print_json(_json(diagnosis))
    else:
        _print(diagnosis)
    fail_with(ctx, denied(diagnosis.denied))
    if not diagnosis.is_well:
        ctx.exit(FOUND)


def _report_on_kafkafs(ctx: click.Context, as_json: bool) -> None:
    from kafkafs.cli.installation import facts

    report = facts()
    if as_json:
        print_json(report)
    else:
        for name, value in report.items():
            if name != "problems":
                echo(f"{name}: {_flat(value)}")
        for problem in report["problems"]:
            echo(f"problem: {problem}")
    if report["problems"]:
        ctx.exit(FOUND)


def _flat(value: Any) -> str:
    """JSON values as a person writes them: `a 1, b 2, c (d 3)`."""
    if isinstance(value, dict):
        return ", ".join(
            f"{name} ({_flat(part)})" if isinstance(part, dict) else f"{name} {_flat(part)}"
            for name, part in value.items()
        )
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not found" if value is None else str(value)


def _print(diagnosis: Diagnosis) -> None:
    from storage.diagnosis.predictions import Reaction

    for prediction in diagnosis.predictions:
        kind = "finding" if prediction.reaction.is_finding else "note"
        echo(f"{prediction.path}: {kind} {prediction.name}: {prediction.what}")
        echo(f"  the broker: {prediction.broker}")
        if prediction.advice:
            echo(f"  what to do: {prediction.advice}")
    reactions = {prediction.reaction for prediction in diagnosis.predictions if prediction.reaction.is_finding}
    if diagnosis.is_well and diagnosis.quick:
        echo("the broker starts; no log was read (--quick), so damage, and what recovery would cut, is unknown")
    elif (
        diagnosis.is_well
        and tier() is None
        and any(prediction.reaction is Reaction.FETCHES for prediction in diagnosis.predictions)
    ):
        echo("the broker starts, and loses nothing of what is here; tiered storage was not looked at")
    elif diagnosis.is_well and any(prediction.name == "retention" for prediction in diagnosis.predictions):
        echo("the broker starts, and loses nothing but what retention removes")
    elif diagnosis.is_well:
        echo("the broker starts, and loses nothing")
    elif not diagnosis.starts:
        echo("the broker does not start")
    elif diagnosis.denied:
        echo("nobody knows what the broker does: you may not read some files")
    elif reactions <= {Reaction.UNNOTICED}:
        echo("the broker starts, and does not notice what the findings above say")
    elif reactions <= {Reaction.UNNOTICED, Reaction.CUTS}:
        echo(f"the broker starts, and loses messages of {_cut_logs(diagnosis)}: save what you need of them first")
    else:
        echo("the broker would start all the same: resolve the findings above before you start it")


def _cut_logs(diagnosis: Diagnosis) -> str:
    """The logs that a broker cuts, and where."""
    from storage.diagnosis.predictions import Reaction

    ends: dict[str, int | None] = {}
    for prediction in diagnosis.predictions:
        if prediction.reaction is Reaction.CUTS:
            name = "the metadata log" if prediction.tp is None else str(prediction.tp)
            end, known = prediction.end_offset, ends.get(name)
            ends[name] = end if known is None or end is None else min(end, known)
    texts = [name if end is None else f"{name} from offset {end} on" for name, end in ends.items()]
    more = len(texts) - _SHOWN_LOGS
    return ", ".join(texts[:_SHOWN_LOGS]) + (f" and {more} more" if more > 0 else "")


def _json(diagnosis: Diagnosis) -> dict[str, Any]:
    from storage.diagnosis.predictions import Reaction

    reactions = {prediction.reaction for prediction in diagnosis.predictions if prediction.reaction.is_finding}
    return {
        "starts": None if diagnosis.starts and diagnosis.denied else diagnosis.starts,
        "loses_nothing": None if reactions <= {Reaction.UNKNOWN} and (reactions or diagnosis.quick) else not reactions,
        "findings": [_one_json(prediction) for prediction in diagnosis.predictions if prediction.reaction.is_finding],
        "notes": [_one_json(prediction) for prediction in diagnosis.predictions if not prediction.reaction.is_finding],
    }


def _one_json(prediction: Prediction) -> dict[str, Any]:
    return {
        "name": prediction.name,
        "reaction": prediction.reaction.name_in_reports,
        "file": str(prediction.path),
        **(asdict(prediction.tp) if prediction.tp is not None else {"topic": None, "partition": None}),
        "what": prediction.what,
        "broker": prediction.broker,
        "advice": prediction.advice,
        "log_end_offset": prediction.end_offset,
    }
