"""The manual page, written from the commands while a wheel is built (hatch_build.py): it cannot grow stale.

One page tells of all commands. click-man writes one for each, and leaves out their examples and exit codes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

import click

_ESCAPES: Final = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
)  # what groff would print as other characters, which no shell reads
_AS_IT_STANDS: Final = "\b"  # on a line of its own: click leaves the paragraph below it alone


def write_man_page(group: click.Group, name: str, version: str) -> str:
    """Write the page of a command and all its subcommands.

    Args:
        group: The command.
        name: What it is called by.
        version: What the foot of the page says.

    Returns:
        The source of the page, for man(1).
    """
    top = click.Context(group, info_name=name, **group.context_settings)
    lines = [
        f'.TH {name.upper()} 1 "" "{name} {version}" "User Commands"',
        ".SH NAME",
        rf"{name} \- {_escape(_summarize(group))}",
        ".SH SYNOPSIS",
        *_write_usage(top),
        ".SH DESCRIPTION",
        *_write_text(group.help),
        *_write_options(top),
        ".SH COMMANDS",
    ]
    for command in group.commands.values():
        context = click.Context(command, info_name=command.name, parent=top, **command.context_settings)
        lines += [f".SS {_escape(context.command_path)}", *_write_usage(context), *_write_text(command.help)]
        lines += [*_write_options(context), *_write_text(command.epilog)]
    examples = (group.epilog or "").replace("Examples:\n", "", 1)  # which is the heading here
    return "\n".join([*lines, ".SH EXAMPLES", *_write_text(examples)]) + "\n"


def _summarize(command: click.Command) -> str:
    """Take the first sentence of the help, as the line that apropos(1) shows."""
    first = " ".join((command.help or "").partition("\n\n")[0].split()).rstrip(".")
    return first[:1].lower() + first[1:]


def _write_usage(context: click.Context) -> Iterator[str]:
    yield f"\\fB{_escape(context.command_path)}\\fR {_escape(' '.join(context.command.collect_usage_pieces(context)))}"


def _write_options(context: click.Context) -> Iterator[str]:
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:  # newer clicks list arguments as well, of which the text above tells
            yield from (".TP", f"\\fB{_escape(record[0])}\\fR", _escape(record[1]))


def _write_text(text: str | None) -> Iterator[str]:
    """Write the paragraphs of a help text, and those that are to stand as they are line by line."""
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        as_it_stands = paragraph.startswith(_AS_IT_STANDS)
        body = _escape(paragraph.removeprefix(_AS_IT_STANDS).strip("\n"))
        yield from (".PP", ".nf", body, ".fi") if as_it_stands else (".PP", body)


def _escape(text: str) -> str:
    """Keep roff from reading a text: neither as escapes nor, at the start of a line, as requests."""
    return re.sub(r"^\.", r"\\&.", text.translate(_ESCAPES), flags=re.MULTILINE)
