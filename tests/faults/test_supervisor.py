"""What becomes of trials whose tuner is killed, interrupted, or not allowed to have children."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LEAVE_SECONDS
from tests.faults.stage import (
    PATIENCE_SECONDS,
    Play,
    Scene,
    await_condition,
    is_alive,
    list_trial_processes,
    make_cli_command,
    make_command,
    run,
    run_elsewhere,
    start,
)


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name the file in which each process that hangs leaves a byte."""
    path = tmp_path / "hung"
    path.touch()
    monkeypatch.setenv("HUNG_FILE", str(path))
    return path


def kill_and_list_survivors(supervisor: subprocess.Popen[str]) -> list[str]:
    """Kill a tuner like the kernel does, and list what is left of its trials five seconds later."""
    assert list_trial_processes()
    supervisor.kill()
    supervisor.wait()
    deadline = time.monotonic() + LEAVE_SECONDS
    while (left := list_trial_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [" ".join(process.cmdline()) for process in left]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.fault("Supervisor SIGKILL", needs="plain")
def test_hung_workers_die_with_a_killed_tuner(method: str, hung: Path) -> None:
    scene = Scene(
        factory="faults.hostile:make_hanging_workers",
        plays=(Play(method=method),),
        stall_seconds=60.0,
    )
    with start(make_command(scene)) as supervisor:
        await_condition(lambda: hung.stat().st_size >= 2, "two hung workers")
        assert kill_and_list_survivors(supervisor) == []


def list_blocked_in_a_pipe() -> list[int]:
    """List the trials' processes of which a thread waits for room in a pipe."""
    blocked = []
    for process in list_trial_processes():
        for task in Path(f"/proc/{process.pid}/task").glob("*/wchan"):
            try:
                if "pipe_write" in task.read_text():
                    blocked.append(process.pid)
            except OSError:
                continue
    return blocked


@pytest.mark.fault("Supervisor SIGKILL", needs="plain")
def test_a_worker_blocked_in_a_pipe_dies_with_a_killed_tuner(hung: Path) -> None:
    scene = Scene(
        factory="faults.hostile:make_bytes",
        step="faults.hostile:make_hanging_step",
        stall_seconds=60.0,
    )
    with start(make_command(scene)) as supervisor:
        await_condition(lambda: hung.stat().st_size, "a hung step")
        await_condition(list_blocked_in_a_pipe, "a worker that waits for room in its pipe")
        assert kill_and_list_survivors(supervisor) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.fault("Supervisor SIGKILL", needs="plain")
def test_what_a_thread_of_the_dataset_has_started_dies_with_a_killed_tuner(method: str, hung: Path) -> None:
    scene = Scene(
        factory="faults.hostile:make_helped",
        arguments={"method": method},
        step="faults.hostile:make_hanging_step",
        plays=(Play(workers=0),),
        stall_seconds=60.0,
    )
    with start(make_command(scene)) as supervisor:
        await_condition(lambda: hung.stat().st_size, "a hung step")
        assert kill_and_list_survivors(supervisor) == []


@pytest.mark.fault("Supervisor SIGKILL", needs="plain")
def test_a_process_that_hides_dies_with_a_killed_tuner(hung: Path, tmp_path: Path) -> None:
    scene = Scene(
        factory="faults.hostile:make_hidden",
        arguments={"path": str(tmp_path / "pid")},
        step="faults.hostile:make_hanging_step",
        plays=(Play(workers=0),),
        stall_seconds=60.0,
    )
    with start(make_command(scene)) as supervisor:
        await_condition(lambda: hung.stat().st_size, "a hung step")
        assert kill_and_list_survivors(supervisor) == []
    assert not is_alive(int((tmp_path / "pid").read_text()))


@pytest.mark.fault("SIGTERM trial main only", needs="plain")
def test_a_trial_whose_main_process_alone_is_terminated_is_named_and_ended_as_a_whole() -> None:
    result = run("faults.hostile:make_sabotaged", arguments={"deed": "terminate main"})
    assert result.kind == "crashed"
    assert "was killed by SIGTERM: another process ended it" in result.message


def await_trials(process: subprocess.Popen[str], count: int) -> None:
    """Read stderr until so many trials have been reported."""
    assert process.stderr is not None
    while count:
        line = process.stderr.readline()
        assert line, "the run ended before enough trials were seen"
        count -= re.match(r" +\d+ ", line) is not None  # a row of the table


def interrupt(command: list[str], interrupt_it: Any) -> subprocess.CompletedProcess[str]:
    """Run a search until it has seen three trials, interrupt it, and give what it says."""
    with start(command) as process:
        await_trials(process, 3)
        interrupt_it(process.pid)
        stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def press_ctrl_c(pid: int) -> None:
    os.killpg(pid, signal.SIGINT)


def terminate(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


SEARCH = make_cli_command("misbehaving:make_honest", "--trials", "40", "--sampler", "random")
IN_BACKGROUND = ["sh", "-c", 'trap "" INT && exec "$@"', "sh", *SEARCH]  # as a shell without job control starts it


@pytest.mark.parametrize(
    ("command", "interrupt_it"),
    [(SEARCH, press_ctrl_c), (IN_BACKGROUND, press_ctrl_c), (SEARCH, terminate)],
    ids=["in the foreground", "in the background", "by SIGTERM"],
)
@pytest.mark.fault("Ctrl-C", needs="plain")
def test_an_interrupted_run_writes_the_best_so_far(command: list[str], interrupt_it: Any, workdir: Path) -> None:
    finished = interrupt(command, interrupt_it)
    assert finished.returncode == 130, finished.stderr
    (profile,) = json.loads((workdir / "dltune.json").read_text())["profiles"]
    assert not profile["is_complete"]
    assert len(profile["search"]["trials"]) >= 3
    assert {path.name for path in workdir.iterdir()} <= {"dltune.json", ".dltune.json.lock"}


@pytest.mark.fault("Ctrl-C", needs="plain")
def test_a_run_interrupted_before_its_first_trial_writes_nothing_and_says_so(workdir: Path, hung: Path) -> None:
    with start(make_cli_command("faults.hostile:make_hung_factory")) as process:
        await_condition(lambda: hung.stat().st_size, "a hung factory")
        press_ctrl_c(process.pid)
        _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, stderr
    assert "Interrupted before any configuration was measured" in stderr
    assert not (workdir / "dltune.json").exists()


@pytest.mark.fault("Loader inside daemonic process", needs="plain")
def test_dltune_works_inside_a_daemonic_process() -> None:
    review = run_elsewhere(Scene(factory="misbehaving:make_honest", daemonic=True))
    assert [result.kind for result in review.results] == ["completed"]
    assert review.left == ()
