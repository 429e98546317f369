"""Runs trials of hostile datasets: in children of this process, in another process, or through the command line.

`python -m tests.faults.stage SCENE` plays a scene, given as JSON, and prints its results: so a test puts dltune itself
into a small /dev/shm, a cgroup or a daemonic process, or kills it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.config import FrozenModel, ProcessSettings, SharingStrategy, StartMethod
from autotune.errors import DltuneError, WorkloadError
from autotune.profiles.schema import Budgets
from autotune.progress import ProgressListener
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import WorkloadRequest
from autotune.runner.runner import TrialRunner
from autotune.runner.supervisor_client import SupervisorClient
from tests.builders import make_config
from tests.conftest import await_nothing_left, list_leftovers, list_trial_processes
from tests.kept_supervisor import keep_supervisor

ROOT = Path(__file__).parents[2]
MIB = 2**20
LIMITS = Budgets(memory_bytes=8 * 2**30, reserve_bytes=0, shm_bytes=2**30, nofile=1024)
PATIENCE_SECONDS = 60.0  # until a scene must be over; none takes a quarter of it
DLTUNE = (sys.executable, "-m", "autotune")
QUICK = ("--batch-size", "8", "--trial-time", "0.3s", "--epochs", "2", "--max-workers", "2", "--step-time", "1ms")


def make_trial(
    workers: int = 2,
    batch_size: int = 8,
    strategy: SharingStrategy = "file_descriptor",
    method: StartMethod | None = None,
    seconds: float = 1.0,
) -> TrialRequest:
    """Make a trial; `method` is the start method of its workers."""
    process = ProcessSettings(sharing_strategy=strategy, multiprocessing_context=method)
    return TrialRequest(config=make_config(workers, 2, batch_size, process), epochs=2, seconds=seconds)


class Scene(FrozenModel):
    """Trials of a workload, in the order of their start."""

    workload: WorkloadRequest
    trials: tuple[TrialRequest, ...]
    stall_seconds: float
    budgets: Budgets
    is_probed: bool  # before the trials
    is_daemonic: bool = False  # whether a daemonic process of multiprocessing plays it

    def open_runner(
        self, progress: ProgressListener | None = None, supervisor: SupervisorClient | None = None
    ) -> TrialRunner:
        """Make the runner, with limits in force."""
        runner = TrialRunner(self.workload, self.stall_seconds, progress, supervisor or keep_supervisor())
        runner.limit(self.budgets)
        return runner

    def play(self, supervisor: SupervisorClient | None = None) -> list[TrialResult]:
        """Run the trials."""
        with self.open_runner(supervisor=supervisor) as runner:
            if self.is_probed:
                runner.probe((8, 8), self.budgets)
            return [runner.run(trial) for trial in self.trials]

    def probe(self) -> WorkloadProfile:
        """Profile the workload."""
        with self.open_runner() as runner:
            return runner.probe((8, 8), self.budgets)

    def refuse(self) -> str:
        """Profile a workload that cannot be used, and return all that a user reads of the error."""
        with pytest.raises(DltuneError) as caught:
            self.probe()
        return f"{caught.value.details if isinstance(caught.value, WorkloadError) else ''}\n{caught.value}"

    def list_command(self) -> list[str]:
        """List the words of the command that plays the scene in another process."""
        return [sys.executable, "-m", "tests.faults.stage", self.model_dump_json()]

    def play_elsewhere(self, wrap: Callable[[list[str]], Sequence[str]] = list) -> list[TrialResult]:
        """Run the trials in another process, whose command `wrap` may change, and check that nothing is left."""
        done = run(wrap(self.list_command()), cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return [TrialResult.model_validate_json(line) for line in done.stdout.splitlines()]


def hostile(
    factory: str,
    *trials: TrialRequest,
    step: str | None = None,
    step_seconds: float = 1e-4,
    working_dir: Path = ROOT,
    stall_seconds: float = 20.0,
    budgets: Budgets = LIMITS,
    is_probed: bool = False,
    **arguments: Any,
) -> Scene:
    """Make a scene; without `trials`, of one with two workers.

    Args:
        factory: Import string of the dataset's factory; without a module, its name in `tests.faults.hostile`.
        step: Name of the step's factory in `tests.faults.hostile`; None for a simulated step.
        arguments: Arguments of the dataset's factory.
    """
    workload = WorkloadRequest(
        dataset=factory if ":" in factory else f"tests.faults.hostile:{factory}",
        dataset_args=arguments,
        step=step and f"tests.faults.hostile:{step}",
        step_seconds=None if step else step_seconds,
        device="cpu",
        working_dir=str(working_dir),
    )
    return Scene(
        workload=workload,
        trials=trials or (make_trial(),),
        stall_seconds=stall_seconds,
        budgets=budgets,
        is_probed=is_probed,
    )


def make_command(*options: str, dataset: str = "tests.misbehaving:make_honest") -> list[str]:
    """Make the command of a short run."""
    return [*DLTUNE, "--dataset", dataset, *QUICK, *options]


def start(command: Sequence[str], cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start a process in a session of its own, whose output is piped."""
    environment, pipe = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.PIPE
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process, and end it and its trials afterwards."""
    process = start(command)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for survivor in list_trial_processes():
            with suppress(psutil.Error):
                if "resource_tracker" not in " ".join(survivor.cmdline()):  # it removes names, and ends
                    survivor.kill()


def run(
    command: Sequence[str], at_first_trial: Callable[[], None] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and call a function when it has printed its first trial."""
    process = start(command, cwd)
    assert process.stderr is not None
    printed = ""
    while at_first_trial and (line := process.stderr.readline()):
        printed += line
        if line.startswith("trial"):
            at_first_trial()
            break
    stdout, stderr = process.communicate(timeout=3 * PATIENCE_SECONDS)
    return subprocess.CompletedProcess(command, process.returncode, stdout, printed + stderr)


def await_condition(holds: Callable[[], Any], what: str) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)
    return found


def is_running(*command: str) -> bool:
    """Return whether any process was started by this command."""
    return [*command] in [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]


def _play_and_print(scene: Scene) -> None:
    before = set(list_leftovers())
    results = scene.play(SupervisorClient())
    left = await_nothing_left(before)
    assert left == [], left
    sys.stdout.writelines(f"{result.model_dump_json()}\n" for result in results)
    sys.stdout.flush()


if __name__ == "__main__":
    scene = Scene.model_validate_json(sys.argv[1])
    if scene.is_daemonic:
        signal.alarm(int(PATIENCE_SECONDS))
        player = multiprocessing.Process(target=_play_and_print, args=(scene,), daemon=True)
        player.start()
        player.join()
        sys.exit(player.exitcode or 0)
    _play_and_print(scene)
