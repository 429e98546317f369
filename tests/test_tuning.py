"""The main flow of a run, with a formula in place of child processes."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import (
    NoFeasibleConfigError,
    OutputError,
    ResultNotSavedError,
    TrialError,
    UsageError,
    WorkloadError,
)
from autotune.preparation import prepare_run
from autotune.profiles.schema import TunedProfile
from autotune.profiles.store import read_file
from autotune.progress import ProgressListener
from autotune.protocol.measurement import TrialResult, TrialStatus
from autotune.protocol.messages import TrialRequest
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest, ValueRange, WorkloadRequest
from autotune.runner.runner import TrialRunner
from autotune.search.plan import Plan
from autotune.time_budget import TimeBudget
from autotune.tuning import TuningResult, request_from_object, tune
from autotune.validation.runs import MIN_RUNS
from tests.builders import (
    count_trials,
    make_config,
    make_cost,
    make_gpu_workload,
    make_machine,
    make_result,
    make_workload,
)
from tests.misbehaving import make_honest

Rate = Callable[[LoaderConfig], float]


def make_request(**options: Any) -> TuningRequest:
    if "batch_size" not in options.get("search", {}):
        options["fixed"] = {"batch_size": 32} | options.get("fixed", {})
    return TuningRequest(workload=WorkloadRequest(dataset="pkg:make"), **options)


def waiting_workload() -> WorkloadProfile:
    """Samples that wait 10 ms, with a step of 10 ms: about 16 workers are useful on two CPUs."""
    return make_workload(load_cost=make_cost(0.01), cpu_share=0.05, step_cost=make_cost(0.0, 0.01), sample_bytes=1000)


class Bench:
    """A stand-in for children: answers every trial by a formula and remembers what was asked."""

    def __init__(self, rate: Rate, fails: Callable[[LoaderConfig], TrialStatus | None] = lambda config: None) -> None:
        self.asked: list[TrialRequest] = []
        self._rate = rate
        self._fails = fails

    def __call__(self, request: TrialRequest) -> TrialResult:
        self.asked.append(request)
        kind = self._fails(request.config)
        if kind is not None:
            return TrialResult(status=kind, config=request.config, message="raised ValueError: no")
        return make_result(request.config, self._rate(request.config))

    @property
    def configs(self) -> list[LoaderConfig]:
        """What the search measured."""
        return [request.config for request in self.asked if not request.new_process]


def saturating(config: LoaderConfig) -> float:
    """Throughput that grows with workers up to 12, and by a third with persistent ones."""
    loader = config.dataloader
    return 100.0 * min(12, max(1, loader.num_workers)) * (1.33 if loader.persistent_workers else 1.0)


MACHINE = make_machine(affinity_cpus=2)


def run(
    bench: Callable[[TrialRequest], TrialResult], request: TuningRequest | None = None, **parts: Any
) -> TuningResult:
    usual: dict[str, Any] = {"machine": MACHINE, "workload": waiting_workload(), "progress": ProgressListener()}
    return tune(request or make_request(), run_trial=bench, **usual | parts)


def saved() -> TunedProfile:
    return read_file(Path("dltune.json")).profiles[0]


pytestmark = pytest.mark.usefixtures("workdir")


def test_the_best_configuration_of_the_formula_is_found_and_saved() -> None:
    profile = run(Bench(saturating)).profile
    assert profile.dataloader.persistent_workers
    assert profile.result.samples_per_second == pytest.approx(12 * 133, rel=0.01)
    assert profile.result.baseline is not None
    assert profile.result.baseline.dataloader == DataLoaderSettings(batch_size=32)
    assert profile.result.speedup == pytest.approx(12 * 1.33, rel=0.02)
    assert profile.result.validation_runs >= MIN_RUNS
    assert saved() == profile


@pytest.mark.parametrize(
    ("rate", "fixed", "decision", "workers"),
    [
        (lambda config: 1000.0 if config.dataloader.num_workers >= 2 else 100.0, {}, "faster", 2),
        (lambda config: 100.0 + 0.01 * config.dataloader.num_workers, {}, "no_change", 0),
        (lambda config: 100.0, {"num_workers": 3, "in_order": True}, "no_change", 3),
        (saturating, {"num_workers": 0}, "no_change", 0),
    ],
    ids=["the smallest of those within noise", "no gain", "a fixed setting", "everything fixed"],
)
def test_the_recommended_number_of_workers_gains_more_than_noise(
    rate: Rate, fixed: dict[str, Any], decision: str, workers: int
) -> None:
    profile = run(Bench(rate), make_request(fixed=fixed)).profile
    assert (profile.result.decision, profile.dataloader.num_workers) == (decision, workers)
    assert profile.result.validation_runs >= MIN_RUNS


def test_the_same_seed_asks_for_the_same_configurations(workdir: Path) -> None:
    first, second, other = Bench(saturating), Bench(saturating), Bench(saturating)
    run(first, make_request(seed=3, sampler="tpe", trials=12))
    run(second, make_request(seed=3, sampler="tpe", trials=12, fresh=True))
    run(other, make_request(seed=4, sampler="tpe", trials=12))
    assert first.configs == second.configs
    assert first.configs != other.configs


def test_a_configuration_over_a_budget_is_skipped_not_tried() -> None:
    bench = Bench(saturating)
    request = make_request(max_shm="2MB", search={"batch_size": (32, 512)}, sampler="random", trials=15)
    outcome = run(bench, request)
    assert count_trials(outcome.profile, "skipped") > 0
    for config in bench.configs:
        loader = config.dataloader
        live = loader.num_workers * (loader.prefetch_factor or 0) + (2 if loader.num_workers else 0)
        assert live * (loader.batch_size or 0) * 1000 <= 2_000_000


def test_a_configuration_that_fails_is_never_chosen() -> None:
    outcome = run(Bench(saturating, lambda config: "shm_exhausted" if config.dataloader.num_workers > 4 else None))
    assert outcome.profile.dataloader.num_workers == 4
    assert count_trials(outcome.profile, "failed") > 0


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("workload_failed", WorkloadError, "even without workers"),
        ("stalled", WorkloadError, "fails without workers, too: .* it raised ValueError: no, with and"),
        ("timed_out", NoFeasibleConfigError, "timed_out: it raised ValueError: no"),
    ],
)
def test_a_run_in_which_every_trial_fails_raises_the_cause(
    kind: TrialStatus, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run(Bench(saturating, lambda config: kind))


def test_a_baseline_that_cannot_run_leaves_no_speedup() -> None:
    outcome = run(Bench(saturating, lambda config: None if config.dataloader.num_workers else "out_of_memory"))
    assert outcome.profile.result.baseline is None
    assert outcome.profile.result.speedup is None
    assert outcome.profile.dataloader.num_workers >= 12


def after(count: int, happen: Callable[[], object], rate: Rate = saturating) -> Bench:
    """Make a bench on which something happens before the trial after this many."""

    class Struck(Bench):
        def __call__(self, request: TrialRequest) -> TrialResult:
            if len(self.asked) == count:
                happen()
            return super().__call__(request)

    return Struck(rate)


def interrupted_after(count: int, rate: Rate = saturating) -> Bench:
    return after(count, lambda: signal.raise_signal(signal.SIGINT), rate)


def test_an_interrupted_search_saves_the_best_so_far_if_there_is_a_result(workdir: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(interrupted_after(0))
    assert not (workdir / "dltune.json").exists()
    bench = interrupted_after(6)
    outcome = run(bench)
    assert (outcome.interrupted, outcome.profile.result.validation_runs) == (True, 0)
    assert outcome.profile.result.samples_per_second == pytest.approx(max(map(saturating, bench.configs)), rel=0.01)


def test_a_result_that_is_not_validated_does_not_change_training() -> None:
    bench = interrupted_after(7, lambda config: saturating(config) * (1 if config.dataloader.in_order else 5))
    outcome = run(bench, make_request(search={"in_order": (True, False)}))
    assert {config.dataloader.in_order for config in bench.configs} == {True, False}
    assert outcome.profile.dataloader.in_order


def test_what_the_probe_warns_of_is_a_warning_of_python_and_what_it_measured_is_none() -> None:
    workload = waiting_workload().model_copy(update={"notes": ("Workers share a file.",), "loader_note": "Own loader."})
    with pytest.warns(UserWarning, match="Workers share a file") as caught:
        found = run(Bench(saturating), workload=workload, progress=None)
    assert len(caught) == 1
    assert found.profile.result.warnings == ("Workers share a file.", "Own loader.")


def test_warnings_and_an_interruption_are_pythons_warnings_and_the_result_is_one_line() -> None:
    with pytest.warns(UserWarning, match="Interrupted: the result is the best so far"):
        found = run(interrupted_after(6), progress=None)
    with pytest.warns(UserWarning, match="--timeout left time for 0 of 2 validation runs"):
        run_slowly(60.0, make_request(timeout_seconds=20.0), progress=None)
    assert re.fullmatch(r"TuningResult\(num_workers=\d+, .*/s, 6 trials, interrupted\)", repr(found))


class Stops(ProgressListener):
    """Remembers why the search ended and what it took over."""

    def __init__(self) -> None:
        self.reason = ""
        self.resumed = -1

    def show_stop(self, reason: str) -> None:
        self.reason = reason

    def show_resumed(self, trials: int) -> None:
        self.resumed = trials


def test_an_interrupted_run_is_continued_with_its_trials_by_the_same_request() -> None:
    interrupted, continued, view = interrupted_after(6), Bench(saturating), Stops()
    assert run(interrupted).interrupted
    run(continued, progress=view)
    assert view.resumed == 6
    assert not set(interrupted.configs) & set(continued.configs)


def test_an_interrupted_run_from_a_result_keeps_it_and_is_continued_by_the_next() -> None:
    first, view = run(Bench(saturating)).profile, Stops()
    assert run(interrupted_after(3)).interrupted
    assert saved() == first
    assert [one.is_validated for one in read_file(Path("dltune.json")).profiles] == [True, False]
    last = run(Bench(saturating), progress=view).profile
    assert view.resumed == 3
    assert read_file(Path("dltune.json")).profiles == (last,)


def test_the_same_request_again_begins_with_its_result() -> None:
    first, again = run(Bench(saturating)).profile, Bench(saturating)
    run(again)
    assert [one.dataloader.num_workers for one in again.configs[:2]] == [0, first.dataloader.num_workers]
    assert again.configs[1] == first.config


def test_a_single_validation_run_does_not_replace_a_validated_profile() -> None:
    first = run(Bench(saturating)).profile
    again = run_slowly(5.0, make_request(timeout_seconds=20.0, fresh=True))[0].profile
    assert again.result.validation_runs == 1
    assert saved() == first


@pytest.mark.parametrize("options", [{"fresh": True}, {"epochs": 3}], ids=["fresh", "another request"])
def test_a_fresh_run_and_another_request_ignore_the_trials_of_an_interrupted_run(options: dict[str, Any]) -> None:
    view = Stops()
    run(interrupted_after(6))
    run(Bench(saturating), make_request(**options), progress=view)
    assert view.resumed <= 0


@pytest.mark.parametrize(("rate", "words"), [(lambda config: 3190.0, "upper bound"), (saturating, "gain")])
def test_the_search_ends_at_the_upper_bound_of_the_step_and_when_nothing_improves(rate: Rate, words: str) -> None:
    view, bench = Stops(), Bench(rate)
    run(bench, progress=view)
    assert words in view.reason
    assert len(set(bench.configs)) == len(bench.configs)


def test_a_throughput_above_the_upper_bound_refutes_it() -> None:
    assert run(Bench(lambda config: 4000.0)).profile.result.upper_bound_samples_per_second is None


@pytest.mark.parametrize("own", [make_config(3, 3, 48, pin_memory=True), make_config(11, 5, 48)])
def test_the_search_ends_as_early_with_the_users_own_loader_as_without(own: LoaderConfig) -> None:
    request = TuningRequest(workload=WorkloadRequest(dataset="pkg:make"))
    workload = waiting_workload().model_copy(update={"baseline": own})
    outcome = run(Bench(saturating), request, workload=workload)
    assert len(outcome.profile.search.trials) < 25
    assert outcome.profile.result.baseline is not None
    assert outcome.profile.result.baseline.dataloader == own.dataloader


def test_a_small_space_is_exhausted_without_endless_repeats() -> None:
    bench, view = Bench(saturating), Stops()
    fixed = {"prefetch_factor": 2, "persistent_workers": True, "in_order": True, "sharing_strategy": "file_system"}
    run(bench, make_request(fixed=fixed, search={"num_workers": ValueRange(low=0, high=2)}), progress=view)
    assert {config.dataloader.num_workers for config in bench.configs} == {0, 1, 2}
    assert "every configuration" in view.reason


@pytest.mark.parametrize(
    "sampler",
    [
        *("model", "tpe", "random"),
        pytest.param("gp", marks=pytest.mark.skipif(find_spec("scipy") is None, reason="gp needs scipy")),
    ],
)
def test_every_sampler_finds_a_result(sampler: str) -> None:
    outcome = run(Bench(saturating), make_request(sampler=sampler, trials=12))
    assert outcome.profile.search.sampler == sampler
    assert len(outcome.profile.search.trials) <= 12


def test_a_malformed_import_string_and_a_missing_folder_are_rejected_before_the_first_trial() -> None:
    bench = Bench(saturating)
    with pytest.raises(UsageError, match=r"data/images\.py:"):
        run(bench, TuningRequest(workload=WorkloadRequest(dataset="data/images.py")))
    with pytest.raises(OutputError, match="does not exist"):
        run(bench, make_request(output="missing/dltune.json"))
    assert bench.asked == []


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ({"trails": 3}, r"tune\(\.\.\., trails=\.\.\.\): there is no such option \(is it trials\?\)\."),
        ({"timeout": "10m"}, r"is it timeout_seconds\?"),
        ({"num_worker": 8}, r"is it fixed=\{'num_workers': VALUE\}\?"),
        ({"dataset": "data:make"}, r"dataset=\.\.\.\): pass the function, dataset or loader as the first argument"),
        ({"batch_size": 8}, r"is it fixed=\{'batch_size': VALUE\}\?"),
        ({"zzz": 8}, r"zzz=\.\.\.\): there is no such option\."),
    ],
)
def test_an_unknown_option_of_tune_is_an_error_with_the_most_similar_one(option: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        request_from_object(make_honest, option)


def test_a_measurement_that_all_others_contradict_is_repeated() -> None:
    struck: set[LoaderConfig] = set()

    def unlucky_once(config: LoaderConfig) -> float:
        is_first = config.dataloader.num_workers >= 12 and not struck
        struck.add(config) if is_first else None
        return 0.4 * saturating(config) if is_first else saturating(config)

    bench = Bench(unlucky_once)
    outcome = run(bench)
    (config,) = struck
    assert bench.configs.count(config) == 2
    assert [record.samples_per_second for record in outcome.records if record.config == config][-1] == pytest.approx(
        saturating(config), rel=0.01
    )


def test_a_loader_that_decides_its_workers_is_never_tried_without_them() -> None:
    workload = waiting_workload().model_copy(update={"fixed_settings": {"num_workers": 4}, "loader_class": "pkg.Own"})
    bench = Bench(saturating, lambda one: "workload_failed")
    with pytest.raises(WorkloadError, match=r"^The dataset fails: in 3 of 3 trials \(.*, with workers\."):
        run(bench, workload=workload)
    assert [config.dataloader.num_workers for config in bench.configs] == [4, 4, 4]


def test_workers_that_always_fail_are_ruled_out_after_three_recorded_trials() -> None:
    bench = Bench(saturating, lambda config: "workload_failed" if config.dataloader.num_workers else None)
    outcome = run(bench)
    failed = [config for config in bench.configs if config.dataloader.num_workers]
    assert len(failed) == 3  # one, again because it may have been bad luck, and one with a single worker
    assert set(failed) <= {record.config for record in outcome.records if record.result is not None}
    assert outcome.profile.dataloader.num_workers == 0
    assert any("num_workers > 0 fails" in warning for warning in outcome.profile.result.warnings)


class Flaky(Bench):
    """Reads 1,000 samples a trial; the data raises after the first so many, and then once in a period."""

    def __init__(self, period: int, first: int) -> None:
        super().__init__(saturating)
        self._period, self._until = period, first

    def __call__(self, request: TrialRequest) -> TrialResult:
        self.asked.append(request)
        if self._until >= 1000:
            self._until -= 1000
            return make_result(request.config, saturating(request.config))
        samples, self._until = self._until + 1, self._period
        message = "raised ValueError: bits is not in [0, 8)"
        return TrialResult(status="workload_failed", config=request.config, message=message, samples=samples)


def test_a_dataset_that_raises_now_and_then_ends_the_run_without_blaming_workers() -> None:
    words = r"in \d+ of \d+ trials .* raised ValueError: bits.*without workers"
    with pytest.raises(WorkloadError, match=words) as caught:
        run(Flaky(period=480, first=1500))
    assert "num_workers > 0 fails" not in str(caught.value)


def test_an_error_once_in_many_trials_costs_no_result_and_is_a_warning_with_its_rate() -> None:
    outcome = run(Flaky(period=9_500, first=4_500))
    assert all(record.is_feasible for record in outcome.records)
    (warning,) = (text for text in outcome.profile.result.warnings if text.startswith("In 1 of "))
    assert "ValueError" in warning
    assert "num_workers > 0 fails" not in warning


def make_small_search() -> TuningRequest:
    fixed = {"persistent_workers": True, "in_order": True, "sharing_strategy": "file_descriptor"}
    search = {"batch_size": (32, 64), "num_workers": ValueRange(low=0, high=1)}
    return make_request(search=search, fixed=fixed, sampler="random", trials=100)


def test_a_step_that_fails_at_one_batch_size_rules_out_that_batch_size_only() -> None:
    bench = Bench(saturating, lambda config: "workload_failed" if config.dataloader.batch_size == 64 else None)
    outcome = run(bench, make_small_search())
    assert (outcome.profile.dataloader.batch_size, outcome.profile.dataloader.num_workers) == (32, 1)


class FailsInStep(Bench):
    """Fails in the training step, wherever the batches come from."""

    def __call__(self, request: TrialRequest) -> TrialResult:
        result = super().__call__(request)
        return result if result.status == "completed" else result.model_copy(update={"in_step": True})


def test_a_step_that_always_fails_is_blamed_and_not_the_dataset() -> None:
    bench = FailsInStep(saturating, lambda config: "workload_failed")
    with pytest.raises(WorkloadError, match=r"^The training step \(.*\) fails even without workers: it raised"):
        run(bench)
    assert len(bench.asked) == 2
    with pytest.raises(WorkloadError, match=r"^The training step \(.*\) fails: it raised ValueError: no"):
        run(FailsInStep(saturating, lambda config: "workload_failed"), make_request(fixed={"num_workers": 2}))


def test_data_that_starts_to_fail_ends_the_run_as_the_users_error_and_saves_the_best_so_far() -> None:
    bench = Bench(saturating, lambda config: "workload_failed" if len(bench.asked) > 3 else None)
    words = r"with and without workers.*The best result so far was saved to dltune\.json"
    with pytest.raises(WorkloadError, match=words):
        run(bench)
    found = saved()
    assert found.search.stop_reason == "the dataset failed"
    assert count_trials(found, "completed") == 3


def test_a_run_that_the_users_code_ended_is_not_continued() -> None:
    view = Stops()
    with pytest.raises(WorkloadError):
        run(Bench(saturating, lambda config: "workload_failed"))
    run(Bench(saturating), progress=view)
    assert view.resumed <= 0


def test_one_failure_of_workers_in_the_probe_is_retried_and_ignored_if_it_does_not_repeat() -> None:
    bench = Bench(saturating)
    workload = waiting_workload().model_copy(update={"worker_failure": "was killed by SIGKILL"})
    outcome = run(bench, workload=workload)
    first = next(config.dataloader for config in bench.configs if config.dataloader.num_workers)
    assert (first.num_workers, first.prefetch_factor) == (1, 1)
    assert outcome.profile.dataloader.num_workers >= 12
    assert not outcome.profile.result.warnings


def test_workers_that_fail_in_the_probe_and_again_are_ruled_out_with_the_failure_of_the_fewest() -> None:
    bench = Bench(saturating, lambda config: "crashed" if config.dataloader.num_workers else None)
    workload = waiting_workload().model_copy(update={"worker_failure": "made no progress for 60 s"})
    outcome = run(bench, workload=workload)
    assert {config.dataloader.num_workers for config in bench.configs} == {0, 1}
    (warning,) = outcome.profile.result.warnings
    assert "num_workers=1: it raised ValueError: no" in warning


class FailsFresh(Bench):
    """Cannot be started twice, as what takes a port or a lock."""

    def __call__(self, request: TrialRequest) -> TrialResult:
        if not request.new_process:
            return super().__call__(request)
        return TrialResult(status="workload_failed", config=request.config, message="raised OSError: port 80 is taken")


def test_if_only_fresh_processes_fail_the_best_of_the_search_is_saved_with_the_reason() -> None:
    result = run(FailsFresh(saturating)).profile.result
    assert result.validation_runs == 0
    assert result.samples_per_second == pytest.approx(12 * 133, rel=0.01)
    (warning,) = result.warnings
    assert "not validated" in warning
    assert "raised OSError: port 80 is taken" in warning


# Failures outside the trials


def test_a_result_that_cannot_be_saved_is_in_the_error_and_a_file_that_became_invalid_is_kept(workdir: Path) -> None:
    path, foreign = workdir / "dltune.json", '{"schema_version": 3}'
    with pytest.raises(ResultNotSavedError, match="not of schema version 1") as caught:
        run(after(5, lambda: path.write_text(foreign)))
    assert path.read_text() == foreign
    path.write_text(caught.value.details)
    assert saved().dataloader.num_workers > 0


def test_a_machine_that_starts_no_more_processes_ends_the_run_with_the_best_so_far_if_there_is_one(
    workdir: Path,
) -> None:
    words = "Trials can no longer be run: Resource temporarily unavailable"

    def refuse() -> None:
        raise TrialError(f"{words}.")

    bench = after(4, refuse)
    with pytest.raises(TrialError, match=rf"{words}\.$"):
        run(after(0, refuse))
    assert not (workdir / "dltune.json").exists()
    with pytest.raises(TrialError, match=rf"{words}\. The best result so far was saved to dltune"):
        run(bench)
    found = saved()
    assert found.search.stop_reason == "trials could no longer be run"
    assert found.result.samples_per_second == pytest.approx(max(map(saturating, bench.configs)), rel=0.01)


def test_an_interrupt_while_the_result_is_saved_does_not_lose_it() -> None:
    class InterruptsAtTheEnd(TimeBudget):
        @property
        def left_seconds(self) -> float:
            return math.inf

        @property
        def passed_seconds(self) -> float:
            signal.raise_signal(signal.SIGINT)
            return 1.0

    request = make_request()
    run(Bench(saturating), request, time_budget=InterruptsAtTheEnd(request))
    assert saved().result.validation_runs == MIN_RUNS


def rate_on_gpu(config: LoaderConfig) -> float:
    """Pinned copies gain a half, copies ahead a half again."""
    return saturating(config) * 1.5**config.dataloader.pin_memory * 1.5**config.process.device_prefetch


def tune_on_gpu(bench: Bench, **options: Any) -> TuningResult:
    waits = {"load_cost": make_cost(0.01), "cpu_share": 0.05, "step_cost": make_cost(0.0, 0.01)}
    return run(bench, make_request(**options), workload=make_gpu_workload(**waits))


def test_on_a_gpu_pinning_and_device_prefetch_are_found_and_recorded() -> None:
    profile = tune_on_gpu(Bench(rate_on_gpu)).profile
    assert profile.dataloader.pin_memory
    assert profile.config.process.non_blocking
    assert profile.config.process.device_prefetch
    assert profile.hardware.gpu == "NVIDIA H100 80GB HBM3"
    assert profile.result.copy_bound_bytes_per_second == 12e9
    assert profile.result.copy_bytes_per_second == pytest.approx(profile.result.samples_per_second * 1e6)
    settings = " ".join(row.setting for row in profile.result.contributions)
    assert "pin_memory=True" in settings
    assert "device_prefetch=True" in settings


def test_a_lost_device_ends_the_run_and_keeps_the_best_so_far(workdir: Path) -> None:
    def lose_device(config: LoaderConfig) -> None:
        if len(bench.asked) > 6:
            raise TrialError("Trials can no longer be run: the last one lost its device.")

    bench = Bench(rate_on_gpu, lose_device)
    with pytest.raises(TrialError, match=r"can no longer be run.*The best result so far was saved to dltune.json"):
        tune_on_gpu(bench)
    assert len(bench.asked) == 7
    assert saved().search.stop_reason == "trials could no longer be run"


def test_a_step_that_breaks_the_device_without_workers_ends_the_run_with_its_message() -> None:
    with pytest.raises(WorkloadError, match="Training fails even without workers: it raised ValueError: no"):
        tune_on_gpu(Bench(rate_on_gpu, lambda config: "device_failed"))


# Time limits


class SlowBench(Bench):
    """A bench that takes time, on a clock of its own: the start of a process, then what is measured."""

    def __init__(self, start_seconds: float, rate: Rate = saturating) -> None:
        super().__init__(rate)
        self.now = 0.0
        self._start_seconds = start_seconds

    def __call__(self, request: TrialRequest) -> TrialResult:
        self.now += request.seconds + (self._start_seconds if request.new_process else 0.0)
        return super().__call__(request)


def run_slowly(
    start_seconds: float, request: TuningRequest, rate: Rate = saturating, **parts: Any
) -> tuple[TuningResult, float]:
    """Run on a clock of its own, on which each process takes this long to start; return also the seconds passed."""
    bench = SlowBench(start_seconds, rate)
    time_budget = TimeBudget(request, lambda: bench.now)
    time_budget.start_seconds = start_seconds
    return run(bench, request, time_budget=time_budget, **parts), bench.now


@pytest.mark.parametrize("timeout_seconds", [8.0, 30.0, 45.0])
@pytest.mark.parametrize("start_seconds", [0.5, 5.0, 20.0])
def test_a_run_exceeds_its_time_by_one_measurement_at_most_and_warns_of_missing_runs(
    timeout_seconds: float, start_seconds: float
) -> None:
    request = make_request(timeout_seconds=timeout_seconds, sampler="random", search={"batch_size": (16, 32)})
    found, passed_seconds = run_slowly(start_seconds, request)
    result, final_seconds = found.profile.result, start_seconds + request.trial_seconds
    assert passed_seconds <= timeout_seconds + final_seconds
    if timeout_seconds > 2 * final_seconds:
        assert result.validation_runs >= 1
        assert result.speedup is not None
    said = [warning for warning in result.warnings if "--timeout" in warning]
    assert len(said) == (result.validation_runs < MIN_RUNS)


def test_a_run_without_time_for_the_validation_saves_its_best_and_is_continued_by_the_next() -> None:
    view, result = Stops(), run_slowly(60.0, make_request(timeout_seconds=20.0))[0].profile.result
    assert (result.validation_runs, result.samples_per_second_ci95) == (0, None)
    assert any("--timeout left time for 0" in warning for warning in result.warnings)
    run(Bench(saturating), progress=view)
    assert view.resumed == 2


def test_a_baseline_that_is_the_best_when_time_is_over_is_kept() -> None:
    request = make_request(timeout_seconds=20.0)
    found, _ = run_slowly(60.0, request, lambda config: 100.0 / (1 + config.dataloader.num_workers))
    assert (found.profile.dataloader.num_workers, found.profile.result.decision) == (0, "no_change")


def test_processes_that_start_slowly_are_explained_before_the_first_trial() -> None:
    class Listener(ProgressListener):
        def __init__(self) -> None:
            self.events: list[str] = []

        def show_warning(self, sentence: str) -> None:
            self.events.append(sentence)

        def show_plan(self, plan: Plan) -> None:
            self.events.append("plan")

    request, listener = make_request(), Listener()
    with TrialRunner(request.workload, 30.0, listener) as runner:
        for seconds in (9.0, 14.0):
            runner.start_seconds = seconds
            prepare_run(request, MACHINE, waiting_workload(), runner, TimeBudget(request))
    assert listener.events == [
        "plan",
        "Each process of a trial takes 14.0 s to import pkg and call make. To tune faster, put what it "
        'does not need, such as the training, under if __name__ == "__main__".',
        "plan",
    ]
