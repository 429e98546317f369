"""What becomes of trials whose tuner is killed, interrupted, or not allowed to have children."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LEAVE_SECONDS, list_trial_processes
from tests.faults.stage import (
    PATIENCE_SECONDS,
    Scene,
    await_condition,
    hostile,
    is_running,
    make_command,
    make_trial,
    run,
    started,
)


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name the file in which each process that hangs leaves a byte."""
    path = tmp_path / "hung"
    path.touch()
    monkeypatch.setenv("HUNG_FILE", str(path))
    return path


def kill_tuner_and_list_survivors(scene: Scene, is_ready: Callable[[], Any]) -> list[str]:
    """Kill a tuner, as the kernel does, when its trial is ready; list what is left of it some seconds later."""
    command = scene.model_copy(update={"stall_seconds": PATIENCE_SECONDS}).list_command()
    with started(command) as tuner:
        await_condition(is_ready, "a hung trial")
        assert list_trial_processes()
        tuner.kill()
        tuner.wait()
        deadline = time.monotonic() + LEAVE_SECONDS
        while (left := list_trial_processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [" ".join(process.cmdline()) for process in left]


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1), ("forkserver", 1)])
@pytest.mark.fault("Supervisor SIGKILL")
def test_hung_workers_die_with_a_killed_tuner(method: Any, workers: int, hung: Path) -> None:
    scene = hostile("tests.misbehaving:make_hangs_in_workers", make_trial(workers, method=method))
    assert kill_tuner_and_list_survivors(scene, lambda: hung.stat().st_size >= workers) == []


def is_blocked_in_a_pipe() -> bool:
    """Return whether a thread of a trial waits for room in a pipe."""
    tasks = (task for one in list_trial_processes() for task in Path(f"/proc/{one.pid}/task").glob("*/wchan"))
    return any("pipe_write" in task.read_text() for task in tasks)


@pytest.mark.fault("Supervisor SIGKILL")
def test_a_worker_blocked_in_a_pipe_dies_with_a_killed_tuner(hung: Path) -> None:
    scene = hostile("make", name="bytes", step="make_hanging_step")
    assert kill_tuner_and_list_survivors(scene, lambda: hung.stat().st_size and is_blocked_in_a_pipe()) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.fault("Supervisor SIGKILL")
def test_what_a_thread_of_the_dataset_has_started_dies_with_a_killed_tuner(method: str, hung: Path) -> None:
    scene = hostile("make_helped", make_trial(0), step="make_hanging_step", method=method)
    assert kill_tuner_and_list_survivors(scene, lambda: hung.stat().st_size) == []


@pytest.mark.fault("Supervisor SIGKILL")
def test_a_process_that_hides_dies_with_a_killed_tuner(hung: Path) -> None:
    seconds = f"36{hung.stat().st_ino}"
    scene = hostile("make_hidden", make_trial(0), step="make_hanging_step", seconds=seconds)
    assert kill_tuner_and_list_survivors(scene, lambda: hung.stat().st_size and is_running("sleep", seconds)) == []
    assert not is_running("sleep", seconds)


def press_ctrl_c(pid: int) -> None:
    os.killpg(pid, signal.SIGINT)


def terminate(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


def hang_up(pid: int) -> None:
    os.kill(pid, signal.SIGHUP)


SEARCH = make_command(  # a waiting dataset is far from the upper bound, at which a search ends
    "--trials", "40", "--sampler", "random", dataset="tests.misbehaving:make_waiting"
)
WITH_TERMINAL = ["env", "--default-signal=HUP", *SEARCH]  # also if the tests run under nohup
IN_BACKGROUND = ["sh", "-c", 'trap "" INT && exec "$@"', "sh", *SEARCH]  # as a shell without job control starts it


@pytest.mark.parametrize(
    ("command", "interrupt"),
    [(SEARCH, press_ctrl_c), (IN_BACKGROUND, press_ctrl_c), (SEARCH, terminate), (WITH_TERMINAL, hang_up)],
    ids=["in the foreground", "in the background", "by SIGTERM", "by SIGHUP"],
)
@pytest.mark.fault("Ctrl-C")
def test_an_interrupted_run_writes_the_best_so_far(command: list[str], interrupt: Any, workdir: Path) -> None:
    with started(command) as process:
        assert process.stderr is not None
        rows = list(islice((line for line in process.stderr if re.match(r" +\d+ ", line)), 3))
        assert len(rows) == 3
        interrupt(process.pid)
        _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, stderr
    assert (workdir / "dltune.json").exists(), "".join([*rows, stderr])
    (profile,) = json.loads((workdir / "dltune.json").read_text())["profiles"]
    assert not profile["is_complete"]
    assert len(profile["search"]["trials"]) >= 3
    assert {path.name for path in workdir.iterdir()} <= {"dltune.json", ".dltune.json.lock"}


@pytest.mark.fault("Ctrl-C")
def test_a_run_interrupted_before_its_first_trial_writes_nothing_and_says_so(workdir: Path, hung: Path) -> None:
    with started(make_command(dataset="tests.misbehaving:make_hanging")) as process:
        await_condition(lambda: hung.stat().st_size, "a hung factory")
        press_ctrl_c(process.pid)
        _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, stderr
    assert "Interrupted before any configuration was measured" in stderr
    assert not (workdir / "dltune.json").exists()


@pytest.mark.fault("Loader inside daemonic process")
def test_dltune_works_inside_a_daemonic_process() -> None:
    scene = hostile("tests.misbehaving:make_honest").model_copy(update={"is_daemonic": True})
    assert [result.status for result in scene.play_elsewhere()] == ["completed"]


UNKILLABLE = """
import os, subprocess, socket
from autotune.child import supervisor

kill, os.kill = os.kill, lambda pid, number: None  # as of a process that waits for a disk
supervisor.CLEANER_GRACE_SECONDS = 0.2
child = subprocess.Popen(["sleep", "600"])
served = supervisor.Supervisor(socket.socket(), can_fork=True)
print(served._end_trial() == [child.pid], served._end_trial())
kill(child.pid, 9)
"""


def test_a_process_that_cannot_be_killed_is_waited_for_and_reported_once() -> None:
    done = run([sys.executable, "-c", UNKILLABLE])
    assert done.stdout.split() == ["True", "[]"], done.stderr
