"""The help of every command: options in groups, and examples that parse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner

from autotune.cli.main import cli

NAMES = sorted(cli.commands)
CALL = re.compile(r"\bdltune\b(?!\.)[^|&;>#\")\n]*")  # up to the next sign of the shell
CLICK = tuple(int(part) for part in version("click").split(".")[:2])
MAX_OPTIONS = 33


def read_help(*command: str) -> str:
    return CliRunner().invoke(cli, [*command, "--help"], prog_name="dltune", terminal_width=80).stdout


def list_calls(*command: str) -> Iterator[list[str]]:
    """List the calls of dltune in the examples of a command, as words, with `tune` where it is implied."""
    _, _, below = read_help(*command).partition("Examples:\n")
    for call in CALL.findall(below.partition("\n\n")[0]):
        words = shlex.split(call)[1:]
        yield words if words[0] in NAMES else ["tune", *words]


@pytest.mark.parametrize("command", [(), *((name,) for name in NAMES)], ids="-".join)
def test_every_command_has_examples_that_parse(command: tuple[str, ...]) -> None:
    calls = list(list_calls(*command))
    assert calls
    for name, *arguments in calls:
        cli.commands[name].make_context(name, arguments)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_its_exit_codes_and_help_for_every_option(name: str) -> None:
    assert re.search(r"Exit codes: 0 ", read_help(name))
    shown = [option for option in cli.commands[name].params if isinstance(option, click.Option)]
    assert [option.name for option in shown if not option.help] == []


def list_options(text: str) -> list[str]:
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)


def test_the_options_of_tune_are_few_and_each_is_in_one_group() -> None:
    all_options = list_options(read_help("tune"))
    assert len(all_options) <= MAX_OPTIONS
    assert len(set(all_options)) == len(all_options)
    known = {max(one.opts, key=len) for one in cli.commands["tune"].params if isinstance(one, click.Option)}
    assert {*all_options} == known | {"--help"}


@pytest.mark.parametrize(
    ("words", "found"), [("dltune ", "tune"), ("dltune --tri", "--trials"), ("dltune show --js", "--json")]
)
def test_the_shell_completes_commands_and_options(words: str, found: str) -> None:
    count = len(words.split(" ")) - 1
    environment = {"_DLTUNE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    result = CliRunner().invoke(cli, [], prog_name="dltune", env=environment)
    assert f"plain,{found}" in result.stdout
