from __future__ import annotations

import json

import pytest
import torch

import autotune
from autotune.system.code_places import is_library


@pytest.mark.parametrize("module", [json, torch, autotune])
def test_the_interpreter_packages_and_dltune_are_libraries(module: object) -> None:
    assert is_library(str(getattr(module, "__file__", None)))


@pytest.mark.parametrize("file", [__file__, "/home/me/train.py", "data.py"])
def test_a_file_of_the_users_is_none(file: str) -> None:
    assert not is_library(file)


def test_frozen_and_generated_code_is_a_library() -> None:
    assert is_library("<frozen importlib._bootstrap>")
