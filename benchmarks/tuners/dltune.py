"""What does dltune choose when it is run as its users run it?"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import optuna

from autotune import TunedProfile
from autotune.search.study import get_record
from autotune.search.trial_record import TrialRecord
from benchmarks.records import TunerTrial, Tuning
from benchmarks.training.environment import make_environment
from benchmarks.workloads.workload import BenchWorkload


def make_command(workload: BenchWorkload) -> list[str]:
    """Make the command that tunes a workload as a user would."""
    options: dict[str, object] = {
        "--dataset": workload.dataset,
        "--batch-size": workload.batch_size,
        "--epochs": workload.epochs,
        "--trials": workload.trials,
        "--output": "dltune.json",
    }
    options |= {"--step": workload.step} if workload.step else {"--step-time": f"{workload.step_seconds * 1000:g}ms"}
    if workload.device is not None:
        options["--device"] = workload.device
    if workload.trial_seconds is not None:
        options["--trial-time"] = f"{workload.trial_seconds * 1000:.0f}ms"
    command = [sys.executable, "-m", "autotune.cli", "--no-resume"]
    command += [word for option, value in options.items() for word in (option, str(value))]
    for key, value in workload.dataset_args.items():
        command += ["--dataset-arg", f"{key}={json.dumps(value)}"]
    return command


def tune(workload: BenchWorkload) -> Tuning:
    """Run dltune in an empty folder; a CalledProcessError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        began, started = datetime.now(), time.monotonic()
        command = [*make_command(workload), "--json"]
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
        time_spent=profile.search.time_spent,
        note=f"{profile.search.trials} trials; {profile.search.stopped}; {profile.result.verdict}",
    )


def read_study(path: Path, began: datetime) -> list[TunerTrial]:
    """Read the trials of the only study in dltune's SQLite file, in order; it was started when the run began."""
    storage = f"sqlite:///{path}"
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    lines = []
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)):
        if (text := get_record(trial)) is not None and trial.datetime_complete is not None:
            record = TrialRecord.model_validate_json(text)
            lines.append(make_trial(record, (trial.datetime_complete - began).total_seconds()))
    return lines


def make_trial(record: TrialRecord, finished_seconds: float) -> TunerTrial:
    """Write down a trial that was recorded so many seconds after the start."""
    result = record.result
    traces = result.measurement.epochs if result is not None and result.measurement is not None else ()
    return TunerTrial(
        config=record.config,
        status=record.status,
        completed=record.is_feasible,
        score=record.score,
        finished_seconds=finished_seconds,
        trial_seconds=result.seconds if result is not None else 0.0,
        timed_seconds=sum(trace.end_seconds for trace in traces),
    )
