"""The parts of a page that are made: where they stand, and what makes them.

A part stands between two comments, `<!-- part: targets benchmarks/results -->` and `<!-- end of part -->`. What is kept
stands between them in the repository, for readers there, and a test holds it to what is made now. What follows the code
(commands, dltune.json, the API) is made when the site is built; in the repository one sentence stands in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pages import results
from pages.commands import describe_commands
from pages.json_schema import describe_schema
from pages.public_names import describe_names

ROOT: Final = Path(__file__).parent.parent
Maker = Callable[[Path], str]  # is given the file or the folder that the comment names

KEPT: Final[Mapping[str, Maker]] = {
    "headline": results.write_headline,
    "targets": results.tabulate_targets,
    "choices": results.tabulate_choices,
    "peers": results.tabulate_peers,
    "timings": results.tabulate_timings,
    "samplers": results.tabulate_samplers,
    "libraries": results.tabulate_libraries,
    "ranks": results.tabulate_ranks,
    "start-methods": results.tabulate_start_methods,
    "text": results.quote,
}
BUILT: Final[Mapping[str, Maker]] = {
    "commands": lambda _: describe_commands(),
    "schema": lambda _: describe_schema(),
    "names": lambda _: describe_names(),
}
CONFIGURATION: Final = re.compile(r"(?<=\| )w=\d+(?: [\w=-]+)+")  # in a cell: broken into lines, rows get tall
_PART: Final = re.compile(
    r"(?P<head><!-- part: (?P<name>[\w-]+)(?: (?P<source>\S+))? -->\n).*?(?P<tail><!-- end of part -->)", re.DOTALL
)


def fill(text: str, makers: Mapping[str, Maker]) -> str:
    """Write a page's parts anew, as far as there is a maker for them.

    Args:
        text: The page in Markdown.
        makers: What makes a part, by its name.

    Returns:
        The page; parts that none of the makers is for stay as they are.
    """
    return _PART.sub(lambda part: _write(part, makers), text)


def list_parts(text: str) -> list[str]:
    """List the names of a page's parts."""
    return [part["name"] for part in _PART.finditer(text)]


def _write(part: re.Match[str], makers: Mapping[str, Maker]) -> str:
    maker = makers.get(part["name"])
    if maker is None:
        return part[0]
    text = maker(ROOT / (part["source"] or ""))
    text = CONFIGURATION.sub(lambda cell: cell[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    return f"{part['head']}{text}\n{part['tail']}"
