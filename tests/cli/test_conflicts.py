"""Other packages of our name, wherever they lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.cli.conflicts import PACKAGE_DIR, ConflictingPackage, find_conflicts
from tests.builders import write_files


def find(*folders: Path, ours: Path = PACKAGE_DIR, **providers: list[str]) -> tuple[ConflictingPackage, ...]:
    return find_conflicts([str(folder) for folder in folders], ours, providers)


@pytest.mark.parametrize("file", ["autotune/__init__.py", "autotune.py"])
def test_a_second_package_or_module_on_the_search_path_is_found(tmp_path: Path, file: str) -> None:
    write_files(tmp_path, {file: ""})
    (found,) = find(tmp_path)
    assert found == ConflictingPackage((tmp_path / file.removesuffix("/__init__.py")).resolve())


def test_a_folder_without_an_init_file_is_no_package(tmp_path: Path) -> None:
    write_files(tmp_path, {"autotune/notes.txt": ""})
    assert find(tmp_path) == ()


def test_our_own_package_is_no_conflict_however_it_is_reached(tmp_path: Path) -> None:
    ours = write_files(tmp_path / "real", {"autotune/__init__.py": ""}) / "autotune"
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert find(tmp_path / "real", tmp_path / "link", ours=ours) == ()


def test_a_place_that_is_listed_twice_is_told_once(tmp_path: Path) -> None:
    write_files(tmp_path, {"autotune/__init__.py": ""})
    assert len(find(tmp_path, tmp_path)) == 1


def test_a_distribution_that_provides_our_name_is_told_and_dltune_is_not() -> None:
    (found,) = find(autotune=["dltune", "pytest", "pytest"])
    assert found.distribution == "pytest"
    assert found.path.name == "autotune"


def test_a_distribution_that_is_gone_meanwhile_is_no_error() -> None:
    assert [one.distribution for one in find(autotune=["no-such-distribution"])] == ["no-such-distribution"]


def test_the_current_folder_is_looked_into_as_training_may_start_there(workdir: Path) -> None:
    write_files(workdir, {"autotune.py": ""})
    assert Path(os.path.realpath(workdir / "autotune.py")) in [one.path for one in find_conflicts()]


def test_a_file_on_the_search_path_is_passed_over(tmp_path: Path) -> None:
    archive = tmp_path / "python311.zip"
    archive.write_bytes(b"")
    assert find(archive, tmp_path / "missing") == ()
