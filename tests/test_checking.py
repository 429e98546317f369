from __future__ import annotations

import io
import platform
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from autotune import checking
from autotune.checking import CheckResult, check, compare_profile, read_software
from autotune.cli.check import describe_check
from autotune.cli.display import ConfirmationDisplay
from autotune.config import LoaderConfig
from autotune.errors import UsageError
from autotune.profiles.store import read_file
from autotune.profiles.schema import TunedProfile
from autotune.profiles.match import describe_local_hardware
from autotune.progress import ProgressListener
from autotune.search.plan import make_plan
from autotune.system.machine import read_machine
from autotune.system.versions import read_start_method, read_torch
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import TrialRequest
from autotune.validation.remeasurement import Remeasurement, compare_with_prediction
from autotune.validation.rounds import MIN_ENTRANTS, ROUNDS, confirm
from tests.builders import (
    make_config,
    make_limits,
    make_machine,
    make_profile,
    make_profile_result,
    make_request,
    make_result,
    make_software,
    make_workload,
    write_profiles,
)

PROFILE = make_profile(dataloader=make_config(8, 2).dataloader)
PREDICTED = PROFILE.result.samples_per_second


def make_remeasured(share: float, speedup: float | None = 3.0, width: float = 0.05) -> Remeasurement:
    """Build what was measured again: the share of the prediction that is kept, intervals of a relative half-width."""
    return Remeasurement(
        samples_per_second=share * PREDICTED,
        predicted=PREDICTED,
        speedup=speedup,
        speedup_ci95=(speedup * (1 - width), speedup * (1 + width)) if speedup is not None else None,
        ratio_to_prediction=share,
        ratio_to_prediction_ci95=(share * (1 - width), share * (1 + width)) if share else None,
    )


def test_a_profile_fits_the_machine_it_was_tuned_on() -> None:
    found = compare_profile(PROFILE, PROFILE.hardware, software=PROFILE.software, workload=PROFILE.workload)
    assert found.fits
    assert (found.reasons, found.advice) == ((), ())


def test_everything_that_decides_is_a_reason_and_the_rest_is_advice() -> None:
    found = compare_profile(
        PROFILE,
        PROFILE.hardware.model_copy(update={"usable_cpus": 64.0}),
        software=make_software().model_copy(update={"torch": "3.0"}),
        workload=PROFILE.workload.model_copy(update={"sample_bytes": 10 * PROFILE.workload.sample_bytes}),
        max_age_seconds=86400.0,
        now=PROFILE.created_at + timedelta(days=9),
    )
    assert not found.fits
    assert [reason.split()[0] for reason in found.reasons] == ["CPUs", "bytes", "age"]
    assert found.advice == ("torch 3.0 instead of 2.13.0",)


@pytest.mark.parametrize(
    ("remeasured", "words"),
    [
        (make_remeasured(0.7), r"it keeps 0.70 [0.66-0.73] of its predicted throughput"),
        (make_remeasured(1.0, speedup=0.8), "slower than the baseline"),
        (make_remeasured(0.0, speedup=None), "does not run"),
    ],
)
def test_a_profile_that_does_not_hold_when_measured_again_is_retuned(remeasured: Remeasurement, words: str) -> None:
    (reason,) = compare_profile(PROFILE, PROFILE.hardware, remeasured=remeasured).reasons
    assert words in reason


@pytest.mark.parametrize(
    "remeasured",
    [make_remeasured(0.95), make_remeasured(0.88), make_remeasured(1.0, speedup=0.88), make_remeasured(0.7, width=0.4)],
)
def test_a_profile_that_may_hold_within_the_noise_stays(remeasured: Remeasurement) -> None:
    assert compare_profile(PROFILE, PROFILE.hardware, remeasured=remeasured).fits


def remeasure_at(profile: TunedProfile, rate: float, baseline_rate: float) -> Remeasurement:
    """Measure a profile and its baseline again, at these throughputs."""
    plan = make_plan(make_request(), make_machine(), make_workload(), make_limits())

    def run_trial(request: TrialRequest) -> TrialResult:
        return make_result(request.config, baseline_rate if request.config == plan.baseline else rate)

    return compare_with_prediction(confirm(plan, [profile.config], run_trial, ProgressListener()), profile)


@pytest.mark.parametrize(
    ("rate", "baseline_rate", "fits"),
    [
        (1800.0, 1000.0, True),  # as it was predicted
        (900.0, 500.0, True),  # the machine is half as fast today, and the profile worth what it was
        (3600.0, 2000.0, True),
        (1100.0, 1000.0, False),  # the machine is as it was, and the profile worth less
        (1800.0, 2000.0, False),  # a prediction that is kept by a faster machine alone
    ],
)
def test_a_prediction_is_held_against_what_the_baseline_itself_changed(
    rate: float, baseline_rate: float, fits: bool
) -> None:
    found = remeasure_at(PROFILE, rate, baseline_rate)
    assert found.machine_change == pytest.approx(baseline_rate / 1000, rel=0.01)
    assert compare_profile(PROFILE, PROFILE.hardware, remeasured=found).fits is fits


def test_settings_that_were_kept_do_not_become_stale_by_a_slower_machine() -> None:
    result = make_profile_result(
        verdict="no_change", samples_per_second=1000.0, samples_per_second_ci95=(980.0, 1020.0)
    )
    kept = make_profile(dataloader=make_config().dataloader, result=result)
    found = remeasure_at(kept, 500.0, 500.0)
    assert found.speedup is None
    assert found.ratio_to_prediction == pytest.approx(1.0, rel=0.01)
    assert compare_profile(kept, kept.hardware, remeasured=found).fits


def test_where_the_baseline_is_another_one_the_plain_prediction_counts() -> None:
    base = PROFILE.result.baseline
    assert base is not None
    other = base.model_copy(update={"config": make_config(3)})
    result = PROFILE.result.model_copy(update={"baseline": other})
    found = remeasure_at(PROFILE.model_copy(update={"result": result}), 900.0, 500.0)
    assert found.machine_change is None
    assert found.ratio_to_prediction == pytest.approx(0.5, rel=0.01)


def test_a_profile_is_measured_again_in_turn_with_its_baseline() -> None:
    asked: list[LoaderConfig] = []

    def run_trial(request: TrialRequest) -> TrialResult:
        asked.append(request.config)
        return make_result(request.config, 400.0 if request.config.dataloader.num_workers else 100.0)

    plan = make_plan(make_request(), make_machine(), make_workload(), make_limits())
    found = compare_with_prediction(confirm(plan, [PROFILE.config], run_trial, ProgressListener()), PROFILE)
    assert found.samples_per_second == pytest.approx(400, rel=0.01)
    assert found.speedup == pytest.approx(4, rel=0.02)
    assert len(set(asked[:2])) == 2


def test_a_quick_check_writes_a_line_for_each_measurement_and_nothing_else() -> None:
    stream = io.StringIO()
    plan = make_plan(make_request(), make_machine(), make_workload(), make_limits())
    view = ConfirmationDisplay(Console(file=stream, width=200))
    view.show_machine(plan.machine, plan.budgets)
    view.show_plan(plan)
    confirm(plan, [PROFILE.config], lambda request: make_result(request.config, 100.0), view)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= ROUNDS * MIN_ENTRANTS
    assert [line for line in lines if not line.startswith("confirm ")] == []


def test_what_disturbed_a_measurement_is_said_below_it() -> None:
    noisy = make_remeasured(0.7).model_copy(update={"noise": ("Other processes kept 1.2 CPUs busy.",)})
    found = compare_profile(PROFILE, PROFILE.hardware, remeasured=noisy)
    assert describe_check(found, "dltune.json").endswith("  note: Other processes kept 1.2 CPUs busy.")


def test_versions_and_the_start_method_are_those_at_hand_whatever_the_profile_says() -> None:
    elsewhere = make_software().model_copy(
        update={"torch": "1.0", "cuda": "9.9", "python": "3.0", "start_method": "spawn"}
    )
    found = read_software(make_profile(software=elsewhere))
    torch = read_torch()
    assert torch is not None
    assert (found.torch, found.cuda) == (torch.version, torch.cuda)
    assert (found.python, found.start_method) == (platform.python_version(), read_start_method())


def test_another_start_method_than_at_hand_is_a_reason_to_retune() -> None:
    other = "spawn" if read_start_method() != "spawn" else "fork"
    profile = make_profile(software=make_software().model_copy(update={"start_method": other}))
    found = compare_profile(profile, profile.hardware, software=read_software(profile))
    assert found.reasons == (f"start method {read_start_method()} instead of {other}",)


def make_here() -> TunedProfile:
    """Build the profile of a machine like this one, with a request to measure it by."""
    hardware = describe_local_hardware(read_machine(), make_profile())
    return make_profile(hardware=hardware, request=make_request().record())


@pytest.fixture
def measured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a quick check find nine tenths of what was predicted, and what else differs, without a measurement."""
    differs = getattr(request, "param", ())
    found = CheckResult(profile="any", fits=not differs, reasons=differs, remeasured=make_remeasured(0.9))
    monkeypatch.setattr(checking, "_measure_again", lambda *arguments: found)


@pytest.mark.usefixtures("measured")
def test_what_an_equal_machine_reaches_is_added_to_the_profile_where_that_is_asked_for(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_here())
    check(path, quick=True)
    assert read_file(path).profiles[0].nodes is None
    check(path, quick=True, record=True)
    (profile,) = read_file(path).profiles
    assert profile.nodes is not None
    (reading,) = profile.nodes.readings
    assert reading.node == platform.node()
    assert reading.samples_per_second == pytest.approx(0.9 * PREDICTED)
    assert profile.history == ()
    assert profile.result == make_here().result


@pytest.mark.parametrize("measured", [("CPUs 2 instead of 4",)], indirect=True)
@pytest.mark.usefixtures("measured")
def test_what_another_machine_reaches_is_no_news_of_equal_ones(tmp_path: Path) -> None:
    path = write_profiles(tmp_path, make_here())
    assert not check(path, quick=True, record=True).is_recorded
    assert read_file(path).profiles[0].nodes is None


def test_nothing_can_be_recorded_that_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give --quick as well"):
        check(write_profiles(tmp_path, make_here()), record=True)
