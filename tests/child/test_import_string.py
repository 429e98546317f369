from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.child.importing import import_attribute
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
        ("data/images.py", "as in data/images.py:train_loader"),
        ("data/images:make", "data/images is data.images"),
        ("images.py", "dltune images.py"),
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
