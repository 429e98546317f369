"""What is done in a worker before its work begins; each is a process of its own here, as workers are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from autotune.config import ProcessSettings
from autotune.profiles.worker_init import WorkerSetup, make_worker_init


def run(code: str, **environment: str) -> str:
    given = os.environ | {"PYTHONPATH": str(Path.cwd())} | environment
    return subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True).stdout


def note_worker(worker_id: int) -> None:
    raise AssertionError(worker_id)


def test_forked_workers_are_left_as_they_are_unless_their_threads_are_limited() -> None:
    assert make_worker_init(ProcessSettings(), note_worker, are_forked=True) is note_worker
    limited = make_worker_init(ProcessSettings(worker_threads=1), note_worker, are_forked=True)
    assert limited == WorkerSetup("file_descriptor", note_worker, 1)


def test_libraries_are_told_by_the_variables_that_they_read() -> None:
    code = "import os; from autotune.profiles.worker_init import limit_threads; limit_threads(3)\n"
    assert run(code + "print(os.environ['RAYON_NUM_THREADS'], os.environ['OMP_NUM_THREADS'])").split() == ["3", "3"]


def test_a_library_that_was_imported_is_told_by_its_own_function() -> None:
    code = "import sys, types\ncv2 = types.ModuleType('cv2'); cv2.setNumThreads = lambda n: print('cv2', n)\n"
    code += "sys.modules['cv2'] = cv2\nfrom autotune.profiles.worker_init import limit_threads; limit_threads(1)"
    assert run(code).split() == ["cv2", "1"]


def test_torch_is_told_too_and_the_users_own_function_is_called_last() -> None:
    code = "import torch; from autotune.profiles.worker_init import WorkerSetup\n"
    code += "WorkerSetup('file_system', lambda worker: print(torch.get_num_threads(), worker), 1)(7)"
    assert run(code).split() == ["1", "7"]
