"""Writes every command with all its options, from what click knows of them.

mkdocs-click would leave out the examples and the exit codes, which stand in the epilogs, and where to read on.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Final

import click

from autotune.cli.main import COMMANDS, cli
from benchmarks.analysis.verdicts import format_table

READ_ON: Final[Mapping[str, str]] = {  # the section about an option
    "--loader": "loaders.md#a-function-of-the-settings",
    "--split": "loaders.md#several-loaders-or-datasets",
    "--knob": "loaders.md#arguments-of-your-own",
    "--epochs": "measuring.md#what-the-number-is",
    "--trial-time": "measuring.md#how-a-trial-is-timed",
    "--stall-time": "limits.md#when-a-trial-fails",
    "--max-memory": "limits.md#budgets",
    "--max-shm": "limits.md#budgets",
    "--max-gpu-memory": "gpu.md#limits",
    "--max-workers": "limits.md#budgets",
    "--device": "gpu.md#which-device",
    "--ranks": "ranks.md",
    "--cold": "measuring.md#cold-storage",
    "--start-method": "workers.md#how-they-start",
    "--main": "workers.md#how-they-start",
    "--isolation": "limits.md#during-a-trial-the-sandbox",
    "--max-age": "hardware.md#what-decides-and-what-only-advises",
    "--quick": "hardware.md#keeping-a-file-right",
    "--record": "ranks.md#machines-that-share-a-file",
    "--trust": "hardware.md#keeping-a-file-right",
    "--to": "exports.md",
    "--data": "doctor.md#storage-and-the-number-of-workers",
}


def describe_commands() -> str:
    """Write a section for each command, behind one for the group."""
    own = f"## dltune\n\n{_write_help(cli.help)}\n\n{_write_epilog(cli.epilog)}"
    return "\n\n".join([own, *map(describe_command, COMMANDS)])


def describe_command(command: click.Command) -> str:
    """Write the section of a command: what it does, its arguments and options, examples, exit codes."""
    context = click.Context(command, info_name=f"dltune {command.name}", show_default=True)
    usage = " ".join([f"dltune {command.name}", *command.collect_usage_pieces(context)])
    options = [one for one in command.params if isinstance(one, click.Option)]
    parts = [
        f"## dltune {command.name}",
        _write_help(command.help),
        f"```text\n{usage}\n```",
        _write_options(options, context),
        _write_epilog(command.epilog),
    ]
    return "\n\n".join(part for part in parts if part)


def _write_help(text: str | None) -> str:
    return inspect.cleandoc(text or "")


def _write_options(options: Sequence[click.Option], context: click.Context) -> str:
    if not options:
        return ""
    rows = [_write_option(option, context) for option in options]
    return format_table(("option", "meaning", "default"), rows)


def _write_option(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    extra = option.get_help_extra(context)
    is_choice = isinstance(option.type, click.Choice)
    metavar = "" if option.is_flag or option.count else " WORD" if is_choice else f" {option.make_metavar(context)}"
    short = [name for name in option.opts if not name.startswith("--")]
    long = [name for name in option.opts if name.startswith("--")]
    names = [*short, *(f"{name}{metavar}" for name in long), *option.secondary_opts]
    meaning = [option.help or ""]
    if isinstance(option.type, click.Choice):
        meaning.append(f"One of {', '.join(f'`{choice}`' for choice in option.type.choices)}.")
    if (page := READ_ON.get(long[0])) is not None:
        meaning.append(f"[Read on]({page}).")
    default = "required" if option.required else extra.get("default", "")
    return ", ".join(f"`{name}`" for name in names), " ".join(meaning), default


def _write_epilog(text: str | None) -> str:
    """Write the examples as blocks: click keeps the lines of a paragraph that begins with a backspace as they are."""
    return "\n\n".join(_write_paragraph(paragraph) for paragraph in (text or "").split("\n\n") if paragraph)


def _write_paragraph(paragraph: str) -> str:
    if not paragraph.startswith("\b\n"):
        return paragraph
    caption, *lines = paragraph.removeprefix("\b\n").splitlines()
    language = "sh" if caption == "Examples:" else "python"
    return "\n".join([caption, "", f"```{language}", *(line.removeprefix("  ") for line in lines), "```"])
