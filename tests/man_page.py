"""COMMANDS of the man page, and the table of commands in the contract, made from what `--help` prints.

`python -m tests.man_page` writes both; tests/test_documents.py compares them. The rest of the two is written by hand.
"""

import inspect
import re
from pathlib import Path

import click

from kafkafs.cli import main

ROOT = Path(__file__).resolve().parent.parent
MAN_PAGE = ROOT / "kafkafs" / "cli" / "kafkafs.1"
CONTRACT = ROOT / "kafkafs" / "CONTRACT.md"
_VERBATIM = "\b"  # with it a paragraph begins that click does not wrap


def commands(group=main, name=""):
    """Every command with its name, as `topics list`, in order."""
    for word, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{name}{word} ")
        else:
            yield f"{name}{word}", command


def usage(name, command):
    """The command with its arguments, without options."""
    context = click.Context(command)
    return " ".join([name, *(piece for parameter in command.params for piece in parameter.get_usage_pieces(context))])


def table():
    """The rows of the contract: usage, and the first sentence of the help."""
    rows = ((usage(*named).replace("|", r"\|"), named[1].get_short_help_str(limit=1000)) for named in commands())
    return "".join(f"| `{words}` | {sentence} |\n" for words, sentence in rows)


def _roff(text):
    """Text as roff shows it: a line that begins with a period or an apostrophe is no request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    escaped = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", escaped)
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)


def _names(option):
    """Not click's own text, which differs between its versions."""
    names = ", ".join((*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {'|'.join(map(str, option.type.choices))}"
    return f"{names} {option.metavar or option.type.name.upper().replace('INTEGER RANGE', 'N')}"


def _meaning(option):
    notes = [option.help or ""]
    if option.required:
        notes.append("Required.")
    if option.show_default:
        notes.append(f"Default: {option.default}.")
    return " ".join(notes)


def _section(name, command):
    lines = [f'.SS "{_roff(usage(name, command))}"']
    for number, paragraph in enumerate(inspect.cleandoc(command.help or "").split("\n\n")):
        if paragraph.startswith(_VERBATIM):
            lines += [".PP", ".EX", _roff(paragraph.removeprefix(_VERBATIM).strip("\n")), ".EE"]
        else:
            lines += [*([".PP"] if number else []), _roff(" ".join(paragraph.split()))]
    for option in (parameter for parameter in command.params if isinstance(parameter, click.Option)):
        lines += [".TP", f".B {_roff(_names(option))}", _roff(_meaning(option))]
    return "".join(f"{line}\n" for line in lines)


def with_commands(text, first, last, made):
    """The text with `made` between the lines `first` and `last`. ValueError without them."""
    before, rest = text.split(f"{first}\n")
    end = rest.index(f"\n{last}") + 1
    return f"{before}{first}\n{made}{rest[end:]}"


def made():
    """The two files as they should be."""
    sections = "".join(_section(*named) for named in commands())
    return {
        MAN_PAGE: with_commands(MAN_PAGE.read_text(), ".SH COMMANDS", ".SH EXIT STATUS", sections),
        CONTRACT: with_commands(CONTRACT.read_text(), "| command | what it does |\n|---|---|", "\n", table()),
    }


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text)
