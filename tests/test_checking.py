"""A profile is valid while machine, workload and throughput are as predicted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autotune.checking import Remeasurement, check, remeasure
from autotune.config import LoaderConfig
from autotune.errors import UsageError
from autotune.preparation import find_stored
from autotune.profiles.schema import TunedProfile
from autotune.progress import ProgressListener
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.request import TuningRequest, WorkloadRequest
from autotune.search.plan import Plan, make_plan
from autotune.system.machine import describe_local_hardware, read_machine
from autotune.system.software import read_software
from tests.builders import (
    make_config,
    make_limits,
    make_machine,
    make_profile,
    make_profile_result,
    make_request,
    make_result,
    make_workload,
    write_files,
    write_profiles,
)

PROFILE = make_profile(dataloader=make_config(8, 2).dataloader)  # 1,800/s, and 1,000/s of the baseline
UNCHANGED = make_profile(
    dataloader=make_config().dataloader,
    result=make_profile_result(
        decision="no_change",
        samples_per_second=1000.0,
        samples_per_second_ci95=(980.0, 1020.0),
        speedup=1.0,
        speedup_ci95=(1.0, 1.0),
    ),
)


def plan() -> Plan:
    return make_plan(make_request(), make_machine(), make_workload(), make_limits())


class Bench:
    """Runs trials by a formula: the throughput of each configuration; None fails."""

    def __init__(self, measure: Callable[[LoaderConfig, int], float | None]) -> None:
        self._measure = measure
        self.asked: list[LoaderConfig] = []

    def __call__(self, request: TrialRequest) -> TrialResult:
        self.asked.append(request.config)
        rate = self._measure(request.config, self.asked.count(request.config))
        return make_result(request.config, rate, "completed" if rate else "crashed", message="" if rate else "died")


def remeasure_at(profile: TunedProfile, rate: float, baseline_rate: float = 1000.0) -> Remeasurement:
    """Measure a profile and its baseline at these throughputs."""
    bench = Bench(lambda config, _: rate if config == profile.config else baseline_rate)
    return remeasure(plan(), profile, bench, ProgressListener())


@pytest.mark.parametrize(
    ("profile", "rate", "baseline_rate", "reason"),
    [
        pytest.param(PROFILE, 1800.0, 1000.0, "", id="as predicted"),
        pytest.param(PROFILE, 1700.0, 1000.0, "", id="within the noise"),
        pytest.param(PROFILE, 900.0, 500.0, "", id="the machine is half as fast"),
        pytest.param(PROFILE, 252.0, 140.0, "its baseline reaches 14% of its throughput", id="slower samples"),
        pytest.param(PROFILE, 9000.0, 5000.0, "its baseline reaches 500% of its throughput", id="faster samples"),
        pytest.param(PROFILE, 1800.0, 2500.0, "", id="one run as predicted is sufficient"),
        pytest.param(PROFILE, 1100.0, 1000.0, "it reaches 61% (", id="the speedup is gone"),
        pytest.param(PROFILE, 1500.0, 2000.0, "it is slower than the baseline: 0.75x (", id="slower"),
        pytest.param(PROFILE, 4000.0, 1000.0, "it reaches 222% (", id="tuned for something else"),
        pytest.param(UNCHANGED, 1000.0, 1000.0, "", id="unchanged settings as predicted"),
        pytest.param(UNCHANGED, 500.0, 1000.0, "it reaches 50% (", id="unchanged settings are half as fast"),
    ],
)
def test_a_profile_is_valid_while_its_speedup_is_as_predicted(
    profile: TunedProfile, rate: float, baseline_rate: float, reason: str
) -> None:
    found = remeasure_at(profile, rate, baseline_rate)
    assert [sentence.startswith(reason) for sentence in found.reasons] == [True] * bool(reason)
    assert found.samples_per_second == pytest.approx(rate, rel=0.01)
    assert found.speedup is None or profile is PROFILE


def test_one_run_as_predicted_is_sufficient_and_others_alternate_with_the_baseline() -> None:
    fast, slow = Bench(lambda *_: 1800.0), Bench(lambda *_: 900.0)
    remeasure(plan(), PROFILE, fast, ProgressListener())
    assert fast.asked == [PROFILE.config]
    remeasure(plan(), PROFILE, slow, ProgressListener())
    assert {slow.asked[1], slow.asked[2]} == {PROFILE.config, plan().baseline}


def test_a_profile_that_fails_once_is_measured_again_and_one_that_always_fails_no_longer_runs() -> None:
    once = Bench(lambda config, count: None if count == 1 else 180.0 if config == PROFILE.config else 1000.0)
    assert "slower than the baseline" in remeasure(plan(), PROFILE, once, ProgressListener()).reasons[0]
    always = Bench(lambda config, _: None if config == PROFILE.config else 1000.0)
    assert remeasure(plan(), PROFILE, always, ProgressListener()).reasons == ("it no longer runs",)


def test_with_another_baseline_the_throughput_alone_counts() -> None:
    base = PROFILE.result.baseline
    assert base is not None
    result = PROFILE.result.model_copy(update={"baseline": base.model_copy(update={"config": make_config(3)})})
    found = remeasure_at(PROFILE.model_copy(update={"result": result}), 900.0, 500.0)
    assert found.machine_change is None
    assert found.ratio_to_prediction == pytest.approx(0.5, rel=0.01)
    assert "it reaches 50% (" in found.reasons[0]


def make_here(**changes: Any) -> TunedProfile:
    """Build a profile of this machine, its software and a request."""
    usual = {"software": read_software(), "request": make_request().record()}
    return make_profile(hardware=describe_local_hardware(read_machine(), make_profile().hardware), **usual | changes)


def find(validated: bool = True, **options: Any) -> TunedProfile | None:
    return find_stored(make_request(**options), read_machine(), validated=validated)


def test_a_stored_result_is_found_for_the_same_request_and_machine_class_only(workdir: Path) -> None:
    here = make_here()
    write_profiles(workdir, here)
    assert find() is not None
    assert find(timeout_seconds=9.0, storage="sqlite:///x.db") is not None
    for changes in ({"epochs": 3}, {"trials": 3}, {"output": "elsewhere.json"}, {"fixed": {"num_workers": 2}}):
        assert find(**changes) is None, changes
    other = here.hardware.model_copy(update={"usable_cpus": 640.0})
    write_profiles(workdir, here.model_copy(update={"hardware": other}))
    assert find() is None


@pytest.mark.parametrize(
    "changes", [{"is_complete": False}, {"result": make_profile_result(samples_per_second_ci95=None)}]
)
def test_an_unvalidated_profile_is_a_run_to_continue_and_no_result(workdir: Path, changes: dict[str, Any]) -> None:
    write_profiles(workdir, make_here(**changes))
    assert find() is None
    assert find(validated=False) is not None


def check_machine(folder: Path, profile: TunedProfile, **options: Any) -> tuple[bool, list[str], list[str]]:
    found = check(write_profiles(folder, profile), with_workload=False, **options)
    return found.is_valid, [one.split()[0] for one in found.reasons], [one.split()[0] for one in found.info]


def test_what_requires_retuning_is_a_reason_and_the_rest_is_information(tmp_path: Path) -> None:
    here = make_here()
    assert check_machine(tmp_path, here) == (True, [], [])
    profile = here.model_copy(
        update={
            "hardware": here.hardware.model_copy(update={"usable_cpus": 640.0}),
            "software": here.software.model_copy(update={"torch": "1.0", "python": "3.8.1", "start_method": "spawn"}),
            "created_at": here.created_at - timedelta(days=9000),
        }
    )
    assert check_machine(tmp_path, profile, max_age_seconds=86400.0) == (
        False,
        ["CPUs", "start", "age"],
        ["torch", "Python"],
    )


def test_an_age_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_age_seconds=-5 must be longer than zero"):
        check(write_profiles(tmp_path, make_here()), max_age_seconds=-5.0)


def test_the_profile_of_an_interrupted_run_is_out_of_date(tmp_path: Path) -> None:
    found = check(write_profiles(tmp_path, make_here(is_complete=False)), with_workload=False)
    assert found.reasons == ("its run was interrupted",)


def test_what_a_training_has_set_itself_is_no_reason(tmp_path: Path) -> None:
    here = make_here()
    hardware = here.hardware.model_copy(update={"nofile_limit": here.hardware.nofile_limit + 1})
    software = here.software.model_copy(update={"start_method": "spawn"})
    changed = here.model_copy(update={"hardware": hardware, "software": software})
    assert check_machine(tmp_path, changed) == (False, ["open"], [])  # the tuned code may set the start method
    trained = changed.model_copy(update={"search": here.search.model_copy(update={"sampler": "training"})})
    assert check_machine(tmp_path, trained) == (True, [], [])


def test_without_torch_nothing_can_be_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.system.software.read_torch", lambda: None)
    with pytest.raises(UsageError, match="torch is not installed"):
        check(write_profiles(tmp_path, make_here()), with_workload=False)


# With real processes

DATA = """
import torch
from pathlib import Path

Path("imported").touch()

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.zeros(2)

def make_dataset():
    return Numbers()
"""
REQUEST = TuningRequest(
    workload=WorkloadRequest(dataset="checked_data:make_dataset", step_seconds=0.001),
    fixed={"batch_size": 8},
    trial_seconds=0.3,
    epochs=2,
)


@pytest.fixture
def measured(workdir: Path) -> TunedProfile:
    """A profile of a small dataset in the current folder, which its throughput surely reaches."""
    write_files(workdir, {"checked_data.py": DATA})
    workload = {"dataset": "checked_data:make_dataset", "samples": 64, "sample_bytes": 8, "step": "simulated 1.0 ms"}
    here = make_here(request=REQUEST.record(), dataloader=make_config(0, batch_size=8).dataloader)
    result = here.result.model_copy(update={"samples_per_second_ci95": (1.0, 1e9)})
    profile = here.model_copy(update={"workload": here.workload.model_copy(update=workload), "result": result})
    write_profiles(workdir, profile)
    return profile


@pytest.mark.usefixtures("leaves_nothing")
def test_the_workload_is_loaded_and_compared(measured: TunedProfile, workdir: Path) -> None:
    found = check()
    assert found.is_valid, found.reasons
    larger = measured.workload.model_copy(update={"sample_bytes": 4096})
    write_profiles(workdir, measured.model_copy(update={"workload": larger}))
    assert check().reasons == ("sample size 4.0 KiB → 8 B",)


@pytest.mark.usefixtures("measured", "leaves_nothing")
def test_a_quick_check_measures_the_profile_in_a_fresh_process() -> None:
    found = check(quick=True)
    assert found.is_valid, found.reasons
    assert found.remeasured is not None
    assert found.remeasured.samples_per_second > 0


@pytest.mark.usefixtures("leaves_nothing")
def test_a_configuration_that_is_predicted_to_exceed_a_limit_is_not_started(
    measured: TunedProfile, workdir: Path
) -> None:
    wide = measured.config.model_copy(update={"dataloader": make_config(4000, batch_size=8).dataloader})
    write_profiles(workdir, measured.model_copy(update={"config": wide}))
    found = check(quick=True)
    assert found.remeasured is None
    assert "it would exceed a limit: " in found.reasons[0]


@pytest.mark.usefixtures("measured", "leaves_nothing")
def test_code_is_imported_with_a_warning_if_others_can_write_the_file(workdir: Path) -> None:
    (workdir / "dltune.json").chmod(0o646)
    with pytest.warns(UserWarning, match="every user can write it"):
        check()
    assert (workdir / "imported").exists()
    (workdir / "imported").unlink()
    check(with_workload=False)
    assert not (workdir / "imported").exists()
