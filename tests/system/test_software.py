"""Versions, start method and environment variables, read without importing torch."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.system.software import (
    TorchVersion,
    read_start_method,
    read_start_method_in_force,
    read_thread_variables,
    read_torch,
)
from tests.builders import write_files

BUILT_FOR_CUDA = """from typing import Optional

__all__ = ['__version__', 'cuda']
__version__ = '2.13.0+cu130'
debug = False
cuda: Optional[str] = '13.0'
hip: Optional[str] = None
"""


def read_version_file(folder: Path, text: str) -> TorchVersion | None:
    return read_torch(write_files(folder, {"version.py": text}))


def test_the_version_of_cuda_is_read_of_the_build_of_torch(tmp_path: Path) -> None:
    assert read_version_file(tmp_path, BUILT_FOR_CUDA) == TorchVersion("2.13.0+cu130", "13.0")


def test_a_build_without_cuda_has_none(tmp_path: Path) -> None:
    text = BUILT_FOR_CUDA.replace("'13.0'", "None").replace("+cu130", "+cpu")
    assert read_version_file(tmp_path, text) == TorchVersion("2.13.0+cpu", None)


@pytest.mark.parametrize("text", ["", "cuda = [", "raise SystemExit(1)\n", "__version__ = make()\n", "\x00"])
def test_a_file_that_tells_nothing_leaves_the_version_to_the_installer_and_is_not_run(
    tmp_path: Path, text: str
) -> None:
    found = read_version_file(tmp_path, text)
    assert found is not None
    assert found.version.startswith("2.")
    assert found.cuda is None


def test_what_is_read_is_what_torch_says_of_itself_and_reading_does_not_import_it() -> None:
    code = """
import json, sys
from autotune.system.software import read_start_method, read_torch
read, method, is_imported = read_torch(), read_start_method(), "torch" in sys.modules
import multiprocessing, torch
said = [str(torch.__version__), torch.version.cuda], multiprocessing.get_start_method()
print(json.dumps([[list(read), method], said, is_imported]))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    read, said, is_imported = json.loads(shown)
    assert read == said
    assert not is_imported


@pytest.mark.parametrize("read", ["read_start_method", "read_start_method_in_force"])
def test_asking_for_the_start_method_does_not_decide_it(read: str) -> None:
    assert read_start_method() in multiprocessing.get_all_start_methods()
    code = f"import multiprocessing; from autotune.system.software import {read}; {read}()"
    code += "; print(multiprocessing.get_start_method(allow_none=True))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "None"


def test_the_start_method_in_force_is_the_one_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.get_start_method", lambda allow_none: "spawn")
    assert read_start_method_in_force() == "spawn"
    monkeypatch.setattr("multiprocessing.get_start_method", lambda allow_none: None)
    assert read_start_method_in_force() == read_start_method()


def test_variables_are_read_that_decide_about_threads_and_no_others() -> None:
    environ = {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false", "HOME": "/root"}
    assert read_thread_variables(environ) == {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
