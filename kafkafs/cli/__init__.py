"""The command line. Each command is imported when it is used: `kafkafs cat` should not wait for `kafkafs mount`."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
from collections import UserDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from kafkafs.cli import process
from kafkafs.cli.process import DATA_ERROR, HELD, INTERRUPTED
from kafkafs.file_names import printable
from storage.files import descriptors

# numpy brings a linear algebra library whose threads spin while they wait for work that we never give them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Data is in columns, not objects, so there is little garbage. Looking for it took a tenth of the time of `kafkafs cat`.
gc.set_threshold(100_000, 50, 100)
# At exit the interpreter would search all modules once more: 25 ms of `kafkafs cat`.
atexit.register(gc.freeze)

# The commands in the order of `kafkafs --help`. Each is in the module of kafkafs.cli that has its name.
_GROUPS = {
    "Read": ("mount", "umount", "cat", "dump", "fetch", "schemas"),
    "Repair": ("doctor", "verify", "recover", "reindex", "salvage", "revive"),
    "Back up": ("mirror", "replay", "digest", "diff"),
    "Topics and groups": (
        "topics", "append", "compact", "retain", "groups", "transactions", "metadata", "assign", "completion",
    ),
    "Analyse": ("stats", "count", "report", "sql", "spark"),
}  # fmt: skip
_MODULES = {"diff": "digest", "reindex": "recover", "umount": "mount"}  # those that are in another command's module
_COMMANDS = {name: _MODULES.get(name, name) for names in _GROUPS.values() for name in names}

# What other tools call our commands.
_MEANT = {
    **{name: f"topics {name} LOGDIR" for name in ("list", "describe", "create", "alter", "delete")},
    "ls": "topics list LOGDIR",
    "consume": "cat LOGDIR TP --follow",
    "tail": "cat LOGDIR TP --offsets -10 --follow",
    "produce": "append LOGDIR TP",
    "unmount": "umount MNT",
}

# Commands that were removed: for one release each says what to use instead.
_REMOVED = {
    "histogram": "`kafkafs stats LOGDIR TP --over-time`",
    "spark compact": "`kafkafs compact LOGDIR TP`",
    "spark latest": "`kafkafs cat LOGDIR TP --latest`, or the recipe for Spark in kafkafs/spark/SPARK.md",
    "spark stats": "`kafkafs stats LOGDIR [TP]`, or the recipe for Spark in kafkafs/spark/SPARK.md",
    "spark verify": "`kafkafs verify LOGDIR [TP]`, which checks several segments at once",
    "tier": "`kafkafs verify LOGDIR [TP] --tier PATH`: it reports gaps, missing parts and orphans",
}


class _LazyCommands(UserDict[str, Any]):
    """Commands by name. Each is imported when it is first used; until then the name of its module is in its place."""

    def __getitem__(self, name: str) -> click.Command:
        if isinstance(self.data[name], str):
            self.data[name] = getattr(import_module(f"kafkafs.cli.{self.data[name]}"), name)
        command: click.Command = self.data[name]
        return command


class _Main(click.Group):
    """Turns a StorageError into one line and an exit code; treats `kafkafs LOGDIR MNT` as a mount."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Only the real program, not a test that calls `main`, changes how its process handles signals (see `process`)
        # and how many descriptors it may have. Any command may open a directory of thousands of partitions.
        process.open_closed()
        descriptors.raise_limit()
        # fusermount and Java are looked for there. A relative path may lead into a stranger's log directory.
        os.environ["PATH"] = os.pathsep.join(path for path in os.get_exec_path() if Path(path).is_absolute())
        ends = kwargs.get("standalone_mode", True)
        try:
            code = self.main(*args, **{"obj": "process", **kwargs, "standalone_mode": False})
        except click.ClickException as error:
            # An argument may be a name in a log directory.
            error.message = printable(error.message, "\n")  # type: ignore[misc]  # final for subclasses
            with suppress(OSError):
                error.show()
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except OSError as error:  # a help text that could not be printed
            _say_failed(error)
            sys.exit(DATA_ERROR)
        return sys.exit(code) if ends else code

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError as error:  # of a help text: click would exit with code 1
            _say_failed(error)
            raise click.exceptions.Exit(DATA_ERROR) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.resilient_parsing:  # a shell completes: there is nobody to read an error
            return super().resolve_command(ctx, args)
        for name in (args[0], " ".join(args[:2])):
            if name in _REMOVED:
                ctx.fail(f"`kafkafs {name}` was removed. Use {_REMOVED[name]}")
        meant = _MEANT.get(args[0])
        if meant is not None:
            ctx.fail(f"No such command {args[0]!r}. Did you mean `kafkafs {meant}`?")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and self._is_log_dir(args[0]):
            args = ["mount", *args]  # this is how mount(8) calls its helpers
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by group, each with the beginning of its help that fits on the line."""
        room = formatter.width - 6 - max(map(len, self.commands))
        for title, names in _GROUPS.items():
            with formatter.section(title):
                commands = {name: self.commands[name] for name in names}
                formatter.write_dl([(name, command.get_short_help_str(room)) for name, command in commands.items()])

    def _is_log_dir(self, word: str) -> bool:
        """Whether the first argument is LOGDIR: a path, or the name of a directory that no command has."""
        if word.startswith("-") or word in self.commands or word in _MEANT:
            return False
        return "/" in word or Path(word).is_dir()

    def invoke(self, ctx: click.Context) -> Any:
        from storage.errors import BadDestination, LogLocked, NotALogDir, StorageError

        try:
            return super().invoke(ctx)
        except BadDestination as error:
            raise click.UsageError(str(error)) from None
        except NotALogDir as error:
            from kafkafs.mounting.mountpoint import naming_the_tree

            say(naming_the_tree(error))
            ctx.exit(DATA_ERROR)
        except LogLocked as error:
            from kafkafs.mounting.mountpoint import naming_the_mount

            say(naming_the_mount(error))
            ctx.exit(HELD)
        except StorageError as error:
            say(error)
            ctx.exit(DATA_ERROR)
        except OSError as error:
            _say_failed(error)
            ctx.exit(DATA_ERROR)
        except KeyboardInterrupt:  # only of commands that must clean up; see `process`
            say("interrupted")
            ctx.exit(INTERRUPTED)


def text_of(error: object) -> str:
    """An error for people. An OSError: the file, what happened, and what to do where that is known."""
    if not isinstance(error, OSError):
        return str(error)
    from storage.errors import error_text

    text = error_text(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{text}. Free some space there and repeat the command"
    if error.errno != errno.EACCES:
        return text
    from storage.files.opening import who_may_read

    advice = who_may_read(str(error.filename or "."))
    return f"{text}. {advice[0].upper()}{advice[1:]}"


_shown: dict[str, str] = {}  # by path: the name that a person gave, such as the URL of a backup


def show_as(path: Path, name: str) -> None:
    """From now on messages show `name` instead of `path`."""
    _shown[str(path)] = name


def shown(text: str) -> str:
    """A text for people, with the names that they know."""
    for path, name in _shown.items():
        text = text.replace(path, name)
    return text


def say(message: object) -> None:
    """Print a line on stderr, if that can be written to. An exit code says the same."""
    text = printable(" ".join(shown(text_of(message)).split("\n")))
    with suppress(OSError):
        click.echo(f"kafkafs: {text}", err=True)


def fail_with(ctx: click.Context, problems: Iterable[object]) -> None:
    """Says all problems, and exits with code 4 if there are any."""
    problems = list(problems)
    for problem in problems:
        say(problem)
    if problems:
        ctx.exit(DATA_ERROR)


def denied(paths: Sequence[Path]) -> list[PermissionError]:
    """The error, if there is one, that says that the user may not read these files: the output is not about them."""
    others = f", and {len(paths) - 1} more were not read" if len(paths) > 1 else ""
    return [PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)}{others}", str(path)) for path in paths[:1]]


def echo(text: object = "") -> None:
    """Prints text for people, which may contain names and configurations of a stranger's log directory. See
    printable."""
    click.echo(printable(shown(str(text)), "\n\t"))


def _say_failed(error: OSError) -> None:
    """Says what failed, unless it is a pipe that its reader has closed: the reader wants no more output."""
    error.filename = process.name_of_failed(error)
    if error.errno != errno.EPIPE:
        say(error)


def _show_version(ctx: click.Context, _param: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from kafkafs.cli.installation import version_text

        click.echo(version_text())
        ctx.exit()


@click.group(
    cls=_Main,
    commands=_LazyCommands(_COMMANDS),
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
