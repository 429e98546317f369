"""Who else could have chosen: dltune itself, random search in the same time, loadtune, and a hand.

Each is run as its users would run it, on the same dataset with the same emulated step and batch size, and says what
it chose and how long it took.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import optuna

from autotune import TunedProfile
from autotune.config import LoaderConfig
from autotune.runner.runner import TrialRunner
from autotune.search.demand import ResourceModel
from autotune.search.loop import HOPELESS_SHARE, SEARCH_PRECISION, SEARCH_SHARE
from autotune.search.plan import Plan, make_plan
from autotune.search.study import get_record
from autotune.search.trial_record import TrialRecord
from autotune.system.machine import read_machine
from autotune.trial.budgets import plan_budgets
from autotune.trial.protocol import RunTrial, TrialRequest
from autotune.trial.throughput import estimate
from benchmarks.records import Line, Tuning
from benchmarks.trial import make_request
from benchmarks.whole_run import resolve
from benchmarks.workloads import BenchWorkload, as_config, choose_by_hand, find_workload

ROOT: Final = str(Path(__file__).parent.parent)
LOADTUNE_FILE: Final = """\
from benchmarks.peers import make_loadtune_workload


def get_workload():
    return make_loadtune_workload({name!r})
"""


def make_environment() -> dict[str, str]:
    """Give the environment in which this project's modules can be imported from any folder."""
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, inherited] if inherited else [ROOT])}


def make_command(workload: BenchWorkload, output: str, *options: str) -> list[str]:
    """Make the command that tunes a workload as a user would."""
    command = [sys.executable, "-m", "autotune.cli", "--dataset", workload.dataset]
    command += ["--batch-size", str(workload.batch_size)]
    command += ["--step", workload.step] if workload.step else ["--step-time", f"{workload.step_seconds * 1000:g}ms"]
    return [*command, "--epochs", str(workload.epochs), "--no-resume", "-o", output, *options]


def tune(workload: BenchWorkload, *options: str) -> Tuning:
    """Run dltune on a workload.

    Args:
        workload: What to tune.
        *options: Further options of the command.

    Returns:
        Its choice, its promise and its trials.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    return run_dltune(make_command(workload, "dltune.json", "--json", *options))


def run_dltune(command: Sequence[str]) -> Tuning:
    """Run dltune in an empty folder.

    Args:
        command: What to run; it writes `dltune.json` there and prints the profile as JSON.

    Returns:
        Its choice, its promise and its trials.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        began, started = datetime.now(), time.monotonic()
        finished = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=folder, env=make_environment()
        )
        seconds = time.monotonic() - started
        lines = read_study(Path(folder) / ".dltune" / "studies.db", began)
    profile = TunedProfile.model_validate_json(finished.stdout)
    return Tuning(
        tuner="dltune",
        config=profile.config,
        seconds=seconds,
        promise=profile.result.samples_per_second,
        interval=profile.result.samples_per_second_ci95,
        lines=tuple(lines),
        note=f"{profile.search.trials} trials; {profile.search.stopped}; {profile.result.verdict}",
    )


def read_study(path: Path, began: datetime) -> list[Line]:
    """Read the trials of the only study in dltune's record.

    Args:
        path: The SQLite file.
        began: When dltune was started.

    Returns:
        Its trials, in order.
    """
    storage = f"sqlite:///{path}"
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    lines = []
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)):
        if (text := get_record(trial)) is not None and trial.datetime_complete is not None:
            record = TrialRecord.model_validate_json(text)
            lines.append(_make_line(record, (trial.datetime_complete - began).total_seconds()))
    return lines


def _make_line(record: TrialRecord, finished_seconds: float) -> Line:
    result = record.result
    traces = result.measurement.epochs if result is not None and result.measurement is not None else ()
    return Line(
        config=record.config,
        fate=record.fate,
        completed=record.is_feasible,
        score=record.score,
        finished_seconds=finished_seconds,
        trial_seconds=result.seconds if result is not None else 0.0,
        timed_seconds=sum(trace.end_seconds for trace in traces),
    )


def search_at_random(workload: BenchWorkload, seconds: float, seed: int = 0) -> Tuning:
    """Try configurations in random order, by the same trials over the same space, until the time is up.

    `--sampler random` would not do: it starts from the cost model's guesses, as every run of dltune does.

    Args:
        workload: What to tune.
        seconds: Wall time allowed, everything included.
        seed: Decides about the order.

    Returns:
        The best of what it tried; nothing is measured twice.
    """
    started = time.monotonic()
    request = make_request(workload, seed)
    with TrialRunner(request.workload, request.stall_seconds) as runner:
        machine = read_machine()
        budgets = plan_budgets(machine, request)
        profile = runner.probe((workload.batch_size, workload.batch_size), budgets)
        plan = make_plan(request, machine, profile, budgets)
        lines = _try_in_turn(plan, _shuffle_configs(plan, seed), runner.run, started, seconds)
    best = max((line for line in lines if line.completed), key=lambda line: line.score)
    return Tuning(
        tuner="random",
        config=best.config,
        seconds=time.monotonic() - started,
        promise=best.score,
        lines=tuple(lines),
        note=f"{len(lines)} trials",
    )


def _shuffle_configs(plan: Plan, seed: int) -> list[LoaderConfig]:
    """List the configurations that fit the limits, in random order."""
    model = ResourceModel.from_workload(plan.workload)
    fitting = [config for config in plan.space.configs() if not model.predict(config).find_violations(plan.budgets)]
    random.Random(seed).shuffle(fitting)
    return fitting


def _try_in_turn(
    plan: Plan, configs: Sequence[LoaderConfig], run_trial: RunTrial, started: float, seconds: float
) -> list[Line]:
    """Run trials as the search does, hopeless ones ended early, while there is time for one more like the last."""
    lines: list[Line] = []
    for config in configs:
        last = lines[-1].trial_seconds if lines else 0.0
        if time.monotonic() - started + last > seconds and lines:
            break
        best = max((line.score for line in lines), default=0.0)
        request = TrialRequest(
            config=config,
            epochs=plan.request.epochs,
            seconds=SEARCH_SHARE * plan.request.trial_seconds,
            precision=SEARCH_PRECISION,
            hopeless_below=HOPELESS_SHARE * best or None,
        )
        result = run_trial(request)
        score = 0.0
        if result.measurement is not None:
            cold = plan.cold_start_seconds(config)
            score = estimate(result.measurement, config, plan.request.epochs, cold).samples_per_second
        record = TrialRecord(
            number=len(lines), config=config, fate="measured", score=score, constraints={}, result=result
        )
        lines.append(_make_line(record, time.monotonic() - started))
    return lines


def run_loadtune(workload: BenchWorkload) -> Tuning:
    """Run loadtune on a workload.

    Args:
        workload: What to tune.

    Returns:
        Its choice: torch's defaults where it proposes nothing better or fails, and the note then says why.
    """
    return run_loadtune_on(LOADTUNE_FILE.format(name=workload.name), workload.batch_size)


def run_loadtune_on(source: str, batch_size: int, *options: str) -> Tuning:
    """Run loadtune's command on a workload file, with its own defaults, and apply what it says.

    Args:
        source: Python that defines `get_workload()`.
        batch_size: Samples per batch.
        *options: Further options of the command.

    Returns:
        Its choice: torch's defaults where it proposes nothing better or fails, and the note then says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "workload.py").write_text(source)
        started = time.monotonic()
        finished = subprocess.run(
            [sys.executable, "-m", "loadtune.cli", "tune", "workload.py", "--apply", *options],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            env=make_environment(),
        )
        seconds = time.monotonic() - started
        kwargs = _read_applied(Path(folder) / "loadtune_apply.py")
    return Tuning(
        tuner="loadtune",
        config=as_config({"batch_size": batch_size} | kwargs),
        seconds=seconds,
        note=_summarize_output(finished),
    )


def _read_applied(path: Path) -> dict[str, Any]:
    """Call the function that loadtune wrote for training code; nothing when it wrote none."""
    if not path.exists():
        return {}
    command = [sys.executable, "-c", "import json, loadtune_apply as a; print(json.dumps(a.get_dataloader_kwargs()))"]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, cwd=path.parent)
    kwargs: dict[str, Any] = json.loads(finished.stdout)
    return kwargs


def _summarize_output(finished: subprocess.CompletedProcess[str]) -> str:
    """Pick what loadtune says of its outcome: the line of its best, or else the last one of its complaint."""
    text = f"{finished.stdout}\n{finished.stderr}"
    lines = [line.removeprefix("[loadtune] ").strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("best overall", "no better", "brain proposed no"))]
    return (telling or lines or ["no output"])[-1]


def make_loadtune_workload(name: str) -> Any:
    """Make what loadtune wants to be given: the dataset, and the workload's step.

    Args:
        name: Name of the workload.

    Returns:
        A `loadtune.Workload`.
    """
    import torch

    workload = find_workload(name)
    step = resolve(workload.step)() if workload.step else lambda batch: time.sleep(workload.step_seconds)

    def train_step(model: Any, optimizer: Any, batch: Any, device: Any) -> torch.Tensor:
        step(batch)
        return torch.zeros(())

    return import_module("loadtune").Workload(
        name=name,
        make_dataset=resolve(workload.dataset),
        make_model=lambda: torch.nn.Linear(1, 1),
        train_step=train_step,
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        default_batch_size=workload.batch_size,
    )


def set_by_hand(workload: BenchWorkload, cpus: int) -> Tuning:
    """Give the setting of a careful hand, which takes no time."""
    return Tuning(tuner="hand", config=as_config(choose_by_hand(workload, cpus)), seconds=0.0)
