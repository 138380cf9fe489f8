"""The table of commands in the contract, made of what `--help` prints. `python -m tests.command_table` writes it."""

from pathlib import Path

from kafkafs.cli.man_page import commands, usage

CONTRACT = Path(__file__).resolve().parent.parent / "kafkafs" / "CONTRACT.md"
_HEADER = "| command | what it does |\n|---|---|\n"


def contract():
    """The contract with the table as it should be: usage, and the first sentence of the help."""
    rows = ((usage(*named).replace("|", r"\|"), named[1].get_short_help_str(limit=1000)) for named in commands())
    before, rest = CONTRACT.read_text().split(_HEADER)
    table = "".join(f"| `{words}` | {sentence} |\n" for words, sentence in rows)
    after = rest[rest.index("\n\n") + 1 :]
    return f"{before}{_HEADER}{table}{after}"


if __name__ == "__main__":
    CONTRACT.write_text(contract())
