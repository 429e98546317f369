from __future__ import annotations

import io
import platform
from datetime import timedelta

import pytest
from rich.console import Console

from autotune.checking import Remeasured, check_profile, read_software, remeasure
from autotune.confirming import Confirmation
from autotune.display import RoundsDisplay
from autotune.messages import TrialRequest, TrialResult
from autotune.planning import make_plan
from autotune.rechecking import describe_fitness
from autotune.schema import LoaderConfig
from autotune.software import read_start_method, read_torch
from autotune.view import View
from tests.builders import (
    make_config,
    make_limits,
    make_machine,
    make_profile,
    make_request,
    make_result,
    make_software,
    make_workload,
)

PROFILE = make_profile(dataloader=make_config(8, 2).dataloader)
PROMISED = PROFILE.result.samples_per_second


def make_remeasured(share: float, speedup: float | None = 3.0) -> Remeasured:
    return Remeasured(samples_per_second=share * PROMISED, promised=PROMISED, speedup=speedup, speedup_ci95=None)


def test_a_profile_fits_the_machine_it_was_tuned_on() -> None:
    found = check_profile(PROFILE, PROFILE.hardware, software=PROFILE.software, workload=PROFILE.workload)
    assert found.fits
    assert (found.reasons, found.advice) == ((), ())


def test_everything_that_decides_is_a_reason_and_the_rest_is_advice() -> None:
    found = check_profile(
        PROFILE,
        PROFILE.hardware.model_copy(update={"usable_cpus": 64.0}),
        software=make_software().model_copy(update={"torch": "3.0"}),
        workload=PROFILE.workload.model_copy(update={"sample_bytes": 10 * PROFILE.workload.sample_bytes}),
        most_age_seconds=86400.0,
        now=PROFILE.created_at + timedelta(days=9),
    )
    assert not found.fits
    assert [reason.split()[0] for reason in found.reasons] == ["CPUs", "bytes", "age"]
    assert found.advice == ("torch 3.0 instead of 2.13.0",)


@pytest.mark.parametrize(
    ("remeasured", "words"),
    [
        (make_remeasured(0.7), "70% of the"),
        (make_remeasured(1.0, speedup=0.8), "slower than the baseline"),
        (make_remeasured(0.0, speedup=None), "does not run"),
    ],
)
def test_a_profile_that_does_not_hold_when_measured_again_is_tuned_anew(remeasured: Remeasured, words: str) -> None:
    (reason,) = check_profile(PROFILE, PROFILE.hardware, remeasured=remeasured).reasons
    assert words in reason


def test_a_profile_that_holds_stays() -> None:
    assert check_profile(PROFILE, PROFILE.hardware, remeasured=make_remeasured(0.95)).fits


def test_a_profile_is_measured_again_in_turn_with_its_baseline() -> None:
    asked: list[LoaderConfig] = []

    def run_trial(request: TrialRequest) -> TrialResult:
        asked.append(request.config)
        return make_result(request.config, 400.0 if request.config.dataloader.num_workers else 100.0)

    plan = make_plan(make_request(), make_machine(), make_workload(), make_limits())
    found = remeasure(Confirmation(plan, run_trial, View()), PROFILE)
    assert found.samples_per_second == pytest.approx(400, rel=0.01)
    assert found.speedup == pytest.approx(4, rel=0.02)
    assert len(set(asked[:2])) == 2


def test_a_quick_check_writes_a_line_for_each_measurement_and_nothing_else() -> None:
    stream = io.StringIO()
    plan = make_plan(make_request(), make_machine(), make_workload(), make_limits())
    view = RoundsDisplay(Console(file=stream, width=200))
    view.show_machine(plan.machine, plan.limits)
    view.show_plan(plan)
    remeasure(Confirmation(plan, lambda request: make_result(request.config, 100.0), view), PROFILE)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 6
    assert [line for line in lines if not line.startswith("confirm ")] == []


def test_what_disturbed_a_measurement_is_said_below_it() -> None:
    noisy = make_remeasured(0.7).model_copy(update={"noise": ("Other processes kept 1.2 CPUs busy.",)})
    found = check_profile(PROFILE, PROFILE.hardware, remeasured=noisy)
    assert describe_fitness(found, "dltune.json").endswith("  note: Other processes kept 1.2 CPUs busy.")


def test_versions_and_the_start_method_are_those_at_hand_whatever_the_profile_says() -> None:
    elsewhere = make_software().model_copy(
        update={"torch": "1.0", "cuda": "9.9", "python": "3.0", "start_method": "spawn"}
    )
    found = read_software(make_profile(software=elsewhere))
    torch = read_torch()
    assert torch is not None
    assert (found.torch, found.cuda) == (torch.version, torch.cuda)
    assert (found.python, found.start_method) == (platform.python_version(), read_start_method())


def test_another_start_method_than_at_hand_is_a_reason_to_tune_anew() -> None:
    other = "spawn" if read_start_method() != "spawn" else "fork"
    profile = make_profile(software=make_software().model_copy(update={"start_method": other}))
    found = check_profile(profile, profile.hardware, software=read_software(profile))
    assert found.reasons == (f"start method {read_start_method()} instead of {other}",)
