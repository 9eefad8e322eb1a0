"""`fadiff completion`: complete commands, options and targets in the shell."""

from __future__ import annotations

import rich_click as click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, presets and files.

    \b
    Examples:
      echo 'eval "$(fadiff completion bash)"' >> ~/.bashrc
      echo 'eval "$(fadiff completion zsh)"' >> ~/.zshrc
      fadiff completion fish > ~/.config/fish/completions/fadiff.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    script = found(context.find_root().command, {}, "fadiff", "_FADIFF_COMPLETE")
    click.echo(script.source_template % script.source_vars())
