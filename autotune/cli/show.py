"""`dltune show`, `report`, `export` and `merge`: print, convert and combine tuned files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from autotune.cli.console import exit_on_error, make_printable, print_result, write_or_print
from autotune.cli.options import FILE, PROFILE, epilog
from autotune.errors import OutputError

TARGETS: Final = ("hf", "lightning", "accelerate", "timm", "statefuldataloader", "json", "yaml")
REPORT_MARKS: Final = (b"### dltune: ", b'<meta name="generator" content="dltune report">')
MARK_WITHIN_BYTES: Final = 2000
READS_A_FILE: Final = "0 done; 1 the output cannot be written; 2 FILE is invalid or has no such profile"
OUTPUT: Final = click.Option(["-o", "--output"], type=click.Path(path_type=Path), metavar="FILE", help="Output file.")
FORCE: Final = click.Option(["--force"], is_flag=True, help="Replace an existing output file.")


@click.command(
    params=[FILE, PROFILE],
    epilog=epilog(
        "dltune show",
        "dltune show tuned/dltune.json --profile h100x1-12c-64g",
        "dltune show --json",
        codes="0 done; 2 FILE is invalid or has no such profile",
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print the profiles as JSON.")
def show(file: str, profile: str | None, as_json: bool) -> None:
    """Show the profiles of a tuned file."""
    with exit_on_error():
        from autotune.profiles.match import select_profile
        from autotune.profiles.schema import TunedFile
        from autotune.profiles.store import format_file, read_file
        from autotune.report.text import render_profile

        found = read_file(Path(file)) if profile is None else TunedFile(profiles=(select_profile(Path(file), profile),))
        text = "\n\n".join(render_profile(one, file) for one in found.profiles)
        print_result(format_file(found) if as_json else text)


@click.command(
    params=[FILE, PROFILE, OUTPUT, FORCE],
    epilog=epilog(
        "dltune report",
        "dltune report tuned/dltune.json -o tuning.html",
        "dltune report --format md >> summary.md",
        codes=READS_A_FILE,
    ),
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md"]),
    default="html",
    show_default=True,
    help="A page (report.html, or OUTPUT), or Markdown for a pull request (stdout, or OUTPUT).",
)
def report(file: str, profile: str | None, form: str, output: Path | None, force: bool) -> None:
    """Write a report about a profile.

    The page is one file that loads nothing else. An earlier report is replaced, other files only with --force.
    """
    with exit_on_error():
        from autotune.profiles.match import select_profile
        from autotune.report.html import render_html
        from autotune.report.markdown import render_markdown

        chosen = select_profile(Path(file), profile)
        if form == "html":
            output = output or Path("report.html")
        text = render_html(chosen, file) if form == "html" else render_markdown(chosen, file)
        _write(text, output, Path(file), force=force or _is_report(output))


def _is_report(path: Path | None) -> bool:
    try:
        beginning = b"" if path is None else path.read_bytes()[:MARK_WITHIN_BYTES]
    except OSError:
        return False
    return any(mark in beginning for mark in REPORT_MARKS)


def _write(text: str, output: Path | None, file: Path, *, force: bool) -> None:
    if output is not None and output.resolve() == file.resolve():
        raise OutputError(f"{output} is the tuned file itself. Pass another --output.")
    write_or_print(text, output, force=force)


@click.command(
    params=[FILE, PROFILE, OUTPUT, FORCE],
    epilog=epilog(
        "dltune export --to hf -o loader.yaml",
        "dltune export tuned/dltune.json --to json --profile h100x1-12c-64g",
        "python train.py $(dltune export --to timm)",
        codes=READS_A_FILE,
    ),
)
@click.option("--to", type=click.Choice(TARGETS), required=True, help="Library or format.")
@click.option("--allow-unordered", is_flag=True, help="Export in_order=False to statefuldataloader.")
def export(file: str, profile: str | None, output: Path | None, force: bool, to: str, allow_unordered: bool) -> None:
    """Export a profile in another library's format.

    Settings that the target does not support are listed on stderr.
    """
    with exit_on_error():
        from autotune.profiles.export import export as export_profile
        from autotune.profiles.match import select_profile

        made = export_profile(select_profile(Path(file), profile), to, force=allow_unordered)
        _write(made.text, output, Path(file), force=force)
    for note in made.notes:
        click.echo(make_printable(note), err=True)


@click.command(
    params=[OUTPUT, FORCE],
    epilog=epilog(
        "dltune merge a100.json h100.json cpu.json -o dltune.json",
        "dltune merge nodes/*.json -o dltune.json --force",
        codes="0 done; 1 the output cannot be written; 2 a file is invalid",
    ),
)
@click.argument("files", metavar="A B...", nargs=-1, required=True, type=click.Path(path_type=Path))
def merge(files: tuple[Path, ...], output: Path | None, force: bool) -> None:
    """Combine the profiles of several tuned files into one.

    Of profiles of the same workload and machine class, the newest is taken.
    """
    with exit_on_error():
        from autotune.profiles.store import format_file, merge_profiles, read_file

        merged = merge_profiles([read_file(file) for file in files])
        write_or_print(format_file(merged), output, force=force)
