from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from autotune.cli.main import cli
from autotune.profiles.file import read_file
from tests.builders import make_hardware, make_profile, write_profiles


def write(folder: Path, name: str, cpus: float) -> Path:
    folder.mkdir()
    return write_profiles(folder, make_profile(name, hardware=make_hardware(usable_cpus=cpus)))


def test_merge_writes_one_file_of_two_and_says_what_it_renamed(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", "imagenet", 4.0), write(tmp_path / "two", "imagenet", 8.0)
    output = tmp_path / "all.json"
    found = CliRunner().invoke(cli, ["merge", str(one), str(two), "-o", str(output)])
    assert found.exit_code == 0, found.output
    assert [profile.name for profile in read_file(output).profiles] == ["imagenet", "imagenet-cpu-8c-16g"]
    assert "another profile has that name" in found.stderr


def test_merge_prints_what_it_is_not_told_to_write(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["merge", str(write(tmp_path / "one", "imagenet", 4.0))])
    assert '"imagenet"' in found.stdout


def test_merge_replaces_no_file_unasked(tmp_path: Path) -> None:
    path = write(tmp_path / "one", "imagenet", 4.0)
    found = CliRunner().invoke(cli, ["merge", str(path), "-o", str(path)])
    assert (found.exit_code, "Give --force" in found.stderr) == (1, True)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["merge", str(tmp_path / "nothing.json")])
    assert (found.exit_code, "nothing.json cannot be read" in found.stderr) == (2, True)
