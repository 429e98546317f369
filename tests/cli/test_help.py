"""The help of every command: it has examples, they can be copied, and they parse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from autotune.cli.scripts import is_script
from click.testing import CliRunner

from autotune.cli.main import cli
from autotune.search.loop import SEARCH_SHARE

NAMES = sorted(cli.commands)
CALL = re.compile(r"\bdltune\b(?!\.)[^|&;>#\")]*")  # up to whatever the shell puts behind a command


def read_help(*command: str) -> str:
    return CliRunner().invoke(cli, [*command, "--help"], prog_name="dltune", terminal_width=80).stdout


def list_examples(*command: str) -> list[str]:
    _, _, below = read_help(*command).partition("Examples:\n")
    return [line.strip() for line in below.partition("\n\n")[0].splitlines()]


def list_calls(*command: str) -> Iterator[list[str]]:
    """List the calls of dltune in the examples of a command, as words, `tune` put in where it is implied."""
    for example in list_examples(*command):
        for call in CALL.findall(example):
            words = shlex.split(call)[1:]
            yield ["tune", *words] if words[0].startswith("-") or is_script(words[0]) else words


@pytest.mark.parametrize("name", NAMES)
def test_every_command_shows_how_it_is_used(name: str) -> None:
    assert name in [words[0] for words in list_calls(name)]


@pytest.mark.parametrize("command", [(), *((name,) for name in NAMES)], ids="-".join)
def test_every_example_parses(command: tuple[str, ...]) -> None:
    calls = list(list_calls(*command))
    assert calls
    for name, *arguments in calls:
        cli.commands[name].make_context(name, arguments)


@pytest.mark.parametrize("name", NAMES)
def test_no_example_is_broken_into_lines_that_a_shell_would_run_one_by_one(name: str) -> None:
    starts = ("dltune", "python", "eval")
    assert [line for line in list_examples(name) if not line.startswith(starts)] == []


@pytest.mark.parametrize("name", ["tune", "retune", "show", "export", "report", "check", "compare", "merge", "doctor"])
def test_exit_codes_stand_in_the_help_of_commands_that_jobs_ask(name: str) -> None:
    assert re.search(r"Exit codes: 0 ", read_help(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_command_says_in_a_sentence_what_it_does(name: str) -> None:
    assert (cli.commands[name].help or "").partition("\n")[0].endswith(".")


def test_no_summary_of_a_command_is_cut_off() -> None:
    _, _, commands = read_help().partition("Commands:\n")
    assert "..." not in commands.partition("Examples:")[0]


def test_the_help_of_the_trial_time_is_what_the_search_does() -> None:
    (option,) = [option for option in cli.commands["tune"].params if option.name == "trial_time"]
    assert isinstance(option, click.Option)
    assert f"the search get {SEARCH_SHARE} of it" in (option.help or "")
