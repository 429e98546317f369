from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.child.workload import import_attribute
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
    assert ":".join(split_import_string(text) or ()) == text


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
        ("dltune_shapes:made_by_main", "has no 'made_by_main'. Define it at the top level of the module"),
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


def test_a_package_in_src_is_to_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"src/dltune_package/data.py": ""})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match=r"Its package is in src: install it \(pip install -e \.\), or set PYTHONPATH=src"
    ):
        import_attribute("dltune_package.data:make")


def test_a_link_to_a_script_is_imported_by_the_name_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"src/dltune_linked.py": "def make(): ..."})
    (tmp_path / "link.py").symlink_to("src/dltune_linked.py")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    assert import_attribute("link.py:make", tmp_path).__module__ == "dltune_linked"
    del sys.modules["dltune_linked"]


@pytest.mark.usefixtures("modules")
def test_an_error_of_the_users_module_is_not_changed() -> None:
    with pytest.raises(ZeroDivisionError, match="their own"):
        import_attribute("dltune_broken:make")
    with pytest.raises(ModuleNotFoundError, match="dltune_absent"):
        import_attribute("dltune_needy:make")
