"""Searches that start from the profile of an earlier run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ProfileError
from autotune.preparation import find_earlier, rebuild_request
from autotune.profiles.schema import TunedProfile
from autotune.profiles.store import save_profile
from autotune.search.loop import MAX_SEEDS, MIN_TRIALS, Search, SearchOutcome, choose_seeds
from autotune.search.plan import Plan, make_plan
from tests.builders import (
    make_config,
    make_failed_summary,
    make_limits,
    make_machine,
    make_profile,
    make_profile_result,
    make_request,
    make_search_record,
    make_trial_summary,
)
from tests.search.formulas import Formula, ResumeListener, io_bound_workload, saturating

REQUEST = make_request(fixed={"batch_size": 32})


def plan_on(**machine: Any) -> Plan:
    return make_plan(REQUEST, make_machine(**{"affinity_cpus": 2} | machine), io_bound_workload(), make_limits())


def run(
    measure: Formula,
    earlier: TunedProfile | None = None,
    listener: ResumeListener | None = None,
    unfinished: TunedProfile | None = None,
    **machine: Any,
) -> SearchOutcome:
    progress = listener or ResumeListener()
    return Search(plan_on(**machine), measure, progress, earlier=earlier, unfinished=unfinished).run()


def profile_of(outcome: SearchOutcome, *, is_complete: bool = True, failed: int = 0, **changes: Any) -> TunedProfile:
    """Return the profile of a search whose first trials failed."""
    best = max(outcome.records, key=lambda record: record.samples_per_second).config
    trials = [
        make_failed_summary(number, record.config, "It crashed.")
        if number <= failed
        else make_trial_summary(
            number,
            record.config,
            samples_per_second=record.samples_per_second,
            status="stopped_early" if number == 3 else "completed",
            relative_error=record.relative_error,
            peak_host_bytes=record.result.peak_host_bytes if record.result else 0,
            peak_shm_bytes=record.result.peak_shm_bytes if record.result else 0,
        )
        for number, record in enumerate(outcome.records, start=1)
    ]
    return make_profile(
        **{"hardware": plan_on().hardware} | changes,
        dataloader=best.dataloader,
        process=best.process,
        result=make_profile_result(validation_runs=3 if is_complete else 0),
        search=make_search_record(trials=tuple(trials)),
        is_complete=is_complete,
        request=REQUEST.record(),
    )


def best_rate(outcome: SearchOutcome) -> float:
    return max(record.samples_per_second for record in outcome.records)


def test_a_search_from_a_complete_result_measures_its_best_configurations_and_few_others() -> None:
    cold, slower = Formula(), Formula(lambda config: saturating(config) / 2)
    earlier = run(cold)
    again = run(slower, profile_of(earlier))
    assert len(slower.configs) <= max(MIN_TRIALS, len(cold.configs))
    assert earlier.records[0].config in slower.configs
    assert [record.config for record in again.records] == slower.configs
    assert best_rate(again) == pytest.approx(best_rate(earlier) / 2, rel=0.02)


def test_the_workers_of_a_training_run_are_tried_after_the_baseline() -> None:
    measured = make_profile(
        hardware=plan_on().hardware,
        dataloader=make_config(7, 2, 32).dataloader,
        search=make_search_record(sampler="training"),
        request={},
    )
    formula = Formula()
    run(formula, measured)
    assert [config.dataloader.num_workers for config in formula.configs][:2] == [0, 7]


def test_a_search_from_a_result_that_suits_no_more_finds_a_better_one() -> None:
    trials = [
        make_trial_summary(number, make_config(workers, 2, persistent_workers=True), samples_per_second=100.0 * workers)
        for number, workers in enumerate((4, 3, 2), start=1)
    ]
    search, config = make_search_record(trials=tuple(trials)), trials[0].config
    earlier = make_profile(hardware=plan_on().hardware, config=config, search=search)
    assert best_rate(run(Formula(), earlier)) > 0.9 * max(map(saturating, plan_on().candidates))


def test_an_interrupted_run_is_continued_from_its_trials() -> None:
    whole, interrupted, rest, listener = Formula(), Formula(stop_after=4), Formula(), ResumeListener()
    run(whole)
    cut = run(interrupted)
    assert len(cut.records) == 4
    continued = run(rest, listener=listener, unfinished=profile_of(cut, is_complete=False))
    assert listener.resumed == 4
    assert interrupted.configs + rest.configs == whole.configs
    assert [record.config for record in continued.records] == whole.configs
    assert [record.is_stopped_early for record in continued.records[:4]] == [False, False, True, False]


def test_failed_trials_of_an_interrupted_run_are_tried_again() -> None:
    cut, rest = run(Formula(stop_after=4)), Formula()
    run(rest, unfinished=profile_of(cut, is_complete=False, failed=1))
    assert rest.configs[0] == cut.records[0].config


def test_an_interrupted_run_on_another_machine_is_not_continued() -> None:
    cut, measure, listener = run(Formula(stop_after=4)), Formula(), ResumeListener()
    elsewhere = profile_of(cut, is_complete=False, hardware=make_profile().hardware)
    run(measure, listener=listener, unfinished=elsewhere)
    assert listener.resumed == 0
    assert measure.configs[0] == cut.records[0].config


def test_the_result_and_the_best_trials_of_a_run_on_this_class_of_machine_are_tried_first() -> None:
    earlier = profile_of(run(Formula()))
    seeds = choose_seeds(earlier, plan_on())
    assert seeds[0] == earlier.config
    assert len(seeds) == MAX_SEEDS
    assert choose_seeds(earlier, plan_on(affinity_cpus=3)) == []
    between = make_profile(dataloader=make_config(9, 2).dataloader, hardware=plan_on().hardware)
    assert choose_seeds(between, plan_on())[0].dataloader.num_workers in (8, 10)


def test_the_request_of_a_profile_is_repeated_unchanged_in_the_current_folder() -> None:
    workload = REQUEST.workload.model_copy(update={"working_dir": "/home/ada/checkout"})
    earlier = make_profile(request=REQUEST.model_copy(update={"workload": workload}).record())
    again = rebuild_request(earlier, "other.json")
    assert again == REQUEST.model_copy(update={"output": "other.json"})


def test_a_request_that_is_invalid_is_one_sentence() -> None:
    profile = make_profile(request={"workload": {"dataset": ""}})
    with pytest.raises(ProfileError, match=r"workload\.dataset"):
        rebuild_request(profile, "dltune.json")


@pytest.mark.parametrize("fresh", [False, True])
def test_the_result_of_a_training_run_is_found_unless_the_run_is_to_be_fresh(fresh: bool, tmp_path: Path) -> None:
    plan = plan_on()
    request = plan.request.model_copy(update={"output": str(tmp_path / "dltune.json"), "fresh": fresh})
    workload = make_profile().workload.model_copy(update={"samples": plan.workload.samples})
    search = make_search_record(sampler="training")
    save_profile(Path(request.output), make_profile(search=search, workload=workload, hardware=plan.hardware))
    found = find_earlier(dataclasses.replace(plan, request=request))
    assert (found is None) is fresh


def test_the_profile_of_a_training_run_has_no_request_to_repeat() -> None:
    with pytest.raises(ProfileError, match=r"measured in a training run\. Train again"):
        rebuild_request(make_profile(search=make_search_record(sampler="training"), request={}), "dltune.json")
