"""What is written is whole or not written, and what is read is valid or refused."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import stat
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autotune.errors import OutputError, ProfileError
from autotune.profiles.atomic_write import write_atomically
from autotune.profiles.file import MAX_BYTES, read_file
from autotune.profiles.saving import check_writable, save_profile
from autotune.system.locks import hold
from tests.builders import make_profile, write_profiles

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def names(path: Path) -> list[str]:
    return [profile.name for profile in read_file(path).profiles]


# Saving


def test_saving_makes_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    save_profile(tmp_path / "dltune.json", make_profile("a"))
    assert read_file(tmp_path / "dltune.json").profiles == (make_profile("a"),)
    assert [path.name for path in tmp_path.iterdir()] == ["dltune.json"]


def test_saving_keeps_the_other_profiles_and_replaces_the_one_of_the_same_name(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_profile("a"), make_profile("b"), make_profile("c"))
    newer = make_profile("b", created_at=NOW)
    save_profile(path, newer)
    assert sorted(names(path)) == ["a", "b", "c"]
    (written,) = [profile for profile in read_file(path).profiles if profile.name == "b"]
    assert written.created_at == NOW
    assert [past.created_at for past in written.history] == [make_profile("b").created_at]


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"schema_version": 3}', '{"profiles": [{"name": "a"}]}'])
def test_saving_over_something_else_is_refused_and_leaves_it_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dltune.json"
    path.write_text(text)
    with pytest.raises(ProfileError):
        save_profile(path, make_profile())
    assert path.read_text() == text


def test_a_json_file_of_another_program_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "package.json"
    path.write_text('{"name": "my-app", "version": "1.0.0"}')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ProfileError):
            save_profile(path, make_profile())
        with pytest.raises(ProfileError):
            check_writable(path)
    assert json.loads(path.read_text())["name"] == "my-app"


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Make every write beyond the first 100 bytes of a file fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_half_way_leaves_the_old_file_and_no_pieces(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_profile("old"))
    with pytest.raises(OutputError, match="cannot be written: File too large"), full_disk():
        save_profile(path, make_profile("new"))
    assert names(path) == ["old"]
    assert list(tmp_path.iterdir()) == [path]


def test_text_that_cannot_be_encoded_leaves_the_old_file_and_no_pieces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_piece_that_a_killed_process_left_is_swept_up_and_one_that_may_be_written_now_is_not(tmp_path: Path) -> None:
    for name, age in ((".dltune.json.aa.new", 7200), (".dltune.json.bb.new", 0)):
        (tmp_path / name).write_text("half a fi")
        os.utime(tmp_path / name, times=(time.time() - age,) * 2)
    save_profile(tmp_path / "dltune.json", make_profile("a"))
    assert names(tmp_path / "dltune.json") == ["a"]
    assert {path.name for path in tmp_path.iterdir()} == {"dltune.json", ".dltune.json.bb.new"}


def test_two_who_write_one_file_at_once_disturb_each_other_in_nothing(tmp_path: Path) -> None:
    """One writes in the middle of another's writing: when its text is down, and not yet under the name."""
    path = tmp_path / "report.html"
    replace = Path.replace

    def be_overtaken(self: Path, target: Path) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            write_atomically(path, "theirs")
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", be_overtaken)
        write_atomically(path, "ours")
    assert path.read_text() == "ours"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_can_be_written_by_its_owner_alone_whatever_the_shell_allows(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        save_profile(tmp_path / "dltune.json", make_profile())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "dltune.json").stat().st_mode) == 0o644


def test_saving_keeps_what_a_newer_dltune_wrote_as_it_stands(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_profile("a"), make_profile("b"))
    save_profile(path, make_profile("b", created_at=NOW))
    document = json.loads(path.read_text())
    document |= {"written_by": "dltune 9", "notes": [1, {"deep": None}, 1e16, 10**30]}
    document["profiles"][0]["hardware"]["numa_nodes"] = 2
    document["profiles"][0]["ranks"] = {"count": 8}
    document["profiles"][1]["history"][0]["scores"] = [1.5, 2.5]
    path.write_text(json.dumps(document))
    with pytest.warns(UserWarning, match="ignored unknown fields"):
        save_profile(path, make_profile("b", created_at=NOW + timedelta(days=1)))
    with pytest.warns(UserWarning, match="ignored unknown fields"):
        save_profile(path, make_profile("c"))
    written = json.loads(path.read_text())
    assert [profile["name"] for profile in written["profiles"]] == ["a", "b", "c"]
    assert written["profiles"][0] == document["profiles"][0]
    assert written["profiles"][1]["history"][0] == document["profiles"][1]["history"][0]
    assert [written[name] for name in ("written_by", "notes")] == [document[name] for name in ("written_by", "notes")]


def test_a_file_that_is_written_by_hand_without_profiles_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "dltune.json"
    path.write_text('{"schema_version": 2}')
    save_profile(path, make_profile("a"))
    assert names(path) == ["a"]


def test_a_link_stays_a_link_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "dltune.json").symlink_to(tmp_path / "real" / "tuned.json")
    save_profile(tmp_path / "dltune.json", make_profile("a"))
    assert (tmp_path / "dltune.json").is_symlink()
    assert names(tmp_path / "real" / "tuned.json") == ["a"]


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_profile("a"))
    path.chmod(0o600)
    save_profile(path, make_profile("b"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_locked_for_too_long_is_an_error_that_names_the_process(tmp_path: Path) -> None:
    with (
        hold(tmp_path / ".dltune.json.lock"),
        pytest.raises(OutputError, match=rf"locked by process {os.getpid()} for 0.1 s"),
    ):
        save_profile(tmp_path / "dltune.json", make_profile(), lock_seconds=0.1)


def test_a_file_that_would_be_too_large_to_be_read_is_not_written(tmp_path: Path) -> None:
    profile = make_profile("a" * MAX_BYTES)
    with pytest.raises(OutputError, match=r"more than 16\.0 MiB"):
        save_profile(tmp_path / "dltune.json", profile)
    assert list(tmp_path.iterdir()) == []


def test_an_output_in_a_folder_that_is_not_there_is_refused_and_the_folder_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "dltune.json"
    with pytest.raises(OutputError, match="there is no folder"):
        check_writable(path)
    with pytest.raises(OutputError, match="there is no folder"):
        save_profile(path, make_profile())
    assert not path.parent.exists()


def test_a_folder_is_refused_as_an_output(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder"):
        check_writable(tmp_path)


def test_a_tuned_file_and_a_free_name_are_fit_to_be_written(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.json")
    check_writable(write_profiles(tmp_path, make_profile()))


# Reading


def test_fields_of_a_later_version_are_ignored_with_a_warning_that_names_them(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_profile("a"))
    document = json.loads(path.read_text())
    document["profiles"][0]["hardware"]["numa_nodes"] = 2
    document["written_by"] = "dltune 9"
    path.write_text(json.dumps(document))
    with pytest.warns(UserWarning, match="numa_nodes") as caught:
        file = read_file(path)
    assert "written_by" in str(caught[0].message)
    assert file.profiles == (make_profile("a"),)


def test_a_wrong_value_beside_an_unknown_field_is_still_wrong(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_profile())
    document = json.loads(path.read_text())
    document["profiles"][0]["novelty"] = 1
    document["profiles"][0]["config"]["dataloader"]["num_workers"] = -1
    path.write_text(json.dumps(document))
    with pytest.raises(ProfileError, match="num_workers"):
        read_file(path)


def test_a_missing_file_is_reported_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"nothing\.json cannot be read: No such file"):
        read_file(tmp_path / "nothing.json")


def test_a_file_of_a_newer_version_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "dltune.json"
    path.write_text('{"schema_version": 3, "profiles": [{"ranks": 8}]}')
    with pytest.raises(ProfileError, match=r"newer dltune \(schema 3; this one reads 2\)\. Update dltune"):
        read_file(path)


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null", "a pipe"])
def test_what_is_not_a_regular_file_is_refused_without_waiting_for_it(tmp_path: Path, place: str) -> None:
    path = Path(place)
    if place == "a pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)
    with pytest.raises(ProfileError, match="is not a regular file"):
        read_file(path)


def test_a_file_of_a_gigabyte_is_refused_unread_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "dltune.json"
    path.touch()
    os.truncate(path, 2**30)
    with pytest.raises(ProfileError, match=r"holds 1\.0 GiB; a tuned file holds 16\.0 MiB at most"):
        read_file(path)


@pytest.mark.parametrize("path", ["null\0byte", "x" * 5000, "."])
def test_a_path_that_no_file_can_have_is_reported_with_the_reason(path: str) -> None:
    with pytest.raises(ProfileError, match="cannot be read: "):
        read_file(Path(path))


def test_of_many_unknown_fields_only_some_are_named(tmp_path: Path) -> None:
    path = write_profiles(tmp_path)
    document = json.loads(path.read_text()) | {f"novelty{number}": 1 for number in range(50)}
    path.write_text(json.dumps(document))
    with pytest.warns(UserWarning, match="and 40 more$"):
        read_file(path)


def test_an_unknown_field_that_stands_there_twice_is_ignored_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "dltune.json"
    path.write_text('{"schema_version": 2, "novelty": 1, "novelty": 2}')
    with pytest.warns(UserWarning, match="novelty"):
        assert read_file(path).profiles == ()


def test_the_history_of_a_profile_grows_by_one_at_each_tuning_and_forgets_the_oldest(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_profile("a"))
    for day in range(30):
        save_profile(path, make_profile("a", created_at=NOW + timedelta(days=day)))
    (profile,) = read_file(path).profiles
    assert len(profile.history) == 20
    assert profile.history[-1].created_at == NOW + timedelta(days=28)
