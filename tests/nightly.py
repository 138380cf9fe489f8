"""Everything that can be tested, one step after the other, for hours: `tests/run.sh --nightly [--minutes 20] [STEP…]`.

Random work has new seeds, which the logs name. At the end a table says what passed, how long it took, and the last line
of what did not. Exit code 1 if a step failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.support.fixtures import ROOT

PYTEST = ("-m", "pytest", "-q", "--nightly", "-n", "2", "--dist", "loadgroup")
# What multiplies the work of single tests (tests/README.md, "Environment").
MORE = {
    "KAFKAFS_AVRO_PAIRS": "3000",
    "KAFKAFS_DIFFERENTIAL_SEEDS": "1,2,3",
    "KAFKAFS_FUZZ_ROUNDS": "20",
    "KAFKAFS_POWER_LOSSES": "4",
    "KAFKAFS_SANITIZE_SECONDS": "300",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A command of Python, with what it has in its environment."""

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def steps(minutes, seed):
    """All steps. `minutes`: how long each program with random work may take; `seed`: where its seeds begin."""
    new = ("--seed", str(seed))
    return [
        Step("ruff", ("-m", "ruff", "check")),
        Step("mypy", ("-m", "mypy")),
        Step("tests", (*PYTEST, "tests"), MORE),
        Step("Kafka 3.9.1", (*PYTEST, "tests/interop"), {"KAFKAFS_BROKER": "3.9.1"}),
        Step("Kafka 4.4.0", (*PYTEST, "tests/interop"), {"KAFKAFS_BROKER": "4.4.0"}),
        Step("simulation", ("-m", "tests.simulation", "--go-on", "--minutes", str(minutes))),
        Step("planted faults", ("-m", "tests.simulation", "--mutations", "--seeds", "2000")),
        Step("hostile directories", ("-m", "tests.hostile", "--minutes", str(minutes))),
        Step("differential", ("-m", "tests.interop", "differential", "--logs", "300", "--damages", "300", *new)),
        Step("predictions", ("-m", "tests.interop", "predictions", "--rounds", "30", *new)),
        Step("turns", ("-m", "tests.interop", "turns", "--rounds", "20", *new)),
        Step("failovers", ("-m", "tests.interop", "failovers", "--rounds", "9", *new)),
        Step("three nodes", ("-m", "tests.interop", "three_nodes")),
        Step("piles", ("-m", "tests.interop", "piles", "--rounds", "300", *new)),
        Step("soak", ("-m", "tests.soak", "--minutes", str(minutes))),
        Step("soak with a broker", ("-m", "tests.soak", "--broker", "--minutes", str(minutes))),
        Step("benchmarks, in small", ("-m", "tests.bench", "--messages", "20000", "--runs", "1", "--gigabytes", "0.1")),
    ]


def carry_out(step, log):
    """The exit code of a step, whose output goes to `log`."""
    with log.open("wb") as out:
        command = [sys.executable, *step.arguments]
        environment = {**os.environ, **step.environment}
        return subprocess.run(command, cwd=ROOT, env=environment, stdout=out, stderr=out, check=False).returncode


def main():
    parser = argparse.ArgumentParser(prog="tests/run.sh --nightly", description=__doc__)
    parser.add_argument("--minutes", type=int, default=20, help="of each program with random work (20)")
    parser.add_argument("step", nargs="*", help="only these")
    chosen = parser.parse_args()
    every = steps(chosen.minutes, seed=int(time.time()))
    unknown = set(chosen.step) - {step.name for step in every}
    if unknown:
        parser.error(f"no such step: {', '.join(sorted(unknown))}; the steps: {', '.join(step.name for step in every)}")
    logs = Path(tempfile.mkdtemp(prefix="kafkafs-nightly-"))
    table = Table("step", "result", "minutes", "the last line")
    failed = False
    for step in [step for step in every if not chosen.step or step.name in chosen.step]:
        log = logs / f"{step.name.replace(' ', '-')}.log"
        click.echo(f"== {step.name}: {log}")
        start = time.monotonic()
        code = carry_out(step, log)
        failed |= code != 0
        *_, last = ["", *log.read_text(errors="replace").strip().splitlines()]
        result = "passed" if code == 0 else f"exit code {code}"
        minutes = f"{(time.monotonic() - start) / 60:.1f}"
        click.echo(f"   {result} after {minutes} minutes: {last}")
        table.add_row(step.name, result, minutes, last)
    Console(width=160).print(table)
    sys.exit(failed)


if __name__ == "__main__":
    main()
