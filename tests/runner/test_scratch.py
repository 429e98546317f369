"""The private folder of a child: locked while it is in use, swept when its owner is gone; no other is touched."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from pathlib import Path

import pytest

from autotune.runner import scratch
from autotune.runner.launcher import Starter
from autotune.runner.memory_cgroup import find_cgroup_parent
from autotune.runner.process import TrialProcess
from autotune.runner.sandbox import SandboxSupport
from autotune.runner.scratch import lock_folder, make_scratch, sweep_scratch
from tests.builders import make_limits

LONG_AGO = time.time() - 3600


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "MAX_TMPDIR_LENGTH", 4096)
    return tmp_path


def make_folder(path: Path) -> Path:
    """Make a folder that looks old and holds a file."""
    path.mkdir()
    (path / "results.csv").write_text("1\n")
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def make_abandoned(path: Path) -> Path:
    """Make a folder whose lock nobody holds any more, as when its owner was killed."""
    with lock_folder(make_folder(path)):
        return path


def test_a_folder_in_use_is_never_swept_whatever_process_number_it_carries(parent: Path) -> None:
    with make_scratch() as folder:
        # as another container that shares the folder sees it
        stranger = folder.rename(parent / "dltune-999999999-abcdefgh")
        sweep_scratch(parent)
        assert stranger.exists()


def test_a_folder_is_gone_when_it_is_not_in_use_any_more(parent: Path) -> None:
    with make_scratch() as folder:
        assert [*parent.iterdir()] == [folder]
    assert [*parent.iterdir()] == []


def test_a_folder_whose_owner_is_gone_is_swept(parent: Path) -> None:
    folder = make_abandoned(parent / "dltune-7-abcdefgh")
    sweep_scratch(parent)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["dltune-my-results", "dltune-2024-research", "dltune-1-old", "dltune-7-abcdefgh"])
def test_a_folder_without_a_lock_is_somebody_elses_however_old_it_is(name: str, parent: Path) -> None:
    theirs = make_folder(parent / name)
    sweep_scratch(parent)
    assert (theirs / "results.csv").exists()


@pytest.mark.parametrize("name", ["dltune-my-results", "dltune-7-abcdefghi", "dltune-x7-abcdefgh"])
def test_a_lock_in_a_folder_with_a_name_that_is_not_ours_gives_nobody_the_right_to_remove_it(
    name: str, parent: Path
) -> None:
    theirs = make_abandoned(parent / name)
    sweep_scratch(parent)
    assert theirs.exists()


def test_a_link_to_a_locked_folder_is_not_followed(parent: Path) -> None:
    theirs = make_abandoned(parent / "elsewhere")
    (parent / "dltune-7-abcdefgh").symlink_to(theirs)
    sweep_scratch(parent)
    assert theirs.exists()


def test_a_folder_of_another_user_is_left_to_them(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_abandoned(parent / "dltune-7-abcdefgh")
    monkeypatch.setattr(os, "geteuid", lambda: 1 + os.getuid())
    sweep_scratch(parent)
    assert folder.exists()


def test_a_sweep_in_the_middle_of_making_a_folder_leaves_it_alone(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    seen: list[int] = []

    def sweep_first(descriptor: int, operation: int) -> None:
        """Be the other run that sweeps just before a folder is locked."""
        if operation & fcntl.LOCK_EX and not seen:
            seen.append(descriptor)
            sweep_scratch(parent)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    with make_scratch() as folder:
        assert seen
        assert folder.exists()


def start_child(working_dir: Path, sandbox: SandboxSupport) -> TrialProcess:
    return TrialProcess(Starter(str(working_dir)), make_limits(), sandbox, lambda progress: None)


def test_a_child_that_cannot_be_started_leaves_no_folder_and_no_open_descriptor(parent: Path) -> None:
    before = os.listdir("/proc/self/fd")  # noqa: PTH208  # numbers, not paths
    with pytest.raises(FileNotFoundError):
        start_child(parent / "nowhere", SandboxSupport())
    assert list(parent.iterdir()) == []
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208


@pytest.mark.skipif(find_cgroup_parent() is None, reason="no memory cgroup that this user may write")
def test_a_child_that_cannot_be_started_leaves_no_cgroup(parent: Path) -> None:
    place = find_cgroup_parent()
    assert place is not None
    before = set(place.iterdir())
    with pytest.raises(FileNotFoundError):
        start_child(parent / "nowhere", SandboxSupport(cgroup=place))
    assert {
        path.name for path in set(place.iterdir()) - before if path.name.startswith(f"dltune-{os.getpid()}")
    } == set()


def test_a_folder_that_cannot_be_locked_does_not_stay(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    with pytest.raises(OSError, match="No locks"), make_scratch():
        pass
    assert list(parent.iterdir()) == []
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
