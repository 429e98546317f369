"""The study of a search in a storage, as users of Optuna know it."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from autotune.config import LoaderConfig
from autotune.errors import StudyError, UsageError
from autotune.protocol.measurement import TrialResult
from autotune.request import TuningRequest, WorkloadRequest
from autotune.search.loop import Search, SearchOutcome
from autotune.search.plan import Plan, make_plan
from autotune.search.study import (
    METRIC,
    TrialRecord,
    check_study,
    open_storage,
    open_study,
    read_records,
    store_record,
)
from autotune.search.surrogate import TrialModel
from autotune.settings import SETTINGS
from tests.builders import make_limits, make_machine, make_measurement_of, make_request, make_result
from tests.search.formulas import Formula, ResumeListener, io_bound_workload, saturating

URL = "sqlite:///studies.db"
OTHER = WorkloadRequest(dataset="pkg.data:make_dataset", dataset_args={"size": 512})
pytestmark = [
    pytest.mark.usefixtures("workdir"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]


def plan_for(**options: Any) -> Plan:
    fixed = {"batch_size": 32} | options.pop("fixed", {})
    request: TuningRequest = make_request(**{"storage": URL, "study_name": "mine", "fixed": fixed} | options)
    return make_plan(request, make_machine(affinity_cpus=2), io_bound_workload(), make_limits())


def run(measure: Formula | None = None, listener: ResumeListener | None = None, **options: Any) -> SearchOutcome:
    return Search(plan_for(**options), measure or Formula(), listener or ResumeListener()).run()


def load(url: str = URL) -> optuna.Study:
    return optuna.load_study(study_name="mine", storage=url)


def test_a_study_has_parameters_values_constraints_and_readable_attributes() -> None:
    outcome = run()
    study = load()
    assert study.metric_names == [METRIC]
    assert study.user_attrs == {
        "dataset": "pkg.data:make_dataset",
        "split": None,
        "step": "built-in",
        "arguments": {},
        "processes": 1,
        "device": "auto",
        "start method": "default",
        "machine": "cpu-2c-16g",
        "epochs": 10,
    }
    assert study.best_value == max(record.samples_per_second for record in outcome.records)
    for trial in study.get_trials(states=(TrialState.COMPLETE,)):
        assert set(trial.params) <= set(SETTINGS)
        assert set(trial.constraints) == {"memory", "shm", "files", "gpu", "works"}
        assert trial.user_attrs["config"].startswith("w=")
        assert trial.user_attrs["record"]["result"]["peak_host_bytes"] == 2**28


def test_without_a_storage_no_file_is_written(workdir: Path) -> None:
    run(storage=None, study_name=None)
    assert list(workdir.iterdir()) == []


@pytest.mark.parametrize("storage", [URL, "trials.log"])
def test_the_trials_of_a_study_in_a_database_or_a_journal_file_are_reused(workdir: Path, storage: str) -> None:
    measure, again, listener = Formula(), Formula(), ResumeListener()
    first = run(measure, trials=4, storage=storage)
    second = run(again, listener, storage=storage)
    assert listener.resumed == 4
    assert set(measure.configs).isdisjoint(again.configs)
    assert [record.config for record in second.records] == [record.config for record in first.records] + again.configs
    study = optuna.load_study(study_name="mine", storage=open_storage(storage))
    assert len(read_records(study, plan_for().space)) == 4 + len(again.configs)
    assert [path.name for path in workdir.iterdir()] == [storage.removeprefix("sqlite:///")]


def test_a_record_is_the_same_after_it_was_stored() -> None:
    outcome = run()
    records = read_records(load(), plan_for().space)
    for record, stored in zip(outcome.records, records, strict=True):
        assert record.result is not None
        without = record.result.model_copy(update={"measurement": None})
        assert stored == record.model_copy(update={"result": without})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 20}, r"Study mine has epochs 10, not 20\. Give another --study-name"),
        ({"workload": OTHER}, r"Study mine has arguments {}, not {'size': 512}\. Give another"),
        ({"fresh": True}, "Study mine exists: with --fresh, give another --study-name"),
    ],
)
def test_a_study_of_another_workload_or_before_a_fresh_run_is_refused(options: dict[str, Any], words: str) -> None:
    run(trials=1)
    with pytest.raises(StudyError, match=words):
        run(**options)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///noise.db", r"noise\.db cannot be opened: file is not a database\. Check --storage"),
        ("nonsense://me:secret@host/trials", r"//me:\*\*\*@host/trials cannot be opened: .*nonsense"),
        ("nonsense://me@server:secret@host/trials", r"//me@server:\*\*\*@host/trials cannot be opened"),
        ("nonsense://me:sec@secret@host/trials", r"//me:\*\*\*@host/trials cannot be opened"),
        ("nonsense://host/trials?user=me&password=secret&x=1", r"user=me&password=\*\*\*&x=1 cannot be opened"),
        ("oracle+cx_oracle://ada@localhost/db", "No module named 'cx_Oracle'"),
        ("noise.db", r"noise\.db cannot be opened: .*Check --storage"),
        ("sqlite:////proc/studies.db", "unable to open database file"),
        ("queue", "queue cannot be opened: it is not a file"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_one_clear_sentence(workdir: Path, url: str, words: str) -> None:
    (workdir / "noise.db").write_bytes(b"this is not a database" * 100)
    os.mkfifo(workdir / "queue")
    with pytest.raises(StudyError, match=words) as caught:
        run(storage=url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_of_a_study_needs_a_storage() -> None:
    with pytest.raises(UsageError, match=r"--study-name names a study in a storage: .* --storage"):
        check_study(make_request(study_name="mine"))


def test_a_storage_that_fails_during_the_run_ends_the_search_with_the_trials_so_far() -> None:
    def break_third(config: LoaderConfig) -> float:
        if len(measure.configs) == 3:
            Path("studies.db").write_bytes(b"broken" * 1000)
        return saturating(config)

    measure = Formula(break_third)
    outcome = run(measure)
    assert len(measure.configs) == 3
    assert [record.config for record in outcome.records] == measure.configs
    assert outcome.stop_reason == "the Optuna storage failed"
    assert isinstance(outcome.interrupted_by, StudyError)
    assert str(outcome.interrupted_by).startswith("The study in sqlite:///studies.db cannot be used any more: ")


ALL_FIXED: dict[str, Any] = {
    "prefetch_factor": 2,
    "persistent_workers": True,
    "in_order": True,
    "pin_memory": False,
    "sharing_strategy": "file_descriptor",
}


def test_a_space_of_one_configuration_is_measured_once() -> None:
    measure = Formula()
    outcome = run(measure, storage=None, fixed=ALL_FIXED | {"num_workers": 2})
    assert len(measure.configs) == len(outcome.records) == 1
    assert outcome.stop_reason == "every configuration within the limits was tried"


def test_a_space_without_a_configuration_within_the_limits_ends_without_a_trial() -> None:
    measure, plan = Formula(), plan_for(storage=None, trials=5)
    outcome = Search(replace(plan, budgets=make_limits(memory_bytes=2**20)), measure, ResumeListener()).run()
    assert measure.configs == []
    assert {record.result for record in outcome.records} == {None}


def test_an_interrupted_trial_is_a_failed_trial_of_the_study() -> None:
    outcome = run(Formula(stop_after=3))
    assert isinstance(outcome.interrupted_by, KeyboardInterrupt)
    assert outcome.stop_reason == "interrupted"
    assert [trial.state for trial in load().trials][:4] == [TrialState.COMPLETE] * 3 + [TrialState.FAIL]


def test_a_repeated_proposal_gets_the_known_throughput_without_another_trial() -> None:
    measure = Formula()
    outcome = run(measure, sampler="random", fixed=ALL_FIXED, search={"num_workers": (1, 2)})
    assert outcome.stop_reason == "the last 40 proposals were all measured before"
    assert [config.dataloader.num_workers for config in measure.configs] in ([1, 2], [2, 1])
    stored = load().get_trials(states=(TrialState.COMPLETE,))
    assert len(stored) >= 42
    assert {trial.value for trial in stored} == {record.samples_per_second for record in outcome.records}
    listener = ResumeListener()
    run(Formula(), listener, sampler="random", fixed=ALL_FIXED, search={"num_workers": (1, 2)})
    assert listener.resumed == 2


def test_the_log_levels_of_the_caller_are_restored() -> None:
    pool = logging.getLogger("sqlalchemy.pool")
    before = optuna.logging.get_verbosity(), pool.level
    run(trials=1)
    assert (optuna.logging.get_verbosity(), pool.level) == before


def test_trials_that_dltune_did_not_write_are_ignored() -> None:
    run(trials=3)
    study = load()
    for attributes in ({}, {"record": {"status": "unknown"}}, {"record": "text"}):
        study.add_trial(optuna.create_trial(value=1e9, user_attrs=attributes))
    assert len(read_records(study, plan_for().space)) == 3


def test_a_trial_that_was_stopped_early_is_one_in_a_continued_run_too() -> None:
    plan = plan_for()
    config, study = plan.candidates[0], open_study(plan)
    measurement = make_measurement_of(500.0).model_copy(update={"stopped": "pruned"})
    result = TrialResult(status="completed", config=config, measurement=measurement)
    store_record(study, plan, TrialModel(plan).make_record(config, result))
    assert [one.is_stopped_early for one in read_records(study, plan.space)] == [True]


def test_a_configuration_over_a_limit_is_never_the_best_trial_of_the_study() -> None:
    plan, study = plan_for(), optuna.create_study(direction="maximize")
    slow, fast = plan.candidates[:2]
    for config, rate, excess in ((slow, 1.0, -0.5), (fast, 9.0, 0.5)):
        constraints = {"shm": excess, "works": -1.0}
        record = TrialRecord(config=config, samples_per_second=rate, constraints=constraints)
        store_record(study, plan, record)
    assert study.best_value == 1.0


@pytest.mark.parametrize("sampler", ["model", "tpe", "random"])
def test_every_sampler_measures_the_seeds_first(sampler: str) -> None:
    measure = Formula()
    run(measure, storage=None, sampler=sampler, trials=8)
    seeds = plan_for().initial_configs()
    assert measure.configs[: len(seeds)] == seeds


def test_the_gp_sampler_needs_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"--sampler gp needs scipy: pip install scipy"):
        check_study(make_request(sampler="gp"))


@pytest.mark.parametrize(("rate_without", "is_proposed"), [(100.0, False), (400.0, True)])
def test_after_a_trial_with_workers_none_without_them_is_proposed_unless_it_is_predicted_to_be_the_fastest(
    rate_without: float, is_proposed: bool
) -> None:
    fixed = {"prefetch_factor": 2, "sharing_strategy": "file_descriptor", "in_order": True}
    request = make_request(search={"batch_size": (32, 64)}, max_workers=1, fixed=fixed)
    plan = make_plan(request, make_machine(affinity_cpus=2), io_bound_workload(), make_limits())
    model = TrialModel(plan)
    alone = [config for config in plan.candidates if not config.dataloader.num_workers]
    known = [alone[0], *(config for config in plan.candidates if config.dataloader.num_workers)]
    rates = [rate_without, *[200.0] * (len(known) - 1)]
    model.fit([model.make_record(config, make_result(config, rate)) for config, rate in zip(known, rates, strict=True)])
    assert (model.propose() is not None) is is_proposed


def test_a_configuration_that_a_limit_excluded_is_unknown_to_a_run_with_another_one() -> None:
    plan, study = plan_for(), optuna.create_study(direction="maximize")
    store_record(study, plan, TrialRecord(config=plan.candidates[0], samples_per_second=9.0, constraints={"shm": 0.5}))
    assert read_records(study, plan.space) == []
