"""The tuners that the benchmarks compare, each run as its users run it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, get_args

import torch
from pydantic import Field

from autotune import TunedProfile
from autotune.config import FrozenModel, Interval, LoaderConfig
from autotune.request import SamplerName
from benchmarks.training import Step, make_environment, make_step
from benchmarks.workloads.catalogue import find_workload
from benchmarks.workloads.grid import as_config
from benchmarks.workloads.workload import BenchWorkload

SAMPLER_TIMEOUT: Final = "45s"  # of other samplers: the most that the default takes on these workloads
LOADTUNE_FILE: Final = """\
from benchmarks.tuners import make_loadtune_workload


def get_workload():
    return make_loadtune_workload({name!r})
"""


class Choice(FrozenModel):
    """What a tuner chose.

    Attributes:
        tuner: Its name.
        config: The configuration.
        seconds: Duration of its run.
        predicted: Its prediction, samples per second; 0 without one.
        predicted_ci95: The 95% interval of the prediction.
        phase_seconds: Duration of its phases.
        trials: Trials of its search.
    """

    tuner: str
    config: LoaderConfig
    seconds: float
    predicted: float = 0.0
    predicted_ci95: Interval | None = None
    phase_seconds: dict[str, float] = Field(default_factory=dict)
    trials: int = 0


def make_command(workload: BenchWorkload, sampler: SamplerName = "model") -> list[str]:
    """Return the command that tunes a workload as a user would."""
    options = ["--dataset", workload.dataset, "--batch-size", str(workload.batch_size)]
    options += ["--epochs", str(workload.epochs), "--trials", str(workload.trials)]
    options += ["--step", workload.step] if workload.step else ["--step-time", f"{workload.step_seconds * 1000:g}ms"]
    if workload.device is not None:
        options += ["--device", workload.device]
    if workload.trial_seconds is not None:
        options += ["--trial-time", f"{workload.trial_seconds * 1000:.0f}ms"]
    for key, value in workload.dataset_args.items():
        options += ["--arg", f"{key}={json.dumps(value)}"]
    options += [] if sampler == "model" else ["--sampler", sampler, "--timeout", SAMPLER_TIMEOUT]
    return [sys.executable, "-m", "autotune", *options, "--json"]


def tune_profile(workload: BenchWorkload, sampler: SamplerName = "model") -> tuple[TunedProfile, float]:
    """Run dltune in an empty folder; return its profile and the seconds that it took.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        command = make_command(workload, sampler)
        finished = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=folder, env=make_environment()
        )
        seconds = time.monotonic() - started
    return TunedProfile.model_validate_json(finished.stdout), seconds


def run_dltune(workload: BenchWorkload, sampler: SamplerName = "model") -> Choice:
    """Run dltune in an empty folder; raises subprocess.CalledProcessError if it fails."""
    profile, seconds = tune_profile(workload, sampler)
    return Choice(
        tuner="dltune" if sampler == "model" else sampler,
        config=profile.config,
        seconds=seconds,
        predicted=profile.result.samples_per_second,
        predicted_ci95=profile.result.samples_per_second_ci95,
        phase_seconds={str(phase): spent for phase, spent in profile.search.phase_seconds.items()},
        trials=len(profile.search.trials),
    )


def run_loadtune(workload: BenchWorkload) -> Choice:
    """Run loadtune (PyPI) with its own defaults; PyTorch's defaults if it proposes nothing better or fails."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "workload.py").write_text(LOADTUNE_FILE.format(name=workload.name))
        command = [sys.executable, "-m", "loadtune.cli", "tune", "workload.py", "--apply"]
        started = time.monotonic()
        subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=make_environment())
        seconds = time.monotonic() - started
        kwargs = _read_applied(Path(folder) / "loadtune_apply.py")
    config = as_config({"batch_size": workload.batch_size} | kwargs)
    if workload.device is not None:
        process = config.process.model_copy(update={"non_blocking": config.dataloader.pin_memory})
        config = config.model_copy(update={"process": process})
    return Choice(tuner="loadtune", config=config, seconds=seconds)


OTHER_TUNERS: Final[dict[str, Callable[[BenchWorkload], Choice]]] = {
    "loadtune": run_loadtune,
    **{sampler: partial(run_dltune, sampler=sampler) for sampler in get_args(SamplerName) if sampler != "model"},
}
"""Tuners to compare with. The samplers, which are Optuna's, run in dltune, with its trials, limits and validation."""


def _read_applied(path: Path) -> dict[str, Any]:
    """Call the function that loadtune wrote for training code; empty if it wrote none."""
    if not path.exists():
        return {}
    command = [sys.executable, "-c", "import json, loadtune_apply as a; print(json.dumps(a.get_dataloader_kwargs()))"]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, cwd=path.parent)
    kwargs: dict[str, Any] = json.loads(finished.stdout)
    return kwargs


def make_loadtune_workload(name: str) -> Any:
    """Return the `loadtune.Workload` of a workload; its network is in the step, and loadtune's own model is a stub."""
    workload = find_workload(name)

    @cache
    def prepare_step(device: torch.device) -> Step:
        return make_step(workload.step, workload.step_seconds, None if workload.device is None else device)

    def train_step(model: Any, optimizer: Any, batch: Any, device: torch.device) -> torch.Tensor:
        prepare_step(device)(batch)
        return torch.zeros(())

    return import_module("loadtune").Workload(
        name=name,
        make_dataset=lambda: resolve_name(workload.dataset)(**workload.dataset_args),
        make_model=lambda: torch.nn.Linear(1, 1),
        train_step=train_step,
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        default_batch_size=workload.batch_size,
    )
