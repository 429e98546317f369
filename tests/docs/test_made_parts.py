"""What the site takes from the code and from kept results is all there, and is what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
import yaml
from autotune.cli.schema import make_json_schema, read_docstring
from benchmarks.analysis.verdicts import format_value

import autotune
from autotune.cli.main import COMMANDS
from pages.commands import READ_ON, describe_command
from pages.json_schema import describe_schema
from pages.links import list_linked_files, name_page, point_to_pages
from pages.parts import BUILT, KEPT, fill, list_parts
from pages.public_names import GROUPS, list_names
from pages.results import read_findings
from tests.docs.markdown import PAGES, ROOT, read_page
from tests.docs.markdown import name_page as name_of
from tests.test_cli import list_options

NEWEST = ROOT / "benchmarks" / "results" / "seventh_sitting"
by_name = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_part_that_is_kept_on_a_page_is_what_the_kept_results_say(page: Path) -> None:
    assert fill(page.read_text(), KEPT) == page.read_text(), "python -m pages writes it anew"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_part_of_a_page_has_a_maker_and_an_end(page: Path) -> None:
    text = page.read_text()
    assert set(list_parts(text)) <= {*KEPT, *BUILT}
    assert len(list_parts(text)) == text.count("<!-- part: ") == text.count("<!-- end of part -->")


@pytest.mark.parametrize("name", [*KEPT, *BUILT])
def test_every_maker_has_a_page(name: str) -> None:
    assert any(name in list_parts(page.read_text()) for page in PAGES)


@by_name
def test_every_command_has_a_section_that_says_what_it_does_and_shows_it(command: click.Command) -> None:
    section = describe_command(command)
    assert f"\n\n{section}" in read_page(ROOT / "docs" / "commands.md")
    assert section.startswith(f"## dltune {command.name}\n\n")
    assert (command.help or "").splitlines()[0] in section
    assert "Examples:\n\n```sh\n" in section


@by_name
def test_every_option_has_a_row_that_says_what_it_means(command: click.Command) -> None:
    lines = [line for line in describe_command(command).splitlines() if line.startswith("| `")]
    rows = {name: line for line in lines for name in re.findall(r"`(--[\w-]+)", line.split(" | ")[0])}
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help
            assert all(option.help in rows[name] for name in (*option.opts, *option.secondary_opts) if len(name) > 2)


def test_a_row_gives_choices_defaults_what_is_required_and_where_to_read_on() -> None:
    page = read_page(ROOT / "docs" / "commands.md")
    rows = {line.split("`")[1]: re.sub(" +", " ", line) for line in page.splitlines() if line.startswith("| `")}
    assert "One of `full`, `brief`, `none`. | brief |" in rows["--explain WORD"]
    assert rows["--to WORD"].endswith("| required |")
    assert rows["--trials INTEGER RANGE"].endswith("| 40 |")
    assert "(loaders.md#arguments-of-your-own)" in rows["--knob NAME=CHOICES"]
    assert "`--no-resume`" in rows["--resume"]


def test_where_to_read_on_is_told_of_options_that_there_are() -> None:
    known = {option for command in COMMANDS for option in list_options(command)}
    assert set(READ_ON) - known == set()


@by_name
def test_an_option_of_tune_is_set_in_the_environment_by_its_own_name(command: click.Command) -> None:
    if command.name != "tune":
        return
    for option in command.params:
        if isinstance(option, click.Argument):  # the script, which belongs to one call
            continue
        assert isinstance(option, click.Option)
        long = max(option.opts, key=len).removeprefix("--").replace("-", "_").upper()
        assert (option.envvar or f"DLTUNE_{(option.name or '').upper()}") == f"DLTUNE_{long}"


def test_every_object_and_every_field_of_the_file_has_its_place() -> None:
    document = make_json_schema()
    text = describe_schema()
    objects = {"TunedFile": document, **{name: one for name, one in document["$defs"].items() if "properties" in one}}
    for name, schema in objects.items():
        section = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert [field for field in schema["properties"] if f"| `{field}`" not in section] == [], name
        assert [field for field, one in schema["properties"].items() if not one["description"]] == [], name


def test_what_a_docstring_says_of_its_attributes_is_taken_from_it() -> None:
    text = "What it is.\n\nMore of it.\n\nAttributes:\n    one: The first,\n        in two lines.\n    two: The second."
    assert read_docstring(text) == (
        "What it is.\n\nMore of it.",
        {"one": "The first, in two lines.", "two": "The second."},
    )


def test_every_public_name_is_in_one_group_of_the_api() -> None:
    listed = [name for group in GROUPS for name in list_names(group)]
    assert sorted([*listed, "__version__"]) == autotune.__all__
    assert all(f"::: autotune.{name}" in read_page(ROOT / "docs" / "api.md") for name in listed)


def test_the_headline_gives_the_worst_as_well_as_the_median() -> None:
    shares = sorted(regret.share for regret in read_findings(NEWEST).regrets)
    headline = KEPT["headline"](NEWEST).replace(" %", "%")
    assert f"{shares[0]:.0%} to {shares[-1]:.0%}" in headline
    assert f"(median {shares[len(shares) // 2]:.0%})" in headline


def test_the_targets_name_what_was_missed() -> None:
    kept = json.loads((NEWEST / "summary.json").read_text())["verdicts"]
    missed = [line for lines in kept.values() for line in lines if line["verdict"].startswith("missed")]
    table = KEPT["targets"](NEWEST)
    assert missed
    for line in missed:
        assert re.search(
            rf"{re.escape(line['what'])} +\| {re.escape(format_value(line['value'], line['unit']))} ", table
        )


def test_every_page_stands_in_the_menu_of_the_site() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES[1:]}
    assert set(list_leaves(menu)) == {*pages, "architecture.md", "changelog.md"}


def list_leaves(menu: object) -> list[str]:
    if isinstance(menu, str):
        return [menu]
    inner = menu.values() if isinstance(menu, dict) else menu
    assert not isinstance(inner, int)
    return [leaf for part in inner for leaf in list_leaves(part)]  # type: ignore[attr-defined]  # lists and dicts only


def test_a_link_to_a_file_of_the_repository_leads_to_its_page_on_the_site() -> None:
    page = ROOT / "docs" / "tutorials" / "jobs.md"
    text = "[a](../../examples/jobs/crontab) [b](../hardware.md#in-a-job) [c](https://a.b/c.md) [d](../../README.md)"
    assert point_to_pages(text, page, ROOT) == (
        "[a](../files/examples/jobs/crontab.md) [b](../hardware.md#in-a-job) [c](https://a.b/c.md) [d](../index.md)"
    )
    assert ROOT / "examples" / "jobs" / "crontab" in list_linked_files(ROOT)
    assert name_page(ROOT / "ARCHITECTURE.md", ROOT) == "architecture.md"
