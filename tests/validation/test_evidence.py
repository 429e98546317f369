"""What is written down beside the answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from autotune.config import LoaderConfig
from autotune.profiles.search_record import SearchEvidence
from autotune.request import TuningRequest
from autotune.search.plan import Plan, make_plan
from autotune.search.surrogate import Prediction
from autotune.search.trial_record import TrialRecord
from autotune.trial.measurement import TrialResult
from autotune.tuning import TuningResult, tune
from autotune.validation.evidence import (
    batch_time_breakdown,
    build_evidence,
    knob_importance,
    summarize_trial,
    sweep_knob,
    worker_scaling_curve,
)
from tests.builders import (
    GIB,
    MIB,
    make_config,
    make_cost,
    make_limits,
    make_machine,
    make_measurement,
    make_request,
    make_result,
    make_trace,
    make_workload,
)

ANSWER = make_config(4, 2, persistent_workers=True)


def plan(workload: dict[str, Any] | None = None, budgets: dict[str, Any] | None = None, **request: Any) -> Plan:
    request.setdefault("batch_sizes", (32,))
    profile = make_workload(cpu_share=0.05, **workload or {})
    return make_plan(make_request(**request), make_machine(), profile, make_limits(**budgets or {}))


def expect(rate: Callable[[LoaderConfig], float]) -> Callable[[Any], list[Prediction]]:
    return lambda configs: [Prediction(samples_per_second=rate(config), relative_error=0.1) for config in configs]


def by_workers(config: LoaderConfig) -> float:
    return 100.0 * (1 + config.dataloader.num_workers)


def record(result: TrialResult | None, **changes: Any) -> TrialRecord:
    usual: dict[str, Any] = {"number": 0, "config": ANSWER, "status": "measured", "score": 1000.0, "predicted": 900.0}
    return TrialRecord(**usual | {"constraints": {}, "result": result} | changes)


def test_a_trial_is_written_down_with_what_it_reached_and_what_was_expected() -> None:
    result = make_result(ANSWER, 1000.0, peak_host_bytes=2 * GIB, peak_shm_bytes=3 * MIB)
    line = summarize_trial(7, record(result), plan())
    assert (line.number, line.outcome, line.samples_per_second, line.expected_samples_per_second) == (
        7,
        "completed",
        1000.0,
        900.0,
    )
    assert (line.dataloader, line.process) == (ANSWER.dataloader, ANSWER.process)
    assert (line.peak_host_bytes, line.peak_shm_bytes) == (2 * GIB, 3 * MIB)
    assert line.relative_error is not None
    assert line.reason == ""


def test_an_uncertainty_that_is_not_known_is_none_and_not_infinite() -> None:
    one_batch = make_measurement(make_trace([0.1]), epoch_batches=None)
    result = TrialResult(kind="completed", config=ANSWER, measurement=one_batch)
    assert summarize_trial(1, record(result), plan()).relative_error is None


def test_a_hopeless_trial_is_told_from_one_that_ran_to_its_end() -> None:
    whole = make_result(ANSWER, 500.0)
    assert whole.measurement is not None
    hopeless = whole.model_copy(update={"measurement": whole.measurement.model_copy(update={"stopped": "hopeless"})})
    assert summarize_trial(1, record(hopeless), plan()).outcome == "stopped_early"


def test_a_failed_trial_keeps_its_reason_and_has_no_throughput() -> None:
    result = make_result(ANSWER, kind="shm_exhausted", message="filled /dev/shm: 64 MiB of 64 MiB")
    line = summarize_trial(1, record(result, score=0.0), plan())
    assert (line.outcome, line.samples_per_second) == ("failed", None)
    assert line.reason == "It filled /dev/shm: 64 MiB of 64 MiB."


def test_a_skipped_configuration_names_every_limit_it_would_have_broken_with_the_numbers() -> None:
    constraints = {"memory": -0.5, "shm": 0.5, "files": 1.0, "works": 0.0}
    skipped = record(None, status="skipped", constraints=constraints)
    line = summarize_trial(1, skipped, plan(budgets={"shm_bytes": 64 * MIB, "nofile": 500}))
    assert line.outcome == "skipped"
    assert line.reason == (
        "Predicted over a limit: /dev/shm: 96.0 MiB needed of 64.0 MiB; open files: 1,000 needed of 500."
    )


def test_a_configuration_that_was_skipped_within_its_limits_was_ruled_out_by_trials() -> None:
    line = summarize_trial(1, record(None, status="skipped"), plan())
    assert line.reason == "Ruled out by what earlier trials showed."


def test_the_curve_varies_the_workers_and_nothing_else() -> None:
    asked: list[LoaderConfig] = []

    def remember(config: LoaderConfig) -> float:
        asked.append(config)
        return by_workers(config)

    curve = worker_scaling_curve(plan(), ANSWER, expect(remember))
    workers = [point.num_workers for point in curve]
    assert workers == sorted(set(workers))
    assert {0, 4} < set(workers)
    assert [point.samples_per_second for point in curve] == [100.0 * (1 + count) for count in workers]
    assert {config.dataloader.prefetch_factor for config in asked if config.dataloader.num_workers} == {2}
    assert all(config.dataloader.persistent_workers for config in asked if config.dataloader.num_workers)


def test_the_curve_ends_where_a_limit_would_be_broken() -> None:
    roomy = plan(workload={"sample_bytes": MIB // 8}, budgets={"shm_bytes": 1 * GIB})
    tight = plan(workload={"sample_bytes": MIB // 8}, budgets={"shm_bytes": 64 * MIB})
    reach = [worker_scaling_curve(space, ANSWER, expect(by_workers))[-1].num_workers for space in (roomy, tight)]
    assert reach[0] > reach[1] >= 4


def test_without_workers_in_the_answer_the_curve_is_that_of_a_careful_hand() -> None:
    configs = list(sweep_knob(plan(fixed={"prefetch_factor": 8}), make_config(0), "num_workers"))
    assert configs[0] == make_config(0)
    assert all(config.dataloader.persistent_workers for config in configs[1:])
    assert {config.dataloader.prefetch_factor for config in configs[1:]} == {8}


def test_importance_is_the_spread_along_a_knob_as_a_share_of_all() -> None:
    def rate(config: LoaderConfig) -> float:
        keeps, ordered = config.dataloader.persistent_workers, config.dataloader.in_order
        return 100.0 * (8 if keeps else 1) * (1 if ordered else 2)

    shares = knob_importance(plan(fixed={"num_workers": 4}), ANSWER, expect(rate))
    assert "num_workers" not in shares
    assert shares["persistent_workers"] == pytest.approx(math.log(8) / math.log(16))
    assert shares["in_order"] == pytest.approx(math.log(2) / math.log(16))
    assert shares["prefetch_factor"] == 0
    assert sum(shares.values()) == pytest.approx(1)


def test_where_nothing_varies_nothing_is_important() -> None:
    assert knob_importance(plan(), ANSWER, expect(lambda config: 100.0)) == {}


def test_the_parts_of_a_batch_add_up_to_the_work_in_it() -> None:
    costs = {
        "load_cost": make_cost(1e-3),
        "collate_cost": make_cost(2e-4),
        "transfer_cost": make_cost(1e-5),
        "step_cost": make_cost(0, 0.02),
    }
    time = batch_time_breakdown(plan(workload=costs, batch_sizes=(64,)), make_config(4, 2, 64))
    assert time.samples == 64
    assert time.load == pytest.approx(64 * 0.8e-3)
    assert time.collate == pytest.approx(64 * 2e-4)
    assert time.transfer == pytest.approx(64e-5)
    assert time.step == pytest.approx(0.02)


def test_own_batches_are_split_at_the_size_that_the_probe_saw() -> None:
    own = plan(workload={"batching": "user", "probe_batch_size": 17}, batch_sizes=None)
    assert batch_time_breakdown(own, make_config(2, batch_size=None)).samples == 17


def tune_by_formula(request: TuningRequest) -> TuningResult:
    return tune(
        request,
        run_trial=lambda asked: make_result(asked.config, 1000.0 + 100 * min(4, asked.config.dataloader.num_workers)),
        machine=make_machine(),
        workload=make_workload(cpu_share=0.05),
    )


@pytest.mark.usefixtures("workdir")
def test_a_run_leaves_its_evidence_and_its_request_in_the_profile() -> None:
    request = make_request(batch_sizes=(32,), ranges={"num_workers": (0, 8)}, fixed={"in_order": True}, trials=12)
    outcome = tune_by_formula(request)
    evidence = outcome.profile.evidence
    assert evidence is not None
    assert [line.number for line in evidence.trials] == list(range(1, len(outcome.records) + 1))
    assert [point.num_workers for point in evidence.scaling_curve] == list(range(9))
    assert "in_order" not in evidence.knob_importance
    assert evidence.batch_time is not None
    assert TuningRequest.model_validate(outcome.profile.request) == request


def test_evidence_of_no_trial_is_empty_but_for_what_the_probe_and_the_cost_model_say() -> None:
    found = build_evidence(plan(), [], ANSWER, expect(by_workers))
    assert found.trials == ()
    assert found.scaling_curve
    assert SearchEvidence.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("postgresql://ada:secret@host:5432/db", "postgresql://ada:***@host:5432/db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("sqlite:///trials.db", "sqlite:///trials.db"),
    ],
)
def test_the_password_of_a_storage_is_not_written_down(given: str, kept: str) -> None:
    assert make_request(storage=given).record()["storage"] == kept
