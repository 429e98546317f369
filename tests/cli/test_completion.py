"""Each shell completes commands, options and choices by the script that dltune prints for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASK = {
    "bash": """
        eval "$(dltune completion bash)"
        complete -p dltune >&2
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _dltune_completion dltune
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        autoload -Uz compinit && compinit -u -d "$HOME/.zcompdump"
        eval "$(dltune completion zsh)"
        words=("$@"); CURRENT=$#
        compadd() { print -l -- $completions }
        _describe() { print -l -- ${completions_with_descriptions%%:*} }
        _dltune_completion
    """,
    "fish": """
        dltune completion fish | source
        complete --do-complete "$argv" | string replace --regex "\\t.*" ""; true
    """,
}
SHELLS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"needs {name}")) for name in ASK
]


def complete(shell: str, folder: Path, *words: str) -> set[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = {"zsh": ["-f", "-c", ASK[shell], "zsh"], "bash": ["-c", ASK[shell], "bash"], "fish": ["-c", ASK[shell]]}
    asked = subprocess.run(
        [shell, *options[shell], *words],
        env=os.environ | {"PATH": path, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(asked.stdout.split())


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("ex",), {"export"}),
        (("--tr",), {"--trials", "--trial-time"}),  # tune is implied
        (("--ver",), {"--version", "--verbose"}),
        (("--dataset", "data:make", "--bat"), {"--batch-size"}),
        (("tune", "--sampler", "g"), {"gp", "grid"}),
        (("export", "--to", "k"), {"kwargs"}),
    ],
)
def test_a_shell_completes_commands_options_and_choices(
    shell: str, words: tuple[str, ...], found: set[str], tmp_path: Path
) -> None:
    assert complete(shell, tmp_path, "dltune", *words) == found
