"""Import strings of in-memory objects, and the requests that are built from them."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.preparation import find_import_string
from autotune.tuning import request_from_object
from tests.builders import make_request, write_files

ROOT = str(Path(__file__).parents[1])


def make_numbers() -> list[int]:
    return [1, 2, 3]


NUMBERS = object()


def test_a_function_or_object_has_the_import_string_of_its_module_level_name() -> None:
    assert find_import_string(make_numbers) == "tests.test_import_strings:make_numbers"
    assert find_import_string(NUMBERS) == "tests.test_import_strings:NUMBERS"


def repeat(make: Callable[[], list[int]]) -> Callable[[], list[int]]:
    @functools.wraps(make)
    def make_more() -> list[int]:
        return make() * 2

    return make_more


class Base:
    @classmethod
    def make(cls) -> str:
        return cls.__name__


class Train(Base): ...


MORE_NUMBERS = repeat(make_numbers)
UNNAMED = lambda: NUMBERS  # noqa: E731  # as users do
TRAIN = Train.make


def test_a_function_with_the_name_of_another_one_has_the_name_that_holds_it() -> None:
    names = {"MORE_NUMBERS": MORE_NUMBERS, "UNNAMED": UNNAMED, "TRAIN": TRAIN, "Base.make": Base.make}
    assert [find_import_string(one) for one in names.values()] == [f"{__name__}:{name}" for name in names]
    with pytest.raises(UsageError, match=r"make_loader\(\)"):
        find_import_string(repeat(make_numbers))


def test_the_main_module_of_a_package_is_imported_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__, main.__file__ = ModuleSpec("pkg.__main__", None), __file__
    vars(main)["loader"] = loader = object()
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert find_import_string(loader) == "pkg.__main__:loader"


def test_options_are_fields_of_the_request_or_of_its_workload() -> None:
    request = request_from_object(NUMBERS, {"trials": 3, "step": make_numbers, "nproc_per_node": 2})
    assert (request.trials, request.workload.nproc_per_node) == (3, 2)
    assert request.workload.step == "tests.test_import_strings:make_numbers"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trails": 3}, r"trails=\.\.\.\): there is no"),
        ({"step_time": 0.1}, r"step_time=\.\.\.\): .* \(is it step_seconds\?\)"),
        ({"trials": -1}, r"trials=\.\.\.\): .* greater than or equal to 1, not -1"),
        ({"fixed": {"workers": 3}}, r"fixed\.workers=\.\.\.\): it must be 'batch_size', .*, not 'workers'"),
        ({"fixed": {"batch_size": [8]}}, r"fixed\.batch_size=\.\.\.\): it must be"),
        ({"search": {"num_workers": "0:4"}}, r"search\.num_workers=\.\.\.\): .* ValueRange, not '0:4'"),
    ],
)
def test_an_invalid_option_is_rejected_by_its_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=rf"tune\(\.\.\., {words}"):
        request_from_object(NUMBERS, options)


def test_a_request_takes_no_further_options() -> None:
    request = make_request()
    assert request_from_object(request, {}) is request
    with pytest.raises(UsageError, match="set these options in the TuningRequest"):
        request_from_object(request, {"trials": 3})


def test_an_object_without_a_module_level_name_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"def make_loader\(\)"):
        find_import_string(object())
    with pytest.raises(UsageError, match="at module level with def"):
        find_import_string(lambda: None)
    with pytest.raises(
        UsageError, match=r"step=: this function .* def make_step\(\): .*tune\(\.\.\., step=make_step\)"
    ):
        request_from_object(NUMBERS, {"step": lambda: None})
    with pytest.raises(UsageError, match="it got None"):
        find_import_string(None)
    with pytest.raises(UsageError, match=r"it got 'data:make'\. Give an import string in a TuningRequest"):
        find_import_string("data:make")


def test_a_module_that_only_this_process_finds_is_named_by_its_file(
    tmp_path: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: tmp_path / name for name in ("added", "common")}
    for name, folder in folders.items():
        write_files(folder, {f"{name}_loaders.py": "def make(): ..."})
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folders["common"]))
    found = [find_import_string(importlib.import_module(f"{name}_loaders").make) for name in folders]
    assert found == [f"{os.path.relpath(folders['added'], workdir)}/added_loaders.py:make", "common_loaders:make"]


def test_an_object_of_a_notebook_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("__main__")
    vars(notebook)["loader"] = loader = object()
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    with pytest.raises(UsageError, match="%%writefile loaders"):
        find_import_string(loader)


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import autotune
loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=8)
{}
"""
CALL = "print(autotune.tune(loader, trials=1, trial_seconds=0.2, max_workers=1).profile.workload.dataset)"


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    write_files(folder, {"train.py": text})
    environment = os.environ | {"PYTHONPATH": ROOT}
    command = [sys.executable, "train.py"]
    return subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )


def test_a_script_tunes_its_own_loader(tmp_path: Path) -> None:
    found = run_script(tmp_path, SCRIPT.format(f'if __name__ == "__main__":\n    {CALL}'))
    assert found.stdout.strip() == "train.py:loader", found.stderr


def test_a_script_that_would_tune_again_in_each_trial_is_rejected(tmp_path: Path) -> None:
    found = run_script(tmp_path, SCRIPT.format(CALL))
    assert 'put the call under if __name__ == "__main__"' in found.stderr
