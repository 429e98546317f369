"""Writes what users see: the help of every command, one run, and what commands print about a tuned file.

`python -m tests.cli.transcript` replaces transcript.txt; review the changes.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner
from rich.console import Console

from autotune.checking import CheckResult
from autotune.cli.console import RunDisplay
from autotune.cli.main import cli
from autotune.cli.tune import describe_check
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.report.render import render_summary
from autotune.request import TuningRequest, WorkloadRequest
from autotune.tuning import tune
from tests.builders import make_full_profile, make_machine, make_measurement_of, write_profiles
from tests.search.formulas import io_bound_workload, saturating

WIDTH = 100
EXPECTED = Path(__file__).with_name("transcript.txt")


def write_transcript() -> str:
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return "\n".join((*_show_help(), *_tune(), *_show_files(), *_check()))


def _call(*arguments: str) -> str:
    runner = CliRunner(env={name: None for name in os.environ if name.startswith("DLTUNE_")})
    shown = runner.invoke(cli, arguments, prog_name="dltune", terminal_width=WIDTH)
    return f"$ dltune {' '.join(arguments)}\n{shown.output}"


def _show_help() -> Iterator[str]:
    for command in cli.commands.values():
        command._help_option = None  # click keeps that of the first context, which another test may have made
    yield _call("--help")
    yield from (_call(name, "--help") for name in sorted(cli.commands))


def _tune() -> Iterator[str]:
    """Tune I/O-bound samples on two CPUs by a formula; trials with 16 workers or more die."""
    request = TuningRequest(
        workload=WorkloadRequest(dataset="pkg:make", step_seconds=0.01),
        fixed={"batch_size": 32, "sharing_strategy": "file_descriptor"},
        search={"in_order": (True,)},
    )
    stream = io.StringIO()
    with RunDisplay(console=Console(file=stream, width=4 * WIDTH, highlight=False, soft_wrap=True)) as display:
        found = tune(
            request,
            run_trial=_run_trial,
            machine=make_machine(affinity_cpus=2),
            workload=io_bound_workload(),
            progress=display,
        )
        display.show_result(found.profile)
    shown = f"{stream.getvalue()}{render_summary(found.profile, request.output, width=WIDTH)}\n"
    yield f"$ dltune --dataset pkg:make --batch-size 32 --step-time 10ms\n{_mask(shown)}"


def _mask(text: str) -> str:
    """Replace what differs between runs."""
    return re.sub(r"\d{4}-\d\d-\d\d", "DATE", re.sub(r"(in|\.\.\.) \d+(?:\.\d+)? [mu]?s", r"\1 5.5 s", text))


def _run_trial(request: TrialRequest) -> TrialResult:
    workers = request.config.dataloader.num_workers
    if workers >= 16:
        return TrialResult(status="crashed", config=request.config, message="died of signal 9 (SIGKILL)")
    rate = saturating(request.config)
    measurement = make_measurement_of(rate, wait_share=max(0.0, 1 - rate / 3200))
    return TrialResult(
        status="completed", config=request.config, measurement=measurement, peak_host_bytes=(1 + workers) * 100 * 2**20
    )


def _show_files() -> Iterator[str]:
    write_profiles(Path(), make_full_profile())
    calls = ("show", "show nothing.json", "export --to yaml", "export --to timm", "train.py", "--trials 3")
    yield from (_call(*call.split()) for call in calls)


def _check() -> Iterator[str]:
    yield f"$ dltune check\n{describe_check(CheckResult(profile='cpu-4c-16g/2f8a', is_valid=True), 'dltune.json')}\n"


if __name__ == "__main__":
    EXPECTED.write_text(write_transcript())
