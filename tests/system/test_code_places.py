from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import autotune
from autotune.system.code_places import find_module, is_library
from tests.builders import write_files


@pytest.mark.parametrize("module", [json, torch, autotune])
def test_the_interpreter_packages_and_dltune_are_libraries(module: object) -> None:
    assert is_library(str(getattr(module, "__file__", None)))


@pytest.mark.parametrize("file", [__file__, "/home/me/train.py", "data.py"])
def test_a_file_of_the_users_is_none(file: str) -> None:
    assert not is_library(file)


def test_frozen_and_generated_code_is_a_library() -> None:
    assert is_library("<frozen importlib._bootstrap>")


def test_a_module_is_found_in_the_nearest_folder_that_has_it(tmp_path: Path) -> None:
    write_files(tmp_path, {"src/deep/data.py": "", "src/data.py": "", "src/pkg/__init__.py": "", "build/gone.py": ""})
    assert find_module("data", tmp_path) == tmp_path / "src/data.py"
    assert find_module("src.pkg", tmp_path) == tmp_path / "src/pkg/__init__.py"
    assert find_module("gone", tmp_path) is None
