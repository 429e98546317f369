"""What is kept of a run, for whom, and what is refused."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from autotune.errors import StudyError
from autotune.request import TuningRequest, WorkloadRequest
from autotune.search.ask_tell import Search, open_search
from autotune.search.space import SearchSpace
from autotune.search.storage import open_storage
from autotune.search.trial_record import TrialRecord
from autotune.system.hardware import Hardware
from tests.builders import make_machine, make_request

SPACE = SearchSpace.of(batch_size=(32,), num_workers=(0, 1, 2, 4, 8), pin_memory=(False,))
HARDWARE = make_machine().hardware(None)
URL = "sqlite:///.dltune/studies.db"
SERVER = "sqlite:///file:server.db?uri=true"  # stands in for a server: a database that dltune knows no file of
pytestmark = pytest.mark.usefixtures("workdir")


@contextmanager
def open_one(
    space: SearchSpace = SPACE, hardware: Hardware = HARDWARE, heard: list[str] | None = None, **options: Any
) -> Iterator[Search]:
    request: TuningRequest = make_request(**options)
    heard = [] if heard is None else heard
    with (
        open_storage(request.storage) as storage,
        open_search(storage, request, space, hardware, heard.append) as search,
    ):
        yield search


def tell_one(search: Search, score: float = 1.0) -> TrialRecord:
    asked = search.ask()
    record = TrialRecord(
        number=asked.number, config=asked.config, fate="measured", score=score, constraints={"memory": -0.5}
    )
    search.tell(record)
    return record


def read_records(**options: Any) -> list[TrialRecord]:
    with open_one(**options) as search:
        return search.records()


def load_study(name: str, url: str = URL) -> optuna.Study:
    return optuna.load_study(study_name=name, storage=url)


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


@pytest.mark.parametrize("changes", [{"epochs": 3}, {"workload": WorkloadRequest(dataset="pkg.data:make_other")}])
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


def test_a_storage_that_is_no_database_is_a_clear_error(workdir: Path) -> None:
    (workdir / "noise.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StudyError, match=r"noise\.db cannot be opened: file is not a database\. .* --storage"):
        read_records(storage="sqlite:///noise.db")


def test_a_storage_of_gigabytes_is_refused_with_its_size(workdir: Path) -> None:
    read_records(storage="sqlite:///big.db")
    with (workdir / "big.db").open("r+b") as file:
        file.truncate(3 * 2**30)
    with pytest.raises(StudyError, match=r"holds 3\.0 GiB, which is more than the 2\.0 GiB"):
        read_records(storage="sqlite:///big.db")


@pytest.mark.parametrize("url", ["sqlite:///mine.db", "nonsense://there/db"])
def test_the_log_levels_of_the_caller_are_as_they_were_after_a_run(url: str) -> None:
    pool = logging.getLogger("sqlalchemy.pool")
    before = optuna.logging.get_verbosity(), pool.level
    try:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pool.setLevel(logging.INFO)
        with suppress(StudyError), open_storage(url):
            assert (optuna.logging.get_verbosity(), pool.level) == (logging.ERROR, logging.CRITICAL)
        assert (optuna.logging.get_verbosity(), pool.level) == (logging.WARNING, logging.INFO)
    finally:
        optuna.logging.set_verbosity(before[0])
        pool.setLevel(before[1])


def test_a_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(StudyError) as caught, open_storage("nonsense://me:secret@host/trials"):
        pass
    assert "secret" not in str(caught.value)


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


def test_a_database_of_a_newer_optuna_is_a_clear_error() -> None:
    read_records()
    with sqlite3.connect(".dltune/studies.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v99.0.0'")
    connection.close()
    with pytest.raises(StudyError, match=r"no longer compatible .* Give another place with --storage"):
        read_records()


# One run at a time


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
