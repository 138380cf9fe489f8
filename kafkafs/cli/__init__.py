"""The command line. Each command is imported when it is used: `kafkafs cat` should not wait for `kafkafs mount`."""

from __future__ import annotations

import atexit
import errno
import gc
import os
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import click

from kafkafs.cli.exit_codes import DATA_ERROR, HELD, INTERRUPTED
from storage.files import descriptors

# numpy brings a linear algebra library whose threads spin while they wait for work that we never give them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Data is in columns, not objects, so there is little garbage. Looking for it took a tenth of the time of `kafkafs cat`.
gc.set_threshold(100_000, 50, 100)
# At exit the interpreter would search all modules once more: 25 ms of `kafkafs cat`.
atexit.register(gc.freeze)

# Command name → module and attribute.
_COMMANDS = {
    "append": "kafkafs.cli.append:append",
    "assign": "kafkafs.cli.assign:assign",
    "cat": "kafkafs.cli.cat:cat",
    "compact": "kafkafs.cli.compact:compact",
    "completion": "kafkafs.cli.completion:completion",
    "count": "kafkafs.cli.count:count",
    "dump": "kafkafs.cli.dump:dump",
    "fetch": "kafkafs.cli.fetch:fetch",
    "groups": "kafkafs.cli.groups:groups",
    "histogram": "kafkafs.cli.histogram:histogram",
    "mirror": "kafkafs.cli.mirror:mirror",
    "mount": "kafkafs.cli.mount:mount",
    "recover": "kafkafs.cli.recover:recover",
    "reindex": "kafkafs.cli.recover:reindex",
    "retain": "kafkafs.cli.retain:retain",
    "spark": "kafkafs.cli.spark:spark",
    "salvage": "kafkafs.cli.salvage:salvage",
    "topics": "kafkafs.cli.topics:topics",
    "umount": "kafkafs.cli.mount:umount",
    "verify": "kafkafs.cli.verify:verify",
}


class _LazyCommands(MutableMapping[str, click.Command]):
    """Commands by name; each is imported when it is first used."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places
        self._added: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._added:
            module, attribute = self._places[name].split(":")
            command: click.Command = getattr(import_module(module), attribute)
            self._added[name] = command
        return self._added[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._added[name] = command

    def __delitem__(self, name: str) -> None:
        self._places.pop(name, None)
        self._added.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._places, **self._added})

    def __len__(self) -> int:
        return len({**self._places, **self._added})


class _Main(click.Group):
    """Turns a StorageError into one line and an exit code; treats `kafkafs LOGDIR MNT` as a mount."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Only the real program, not a test that calls `main`, changes how its process handles signals (see `signals`)
        # and how many descriptors it may have. Any command may open a directory of thousands of partitions.
        descriptors.raise_limit()
        return self.main(*args, obj=kwargs.pop("obj", "process"), **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and "/" in args[0] and not args[0].startswith("-"):
            args = ["mount", *args]  # this is how mount(8) calls its helpers
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        from storage.errors import LogLocked, StorageError

        try:
            return super().invoke(ctx)
        except StorageError as error:
            say(error)
            ctx.exit(HELD if isinstance(error, LogLocked) else DATA_ERROR)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click handles it: the reader has closed the pipe, which is not an error
            say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error)
            ctx.exit(DATA_ERROR)
        except KeyboardInterrupt:  # only of commands that must clean up; see `signals`
            say("interrupted")
            ctx.exit(INTERRUPTED)


def say(message: object) -> None:
    """One line on stderr."""
    text = " ".join(str(message).split("\n"))
    click.echo(f"kafkafs: {text}", err=True)


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from kafkafs.cli.version import version_text

        click.echo(version_text())
        ctx.exit()


@click.group(
    cls=_Main,
    commands=_LazyCommands(dict(_COMMANDS)),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show versions, and exit.",
)
def main() -> None:
    """Work on Apache Kafka log directories with files: no broker, no client, no JVM.

    \b
    kafkafs mount /var/kafka /mnt/k     the topics as files; also: kafkafs /var/kafka /mnt/k
    kafkafs cat /var/kafka orders       the messages without a mount
    kafkafs topics list /var/kafka      list the topics

    Exit codes: 0 fine, 1 the check found something, 2 wrong usage, 3 the log directory is held by another process, 4
    an I/O or data error, 130 interrupted.
    """
