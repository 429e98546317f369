"""The commands that take a tuned file. Part of the command line: it prints, and it may exit.

Importing it costs click and nothing else; what a command needs is imported when it runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from autotune.commands.errors import exit_on_error, print_result
from autotune.commands.manual import EPILOGS
from autotune.commands.params import Duration
from autotune.errors import OutputError, UsageError
from autotune.system.signals import raise_on_signals

if TYPE_CHECKING:
    from autotune.profiles.export import Target
    from autotune.profiles.schema import TunedProfile
    from autotune.progress import ProgressListener

TARGETS: Final = ("kwargs", "statefuldataloader", "hf", "accelerate", "lightning", "timm", "yaml", "json", "env")
REPORTS: Final = (b"### dltune: ", b'<meta name="generator" content="dltune report">')  # in the beginning of each
BEGINNING_BYTES: Final = 2000  # of a file, in which that stands
TRUST: Final = click.option(
    "--trust", is_flag=True, help="I have read FILE: import what it names even if others may have written it."
)
_FILE: Final = click.argument("file", type=click.Path(path_type=Path), default=Path("dltune.json"))


@click.command(epilog=EPILOGS["show"])
@_FILE
@click.option("--profile", metavar="NAME", help="Show only this profile.")
@click.option("--json", "as_json", is_flag=True, help="Print the profiles as JSON.")
def show(file: Path, profile: str | None, as_json: bool) -> None:
    """Show the profiles of a tuned file.

    FILE is dltune.json if left out. Of each profile: machine and workload, the settings, what they reach and with what
    certainty, and what was learned.
    """
    from autotune.profiles.file import format_file, read_file
    from autotune.profiles.schema import SCHEMA_VERSION, TunedFile
    from autotune.report.text import describe_profile

    with exit_on_error():
        found = read_file(file)
        chosen = tuple(entry for entry in found.profiles if profile in (None, entry.name))
        if not chosen:
            names = ", ".join(entry.name for entry in found.profiles) or "none"
            raise UsageError(f"{file} has no profile {profile or ''}; it holds: {names}.")
        if as_json:
            print_result(format_file(TunedFile(schema_version=SCHEMA_VERSION, profiles=chosen)))
        else:
            print_result("\n\n".join(describe_profile(entry) for entry in chosen))


@click.command(epilog=EPILOGS["export"])
@_FILE
@click.option("--to", type=click.Choice(TARGETS), required=True, help="What will read the export.")
@click.option(
    "--profile", metavar="NAME", help="Export this profile; else the only one, or that of a machine like this."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it there, not to stdout.")
@click.option("--force", is_flag=True, help="Replace the output; export in_order=False to statefuldataloader.")
def export(file: Path, to: Target, profile: str | None, output: Path | None, force: bool) -> None:
    """Write a profile in the words of another library.

    FILE is the tuned file, dltune.json if left out. The settings are exported as they were tuned, not fitted to the
    machine at hand. What the target cannot hold is said on stderr, and in the export where its format has comments.
    """
    from autotune.profiles.export import export as write_export
    from autotune.profiles.load import choose_profile

    with exit_on_error():
        made = write_export(choose_profile(file, profile), to, force=force)
        _refuse_tuned_file(output, file)
        write_or_print(made.text, output, force=force)
    for note in made.notes:
        click.echo(note, err=True)


@click.command(epilog=EPILOGS["report"])
@_FILE
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
    from autotune.profiles.load import choose_profile

    with exit_on_error():
        chosen = choose_profile(file, profile)
        if form == "html":
            from autotune.report.html import make_page

            output = output or Path("report.html")
            text = make_page(chosen, str(file))
        else:
            from autotune.report.markdown import make_summary

            text = make_summary(chosen, str(file))
        _refuse_tuned_file(output, file)
        write_or_print(text, output, force=force or _is_report(output))


def _is_report(path: Path | None) -> bool:
    """Tell whether a report of ours lies at a path, which another one may replace."""
    if path is None or not path.is_file():
        return False
    try:
        with path.open("rb") as stream:
            beginning = stream.read(BEGINNING_BYTES)
    except OSError:
        return False
    return any(mark in beginning for mark in REPORTS)


def _refuse_tuned_file(output: Path | None, file: Path) -> None:
    if output is not None and output.resolve() == file.resolve():
        raise OutputError(f"{output} is the tuned file itself. Give another --output.")


def write_or_print(text: str, output: Path | None, *, force: bool) -> None:
    """Print a text, or write it to a file that is not there yet."""
    from autotune.profiles.file import write_atomically

    if output is None:
        print_result(text)
        return
    if output.exists() and not force:
        raise OutputError(f"{output} is there already. Give --force to replace it.")
    try:
        write_atomically(output, text)
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror}.") from None
    click.echo(f"Wrote {output}.", err=True)


@click.command(epilog=EPILOGS["check"])
@_FILE
@click.option("--profile", metavar="NAME", help="Check this profile; else the one that fits this machine best.")
@click.option("--max-age", type=Duration(), metavar="TIME", help="Tune anew what is older: 30d.")
@click.option("--quick", is_flag=True, help="Measure the profile against its baseline again, in about 30 s.")
@click.option(
    "--workload/--no-workload",
    default=True,
    show_default=True,
    help="Load the dataset and compare the number and size of its samples.",
)
@TRUST
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def check(
    file: Path, profile: str | None, max_age: float | None, quick: bool, workload: bool, trust: bool, as_json: bool
) -> None:
    """Tell whether a profile still fits machine and data.

    FILE is the tuned file, dltune.json if left out. What decides is named as a reason: accelerators, CPUs, memory,
    /dev/shm, open files, the start method of workers, and the size of the samples. Other versions are named as well,
    and do not decide.

    The dataset and the step that FILE names are imported and called, as make runs a Makefile: check files of your own,
    or read them first. With --no-workload, and without --quick, nothing that it names is imported.
    """
    with exit_on_error(exit_code=2), raise_on_signals():
        from autotune.commands.rechecking import check_file, describe_fitness

        progress = _make_rounds_display() if quick else None
        found = check_file(file, profile, max_age, quick=quick, with_workload=workload, trust=trust, progress=progress)
        print_result(found.model_dump_json(indent=2) if as_json else describe_fitness(found, str(file)))
    if not found.fits:
        sys.exit(1)


def _make_rounds_display() -> ProgressListener:
    from autotune.commands.display import ConfirmationDisplay

    return ConfirmationDisplay()


@click.command(epilog=EPILOGS["compare"])
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def compare(first: str, second: str, as_json: bool) -> None:
    """Compare two results, with their certainty.

    A and B are tuned files, or FILE:PROFILE. Says what differs in machine, workload, settings and throughput, and
    whether that is beyond noise.
    """
    from autotune.profiles.compare import compare_results, describe_comparison

    with exit_on_error():
        found = compare_results(_find_result(first), _find_result(second))
        print_result(found.model_dump_json(indent=2) if as_json else describe_comparison(found))


def _find_result(text: str) -> TunedProfile:
    """Find the result that FILE or FILE:PROFILE names."""
    from autotune.profiles.load import choose_profile

    path, colon, name = text.rpartition(":")
    if colon and not Path(text).exists():
        return choose_profile(Path(path), name)
    return choose_profile(Path(text))


@click.command(epilog=EPILOGS["completion"])
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    Commands and options are then completed by the tab key.
    """
    from click.shell_completion import get_completion_class

    maker = get_completion_class(shell)
    assert maker is not None, "the choices are those that click knows"
    root = click.get_current_context().find_root().command
    print_result(maker(root, {}, "dltune", "_DLTUNE_COMPLETE").source())


@click.command(epilog=EPILOGS["doctor"])
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="PATH", help="Look at the storage under the dataset as well."
)
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def doctor(data: Path | None, as_json: bool) -> None:
    """Say what this machine allows, and how to fix it.

    Looks at the machine, the container and Python, as training will meet them: run it where training runs. Each line
    is ok, a warning (it costs speed or certainty) or a problem (tuning is impossible).
    """
    from autotune.commands.doctor import collect_facts, describe_checks, has_problem, run_checks

    with exit_on_error():
        checks = run_checks(collect_facts(data))
        document = json.dumps([check.model_dump() for check in checks], indent=2)
        print_result(document if as_json else describe_checks(checks))
    if has_problem(checks):
        sys.exit(1)


@click.command(epilog=EPILOGS["schema"])
def schema() -> None:
    """Print the JSON Schema of dltune.json.

    For editors and validators.
    """
    from autotune.profiles.schema import SCHEMA_ID, TunedFile

    document = TunedFile.model_json_schema(by_alias=True)
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **document}
    click.echo(json.dumps(document, indent=2))


COMMANDS: Final[tuple[click.Command, ...]] = (show, check, compare, export, report, doctor, completion, schema)
