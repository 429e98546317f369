"""Versions, start method and environment variables, read without importing torch."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
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

BUILT_FOR_CUDA = "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (BUILT_FOR_CUDA, TorchVersion("2.13.0+cu130", "13.0")),
        (BUILT_FOR_CUDA.replace("'13.0'", "None").replace("+cu130", "+cpu"), TorchVersion("2.13.0+cpu", None)),
        *((text, None) for text in ("", "cuda = [", "raise SystemExit(1)\n", "__version__ = make()\n", "\x00")),
    ],
)
def test_the_version_file_of_torch_is_read_and_never_run_and_else_the_metadata_are_read(
    tmp_path: Path, text: str, version: TorchVersion | None
) -> None:
    found = read_torch(write_files(tmp_path, {"version.py": text}))
    assert found == (version or TorchVersion(metadata.version("torch"), None))


def test_versions_and_start_method_are_read_without_importing_torch_or_fixing_the_method() -> None:
    code = """
import json, sys
from autotune.system.software import read_start_method, read_start_method_in_force, read_torch
read, method, is_imported = read_torch(), read_start_method(), "torch" in sys.modules
import multiprocessing, torch
undecided = read_start_method_in_force() == method and multiprocessing.get_start_method(allow_none=True) is None
actual = [str(torch.__version__), torch.version.cuda], multiprocessing.get_start_method()
print(json.dumps([[list(read), method], actual, is_imported, undecided]))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    read, actual, is_imported, undecided = json.loads(shown)
    assert read == actual
    assert (is_imported, undecided) == (False, True)


def test_the_start_method_in_force_is_the_one_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.get_start_method", lambda allow_none: "spawn")
    assert read_start_method_in_force() == "spawn"
    monkeypatch.setattr("multiprocessing.get_start_method", lambda allow_none: None)
    assert read_start_method_in_force() == read_start_method()


def test_only_variables_that_limit_threads_are_read() -> None:
    environ = {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false", "HOME": "/root"}
    assert read_thread_variables(environ) == {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
