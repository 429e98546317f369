from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.child.importing import become_script, import_attribute
from autotune.errors import UsageError
from autotune.import_strings import check_import_string
from tests.builders import write_files


@pytest.mark.parametrize("text", ["train.py:loader", "../my data/x-1.py:Class.method", "/a/b.c/données.py:créer"])
def test_a_script_is_named_by_its_path(text: str) -> None:
    assert check_import_string("--dataset", text) == text


@pytest.mark.parametrize("text", ["data:make", "pkg.data.images:make", "pkg:Class.method", "_a.b1:_c", "données:créer"])
def test_an_import_string_is_a_dotted_module_and_a_dotted_attribute(text: str) -> None:
    assert check_import_string("--dataset", text) == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("data/images.py", "as in data/images.py:make_loader"),
        ("data/images:make", "data/images is data.images"),
        ("images.py", "as in images.py:make_loader"),
        (".py:make", "file.py:attribute"),
        ("data/.py:make", "file.py:attribute"),
        ("a.py:b.py:make", "file.py:attribute"),
        ("images.py:make()", "file.py:attribute"),
        ("pkg.data", "pkg.data:make_dataset"),
        ("", "package.module:attribute"),
        ("pkg.data:", "package.module:attribute"),
        (":make", "package.module:attribute"),
        ("pkg..data:make", "package.module:attribute"),
        ("pkg.data:make()", "package.module:attribute"),
        ("pkg:a:b", "package.module:attribute"),
        ("1pkg:make", "package.module:attribute"),
        ("pkg:make\n", "package.module:attribute"),
    ],
)
def test_anything_else_is_refused_with_the_option_and_a_hint(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="--dataset") as caught:
        check_import_string("--dataset", text)
    assert hint in str(caught.value)


@given(st.text())
def test_any_text_is_returned_as_it_is_or_refused_by_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert check_import_string("--step", text) == text


def test_an_attribute_of_an_attribute_can_be_imported() -> None:
    assert import_attribute("pathlib:Path.cwd")() == Path.cwd()


def test_a_missing_attribute_is_reported_with_the_file_its_module_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"dltune_test_shapes.py": "class Shape:\n    sides = 4\n"})
    monkeypatch.syspath_prepend(tmp_path)
    assert import_attribute("dltune_test_shapes:Shape.sides") == 4
    with pytest.raises(UsageError, match=r"Shape\.corners") as caught:
        import_attribute("dltune_test_shapes:Shape.corners")
    assert str(tmp_path / "dltune_test_shapes.py") in str(caught.value)


def test_a_missing_attribute_is_reported_with_a_name_that_is_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"dltune_test_close.py": "train_loader = 3\n"})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"Did you mean train_loader\?"):
        import_attribute("dltune_test_close:trainloader")


def test_a_missing_attribute_of_a_folder_without_init_is_reported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dltune_test_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="namespace package"):
        import_attribute("dltune_test_folder:make")


def test_what_the_module_itself_raises_reaches_the_caller_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"dltune_test_broken.py": "raise ZeroDivisionError('of their own')\n"})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError, match="of their own"):
        import_attribute("dltune_test_broken:make")


def test_a_module_that_is_not_there_is_a_usage_error_but_one_that_it_imports_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"dltune_test_needy.py": "import dltune_test_absent\n"})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="No module named 'dltune_test_no_such_module'"):
        import_attribute("dltune_test_no_such_module:make")
    with pytest.raises(ModuleNotFoundError, match="dltune_test_absent"):
        import_attribute("dltune_test_needy:make")


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
