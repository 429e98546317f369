"""What workers that are not forked import, told by files that scripts write when they are imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.child.importing import become_script
from autotune.errors import UsageError
from tests.builders import write_files

WORKERS = 2
DATA = """
import torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.tensor(index)
def make_numbers(): return Numbers()
"""
NOTES = """
import os, pathlib
pathlib.Path(f"imported_{os.getpid()}").touch()
"""
GUARD = """
if __name__ == "__main__": raise SystemExit("this would train")
"""
LOAD = """
import sys
sys.path.insert(0, "")
from autotune.child.importing import import_attribute
from autotune.child.importing import become_script
from torch.utils.data import DataLoader
main, dataset, method, workers = sys.argv[1:]
become_script(main, dataset)
loader = DataLoader(import_attribute(dataset)(), num_workers=int(workers), multiprocessing_context=method)
print(sorted(batch.item() for batch in loader))
"""


def count_imports(folder: Path, main: str, dataset: str, method: str = "spawn", workers: int = WORKERS) -> int:
    """Load a dataset with workers in a process that has become a script, and count who imported the script."""
    command = [sys.executable, "-c", LOAD, main, dataset, method, str(workers)]
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    found = subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert found.stdout.strip() == "[0, 1, 2, 3]", found.stderr
    return len(list(folder.glob("imported_*")))


@pytest.mark.slow
def test_spawned_workers_import_the_script_which_does_not_run_beside_them(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.py": NOTES + GUARD, "data.py": DATA})
    assert count_imports(tmp_path, "train.py", "data:make_numbers") == WORKERS


def test_a_script_that_holds_the_factory_is_imported_once_by_every_process(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.py": DATA + NOTES + GUARD})
    assert count_imports(tmp_path, "train.py", "train:make_numbers") == 1 + WORKERS


@pytest.mark.slow
def test_a_module_may_be_the_script(tmp_path: Path) -> None:
    write_files(tmp_path, {"pkg/__init__.py": "", "pkg/train.py": DATA + NOTES + GUARD})
    assert count_imports(tmp_path, "pkg.train", "pkg.train:make_numbers") == 1 + WORKERS


@pytest.mark.slow
def test_a_script_imports_what_lies_beside_it(tmp_path: Path) -> None:
    script = NOTES + "import beside" + GUARD
    write_files(tmp_path, {"scripts/train.py": script, "scripts/beside.py": "", "data.py": DATA})
    assert count_imports(tmp_path, "scripts/train.py", "data:make_numbers") == WORKERS


def test_forked_workers_import_nothing_anew(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.py": NOTES + GUARD, "data.py": DATA})
    assert count_imports(tmp_path, "train.py", "data:make_numbers", method="fork") == 0


@pytest.mark.parametrize(
    ("main", "words"), [("absent.py", "no such file"), ("absent", "neither a file"), ("absent.deep", "neither a file")]
)
def test_a_script_that_is_not_there_is_refused(main: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"--main {main}: {words}"):
        become_script(main, "data:make")
