"""Packaging: version, extras, and the workflows and forms of the repository."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
SCHEMAS = (
    *(("vendor.github-workflows", path) for path in WORKFLOWS),
    *(("vendor.github-issue-forms", path) for path in FORMS),
    ("vendor.dependabot", ROOT / ".github" / "dependabot.yml"),
    ("vendor.citation-file-format", ROOT / "CITATION.cff"),
)


def run_tool(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name(name)
    if not tool.exists():
        pytest.skip(f"needs {name}")
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_version_is_in_one_place() -> None:
    places = [*(ROOT / "autotune").rglob("*.py"), ROOT / "CITATION.cff"]
    assert [path for path in places if f'"{PROJECT["version"]}"' in path.read_text()] == []
    assert not re.search("^version:", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)


def test_the_extra_all_has_every_other_each_is_on_the_page_about_installing_and_every_named_one_exists() -> None:
    assert EXTRAS["all"] == [f"dltune[{','.join(name for name in EXTRAS if name != 'all')}]"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert [extra for extra in EXTRAS if f"| `{extra}` |" not in page] == []
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "autotune").rglob("*.py")]
    named = {names for path in files for names in re.findall(r"dltune\[([\w,]+)\]", path.read_text())}
    assert {name for names in named for name in names.split(",")} - set(EXTRAS) == set()


@pytest.mark.slow
@pytest.mark.parametrize(("schema", "path"), SCHEMAS, ids=lambda part: getattr(part, "name", part))
def test_a_file_for_github_holds_to_its_schema(schema: str, path: Path) -> None:
    found = run_tool("check-jsonschema", "--builtin-schema", schema, path)
    assert found.returncode == 0, found.stdout


@pytest.mark.slow
def test_zizmor_finds_nothing_to_abuse_in_the_workflows() -> None:
    found = run_tool("zizmor", "--offline", "--no-progress", ROOT / ".github")
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_pins_its_actions_to_commits_and_may_write_only_in_the_jobs_that_publish(path: Path) -> None:
    actions = re.findall(r"uses: (?!\./)(.+)", path.read_text())
    assert actions
    assert [action for action in actions if not re.match(r"[\w./-]+@[0-9a-f]{40}  # v\d", action)] == []
    workflow = yaml.safe_load(path.read_text())
    assert "write" not in json.dumps(workflow["permissions"])
    writers = {name for name, job in workflow["jobs"].items() if "write" in json.dumps(job.get("permissions", {}))}
    assert writers == ({"publish", "announce"} if path.name == "release.yml" else set())


def test_nothing_is_published_before_it_is_switched_on_or_without_the_gate() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert [jobs[name]["needs"] for name in ("build", "publish", "announce")] == ["gate", "build", "publish"]
    assert jobs["publish"]["if"] == "vars.DLTUNE_PUBLISH == 'true'"
    assert jobs["publish"]["environment"]["name"] == "pypi"


@pytest.mark.parametrize(
    ("tag", "changelog", "code", "words"),
    [
        ("v1.2.0", "## [Unreleased]\n\n## [1.2.0] - 2027-01-31\n\n- New.\n\n## [1.1.0]\n\n- Old.\n", 0, "- New.\n"),
        ("v1.3.0", "## [1.2.0]\n\n- New.\n", 1, "name the tag v1.2.0"),
        ("v1.2.0", "## [Unreleased]\n\n- New.\n", 1, "says nothing of 1.2.0"),
        ("v1.2.0", "## [1.2.0]\n\n## [1.1.0]\n\n- Old.\n", 1, "says nothing of 1.2.0"),
    ],
)
def test_the_notes_of_a_release_are_the_section_of_its_version(
    tag: str, changelog: str, code: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    command = [sys.executable, str(ROOT / ".ci" / "release_notes.py"), tag]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == code
    assert (found.stdout == words) if code == 0 else (words in found.stderr)
