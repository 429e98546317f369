"""What is asked of Optuna, and what it is told."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from autotune.config import LoaderConfig
from autotune.search.ask_tell import Search, open_search
from autotune.search.demand import ResourceDemand
from autotune.search.sampler import make_sampler
from autotune.search.space import SearchSpace
from autotune.search.storage import open_storage
from autotune.search.study import StoredTrial
from autotune.search.trial_record import TrialRecord
from tests.builders import make_hardware, make_limits, make_request, make_result
from tests.search.studies import SPACE, tell_one

SMALL = SearchSpace.of(
    batch_size=(32,),
    num_workers=(1, 2, 4, 8),
    prefetch_factor=(2,),
    pin_memory=(False,),
    persistent_workers=(False, True),
    in_order=(True,),
    sharing_strategy=("file_descriptor",),
)


def open_one(sampler: str = "model", space: SearchSpace = SPACE, recalled: Sequence[StoredTrial] = ()) -> Search:
    request = make_request(sampler=sampler)
    study = optuna.create_study(sampler=make_sampler(request, space, len(recalled)), direction="maximize")
    search = Search(study, space)
    search.recall(recalled)
    return search


def test_seeds_are_proposed_first_and_in_their_order() -> None:
    search = open_one()
    wanted = [SPACE.from_params({"num_workers": workers}) for workers in (8, 0, 4)]
    search.enqueue(wanted)
    assert [search.ask().config for _ in wanted] == wanted


def test_a_seed_that_an_earlier_run_measured_is_passed_over() -> None:
    known, other = (SPACE.from_params({"num_workers": workers}) for workers in (8, 4))
    record = TrialRecord(number=0, config=known, status="measured", score=1.0, constraints={})
    search = open_one(recalled=[StoredTrial(record, None)])
    search.enqueue([known, other])
    assert search.ask().config == other


def test_every_trial_carries_the_same_constraints_whether_it_is_new_or_recalled() -> None:
    record = TrialRecord(number=0, config=SPACE.from_params({}), status="measured", score=1.0, constraints={"shm": 0.5})
    search = open_one(recalled=[StoredTrial(record, None)])
    tell_one(search)
    study = search._study
    demanded = ResourceDemand(memory_bytes=0, shm_bytes=0, files=0).constraints(make_limits())
    assert {frozenset(trial.constraints) for trial in study.trials} == {frozenset({*demanded, "works"})}
    assert study.trials[0].constraints["shm"] == 0.5


def test_a_configuration_over_the_budget_of_device_memory_is_never_the_samplers_best() -> None:
    search = open_one("tpe")
    tell_one(search, score=1.0)
    asked = search.ask()
    over = {"memory": -0.5, "shm": -0.5, "files": -0.5, "gpu": 0.5, "works": 0.0}
    search.tell(TrialRecord(number=asked.number, config=asked.config, status="skipped", score=9.0, constraints=over))
    assert search._study.best_trial.value == 1.0


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_sampler_that_draws_at_random_does_not_draw_the_same_again_after_a_run_was_cut_short(sampler: str) -> None:
    first = [tell_one(open_one(sampler)).config]
    search = open_one(sampler)
    first = [tell_one(search).config for _ in range(6)]
    kept = [
        StoredTrial(TrialRecord(number=n, config=c, status="measured", score=1.0, constraints={}), None)
        for n, c in enumerate(first)
    ]
    search = open_one(sampler, recalled=kept)
    assert [tell_one(search).config for _ in range(6)] != first


def test_a_grid_goes_on_where_it_was_cut_short() -> None:
    search = open_one("grid", SMALL)
    told = [tell_one(search) for _ in range(3)]
    grid_ids = [trial.system_attrs["grid_id"] for trial in search._study.trials]
    continued = open_one("grid", SMALL, [StoredTrial(*pair) for pair in zip(told, grid_ids, strict=True)])
    rest = [tell_one(continued).config for _ in range(5)]
    assert len({*rest, *(record.config for record in told)}) == 8


def test_places_in_another_grid_say_nothing_about_this_one(workdir: Path) -> None:
    request = make_request(sampler="grid", study_name="mine")
    for space, wanted in (
        (SMALL, 4),
        (replace(SMALL, choices={**SMALL.choices, "num_workers": (1, 2, 3, 4, 8)}), 10),
    ):
        with (
            open_storage(None) as storage,
            open_search(storage, request, space, make_hardware(), warnings.warn) as search,
        ):
            known = {record.config for record in search.records()}
            told = [tell_one(search).config for _ in range(wanted)]
    assert len(known) == 4
    assert known | set(told) == set(space.configs())


def test_a_grid_that_is_exhausted_proposes_what_it_knows_and_breaks_nothing() -> None:
    search = open_one("grid", SMALL)
    assert len({tell_one(search).config for _ in range(10)}) == 8


def test_what_was_recalled_is_listed_in_its_order() -> None:
    configs: list[LoaderConfig] = [SPACE.from_params({"num_workers": workers}) for workers in (8, 0, 4)]
    records = [
        TrialRecord(number=number, config=config, status="measured", score=1.0, constraints={})
        for number, config in enumerate(configs)
    ]
    assert open_one(recalled=[StoredTrial(record, None) for record in records]).records() == records


def tell_and_describe(record_changes: dict[str, object]) -> dict[str, object]:
    """Give what a dashboard shows of a trial."""
    search = open_one()
    asked = search.ask()
    usual: dict[str, object] = {"status": "measured", "score": 90.0, "predicted": 100.04, "constraints": {}}
    search.tell(TrialRecord.model_validate({"number": asked.number, "config": asked.config} | usual | record_changes))
    (trial,) = search._study.trials
    return trial.user_attrs


def test_a_trial_tells_in_words_what_became_of_it() -> None:
    result = make_result(SPACE.from_params({}), 90.0, peak_host_bytes=10, peak_shm_bytes=2)
    assert tell_and_describe({"config": result.config, "result": result}) == {
        "outcome": "completed",
        "expected_samples_per_second": 100.0,
        "peak_host_bytes": 10,
        "peak_shm_bytes": 2,
    }


def test_a_trial_that_failed_tells_why() -> None:
    result = make_result(SPACE.from_params({}), kind="shm_exhausted", message="filled /dev/shm")
    told = tell_and_describe({"config": result.config, "result": result, "score": 0.0, "predicted": 0.0})
    assert told == {"outcome": "shm_exhausted", "reason": "filled /dev/shm"}


@pytest.mark.parametrize(
    ("constraints", "reason"),
    [
        ({"memory": 0.5, "shm": 0.1, "files": -1.0}, "predicted over a limit: memory, shm"),
        ({"memory": 0.5, "works": 1.0}, "workers are ruled out"),
    ],
)
def test_a_trial_that_was_skipped_tells_why(constraints: dict[str, float], reason: str) -> None:
    told = tell_and_describe({"status": "skipped", "constraints": constraints})
    assert told["outcome"] == "skipped"
    assert told["reason"] == reason


def test_a_trial_that_was_never_proposed_is_kept_under_the_next_number_and_not_proposed_again() -> None:
    search = open_one()
    first = search.ask()
    record = TrialRecord(
        number=search.next_number,
        config=SPACE.from_params({"num_workers": 1}),
        status="measured",
        score=5.0,
        constraints={"works": -1.0},
        result=make_result(SPACE.from_params({"num_workers": 1}), 5.0),
    )
    search.add(record)
    assert (first.number, record.number, search.next_number) == (0, 1, 2)
    search.enqueue([record.config])
    search.guide(lambda: first.config)
    assert search.ask().config == first.config
