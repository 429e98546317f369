"""Who chooses in the GPU benchmark: dltune and loadtune as their users run them, PyTorch's defaults, and a hand."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from autotune.child.import_string import import_attribute
from autotune.config import LoaderConfig
from autotune.request import TuningRequest, WorkloadRequest
from benchmarks.gpu_workloads import GpuWorkload, choose_by_hand, choose_defaults, find_workload, shorten
from benchmarks.peers import ROOT, run_dltune, run_loadtune_on
from benchmarks.records import Prediction, Tuning
from benchmarks.trial import predict_run

TRIAL_SECONDS: Final = 1.5
QUICK_TRIAL_SECONDS: Final = 0.3
TRIALS: Final = 12
QUICK_TRIALS: Final = 1
QUICK_LOADTUNE: Final = ("--steps", "4", "--warmup", "1", "--max-trials", "1")
NOT_INSTALLED: Final = "loadtune: not installed"
LOADTUNE_FILE: Final = """\
from benchmarks.gpu_tuners import make_loadtune_workload


def get_workload():
    return make_loadtune_workload({name!r}, {quick!r})
"""


def make_command(workload: GpuWorkload, device: str, *, quick: bool) -> list[str]:
    """Make the command that tunes a workload as a user would.

    Args:
        workload: What to tune.
        device: Where its step runs.
        quick: Whether to rehearse only.

    Returns:
        The command; it prints the profile as JSON.
    """
    trials, seconds = (QUICK_TRIALS, QUICK_TRIAL_SECONDS) if quick else (TRIALS, TRIAL_SECONDS)
    options = {
        "--dataset": workload.dataset,
        "--step": workload.step,
        "--device": device,
        "--batch-size": workload.batch_size,
        "--epochs": workload.epochs,
        "--trials": trials,
        "--trial-time": f"{seconds * 1000:.0f}ms",
        "--output": "dltune.json",
    }
    command = [sys.executable, "-m", "autotune.cli", "--json", "--no-resume"]
    command += [word for option, value in options.items() for word in (option, str(value))]
    for key, value in workload.dataset_args.items():
        command += ["--dataset-arg", f"{key}={json.dumps(value)}"]
    return command


def tune(workload: GpuWorkload, device: str, *, quick: bool) -> Tuning:
    """Run dltune.

    Args:
        workload: What to tune.
        device: Where its step runs.
        quick: Whether to rehearse only.

    Returns:
        Its choice, its promise and its trials.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    return run_dltune(make_command(workload, device, quick=quick))


def list_untuned(workload: GpuWorkload, cpus: int) -> list[Tuning]:
    """List what is set without measuring, which takes no time."""
    return [
        Tuning(tuner="defaults", config=choose_defaults(workload), seconds=0.0),
        Tuning(tuner="hand", config=choose_by_hand(workload, cpus), seconds=0.0),
    ]


def is_loadtune_installed() -> bool:
    """Tell whether loadtune can be run here."""
    return find_spec("loadtune") is not None


def run_loadtune(workload: GpuWorkload, *, quick: bool) -> Tuning:
    """Run loadtune with its own defaults; it takes the accelerator by itself where there is one.

    Args:
        workload: What to tune.
        quick: Whether the workload is one of a rehearsal.

    Returns:
        Its choice: torch's defaults where it proposes nothing better or fails, and the note then says why.
    """
    options = QUICK_LOADTUNE if quick else ()
    found = run_loadtune_on(LOADTUNE_FILE.format(name=workload.name, quick=quick), workload.batch_size, *options)
    return found.model_copy(update={"config": mark_copies(found.config)})


def mark_copies(config: LoaderConfig) -> LoaderConfig:
    """Say of a configuration of DataLoader's arguments that its step copies without waiting where they pin."""
    process = config.process.model_copy(update={"non_blocking": config.dataloader.pin_memory})
    return config.model_copy(update={"process": process})


def make_loadtune_workload(name: str, quick: bool) -> Any:
    """Make what loadtune wants to be given; the network lives in the step, and its own model is a stand-in.

    Args:
        name: Name of the workload.
        quick: Whether to make the one of a rehearsal.

    Returns:
        A `loadtune.Workload`.
    """
    import torch

    workload = shorten(find_workload(name)) if quick else find_workload(name)
    make_step = import_attribute(workload.step)
    steps: list[Any] = []

    def train_step(model: Any, optimizer: Any, batch: Any, device: torch.device) -> torch.Tensor:
        if not steps:
            steps.append(make_step(device))
        steps[0](batch)
        return torch.zeros(())

    return import_module("loadtune").Workload(
        name=name,
        make_dataset=lambda: import_attribute(workload.dataset)(**workload.dataset_args),
        make_model=lambda: torch.nn.Linear(1, 1),
        train_step=train_step,
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        default_batch_size=workload.batch_size,
    )


def predict(workload: GpuWorkload, device: str, config: LoaderConfig, epochs: int, *, quick: bool) -> Prediction:
    """Predict a whole run by one trial in a fresh process, as dltune's confirmation makes it.

    Args:
        workload: What is trained on.
        device: Where the step runs.
        config: The configuration.
        epochs: Length of the run in epochs.
        quick: Whether to rehearse only.

    Returns:
        The prediction; one that failed says why.
    """
    request = TuningRequest(
        workload=WorkloadRequest(
            dataset=workload.dataset,
            dataset_args=workload.dataset_args,
            step=workload.step,
            device=device,
            working_dir=ROOT,
        ),
        batch_sizes=(workload.batch_size,),
        epochs=workload.epochs,
        trial_seconds=QUICK_TRIAL_SECONDS if quick else TRIAL_SECONDS,
    )
    return predict_run(request, config, epochs)
