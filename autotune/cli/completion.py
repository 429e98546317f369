"""`dltune completion`: how does a shell complete commands and options?"""

from __future__ import annotations

import click

from autotune.cli.epilog import epilog
from autotune.cli.errors import exit_on_error
from autotune.cli.output import print_result


@click.command(
    epilog=epilog(
        'eval "$(dltune completion bash)"       # in ~/.bashrc',
        'eval "$(dltune completion zsh)"        # in ~/.zshrc, after compinit',
        "dltune completion fish > ~/.config/fish/completions/dltune.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    Commands and options are then completed by the tab key.
    """
    from click.shell_completion import get_completion_class

    maker = get_completion_class(shell)
    assert maker is not None, "the choices are those that click knows"
    root = click.get_current_context().find_root().command
    with exit_on_error():
        print_result(maker(root, {}, "dltune", "_DLTUNE_COMPLETE").source())
