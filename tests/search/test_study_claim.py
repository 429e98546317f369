"""Of several runs on one study all but the first are refused, unless that one is dead."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import StudyError
from tests.search.studies import SERVER, load_study, open_one, read_records

pytestmark = pytest.mark.usefixtures("workdir")


@pytest.mark.parametrize("url", [None, SERVER])
def test_a_second_run_on_the_same_study_is_refused_with_a_way_out(url: str | None) -> None:
    with open_one(storage=url, study_name="mine"):
        with pytest.raises(
            StudyError, match=r"Study mine is being worked on .* \(process \d+\)\. Wait .* --study-name"
        ):
            read_records(storage=url, study_name="mine")
        read_records(storage=url, study_name="other")


@pytest.mark.parametrize("url", [None, SERVER])
def test_a_study_is_free_again_when_its_run_has_ended(url: str | None) -> None:
    for _ in range(2):
        read_records(storage=url, study_name="mine")


@pytest.mark.parametrize(
    "owner",
    [
        {"host": "elsewhere", "pid": 1, "started": 1.0, "seen": 1.0},
        {"pid": 1},
        {"host": None, "pid": "one", "seen": "late"},
        "somebody",
        [1],
    ],
)
def test_a_study_whose_owner_is_dead_or_no_owner_is_taken_over(owner: object) -> None:
    read_records(storage=SERVER, study_name="mine")
    load_study("mine", SERVER).set_user_attr("dltune_owner", owner)
    read_records(storage=SERVER, study_name="mine")


def move_owner(name: str, **changes: Any) -> None:
    """Let the run that works on a study be one of another machine."""
    study = load_study(name, SERVER)
    study.set_user_attr("dltune_owner", study.user_attrs["dltune_owner"] | {"host": "elsewhere"} | changes)


@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_a_run_on_another_machine_keeps_its_study_whatever_the_clocks_say(
    hours: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    with open_one(storage=SERVER, study_name="mine"):
        move_owner("mine")
        monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)
        with pytest.raises(StudyError, match=r"being worked on .* on elsewhere\)"):
            read_records(storage=SERVER, study_name="mine")


def test_a_run_on_another_machine_is_dead_when_it_was_silent_for_longer_than_any_trial_may_take() -> None:
    options: dict[str, Any] = {"storage": SERVER, "study_name": "mine"}
    with open_one(**options, stall_seconds=100.0):
        seen = load_study("mine", SERVER).user_attrs["dltune_owner"]["seen"]
        move_owner("mine", seen=seen - 2000.0)  # a dataset may take 20 times the stall time to load
        with pytest.raises(StudyError, match="being worked on"):
            read_records(**options)
        move_owner("mine", seen=seen - 4000.0)
        read_records(**options)


def test_a_study_whose_owners_number_went_to_another_process_is_taken_over() -> None:
    with open_one(storage=SERVER, study_name="mine") as search:
        study = load_study("mine", SERVER)
        study.set_user_attr("dltune_owner", study.user_attrs["dltune_owner"] | {"started": 1.0})
        assert read_records(storage=SERVER, study_name="mine") == search.records()


def test_nothing_is_left_beside_a_database_of_the_users(workdir: Path) -> None:
    read_records(storage="sqlite:///mine.db")
    assert [path.name for path in workdir.iterdir()] == ["mine.db"]
