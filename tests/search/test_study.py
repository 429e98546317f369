"""What is kept of a run, for whom, and what is refused."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from autotune.errors import StudyError
from autotune.request import WorkloadRequest
from autotune.search.ask_tell import Search, open_search
from autotune.search.storage import open_storage
from autotune.search.trial_record import TrialRecord
from tests.builders import make_machine, make_request
from tests.search.studies import HARDWARE, SPACE, load_study, open_one, read_records, tell_one

pytestmark = pytest.mark.usefixtures("workdir")


# Keeping


def test_what_was_told_is_read_back_by_the_next_process() -> None:
    with open_one() as search:
        told = [tell_one(search, score) for score in (10.0, 20.0)]
    assert read_records() == told


def test_a_trial_under_way_leaves_no_trace_in_the_record() -> None:
    with open_one() as search:
        tell_one(search)
        search.ask()
        assert [trial.state for trial in load_study(search.name).trials] == [TrialState.COMPLETE]


def test_a_finished_study_is_followed_by_a_new_one_unless_it_is_asked_for() -> None:
    with open_one() as search:
        told = tell_one(search)
        search.finish()
    assert read_records(resume=True) == [told]
    assert read_records() == []


def test_a_run_from_the_start_leaves_the_earlier_one_as_it_is() -> None:
    with open_one(study_name="mine") as search:
        tell_one(search)
    assert read_records(study_name="mine", resume=False) == []
    assert len(load_study("mine").trials) == 1


def test_a_request_of_another_length_of_training_gets_a_study_of_its_own() -> None:
    with open_one() as search, open_one(epochs=3) as other:
        assert search.name != other.name


@pytest.mark.parametrize("options", [{}, {"study_name": "mine"}])
def test_what_another_probe_thought_worth_trying_is_taken_over_as_far_as_this_one_does(options: dict[str, Any]) -> None:
    with open_one(**options) as search:
        told = tell_all(search, 0, 1, 2, 4, 8)
    fewer = replace(SPACE, choices={**SPACE.choices, "num_workers": (0, 1, 2, 5)})
    with open_one(fewer, **options) as search:
        assert search.records() == told[:3]
        tell_all(search, 5)
    assert len(read_records(**options)) == 5


def tell_all(search: Search, *workers: int) -> list[TrialRecord]:
    """Measure the configurations with these numbers of workers."""
    search.enqueue([SPACE.from_params({"num_workers": count}) for count in workers])
    return [tell_one(search) for _ in workers]


def test_a_range_without_zero_continues_a_study_with_it_and_is_stored() -> None:
    heard: list[str] = []
    with open_one(study_name="mine") as search:
        tell_all(search, 0, 4)
    positive = replace(SPACE, choices={**SPACE.choices, "num_workers": (2, 4), "batch_size": (16, 32)})
    with open_one(positive, study_name="mine", heard=heard) as search:
        tell_all(search, 2)
    assert heard == []
    assert len(load_study("mine").trials) == 3


def test_a_request_with_other_pins_or_budgets_gets_a_study_of_its_own() -> None:
    names = set()
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"fixed": {"in_order": True}},
        {"ranges": {"num_workers": (0, 4)}},
        {"batch_sizes": (32,)},
        {"max_workers": 4},
        {"max_memory": "4GiB"},
        {"trial_seconds": 1.0},
    )
    for options in changes:
        with open_one(**options) as search:
            names.add(search.name)
    assert len(names) == len(changes)


def test_a_request_for_more_trials_or_time_continues_the_study_of_the_one_before() -> None:
    with open_one(trials=5) as search:
        told = tell_one(search)
    assert read_records(trials=9, timeout_seconds=60.0, output="other.json") == [told]


# Refusing


def test_a_named_study_of_another_machine_is_refused() -> None:
    with open_one(study_name="mine"):
        pass
    larger = make_machine(affinity_cpus=8).hardware(None)
    with (
        pytest.raises(StudyError, match="another workload, machine or length of training"),
        open_one(hardware=larger, study_name="mine"),
    ):
        pass


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 3},
        {"workload": WorkloadRequest(dataset="pkg.data:make_other")},
        {"workload": WorkloadRequest(dataset="pkg.data:make_dataset", split="train")},
    ],
)
def test_a_named_study_of_another_workload_or_length_of_training_is_refused(changes: dict[str, Any]) -> None:
    with open_one(study_name="mine"):
        pass
    request = make_request(study_name="mine").model_copy(update=changes)
    with (
        pytest.raises(StudyError, match="another workload, machine or length of training"),
        open_storage(None) as storage,
        open_search(storage, request, SPACE, HARDWARE, warnings.warn),
    ):
        pass


def test_a_record_of_another_version_is_a_clear_error_and_is_kept() -> None:
    with open_one(study_name="mine") as search:
        tell_one(search)
    add_record("mine", '{"number": 1, "ranks": 8}')
    with pytest.raises(StudyError, match=r"problems in trial 1\. Start afresh with --no-resume"):
        read_records(study_name="mine")
    assert len(load_study("mine").trials) == 2


def add_record(study: str, text: str) -> None:
    trial = optuna.create_trial(value=1.0, user_attrs={"dltune_record": text}, state=TrialState.COMPLETE)
    load_study(study).add_trial(trial)


def test_a_record_is_read_where_earlier_versions_have_put_it() -> None:
    with open_one(study_name="mine") as search:
        told = tell_one(search)
    add_record("mine", told.model_copy(update={"number": 1}).model_dump_json())
    assert [record.number for record in read_records(study_name="mine")] == [0, 1]


def test_a_study_of_a_newer_format_is_left_alone() -> None:
    with open_one(study_name="mine") as search:
        tell_one(search)
    load_study("mine").set_user_attr("dltune_format", 2)
    with pytest.raises(StudyError, match=r"newer dltune \(format 2; this one reads 1\)\. Update dltune"):
        read_records(study_name="mine")


def test_a_record_of_a_configuration_outside_the_space_is_not_taken_over() -> None:
    with open_one(study_name="mine") as search:
        record = tell_one(search)
    document = json.loads(record.model_dump_json())
    document["config"]["dataloader"] |= {"num_workers": 4000, "prefetch_factor": 2, "batch_size": 2**31 - 1}
    add_record("mine", json.dumps(document))
    assert read_records(study_name="mine") == [record]
