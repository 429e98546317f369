"""Where villains meet dltune: in this process's children, in another process, or through the command line.

Run as `python -m tests.faults.stage SCENE`, it plays a scene and prints what became of it, both in JSON: so a test puts
dltune itself into a small /dev/shm, a cgroup, a daemonic process, or in the way of a SIGKILL.
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
from pydantic import Field

from autotune.config import DataLoaderSettings, FrozenModel, LoaderConfig, ProcessSettings, SharingStrategy, StartMethod
from autotune.errors import DltuneError, WorkloadError
from autotune.progress import ProgressListener
from autotune.protocol.budgets import Budgets
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import WorkloadRequest
from autotune.runner.launcher import Launcher
from autotune.runner.runner import TrialRunner
from tests.conftest import await_nothing_left, list_leftovers
from tests.kept_launcher import keep_launcher, list_kept

ROOT = Path(__file__).parents[2]
MIB = 2**20
LIMITS = Budgets(memory_bytes=8 * 2**30, reserve_bytes=0, shm_bytes=2**30, nofile=1024)
PATIENCE_SECONDS = 60.0  # until a scene must be over; none takes a quarter of it
QUICK = ("--batch-size", "8", "--trial-time", "0.3s", "--epochs", "2", "--max-workers", "2", "--step-time", "1ms")


class Play(FrozenModel):
    """One trial of a scene.

    Attributes:
        workers: `num_workers`.
        batch_size: `batch_size`.
        strategy: Sharing strategy.
        method: Start method of the workers; None for the interpreter's.
        epochs: Epochs that the result stands for.
        seconds: Most seconds of measuring.
        fresh: Whether in a process of its own.
    """

    workers: int = 2
    batch_size: int | None = 8
    strategy: SharingStrategy = "file_descriptor"
    method: StartMethod | None = None
    epochs: int = 2
    seconds: float = 1.0
    fresh: bool = False

    def to_request(self) -> TrialRequest:
        extra: dict[str, Any] = {"num_workers": self.workers, "prefetch_factor": 2} if self.workers else {}
        config = LoaderConfig(
            dataloader=DataLoaderSettings(batch_size=self.batch_size, **extra),
            process=ProcessSettings(sharing_strategy=self.strategy, multiprocessing_context=self.method),
        )
        return TrialRequest(config=config, epochs=self.epochs, seconds=self.seconds, fresh=self.fresh)


class Scene(FrozenModel):
    """What is to be played.

    Attributes:
        factory: Import string of the dataset's factory, without the leading `tests.`; whole where it begins with
            `user_`.
        arguments: Arguments of the factory.
        collate: As in a WorkloadRequest.
        step: As in a WorkloadRequest; a simulated step if there is none.
        working_dir: Where the child starts.
        plays: The trials.
        stall_seconds: Most seconds without progress.
        budgets: Budgets.
        daemonic: Whether a daemonic process of multiprocessing plays it.
        probed: Whether the workload is probed before the trials.
    """

    factory: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    collate: str | None = None
    step: str | None = None
    working_dir: str = str(ROOT)
    plays: tuple[Play, ...] = (Play(),)
    stall_seconds: float = 20.0
    budgets: Budgets = LIMITS
    daemonic: bool = False
    probed: bool = False

    def open_runner(self, progress: ProgressListener | None = None, launcher: Launcher | None = None) -> TrialRunner:
        """Make the runner, with limits in force."""
        request = WorkloadRequest(
            dataset=self.factory if self.factory.startswith("user_") else f"tests.{self.factory}",
            dataset_args=self.arguments,
            collate=self.collate and f"tests.{self.collate}",
            step=self.step and f"tests.{self.step}",
            step_seconds=None if self.step else 1e-4,
            device="cpu",
            working_dir=self.working_dir,
        )
        runner = TrialRunner(request, self.stall_seconds, progress, launcher or keep_launcher())
        runner.limit(self.budgets)
        return runner

    def play(self, launcher: Launcher | None = None) -> list[TrialResult]:
        """Run the trials one after another."""
        with self.open_runner(launcher=launcher) as runner:
            if self.probed:
                runner.probe((8, 8), self.budgets)
            return [runner.run(play.to_request()) for play in self.plays]


class Review(FrozenModel):
    """What a scene in another process gave.

    Attributes:
        results: One for each play.
        left: What was left of it five seconds later.
    """

    results: tuple[TrialResult, ...]
    left: tuple[str, ...]


def run(factory: str, *, play: Play | None = None, **scene: Any) -> TrialResult:
    """Run one trial in a child of this process."""
    (result,) = Scene(factory=factory, plays=(play or Play(),), **scene).play()
    return result


def probe(factory: str, **scene: Any) -> WorkloadProfile:
    """Probe a workload in a child of this process."""
    made = Scene(factory=factory, **scene)
    with made.open_runner() as runner:
        return runner.probe((8, 8), made.budgets)


def refuse(factory: str, **scene: Any) -> DltuneError:
    """Probe a workload that cannot be used, and give the error."""
    with pytest.raises(DltuneError) as caught:
        probe(factory, **scene)
    return caught.value


def read_all(error: DltuneError) -> str:
    """Give what a user reads of an error: traceback and sentence."""
    return f"{error.details if isinstance(error, WorkloadError) else ''}\n{error}"


def make_command(scene: Scene) -> list[str]:
    """Give the command that plays a scene in another process."""
    return [sys.executable, "-m", "tests.faults.stage", scene.model_dump_json()]


def _make_environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def run_elsewhere(scene: Scene, wrap: Callable[[list[str]], Sequence[str]] = list, **environment: str) -> Review:
    """Play a scene in another process.

    Args:
        scene: What to play.
        wrap: Puts the command into other circumstances.
        environment: Variables to set.
    """
    done = subprocess.run(
        wrap(make_command(scene)),
        cwd=ROOT,
        env=_make_environment(**environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Review.model_validate_json(done.stdout.splitlines()[-1])


@contextmanager
def start(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process in a session of its own, and see to its end."""
    process = subprocess.Popen(
        command,
        env=_make_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for survivor in list_trial_processes():
            with suppress(psutil.Error):
                if "resource_tracker" not in " ".join(survivor.cmdline()):  # it takes names away, and ends
                    survivor.kill()


def make_cli_command(factory: str, *options: str) -> list[str]:
    """Give the command that a user would type."""
    return [sys.executable, "-m", "autotune", "--dataset", f"tests.{factory}", *QUICK, *options]


def run_cli(
    factory: str, *options: str, wrap: Callable[[list[str]], Sequence[str]] = list
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would."""
    return subprocess.run(
        wrap(make_cli_command(factory, *options)),
        env=_make_environment(),
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_SECONDS,
        check=False,
    )


def await_condition(holds: Callable[[], Any], what: str) -> Any:
    """Wait until something is true, and give it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)
    return found


def list_trial_processes() -> list[psutil.Process]:
    """List the processes of this session that belong to a trial."""
    found = []
    for process in psutil.process_iter():
        try:
            inherited = process.environ()
        except psutil.Error:
            continue
        is_ours = inherited.get("DLTUNE_TEST_SESSION") == os.environ["DLTUNE_TEST_SESSION"]
        if is_ours and "DLTUNE_TRIAL" in inherited and process.pid not in list_kept():
            found.append(process)
    return found


def is_alive(pid: int) -> bool:
    """Tell whether a process runs, or waits; not whether its number is still taken."""
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _play_and_tell(scene: Scene) -> None:
    before = set(list_leftovers())
    results = tuple(scene.play(Launcher()))
    review = Review(results=results, left=tuple(await_nothing_left(before)))
    sys.stdout.write(review.model_dump_json() + "\n")
    sys.stdout.flush()


def main() -> None:
    """Play the scene named on the command line."""
    scene = Scene.model_validate_json(sys.argv[1])
    if not scene.daemonic:
        _play_and_tell(scene)
        return
    signal.alarm(int(PATIENCE_SECONDS))
    player = multiprocessing.Process(target=_play_and_tell, args=(scene,), daemon=True)
    player.start()
    player.join()
    sys.exit(player.exitcode or 0)


if __name__ == "__main__":
    main()
