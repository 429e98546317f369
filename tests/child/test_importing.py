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
from autotune.request import check_import_string, split_import_string
from tests.builders import write_files


@pytest.mark.parametrize(
    "text",
    [
        *("train.py:loader", "../my data/x-1.py:Class.method", "/a/b.c/données.py:créer"),
        *("data:make", "pkg.data.images:make", "pkg:Class.method", "_a.b1:_c", "données:créer"),
    ],
)
def test_an_import_string_is_a_module_or_script_and_a_dotted_attribute(text: str) -> None:
    check_import_string("--dataset", text)
    assert ":".join(split_import_string(text)[:2]) == text  # type: ignore[index]  # it is one


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("data/images.py", "as in data/images.py:make_loader"),
        ("data/images:make", "data/images is data.images"),
        ("images.py", "Name a function in the file"),
        *((text, "file.py:attribute") for text in (".py:make", "data/.py:make", "a.py:b.py:make", "images.py:make()")),
        ("pkg.data", "pkg.data:make_dataset"),
        *((text, "package.module:attribute") for text in ("", "pkg.data:", ":make", "pkg..data:make", "pkg:a:b")),
        *((text, "package.module:attribute") for text in ("pkg.data:make()", "1pkg:make", "pkg:make\n")),
    ],
)
def test_any_other_text_is_refused_with_the_option_and_a_hint(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="--dataset") as caught:
        check_import_string("--dataset", text)
    assert hint in str(caught.value)


@given(st.text())
def test_any_text_is_an_import_string_or_refused_by_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        check_import_string("--step", text)
        assert split_import_string(text) is not None


def test_an_attribute_of_an_attribute_can_be_imported() -> None:
    assert import_attribute("pathlib:Path.cwd")() == Path.cwd()


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules of the user that cannot all be imported."""
    broken = {"dltune_broken.py": "raise ZeroDivisionError('their own')\n", "dltune_needy.py": "import dltune_absent\n"}
    write_files(tmp_path, broken | {"dltune_shapes.py": "class Shape: pass\n", "dltune_folder/data.txt": ""})
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dltune_shapes:Shape.corners", r"imported from .*dltune_shapes\.py but has no 'Shape\.corners'"),
        ("dltune_shapes:Shap", r"has no 'Shap'\. Did you mean Shape\?"),
        ("dltune_folder:make", "imported from a namespace package but has no"),
        ("dltune_no_such_module:make", "No module named 'dltune_no_such_module'"),
        ("no_such_script.py:make", "no such file"),
    ],
)
@pytest.mark.usefixtures("modules")
def test_a_missing_module_or_attribute_is_reported(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        import_attribute(text)


@pytest.mark.usefixtures("modules")
def test_an_error_of_the_users_module_is_not_changed() -> None:
    with pytest.raises(ZeroDivisionError, match="their own"):
        import_attribute("dltune_broken:make")
    with pytest.raises(ModuleNotFoundError, match="dltune_absent"):
        import_attribute("dltune_needy:make")


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
from autotune.child.importing import become_script, import_attribute
from torch.utils.data import DataLoader
main, dataset, method = sys.argv[1:]
become_script(main, dataset)
loader = DataLoader(import_attribute(dataset)(), num_workers=2, multiprocessing_context=method)
print(sorted(batch.item() for batch in loader))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "main", "dataset", "method", "imports"),
    [
        pytest.param({"train.py": DATA + NOTES + GUARD}, "train.py", "train:make_numbers", "spawn", 3, id="factory"),
        pytest.param({"pkg/t.py": DATA + NOTES + GUARD}, "pkg.t", "pkg.t:make_numbers", "spawn", 3, id="module"),
        pytest.param(
            *({"a/train.py": NOTES + "import near" + GUARD, "a/near.py": ""}, "a/train.py", "data:make_numbers"),
            *("spawn", 2),
            id="folder",
        ),
        pytest.param({"train.py": NOTES + GUARD}, "train.py", "data:make_numbers", "fork", 0, id="forked"),
    ],
)
def test_spawned_workers_import_the_script_once_and_its_process_only_if_it_has_the_factory(
    tmp_path: Path, files: dict[str, str], main: str, dataset: str, method: str, imports: int
) -> None:
    write_files(tmp_path, {"data.py": DATA, "pkg/__init__.py": "", **files})
    command = [sys.executable, "-c", LOAD, main, dataset, method]
    environ = os.environ | {"PYTHONPATH": str(Path.cwd())}
    found = subprocess.run(command, check=False, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100)
    assert found.stdout.strip() == "[0, 1, 2, 3]", found.stderr
    assert len(list(tmp_path.glob("imported_*"))) == imports


@pytest.mark.parametrize(
    ("main", "words"), [("absent.py", "no such file"), ("absent", "neither a file"), ("absent.deep", "neither a file")]
)
def test_a_missing_script_is_refused(main: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"--main {main}: {words}"):
        become_script(main, "data:make")
