"""Fixtures: a folder of one's own, and proof that a test left nothing behind."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Container, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.kept_supervisor import list_kept

BESIDE = {Path("/tmp")} if os.environ.get("PYTEST_XDIST_WORKER") else set()  # where other sessions have their folders
# Inherited by every process that a test starts: others on this machine are not our business.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
LEAVE_SECONDS = 60.0 if WORKER else 5.0  # the names of runs that are killed beside us look like ours
if not os.environ.get("DLTUNE_TEST_SESSION", "").endswith(f"/{WORKER}"):  # not yet one of this process or above it
    os.environ["DLTUNE_TEST_SESSION"] = f"{uuid.uuid4().hex}/{WORKER}"
    if WORKER:  # what the tests beside ours leave for a moment is not our business either
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="beside-", dir="/tmp")
        atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)
SESSION = os.environ["DLTUNE_TEST_SESSION"]

LONG = tuple(
    f"tests/{name}"
    for name in ("faults/", "online/", "runner/", "test_end_to_end.py", "test_docs.py", "test_tuning.py")
)

# a paused process is no failure of an example
settings.register_profile("any pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any pace")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
multiprocessing.set_start_method("fork")  # tests make datasets in functions; Python 3.14 has another default


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder, so that .dltune/ and dltune.json land there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def list_leftovers() -> list[str]:
    """List what is left of this session's trials: processes, names in /dev/shm, temporary folders."""
    return [*_name_processes(), *list_shm_names(), *_list_folders()]


def _name_processes() -> list[str]:
    return [f"{process.pid} {process.info['name']}" for process in list_trial_processes()]


def list_trial_processes() -> list[psutil.Process]:
    """List the processes of this session that belong to a trial."""
    return [
        process
        for process in psutil.process_iter(["name", "status", "environ"])
        if "DLTUNE_TRIAL" in (inherited := process.info["environ"] or {})
        and inherited.get("DLTUNE_TEST_SESSION") == SESSION
        and process.pid not in list_kept()
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def list_shm_names() -> list[str]:
    """List the names of shared tensors and semaphores that no other session's living process has made or mapped.

    A process that is killed within glibc's `sem_open` leaves a name such as `sem.x1Y2z3`, which nobody can prevent.
    """
    names = {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(("torch_", "sem.mp-", "psm_"))}
    return sorted(names - _find_names_of_others(names))


def _find_names_of_others(names: set[str]) -> set[str]:
    """Return those that another session's process has made or mapped; each process is looked at once for all names."""
    found = set[str]()
    for process in psutil.process_iter() if names else ():
        try:
            if process.environ().get("DLTUNE_TEST_SESSION") != SESSION:
                found |= {name for name in names if f"_{process.pid}_" in name}
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                found |= {name for name in names - found if name in maps}
        except (psutil.Error, OSError):
            continue
        if found == names:
            break
    return found


def _list_folders() -> list[str]:
    """List the folders of trials whose tuner is this process, or is gone."""
    left = []
    for folder in {Path(tempfile.gettempdir())} | ({Path("/tmp")} - BESIDE):
        for path in folder.glob("dltune-*-*"):
            owner = path.name.split("-")[1]
            if owner.isdigit() and (int(owner) == os.getpid() or not psutil.pid_exists(int(owner))):
                left.append(str(path))
    return left


def await_nothing_left(known: Container[str]) -> list[str]:
    """Wait some seconds for what is not `known` to vanish, and list what is still there."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while any(name not in known for name in _name_processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = {name for name in list_leftovers() if name not in known}  # what appears later is of the tests beside ours
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left.intersection_update(list_leftovers())
    return sorted(left)


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """Fail the test when anything that it brought into the world is still there some seconds after it."""
    before = set(list_leftovers())
    yield
    assert await_nothing_left(before) == []


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Look for nothing on the network, and write no cache but here; it is one, so that a supervisor can be kept."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path_factory.getbasetemp() / "huggingface"))


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """Give accelerate's process-wide state back as it was found."""
    state = pytest.importorskip("accelerate.state")
    yield
    for one in (state.AcceleratorState, state.GradientState, state.PartialState):
        one._reset_state()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long ones: of two processes, one would be left with them at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
