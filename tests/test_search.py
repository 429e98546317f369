"""What Optuna keeps for us, and what we keep from it."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from autotune.errors import StudyError
from autotune.records import TrialRecord
from autotune.request import TuningRequest, WorkloadRequest
from autotune.search import Search, open_search
from autotune.space import SearchSpace
from tests.builders import make_machine

SPACE = SearchSpace(batch_size=(32,), num_workers=(0, 1, 2, 4, 8), pin_memory=(False,))
HARDWARE = make_machine().hardware(None, 0)
URL = "sqlite:///.dltune/studies.db"
pytestmark = pytest.mark.usefixtures("workdir")


def open_one(**options: object) -> Search:
    request = TuningRequest.model_validate({"workload": WorkloadRequest(dataset="pkg:make"), **options})
    return open_search(request, SPACE, HARDWARE)


def tell_one(search: Search, score: float) -> TrialRecord:
    asked = search.ask()
    record = TrialRecord(
        number=asked.number, config=asked.config, fate="measured", score=score, constraints={"memory": -0.5}
    )
    search.tell(record)
    return record


def test_what_was_told_is_read_back_by_the_next_process() -> None:
    record = tell_one(open_one(), 10.0)
    assert open_one().records() == [record]


def test_seeds_are_proposed_first_and_in_their_order() -> None:
    search = open_one()
    wanted = [SPACE.build({"num_workers": workers}) for workers in (8, 0, 4)]
    search.enqueue(wanted)
    assert [search.ask().config for _ in wanted] == wanted


def test_every_trial_carries_the_same_constraints() -> None:
    search = open_one()
    tell_one(search, 1.0)
    tell_one(search, 2.0)
    trials = optuna.load_study(study_name=search.name, storage=URL).trials
    assert {frozenset(trial.constraints) for trial in trials} == {frozenset({"memory", "shm", "files", "works"})}


def test_a_trial_of_a_dead_process_is_reaped_and_proposed_again() -> None:
    first = open_one()
    asked = first.ask()
    study = optuna.load_study(study_name=first.name, storage=URL)
    (trial,) = study.trials
    owner = {**trial.user_attrs["dltune_owner"], "started": 1.0}
    study._storage.set_trial_user_attr(trial._trial_id, "dltune_owner", owner)
    second = open_one()
    assert second.reap() == 1
    assert second.ask().config == asked.config


def test_a_trial_of_a_living_process_is_left_alone() -> None:
    first = open_one()
    first.ask()
    assert open_one().reap() == 0
    states = [trial.state for trial in optuna.load_study(study_name=first.name, storage=URL).trials]
    assert states == [TrialState.RUNNING]


def test_another_space_under_the_same_name_is_refused() -> None:
    tell_one(open_one(study_name="mine"), 1.0)
    request = TuningRequest(workload=WorkloadRequest(dataset="pkg:make"), study_name="mine")
    other = SPACE.model_copy(update={"num_workers": (0, 1)})
    with pytest.raises(StudyError, match="another space"):
        open_search(request, other, HARDWARE)


def test_a_storage_that_is_no_database_is_a_clear_error(workdir: Path) -> None:
    (workdir / "noise.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StudyError, match="--storage"):
        open_one(storage="sqlite:///noise.db")


def test_a_record_of_another_version_is_a_clear_error() -> None:
    search = open_one()
    trial = tell_one(search, 1.0)
    study = optuna.load_study(study_name=search.name, storage=URL)
    study.add_trial(
        optuna.create_trial(value=1.0, user_attrs={"dltune_record": '{"number": 1}'}, state=TrialState.COMPLETE)
    )
    assert trial.number == 0
    with pytest.raises(StudyError, match="--no-resume"):
        search.records()
