"""`kafkafs completion`: a shell's completion of commands, options and topics."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print SHELL's completion script.

    The shell then completes commands, options and topics.

    \b
    bash:  eval "$(kafkafs completion bash)"     in ~/.bashrc
    zsh:   eval "$(kafkafs completion zsh)"      in ~/.zshrc
    fish:  kafkafs completion fish | source      in ~/.config/fish/config.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None  # click has a class for each of the three
    root = ctx.find_root()
    click.echo(complete(root.command, {}, "kafkafs", "_KAFKAFS_COMPLETE").source())
