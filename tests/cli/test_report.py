"""`dltune report`: what it writes, where, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from autotune.cli.main import cli
from autotune.profiles.saving import save_profile
from autotune.report.html import render_html
from autotune.report.markdown import render_markdown
from tests.builders import make_full_profile, make_hardware

pytestmark = pytest.mark.usefixtures("workdir")


def report(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["report", *arguments], prog_name="dltune")


def save(name: str = "mine", path: str = "dltune.json", **changes: Any) -> None:
    save_profile(Path(path), make_full_profile(name=name, **changes))


def test_the_page_is_written_beside_and_said_on_stderr(workdir: Path) -> None:
    save()
    result = report()
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "Wrote report.html" in result.stderr
    assert (workdir / "report.html").read_text() == render_html(make_full_profile(name="mine"), "dltune.json")


@pytest.mark.parametrize("form", ["html", "md"])
def test_an_earlier_report_is_replaced(form: str) -> None:
    save()
    for _ in range(2):
        assert report("--format", form, "-o", "out").exit_code == 0


@pytest.mark.parametrize("name", ["report.html", "out.md"])
def test_a_file_that_is_no_report_is_replaced_only_by_force(workdir: Path, name: str) -> None:
    save()
    (workdir / name).write_text("<!doctype html><title>My thesis</title>")
    arguments = () if name == "report.html" else ("--format", "md", "-o", name)
    refused = report(*arguments)
    assert refused.exit_code == 1
    assert f"{name} is there already. Give --force to replace it." in refused.stderr
    assert "My thesis" in (workdir / name).read_text()
    assert report(*arguments, "--force").exit_code == 0
    assert "My thesis" not in (workdir / name).read_text()


def test_markdown_goes_to_stdout_unless_a_file_is_named(workdir: Path) -> None:
    save()
    summary = render_markdown(make_full_profile(name="mine"), "dltune.json")
    assert report("--format", "md").stdout == summary
    assert report("--format", "md", "-o", "out.md").stdout == ""
    assert (workdir / "out.md").read_text() == summary


def test_the_code_loads_the_file_that_was_named(workdir: Path) -> None:
    (workdir / "tuned").mkdir()
    save(path="tuned/here.json")
    assert 'autotune.load("tuned/here.json")' in report("tuned/here.json", "--format", "md").stdout


def test_one_of_several_profiles_is_chosen_by_its_name() -> None:
    foreign = make_hardware(cpu="another", memory_limit_bytes=1 << 60)
    save("first", hardware=foreign)
    save("second", hardware=foreign)
    assert "### dltune" in report("--format", "md", "--profile", "second").stdout
    unnamed = report("--format", "md")
    assert unnamed.exit_code == 2
    assert "Name one with --profile" in unnamed.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("missing.json",), 2, "cannot be read"),
        (("--profile", "other"), 2, "it holds mine"),
        (("-o", "dltune.json"), 1, "is the tuned file itself"),
        (("-o", "no/such/folder.html"), 1, "cannot be written"),
        (("--format", "pdf"), 2, "'html', 'md'"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(arguments: tuple[str, ...], code: int, words: str) -> None:
    save()
    result = report(*arguments)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
    assert "Traceback" not in result.stderr
