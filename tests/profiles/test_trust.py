"""A file that others may have written is not followed, and says what would make it fit to be."""

from __future__ import annotations

import grp
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autotune.cli.main import cli
from autotune.errors import ProfileError
from autotune.profiles.trust import is_private_group, refuse_what_others_may_write
from tests.builders import make_profile, make_request, write_profiles

MODULE = """
import torch
from pathlib import Path
Path("called").write_text("")
def make_ds():
    return torch.utils.data.TensorDataset(torch.zeros(64, 8))
"""


def write_file(folder: Path, working_dir: str = ".") -> Path:
    """Write a tuned file whose dataset is a module in its folder, which leaves a file behind when it is imported."""
    folder.mkdir(exist_ok=True)
    (folder / "owned_code.py").write_text(MODULE)
    profile = make_profile()
    request = make_request().record()
    request["workload"] |= {"dataset": "owned_code:make_ds", "working_dir": working_dir}
    workload = profile.workload.model_copy(update={"dataset": "owned_code:make_ds"})
    path = write_profiles(folder, profile.model_copy(update={"request": request, "workload": workload}))
    path.chmod(0o644)
    return path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="dltune")


def test_a_file_of_ones_own_is_followed(tmp_path: Path) -> None:
    refuse_what_others_may_write(write_file(tmp_path))


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_is_refused_with_the_command_that_ends_it(tmp_path: Path, mode: int) -> None:
    path = write_file(tmp_path)
    path.chmod(mode)
    with pytest.raises(ProfileError, match=rf"mode {mode:04o}\); end that with chmod go-w {path}\. .*--trust"):
        refuse_what_others_may_write(path, is_private=lambda group: False)
    path.chmod(mode & ~0o022)
    refuse_what_others_may_write(path)


@pytest.mark.parametrize(("mode", "is_refused"), [(0o664, False), (0o666, True)])
def test_where_the_group_is_the_users_own_its_right_to_write_is_not_that_of_others(
    tmp_path: Path, mode: int, is_refused: bool
) -> None:
    path = write_file(tmp_path)
    path.chmod(mode)
    with pytest.raises(ProfileError) if is_refused else nullcontext():
        refuse_what_others_may_write(path, is_private=lambda group: True)


def test_a_group_that_nobody_knows_or_that_is_another_ones_is_not_private() -> None:
    assert not is_private_group(2**31 - 7)
    assert not any(is_private_group(entry.gr_gid) for entry in grp.getgrall() if entry.gr_gid != os.getgid())


@pytest.mark.parametrize(("mode", "is_refused"), [(0o777, True), (0o1777, False), (0o755, False)])
def test_a_folder_in_which_others_may_replace_the_file_is_refused_unless_it_is_sticky(
    tmp_path: Path, mode: int, is_refused: bool
) -> None:
    path = write_file(tmp_path / "folder")
    path.parent.chmod(mode)
    if is_refused:
        with pytest.raises(ProfileError, match=f"chmod o-w {path.parent}"):
            refuse_what_others_may_write(path)
    else:
        refuse_what_others_may_write(path)


def test_a_link_is_as_good_as_the_folders_of_its_both_ends(tmp_path: Path) -> None:
    path = write_file(tmp_path / "open")
    (tmp_path / "closed").mkdir()
    link = tmp_path / "closed" / "dltune.json"
    link.symlink_to(path)
    path.parent.chmod(0o777)
    with pytest.raises(ProfileError, match=f"chmod o-w {path.parent}"):
        refuse_what_others_may_write(link)


def test_a_file_of_another_user_is_refused_and_one_of_root_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(tmp_path)
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        refuse_what_others_may_write(path)
        os.chown(path, 4243, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(ProfileError, match=r"belongs to another user \(number \d+; you are 4242\); make a copy"):
        refuse_what_others_may_write(path)


@pytest.mark.parametrize("command", [("check",), ("check", "--quick", "--no-workload"), ("retune",)])
def test_nothing_that_a_file_of_others_names_is_imported(workdir: Path, command: tuple[str, ...]) -> None:
    write_file(workdir).chmod(0o666)
    result = invoke(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "chmod go-w dltune.json" in result.stderr
    assert not (workdir / "called").exists()
    assert not (workdir / ".dltune").exists()


def test_looking_at_the_machine_alone_needs_no_trust(workdir: Path) -> None:
    write_file(workdir).chmod(0o666)
    assert invoke("check", "--no-workload").exit_code in (0, 1)
    assert not (workdir / "called").exists()


@pytest.mark.parametrize("command", ["check", "retune"])
def test_the_help_says_that_what_a_file_names_is_called(command: str) -> None:
    text = " ".join(invoke(command, "--help").stdout.split())
    assert "are imported and called" in text
    assert "as make runs a Makefile" in text


@pytest.mark.usefixtures("leaves_nothing")
def test_a_file_is_checked_in_another_folder_than_it_was_made_in_and_by_one_who_may_not_write_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is looked for in the current folder, wherever the file came from; it is of an older dltune."""
    path = write_file(tmp_path / "there", working_dir=str(tmp_path / "gone"))
    path.chmod(0o666)
    monkeypatch.chdir(path.parent)
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda name, mode: not (mode == os.W_OK and Path(name) == path.parent) and access(name, mode)
    )
    result = invoke("check", "--trust")
    assert result.exit_code == 1, result.stderr
    assert "should be retuned" in result.stdout
    assert "bytes of a sample" in result.stdout
    assert (tmp_path / "there" / "called").exists()
