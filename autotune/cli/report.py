"""`dltune report`: how is a profile shown to people?"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from autotune.cli.epilog import READS_A_FILE, epilog
from autotune.cli.errors import exit_on_error
from autotune.cli.output import refuse_tuned_file, write_or_print
from autotune.cli.params import FILE

REPORT_MARKS: Final = (b"### dltune: ", b'<meta name="generator" content="dltune report">')
MARK_WITHIN_BYTES: Final = 2000


@click.command(
    epilog=epilog(
        "dltune report",
        "dltune report tuned/dltune.json -o tuning.html",
        "dltune report --format md >> summary.md",
        codes=READS_A_FILE,
    )
)
@FILE
@click.option(
    "--profile", metavar="NAME", help="Report on this profile; else the only one, or that of a machine like this."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md"]),
    default="html",
    show_default=True,
    help="A page to look at and send on, or Markdown for a pull request.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write it; report.html if left out, stdout for Markdown.",
)
@click.option("--force", is_flag=True, help="Replace the output even if it is no report of dltune's.")
def report(file: Path, profile: str | None, form: str, output: Path | None, force: bool) -> None:
    """Write a report on a profile, for people.

    FILE is the tuned file, dltune.json if left out. The page needs nothing beside itself: no network, no other file.
    An earlier report is replaced; another file is only with --force.
    """
    from autotune.profiles.selection import select_profile

    with exit_on_error():
        chosen = select_profile(file, profile)
        if form == "html":
            from autotune.report.html import render_html

            output = output or Path("report.html")
            text = render_html(chosen, str(file))
        else:
            from autotune.report.markdown import render_markdown

            text = render_markdown(chosen, str(file))
        refuse_tuned_file(output, file)
        write_or_print(text, output, force=force or _is_report(output))


def _is_report(path: Path | None) -> bool:
    """Tell whether a report of ours lies at a path, which another one may replace."""
    if path is None or not path.is_file():
        return False
    try:
        with path.open("rb") as stream:
            beginning = stream.read(MARK_WITHIN_BYTES)
    except OSError:
        return False
    return any(mark in beginning for mark in REPORT_MARKS)
