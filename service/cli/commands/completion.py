"""``completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    bash: eval "$(lodeq completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc; fish: lodeq
    completion fish > ~/.config/fish/completions/lodeq.fish.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"this click has no completion for {shell}")
    made = kind(ctx.find_root().command, {}, "lodeq", "_LODEQ_COMPLETE")
    click.echo(made.source_template % made.source_vars())
