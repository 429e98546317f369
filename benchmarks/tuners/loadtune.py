"""What does loadtune choose when it is run as its users run it?"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import torch

from autotune.config import LoaderConfig
from benchmarks.records import Tuning
from benchmarks.training.environment import make_environment
from benchmarks.training.process import Step, make_step
from benchmarks.workloads.catalogue import find_workload
from benchmarks.workloads.grid import as_config
from benchmarks.workloads.workload import BenchWorkload

NOT_INSTALLED: Final = "loadtune: not installed"
REHEARSAL_OPTIONS: Final = ("--steps", "4", "--warmup", "1", "--max-trials", "1")
WORKLOAD_FILE: Final = """\
from benchmarks.tuners.loadtune import make_loadtune_workload


def get_workload():
    return make_loadtune_workload({name!r}, {quick!r})
"""


def is_loadtune_installed() -> bool:
    """Tell whether loadtune can be run here."""
    return find_spec("loadtune") is not None


def run_loadtune(workload: BenchWorkload, *, quick: bool) -> Tuning:
    """Run loadtune with its own defaults, and apply what it says.

    It takes the accelerator by itself where there is one. Where it proposes nothing better or fails, its choice is
    torch's defaults, and the note says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "workload.py").write_text(WORKLOAD_FILE.format(name=workload.name, quick=quick))
        command = [sys.executable, "-m", "loadtune.cli", "tune", "workload.py", "--apply"]
        command += REHEARSAL_OPTIONS if quick else ()
        started = time.monotonic()
        finished = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=folder, env=make_environment()
        )
        seconds = time.monotonic() - started
        kwargs = _read_applied(Path(folder) / "loadtune_apply.py")
    config = as_config({"batch_size": workload.batch_size} | kwargs)
    return Tuning(
        tuner="loadtune",
        config=config if workload.device is None else mark_copies(config),
        seconds=seconds,
        note=_summarize_output(finished),
    )


def mark_copies(config: LoaderConfig) -> LoaderConfig:
    """Say of a configuration of DataLoader's arguments that its step copies without waiting where they pin."""
    process = config.process.model_copy(update={"non_blocking": config.dataloader.pin_memory})
    return config.model_copy(update={"process": process})


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


def make_loadtune_workload(name: str, quick: bool) -> Any:
    """Make the `loadtune.Workload` it wants to be given; the network lives in the step, its own model is a stand-in."""
    workload = find_workload(name).shorten() if quick else find_workload(name)

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
