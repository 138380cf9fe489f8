"""The manual page kafkafs(1), made of what `--help` prints. A build writes it beside this module (setup.py)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from kafkafs.cli import main

_VERBATIM = "\b"  # with it a paragraph begins that click does not wrap

_HEAD = r""".TH KAFKAFS 1 "" "kafkafs" "User Commands"
.SH NAME
kafkafs \- work on Apache Kafka log directories with files
.SH SYNOPSIS
.B kafkafs
.I COMMAND
[\fIOPTIONS\fR]
.I LOGDIR
\&...
.PP
.B kafkafs
.I LOGDIR MNT
[\fB\-o\fR
.IR OPTIONS ]
.SH DESCRIPTION
kafkafs mounts the log directory of a Kafka broker as a tree of files, or reads and writes it with the commands below.
It needs no broker, no client and no Java. The directory may belong to a stopped broker, to a running broker (read-only)
or to kafkafs itself, or be a snapshot or a backup.
.PP
.I TP
is a topic,
.IR topic / partition ,
or a glob. Each command lists its options with
.BR \-\-help .
.SH COMMANDS
"""

_TAIL = r""".SH EXIT STATUS
.TP
.B 0
fine
.TP
.B 1
the check found something
.TP
.B 2
wrong usage
.TP
.B 3
the log directory is held by another process
.TP
.B 4
an I/O or data error
.TP
.B 130
interrupted (^C)
.SH WHEN A BROKER IS DEAD
.TP
It does not start, or you do not know whether it will
.EX
kafkafs doctor /var/kafka \-\-server\-properties server.properties
.EE
.TP
It was killed, and starting it may cut a log
.EX
kafkafs recover /var/kafka \-\-dry\-run
kafkafs salvage /var/kafka orders/3 \-\-to /rescued
.EE
.TP
Its metadata log is lost, or all that is left are some partitions, or one replica of several
.EX
kafkafs revive /mnt/broker\-1 /mnt/broker\-2 \-\-to /var/revived \-\-dry\-run
kafkafs revive /mnt/broker\-1 /mnt/broker\-2 \-\-to /var/revived
kafka\-server\-start.sh /var/revived/server.properties
.EE
.TP
Messages that should not have been written must go
.EX
kafkafs revive /var/kafka \-\-to /var/revived \-\-until 2026\-11\-20T10:15
.EE
.SH FILES
.TP
.I $XDG_CACHE_HOME/kafkafs
cached indexes of segments, and of the keys in them; may be removed at any time
.TP
.I LOGDIR/*/topic.properties
a topic's configuration
.TP
.I MNT/@help
a summary of the tree, in one screen
.SH EXAMPLES
.EX
kafkafs mount /var/lib/kafka /mnt/kafka
tail \-f /mnt/kafka/orders/0/messages.txt
grep error /mnt/kafka/*/*/time/2026\-11\-20.txt
cat /mnt/kafka/orders/keys/c\-33.jsonl
kafkafs umount /mnt/kafka
kafkafs cat /var/lib/kafka orders \-\-time last\-1h \-\-format jsonl
kafkafs cat /var/lib/kafka orders \-\-format decoded
kafkafs groups /var/lib/kafka billing \-\-reset\-to earliest \-\-topic orders
kafkafs mirror /var/lib/kafka /backup/kafka \-\-manifest /backup/kafka.json
kafkafs verify /backup/kafka \-\-manifest /backup/kafka.json
.EE
.SH SEE ALSO
.BR mount (8),
.BR fusermount (1),
.BR kcat (1)
"""


def man_page() -> str:
    """The page, as roff."""
    return _HEAD + "".join(_section(*named) for named in commands()) + _TAIL


def commands(group: click.Group = main, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command with its name, as `topics list`, in order."""
    for word, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{word} ")
        else:
            yield f"{prefix}{word}", command


def usage(name: str, command: click.Command) -> str:
    """The command with its arguments, without options."""
    context = click.Context(command)
    return " ".join([name, *(piece for parameter in command.params for piece in parameter.get_usage_pieces(context))])


def _roff(text: str) -> str:
    """Text as roff shows it: a line that begins with a period or an apostrophe is no request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    escaped = re.sub(r"[^\x00-\x7f]", lambda character: f"\\[u{ord(character[0]):04X}]", escaped)
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)


def _names(option: click.Option) -> str:
    """The option's names and value: click's own text differs between its versions."""
    names = ", ".join((*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {'|'.join(map(str, option.type.choices))}"
    return f"{names} {option.metavar or option.type.name.upper().replace('INTEGER RANGE', 'N')}"


def _meaning(option: click.Option) -> str:
    notes = [option.help or ""]
    if option.required:
        notes.append("Required.")
    if option.show_default:
        notes.append(f"Default: {option.default}.")
    return " ".join(notes)


def _section(name: str, command: click.Command) -> str:
    lines = [f'.SS "{_roff(usage(name, command))}"', *_paragraphs(command.help)[1:]]
    for option in (parameter for parameter in command.params if isinstance(parameter, click.Option)):
        lines += [".TP", f".B {_roff(_names(option))}", _roff(_meaning(option))]
    return "".join(f"{line}\n" for line in (*lines, *_paragraphs(command.epilog)))


def _paragraphs(text: str | None) -> list[str]:
    """The lines of a help text, each paragraph after a `.PP`."""
    lines = []
    for paragraph in inspect.cleandoc(text or "").split("\n\n") if text else []:
        lines.append(".PP")
        if paragraph.startswith(_VERBATIM):
            lines += [".EX", _roff(paragraph.removeprefix(_VERBATIM).strip("\n")), ".EE"]
        else:
            lines.append(_roff(" ".join(paragraph.split())))
    return lines


if __name__ == "__main__":
    print(man_page(), end="")  # noqa: T201 - `python -m kafkafs.cli.man_page | man -l -`
