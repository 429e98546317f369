"""`dltune show`, `report`, `export` and `merge`: print, convert and combine tuned files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from autotune.cli.console import exit_on_error, print_error, print_result
from autotune.cli.options import FILE, PROFILE, epilog, option
from autotune.errors import OutputError

if TYPE_CHECKING:
    from autotune.profiles.export import Target

TARGETS: Final = ("hf", "lightning", "accelerate", "timm", "statefuldataloader", "json", "yaml")
CODES: Final = "0 done; 1 the output cannot be written; 2 a file is invalid or has no such profile"
OUTPUT: Final = option("-o --output FILE", "Output file. Default: stdout.")
FORCE: Final = option("--force", "Replace an existing output file.")
DEFAULT_PAGE: Final = "dltune-report.html"


@click.command(
    params=[FILE, option("--profile NAME", "Show only this profile."), option("--json", "Print the profiles as JSON.")],
    epilog=epilog("dltune show", "dltune show tuned/dltune.json --profile h100x1-12c-64g", codes=CODES),
)
def show(file: str, profile: str | None, json: bool) -> None:
    """Show the profiles of a tuned file."""
    with exit_on_error():
        from autotune.profiles.load import select_profile
        from autotune.profiles.schema import TunedFile
        from autotune.profiles.store import format_file, read_file
        from autotune.report.render import render_profile

        chosen = read_file(Path(file)).profiles if profile is None else ()
        found = TunedFile(profiles=chosen or (select_profile(Path(file), profile),))
        if json:
            print_result(format_file(found))
        else:
            names = name_profiles(file)
            texts = (render_profile(one, file, name=names.get(one.workload_id)) for one in found.profiles)
            print_result("\n\n".join(texts))


@click.command(
    params=[
        *(FILE, PROFILE),
        option("--format html|md", "A page, or Markdown for a pull request.", "html"),
        option("-o --output FILE", f"Output file. Default: {DEFAULT_PAGE}, which is replaced; stdout for Markdown."),
        FORCE,
    ],
    epilog=epilog("dltune report", "dltune report --format md >> summary.md", codes=CODES),
)
def report(file: str, profile: str | None, output: str | None, force: bool, **form: str) -> None:
    """Write a report about a profile.

    The page loads nothing else. Another file is replaced only with --force.
    """
    with exit_on_error():
        from autotune.profiles.load import select_profile
        from autotune.report.render import render_html, render_markdown

        chosen, is_page = select_profile(Path(file), profile), form["format"] == "html"
        text = (render_html if is_page else render_markdown)(chosen, file, name_profiles(file).get(chosen.workload_id))
        write_or_print(text, output or (DEFAULT_PAGE if is_page else None), force=force or output is None, source=file)


@click.command(
    params=[
        *(FILE, PROFILE),
        click.Option(["--to"], type=click.Choice(TARGETS), required=True, help="Library or format."),
        *(OUTPUT, FORCE),
    ],
    epilog=epilog("dltune export --to hf -o loader.yaml", "python train.py $(dltune export --to timm)", codes=CODES),
)
def export(file: str, profile: str | None, to: Target, output: str | None, force: bool) -> None:
    """Export a profile in another library's format.

    Settings that the target does not support are listed in a comment, or on stderr.
    """
    with exit_on_error():
        from autotune.profiles.export import export as export_profile
        from autotune.profiles.load import select_profile

        made = export_profile(select_profile(Path(file), profile), to)
        write_or_print(made.text, output, force=force, source=file)
    for note in made.notes:
        if output is not None or note not in made.text:  # else it is on stdout, as a comment
            print_error(note)


@click.command(
    params=[
        click.Argument(["files"], metavar="A B...", nargs=-1, required=True),
        option("-o --output FILE", "Tuned file to add the profiles to. Default: stdout."),
    ],
    epilog=epilog("dltune merge a100.json h100.json cpu.json -o dltune.json", codes=CODES),
)
def merge(files: tuple[str, ...], output: str | None) -> None:
    """Combine the profiles of several tuned files into one.

    Of profiles of the same workload and machine class, the newest validated one is kept, with a later unvalidated one.
    """
    with exit_on_error():
        from autotune.profiles.store import format_file, merge_profiles, read_file, update_file

        found = [read_file(Path(file)) for file in files]
        if output in (None, "-"):
            print_result(format_file(merge_profiles(found)))
        else:
            update_file(Path(output), lambda stored: merge_profiles([stored, *found]))
            print_error(f"Wrote {output}.")


def name_profiles(file: str) -> dict[str, str]:
    """Return names by workload ids if a file has several workloads, so that commands must name one; else none."""
    from autotune.profiles.load import name_workloads
    from autotune.profiles.store import read_profiles

    names = name_workloads(read_profiles(Path(file)))
    named = {one: one if name in ids else name for name, ids in names.items() for one in ids}
    return named if len(names) > 1 else {}


def write_or_print(text: str, output: str | None, *, force: bool, source: str) -> None:
    """Print a text, or write it to a file: never the source, and only with `force` over another one."""
    from autotune.profiles.store import write_atomically

    if output in (None, "-"):
        print_result(text)
        return
    path = Path(output)
    if path.resolve() == Path(source).resolve():
        raise OutputError(f"{path} is the tuned file itself. Pass another --output.")
    try:
        if path.exists() and not force:
            raise OutputError(f"{path} exists already. Pass --force to replace it.")
        write_atomically(path, text)
    except OSError as error:
        problem = error.strerror if path.absolute().parent.exists() else "its folder does not exist"
        raise OutputError(f"{path} cannot be written: {problem}.") from None
    print_error(f"Wrote {path}.")
