"""A loader in a variable is tuned by the name that it has in its module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autotune.errors import UsageError
from autotune.live_objects import name_object, request_for
from tests.builders import make_request, write_files

ROOT = str(Path(__file__).parents[1])


def make_numbers() -> list[int]:
    return [1, 2, 3]


NUMBERS = object()


def test_a_function_is_named_by_its_module() -> None:
    assert name_object(make_numbers) == "tests.test_live_objects:make_numbers"


def test_an_object_is_named_by_the_variable_that_holds_it() -> None:
    assert name_object(NUMBERS) == "tests.test_live_objects:NUMBERS"


def test_options_go_to_the_request_or_to_its_workload_and_functions_are_named() -> None:
    request = request_for(NUMBERS, {"trials": 3, "step": make_numbers, "ranks": 2})
    assert (request.trials, request.workload.nproc_per_node) == (3, 2)
    assert request.workload.step == "tests.test_live_objects:make_numbers"


@pytest.mark.parametrize(("options", "words"), [({"trails": 3}, "trails"), ({"trials": -1}, "trials")])
def test_an_option_that_is_none_is_refused_by_its_name(options: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=rf"tune\(\.\.\., {words}=\.\.\.\)"):
        request_for(NUMBERS, options)


def test_a_request_takes_no_options_beside_it() -> None:
    request = make_request()
    assert request_for(request, {}) is request
    with pytest.raises(UsageError, match="options stand in the TuningRequest"):
        request_for(request, {"trials": 3})


def test_what_no_module_holds_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"def make_loader\(\)"):
        name_object(object())
    with pytest.raises(UsageError, match="at the top of a module"):
        name_object(lambda: None)


def test_what_lives_in_a_notebook_only_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("__main__")
    vars(notebook)["loader"] = loader = object()
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    with pytest.raises(UsageError, match="%%writefile loaders"):
        name_object(loader)


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import autotune
loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=8)
{}
"""
CALL = "print(autotune.tune(loader, trials=0, max_workers=1, isolation='none').profile.workload.dataset)"


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    write_files(folder, {"train.py": text})
    environment = os.environ | {"PYTHONPATH": ROOT}
    command = [sys.executable, "train.py"]
    return subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )


def test_a_script_tunes_the_loader_that_it_holds(tmp_path: Path) -> None:
    found = run_script(tmp_path, SCRIPT.format(f'if __name__ == "__main__":\n    {CALL}'))
    assert found.stdout.strip() == "train.py:loader", found.stderr


def test_a_script_that_would_tune_again_in_each_trial_is_refused(tmp_path: Path) -> None:
    found = run_script(tmp_path, SCRIPT.format(CALL))
    assert "UsageError: --dataset train.py:loader: importing it would run line 6" in found.stderr
