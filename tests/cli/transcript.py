"""Writes down what users are shown: the help of every command, one run, and what commands say of a tuned file.

`python -m tests.cli.transcript` replaces what is held in transcript.txt; look at what changed.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

from autotune.report.outcome import describe_outcome
from autotune.validation.remeasurement import Remeasurement
from click.testing import CliRunner
from rich.console import Console

from autotune.checking import CheckResult
from autotune.cli.check import describe_check
from autotune.cli.display import PlainDisplay
from autotune.cli.main import cli
from autotune.config import LoaderConfig
from autotune.profiles.store import save_profile
from autotune.request import TuningRequest, WorkloadRequest
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import TrialRequest
from autotune.tuning import tune
from tests.builders import make_config, make_cost, make_full_profile, make_machine, make_profile, make_result
from tests.builders import make_workload as make_usual_workload

WIDTH = 100
HELD = Path(__file__).with_name("transcript.txt")


def write_transcript() -> str:
    """Write it in a folder of its own, where no pyproject.toml adds options."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return "\n".join((*_call_for_help(), *_tune(), *_ask_of_files(), *_check()))


def _call(*arguments: str) -> str:
    shown = CliRunner(env={name: None for name in os.environ if name.startswith("DLTUNE_")}).invoke(
        cli, arguments, prog_name="dltune", terminal_width=WIDTH
    )
    return f"$ dltune {' '.join(arguments)}\n{shown.output}"


def _call_for_help() -> Iterator[str]:
    for command in cli.commands.values():
        command._help_option = None  # click keeps the one of its first context, which another test may have made
    yield _call("--help")
    yield from (_call(name, "--help") for name in sorted(cli.commands))


def _tune() -> Iterator[str]:
    """Tune samples that wait, for two CPUs, by a formula; the trials with 16 workers die."""
    workload = WorkloadRequest(dataset="pkg:make")
    request = TuningRequest(workload=workload, batch_sizes=(32,), trials=5, profile="mine")
    stream = io.StringIO()
    console = Console(file=stream, width=4 * WIDTH, highlight=False, soft_wrap=True)
    outcome = tune(
        request,
        run_trial=_run_trial,
        machine=make_machine(affinity_cpus=2),
        workload=make_usual_workload(
            load_cost=make_cost(0.01), cpu_share=0.05, step_cost=make_cost(0.0, 0.01), sample_bytes=1000
        ),
        progress=PlainDisplay(request, verbose=True, console=console),
    )
    yield f"$ dltune --dataset pkg:make\n{stream.getvalue()}"
    yield describe_outcome(outcome.profile, "map", outcome.runner_up, request.output, interrupted=False) + "\n"


def _run_trial(request: TrialRequest) -> TrialResult:
    if request.config.dataloader.num_workers == 16:
        return TrialResult(kind="crashed", config=request.config, message="died of signal 9 (SIGKILL)")
    return make_result(request.config, _measure(request.config))


def _measure(config: LoaderConfig) -> float:
    """Grow with the workers up to 12, and by a third with persistent ones."""
    loader = config.dataloader
    return 100.0 * min(12, max(1, loader.num_workers)) * (1.33 if loader.persistent_workers else 1.0)


def _ask_of_files() -> Iterator[str]:
    save_profile(Path("a.json"), make_full_profile())
    save_profile(Path("b.json"), make_profile(dataloader=make_config(8, 2).dataloader))
    calls = (
        "show a.json",
        "show c.json",
        "compare a.json b.json",
        "export a.json --to yaml",
        "export a.json --to timm",
    )
    yield from (_call(*call.split()) for call in calls)


def _check() -> Iterator[str]:
    yield "$ dltune check"
    yield describe_check(CheckResult(profile="mine", fits=True), "dltune.json") + "\n"
    found = Remeasurement(
        samples_per_second=900.0,
        predicted=1800.0,
        speedup=3.0,
        speedup_ci95=(2.9, 3.1),
        kept=0.5,
        ratio_to_prediction_ci95=(0.4, 0.6),
        machine_change=1.1,
        noise=("Other processes kept 1.2 CPUs busy.",),
    )
    reasons, advice = ("age 40 days",), ("torch 3.0 instead of 2.13.0",)
    stale = CheckResult(profile="mine", fits=False, reasons=reasons, advice=advice, remeasured=found)
    yield f"$ dltune check --quick\n{describe_check(stale, 'dltune.json')}\n"


if __name__ == "__main__":
    HELD.write_text(write_transcript())
