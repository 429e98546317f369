"""Versions, start method and environment variables, read without importing torch."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import autotune
from autotune.system.software import (
    TorchVersion,
    inherits_imports,
    is_library,
    list_libraries,
    read_local_rank,
    read_local_world_size,
    read_torch,
)
from tests.builders import write_files

BUILT_FOR_CUDA = "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (BUILT_FOR_CUDA, TorchVersion("2.13.0+cu130", "13.0")),
        (BUILT_FOR_CUDA.replace("'13.0'", "None").replace("+cu130", "+cpu"), TorchVersion("2.13.0+cpu", None)),
        *((text, None) for text in ("", "cuda = [", "raise SystemExit(1)\n", "__version__ = make()\n", "\x00")),
    ],
)
def test_the_version_file_of_torch_is_read_and_never_run(
    tmp_path: Path, text: str, version: TorchVersion | None
) -> None:
    assert read_torch(write_files(tmp_path, {"version.py": text})) == version


@pytest.mark.parametrize(
    ("method", "version", "is_module", "expected"),
    [
        ("fork", (3, 11), False, True),
        ("fork", (3, 14), True, True),
        ("spawn", (3, 14), False, False),
        ("forkserver", (3, 14), False, True),
        ("forkserver", (3, 14), True, False),
        ("forkserver", (3, 13), False, False),
    ],
)
def test_the_fork_server_of_python_3_14_has_imported_a_main_script_but_no_main_module(
    method: str, version: tuple[int, int], is_module: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    main = types.ModuleType("__main__")
    main.__spec__, main.__file__ = pytest.__spec__ if is_module else None, "train.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert inherits_imports(method) is expected


def test_the_fork_server_of_python_3_14_has_not_imported_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 14))
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    assert not inherits_imports("forkserver")


def test_versions_and_start_method_are_read_without_importing_torch_or_fixing_the_method() -> None:
    code = """
import json, sys
from autotune.system.software import read_start_method_in_force, read_torch
read, method, is_imported = read_torch(), read_start_method_in_force(), "torch" in sys.modules
import multiprocessing, torch
is_undecided = multiprocessing.get_start_method(allow_none=True) is None
actual = [str(torch.__version__), torch.version.cuda], multiprocessing.get_start_method()
multiprocessing.set_start_method("spawn", force=True)
print(json.dumps([[list(read), method], actual, is_imported, is_undecided, read_start_method_in_force()]))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    read, actual, *rest = json.loads(shown)
    assert read == actual
    assert rest == [False, True, "spawn"]


@pytest.mark.parametrize(
    ("environ", "processes"),
    [
        pytest.param({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, 4, id="torchrun"),
        pytest.param({"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "SLURM_STEP_TASKS_PER_NODE": "1"}, 4, id="mpirun"),
        pytest.param({"LOCAL_SIZE": "4", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, 4, id="deepspeed"),
        pytest.param({"SLURM_STEP_TASKS_PER_NODE": "8", "SLURM_NODEID": "0"}, 8, id="srun"),
        pytest.param({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "SLURM_NODEID": "1"}, 8, id="srun, second node"),
        pytest.param({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "SLURM_NODEID": "2"}, 4, id="srun, third node"),
        pytest.param({"SLURM_NTASKS_PER_NODE": "8", "SLURM_STEP_TASKS_PER_NODE": "1"}, 1, id="srun -n 1 of a job"),
        pytest.param({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "4"}, 4, id="Lightning"),
        pytest.param({"RANK": "1", "WORLD_SIZE": "4"}, 1, id="Kubeflow, one process in each container"),
        pytest.param({"LOCAL_WORLD_SIZE": "", "SLURM_STEP_TASKS_PER_NODE": "many", "SLURM_NODEID": "7"}, 1, id="none"),
    ],
)
def test_each_launcher_says_how_many_processes_share_the_host(environ: dict[str, str], processes: int) -> None:
    assert read_local_world_size(environ) == processes


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({"LOCAL_RANK": "1", "RANK": "5", "SLURM_LOCALID": "0"}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2),
        ({"SLURM_LOCALID": "3"}, 3),
        ({"RANK": "5", "LOCAL_RANK": ""}, 0),
    ],
    ids=["torchrun", "mpirun", "srun", "none"],
)
def test_each_launcher_numbers_the_processes_of_a_host(environ: dict[str, str], rank: int) -> None:
    assert read_local_rank(environ) == rank


@pytest.mark.parametrize(
    ("file", "is_one"),
    [
        *((str(module.__file__), True) for module in (json, torch, autotune)),
        ("<frozen importlib._bootstrap>", True),
        *((file, False) for file in (__file__, "/home/me/train.py", "data.py")),
    ],
)
def test_the_interpreter_packages_and_dltune_are_libraries(file: str, is_one: bool) -> None:
    assert is_library(file) is is_one


def test_imported_libraries_are_listed_without_python_and_the_users_modules() -> None:
    found = set(list_libraries())
    assert {"pytest", "torch", "torch.utils"} <= found
    assert not {"json", "autotune", "torch.utils.data", __name__} & found


def test_a_second_name_of_a_module_by_which_it_cannot_be_imported_is_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "_second_name", sys.modules["torch.utils"])
    assert "_second_name" not in set(list_libraries())
