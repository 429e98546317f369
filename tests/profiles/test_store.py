"""Tuned files are written completely or not at all, and read completely or rejected."""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import os
import resource
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import OutputError, ProfileError
from autotune.profiles.schema import TunedFile
from autotune.profiles.store import (
    MAX_FILE_BYTES,
    check_writable,
    format_file,
    merge_profiles,
    read_file,
    read_profiles,
    save_profile,
    update_file,
    warn_if_others_can_write,
    write_atomically,
)
from tests.builders import make_hardware, make_profile, make_profile_result, write_profiles

OLD, NEW = datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)
SEARCHED = make_profile_result(validation_runs=0, samples_per_second_ci95=None)


# Saving


def test_saving_replaces_the_profile_with_the_same_id_and_keeps_the_others_and_leaves_no_other_file(
    tmp_path: Path,
) -> None:
    path, elsewhere = tmp_path / "dltune.json", make_profile(label="b", hardware=make_hardware(usable_cpus=64.0))
    for profile in (make_profile(label="a"), make_profile(label="b"), elsewhere):
        save_profile(path, profile)
    replaced = make_profile(label="b", created_at=NEW)
    save_profile(path, replaced)
    assert read_file(path).profiles == (make_profile(label="a"), replaced, elsewhere)
    assert list(tmp_path.iterdir()) == [path]


def test_profiles_of_gpus_whose_names_are_abbreviated_alike_stay_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "dltune.json"
    profiles = [
        make_profile(hardware=make_hardware(gpu=f"NVIDIA A100-SXM4-{size}GB", gpu_count=1)) for size in (40, 80)
    ]
    save_profile(path, *profiles)
    assert profiles[0].id == profiles[1].id
    assert list(read_file(path).profiles) == profiles


@pytest.mark.parametrize("unfinished", [{"is_complete": False}, {"result": SEARCHED}])
def test_an_unvalidated_profile_never_replaces_a_validated_one_and_the_next_validated_one_replaces_both(
    tmp_path: Path, unfinished: dict[str, Any]
) -> None:
    path, validated = write_profiles(tmp_path, make_profile()), make_profile()
    for created_at in (OLD, NEW):
        save_profile(path, make_profile(created_at=created_at, **unfinished))
    assert read_file(path).profiles == (validated, make_profile(created_at=NEW, **unfinished))
    save_profile(path, make_profile(created_at=NEW))
    assert read_file(path).profiles == (make_profile(created_at=NEW),)


@pytest.mark.parametrize(
    "text", ["", "not json", "[]", '{"schema_version": 3}', '{"profiles": [{"name": "a"}]}', '{"name": "my-app"}']
)
def test_saving_over_something_else_is_rejected_and_leaves_it_unchanged(tmp_path: Path, text: str) -> None:
    path = tmp_path / "package.json"
    path.write_text(text)
    with pytest.raises(ProfileError):
        save_profile(path, make_profile())
    with pytest.raises(ProfileError):
        check_writable(path)
    assert path.read_text() == text


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Make every write beyond the first 100 bytes of a file fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failed_write_leaves_the_old_file_and_no_temporary_file(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_profile(label="old"))
    with pytest.raises(OutputError, match="cannot be written: File too large"), full_disk():
        save_profile(path, make_profile(label="new"))
    assert read_file(path).profiles == (make_profile(label="old"),)
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_is_writable_only_by_its_owner_and_a_private_file_and_a_symlink_stay_so(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path, target, before = tmp_path / "dltune.json", tmp_path / "real" / "tuned.json", os.umask(0)
    path.symlink_to(target)
    try:
        save_profile(path, make_profile())
    finally:
        os.umask(before)
    assert (path.is_symlink(), stat.S_IMODE(target.stat().st_mode)) == (True, 0o644)
    target.chmod(0o600)
    save_profile(path, make_profile(label="b"))
    assert (path.is_symlink(), stat.S_IMODE(target.stat().st_mode)) == (True, 0o600)


def test_a_new_file_is_as_private_as_the_umask_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        save_profile(path := tmp_path / "dltune.json", make_profile())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_pipes_and_devices_are_neither_read_nor_replaced(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    for path in (pipe, link, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            write_atomically(path, "text")
        with pytest.raises(ProfileError, match="is not a regular file"):
            save_profile(path, make_profile())
        assert not stat.S_ISREG(path.stat().st_mode)


HOLDER = """
import sys
from pathlib import Path
from autotune.profiles import store
with store._lock(Path(sys.argv[1]), 10.0):
    print("locked", flush=True)
    sys.stdin.readline()
"""
SAVER = """
import sys
from pathlib import Path
from autotune.profiles.store import save_profile
from tests.builders import make_profile
for number in range(10):
    save_profile(Path(sys.argv[1]), make_profile(label=f"{sys.argv[2]}-{number}"))
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_locked_file_is_an_error_until_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "dltune.json"
    with start(HOLDER, path) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(OutputError, match=r"locked by another process for 0\.1 s"):
            save_profile(path, make_profile(), lock_seconds=0.1)
        holder.kill()
    save_profile(path, make_profile())
    assert [one.name for one in tmp_path.iterdir()] == ["dltune.json"]


def test_what_a_killed_process_began_to_write_is_removed_by_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".dltune.json.0e8df79a.new").write_text('{"schema_ver')
    save_profile(tmp_path / "dltune.json", make_profile())
    assert [one.name for one in tmp_path.iterdir()] == ["dltune.json"]


def test_processes_that_save_at_the_same_time_lose_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "dltune.json"
    savers = [start(SAVER, path, number) for number in range(2)]
    assert [saver.communicate() and saver.returncode for saver in savers] == [0, 0]
    assert len(read_file(path).profiles) == 20
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_locked_from_reading_to_writing(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_profile())

    def change(stored: TunedFile) -> TunedFile:
        with pytest.raises(OutputError, match="has been locked"):
            save_profile(path, make_profile(label="b"), lock_seconds=0.05)
        return stored

    update_file(path, change)


def test_a_file_system_without_locks_is_written_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    save_profile(tmp_path / "dltune.json", make_profile())
    assert [path.name for path in tmp_path.iterdir()] == ["dltune.json"]


def test_an_output_path_that_cannot_be_written_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        check_writable(tmp_path / "missing" / "dltune.json")
    with pytest.raises(OutputError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(OutputError, match="cannot be written: its name is too long"):
        check_writable(tmp_path / ("n" * 250))
    assert list(tmp_path.iterdir()) == []
    check_writable(tmp_path / "new.json")
    check_writable(write_profiles(tmp_path, make_profile()))


def test_a_file_that_is_mounted_alone_is_rejected_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_profiles(tmp_path, make_profile())
    monkeypatch.setattr(os.path, "ismount", lambda given: given == str(path))
    with pytest.raises(OutputError, match=r"it is a mount point\. Mount its folder"):
        check_writable(path)


def test_merging_joins_machines_and_keeps_the_newest_validated_profile_in_use() -> None:
    here, there = make_profile(created_at=OLD), make_profile(hardware=make_hardware(usable_cpus=64.0))
    newer, searched = make_profile(created_at=NEW), make_profile(created_at=NEW, result=SEARCHED)
    merged = merge_profiles([TunedFile(profiles=(newer, there)), TunedFile(profiles=(here,))])
    assert sorted(merged.profiles, key=lambda one: one.hardware.usable_cpus) == [newer, there]
    unvalidated = TunedFile(profiles=(searched,))
    assert merge_profiles([unvalidated, TunedFile(profiles=(here,))]).profiles == (here, searched)


# Reading


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 2}, "is not of schema version 1: another version of dltune"),
        ({"written_by": "dltune 9"}, "has the unknown field written_by"),
        ({"line\nbreak": 1}, r"has the unknown field line\\nbreak"),
        ({"profiles": 3}, "is not a tuned file: profiles: it must be a valid array"),
    ],
)
def test_a_file_of_another_version_is_rejected_in_one_sentence(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = write_profiles(tmp_path, make_profile())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ProfileError, match=words) as caught:
        read_file(path)
    assert "\n" not in str(caught.value)
    assert read_profiles(path) == ()


def test_an_empty_file_is_rejected_with_the_next_step(tmp_path: Path) -> None:
    path = tmp_path / "dltune.json"
    path.touch()
    with pytest.raises(ProfileError, match=r"is not a tuned file: Invalid JSON.* Choose another file, or remove"):
        save_profile(path, make_profile())
    assert path.read_text() == ""


def test_a_folder_without_files_of_users_is_rejected_before_the_file_is_locked() -> None:
    with pytest.raises(OutputError, match=r"the folder /proc cannot be used: No such file"):
        check_writable(Path("/proc/dltune.json"))


def test_a_file_that_is_too_large_is_neither_written_nor_read(tmp_path: Path) -> None:
    path = tmp_path / "dltune.json"
    with pytest.raises(OutputError, match=r"exceed 16\.0 MiB"):
        save_profile(path, make_profile(label="a" * MAX_FILE_BYTES))
    assert list(tmp_path.iterdir()) == []
    path.touch()
    os.truncate(path, 2**30)
    with pytest.raises(ProfileError, match=r"has 1\.0 GiB; the limit for a tuned file is 16\.0 MiB"):
        read_file(path)


@pytest.mark.parametrize("path", ["null\0byte", "x" * 5000, ".", "nothing.json"])
def test_a_path_that_cannot_be_read_is_an_error_with_the_reason_and_has_no_profiles(path: str) -> None:
    words = "cannot be read: " + "No such file.*Tune first: dltune" * (path == "nothing.json")
    with pytest.raises(ProfileError, match=words):
        read_file(Path(path))
    assert read_profiles(Path(path)) == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), value=JSON)
def test_a_changed_field_is_a_valid_file_or_a_profile_error(tmp_path: Path, data: st.DataObject, value: Any) -> None:
    document = json.loads(format_file(TunedFile(profiles=(make_profile(),))))
    place = document
    while isinstance(place, dict | list) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = value
            break
        place = place[key]
    path = tmp_path / "dltune.json"
    path.write_text(json.dumps(document))
    with contextlib.suppress(ProfileError):
        file = read_file(path)
        assert TunedFile.model_validate_json(format_file(file)) == file


# Files that others can write


def warn(path: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_others_can_write(path)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("mode", "folder_mode", "writers"),
    [
        (0o644, 0o755, None),
        (0o646, 0o755, "every user"),
        (0o664, 0o755, "group"),
        (0o644, 0o777, "every user"),
        (0o644, 0o1777, None),
    ],
)
def test_a_warning_names_who_can_write_the_file_or_replace_it_also_behind_a_symlink(
    tmp_path: Path, mode: int, folder_mode: int, writers: str | None
) -> None:
    (tmp_path / "folder").mkdir()
    path, link = write_profiles(tmp_path / "folder"), tmp_path / "dltune.json"
    link.symlink_to(path)
    shared = next((entry.gr_gid for entry in grp.getgrall() if entry.gr_name == "users"), None)
    if writers == "group":
        if shared is None or os.geteuid() != 0:
            pytest.skip("only root can give a file to another group")
        os.chown(path, -1, shared)
    path.chmod(mode)
    path.parent.chmod(folder_mode)
    for name in (path, link):
        assert [writers is not None and writers in one for one in warn(name)] == [True] * (writers is not None)


def test_a_file_of_another_user_gives_a_warning_and_one_of_root_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, owner = write_profiles(tmp_path), os.geteuid()
    path.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert [f"user {owner}" in one for one in warn(path)] == ([True] if owner else [])
