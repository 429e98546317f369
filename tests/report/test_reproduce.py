"""The command that asks for a recorded run again."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.params import build_request
from autotune.cli.tune import tune
from autotune.report.reproduce import describe_command, write_duration
from autotune.request import TuningRequest, WorkloadRequest, lacks_password
from autotune.units import parse_seconds

HOSTILE = 'a\'b "c" $(rm -rf /) `d` --seed=1 \\ \n|'


ECHO = "dltune() { printf '%s\\0' \"$@\"; }; "  # so that the shell says what it read


def read_back(command: str) -> TuningRequest:
    """Read a command as the shell and the command line would."""
    read = subprocess.run(["sh", "-c", ECHO + command], capture_output=True, text=True, check=True).stdout
    return build_request(tune.make_context("dltune", read.removesuffix("\0").split("\0")).params)


def ask(workload: dict[str, Any] | None = None, **options: Any) -> TuningRequest:
    return TuningRequest(workload=WorkloadRequest(**{"dataset": "pkg.data:make", **(workload or {})}), **options)


@pytest.mark.parametrize(
    "request_",
    [
        ask(),
        ask({"dataset": "pkg.data:make_loader", "is_loader": True}),
        ask({"dataset": "pkg.data:make_loaders", "split": "train set"}),
        ask(
            {
                "knobs": {"threads": (0, 1), "decoder": ("pil", "cv2"), "word": ("12", "a,b"), "x": (True, 0.5, "[")},
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
        ask({"dataset_args": {"text": HOSTILE}}, profile=HOSTILE, study_name="-x"),
    ],
    ids=["bare", "loader", "split", "everything", "resumed", "hostile"],
)
def test_the_command_makes_the_same_request_when_it_is_typed(request_: TuningRequest) -> None:
    command = describe_command(request_.record())
    assert command is not None
    assert read_back(command) == request_


def test_only_what_differs_from_the_defaults_is_said() -> None:
    command = describe_command(ask({"step_seconds": 0.01}, trials=10).record())
    assert command == "dltune \\\n  --dataset pkg.data:make \\\n  --step-time 10ms \\\n  --trials 10"


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


def test_the_folder_of_this_machine_is_not_written_down(tmp_path: Path) -> None:
    request = ask({"working_dir": str(tmp_path)})
    assert request.record()["workload"]["working_dir"] == "."
    assert ask({"working_dir": "src"}).record()["workload"]["working_dir"] == "src"
    assert str(tmp_path) not in str(describe_command(request.record()))


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:sec/ret@host/db", "postgresql://me:***@host/db"),
        ("mysql://host/db?user=me&password=secret&x=1", "mysql://host/db?user=me&password=***&x=1"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:////data/studies.db", "sqlite:////data/studies.db"),
    ],
)
def test_a_password_in_a_storage_url_is_written_down_as_stars_and_asked_for_again(url: str, written: str) -> None:
    assert ask(storage=url).record()["storage"] == written
    assert lacks_password(written) == (url != written)
