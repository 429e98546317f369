"""The command that asks for a recorded run again."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli import tune
from autotune.command_line import describe_command, write_duration
from autotune.options import build_request
from autotune.request import TuningRequest, WorkloadRequest
from autotune.units import parse_seconds

HOSTILE = 'a\'b "c" $(rm -rf /) `d` --seed=1 \\ \n|'


ECHO = "cd() { printf '%s\\0' \"$@\"; }; dltune() { printf '%s\\0' \"$@\"; }; "  # so that the shell says what it read


def read_back(command: str) -> TuningRequest:
    """Read a command as the shell and the command line would."""
    read = subprocess.run(["sh", "-c", ECHO + command], capture_output=True, text=True, check=True).stdout
    folder, *words = read.removesuffix("\0").split("\0")
    request = build_request(tune.make_context("dltune", words).params)
    return request.model_copy(update={"workload": request.workload.model_copy(update={"working_dir": folder})})


def ask(workload: dict[str, Any] | None = None, **options: Any) -> TuningRequest:
    return TuningRequest(workload=WorkloadRequest(**{"dataset": "pkg.data:make", **(workload or {})}), **options)


@pytest.mark.parametrize(
    "request_",
    [
        ask(),
        ask(
            {
                "dataset_args": {"root": "/data", "size": 3, "deep": {"a": [1, None]}, "odd": "12", "empty": ""},
                "collate": "pkg:collate",
                "step_seconds": 0.0351,
                "device": "cuda:0",
            },
            batch_sizes=(32, 64),
            fixed={"in_order": True, "prefetch_factor": 4, "sharing_strategy": "file_system"},
            ranges={"num_workers": (0, 16)},
            trials=7,
            timeout_seconds=600,
            trial_seconds=2.5,
            stall_seconds=300,
            epochs=3,
            seed=5,
            sampler="random",
            max_memory="24GiB",
            max_shm="50%",
            max_gpu_memory="70%",
            max_workers=12,
            output="x.json",
            profile="mine",
            storage="sqlite:///x.db",
            study_name="s",
            resume=False,
        ),
        ask({"step": "pkg:step"}, resume=True),
        ask({"dataset_args": {"text": HOSTILE}, "working_dir": "/a b/it's"}, profile=HOSTILE, study_name="-x"),
    ],
    ids=["bare", "everything", "resumed", "hostile"],
)
def test_the_command_makes_the_same_request_when_it_is_typed(request_: TuningRequest) -> None:
    command = describe_command(request_.record())
    assert command is not None
    assert read_back(command) == request_


def test_only_what_differs_from_the_defaults_is_said() -> None:
    command = describe_command(ask({"step_seconds": 0.01, "working_dir": "/home/ada"}, trials=10).record())
    assert command == "cd /home/ada\ndltune \\\n  --dataset pkg.data:make \\\n  --step-time 10ms \\\n  --trials 10"


@pytest.mark.parametrize("recorded", [None, {}, {"workload": {"dataset": "x"}, "from_the_future": 1}])
def test_what_was_not_recorded_or_cannot_be_read_gives_no_command(recorded: dict[str, Any] | None) -> None:
    assert describe_command(recorded) is None


@given(st.floats(min_value=1e-9, max_value=1e9, exclude_min=True))
def test_a_duration_is_read_as_the_number_it_was(seconds: float) -> None:
    assert parse_seconds(write_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.035, "35ms"), (600, "10m"), (2.5, "2.5s"), (3, "3s"), (7200, "2h"), (90, "90s")]
)
def test_a_duration_is_written_in_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert write_duration(seconds) == text


def test_the_folder_is_the_one_that_the_run_was_started_in(tmp_path: Path) -> None:
    command = describe_command(ask({"working_dir": str(tmp_path)}).record())
    assert command is not None
    assert command.splitlines()[0] == f"cd {shlex.quote(str(tmp_path))}"
